"""The chapter's own script in today's Keras: what the engine is compared with.

Usage: ``python -m benchmarks.chapter LOGICAL_DEVICES EPOCHS BATCH_SIZE``; prints one JSON line with the
seconds of each epoch, validation included, and the best validation accuracy.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import keras
import tensorflow as tf


class Timer(keras.callbacks.Callback):
    """Measures each epoch from its beginning to the end of its validation."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float] = []
        self._began = 0.0

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Starts the clock."""
        self._began = time.perf_counter()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Reads it."""
        self.seconds.append(time.perf_counter() - self._began)


def model() -> keras.Model:
    """The chapter's network, compiled as it says, with the loss that fits its softmax."""
    network = keras.Sequential(
        [
            keras.Input((300,)),
            keras.layers.Embedding(30_982, 7),
            keras.layers.Conv1D(64, 5, activation="relu"),
            keras.layers.MaxPooling1D(2),
            keras.layers.Conv1D(32, 3, activation="relu"),
            keras.layers.MaxPooling1D(2),
            keras.layers.Flatten(),
            keras.layers.Dense(46, activation="softmax"),
        ]
    )
    network.compile(
        optimizer="nadam",
        loss=keras.losses.SparseCategoricalCrossentropy(),
        metrics=["sparse_categorical_accuracy", "sparse_top_k_categorical_accuracy"],
    )
    return network


def main(logical_devices: int, epochs: int, batch_size: int) -> None:
    """Trains once."""
    strategy = tf.distribute.get_strategy()
    if logical_devices > 1:
        cpu = tf.config.list_physical_devices("CPU")[0]
        parts = [tf.config.LogicalDeviceConfiguration()] * logical_devices
        tf.config.set_logical_device_configuration(cpu, parts)
        strategy = tf.distribute.MirroredStrategy([f"/CPU:{i}" for i in range(logical_devices)])
    (x_train, y_train), (x_test, y_test) = keras.datasets.reuters.load_data()
    x_train, x_test = (keras.utils.pad_sequences(x, 300) for x in (x_train, x_test))
    training = tf.data.Dataset.from_tensor_slices((x_train, y_train)).shuffle(len(x_train)).batch(batch_size)
    validation = tf.data.Dataset.from_tensor_slices((x_test, y_test)).batch(batch_size)
    with strategy.scope():
        network = model()
    timer = Timer()
    history = network.fit(
        training, validation_data=validation, epochs=epochs, shuffle=False, verbose=0, callbacks=[timer]
    )
    best = max(history.history["val_sparse_categorical_accuracy"])
    print(json.dumps({"epoch_s": timer.seconds, "val_accuracy": best}))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
