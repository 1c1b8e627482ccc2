"""What a dataset looks like: classes, lengths, what a maximum length cuts and pads, shards of a batch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_BINS = 40
"""About how many bins a histogram has below its last one."""


@dataclass(frozen=True)
class ClassBalance:
    """How a split's examples are spread over the classes.

    Attributes:
        counts: Examples of each class, int64, shape (classes,).
    """

    counts: NDArray[np.int64]

    @property
    def majority(self) -> int:
        """The class with most examples, the first of several."""
        return int(self.counts.argmax())

    @property
    def majority_share(self) -> float:
        """Share of the largest class, 0 to 1: the accuracy of always answering with it."""
        return float(self.counts.max() / self.counts.sum())

    @property
    def imbalance(self) -> float:
        """Examples of the largest class for each of the smallest that has any, 1 or more."""
        return float(self.counts.max() / self.counts[self.counts > 0].min())

    @property
    def missing(self) -> list[int]:
        """Classes without an example."""
        return np.flatnonzero(self.counts == 0).tolist()


def class_balance(labels: NDArray[np.int32], classes: int) -> ClassBalance:
    """Counts the examples of each class.

    Args:
        labels: Class of each example, 0 to `classes` - 1, shape (examples,), at least one.
        classes: Number of classes, those without an example included.
    """
    return ClassBalance(np.bincount(labels, minlength=classes))


@dataclass(frozen=True)
class LengthHistogram:
    """How many sequences have which length.

    Attributes:
        width: Lengths in each bin but the last, which holds all that are longer.
        starts: Smallest length of each bin, shape (bins,).
        counts: Sequences in each bin, shape (bins,).
    """

    width: int
    starts: NDArray[np.int64]
    counts: NDArray[np.int64]


def length_histogram(lengths: NDArray[np.int64]) -> LengthHistogram:
    """Sorts sequences by length into bins of a round width.

    The 99 % of shorter sequences get about 40 bins; the few long ones share the last, so that they do not
    press the others together.

    Args:
        lengths: Word ids of each sequence, shape (sequences,), at least one.
    """
    usual = int(np.quantile(lengths, 0.99, method="lower"))
    width = _round_up(usual / _BINS)
    starts = np.arange(0, usual + width + 1, width)
    counts = np.bincount(np.minimum(lengths // width, len(starts) - 1), minlength=len(starts))
    return LengthHistogram(width, starts, counts)


def _round_up(value: float) -> int:
    """The next whole number from `value` on that is 1, 2 or 5 times a power of ten."""
    power = 1
    while True:
        for factor in (1, 2, 5):
            if factor * power >= value:
                return factor * power
        power *= 10


@dataclass(frozen=True)
class Padding:
    """What it does to sequences to bring them all to one length.

    Attributes:
        truncated_share: Share of the sequences that lose word ids, 0 to 1.
        kept_share: Share of all word ids that stay, 0 to 1.
        padding_share: Share of the padded tensor that is padding, 0 to 1.
    """

    truncated_share: float
    kept_share: float
    padding_share: float


def padding(lengths: NDArray[np.int64], max_len: int) -> Padding:
    """Measures what padding and cutting to `max_len` does.

    Args:
        lengths: Word ids of each sequence, shape (sequences,), at least one, none empty.
        max_len: Word ids that a sequence is padded or cut to, at least 1.
    """
    kept = int(np.minimum(lengths, max_len).sum())
    return Padding(
        truncated_share=float((lengths > max_len).mean()),
        kept_share=kept / int(lengths.sum()),
        padding_share=1 - kept / (len(lengths) * max_len),
    )


def shards(global_batch: int, replicas: int) -> list[range]:
    """Cuts a global batch into one row range per replica, as `tf.distribute` does.

    The rows stay in order. Where replicas cannot share evenly, each takes the even share rounded up until no
    row is left, and the last ones get fewer or none: 22 rows on 4 replicas are 6, 6, 6 and 4
    (`MirroredStrategy.experimental_distribute_dataset`, TensorFlow 2.21).

    Args:
        global_batch: Rows of the batch, 0 or more.
        replicas: Replicas that share it, 1 or more.
    """
    size = -(-global_batch // replicas)
    return [
        range(min(replica * size, global_batch), min((replica + 1) * size, global_batch))
        for replica in range(replicas)
    ]
