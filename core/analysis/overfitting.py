"""The diagnosis of a training from its losses: where it was best, whether and since when it overfits."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from core.analysis.criteria import History, Thresholds, duration_after, generalization_loss, stop_epochs
from core.analysis.losses import Losses
from core.analysis.verdict import Verdict, judge


@dataclass(frozen=True)
class Diagnosis:
    """What a history of losses shows. Epochs are one-based."""

    verdict: Verdict
    sentence: str
    """The verdict in words, for people; one sentence, or two."""
    best_epoch: int | None
    """Of the lowest validation loss; the earliest of equals; None without validation."""
    best_val_loss: float | None
    overfit_from: int | None
    """First epoch after the best when the model overfits, else None: from here a chart shades."""
    overconfident: bool
    """Validation loss rose while validation accuracy did not fall, or hardly; where the expected calibration
    error is known, it rose too."""
    criteria: dict[str, int | None]
    """The epoch after which each stopping criterion would have stopped; None: it never fires."""
    gap: tuple[float | None, ...]
    """Validation loss minus training loss, one an epoch."""
    generalization_loss: tuple[float | None, ...]
    """Prechelt's GL in percent, one an epoch."""
    after_best_s: float | None
    """Price of not stopping: seconds spent after the best epoch; None when durations are not known."""
    val_loss_change: float | None
    """Price of not stopping: change of validation loss since the best epoch, as a share of it."""

    def to_json(self) -> dict[str, Any]:
        """The diagnosis as plain JSON values; a number that is not finite becomes None."""
        values: dict[str, Any] = _plain(asdict(self))
        return values


def diagnose(
    history: History,
    *,
    num_classes: int | None = None,
    thresholds: Thresholds | None = None,
    has_diverged: bool = False,
) -> Diagnosis:
    """Says what a history of losses shows.

    Keras's training loss is the running mean of an epoch, so it lags about half an epoch behind the
    validation loss, and may be the higher of the two at first.

    Args:
        history: The epochs, in order.
        num_classes: C of a classification with cross-entropy; None where it is not known, and then no
            floor of softmax applied twice is looked for.
        thresholds: Of the stopping criteria; None takes the defaults. The verdict does not depend on them.
        has_diverged: Whether a loss that was not finite has ended the training, in the epoch after these.
    """
    losses = Losses(history, num_classes)
    verdict, sentence = judge(losses, has_diverged=has_diverged)
    overfits = verdict in (Verdict.OVERFITTING, Verdict.OVERCONFIDENT)
    best = losses.best
    return Diagnosis(
        verdict=verdict,
        sentence=sentence,
        best_epoch=None if best is None else losses.epochs[best],
        best_val_loss=None if best is None else losses.val[best],
        overfit_from=losses.epochs[best + 1] if overfits and best is not None else None,
        overconfident=overfits and losses.overconfident,
        criteria=stop_epochs(history, thresholds or Thresholds()),
        gap=tuple(
            None if v is None or t is None else v - t for v, t in zip(losses.val, losses.train, strict=True)
        ),
        generalization_loss=tuple(generalization_loss(losses.val)),
        after_best_s=None if best is None else duration_after(history, best),
        val_loss_change=losses.rise,
    )


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
