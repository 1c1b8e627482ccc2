"""Takes one training step apart: what each replica holds, computes, exchanges and ends up with.

It is the run's own model, first batch and strategy. The step is the one that ``fit`` takes, except that it
gives back what otherwise stays inside: each replica's loss and gradients before the reduction, the sum
after it, and the times between.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from core.config import RunConfig
from core.corpus import Corpus
from core.engine import datasets, layout, models
from core.engine.all_reduce import kept, no_reduction
from core.engine.callbacks import Outbox
from core.engine.pipeline import epoch_order
from core.errors import ConfigError

_WORDS_SHOWN = 12
_Arrays = list[NDArray[Any]]


def take_apart(config: RunConfig, batch: int, home: Path, outbox: Outbox) -> dict[str, Any]:
    """Does one step from the first weights, and tells everything about it.

    Args:
        config: The run whose step it is.
        batch: Zero-based number of the batch in the first epoch.
        home: Folder of the store, where prepared datasets are.
        outbox: Takes the phase.

    Returns:
        JSON values: of the batch, the layers and each of the ``replicas``; the gradients' norms and bytes,
        the ``path`` they took, what the ``update`` did, and the same batch on a ``single`` device.

    Raises:
        MirrorboardError: The layout, the data or the model cannot work, or there is no such batch.
    """
    outbox.phase = "setting up the devices"
    execution = layout.plan(config)
    if config.training.deterministic:
        # Double precision only: op determinism forbids timestamps (TensorFlow 2.21).
        keras.config.set_dtype_policy("float64")
    strategy = layout.apply(config.layout, execution)
    layout.check_shares(config, strategy)
    corpus = datasets.prepare(config.data.dataset, home, lambda *_: None)
    rows = _rows(config, corpus, batch)
    shards = np.split(rows, strategy.num_replicas_in_sync)

    outbox.phase = "building the model"
    sizes: dict[str, Any] = {"vocabulary": corpus.vocabulary, "classes": len(corpus.class_names)}
    keras.utils.set_random_seed(config.training.seed)
    with strategy.scope():
        model = models.build(config, **sizes)
        model.optimizer.build(model.trainable_variables)
    first = [variable.numpy() for variable in model.variables]

    outbox.phase = "building the graph"
    data = _batch(config, corpus, rows)
    parts = [np.split(values, len(shards)) for values in data]
    fed = [
        strategy.experimental_distribute_values_from_function(
            lambda context, part=part: tf.constant(part[context.replica_id_in_sync_group])
        )
        for part in parts
    ]
    step = _step(strategy, model)
    # What the step hands to the optimizer has been summed already.
    with kept(model), no_reduction(model):
        step(*fed)  # builds the graph, and moves the weights

    outbox.phase = "taking the step"
    before = _copies(strategy, model)
    loss, local, reduced, times = step(*fed)
    after = _copies(strategy, model)
    losses = [float(value) for value in strategy.experimental_local_results(loss)]
    local = _by_replica(strategy, local)
    reduced = _by_replica(strategy, reduced)
    clock = np.array([value.numpy() for value in strategy.experimental_local_results(times)])

    outbox.phase = "taking it on one device"
    single_loss, single = _on_one_device(config, sizes, first, data)
    names = [_layer(variable) for variable in model.trainable_variables]
    began = clock[:, 0].min()
    return {
        "batch": {
            "number": batch,
            "of": config.steps(len(corpus.rows("train"))),
            "rows": int((rows >= 0).sum()),
            "global": len(rows),
        },
        "params": model.count_params(),
        "layers": list(dict.fromkeys(names)),
        "replicas": [
            {
                "device": device,
                "rows": [_described(corpus, row) for row in shard if row >= 0],
                "fillers": int((shard < 0).sum()),
                "loss": losses[i],
                "mean_loss": losses[i] / weight if (weight := float(parts[2][i].sum())) else None,
                "gradient_norms": _norms(names, local[i]),
                "checksum_before": _checksum(before[i]),
                "checksum_after": _checksum(after[i]),
                "times_ms": [round(1e3 * float(at - began), 3) for at in clock[i]],
            }
            for i, (device, shard) in enumerate(zip(layout.devices_of(strategy), shards, strict=True))
        ],
        "reduced_norms": _norms(names, reduced[0]),
        "gradient_bytes": sum(gradient.nbytes for gradient in local[0]),
        "gradients": len(local[0]),
        "path": _path(strategy, execution.cross_device_ops),
        "update": {
            "between_replicas": _largest(after),
            "moved": max(float(np.max(np.abs(a - b))) for a, b in zip(after[0], before[0], strict=True)),
        },
        "single": {
            "loss": single_loss,
            "gradient_norms": _norms(names, single),
            "loss_difference": abs(single_loss - sum(losses)),
            "gradient_difference": max(
                float(np.max(np.abs(a - b))) for a, b in zip(reduced[0], single, strict=True)
            ),
        },
        "dropout": config.model.dropout,
    }


def _rows(config: RunConfig, corpus: Corpus, batch: int) -> NDArray[np.int32]:
    """Rows of the batch, as the pipeline deals them; -1 for fillers."""
    examples, size = len(corpus.rows("train")), config.global_batch_size
    steps = config.steps(examples)
    if not 0 <= batch < steps:
        raise ConfigError(
            f"There is no batch {batch + 1}; an epoch has {steps:,}.",
            f"Choose one from 1 to {steps:,}.",
            "batch",
        )
    with tf.device("/CPU:0"):
        order = epoch_order(examples, config.training.seed, 0).numpy()
    rows = order[batch * size : (batch + 1) * size]
    return np.pad(rows, (0, size - len(rows)), constant_values=-1)


def _batch(config: RunConfig, corpus: Corpus, rows: NDArray[np.int32]) -> tuple[NDArray[Any], ...]:
    """Sequences, labels and weights of the rows; a filler is all zeros."""
    real = rows >= 0
    x = np.zeros((len(rows), config.data.max_len), np.int32)
    y = np.zeros(len(rows), np.int32)
    x[real] = corpus.padded("train", config.data.max_len)[rows[real]]
    y[real] = corpus.split_labels("train")[rows[real]]
    return x, y, (real / real.sum()).astype(np.float32)


def _step(strategy: tf.distribute.Strategy, model: models.ReplicatedModel) -> Any:
    """The compiled step: loss, gradients before and after the reduction, and four times, per replica."""

    def on_replica(x: tf.Tensor, y: tf.Tensor, weights: tf.Tensor) -> tuple[Any, ...]:
        with tf.control_dependencies([x, y, weights]):
            began = tf.timestamp()
        with tf.control_dependencies([began]):
            x = tf.identity(x)
        with tf.GradientTape() as tape:
            loss = model.compute_loss(x, y, model(x, training=True), weights)
        local = tape.gradient(loss, model.trainable_variables)
        with tf.control_dependencies([tf.convert_to_tensor(gradient) for gradient in local]):
            computed = tf.timestamp()
        with tf.control_dependencies([computed]):
            local = [tf.convert_to_tensor(gradient) for gradient in local]
        context = tf.distribute.get_replica_context()
        reduced = context.all_reduce(tf.distribute.ReduceOp.SUM, local)
        with tf.control_dependencies(reduced):
            exchanged = tf.timestamp()
        with tf.control_dependencies([exchanged]):
            reduced = [tf.identity(gradient) for gradient in reduced]
        model.optimizer.apply(reduced, model.trainable_variables)
        with tf.control_dependencies([variable.value for variable in model.trainable_variables]):
            updated = tf.timestamp()
        return loss, local, reduced, tf.stack([began, computed, exchanged, updated])

    return tf.function(lambda *data: strategy.run(on_replica, args=data))


def _by_replica(strategy: tf.distribute.Strategy, values: list[Any]) -> list[_Arrays]:
    """A list of distributed values as one list of arrays for each replica."""
    each = [strategy.experimental_local_results(value) for value in values]
    return [[value.numpy() for value in replica] for replica in zip(*each, strict=True)]


def _copies(strategy: tf.distribute.Strategy, model: keras.Model) -> list[_Arrays]:
    """Each replica's own copy of the trainable variables."""
    return _by_replica(strategy, [variable.value for variable in model.trainable_variables])


