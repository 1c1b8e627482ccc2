"""What a classifier got right and wrong: accuracy against a baseline, scores of each class, confusions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import accuracy_score, confusion_matrix, f1_score, precision_recall_fscore_support

from core.analysis.calibration import Bin, expected_calibration_error, reliability, top_label
from core.analysis.dataset import class_balance

TOP_K = 5
Order = Literal["support", "confusion"]


@dataclass(frozen=True)
class ClassScore:
    """How well one class is recognised.

    Attributes:
        support: Examples of the class.
        predicted: Examples that were taken for it.
        precision: Share of those taken for it that are of it; 0 when there are none.
        recall: Share of its examples that were recognised; 0 when there are none.
        f1: Harmonic mean of precision and recall.
    """

    support: int
    predicted: int
    precision: float
    recall: float
    f1: float


@dataclass(frozen=True)
class Evaluation:
    """What a classifier got right and wrong on a split.

    Attributes:
        examples: Of the split.
        accuracy: Share whose likeliest class is the right one.
        top_5: Share whose right class is among the five likeliest.
        majority: The largest class of the training split.
        baseline: Accuracy of always answering with it, on this split.
        baseline_top_5: Top-5 accuracy of always answering with the training split's five largest.
        training_share: Its share of the training split.
        macro_f1: Mean of the F1 of all classes that occur or were answered.
        diagram: Reliability diagram of the likeliest classes.
        scores: Of each class.
        confusion: Examples of each class (rows) that were taken for each (columns), shape (classes, classes).
        predicted: The answer to each example, shape (examples,).
    """

    examples: int
    accuracy: float
    top_5: float
    majority: int
    baseline: float
    baseline_top_5: float
    training_share: float
    macro_f1: float
    diagram: Sequence[Bin]
    scores: Sequence[ClassScore]
    confusion: NDArray[np.int64]
    predicted: NDArray[np.int64]

    @property
    def calibration_error(self) -> float | None:
        """Expected calibration error, 0 to 1; None when no probability is finite."""
        return expected_calibration_error(self.diagram)

    def to_json(self, names: Sequence[str]) -> dict[str, Any]:
        """The figures and the scores of each class as JSON values; the names are those of the classes."""
        return {
            "examples": self.examples,
            "accuracy": self.accuracy,
            "top_5_accuracy": self.top_5,
            "majority_class": names[self.majority],
            "majority_accuracy": self.baseline,
            "majority_top_5_accuracy": self.baseline_top_5,
            "macro_f1": self.macro_f1,
            "expected_calibration_error": self.calibration_error,
            "classes": [
                {"class": i, "name": name, **asdict(score)}
                for i, (name, score) in enumerate(zip(names, self.scores, strict=True))
            ],
        }


def evaluate(
    probabilities: NDArray[np.float32], labels: NDArray[np.int32], training: NDArray[np.int32]
) -> Evaluation:
    """Compares a classifier's answers with the truth.

    Args:
        probabilities: Predicted probabilities, shape (n, classes).
        labels: Right classes, shape (n,).
        training: Classes of the training split, of which the baseline is the most frequent.
    """
    classes = probabilities.shape[1]
    confidence, _ = top_label(probabilities, labels)
    # A row that is not finite has no likeliest class; it counts as an answer with the first one.
    predicted = np.nan_to_num(probabilities, nan=-1.0).argmax(axis=1)
    balance = class_balance(training, classes)
    every = range(classes)
    precision, recall, f1, support = precision_recall_fscore_support(
        labels, predicted, labels=every, zero_division=0
    )
    taken = np.bincount(predicted, minlength=classes)
    return Evaluation(
        examples=len(labels),
        accuracy=float(accuracy_score(labels, predicted)),
        top_5=float(_in_top(probabilities, labels).mean()),
        majority=balance.majority,
        baseline=float((labels == balance.majority).mean()),
        baseline_top_5=float(np.isin(labels, np.argsort(-balance.counts, kind="stable")[:TOP_K]).mean()),
        training_share=balance.majority_share,
        macro_f1=float(f1_score(labels, predicted, average="macro", zero_division=0)),
        diagram=reliability(confidence, predicted == labels),
        scores=[
            ClassScore(int(support[i]), int(taken[i]), float(precision[i]), float(recall[i]), float(f1[i]))
            for i in every
        ],
        confusion=confusion_matrix(labels, predicted, labels=every),
        predicted=predicted,
    )


def _in_top(probabilities: NDArray[np.float32], labels: NDArray[np.int32]) -> NDArray[np.bool_]:
    """Whether fewer than five classes are likelier than the right one, as TensorFlow's ``InTopK`` counts."""
    own = probabilities[np.arange(len(labels)), labels]
    likelier = (probabilities > own[:, None]).sum(axis=1)
    found: NDArray[np.bool_] = np.isfinite(own) & (likelier < TOP_K)
    return found


def ordered(confusion: NDArray[np.int64], by: Order) -> NDArray[np.int64]:
    """The classes in an order that makes a confusion matrix readable.

    Args:
        confusion: Shape (classes, classes), the right classes in rows.
        by: ``support``, the class with most examples first; ``confusion``, the class with most mistakes
            first, its own that were taken for others and others' that were taken for it counted together.

    Returns:
        Numbers of the classes; of equal ones the lower number comes first.
    """
    if by == "support":
        weight = confusion.sum(axis=1)
    else:
        weight = confusion.sum(axis=0) + confusion.sum(axis=1) - 2 * confusion.diagonal()
    return np.argsort(-weight, kind="stable")


def shares(confusion: NDArray[np.int64]) -> NDArray[np.float64]:
    """Each row's counts as shares of the row, 0 to 1; NaN for a class without examples."""
    support = confusion.sum(axis=1, keepdims=True)
    found: NDArray[np.float64] = np.where(support > 0, confusion / np.maximum(support, 1), np.nan)
    return found


def cell(
    evaluation: Evaluation,
    probabilities: NDArray[np.float32],
    labels: NDArray[np.int32],
    true: int,
    answer: int,
) -> NDArray[np.int64]:
    """The examples in one cell of the confusion matrix, those the model was surest of first.

    Args:
        evaluation: Of these probabilities.
        probabilities: Shape (n, classes).
        labels: Right classes, shape (n,).
        true: The right class.
        answer: The class they were taken for.

    Returns:
        Their places in the split.
    """
    rows = np.flatnonzero((labels == true) & (evaluation.predicted == answer))
    return rows[np.argsort(-probabilities[rows, answer], kind="stable")]
