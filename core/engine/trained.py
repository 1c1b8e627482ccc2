"""A run's model as it was after an epoch, built anew from its configuration and a checkpoint."""

from __future__ import annotations

import keras

from core.config import RunConfig
from core.corpus import CLASSES, VOCABULARY
from core.engine import models
from core.engine.checkpoints import Arrays
from core.errors import TrainingError


def trained(config: RunConfig, values: Arrays) -> models.ReplicatedModel:
    """Builds a run's model with the values of a checkpoint, on the default device.

    Args:
        config: The run.
        values: The model's variables, from `core.engine.checkpoints.Checkpoints.model`.

    Raises:
        TrainingError: The checkpoint is of another model.
    """
    keras.backend.clear_session(free_memory=False)  # which forgets the policy, too
    # Keras keeps the policy per thread, and each job has a thread of its own (3.15).
    if config.training.deterministic:
        keras.config.set_dtype_policy("float64")
    model = models.build(config, vocabulary=VOCABULARY, classes=CLASSES)
    if [tuple(variable.shape) for variable in model.variables] != [value.shape for value in values]:
        raise TrainingError(
            "The checkpoint does not fit the run's model: the shapes of their weights differ.",
            "It was written by another version. Start a new run with the same settings.",
        )
    for variable, value in zip(model.variables, values, strict=True):
        variable.assign(value)
    return model
