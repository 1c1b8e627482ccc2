"""Takes a run's state out of a fit after every epoch, and puts it back into a model."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from core.engine.callbacks import Outbox
from core.engine.checkpoints import Arrays, Checkpoints, Patience, State
from core.errors import TrainingError

_log = logging.getLogger("mirrorboard")


def _held(variables: Sequence[Any], strategy: tf.distribute.Strategy) -> Arrays:
    """The values of Keras variables, of the first replica where there are several, not copied yet.

    They are tensors, which NumPy takes for arrays, and stay what they are while training goes on: a variable
    whose buffer is held elsewhere gets another when it is next assigned to (TensorFlow 2.21,
    ``tensorflow/core/kernels/training_op_helpers.h``).
    """
    values = [strategy.experimental_local_results(variable.value)[0] for variable in variables]
    # What tf.convert_to_tensor does in the end, in half its time.
    return [tf.raw_ops.ReadVariableOp(resource=value.handle, dtype=value.dtype) for value in values]


def restore(model: keras.Model, state: State) -> None:
    """Gives a built model and its built optimizer the values of a checkpoint; inside the strategy's scope.

    Raises:
        TrainingError: The checkpoint is of another model.
    """
    variables = [*model.variables, *model.optimizer.variables]
    values = [*state.model, *state.optimizer]
    if [tuple(variable.shape) for variable in variables] != [value.shape for value in values]:
        raise TrainingError(
            "The run's checkpoint does not fit its model: the shapes of their weights differ.",
            "The prepared dataset may have changed. Start a new run with the same settings.",
        )
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)


class Checkpointer(keras.callbacks.Callback):
    """Keeps a checkpoint of every epoch; the fit waits neither for copying nor for the disk.

    Args:
        checkpoints: Where to.
        outbox: Takes what `Job.checkpoint` is to be.
        early: The early stopping of this fit; must come before this callback, as the `Reporter` must, which
            lets no epoch with a loss that is not finite come here.
        start: Where the fit goes on from.
    """

    def __init__(
        self,
        checkpoints: Checkpoints,
        outbox: Outbox,
        early: keras.callbacks.EarlyStopping | None,
        start: State | None,
    ) -> None:
        super().__init__()
        self._checkpoints = checkpoints
        self._outbox = outbox
        self._early = early
        self._start = start
        self._best_epoch = start.best_epoch if start else None
        self._best_val_loss = start.best_val_loss if start else None
        self._best: tuple[int, Arrays] | None = None
        """Not written yet."""
        self._pending: State | None = None
        self._closed = False
        self._changed = threading.Condition()
        self._writer = threading.Thread(target=self._write, name="checkpoints", daemon=True)
        outbox.stored_epochs = start.epochs if start else 0
        self._tell(outbox.stored_epochs)
        self._writer.start()

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Brings early stopping, which has just forgotten everything, back to where it was."""
        early, start = self._early, self._start
        if early is None or start is None or start.patience is None:
            return
        early.best, early.best_epoch = start.patience.best, start.patience.best_epoch
        # A run that had lost its patience and was extended gets it back.
        early.wait = start.patience.wait if start.patience.wait < early.patience else 0

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Holds the state of the run for the writing thread."""
        assert logs is not None
        val_loss = float(logs["val_loss"])
        strategy = self.model.distribute_strategy
        model = _held(self.model.variables, strategy)
        with self._changed:
            if self._best_val_loss is None or val_loss < self._best_val_loss:
                self._best_epoch, self._best_val_loss = epoch + 1, val_loss
                self._best = (epoch + 1, model)
            early = self._early
            self._pending = State(
                epochs=epoch + 1,
                model=model,
                optimizer=_held(self.model.optimizer.variables, strategy),
                best_epoch=self._best_epoch,
                best_val_loss=self._best_val_loss,
                patience=early and Patience(_float(early.best), early.best_epoch, early.wait),
            )
            self._outbox.is_saving = True
            self._changed.notify_all()

    def close(self) -> None:
        """Waits until what is pending has been written, or has failed."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._writer.join()

    def _write(self) -> None:
        while True:
            with self._changed:
                self._outbox.is_saving = self._pending is not None
                self._changed.wait_for(lambda: self._pending is not None or self._closed)
                # When epochs end faster than the disk writes, the older state was replaced by the newer.
                state, best = self._pending, self._best
                self._pending = None
            if state is None:
                return
            try:
                self._checkpoints.write(state, best, self._outbox.stored_epochs)
            except OSError as error:
                problem = f"The checkpoint of epoch {state.epochs} could not be written: {error.strerror}."
                _log.warning("%s The training goes on.", problem)
                self._outbox.checkpoint = {**(self._outbox.checkpoint or {}), "problem": problem}
                continue
            with self._changed:
                if self._best is best:
                    self._best = None
            self._tell(state.epochs, state)

    def _tell(self, epochs: int, state: State | None = None) -> None:
        state = state or self._start
        self._outbox.checkpoint = {
            "epochs": epochs,
            "best_epoch": state and state.best_epoch,
            "best_val_loss": state and state.best_val_loss,
        }


def _float(value: Any) -> float | None:
    return None if value is None else float(value)
