"""The chapter's network, built so that every row of a batch counts once on any number of replicas."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from core.config import ModelConfig, RunConfig
from core.engine.execution import several_steps
from core.engine.metrics import STEP_COLUMNS, CalibrationSums, StepSums
from core.engine.optimizers import optimizer_of
from core.words import plural

TOP_K = 5


class ReplicatedModel(keras.Model):
    """A Keras model whose loss and metrics do not depend on how a batch is cut into shards.

    It takes ``(x, y, weights)`` batches of `core.engine.pipeline`, in which a real row weighs 1/R and a
    filler 0. The loss is the weighted sum over this replica's shard, so the sum over replicas, which is
    how the optimizer adds up gradients, is the batch's mean.
    """

    steps = (0, 0)
    """Batches in an epoch of training and of validation; 0: Keras's own loop, without `step_sums`."""
    train_function: Any
    test_function: Any
    step_sums: StepSums | None = None
    taken: tf.Tensor | None = None
    """What `step_sums` held after the last execution, shape (steps per execution, columns)."""
    calibration_sums: CalibrationSums | None = None
    _is_ready = False

    def train_step(self, data: tuple[tf.Tensor, tf.Tensor, tf.Tensor]) -> dict[str, tf.Tensor]:
        """One step on one replica's shard: forward, backward, update, metrics."""
        x, y, weights = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(x, y, y_pred, weights)
        # The embedding's gradient comes as a slice for each word of the batch. Keras 3.15 squares them apart
        # (keras/src/backend/tensorflow/sparse.py), where Adam and Nadam mean the square of a word's sum.
        # Added up first it is also reduced and applied in two thirds of the time on two logical CPUs.
        gradients = [tf.convert_to_tensor(g) for g in tape.gradient(loss, self.trainable_weights)]
        self.optimizer.apply(gradients, self.trainable_weights)
        if self.step_sums is None:
            return self._counted(x, y, y_pred, weights, loss)
        self.step_sums.update_state(_sums(y, y_pred, weights, loss))
        return {}

    def test_step(self, data: tuple[tf.Tensor, tf.Tensor, tf.Tensor]) -> dict[str, tf.Tensor]:
        """One step of evaluation on one replica's shard."""
        x, y, weights = data
        y_pred = self(x, training=False)
        loss = self.compute_loss(x, y, y_pred, weights, training=False)
        if self.calibration_sums is not None:
            self.calibration_sums.update_state(y, y_pred, tf.sign(weights))
        return self._counted(x, y, y_pred, weights, loss)

    def make_train_function(self, force: bool = False) -> None:  # noqa: FBT001, FBT002 - Keras's signature
        """Called by `fit`."""
        if not self.steps[0]:
            super().make_train_function(force)
        elif self.train_function is None or force:
            self.train_function = self._making_train_function()

    def make_test_function(self, force: bool = False) -> None:  # noqa: FBT001, FBT002
        """Called by `evaluate`, and by `fit` to validate."""
        if not self.steps[1]:
            super().make_test_function(force)
        elif self.test_function is None or force:
            self.test_function = several_steps(
                self, self.test_step, lambda: self.steps[1], self.get_metrics_result
            )

    def _making_train_function(self) -> Callable[[Any], dict[str, tf.Tensor]]:
        sums = self.step_sums
        if sums is None:
            return several_steps(self, self.train_step, lambda: self.steps[0], self.get_metrics_result)
        take = several_steps(self, self.train_step, lambda: self.steps[0], sums.result)

        def execute(iterator: Any) -> dict[str, tf.Tensor]:
            # Not in the logs: Keras would turn each value into a float at every call, and all of the means
            # over the epoch so far have to be brought together first. They are wanted at its end only.
            self.taken = take(iterator)
            return {}

        return execute

    def _maybe_symbolic_build(self, iterator: Any = None, data_batch: Any = None) -> None:
        """Keras 3.15 builds a model of several replicas again before each validation.

        It fetches a batch for that and averages it over the replicas, 40 ms for nothing.
        """
        if not self._is_ready:
            super()._maybe_symbolic_build(iterator, data_batch)
            self._is_ready = True

    def _get_metrics_result_or_logs(self, logs: dict[str, Any]) -> dict[str, Any]:
        """Keras 3.15 takes the logs of an epoch and of an evaluation from here.

        It computes each metric again, on several replicas 30 ms, where the last execution has read them.
        """
        if self.step_sums is not None and not logs:
            return self.step_sums.means()
        results: dict[str, Any] = logs if all(self.steps) else self.get_metrics_result()
        return results

    def _counted(
        self, x: tf.Tensor, y: tf.Tensor, y_pred: tf.Tensor, weights: tf.Tensor, loss: tf.Tensor
    ) -> dict[str, tf.Tensor]:
        rows = tf.reduce_sum(tf.sign(weights))
        for metric in self.metrics:
            if metric.name == "loss":
                metric.update_state(_mean(loss, weights), sample_weight=rows)
        return self.compute_metrics(x, y, y_pred, sample_weight=tf.sign(weights))

    def compute_metrics(
        self, x: tf.Tensor, y: tf.Tensor, y_pred: tf.Tensor, sample_weight: tf.Tensor | None = None
    ) -> dict[str, tf.Tensor]:
        """Updates the compiled metrics and returns all metrics by name."""
        results: dict[str, tf.Tensor] = super().compute_metrics(x, y, _single(y_pred), sample_weight)
        return results


