"""tf.data pipelines that give every layout the same rows in the same order, each counted once.

Four things are done here that a plain ``shuffle().batch()`` does not:

* The order of an epoch comes from the seed and the epoch's number alone. Keras looks into a dataset a
  different number of times for each strategy, so a reshuffling pipeline would give each another order
  (Keras 3.15).
* The datasets have no end: one iterator lasts a whole training, and one a validation. Of a dataset that
  ends Keras 3.15 makes two for each epoch (``keras/src/trainers/epoch_iterator.py``), which takes 30 ms each
  on two replicas.
* The last, partial batch is filled up to a whole one with rows of weight 0. A batch that replicas cannot
  share evenly either fails ("AddN") or is averaged per replica first, which weighs its rows unequally
  (TensorFlow 2.21). A real row of a batch with R real rows weighs 1/R, so that the weighted sum over all
  replicas is the batch's mean.
* Each replica has a pipeline of its own, which cuts its shard out of every batch. The one that
  ``experimental_distribute_dataset`` makes hands batches on through iterators whose autotuner cannot be
  turned off; destroying one waits for its next look, up to a minute away, and the fit stands still for
  that long at the end of an epoch (measured with TensorFlow 2.21, four replicas on a busy machine).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

_PREFETCH = 4
_as_it_is = tf.autograph.experimental.do_not_convert


@dataclass(frozen=True)
class Batches:
    """A dataset of ``(sequences, labels, weights)``, epoch after epoch without an end.

    Attributes:
        dataset: Batches of shapes (batch, max_len) int32, (batch,) int32, (batch,) float32; with several
            replicas, shards of them.
        steps: Batches in an epoch.
        examples: Rows in an epoch, fillers not counted.
    """

    dataset: tf.data.Dataset | tf.distribute.DistributedDataset
    steps: int
    examples: int


def batches(
    sequences: NDArray[np.int32],
    labels: NDArray[np.int32],
    batch_size: int,
    *,
    strategy: tf.distribute.Strategy,
    shuffle_seed: int | None = None,
    first_epoch: int = 0,
) -> Batches:
    """Cuts rows into whole batches, and those into shards.

    Args:
        sequences: Shape (examples, max_len).
        labels: Shape (examples,).
        batch_size: Rows in a global batch, a multiple of the replicas.
        strategy: Whose replicas share the batches.
        shuffle_seed: Gives each epoch an order of its own; None keeps the rows' order.
        first_epoch: Zero-based number of the epoch to begin with.
    """
    examples, max_len = sequences.shape
    steps = math.ceil(examples / batch_size)
    filler = examples
    # The tensors live on the host once; an epoch's shards are two gathers, with no work per row.
    with tf.device("/CPU:0"):
        x = tf.constant(np.concatenate([sequences, np.zeros((1, max_len), np.int32)]))
        y = tf.constant(np.concatenate([labels, np.zeros(1, np.int32)]))

    def shards(replica: int, replicas: int) -> tf.data.Dataset:
        size = batch_size // replicas
        mine = slice(replica * size, (replica + 1) * size)

        def of_epoch(epoch: tf.Tensor) -> tf.data.Dataset:
            rows = epoch_order(examples, shuffle_seed, tf.cast(epoch, tf.int32))
            rows = tf.pad(rows, [[0, steps * batch_size - examples]], constant_values=filler)
            rows = tf.reshape(rows, [steps, batch_size])
            real = tf.cast(rows < filler, tf.float32)
            weights = real / tf.reduce_sum(real, axis=1, keepdims=True)
            # Put in order all at once: calling a function for every batch would take longer than the gathers.
            rows = rows[:, mine]
            return tf.data.Dataset.from_tensor_slices(
                (tf.gather(x, rows), tf.gather(y, rows), weights[:, mine])
            )

        options = tf.data.Options()
        options.autotune.enabled = False  # nothing to tune, and see the module's last point
        return (
            tf.data.Dataset.range(first_epoch, np.iinfo(np.int32).max)
            # Nothing in it needs AutoGraph, and converting it takes a tenth of a second.
            .flat_map(_as_it_is(of_epoch))
            .apply(tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY))
            .prefetch(_PREFETCH)
            .with_options(options)
        )

    if strategy.num_replicas_in_sync == 1:
        return Batches(shards(0, 1), steps, examples)
    if isinstance(strategy, tf.distribute.TPUStrategy):
        # It knows no replication mode PER_REPLICA, and cuts whole batches itself.
        return Batches(strategy.experimental_distribute_dataset(shards(0, 1)), steps, examples)
    dataset = strategy.distribute_datasets_from_function(
        lambda context: shards(context.input_pipeline_id, context.num_input_pipelines),
        tf.distribute.InputOptions(
            experimental_fetch_to_device=False,
            experimental_replication_mode=tf.distribute.InputReplicationMode.PER_REPLICA,
        ),
    )
    return Batches(dataset, steps, examples)


def epoch_order(examples: int, seed: int | None, epoch: int | tf.Tensor) -> tf.Tensor:
    """The rows of an epoch in its order, int32, shape (examples,); a seed of None keeps them as they are."""
    rows = tf.range(examples, dtype=tf.int32)
    return rows if seed is None else tf.random.experimental.stateless_shuffle(rows, seed=[seed, epoch])
