"""When training should have stopped: Prechelt's criteria, and Keras's patience beside them.

The names and formulas are those of Lutz Prechelt, "Early Stopping – But When?" (1998). With the training
losses E_tr and the validation losses E_va by epoch t = 1, 2, …:

* generalization loss ``GL(t) = 100 · (E_va(t) / min E_va(1…t) − 1)``, in percent;
* training progress ``P_k(t) = 1000 · (mean E_tr(t−k+1…t) / min E_tr(t−k+1…t) − 1)``, in per mille;
* progress quotient ``PQ_k(t) = GL(t) / P_k(t)``, looked at only where a strip of k epochs ends;
* ``UP_s``: validation loss at the end of a strip was higher than at the end of the strip before, s times
  in succession.

``GL_α`` fires at the first epoch with GL above α, ``PQ_α`` at the first end of a strip with PQ above α.
A series here has one value an epoch, None where the value is unknown or not finite.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

Series = Sequence[float | None]
History = Sequence[Mapping[str, float | int | None]]
"""One mapping an epoch: ``epoch`` (one-based), ``duration_s``, and Keras's metric names. A value is None
where it was recorded but not finite; a name is missing where nothing was recorded."""

_ACCURACIES = ("sparse_categorical_accuracy", "categorical_accuracy", "binary_accuracy", "accuracy", "acc")


@dataclass(frozen=True)
class Thresholds:
    """Which criteria are looked at, and where each fires."""

    generalization_loss: tuple[float, ...] = (2.0, 5.0, 20.0)
    """α of GL_α, in percent."""
    progress_quotient: tuple[float, ...] = (0.5,)
    """α of PQ_α."""
    successive_strips: tuple[int, ...] = (1, 2)
    """s of UP_s."""
    strip_lengths: tuple[int, ...] = (5, 2)
    """k of PQ and UP, in epochs. Prechelt's 5 comes first; it leaves a lesson of ten epochs nearly silent."""
    patience: tuple[int, ...] = (2, 3, 5)
    """Epochs without improvement after which Keras's EarlyStopping ends a fit."""


@dataclass(frozen=True)
class Stop:
    """What would have happened under one rule."""

    rule: str
    epoch: int | None
    """After which the rule would have stopped, one-based; None: it never fires, the training runs on."""
    val_loss: float | None
    """At that epoch, or at the last one."""
    val_accuracy: float | None
    epochs_saved: int
    saved_s: float | None
    """Seconds that the later epochs took; None when their durations are not known."""


def series(history: History, name: str) -> list[float | None]:
    """The values of one metric, one an epoch; None where it is missing or not finite."""
    values = (row.get(name) for row in history)
    return [float(value) if value is not None and math.isfinite(value) else None for value in values]


def epoch_numbers(history: History) -> list[int]:
    """The one-based epoch of each row; its place in the history where the row does not say."""
    numbers = series(history, "epoch")
    return [place if number is None else int(number) for place, number in enumerate(numbers, start=1)]


def accuracy_name(history: History) -> str | None:
    """The name of the accuracy among the metrics, the one that has validation values first."""
    recorded = {name for row in history for name in row}
    for prefix in ("val_", ""):
        for name in _ACCURACIES:
            if prefix + name in recorded:
                return name
    return None


def generalization_loss(val_loss: Series) -> list[float | None]:
    """GL of every epoch, in percent; None where the loss is unknown or no loss so far is above zero.

    A loss of zero or less has no meaningful ratio to another, so GL ends where one occurs.
    """
    result: list[float | None] = []
    lowest = math.inf
    for value in val_loss:
        if value is not None:
            lowest = min(lowest, value)
        result.append(100.0 * (value / lowest - 1.0) if value is not None and lowest > 0 else None)
    return result


def training_progress(loss: Series, strip_length: int) -> list[float | None]:
    """P_k of every epoch, in per mille; None before the first k epochs are over.

    Args:
        loss: Training losses.
        strip_length: k, in epochs.
    """
    result: list[float | None] = [None] * len(loss)
    for end in range(strip_length, len(loss) + 1):
        strip = [value for value in loss[end - strip_length : end] if value is not None]
        if len(strip) == strip_length and min(strip) > 0:
            # Equal losses must not come out below zero for want of a last digit.
            ratio = max(1.0, sum(strip) / (strip_length * min(strip)))
            result[end - 1] = 1000.0 * (ratio - 1.0)
    return result


