"""A notebook's code, as somebody else has saved it: its cells, and what in them is not Python but IPython."""

from __future__ import annotations

import json
import re

from core.errors import ConfigError

_PYTHON_MAGICS = ("capture", "prun", "time", "timeit")
"""Magics of a whole cell whose other lines are Python."""
_CELL_MAGIC = re.compile(r"\s*%%(\w+)")
_LINE_MAGIC = re.compile(
    r"^([ \t]*)(?:%{1,2}\w|[!?](?!=)|\w[\w, ]*=[ \t]*(?:!|%\w)|\w[\w.]*\?{1,2}[ \t]*$)(?:.*\\\n)*.*$",
    re.MULTILINE,
)


def code_cells(text: str) -> list[str] | None:
    """The code of a notebook, cell by cell; None for a text that is no JSON, such as a script.

    Raises:
        ConfigError: It is JSON, but no notebook. Python would take most JSON for an expression.
    """
    if text.lstrip()[:1] not in ("{", "["):
        return None
    try:
        saved = json.loads(text)
    except (ValueError, RecursionError):
        return None
    try:
        cells = ["".join(cell["source"]) for cell in saved["cells"] if cell["cell_type"] == "code"]
    except (KeyError, TypeError):
        raise ConfigError(
            "This is JSON, but not a notebook with cells (nbformat 4).",
            "Give a Python script, or a notebook as Jupyter, Colab or VS Code saves it.",
        ) from None
    return [re.sub(r"\r\n?", "\n", cell) for cell in cells]


def without_magics(cell: str) -> str:
    """A cell with nothing in the place of its magics and shell commands; no line changes its number."""
    magic = _CELL_MAGIC.match(cell)
    if magic and magic[1] not in _PYTHON_MAGICS:
        return "\n" * cell.count("\n")
    return _LINE_MAGIC.sub(lambda found: f"{found[1]}pass" + "\n" * found[0].count("\n"), cell)
