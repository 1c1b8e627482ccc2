"""What the chapter's model needs of a device's memory, estimated before anything is built."""

from __future__ import annotations

from dataclasses import dataclass

from core.config import RunConfig
from core.corpus import CLASSES, VOCABULARY

_SLOTS = {"nadam": 2, "adam": 2, "sgd": 0}
"""Values that Keras 3.15's optimizers keep for each parameter (SGD without momentum)."""


@dataclass(frozen=True)
class Need:
    """Memory of one replica.

    Attributes:
        parameters: Of the model.
        values_each: Values kept for each parameter: itself, its gradient, the optimizer's.
        value_bytes: Bytes of a value: 4, or 8 in a deterministic run.
        activation_bytes: The layers' outputs that the backward pass needs.
    """

    parameters: int
    values_each: int
    value_bytes: int
    activation_bytes: int

    @property
    def parameter_bytes(self) -> int:
        """Parameters, gradients and what the optimizer keeps."""
        return self.parameters * self.values_each * self.value_bytes

    @property
    def total_bytes(self) -> int:
        """All together."""
        return self.parameter_bytes + self.activation_bytes


def needed(config: RunConfig) -> Need:
    """What each replica of a run needs at least; TensorFlow and its work space come on top."""
    model, size = config.model, config.model.embedding_size
    first, second = model.filters
    lengths = model.lengths(config.data.max_len)
    features = lengths[-1] * second
    parameters = (
        VOCABULARY * size
        + model.kernels[0] * size * first
        + first
        + model.kernels[1] * first * second
        + second
        + features * CLASSES
        + CLASSES
    )
    values = config.data.max_len * size + sum(lengths[:2]) * first + sum(lengths[2:]) * second + features
    value_bytes = 8 if config.training.deterministic else 4
    rows = config.per_replica_batch_size
    return Need(parameters, 2 + _SLOTS[model.optimizer], value_bytes, values * rows * value_bytes)
