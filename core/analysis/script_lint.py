"""The classic mistakes in somebody's own training script. It is read, never run."""

from __future__ import annotations

import ast
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from core.analysis.lint import Finding, colab_tpu_addr, softmax_from_logits, validation_on_test
from core.errors import ConfigError

MAX_BYTES = 200_000
"""Longest script that is read."""

_REUTERS_WORD_IDS = 30_982
"""Word ids of Reuters as Keras loads it whole: 30,979 words and three special ids."""
_REUTERS_CLASSES = 46
_PROBABILITY_LOSSES = {"sparse_categorical_crossentropy", "categorical_crossentropy"}
_LOSS_CLASSES = {"SparseCategoricalCrossentropy", "CategoricalCrossentropy"} | _PROBABILITY_LOSSES
_SCOPED = {"Sequential", "Model", "compile"}
_TEST = re.compile("(?<!la)test", re.IGNORECASE)
"""In the name of a test set, such as ``x_test``; not in ``latest``."""


def check_script(source: str) -> list[Finding]:
    """Looks for the classic mistakes in a script, by the line.

    Names are followed through plain assignments; what a script computes at run time stays unknown, and
    about what is unknown nothing is claimed.

    Args:
        source: Python.

    Returns:
        Findings, the first line first.

    Raises:
        ConfigError: It is no Python, or too long.
    """
    size = len(source.encode(errors="replace"))
    if size > MAX_BYTES:
        raise ConfigError(
            f"The script has {size:,} bytes; up to {MAX_BYTES:,} are read.", "Give the part that trains."
        )
    try:
        tree = ast.parse(source)
    except SyntaxError as error:
        raise ConfigError(
            f"Line {error.lineno or 1} is not Python: {error.msg}.",
            "Lines that begin with ! or % belong to notebooks; leave them out.",
        ) from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise ConfigError(f"The script cannot be read: {error}.", "Give plain Python text.") from None
    script = _Script()
    try:
        script.visit(tree)
    except RecursionError:
        raise ConfigError(
            "The script is nested too deeply to be read.", "Give the part that trains."
        ) from None
    return sorted(script.findings(), key=lambda finding: finding.line or 0)


def read_script(path: Path) -> str:
    """The text of a script's file.

    Raises:
        ConfigError: It cannot be read, or is no text.
    """
    try:
        with tokenize.open(path) as file:
            return file.read(MAX_BYTES + 1)
    except (OSError, SyntaxError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}.", "Give a Python script.") from None


@dataclass
class _Call:
    """A call: the last part of what is called, and where it stands."""

    name: str
    node: ast.Call
    scoped: bool
    """Whether it stands under ``with strategy.scope():``."""
    function: str
    """The function that it is part of, if any."""

    @property
    def line(self) -> int:
        return self.node.lineno

    @property
    def unpacks(self) -> bool:
        """Whether ``*`` or ``**`` hides what it is given."""
        return any(one.arg is None for one in self.node.keywords) or any(
            isinstance(one, ast.Starred) for one in self.node.args
        )

    def argument(self, keyword: str, place: int | None = None) -> ast.expr | None:
        """An argument by name, or by place."""
        named = next((one.value for one in self.node.keywords if one.arg == keyword), None)
        if named is None and place is not None and len(self.node.args) > place:
            return self.node.args[place]
        return named


