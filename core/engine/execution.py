"""One call of TensorFlow that takes several steps, over batches whose number is known.

Keras 3.15's own (``keras/src/backend/tensorflow/trainer.py``, ``_make_function``) asks the iterator before
each step whether there is another batch, and brings every metric of every replica together after each step,
though only the last is read. Knowing how many batches there are needs neither: on two replicas the graph is
built in three quarters of the processor time, and a step takes less as well. The default cross-device ops,
with which Keras's loop fails on logical CPUs, work in this one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import keras
import tensorflow as tf

Read = TypeVar("Read")


def several_steps(
    model: keras.Model, step: Callable[[Any], object], steps: Callable[[], int], read: Callable[[], Read]
) -> Callable[[Any], Read]:
    """What `keras.Model.make_train_function` and `make_test_function` make.

    Args:
        model: Whose steps; compiled.
        step: One step on one replica's shard; updates the model's metrics.
        steps: Batches in an epoch; asked when one begins.
        read: What is wanted of the metrics afterwards; traced outside the replicas, so that what a metric
            adds up is added up over them too.

    Returns:
        A function that takes the next steps of an iterator, as many as the model takes per execution or as
        are left of the epoch, and returns what was read.
    """
    strategy = model.distribute_strategy

    def take_one(batch: Any) -> None:
        strategy.run(step, args=(batch,))

    one = tf.function(take_one, reduce_retracing=True, autograph=False, jit_compile=model.jit_compile)

    def take_several(iterator: Any, count: tf.Tensor) -> Read:
        def body(done: tf.Tensor) -> tuple[tf.Tensor]:
            one(iterator.get_next())
            return (done + 1,)

        if model.steps_per_execution == 1:
            # What several GPUs get: no more control flow around NCCL than Keras has.
            one(iterator.get_next())
        else:
            tf.while_loop(lambda done: done < count, body, (tf.constant(0),), parallel_iterations=1)
        return read()

    several = tf.function(take_several, reduce_retracing=True, autograph=False)
    present: Any = None
    left = 0

    def execute(iterator: Any) -> Read:
        nonlocal present, left
        if iterator is not present or not left:
            present, left = iterator, steps()
        count = min(model.steps_per_execution, left)
        left -= count
        result: Read = several(iterator, tf.constant(count))
        return result

    return execute