def _on_one_device(
    config: RunConfig, sizes: dict[str, Any], weights: _Arrays, data: tuple[NDArray[Any], ...]
) -> tuple[float, _Arrays]:
    """Loss and gradients of the whole batch from the same weights, in plain Keras."""
    model = models.build(config, **sizes)
    model.set_weights(weights)
    x, y, row_weights = data
    with tf.GradientTape() as tape:
        loss = model.compute_loss(x, y, model(x, training=True), row_weights)
    gradients = tape.gradient(loss, model.trainable_variables)
    return float(loss), [tf.convert_to_tensor(gradient).numpy() for gradient in gradients]


def _described(corpus: Corpus, row: int) -> dict[str, Any]:
    words = corpus.text(int(row)).split()
    return {
        "row": int(row),
        "class": corpus.class_names[int(corpus.labels[row])],
        "text": " ".join(words[:_WORDS_SHOWN]) + (" …" if len(words) > _WORDS_SHOWN else ""),
    }


def _layer(variable: keras.Variable) -> str:
    return str(variable.path.split("/")[0])


def _norms(names: list[str], gradients: _Arrays) -> dict[str, float]:
    """The Euclidean norm of each layer's gradient."""
    squares: dict[str, float] = {}
    for name, gradient in zip(names, gradients, strict=True):
        squares[name] = squares.get(name, 0.0) + float(np.sum(np.square(gradient, dtype=np.float64)))
    return {name: float(np.sqrt(square)) for name, square in squares.items()}


def _checksum(arrays: _Arrays) -> str:
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(array.tobytes())
    return digest.hexdigest()[:8]


def _largest(copies: list[_Arrays]) -> float:
    """The largest difference of any value between two replicas."""
    return max(
        float(np.max(np.abs(mine - theirs)))
        for other in copies
        for mine, theirs in zip(copies[0], other, strict=True)
    )


def _path(strategy: tf.distribute.Strategy, chosen: str) -> str:
    """How gradients are brought together; TensorFlow's own choice by its class where it was left to it."""
    if strategy.num_replicas_in_sync == 1:
        return "none"
    if chosen != "auto":
        return chosen
    inferred = getattr(strategy.extended, "_inferred_cross_device_ops", None)
    return type(inferred).__name__ if inferred is not None else "auto"
