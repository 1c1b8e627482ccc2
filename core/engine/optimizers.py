"""Keras's Adam and Nadam, an update in one or two passes over a variable instead of a dozen.

Keras 3.15 writes an update as a chain of operations (``keras/src/optimizers/nadam.py``), each of which goes
through the whole variable and makes another as large. TensorFlow 2.21 has operations that do all of it at
once, on CPU, GPU and in XLA. The formulas are Keras's, so values agree to the last digits of a float; the
names are too, because nobody should have to know the difference.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import keras
import tensorflow as tf

from core.config import OPTIMIZER_NAMES, RunConfig


class _InOnePass(keras.optimizers.Optimizer):
    """Has what all variables of a step have in common computed once, and handed on as the learning rate."""

    def _backend_update_step(
        self,
        grads: Sequence[tf.Tensor],
        trainable_variables: Sequence[keras.Variable],
        learning_rate: tf.Tensor,
    ) -> None:
        dtype = trainable_variables[0].dtype
        step = tf.cast(self.iterations, dtype) + 1
        rates = self._rates(step, tf.cast(learning_rate, dtype))
        super()._backend_update_step(grads, trainable_variables, tf.stack(rates))

    @abstractmethod
    def _rates(self, step: tf.Tensor, rate: tf.Tensor) -> list[tf.Tensor]:
        """What `update_step` gets, for a one-based step and its learning rate."""


class Adam(_InOnePass, keras.optimizers.Adam):
    """`keras.optimizers.Adam` without ``amsgrad``."""

    def _rates(self, step: tf.Tensor, rate: tf.Tensor) -> list[tf.Tensor]:
        beta_1, beta_2 = (tf.cast(beta, rate.dtype) for beta in (self.beta_1, self.beta_2))
        rate *= tf.sqrt(1 - tf.pow(beta_2, step)) / (1 - tf.pow(beta_1, step))
        return [rate, tf.cast(self.epsilon, rate.dtype)]

    def update_step(self, gradient: tf.Tensor, variable: tf.Variable, learning_rate: tf.Tensor) -> None:
        """Updates one variable on one replica.

        Args:
            gradient: Of the variable's shape.
            variable: What to update.
            learning_rate: With the bias corrections in it, and epsilon; shape (2,).
        """
        rate, epsilon = tf.unstack(learning_rate)
        betas = [tf.constant(beta, gradient.dtype) for beta in (self.beta_1, self.beta_2)]
        _add_moments(self, gradient, variable, betas=betas, rate=rate, epsilon=epsilon)


class Nadam(_InOnePass, keras.optimizers.Nadam):
    """`keras.optimizers.Nadam`.

    Its step is a part along the first moment, which is Adam's, and a part along the gradient, which is
    Adagrad's with the second moment in the place of the sum of squares.
    """

    def _rates(self, step: tf.Tensor, rate: tf.Tensor) -> list[tf.Tensor]:
        beta_1, beta_2, decay = (tf.cast(value, rate.dtype) for value in (self.beta_1, self.beta_2, 0.96))
        now = beta_1 * (1 - 0.5 * tf.pow(decay, step))
        next_one = beta_1 * (1 - 0.5 * tf.pow(decay, step + 1))
        # As Keras will store it, with constants of full precision.
        product = self._u_product * self.beta_1 * (1 - 0.5 * tf.pow(tf.constant(0.96, rate.dtype), step))
        root = tf.sqrt(1 - tf.pow(beta_2, step))
        along_moment = rate * root * next_one / (1 - product * next_one)
        along_gradient = rate * root * (1 - now) / (1 - product)
        return [along_moment, along_gradient, self.epsilon * root]

    def update_step(self, gradient: tf.Tensor, variable: tf.Variable, learning_rate: tf.Tensor) -> None:
        """Updates one variable on one replica.

        Args:
            gradient: Of the variable's shape.
            variable: What to update.
            learning_rate: Along the first moment and along the gradient, and epsilon; shape (3,).
        """
        along_moment, along_gradient, epsilon = tf.unstack(learning_rate)
        betas = [tf.cast(beta, gradient.dtype) for beta in (self.beta_1, self.beta_2)]
        _add_moments(self, gradient, variable, betas=betas, rate=along_moment, epsilon=epsilon)
        tf.raw_ops.ResourceApplyAdagradV2(
            var=variable.handle,
            accum=self._velocities[self._get_variable_index(variable)].value.handle,
            lr=along_gradient,
            epsilon=epsilon,
            grad=gradient,
            update_slots=False,
        )


def _add_moments(
    optimizer: Adam | Nadam,
    gradient: tf.Tensor,
    variable: tf.Variable,
    *,
    betas: Sequence[tf.Tensor],
    rate: tf.Tensor,
    epsilon: tf.Tensor,
) -> None:
    """Updates both moments, and the variable along the first: ``-= rate * m / (sqrt(v) + epsilon)``."""
    place = optimizer._get_variable_index(variable)  # noqa: SLF001 - as Keras's own optimizers do
    none = tf.zeros((), gradient.dtype)
    tf.raw_ops.ResourceApplyAdam(
        var=variable.handle,
        m=optimizer._momentums[place].value.handle,  # noqa: SLF001
        v=optimizer._velocities[place].value.handle,  # noqa: SLF001
        # The operation would make its bias corrections of these powers; they are in the rate already.
        beta1_power=none,
        beta2_power=none,
        lr=rate,
        beta1=betas[0],
        beta2=betas[1],
        epsilon=epsilon,
        grad=gradient,
    )


def optimizer_of(config: RunConfig) -> keras.optimizers.Optimizer:
    """A configuration's optimizer, with its learning rate.

    On a single device, where an update costs little beside the rest, it is Keras's own: the code to take home
    then gives a run's very numbers, to which rounding would add up over the epochs.
    """
    ours = {"Nadam": Nadam, "Adam": Adam} if config.layout.replicas > 1 else {}
    name = OPTIMIZER_NAMES[config.model.optimizer]
    kind = ours.get(name, getattr(keras.optimizers, name))
    return kind(learning_rate=config.learning_rate)
