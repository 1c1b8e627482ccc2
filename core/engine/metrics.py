"""Keras metrics that add up on the device what is fetched once: every step's sums, every bin's confidence."""

from __future__ import annotations

import keras
import tensorflow as tf

from core.analysis.calibration import BINS, inner_edges

STEP_SUMS = "step_sums"
"""Name under which `StepSums` appears in Keras's logs."""
STEP_COLUMNS = ("rows", "loss", "sparse_categorical_accuracy", "sparse_top_k_categorical_accuracy")
"""What `StepSums` adds up, in order."""
CALIBRATION_SUMS = "calibration_sums"
"""Name under which `CalibrationSums` appears in Keras's logs."""


class StepSums(keras.metrics.Metric):
    """Keeps the sums of each of the last steps apart, on the device, and those of the epoch.

    Keras's metrics are means over the epoch so far, and with several steps per execution callbacks see
    only the last step's. This one remembers every step until the callback fetches them all at once. It is
    summed over replicas when it is read. In the epoch's sums it has what Keras's metrics would add up beside
    it, each with operations of its own at every step.

    Args:
        steps: Steps per execution.
    """

    def __init__(self, steps: int) -> None:
        super().__init__(name=STEP_SUMS, dtype="float32")
        self._steps = steps
        self._sums = self.add_weight(shape=(steps, len(STEP_COLUMNS)), initializer="zeros", name="sums")
        self._at = self.add_weight(shape=(), dtype="int32", initializer="zeros", name="at")
        self._epoch = self.add_weight(
            shape=(len(STEP_COLUMNS),), dtype="float64", initializer="zeros", name="epoch"
        )

    def update_state(self, sums: tf.Tensor) -> None:
        """Stores one step's sums, shape (columns,)."""
        slot = tf.math.floormod(tf.convert_to_tensor(self._at), self._steps)
        self._sums.assign(tf.tensor_scatter_nd_update(tf.convert_to_tensor(self._sums), [[slot]], [sums]))
        self._at.assign(self._at + 1)
        self._epoch.assign_add(tf.cast(sums, tf.float64))

    def result(self) -> tf.Tensor:
        """The sums of the last steps, shape (steps per execution, columns); the oldest first."""
        return tf.convert_to_tensor(self._sums)

    def means(self) -> dict[str, tf.Tensor]:
        """Loss and accuracies over the epoch so far, by name."""
        rows, *sums = tf.unstack(tf.convert_to_tensor(self._epoch))
        return {name: total / rows for name, total in zip(STEP_COLUMNS[1:], sums, strict=True)}


class CalibrationSums(keras.metrics.Metric):
    """Adds up what a reliability diagram needs, bin by bin, on the device.

    Each replica adds up the rows of its own shards; the sum over replicas is taken when it is read. In double
    precision, so that neither the order of additions nor the number of rows shows in it.
    """

    def __init__(self) -> None:
        super().__init__(name=CALIBRATION_SUMS, dtype="float64")
        self._sums = self.add_weight(shape=(BINS, 3), dtype="float64", initializer="zeros", name="sums")

    def update_state(self, y: tf.Tensor, probabilities: tf.Tensor, real: tf.Tensor) -> None:
        """Counts one shard.

        Args:
            y: Right classes, integers, shape (rows,).
            probabilities: What the model puts out, shape (rows, classes).
            real: 1 for a row, 0 for a filler, shape (rows,).
        """
        # The last layer is a softmax in every configuration, so its output are probabilities; they are what
        # `predict` returns and people rely on. The experiment from_logits=True changes only what the loss
        # makes of them: the logits behind them, or in double precision a second softmax.
        confidence = tf.cast(tf.reduce_max(probabilities, axis=1), tf.float64)
        correct = tf.cast(keras.metrics.sparse_categorical_accuracy(y, probabilities), tf.float64)
        counts = tf.logical_and(real > 0, tf.math.is_finite(confidence))
        rows = tf.stack([tf.ones_like(confidence), confidence, correct], axis=1)
        # Chosen, not multiplied: NaN times 0 would be NaN.
        rows = tf.where(counts[:, None], rows, tf.zeros_like(rows))
        # A bin holds its upper edge: its number is how many edges the confidence is above.
        place = tf.reduce_sum(tf.cast(confidence[:, None] > inner_edges(), tf.int32), axis=1)
        # A product, because scattered additions come in any order on a GPU.
        places = tf.one_hot(place, BINS, dtype=tf.float64)
        self._sums.assign_add(tf.matmul(places, rows, transpose_a=True))

    def result(self) -> tf.Tensor:
        """Predictions, sum of their confidences, and how many are correct; shape (bins, 3)."""
        return tf.convert_to_tensor(self._sums)
