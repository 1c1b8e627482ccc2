"""What a training's losses bear out: one verdict, and a sentence or two of plain words.

A claim needs evidence that noise does not give. "Overfitting" asks for three things at once: the last
generalization loss is above 5 %; validation loss, smoothed by medians, has risen by more than its own
scatter (or in each of three or more epochs since the best, to above 20 %); and training loss has gone on
falling by more than its own scatter.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import StrEnum
from itertools import pairwise
from statistics import median

from core.analysis.losses import WORSE_EPOCHS, Losses, known, scatter

_FEWEST_EPOCHS = 3
"""Below which nothing is claimed."""
_FEWEST_CLASSES = 2
_OVERFIT_RISE = 0.05
"""Rise of validation loss up to which nothing is called overfitting: Prechelt's GL_5."""
_STEADY_RISE = 0.2
"""Rise of validation loss, up in each of three or more epochs since the best, that is proof enough: GL_20."""
_ACCURACY_KEPT = 0.01
"""Fall of validation accuracy up to which the verdict is overconfidence and not overfitting."""
_UNDERFITTING_EPOCHS = 5
"""Below which nothing is called underfitting: a training may start slowly."""
_LOW_ACCURACY = 0.75
"""Training accuracy below which a training that has come to rest is called underfitting."""
_HALF_LEARNT = 0.5
"""Where no accuracy is known: fall of training loss, as a share, that takes its place."""
_LITTLE_LEARNT = 0.1
"""Fall of training loss, as a share, below which hardly anything was learnt."""
_STILL = 0.01
"""Change of a loss from epoch to epoch, as a share, below which it is at rest."""
_ABOVE_GUESSING = 1.02
"""How many times the loss of a uniform guess, ln C, a model's must be to be called worse than guessing."""
_NEAR_FLOOR = 1.03
"""How many times the floor of softmax applied twice a loss may be to rest at it."""
_EXPLODED = 3.0
"""How many times its lowest value a training loss must reach to be called diverged."""


class Verdict(StrEnum):
    """What a history shows."""

    TOO_EARLY = "too_early"
    """Fewer than three epochs."""
    IMPROVING = "improving"
    PLATEAU = "plateau"
    """Validation loss has come to rest, neither falling nor rising beyond its scatter."""
    OVERFITTING = "overfitting"
    OVERCONFIDENT = "overconfident"
    """Overfitting of the loss alone: validation accuracy has not fallen."""
    UNDERFITTING = "underfitting"
    DIVERGED = "diverged"
    DOUBLE_SOFTMAX = "double_softmax"
    """The loss rests at the floor that softmax applied twice puts under it."""
    NOISY = "noisy"
    """The losses jump about without a trend."""
    NO_VALIDATION = "no_validation"
    UNDEFINED = "undefined"
    """Losses of zero or less, for which no percentages exist."""


Finding = tuple[Verdict, str]


def double_softmax_floor(num_classes: int) -> float:
    """The cross-entropy, in nats, that softmax applied twice cannot go below: ln(1 + (C − 1) / e).

    The inner softmax hands the outer one values from 0 to 1 only, so the best it can say is 1 for the
    right class and 0 for the C − 1 others.
    """
    return math.log(1.0 + (num_classes - 1) / math.e)


def judge(losses: Losses, *, has_diverged: bool = False) -> Finding:
    """The first verdict that the losses bear out, and its sentence.

    Args:
        losses: Of the whole epochs.
        has_diverged: Whether the epoch after these came to a loss that was not finite.
    """
    finding = _not_finite(losses)
    if finding is None and has_diverged and losses.epochs:
        best = f" {_best(losses)}." if losses.known_val else ""
        finding = Verdict.DIVERGED, f"The training diverged in epoch {losses.epochs[-1] + 1}.{best}"
    if finding is not None:
        return finding
    for check in (
        _too_early,
        _exploded,
        _double_softmax,
        _worse_than_guessing,
        _no_validation,
        _undefined,
        _overfitting,
        _noisy,
        _underfitting,
        _improving,
    ):
        finding = check(losses)
        if finding is not None:
            return finding
    return _plateau(losses)


def _not_finite(losses: Losses) -> Finding | None:
    # Said from the first epoch on: that a loss is not a number is a fact, not a trend.
    for name, values, advice in (
        ("loss", losses.train, "the training diverged. Lower the learning rate."),
        ("val_loss", losses.val, "look for values that are not finite in the validation data."),
    ):
        if name in losses.last_row and values[-1] is None:
            since = max((at + 1 for at, value in enumerate(values) if value is not None), default=0)
            split = "Training" if name == "loss" else "Validation"
            return Verdict.DIVERGED, (
                f"{split} loss has not been a finite number since epoch {losses.epochs[since]}: {advice}"
            )
    return None


