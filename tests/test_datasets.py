"""The synthetic newswires, and the numbers about a dataset."""

from __future__ import annotations

import hashlib
import time
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from core import corpus as corpora
from core.analysis.dataset import class_balance, length_histogram, padding, shards
from core.corpus import START, Corpus, Split
from core.engine import synthetic
from core.synthetic_newswires import TEST_COUNTS, TRAIN_COUNTS

lengths_of_sequences = st.lists(st.integers(1, 5_000), min_size=1, max_size=200).map(
    lambda values: np.array(values, np.int64)
)


@pytest.fixture(scope="module")
def newswires() -> Corpus:
    """The synthetic newswires that people see."""
    return synthetic.generate()


def test_generates_the_same_newswires_everywhere(newswires: Corpus) -> None:
    digest = hashlib.sha256(newswires.tokens.astype("<i4").tobytes())
    digest.update(newswires.labels.astype("<i4").tobytes())
    digest.update(" ".join(newswires.words).encode())
    assert digest.hexdigest() == "4659140e27c4723c842297297886b381ed1229b99e90528f785bea9e5fb924ea"


def test_another_seed_gives_other_newswires_of_the_same_shape(newswires: Corpus) -> None:
    other = synthetic.generate(seed=2)
    assert not np.array_equal(other.tokens[:1_000], newswires.tokens[:1_000])
    assert not np.array_equal(other.labels, newswires.labels)
    assert np.array_equal(np.sort(other.lengths), np.sort(newswires.lengths))


def test_generates_in_under_two_seconds() -> None:
    start = time.process_time()
    synthetic.generate()
    assert time.process_time() - start < 2


def test_synthetic_newswires_are_named_synthetic(newswires: Corpus) -> None:
    assert newswires.is_synthetic
    assert newswires.title == "Synthetic newswires (generated)"
    assert newswires.class_names[0] == "synthetic topic 01"
    assert newswires.class_names[-1] == "synthetic topic 46"


def test_synthetic_newswires_have_the_sizes_of_reuters(newswires: Corpus) -> None:
    assert (len(newswires.rows("train")), len(newswires.rows("test"))) == (8_982, 2_246)
    assert newswires.vocabulary == len(set(newswires.words)) == 30_982
    assert newswires.tokens.dtype == newswires.labels.dtype == np.int32
    assert newswires.tokens.min() == START
    assert newswires.tokens.max() < 30_982
    assert (newswires.tokens == START).sum() == 11_228
    assert all(newswires.tokens[newswires.offsets[:-1]] == START)


def test_synthetic_classes_are_as_frequent_as_in_reuters(newswires: Corpus) -> None:
    train, test = (class_balance(newswires.split_labels(split), 46) for split in get_args(Split))
    assert train.counts.tolist() == list(TRAIN_COUNTS)
    assert test.counts.tolist() == list(TEST_COUNTS)


def test_classes_are_mixed_within_a_split(newswires: Corpus) -> None:
    # A validation set of other classes than the training set's is what sorted data would give.
    train = newswires.split_labels("train")
    for part in np.array_split(train, 10):
        assert 0.3 < (part == 3).mean() < 0.4


def test_synthetic_lengths_are_those_of_reuters(newswires: Corpus) -> None:
    lengths = newswires.lengths[: newswires.train_size]
    assert np.median(lengths) == pytest.approx(95, abs=1)
    assert padding(lengths, 300).truncated_share == pytest.approx(0.110, abs=0.0005)
    assert lengths.mean() == pytest.approx(146, rel=0.1)


def test_synthetic_vocabulary_is_zipf_like(newswires: Corpus) -> None:
    counts = np.sort(np.bincount(newswires.tokens, minlength=newswires.vocabulary))[::-1]
    # Zipf: the logarithm of the frequency falls about one for one with the logarithm of the rank.
    ranks = np.arange(20, 5_000)
    slope = np.polyfit(np.log(ranks), np.log(counts[ranks]), 1)[0]
    assert -1.4 < slope < -0.8
    assert (counts > 0).sum() > 28_000


