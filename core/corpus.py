"""A prepared dataset: labelled sequences of word ids, kept as Parquet in the store's folder.

The engine prepares a corpus once (`core.engine.datasets`); engine and dashboard both read it here.
Nothing in these files is ever unpickled.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from core.config import Dataset
from core.errors import DatasetError
from core.whole_files import replacing

Split = Literal["train", "test"]

PADDING, START, UNKNOWN = 0, 1, 2
"""Word ids with a meaning of their own, as ``keras.datasets.reuters.load_data`` sets them (Keras 3.15)."""
UNUSED = "<unused>"
"""The word of an id that no word has."""
VOCABULARY, CLASSES = 30_982, 46
"""Word ids and classes of Reuters as Keras gives it, and of the synthetic newswires made like it."""
EXAMPLES: dict[Split, int] = {"train": 8_982, "test": 2_246}
"""Newswires in each split of both."""
INDEX_OFFSET = 3
"""A word's id is its rank in Keras's word index plus this."""


@dataclass(frozen=True)
class Corpus:
    """Newswires as word ids, their classes, and the words behind the ids.

    Attributes:
        name: Which dataset.
        title: Its name for people; says "synthetic" where it is.
        tokens: All word ids in a row, int32, the training split's first.
        offsets: Where each newswire begins in `tokens`; one more entry than newswires.
        labels: Class of each newswire, int32.
        train_size: Newswires in the training split; the rest are the test split.
        words: The word behind each id; length is the vocabulary size.
        class_names: Name of each class.
    """

    name: Dataset
    title: str
    tokens: NDArray[np.int32]
    offsets: NDArray[np.int64]
    labels: NDArray[np.int32]
    train_size: int
    words: Sequence[str]
    class_names: Sequence[str]

    @property
    def is_synthetic(self) -> bool:
        """True for generated text that stands in for real newswires."""
        return self.name == "synthetic"

    @property
    def vocabulary(self) -> int:
        """Number of different word ids, special ones included."""
        return len(self.words)

    @cached_property
    def ids(self) -> dict[str, int]:
        """The id of each word that has one, special ones left out."""
        special = self.words[: UNKNOWN + 1]
        return {word: i for i, word in enumerate(self.words) if word not in special and word != UNUSED}

    def rows(self, split: Split) -> range:
        """Indices of a split's newswires."""
        return range(self.train_size) if split == "train" else range(self.train_size, len(self.labels))

    def split_labels(self, split: Split) -> NDArray[np.int32]:
        """Classes of a split, int32, shape (examples,)."""
        rows = self.rows(split)
        return self.labels[rows.start : rows.stop]

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        """Word ids of every newswire, shape (examples of both splits,)."""
        return np.diff(self.offsets)

    def sequence(self, row: int) -> NDArray[np.int32]:
        """Word ids of one newswire, int32, shape (length,)."""
        return self.tokens[self.offsets[row] : self.offsets[row + 1]]

    def text(self, row: int) -> str:
        """One newswire in words; the start mark is left out, unknown words are ``<unk>``."""
        return self.decode(self.sequence(row))

    def decode(self, ids: NDArray[np.int32]) -> str:
        """Word ids in words; padding and start marks are left out."""
        return " ".join(self.words[i] for i in ids.tolist() if i not in (PADDING, START))

    def padded(self, split: Split, max_len: int) -> NDArray[np.int32]:
        """A split's sequences at one length, int32, shape (examples, max_len).

        Short ones are padded with 0 in front and long ones keep their end, as
        ``keras.utils.pad_sequences`` does by default (Keras 3.15).
        """
        rows = self.rows(split)
        out = np.zeros((len(rows), max_len), np.int32)
        for at, row in enumerate(rows):
            ids = self.sequence(row)[-max_len:]
            out[at, max_len - len(ids) :] = ids
        return out


def folder(home: Path) -> Path:
    """Where prepared datasets are kept under the store's folder."""
    return home / "datasets"


def path(home: Path, name: Dataset) -> Path:
    """The Parquet file of a prepared dataset."""
    return folder(home) / f"{name}.parquet"


def save(corpus: Corpus, home: Path) -> Path:
    """Writes a corpus so that readers see the old one or the new one, never half of one.

    Returns:
        The Parquet file: columns ``tokens``, ``label``, ``split``; words and names in its metadata.
    """
    about = {
        "name": corpus.name,
        "title": corpus.title,
        "train_size": corpus.train_size,
        "words": list(corpus.words),
        "class_names": list(corpus.class_names),
    }
    split = np.repeat(["train", "test"], [corpus.train_size, len(corpus.labels) - corpus.train_size])
    table = pa.table(
        {
            "tokens": pa.ListArray.from_arrays(
                pa.array(corpus.offsets, pa.int32()), pa.array(corpus.tokens, pa.int32())
            ),
            "label": pa.array(corpus.labels, pa.int32()),
            "split": pa.array(split).dictionary_encode(),
        }
    ).replace_schema_metadata({"mirrorboard": json.dumps(about)})
    target = path(home, corpus.name)
    with replacing(target) as aside:
        pq.write_table(table, aside, compression="zstd")
    return target


def load(home: Path, name: Dataset) -> Corpus:
    """Reads a prepared corpus.

    Raises:
        DatasetError: It is not there, or cannot be read.
    """
    source = path(home, name)
    if not source.exists():
        raise DatasetError(f"The dataset {name} is not prepared.", "Prepare it on the page Data preview.")
    try:
        # Not `pq.read_table`, which imports pandas and pyarrow's datasets first (pyarrow 26).
        with pq.ParquetFile(source) as file:
            table = file.read()
        about: dict[str, Any] = json.loads((table.schema.metadata or {})[b"mirrorboard"])
        tokens = table["tokens"].combine_chunks()
        return Corpus(
            name=about["name"],
            title=about["title"],
            tokens=tokens.values.to_numpy(),
            offsets=tokens.offsets.to_numpy().astype(np.int64),
            labels=table["label"].to_numpy(),
            train_size=about["train_size"],
            words=about["words"],
            class_names=about["class_names"],
        )
    except (OSError, KeyError, ValueError, pa.ArrowException) as error:
        raise DatasetError(
            f"The prepared dataset {source} cannot be read ({error}).",
            "Delete the file; it is prepared again when it is next needed.",
        ) from error
