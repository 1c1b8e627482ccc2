"""How far a classifier's confidence can be believed: expected calibration error and reliability diagram.

After Guo, Pleiss, Sun and Weinberger, "On Calibration of Modern Neural Networks" (ICML 2017), section 2. The
n predictions are sorted by their confidence p̂ into M bins of equal width, B_m holding those with p̂ in
((m − 1)/M, m/M]. With acc(B) the share of a bin's predictions that are right and conf(B) the mean of their
confidences, ``ECE = Σ_m |B_m|/n · |acc(B_m) − conf(B_m)|``. A reliability diagram draws acc against conf.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

BINS = 15
"""M of the paper's experiments."""

ERROR = "expected_calibration_error"
"""Name of the ECE among an epoch's metrics; ``val_`` before it in a history."""

_ROUNDING = 1e-3
"""How far a softmax in half precision may come out beyond 1."""


@dataclass(frozen=True)
class Bin:
    """One bar of a reliability diagram: confidences above `lower`, up to and including `upper`."""

    lower: float
    upper: float
    count: int
    """Predictions in the bin."""
    accuracy: float | None
    """Share of them that are right; None in an empty bin."""
    confidence: float | None
    """Mean of their confidences; None in an empty bin."""


def top_label(probabilities: ArrayLike, labels: ArrayLike) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """The confidence of each prediction and whether it is right.

    Args:
        probabilities: Predicted probabilities, shape (n, classes).
        labels: Right classes, integers, shape (n,).

    Returns:
        The largest probability of each row, and whether it is the label's; both of shape (n,).

    Raises:
        ValueError: The shapes do not fit each other.
    """
    probabilities, labels = np.asarray(probabilities), np.asarray(labels)
    if probabilities.ndim != 2 or labels.shape != probabilities.shape[:1]:  # noqa: PLR2004
        raise ValueError(
            f"Probabilities of shape {probabilities.shape} and labels of shape {labels.shape} do not fit:"
            " (n, classes) and (n,) are expected."
        )
    return probabilities.max(axis=1, initial=0.0), probabilities.argmax(axis=1) == labels


def reliability(confidence: ArrayLike, correct: ArrayLike, bins: int = BINS) -> list[Bin]:
    """The bars of a reliability diagram.

    Args:
        confidence: Probability of each predicted class, shape (n,). NaN belongs to no bin.
        correct: Whether each prediction is right, shape (n,).
        bins: M, the number of bins of equal width.

    Returns:
        The bins in rising order, empty ones too.

    Raises:
        ValueError: The shapes differ, there is no bin, or a confidence is not a probability.
    """
    confidence = np.asarray(confidence, dtype=np.float64)
    correct = np.asarray(correct, dtype=np.bool_)
    if confidence.ndim != 1 or confidence.shape != correct.shape:
        raise ValueError(
            f"Confidences of shape {confidence.shape} and answers of shape {correct.shape} do not fit:"
            " both must be (n,)."
        )
    if bins < 1:
        raise ValueError(f"{bins} bins cannot hold anything: at least one is needed.")
    if np.any(confidence < -_ROUNDING) or np.any(confidence > 1.0 + _ROUNDING):
        raise ValueError(
            f"Confidences reach from {np.nanmin(confidence):.3g} to {np.nanmax(confidence):.3g}, not from"
            " 0 to 1: pass the probabilities that softmax gives, not logits."
        )
    known = ~np.isnan(confidence)
    # A confidence of zero is above no edge, and so goes into the first bin.
    place = np.searchsorted(inner_edges(bins), confidence[known], side="left")
    columns = np.ones(int(known.sum())), confidence[known], correct[known]
    return bars(np.stack([np.bincount(place, column, minlength=bins) for column in columns], axis=1))


def inner_edges(bins: int = BINS) -> NDArray[np.float64]:
    """Where one bin ends and the next begins, shape (bins − 1,); a bin holds its upper edge."""
    return np.arange(1, bins, dtype=np.float64) / bins


def bars(sums: ArrayLike) -> list[Bin]:
    """The bars of a reliability diagram, from what was added up in each bin.

    Args:
        sums: Shape (bins, 3): how many predictions, the sum of their confidences, how many are correct.

    Returns:
        The bins in rising order, empty ones too.
    """
    rows = np.asarray(sums, dtype=np.float64).tolist()
    bins = len(rows)
    return [
        Bin(
            lower=m / bins,
            upper=(m + 1) / bins,
            count=round(count),
            accuracy=correct / count if count else None,
            confidence=confidence / count if count else None,
        )
        for m, (count, confidence, correct) in enumerate(rows)
    ]


def expected_calibration_error(diagram: Sequence[Bin]) -> float | None:
    """ECE of a reliability diagram, from 0 (confidence can be believed) to 1; None without predictions."""
    total = sum(bar.count for bar in diagram)
    if total == 0:
        return None
    return sum(
        bar.count / total * abs(bar.accuracy - bar.confidence)
        for bar in diagram
        if bar.accuracy is not None and bar.confidence is not None
    )