def _sums(y: tf.Tensor, y_pred: tf.Tensor, weights: tf.Tensor, loss: tf.Tensor) -> tf.Tensor:
    real = tf.sign(weights)
    rows = tf.reduce_sum(real)
    hit = keras.metrics.sparse_categorical_accuracy(y, y_pred)
    top = keras.metrics.sparse_top_k_categorical_accuracy(y, _single(y_pred), k=TOP_K)
    sums = [rows, _mean(loss, weights) * rows, tf.reduce_sum(hit * real), tf.reduce_sum(top * real)]
    return tf.stack([_single(value) for value in sums])


def _single(values: tf.Tensor) -> tf.Tensor:
    """Values in single precision; TensorFlow's ``InTopKV2`` takes no other (2.21)."""
    return keras.ops.cast(values, "float32")


def _mean(loss: tf.Tensor, weights: tf.Tensor) -> tf.Tensor:
    """The mean over a shard's rows of a loss that is weighted; 0 for a shard of fillers only."""
    return tf.math.divide_no_nan(tf.cast(loss, weights.dtype), tf.reduce_sum(weights))


def build(
    config: RunConfig,
    *,
    vocabulary: int,
    classes: int,
    steps_per_execution: int = 1,
    jit_compile: bool = False,
) -> ReplicatedModel:
    """Builds and compiles a configuration's model; call it inside the strategy's scope.

    The last layer is a softmax, so the loss takes probabilities, unless the configuration asks for the
    experiment ``from_logits=True``. Keras 3.15 then warns and looks behind the softmax for the logits
    (``keras/src/backend/tensorflow/nn.py``, ``_get_logits``); in double precision the loss casts the output
    first, which hides them, and softmax is applied twice.

    Args:
        config: The run.
        vocabulary: Number of word ids.
        classes: Number of classes.
        steps_per_execution: Steps inside one call of the compiled function.
        jit_compile: Compile the step with XLA. It fails with several replicas (Keras 3.15) and gains nothing
            on one CPU; Keras's own default would choose it on a GPU.
    """
    model = _network(config.model, config.data.max_len, vocabulary, classes)
    model.compile(
        optimizer=optimizer_of(config),
        # "sum" because the weights already divide by the rows of the whole batch.
        loss=keras.losses.SparseCategoricalCrossentropy(
            from_logits=config.model.from_logits, reduction="sum"
        ),
        weighted_metrics=[
            keras.metrics.SparseCategoricalAccuracy(),
            keras.metrics.SparseTopKCategoricalAccuracy(k=TOP_K),
        ],
        steps_per_execution=steps_per_execution,
        jit_compile=jit_compile,
    )
    return model


def _network(config: ModelConfig, max_len: int, vocabulary: int, classes: int) -> ReplicatedModel:
    inputs = keras.Input((max_len,), dtype="int32", name="word_ids")
    x = keras.layers.Embedding(vocabulary, config.embedding_size)(inputs)
    for filters, kernel in zip(config.filters, config.kernels, strict=True):
        x = keras.layers.Conv1D(filters, kernel, activation="relu")(x)
        x = keras.layers.MaxPooling1D(config.pool)(x)
    x = keras.layers.Flatten()(x)
    if config.dropout:
        x = keras.layers.Dropout(config.dropout)(x)
    return ReplicatedModel(inputs, keras.layers.Dense(classes, activation="softmax")(x))


def describe(model: ReplicatedModel, per_replica_batch_size: int) -> dict[str, Any]:
    """Lists a model's layers as Keras reports them, and the memory one replica needs.

    Args:
        model: A compiled model.
        per_replica_batch_size: Rows that pass through it at once.

    Returns:
        JSON values: ``layers``, ``params``, ``trainable``, ``memory`` in bytes, ``optimizer``, ``loss``,
        ``metrics``.
    """
    layers = [layer for layer in model.layers if not isinstance(layer, keras.layers.InputLayer)]
    weights = _bytes(model.variables)
    model.optimizer.build(model.trainable_variables)
    activations = sum(
        tf.as_dtype(layer.output.dtype).size
        * per_replica_batch_size
        * math.prod(size for size in layer.output.shape[1:] if size)
        for layer in layers
    )
    memory = {
        "weights_bytes": weights,
        "gradients_bytes": _bytes(model.trainable_variables),
        "optimizer_bytes": _bytes(model.optimizer.variables),
        # Kept from the forward for the backward pass.
        "activations_bytes": activations,
    }
    return {
        "layers": [
            {
                "name": layer.name,
                "type": type(layer).__name__,
                "output_shape": list(layer.output.shape),
                "params": layer.count_params(),
                "config": _in_words(layer),
            }
            for layer in layers
        ],
        "params": model.count_params(),
        "trainable": sum(math.prod(variable.shape) for variable in model.trainable_variables),
        "memory": {**memory, "total_bytes": sum(memory.values())},
        "optimizer": type(model.optimizer).__name__,
        "loss": "SparseCategoricalCrossentropy",
        "metrics": list(STEP_COLUMNS[2:]),
    }


def _bytes(variables: list[Any]) -> int:
    return sum(math.prod(variable.shape) * tf.as_dtype(variable.dtype).size for variable in variables)


def _in_words(layer: keras.layers.Layer) -> str:
    match layer:
        case keras.layers.Embedding():
            return f"{layer.input_dim:,} words, size {layer.output_dim}"
        case keras.layers.Conv1D():
            return f"{plural(layer.filters, 'filter')}, kernel {layer.kernel_size[0]}, ReLU"
        case keras.layers.MaxPooling1D():
            return f"pool {layer.pool_size[0]}"
        case keras.layers.Dropout():
            return f"rate {layer.rate:g}"
        case keras.layers.Dense():
            return f"{layer.units} classes, softmax"
        case _:
            return ""
