"""The losses of a history, and what is asked of them before anything is claimed."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import median

from core.analysis.calibration import ERROR
from core.analysis.criteria import History, accuracy_name, epoch_numbers, series

WORSE_EPOCHS = 2
"""Epochs after the best that overfitting takes: one may be chance."""
_LEAST_FALL = 0.02
"""Fall of training loss, as a share, that counts as one."""
ACCURACY_HARDLY_MOVED = 0.035
"""Change of validation accuracy up to which a rise of the loss is called overconfidence: two points, and the
one and a half that two accuracies of 0.6 on 2,246 examples differ by chance (one standard deviation)."""


_CALIBRATION_LOST = 0.01
"""Rise of the expected calibration error that counts as one: a point."""


class Losses:
    """The losses of a history and what the checks ask of them.

    Attributes:
        epochs: One-based number of each epoch.
        train: Training losses, one an epoch; None where unknown or not finite.
        val: Validation losses, likewise.
        best: Position of the lowest validation loss, None without one.
        last: Position of the last known validation loss, None without one.
    """

    def __init__(self, history: History, num_classes: int | None = None) -> None:
        self.num_classes = num_classes
        self.epochs = epoch_numbers(history)
        self.train = series(history, "loss")
        self.val = series(history, "val_loss")
        accuracy = accuracy_name(history)
        self.accuracy = series(history, f"{accuracy}")
        self.val_accuracy = series(history, f"val_{accuracy}")
        self.val_calibration_error = series(history, f"val_{ERROR}")
        self.last_row = history[-1] if history else {}
        self.known_train = known(self.train)
        self.known_val = known(self.val)
        self.best = self.val.index(min(self.known_val)) if self.known_val else None
        self.last = max((at for at, value in enumerate(self.val) if value is not None), default=None)

    @property
    def rise(self) -> float | None:
        """Change of validation loss from the best epoch to the last, as a share; None without a ratio."""
        if not self.known_val or min(self.known_val) <= 0:
            return None
        return self.known_val[-1] / min(self.known_val) - 1.0

    @property
    def training_fall(self) -> float | None:
        """Fall of training loss since the best epoch, as a share; None when no more than its scatter."""
        since = self.train[self.best or 0 :]
        values = known(since)
        if len(values) <= WORSE_EPOCHS or since[0] is None or since[0] <= 0:
            return None
        fall = 1.0 - values[-1] / since[0]
        return fall if fall > max(_LEAST_FALL, 3.0 * scatter(values) / since[0]) else None

    @property
    def accuracy_fall(self) -> float | None:
        """Fall of validation accuracy from the best epoch to the last; None where it is unknown."""
        if self.best is None or self.last is None:
            return None
        before, after = self.val_accuracy[self.best], self.val_accuracy[self.last]
        return None if before is None or after is None else before - after

    @property
    def accuracy_held(self) -> bool:
        """True when validation accuracy is known and has not fallen by more than a few points."""
        return self.accuracy_fall is not None and self.accuracy_fall <= ACCURACY_HARDLY_MOVED

    @property
    def calibration_errors(self) -> tuple[float, float] | None:
        """ECE at the best and at the last epoch; None where they are not known."""
        if self.best is None or self.last is None:
            return None
        before, after = self.val_calibration_error[self.best], self.val_calibration_error[self.last]
        return None if before is None or after is None else (before, after)

    @property
    def overconfident(self) -> bool:
        """True when validation accuracy was held and the ECE, where it is known, was not."""
        errors = self.calibration_errors
        return self.accuracy_held and (errors is None or errors[1] - errors[0] >= _CALIBRATION_LOST)


def known(values: Sequence[float | None]) -> list[float]:
    """The values that are."""
    return [value for value in values if value is not None]


def scatter(values: Sequence[float]) -> float:
    """Standard deviation of the noise of three values or more, whatever their trend.

    A trend leaves second differences alone; the median absolute value of those of independent normal noise
    is 0.6745 · √6 standard deviations.
    """
    bends = [abs(a - 2.0 * b + c) for a, b, c in zip(values, values[1:], values[2:], strict=False)]
    return median(bends) / (0.6745 * math.sqrt(6.0))
