"""A script or notebook as the linter sees it: its calls, what names were given, and where things stand."""

from __future__ import annotations

import ast
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from core.analysis.notebook_cells import code_cells, without_magics
from core.errors import ConfigError

MAX_BYTES = 200_000
"""Longest code that is read."""
_MAX_FILE = 50_000_000
"""Longest file: a notebook holds its pictures, too."""


def read_script(path: Path) -> str:
    """The text of a script's or notebook's file.

    Raises:
        ConfigError: It cannot be read, or is no text.
    """
    try:
        with tokenize.open(path) as file:
            return file.read(_MAX_FILE + 1)
    except (OSError, SyntaxError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}.", "Give a Python script or a notebook.") from None


def parse_script(source: str) -> Script:
    """Reads a script, or a notebook's JSON, from top to bottom.

    Raises:
        ConfigError: It is no Python, or too long.
        RecursionError: It is nested too deeply.
    """
    cells = code_cells(source)
    parts = [source] if cells is None else cells
    size = sum(len(part.encode(errors="replace")) for part in parts)
    if size > MAX_BYTES:
        raise ConfigError(
            f"The script has {size:,} bytes; up to {MAX_BYTES:,} are read.", "Give the part that trains."
        )
    script = Script(cells)
    above = 0
    for number, part in enumerate(parts, 1):
        tree = _parse(part, None if cells is None else number)
        ast.increment_lineno(tree, above)
        script.visit(tree)
        above += part.count("\n") + 1
    return script


def _parse(source: str, cell: int | None) -> ast.Module:
    try:
        try:
            return ast.parse(source)
        except SyntaxError:
            if cell is None:
                raise
            # Only now: a line that begins with % may also go on with an expression.
            return ast.parse(without_magics(source))
    except SyntaxError as error:
        raise ConfigError(
            f"{where(error.lineno or 1, cell).capitalize()} is not Python: {error.msg}.",
            "Lines that begin with ! or % belong to notebooks; leave them out, or give the whole notebook."
            if cell is None
            else "Correct the cell, or leave it out.",
        ) from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise ConfigError(f"The script cannot be read: {error}.", "Give plain Python text.") from None


def where(line: int, cell: int | None) -> str:
    """A line in words, such as ``line 3 of code cell 2``."""
    return f"line {line}" if cell is None else f"line {line} of code cell {cell}"


@dataclass
class Call:
    """A call: the last part of what is called, and where it stands."""

    name: str
    node: ast.Call
    scoped: bool
    """Whether it stands under ``with strategy.scope():``."""
    function: str
    """The function that it is part of, if any."""

    @property
    def line(self) -> int:
        """Where it begins, from 1."""
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
class Script(ast.NodeVisitor):
    """What is read off a script from top to bottom; the last value that a name was given counts."""

    cells: list[str] | None = None
    """Of a notebook; everything has the line that it would have were they one script."""
    calls: list[Call] = field(default_factory=list)
    values: dict[str, ast.expr] = field(default_factory=dict)
    """What names were last given."""
    frozen: list[int] = field(default_factory=list)
    """Lines where a shuffled dataset is cached."""
    colab: list[int] = field(default_factory=list)
    """Lines that name the variable COLAB_TPU_ADDR."""
    _steps: dict[str, list[str]] = field(default_factory=dict)
    """Methods that made the dataset a name stands for."""
    _scopes: int = 0
    _functions: list[str] = field(default_factory=list)

    def visit_Constant(self, node: ast.Constant) -> None:
        """Looks for the variable of old notebooks."""
        if node.value in ("COLAB_TPU_ADDR", "grpc://COLAB_TPU_ADDR"):
            self.colab.append(node.lineno)

    def visit_Assign(self, node: ast.Assign) -> None:
        """Remembers what a name is given."""
        self.generic_visit(node)
        for target in node.targets:
            if isinstance(target, ast.Name):
                self._steps[target.id] = self._methods(node.value)
                self.values[target.id] = node.value

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        """Knows that what follows is part of a function."""
        self._functions.append(node.name)
        self.generic_visit(node)
        self._functions.pop()

    def visit_With(self, node: ast.With) -> None:
        """Knows whether what follows is in a strategy's scope."""
        scopes = sum(name_of(item.context_expr) == "scope" for item in node.items)
        self._scopes += scopes
        self.generic_visit(node)
        self._scopes -= scopes

    def visit_Call(self, node: ast.Call) -> None:
        """Keeps the call."""
        name = name_of(node)
        function = self._functions[-1] if self._functions else ""
        self.calls.append(Call(name, node, self._scopes > 0, function))
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

    def place(self, line: int) -> tuple[int, int | None]:
        """Where people find a line: its number in its cell, and the cell, which a script has none of."""
        for number, cell in enumerate(self.cells or (), 1):
            lines = cell.count("\n") + 1
            if line <= lines:
                return line, number
            line -= lines
        return line, None

    def of(self, *names: str) -> list[Call]:
        """The calls of these, whatever they are attributes of."""
        return [call for call in self.calls if call.name in names]

    def number(self, node: ast.expr | None) -> int | None:
        """A whole number, written out or behind a name."""
        if isinstance(node, ast.Name):
            node = self.values.get(node.id)
        return node.value if isinstance(node, ast.Constant) and type(node.value) is int else None

    def names_in(self, node: ast.expr) -> Iterator[str]:
        """Names in an expression, and in what they were last given."""
        for part in ast.walk(node):
            if isinstance(part, ast.Name):
                yield part.id
                behind = self.values.get(part.id)
                if behind is not None and behind is not node:
                    yield from (inner.id for inner in ast.walk(behind) if isinstance(inner, ast.Name))


def name_of(node: ast.expr) -> str:
    """The last part of what is called or named."""
    if isinstance(node, ast.Call):
        node = node.func
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def text_of(node: ast.expr | None) -> str:
    """What a text constant says."""
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