def progress_quotient(val_loss: Series, loss: Series, strip_length: int) -> list[float | None]:
    """PQ_k at the end of every strip, None between; infinite where training has come to rest at GL > 0.

    Args:
        val_loss: Validation losses.
        loss: Training losses, as many.
        strip_length: k, in epochs.
    """
    result: list[float | None] = [None] * len(val_loss)
    generalization = generalization_loss(val_loss)
    progress = training_progress(loss, strip_length)
    for end in range(strip_length - 1, len(val_loss), strip_length):
        gl, p = generalization[end], progress[end]
        if gl is not None and p is not None:
            result[end] = 0.0 if gl == 0 else gl / p if p > 0 else math.inf
    return result


def successive_strips(val_loss: Series, strip_length: int) -> list[int]:
    """How many strips in succession validation loss has risen, by epoch; zero between ends of strips.

    Args:
        val_loss: Validation losses.
        strip_length: k, in epochs.
    """
    result = [0] * len(val_loss)
    for end in range(2 * strip_length - 1, len(val_loss), strip_length):
        before, now = val_loss[end - strip_length], val_loss[end]
        if before is not None and now is not None and now > before:
            result[end] = result[end - strip_length] + 1
    return result


def patience_stop(history: History, patience: int) -> int | None:
    """Where Keras's ``EarlyStopping(monitor="val_loss", patience=…)`` would stop, as Keras 3.15 counts.

    Epochs without a validation loss are passed over; one that is not finite counts as no improvement.

    Args:
        history: The epochs.
        patience: Epochs without improvement.

    Returns:
        The position in the history, or None when it would not stop.
    """
    best: float | None = None
    wait = 0
    for position, value in enumerate(series(history, "val_loss")):
        if "val_loss" not in history[position]:
            continue
        if best is None:
            # The first value is the best so far even when it is NaN; nothing is less than NaN afterwards.
            best = -math.inf if value is None else value
        elif value is not None and value < best:
            best, wait = value, 0
        else:
            wait += 1
            if wait >= patience:
                return position
    return None


def _first(fired: Iterable[bool]) -> int | None:
    return next((position for position, here in enumerate(fired) if here), None)


def _positions(history: History, thresholds: Thresholds) -> dict[str, int | None]:
    loss, val_loss = series(history, "loss"), series(history, "val_loss")
    positions: dict[str, int | None] = {}
    gl = generalization_loss(val_loss)
    for alpha in thresholds.generalization_loss:
        positions[f"GL_{alpha:g}"] = _first(value is not None and value > alpha for value in gl)
    for k in thresholds.strip_lengths:
        pq = progress_quotient(val_loss, loss, k)
        for alpha in thresholds.progress_quotient:
            fired = (value is not None and value > alpha for value in pq)
            positions[f"PQ_{alpha:g} (k={k})"] = _first(fired)
    for k in thresholds.strip_lengths:
        up = successive_strips(val_loss, k)
        for s in thresholds.successive_strips:
            positions[f"UP_{s} (k={k})"] = _first(strips >= s for strips in up)
    for patience in thresholds.patience:
        positions[f"patience_{patience}"] = patience_stop(history, patience)
    return positions


def stop_epochs(history: History, thresholds: Thresholds) -> dict[str, int | None]:
    """The epoch, one-based, after which each criterion would have stopped; None: it never fires."""
    numbers = epoch_numbers(history)
    return {
        rule: None if position is None else numbers[position]
        for rule, position in _positions(history, thresholds).items()
    }


def what_would_have_happened(history: History, thresholds: Thresholds) -> list[Stop]:
    """One row a rule: where it would have stopped, how good the model was there, and what it saves."""
    if not history:
        return []
    numbers, val_loss = epoch_numbers(history), series(history, "val_loss")
    accuracy = series(history, f"val_{accuracy_name(history)}")
    rows = []
    for rule, position in _positions(history, thresholds).items():
        at = len(history) - 1 if position is None else position
        rows.append(
            Stop(
                rule=rule,
                epoch=None if position is None else numbers[position],
                val_loss=val_loss[at],
                val_accuracy=accuracy[at],
                epochs_saved=len(history) - 1 - at,
                saved_s=duration_after(history, at),
            )
        )
    return rows


def duration_after(history: History, position: int) -> float | None:
    """Seconds that the epochs after a position took; None when one of them does not say."""
    durations = series(history, "duration_s")[position + 1 :]
    known = [duration for duration in durations if duration is not None]
    return sum(known) if len(known) == len(durations) else None