@dataclass
class _Script(ast.NodeVisitor):
    """What is read off a script from top to bottom."""

    calls: list[_Call] = field(default_factory=list)
    values: dict[str, ast.expr] = field(default_factory=dict)
    """What names were last given."""
    frozen: list[int] = field(default_factory=list)
    """Lines where a shuffled dataset is cached."""
    colab: list[int] = field(default_factory=list)
    _steps: dict[str, list[str]] = field(default_factory=dict)
    """Methods that made the dataset a name stands for."""
    _scopes: int = 0
    _functions: list[str] = field(default_factory=list)

    def visit_Constant(self, node: ast.Constant) -> None:
        if node.value in ("COLAB_TPU_ADDR", "grpc://COLAB_TPU_ADDR"):
            self.colab.append(node.lineno)

    def visit_Assign(self, node: ast.Assign) -> None:
        self.generic_visit(node)
        for target in node.targets:
            if isinstance(target, ast.Name):
                self._steps[target.id] = self._methods(node.value)
                self.values[target.id] = node.value

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._functions.append(node.name)
        self.generic_visit(node)
        self._functions.pop()

    def visit_With(self, node: ast.With) -> None:
        scopes = sum(_name(item.context_expr) == "scope" for item in node.items)
        self._scopes += scopes
        self.generic_visit(node)
        self._scopes -= scopes

    def visit_Call(self, node: ast.Call) -> None:
        name = _name(node)
        function = self._functions[-1] if self._functions else ""
        self.calls.append(_Call(name, node, self._scopes > 0, function))
        if (
            name == "cache"
            and isinstance(node.func, ast.Attribute)
            and "shuffle" in self._methods(node.func.value)
        ):
            self.frozen.append(node.end_lineno or node.lineno)
        self.generic_visit(node)

    def _methods(self, node: ast.expr) -> list[str]:
        if isinstance(node, ast.Name):
            return self._steps.get(node.id, [])
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            return [*self._methods(node.func.value), node.func.attr]
        return []

    def _of(self, *names: str) -> list[_Call]:
        return [call for call in self.calls if call.name in names]

    def _number(self, node: ast.expr | None) -> int | None:
        """A whole number, written out or behind a name."""
        if isinstance(node, ast.Name):
            node = self.values.get(node.id)
        return node.value if isinstance(node, ast.Constant) and type(node.value) is int else None

    def findings(self) -> Iterator[Finding]:
        """All that is wrong."""
        yield from (colab_tpu_addr(line) for line in self.colab)
        yield from (_frozen_order(line) for line in self.frozen)
        yield from self._loss()
        yield from self._validation()
        yield from self._devices()
        yield from self._scope()
        yield from self._learning_rate()
        yield from self._ids()

    def _loss(self) -> Iterator[Finding]:
        last = self._last_layer()
        if last is None:
            return
        activation = last.argument("activation", _ACTIVATION_AT[last.name])
        softmax = last.name == "Softmax" or _is_softmax(activation)
        is_linear = (
            last.name == "Dense" and activation is None and not last.unpacks and not self._of("softmax")
        )
        for call in self._of("compile", *_LOSS_CLASSES):
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

    def _last_layer(self) -> _Call | None:
        layers = self._of(*_ACTIVATION_AT)
        return max(layers, key=lambda call: (call.line, call.node.col_offset), default=None)

    def _validation(self) -> Iterator[Finding]:
        fits = self._of("fit")
        for call in fits:
            data = call.argument("validation_data")
            if data is not None and any(map(_TEST.search, self._names(data))):
                yield validation_on_test(call.line)
        validated = any(
            call.argument("validation_data") or call.argument("validation_split") for call in fits
        )
        unpacked = any(call.unpacks for call in fits)
        for call in self._of("EarlyStopping"):
            monitor = call.argument("monitor", 0)
            name = "val_loss" if monitor is None else _text(monitor)
            if fits and not validated and not unpacked and name.startswith("val_"):
                yield Finding(
                    "early-stopping-without-validation",
                    f"EarlyStopping watches {name}, but fit gets no validation data.",
                    "Keras only warns in its log, and trains all epochs.",
                    "Known effect: training never stops early, and overfits unseen.",
                    "Give fit validation_data or validation_split.",
                    call.line,
                )

    def _names(self, node: ast.expr) -> Iterator[str]:
        """Names in an expression, and in what they were last given."""
        for part in ast.walk(node):
            if isinstance(part, ast.Name):
                yield part.id
                behind = self.values.get(part.id)
                if behind is not None and behind is not node:
                    yield from (inner.id for inner in ast.walk(behind) if isinstance(inner, ast.Name))

    def _devices(self) -> Iterator[Finding]:
        limits = [
            call
            for call in self._of("LogicalDeviceConfiguration", "VirtualDeviceConfiguration")
            if call.argument("memory_limit", 0) is not None
        ]
        for call in self._of("set_memory_growth") if limits else []:
            yield Finding(
                "memory-growth-with-limits",
                "Memory growth and a memory limit are both set.",
                "TensorFlow takes one of the two for a GPU.",
                "It ends in ValueError: Cannot set memory growth on device when virtual devices configured.",
                f"Leave out this line, or the limit in line {limits[0].line}.",
                call.line,
            )
        batches = [
            size for call in self._of("batch") if (size := self._number(call.argument("batch_size", 0)))
        ]
        for call in self._of("MirroredStrategy"):
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

    def _scope(self) -> Iterator[Finding]:
        if not self._of("MirroredStrategy", "TPUStrategy"):
            return
        inside = {call.name for call in self.calls if call.scoped}
        while more := {call.name for call in self.calls if call.function in inside} - inside:
            inside |= more
        outside = [
            call
            for call in self._of(*_SCOPED)
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

    def _learning_rate(self) -> Iterator[Finding]:
        def scaled(node: ast.AST) -> bool:
            return any(
                isinstance(part, ast.Attribute) and part.attr == "num_replicas_in_sync"
                for part in ast.walk(node)
            )

        batch = next(
            (value for name, value in self.values.items() if "batch" in name.lower() and scaled(value)), None
        )
        if batch is None:
            return
        rates = [call.argument("learning_rate", 0) for call in self._of(*_OPTIMIZERS)]
        rates += [value for name, value in self.values.items() if name.lower() in _RATE_NAMES]
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

    def _ids(self) -> Iterator[Finding]:
        loads = [call for call in self._of("load_data") if "reuters" in ast.unparse(call.node.func).lower()]
        if not loads:
            return
        asked = loads[0].argument("num_words", 1)
        words = _REUTERS_WORD_IDS if asked is None else self._number(asked)
        for call in self._of("Embedding"):
            size = self._number(call.argument("input_dim", 0))
            if size is not None and words is not None and size < words:
                yield Finding(
                    "ids-out-of-range",
                    f"The embedding has {size:,} rows, but word ids go up to {words - 1:,}.",
                    "A CPU stops with an error; a GPU reads zeros and trains on them in silence.",
                    "Rare words beyond the table are lost, or the run fails in its first epoch.",
                    f"Make it {words:,}, or load fewer words with num_words={size}.",
                    call.line,
                )
        last = self._last_layer()
        units = self._number(last.argument("units", 0)) if last is not None and last.name == "Dense" else None
        if last is not None and units is not None and units < _REUTERS_CLASSES:
            yield Finding(
                "ids-out-of-range",
                f"The last layer has {units} units, but Reuters has {_REUTERS_CLASSES} classes.",
                "A label beyond the last unit has no probability.",
                "A CPU stops with an error; on a GPU the loss becomes NaN.",
                f"Give it {_REUTERS_CLASSES} units.",
                last.line,
            )


_OPTIMIZERS = ("Nadam", "Adam", "AdamW", "SGD", "RMSprop", "Adagrad", "Adadelta", "Adamax", "Ftrl", "Lion")
_RATE_NAMES = ("learning_rate", "lr")
_ACTIVATION_AT: dict[str, int | None] = {"Dense": 1, "Activation": 0, "Softmax": None}
"""Layers that a classifier may end with, and the place of their activation among the arguments."""


def _frozen_order(line: int) -> Finding:
    return Finding(
        "shuffle-before-cache",
        "The dataset is shuffled and then cached.",
        "The cache keeps the order of the first epoch, so every later epoch repeats it.",
        "Known effect: batches hold the same rows in every epoch, as if nothing were shuffled.",
        "Cache first, then shuffle.",
        line,
    )


def _name(node: ast.expr) -> str:
    """The last part of what is called or named."""
    if isinstance(node, ast.Call):
        node = node.func
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def _text(node: ast.expr | None) -> str:
    """What a text constant says."""
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def _is_pythons_compile(node: ast.Call) -> bool:
    """True for the built-in ``compile`` and that of regular expressions."""
    if isinstance(node.func, ast.Attribute):
        return isinstance(node.func.value, ast.Name) and node.func.value.id in ("re", "regex")
    return _name(node) == "compile"


def _is_softmax(node: ast.expr | None) -> bool:
    if isinstance(node, ast.Constant):
        return node.value == "softmax"
    return node is not None and _name(node) == "softmax"