def test_topics_have_words_of_their_own(newswires: Corpus) -> None:
    # What a model can learn: some words are far more frequent in one class than in the others.
    train = newswires.train_size
    in_class = np.repeat(newswires.labels[:train] == 16, newswires.lengths[:train])
    tokens = newswires.tokens[: len(in_class)]
    inside = np.bincount(tokens[in_class], minlength=newswires.vocabulary) / in_class.sum()
    outside = np.bincount(tokens[~in_class], minlength=newswires.vocabulary) / (~in_class).sum()
    assert (inside > 10 * np.maximum(outside, 1e-5)).sum() >= 20


def test_a_saved_corpus_comes_back_equal(newswires: Corpus, home: Path) -> None:
    corpora.save(newswires, home)
    loaded = corpora.load(home, "synthetic")
    for name in ("tokens", "offsets", "labels"):
        assert np.array_equal(getattr(loaded, name), getattr(newswires, name))
        assert getattr(loaded, name).dtype == getattr(newswires, name).dtype
    for name in ("name", "title", "train_size", "words", "class_names"):
        assert getattr(loaded, name) == getattr(newswires, name)


def test_class_balance() -> None:
    balance = class_balance(np.array([2, 0, 2, 2, 0, 4, 2, 2], np.int32), 6)
    assert balance.counts.tolist() == [2, 0, 5, 0, 1, 0]
    assert balance.majority == 2
    assert balance.majority_share == 5 / 8
    assert balance.imbalance == 5
    assert balance.missing == [1, 3, 5]


@given(lengths_of_sequences)
def test_every_length_is_in_its_bin(lengths: NDArray[np.int64]) -> None:
    histogram = length_histogram(lengths)
    stops = [*histogram.starts[1:], np.inf]
    for start, stop, count in zip(histogram.starts, stops, histogram.counts, strict=True):
        assert count == sum(start <= length < stop for length in lengths)
    assert histogram.counts.sum() == len(lengths)
    assert set(np.diff(histogram.starts)) == {histogram.width}
    assert str(histogram.width).rstrip("0") in {"1", "2", "5"}
    assert len(histogram.counts) <= 42


def test_long_sequences_do_not_press_the_others_together() -> None:
    histogram = length_histogram(np.array([*range(1, 400), 100_000], np.int64))
    assert histogram.width == 10
    assert histogram.starts[-1] == 400
    assert histogram.counts[-1] == 1
    assert histogram.counts[5] == 10


def test_padding() -> None:
    measured = padding(np.array([1, 2, 4, 8], np.int64), 4)
    assert measured.truncated_share == 1 / 4
    assert measured.kept_share == 11 / 15
    assert measured.padding_share == 5 / 16


@given(lengths_of_sequences, st.integers(1, 600))
def test_padding_describes_the_padded_tensor(lengths: NDArray[np.int64], max_len: int) -> None:
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    corpus = Corpus(
        name="synthetic",
        title="",
        tokens=np.ones(offsets[-1], np.int32),
        offsets=offsets,
        labels=np.zeros(len(lengths), np.int32),
        train_size=len(lengths),
        words=["<pad>", "<start>"],
        class_names=["one"],
    )
    tensor = corpus.padded("train", max_len)
    measured = padding(lengths, max_len)
    assert measured.padding_share == pytest.approx((tensor == 0).mean())
    assert measured.kept_share == pytest.approx(tensor.sum() / lengths.sum())
    assert (measured.truncated_share == 0) == (tensor.sum() == lengths.sum())


@given(st.integers(0, 300), st.integers(1, 16))
def test_shards_share_every_row_once_and_in_order(global_batch: int, replicas: int) -> None:
    cut = shards(global_batch, replicas)
    assert len(cut) == replicas
    assert [row for shard in cut for row in shard] == list(range(global_batch))
    if global_batch % replicas == 0:
        assert {len(shard) for shard in cut} == {global_batch // replicas}


def test_shards_of_a_batch_that_cannot_be_shared_evenly() -> None:
    assert shards(32, 2) == [range(16), range(16, 32)]
    assert [len(shard) for shard in shards(22, 4)] == [6, 6, 6, 4]
    assert [len(shard) for shard in shards(5, 4)] == [2, 2, 1, 0]
