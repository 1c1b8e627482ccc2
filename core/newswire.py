"""A typed newswire as a model gets it: its words as Reuters has them, their ids, and what max_len cuts.

The word index of ``keras.datasets.reuters`` was made with Keras 2's ``text_to_word_sequence``: lower case,
parted at the characters of `_SEPARATORS`, apostrophes kept (keras_preprocessing 1.1.2, ``text.py``; Keras 3
has no such function any more). Sequences begin with the start mark, and unknown words have an id of their
own, as in ``load_data`` (Keras 3.15, ``start_char=1``, ``oov_char=2``).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from core.corpus import START, UNKNOWN, Corpus
from core.errors import ConfigError

MOST_CHARACTERS = 100_000
"""Of a text that is read; the longest newswire of Reuters has about 13,000."""
_LONGEST = 40
"""Characters of a word that are told."""

_SEPARATORS = r'!"#$%&()*+,\-./:;<=>?@\[\\\]^_`{|}~\t\n'
_WORD = re.compile(rf"[^{_SEPARATORS}\s]+")


@dataclass(frozen=True)
class Word:
    """A word of the text.

    Attributes:
        start: Where it begins in the text.
        end: Where it ends.
        id: Its word id; that of unknown words where it has none.
    """

    start: int
    end: int
    id: int

    @property
    def is_known(self) -> bool:
        """Whether the vocabulary has it."""
        return self.id != UNKNOWN


@dataclass(frozen=True)
class Newswire:
    """A text, and what of it reaches the model.

    Attributes:
        text: As it was typed.
        words: All of its words in order.
        cut: How many of them, from the first on, `max_len` cuts off.
        ids: What the model gets, at most `max_len` ids: the start mark where it is not cut off, then words.
    """

    text: str
    words: Sequence[Word]
    cut: int
    ids: Sequence[int]

    def word(self, at: int) -> str:
        """The text of one word, or the beginning of one that is too long to be any."""
        word = self.words[at]
        return self.text[word.start : min(word.end, word.start + _LONGEST)]

    @property
    def has_start(self) -> bool:
        """Whether the start mark reaches the model."""
        return len(self.ids) > len(self.words) - self.cut


def read(text: str, corpus: Corpus, max_len: int) -> Newswire:
    """Brings a text into the form of the corpus.

    Args:
        text: What was typed or pasted.
        corpus: Whose vocabulary.
        max_len: Ids that the model takes; longer texts keep their end, as in `Corpus.padded`.

    Raises:
        ConfigError: There is no word in it, or it is too long to be a newswire.
    """
    if len(text) > MOST_CHARACTERS:
        raise ConfigError(
            f"The text has {len(text):,} characters; at most {MOST_CHARACTERS:,} are read.",
            "Paste one newswire.",
        )
    words = [
        Word(found.start(), found.end(), corpus.ids.get(found[0].lower(), UNKNOWN))
        for found in _WORD.finditer(text)
    ]
    if not words:
        raise ConfigError("There is no word in the text.", "Type or paste a newswire in English.")
    ids = [START, *(word.id for word in words)][-max_len:]
    return Newswire(text, words, max(len(words) - max_len, 0), ids)
