"""The classic mistakes in a configuration, each with what it does: findings never forbid a start."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from core.analysis.dataset import class_balance
from core.analysis.verdict import double_softmax_floor
from core.config import DEFAULT_LEARNING_RATE, RunConfig
from core.corpus import CLASSES, Corpus, Split
from core.words import plural

CHAPTERS_BATCH = 32
"""Rows of the global batch that Keras's default learning rates suit here: the chapter's."""
_WORTH_SCALING = 2.0
"""How many times the chapter's batch is large enough to speak of the learning rate."""


@dataclass(frozen=True)
class Finding:
    """One mistake.

    Attributes:
        rule: Which, such as ``softmax-from-logits``.
        what: What is wrong, in a sentence.
        why: Why that matters.
        effect: What it was measured to do here, or is known to do.
        remedy: What to do.
        line: Where in a script, or in the cell of a notebook, from 1; None for a configuration.
        settings: Settings by dotted name that put it right; empty where there is no single answer.
        cell: Which of a notebook's code cells, from 1.
    """

    rule: str
    what: str
    why: str
    effect: str
    remedy: str
    line: int | None = None
    settings: tuple[tuple[str, Any], ...] = ()
    cell: int | None = None

    def to_json(self) -> dict[str, Any]:
        """The fields by name."""
        return asdict(self) | {"settings": dict(self.settings)}


def check_config(config: RunConfig, corpus: Corpus | None = None) -> list[Finding]:
    """Looks for the classic mistakes.

    What TensorFlow would crash on, such as memory growth beside a memory limit, is refused by `RunConfig`
    itself.

    Args:
        config: What is about to be trained.
        corpus: Its prepared dataset, if there is one already.
    """
    found = [
        *_softmax(config, len(corpus.class_names) if corpus else CLASSES),
        *_batch(config),
        *_learning_rate(config),
        *_selection(config),
        *_tpu(config),
    ]
    return found + _data(corpus) if corpus else found


def softmax_from_logits(line: int | None = None, *, classes: int = CLASSES) -> Finding:
    """The chapter's own: a softmax whose probabilities the loss takes for logits.

    Args:
        line: Where in a script.
        classes: Number of classes, for the figure.
    """
    return Finding(
        "softmax-from-logits",
        "The last layer is a softmax, but the loss is told to expect logits.",
        "Softmax would be applied twice: even a certain answer keeps a loss far from 0, gradients shrink.",
        f"Where it bites, the loss cannot fall below ln(1 + (C − 1)/e) = {double_softmax_floor(classes):.3f}"
        f" for {classes} classes. Keras 3.15 looks for the logits behind a softmax layer and saves single"
        " precision from it; in double precision, and in other versions, it bites.",
        "Leave from_logits out, or drop the softmax.",
        line,
        () if line else (("model.from_logits", False),),
    )


def _softmax(config: RunConfig, classes: int) -> list[Finding]:
    return [softmax_from_logits(classes=classes)] if config.model.from_logits else []


def _batch(config: RunConfig) -> list[Finding]:
    wanted, replicas = config.training.batch_size, config.layout.replicas
    if wanted >= replicas:
        return []
    return [
        Finding(
            "batch-smaller-than-replicas",
            f"A global batch of {plural(wanted, 'row')} is smaller than the {replicas} replicas.",
            "Each replica needs a row of every batch; a plain Keras script fails on the first one.",
            f"Here the batch becomes {config.global_batch_size}: one row for each replica, so that a step is"
            " nearly all waiting for the others.",
            f"Take at least {replicas}; {CHAPTERS_BATCH} is the chapter's.",
            settings=(("training.batch_size", CHAPTERS_BATCH),),
        )
    ]


def _learning_rate(config: RunConfig) -> list[Finding]:
    usual = DEFAULT_LEARNING_RATE[config.model.optimizer]
    times = config.global_batch_size / CHAPTERS_BATCH
    if times < _WORTH_SCALING or not math.isclose(config.learning_rate, usual):
        return []
    scaled = float(f"{usual * times:.3g}")
    return [
        Finding(
            "learning-rate-not-scaled",
            f"The global batch is {times:g} times the chapter's, the learning rate still {usual:g}.",
            f"An epoch has {times:g} times fewer updates; unscaled, each still goes only as far.",
            "Measured on Reuters with Nadam, two seeds: a batch of 256 at 0.001 takes 6 epochs to its best"
            " validation loss of 1.59, at 0.008 it takes 2 to 1.55, as the chapter's batch does to 1.49.",
            f"The linear rule (Goyal and others, 2017) makes it {scaled:g}; watch the first epochs, it can be"
            " too much.",
            settings=(("training.learning_rate", scaled),),
        )
    ]


def validation_on_test(line: int | None = None) -> Finding:
    """Choosing an epoch by the data that is to judge it."""
    return Finding(
        "validation-on-the-test-set",
        "Training is stopped by the test set."
        if line is None
        else "The data called test is the validation data.",
        "The epoch that is kept is the one that happens to suit these newswires best; its figures no longer"
        " tell how the model does on new ones.",
        "Known effect: a little too good, the more epochs and settings are tried the more. The chapter does"
        " so too, as Reuters comes in two parts only.",
        "Keep a third part apart for the last word, or take the best figures with a grain of salt.",
        line,
    )


def _selection(config: RunConfig) -> list[Finding]:
    return [validation_on_test()] if config.training.patience is not None else []


def colab_tpu_addr(line: int | None = None) -> Finding:
    """The variable that old notebooks find their TPU by."""
    return Finding(
        "colab-tpu-addr",
        "COLAB_TPU_ADDR is asked for.",
        "Colab gave up that variable with its old TPU nodes; today's TPU is in the machine itself.",
        "A script ends in KeyError: 'COLAB_TPU_ADDR'; as an address it is nobody's.",
        'Give "local" as the TPU.',
        line,
        () if line else (("layout.tpu", "local"),),
    )


def _tpu(config: RunConfig) -> list[Finding]:
    asked = config.layout.strategy == "tpu" and "COLAB_TPU_ADDR" in config.layout.tpu.upper()
    return [colab_tpu_addr()] if asked else []


def _data(corpus: Corpus) -> list[Finding]:
    classes = len(corpus.class_names)
    outside = [
        *_outside("class", corpus.labels, classes),
        *_outside("word id", corpus.tokens, corpus.vocabulary),
    ]
    return outside or [
        *_missing(corpus, "train", "is in no newswire to learn from", "It cannot be learnt."),
        *_missing(corpus, "test", "is in no newswire to validate with", "It cannot be judged."),
    ]


def _outside(what: str, values: NDArray[np.int32], limit: int) -> list[Finding]:
    low, high = int(values.min()), int(values.max())
    if low >= 0 and high < limit:
        return []
    return [
        Finding(
            "ids-out-of-range",
            f"The data has a {what} of {low if low < 0 else high:,}; only 0 to {limit - 1:,} exist.",
            "A CPU stops with an error; a GPU reads zeros and trains on them in silence.",
            "The engine ends such a run before its first step.",
            "Delete the prepared dataset; it is made anew when it is next needed.",
        )
    ]


def _missing(corpus: Corpus, split: Split, lacks: str, why: str) -> list[Finding]:
    names = corpus.class_names
    missing = class_balance(corpus.split_labels(split), len(names)).missing
    more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
    return (
        [
            Finding(
                "class-missing-from-a-split",
                f"The class {names[missing[0]]}{more} {lacks}.",
                why,
                "The accuracy says nothing of it.",
                "Split so that each class is in both parts (stratified).",
            )
        ]
        if missing
        else []
    )
