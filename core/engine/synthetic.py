"""The synthetic newswires as a dataset: with words for their ids, and names for their classes."""

from __future__ import annotations

import numpy as np

from core.corpus import UNUSED, Corpus
from core.synthetic_newswires import TRAIN_COUNTS, VOCABULARY, Random, newswires

TITLE = "Synthetic newswires (generated)"

_SPECIAL_WORDS = ("<pad>", "<start>", "<unk>", UNUSED)
_SYLLABLES = tuple(consonant + vowel for consonant in "bdflmnrstv" for vowel in "aeiou")


def generate(seed: int = 1987) -> Corpus:
    """Generates the newswires.

    Args:
        seed: Another seed gives other newswires, with other topics' words.

    Returns:
        A corpus of 8,982 training and 2,246 test newswires in 46 classes.
    """
    random = Random(seed)
    tokens, offsets, labels = newswires(random)
    return Corpus(
        name="synthetic",
        title=TITLE,
        tokens=tokens,
        offsets=offsets,
        labels=labels,
        train_size=sum(TRAIN_COUNTS),
        words=_words(random),
        class_names=[f"synthetic topic {number:02}" for number in range(1, len(TRAIN_COUNTS) + 1)],
    )


def _words(random: Random) -> list[str]:
    """Pronounceable words, all different, the shortest for the most frequent ids."""
    words = list(_SPECIAL_WORDS)
    base = len(_SYLLABLES)
    for syllables in (1, 2, 3):
        for number in random.shuffled(np.arange(base**syllables))[: VOCABULARY - len(words)].tolist():
            digits = (number // base**place % base for place in range(syllables))
            words.append("".join(_SYLLABLES[digit] for digit in digits))
    return words
