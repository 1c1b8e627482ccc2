"""Synthetic newswires as word ids: what a model trains on where Reuters cannot be downloaded.

Same sizes, class counts, lengths and vocabulary as Reuters; the words are made up. A newswire mixes
words of general use, which are drawn by a Zipf-like law, with words of its topic, of a group of related
topics, and of another topic that it touches. A model can learn the topics, and can memorise the rest.

Everything is integer arithmetic on the raw output of PCG64, which NumPy keeps the same on every platform
and in every version (NEP 19), so a seed gives the same newswires everywhere.

What follows the imports needs NumPy alone and stands in every script to take home (`core.take_home`), so
its lines keep to the 88 characters that formatters allow by default.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

# fmt: off
TRAIN_COUNTS = (
    55, 432, 74, 3159, 1949, 17, 48, 16, 139, 101, 124, 390, 49, 172, 26, 20, 444, 39, 66, 549, 269, 100, 15,
    41, 62, 92, 24, 15, 48, 19, 45, 39, 32, 11, 50, 10, 49, 19, 19, 24, 36, 30, 13, 21, 12, 18,
)
"""Newswires of each class in Reuters' training split: `keras.datasets.reuters.load_data()`, Keras 3.15.1."""
TEST_COUNTS = (
    12, 105, 20, 813, 474, 5, 14, 3, 38, 25, 30, 83, 13, 37, 2, 9, 99, 12, 20, 133, 70, 27, 7,
    12, 19, 31, 8, 4, 10, 4, 12, 13, 10, 5, 7, 6, 11, 2, 3, 5, 10, 8, 3, 6, 5, 1,
)
"""The same of the test split."""

_LENGTH_QUANTILES = (
    (0, 13), (10, 17), (50, 24), (100, 35), (250, 60), (500, 96),
    (750, 179), (890, 301), (950, 459), (990, 718), (1000, 1400),
)
"""Per mille of Reuters' training newswires, and the length in word ids that they stay below."""
# fmt: on

VOCABULARY = 30_982
"""Word ids, as many as Reuters has."""
SPECIAL_IDS, START_ID = 4, 1
"""The first ids are of padding, start mark, unknown and unused words; and which one is the start mark."""

_GROUPS = 12
"""Groups of related topics, whose newswires share words and are easily confused."""
_TOPIC_WORDS = 40
_TOPIC_RANKS = (50, 6_000)
"""Ranks in the general vocabulary from which topics take their words."""
_STRONGEST_TOPIC_PER_MILLE = 400
"""A newswire's share of topical words is anything from none to this."""


class Random:
    """Whole numbers from PCG64, without NumPy's distributions, whose streams may change (NEP 19)."""

    def __init__(self, seed: int = 1987) -> None:
        self._bits = np.random.PCG64(seed)

    def below(self, limit: int, size: int) -> NDArray[np.int64]:
        """Numbers from 0 to `limit` - 1; their bias is below `limit` / 2**64."""
        return (self._bits.random_raw(size) % np.uint64(limit)).astype(np.int64)

    def shuffled(self, values: NDArray[np.int64]) -> NDArray[np.int64]:
        """The values in another order."""
        return values[np.argsort(self._bits.random_raw(len(values)), kind="stable")]

    def ranks(self, weights: NDArray[np.int64], size: int) -> NDArray[np.int64]:
        """Indices of `weights`, each as often as its weight says."""
        until = np.cumsum(weights)
        return np.searchsorted(until, self.below(int(until[-1]), size), side="right")


def newswires(
    random: Random,
) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.int32]]:
    """Generates 8,982 newswires to train on and 2,246 to test with, in 46 classes.

    Args:
        random: With another seed the newswires are others, with other topics' words.

    Returns:
        All word ids in a row; where each newswire begins in them, and the end of the last; and the
        newswires' classes.
    """
    splits = [np.array(TRAIN_COUNTS), np.array(TEST_COUNTS)]
    topics = [np.repeat(np.arange(len(counts)), counts) for counts in splits]
    labels = np.concatenate([random.shuffled(split) for split in topics])
    ascending = [_lengths(len(split)) for split in topics]
    lengths = np.concatenate([random.shuffled(split) for split in ascending])
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    tokens = _tokens(random, labels, lengths)
    tokens[offsets[:-1]] = START_ID
    return tokens.astype(np.int32), offsets, labels.astype(np.int32)


def _lengths(size: int) -> NDArray[np.int64]:
    """Lengths of `size` newswires, ascending: `_LENGTH_QUANTILES` with straight lines between them."""
    per_mille, length = np.array(_LENGTH_QUANTILES).T
    start = per_mille * 1_000
    millionths = np.arange(size) * 1_000_000 // size
    at = np.searchsorted(start, millionths, side="right") - 1
    rise, run = length[at + 1] - length[at], start[at + 1] - start[at]
    lengths: NDArray[np.int64] = length[at] + rise * (millionths - start[at]) // run
    return lengths


def _tokens(
    random: Random,
    labels: NDArray[np.int64],
    lengths: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Word ids of all newswires in a row, int64, shape (sum of lengths,)."""
    ranks = np.arange(VOCABULARY - SPECIAL_IDS)
    tokens = random.ranks(10**15 // ((ranks + 6) * (ranks + 8_000)), int(lengths.sum()))

    classes = len(TRAIN_COUNTS)
    group = random.below(_GROUPS, classes)
    low, high = _TOPIC_RANKS
    words = low + random.below(high - low, (classes + _GROUPS) * _TOPIC_WORDS)
    words = words.reshape(-1, _TOPIC_WORDS)
    strength = np.repeat(random.below(_STRONGEST_TOPIC_PER_MILLE, len(labels)), lengths)
    other = np.repeat(labels[random.below(len(labels), len(labels))], lengths)
    own = np.repeat(labels, lengths)

    topical = np.flatnonzero(random.below(1_000, len(tokens)) < strength)
    sources = np.stack([own, classes + group[own], other])[:, topical]
    drawn = random.ranks(np.array([6, 3, 2]), len(topical))
    source = sources[drawn, np.arange(len(topical))]
    word = random.ranks(10**6 // (np.arange(_TOPIC_WORDS) + 5), len(topical))
    tokens[topical] = words[source, word]
    return tokens + SPECIAL_IDS
