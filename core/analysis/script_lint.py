"""The classic mistakes in somebody's own training script. It is read, never run."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import replace

from core.analysis.lint import Finding, colab_tpu_addr, softmax_from_logits, validation_on_test
from core.analysis.script_syntax import Call, Script, name_of, parse_script, text_of, where
from core.corpus import CLASSES, VOCABULARY
from core.errors import ConfigError

_PROBABILITY_LOSSES = {"sparse_categorical_crossentropy", "categorical_crossentropy"}
_LOSS_CLASSES = {"SparseCategoricalCrossentropy", "CategoricalCrossentropy"} | _PROBABILITY_LOSSES
_SCOPED = {"Sequential", "Model", "compile"}
_TEST = re.compile("(?<!la)test", re.IGNORECASE)
"""In the name of a test set, such as ``x_test``; not in ``latest``."""
_OPTIMIZERS = ("Nadam", "Adam", "AdamW", "SGD", "RMSprop", "Adagrad", "Adadelta", "Adamax", "Ftrl", "Lion")
_RATE_NAMES = ("learning_rate", "lr")
_ACTIVATION_AT: dict[str, int | None] = {"Dense": 1, "Activation": 0, "Softmax": None}
"""Layers that a classifier may end with, and the place of their activation among the arguments."""


def check_script(source: str) -> list[Finding]:
    """Looks for the classic mistakes in a script or notebook, by the line.

    Names are followed through plain assignments; what a script computes at run time stays unknown, and
    about what is unknown nothing is claimed.

    Args:
        source: Python, or a notebook's JSON.

    Returns:
        Findings, the first line first.

    Raises:
        ConfigError: It is no Python, or too long.
    """
    try:
        script = parse_script(source)
        return [_placed(found, script) for found in sorted(_findings(script), key=lambda one: one.line or 0)]
    except RecursionError:
        raise ConfigError(
            "The script is nested too deeply to be read.", "Give the part that trains."
        ) from None


def _placed(finding: Finding, script: Script) -> Finding:
    assert finding.line is not None
    line, cell = script.place(finding.line)
    return replace(finding, line=line, cell=cell)


def _findings(script: Script) -> Iterator[Finding]:
    """All that is wrong."""
    yield from (colab_tpu_addr(line) for line in script.colab)
    yield from (_frozen_order(line) for line in script.frozen)
    yield from _loss(script)
    yield from _validation(script)
    yield from _devices(script)
    yield from _scope(script)
    yield from _learning_rate(script)
    yield from _ids(script)


def _loss(script: Script) -> Iterator[Finding]:
    last = _last_layer(script)
    if last is None:
        return
    activation = last.argument("activation", _ACTIVATION_AT[last.name])
    softmax = last.name == "Softmax" or _is_softmax(activation)
    is_linear = last.name == "Dense" and activation is None and not last.unpacks and not script.of("softmax")
    for call in script.of("compile", *_LOSS_CLASSES):
        # Classes take it first of all, functions third and by name (Keras 3.15).
        logits = call.argument("from_logits", 0 if call.name[:1].isupper() else None)
        from_logits = isinstance(logits, ast.Constant) and logits.value is True
        loss = call.argument("loss", 1) if call.name == "compile" else None
        takes_probabilities = (call.name in _LOSS_CLASSES and logits is None and not call.unpacks) or (
            isinstance(loss, ast.Constant) and loss.value in _PROBABILITY_LOSSES
        )
        if softmax and from_logits:
            yield softmax_from_logits(call.line)
        if is_linear and takes_probabilities:
            yield Finding(
                "logits-with-a-probability-loss",
                "The last layer gives logits, but the loss expects probabilities.",
                "The loss clips what is below 0 and above 1, so most of its gradient is lost.",
                "Known effect: the loss starts high, jumps about and hardly falls.",
                'Give the last layer activation="softmax", or the loss from_logits=True.',
                call.line,
            )


def _last_layer(script: Script) -> Call | None:
    layers = script.of(*_ACTIVATION_AT)
    return max(layers, key=lambda call: (call.line, call.node.col_offset), default=None)


def _validation(script: Script) -> Iterator[Finding]:
    fits = script.of("fit")
    for call in fits:
        data = call.argument("validation_data")
        if data is not None and any(map(_TEST.search, script.names_in(data))):
            yield validation_on_test(call.line)
    validated = any(call.argument("validation_data") or call.argument("validation_split") for call in fits)
    unpacked = any(call.unpacks for call in fits)
    for call in script.of("EarlyStopping"):
        monitor = call.argument("monitor", 0)
        name = "val_loss" if monitor is None else text_of(monitor)
        if fits and not validated and not unpacked and name.startswith("val_"):
            yield Finding(
                "early-stopping-without-validation",
                f"EarlyStopping watches {name}, but fit gets no validation data.",
                "Keras only warns in its log, and trains all epochs.",
                "Known effect: training never stops early, and overfits unseen.",
                "Give fit validation_data or validation_split.",
                call.line,
            )


def _devices(script: Script) -> Iterator[Finding]:
    limits = [
        call
        for call in script.of("LogicalDeviceConfiguration", "VirtualDeviceConfiguration")
        if call.argument("memory_limit", 0) is not None
    ]
    for call in script.of("set_memory_growth") if limits else []:
        yield Finding(
            "memory-growth-with-limits",
            "Memory growth and a memory limit are both set.",
            "TensorFlow takes one of the two for a GPU.",
            "It ends in ValueError: Cannot set memory growth on device when virtual devices configured.",
            f"Leave out this line, or the limit in {where(*script.place(limits[0].line))}.",
            call.line,
        )
    batches = [size for call in script.of("batch") if (size := script.number(call.argument("batch_size", 0)))]
    for call in script.of("MirroredStrategy"):
        devices = call.argument("devices", 0)
        replicas = len(devices.elts) if isinstance(devices, ast.List | ast.Tuple) else 0
        if batches and min(batches) < replicas:
            yield Finding(
                "batch-smaller-than-replicas",
                f"A batch of {min(batches)} is smaller than the {replicas} replicas.",
                "It is the global batch, which the replicas share: some get no row.",
                "Keras 3.15 fails on the first batch: Inputs to operation AddN must have the same shape.",
                f"Take a multiple of {replicas}.",
                call.line,
            )


def _scope(script: Script) -> Iterator[Finding]:
    if not script.of("MirroredStrategy", "TPUStrategy"):
        return
    inside = {call.name for call in script.calls if call.scoped}
    while more := {call.name for call in script.calls if call.function in inside} - inside:
        inside |= more
    outside = [
        call
        for call in script.of(*_SCOPED)
        if not call.scoped and call.function not in inside and not _is_pythons_compile(call.node)
    ]
    if outside:
        first = min(outside, key=lambda call: call.line)
        yield Finding(
            "model-outside-the-scope",
            "A strategy is made, but the model is built or compiled outside its scope.",
            "Only variables made inside strategy.scope() are copied to every replica.",
            "Built outside but compiled inside, it ends in a bare AssertionError; both outside, it trains"
            " on one device in silence (Keras 3.15).",
            "Move building and compiling the model under with strategy.scope():.",
            first.line,
        )


def _learning_rate(script: Script) -> Iterator[Finding]:
    def scaled(node: ast.AST) -> bool:
        return any(
            isinstance(part, ast.Attribute) and part.attr == "num_replicas_in_sync" for part in ast.walk(node)
        )

    batch = next(
        (value for name, value in script.values.items() if "batch" in name.lower() and scaled(value)), None
    )
    if batch is None:
        return
    rates = [call.argument("learning_rate", 0) for call in script.of(*_OPTIMIZERS)]
    rates += [value for name, value in script.values.items() if name.lower() in _RATE_NAMES]
    if any(rate is not None and not isinstance(rate, ast.Constant | ast.Name) for rate in rates):
        return
    yield Finding(
        "learning-rate-not-scaled",
        "The batch grows with the replicas, the learning rate does not.",
        "An epoch then has fewer updates, and each goes only as far as before.",
        "Measured on Reuters with Nadam: eight times the batch at the same rate takes about three times"
        " as many epochs to its best validation loss.",
        "Multiply the learning rate by strategy.num_replicas_in_sync as well (Goyal and others, 2017).",
        batch.lineno,
    )


def _ids(script: Script) -> Iterator[Finding]:
    loads = [call for call in script.of("load_data") if "reuters" in ast.unparse(call.node.func).lower()]
    if not loads:
        return
    asked = loads[0].argument("num_words", 1)
    words = VOCABULARY if asked is None else script.number(asked)
    for call in script.of("Embedding"):
        size = script.number(call.argument("input_dim", 0))
        if size is not None and words is not None and size < words:
            yield Finding(
                "ids-out-of-range",
                f"The embedding has {size:,} rows, but word ids go up to {words - 1:,}.",
                "A CPU stops with an error; a GPU reads zeros and trains on them in silence.",
                "Rare words beyond the table are lost, or the run fails in its first epoch.",
                f"Make it {words:,}, or load fewer words with num_words={size}.",
                call.line,
            )
    last = _last_layer(script)
    units = script.number(last.argument("units", 0)) if last is not None and last.name == "Dense" else None
    if last is not None and units is not None and units < CLASSES:
        yield Finding(
            "ids-out-of-range",
            f"The last layer has {units} units, but Reuters has {CLASSES} classes.",
            "A label beyond the last unit has no probability.",
            "A CPU stops with an error; on a GPU the loss becomes NaN.",
            f"Give it {CLASSES} units.",
            last.line,
        )


def _frozen_order(line: int) -> Finding:
    return Finding(
        "shuffle-before-cache",
        "The dataset is shuffled and then cached.",
        "The cache keeps the order of the first epoch, so every later epoch repeats it.",
        "Known effect: batches hold the same rows in every epoch, as if nothing were shuffled.",
        "Cache first, then shuffle.",
        line,
    )


def _is_pythons_compile(node: ast.Call) -> bool:
    """True for the built-in ``compile`` and that of regular expressions."""
    if isinstance(node.func, ast.Attribute):
        return isinstance(node.func.value, ast.Name) and node.func.value.id in ("re", "regex")
    return name_of(node) == "compile"


def _is_softmax(node: ast.expr | None) -> bool:
    if isinstance(node, ast.Constant):
        return node.value == "softmax"
    return node is not None and name_of(node) == "softmax"
