"""The synthetic newswire generator: stands in for Reuters where that cannot be downloaded.

Same sizes, class counts, lengths and vocabulary as Reuters; the words are made up. A newswire mixes
words of general use, which are drawn by a Zipf-like law, with words of its topic, of a group of related
topics, and of another topic that it touches. A model can learn the topics, and can memorise the rest.

Everything is integer arithmetic on the raw output of PCG64, which NumPy keeps the same on every platform
and in every version (NEP 19), so a seed gives the same newswires everywhere.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from core.corpus import START, UNUSED, Corpus

TITLE = "Synthetic newswires (generated)"
VOCABULARY = 30_982
"""Word ids, the four special ones included, as many as Reuters has."""

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

_SPECIAL_WORDS = ("<pad>", "<start>", "<unk>", UNUSED)
_SYLLABLES = tuple(consonant + vowel for consonant in "bdflmnrstv" for vowel in "aeiou")

_GROUPS = 12
"""Groups of related topics, whose newswires share words and are easily confused."""
_TOPIC_WORDS = 40
_TOPIC_RANKS = (50, 6_000)
"""Ranks in the general vocabulary from which topics take their words."""
_STRONGEST_TOPIC_PER_MILLE = 400
"""A newswire's share of topical words is anything from none to this."""


def generate(seed: int = 1987) -> Corpus:
    """Generates the newswires.

    Args:
        seed: Another seed gives other newswires, with other topics' words.

    Returns:
        A corpus of 8,982 training and 2,246 test newswires in 46 classes.
    """
    random = _Random(seed)
    classes = len(TRAIN_COUNTS)
    splits = (TRAIN_COUNTS, TEST_COUNTS)
    labels = np.concatenate([random.shuffled(np.repeat(np.arange(classes), counts)) for counts in splits])
    lengths = np.concatenate([random.shuffled(_lengths(sum(counts))) for counts in splits])
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    tokens = _tokens(random, labels, lengths)
    tokens[offsets[:-1]] = START
    return Corpus(
        name="synthetic",
        title=TITLE,
        tokens=tokens.astype(np.int32),
        offsets=offsets,
        labels=labels.astype(np.int32),
        train_size=sum(TRAIN_COUNTS),
        words=_words(random),
        class_names=[f"synthetic topic {number:02}" for number in range(1, classes + 1)],
    )


class _Random:
    """Whole numbers from PCG64, without NumPy's distributions, whose streams may change (NEP 19)."""

    def __init__(self, seed: int) -> None:
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


def _lengths(size: int) -> NDArray[np.int64]:
    """Lengths of `size` newswires, ascending: `_LENGTH_QUANTILES` with straight lines between them."""
    per_mille, length = np.array(_LENGTH_QUANTILES).T
    start = per_mille * 1_000
    millionths = np.arange(size) * 1_000_000 // size
    at = np.searchsorted(start, millionths, side="right") - 1
    rise = (length[at + 1] - length[at]) * (millionths - start[at]) // (start[at + 1] - start[at])
    lengths: NDArray[np.int64] = length[at] + rise
    return lengths


def _tokens(random: _Random, labels: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Word ids of all newswires in a row, int64, shape (sum of lengths,)."""
    ranks = np.arange(VOCABULARY - len(_SPECIAL_WORDS))
    tokens = random.ranks(10**15 // ((ranks + 6) * (ranks + 8_000)), int(lengths.sum()))

    classes = len(TRAIN_COUNTS)
    group = random.below(_GROUPS, classes)
    low, high = _TOPIC_RANKS
    words = low + random.below(high - low, (classes + _GROUPS) * _TOPIC_WORDS).reshape(-1, _TOPIC_WORDS)
    strength = np.repeat(random.below(_STRONGEST_TOPIC_PER_MILLE, len(labels)), lengths)
    other = np.repeat(labels[random.below(len(labels), len(labels))], lengths)
    own = np.repeat(labels, lengths)

    topical = np.flatnonzero(random.below(1_000, len(tokens)) < strength)
    sources = np.stack([own, classes + group[own], other])[:, topical]
    source = sources[random.ranks(np.array([6, 3, 2]), len(topical)), np.arange(len(topical))]
    word = random.ranks(10**6 // (np.arange(_TOPIC_WORDS) + 5), len(topical))
    tokens[topical] = words[source, word]
    return tokens + len(_SPECIAL_WORDS)


def _words(random: _Random) -> list[str]:
    """Pronounceable words, all different, the shortest for the most frequent ids."""
    words = list(_SPECIAL_WORDS)
    base = len(_SYLLABLES)
    for syllables in (1, 2, 3):
        for number in random.shuffled(np.arange(base**syllables))[: VOCABULARY - len(words)].tolist():
            digits = (number // base**place % base for place in range(syllables))
            words.append("".join(_SYLLABLES[digit] for digit in digits))
    return words