def _too_early(losses: Losses) -> Finding | None:
    epochs = len(losses.known_val or losses.known_train)
    if epochs >= _FEWEST_EPOCHS:
        return None
    if epochs == 0:
        return Verdict.TOO_EARLY, "No loss has been recorded yet."
    few = "One epoch is" if epochs == 1 else "Two epochs are"
    so_far = f" {_best(losses)} so far." if losses.known_val else ""
    return Verdict.TOO_EARLY, f"{few} too few to judge; it takes three.{so_far}"


def _exploded(losses: Losses) -> Finding | None:
    """Training has lost all that it had won: its loss is back above where it came from, and far above."""
    loss = losses.known_train
    if not loss or min(loss) <= 0:
        return None
    lowest = loss.index(min(loss))
    if loss[-1] < max(loss[: lowest + 1]) or loss[-1] < _EXPLODED * loss[lowest]:
        return None
    return Verdict.DIVERGED, (
        f"Training loss rose from {_number(loss[lowest])} to {_number(loss[-1])}, past where it began:"
        " the training diverged. Lower the learning rate."
    )


def _double_softmax(losses: Losses) -> Finding | None:
    """Training loss rests above the floor, and higher than a calibrated model of this accuracy has it."""
    loss, classes = losses.known_train, losses.num_classes
    if classes is None or classes < _FEWEST_CLASSES or len(loss) < _FEWEST_EPOCHS:
        return None
    floor = double_softmax_floor(classes)
    tail = loss[-_FEWEST_EPOCHS:]
    # The printed loss is rounded, so it may lie a little below the floor.
    if min(loss) < 0.999 * floor or max(tail) > _NEAR_FLOOR * min(tail):
        return None
    accuracy = known(losses.accuracy)
    if loss[-1] <= _largest_entropy(accuracy[-1], classes) if accuracy else loss[-1] > _NEAR_FLOOR * floor:
        return None
    return Verdict.DOUBLE_SOFTMAX, (
        f"Training loss rests at {_number(loss[-1])}; with {classes} classes, softmax applied twice cannot go"
        f" below {_number(floor)}. Use from_logits=True only where the last layer has no softmax."
    )


def _worse_than_guessing(losses: Losses) -> Finding | None:
    classes = losses.num_classes
    if classes is None or classes < _FEWEST_CLASSES or len(losses.known_val) < _FEWEST_EPOCHS:
        return None
    guessing = math.log(classes)
    if min(losses.known_val) <= _ABOVE_GUESSING * guessing:
        return None
    return Verdict.UNDERFITTING, (
        f"{_best(losses)}, worse than guessing among {classes} classes ({_number(guessing)}):"
        " lower the learning rate."
    )


def _largest_entropy(accuracy: float, num_classes: int) -> float:
    """Cross-entropy in nats of a calibrated model of this accuracy, the other classes all alike to it."""
    rest = 1.0 - accuracy
    entropy = -accuracy * math.log(accuracy) if accuracy > 0 else 0.0
    return entropy + (rest * math.log((num_classes - 1) / rest) if rest > 0 else 0.0)


def _no_validation(losses: Losses) -> Finding | None:
    if losses.known_val:
        return None
    return Verdict.NO_VALIDATION, (
        "There is no validation loss, so overfitting cannot be seen:"
        " hold back a part of the data for validation."
    )


def _undefined(losses: Losses) -> Finding | None:
    if losses.rise is not None:
        return None
    return Verdict.UNDEFINED, (
        f"{_best(losses)}. Losses of zero or less have no percentages, so no more is claimed."
    )


def _overfitting(losses: Losses) -> Finding | None:
    rise, fall, best, last = losses.rise, losses.training_fall, losses.best, losses.last
    if rise is None or rise <= _OVERFIT_RISE or fall is None or best is None or last is None:
        return None
    since = known(losses.val[best + 1 :])
    recent = since[-3:]
    if len(recent) < WORSE_EPOCHS:
        return None
    around_best = median(known(losses.val[max(best - 1, 0) : best + 2]))
    noise = scatter(losses.known_val) / min(losses.known_val)
    # The more epochs the median rests on, the surer a rise beyond the scatter can and must be.
    beyond_scatter = median(recent) / around_best - 1.0 > max(_OVERFIT_RISE / 2, len(recent) * noise)
    # Scatter cannot be told from the bend of a steep turn; a rise in every epoch since needs no such proof.
    steady = len(since) > WORSE_EPOCHS and since == sorted(since) and rise > _STEADY_RISE
    if not (beyond_scatter or steady):
        return None
    sentence = (
        f"{_best(losses)}. Since then it rose {_percent(rise)} while training loss fell"
        f" {_percent(fall)}: the model is memorising."
    )
    if losses.overconfident:
        moved = "hardly moved" if (losses.accuracy_fall or 0.0) >= -_ACCURACY_KEPT else "even rose"
        sentence += (
            f" Validation accuracy {moved} ({losses.val_accuracy[best]:.3f} →"
            f" {losses.val_accuracy[last]:.3f}), so most of the rise is overconfidence:"
            " wrong answers given with more and more certainty."
        )
        if losses.calibration_errors is not None:
            before, after = losses.calibration_errors
            sentence += (
                f" Its confidence is off by {_points(after)}; at epoch {losses.epochs[best]}"
                f" it was {100.0 * before:.0f}."
            )
    kept = losses.accuracy_fall is not None and losses.accuracy_fall <= _ACCURACY_KEPT
    return Verdict.OVERCONFIDENT if kept and losses.overconfident else Verdict.OVERFITTING, sentence


def _noisy(losses: Losses) -> Finding | None:
    """Training loss has not moved by more than its steps, and these are too large to be called rest."""
    values = losses.known_train if len(losses.known_train) >= _FEWEST_EPOCHS else losses.known_val
    step = sum(abs(b - a) for a, b in pairwise(values)) / (len(values) - 1)
    third = len(values) // 3
    # Independent normal noise steps by 1.128 standard deviations on average.
    trend = abs(median(values[-third:]) - median(values[:third])) > 2.0 * step / 1.128
    level = abs(median(values))
    jump = step / level if level > 0 else 0.0
    if trend or jump < _STILL:
        return None
    return Verdict.NOISY, (
        f"{_best(losses)}, but the loss jumps by about {_percent(jump)} from epoch to epoch and shows no"
        " trend: nothing can be read from it yet. A lower learning rate would calm it."
    )


def _underfitting(losses: Losses) -> Finding | None:
    """Training loss itself has come to rest high up."""
    loss = losses.known_train
    if len(loss) < _UNDERFITTING_EPOCHS or loss[0] <= 0:
        return None
    fall = 1.0 - loss[-1] / loss[0]
    accuracy = known(losses.accuracy)
    high = accuracy[-1] < _LOW_ACCURACY if accuracy else fall < _HALF_LEARNT
    if not high or not (_rests(loss) or fall < _LITTLE_LEARNT):
        return None
    moved = f"fell only {_percent(fall)}" if fall > 0 else "did not fall"
    at = f" at an accuracy of {accuracy[-1]:.3f}" if accuracy else ""
    return Verdict.UNDERFITTING, (
        f"Training loss {moved} in {len(loss)} epochs, to {_number(loss[-1])}{at}: the model is underfitting,"
        " it has not learnt even the training data. Try a larger model, another learning rate or more epochs."
    )


def _improving(losses: Losses) -> Finding | None:
    if losses.best is None or losses.rise is None:
        return None
    worse = len(known(losses.val[losses.best + 1 :]))
    if worse == 1:
        return Verdict.IMPROVING, (
            f"{_best(losses)}; the one epoch since was {_percent(losses.rise)} higher."
            " That may be chance: the next will tell."
        )
    if worse > 1 or _rests(losses.known_val):
        return None
    return Verdict.IMPROVING, (
        f"Validation loss is still falling, at epoch {losses.epochs[losses.best]} to"
        f" {_number(min(losses.known_val))}: more epochs may help."
    )


def _plateau(losses: Losses) -> Finding:
    if losses.best == losses.last:
        return Verdict.PLATEAU, (
            f"Validation loss has come to rest at {_number(losses.known_val[-1])}: more epochs bring little."
        )
    worse = len(known(losses.val[(losses.best or 0) + 1 :]))
    fall = losses.training_fall
    meanwhile = "" if fall is None else f", while training loss fell {_percent(fall)}"
    return Verdict.PLATEAU, (
        f"{_best(losses)} and has not improved in the {worse} epochs since{meanwhile}:"
        " more epochs no longer help."
    )


def _rests(values: Sequence[float]) -> bool:
    """Whether the last third of a series, three values at least, falls by less than 1 % an epoch."""
    tail = values[-max(_FEWEST_EPOCHS, len(values) // 3) :]
    return tail[0] - tail[-1] < _STILL * abs(tail[0]) * (len(tail) - 1)


def _best(losses: Losses) -> str:
    """Where validation loss was lowest, for the beginning of a sentence."""
    assert losses.best is not None
    return (
        f"Validation loss was lowest at epoch {losses.epochs[losses.best]} ({_number(min(losses.known_val))})"
    )


def _number(value: float) -> str:
    """A loss with four digits, trailing zeros kept, without exponents where it can be helped."""
    return f"{value:,.0f}" if abs(value) >= 1_000 else f"{value:#.4g}".rstrip(".")  # noqa: PLR2004


def _points(share: float) -> str:
    points = f"{100.0 * share:.0f}"
    return f"{points} point{'s' * (points != '1')}"


def _percent(share: float) -> str:
    return f"{100.0 * share:,.0f} %"
