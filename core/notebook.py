"""A script with cells as a Jupyter notebook, for Jupyter and Colab."""

from __future__ import annotations

import ast
import re

import nbformat
from nbformat import v4

_CELL = re.compile(r"^# %% (.+)\n((?:# .+\n)*)", re.MULTILINE)
"""Where a cell begins: its heading, and the comment that it begins with."""


def notebook(script: str, accelerator: str | None = None) -> str:
    """Makes a notebook of a script: headings and first comments become text, the rest code.

    Args:
        script: Python whose cells begin with ``# %%`` and a heading, docstring and imports before the first.
        accelerator: ``GPU`` or ``TPU``, which Colab then chooses by itself.

    Returns:
        The notebook file's JSON, of version 4.5.
    """
    head, *parts = _CELL.split(script)
    about = ast.get_docstring(ast.parse(head))
    assert about is not None
    heading, text = about.split("\n", 1)
    imports = head[head.index('"""', 3) + 3 :]
    cells = [v4.new_markdown_cell(f"# {heading}\n{text}"), v4.new_code_cell(imports.strip())]
    for title, comment, code in zip(parts[::3], parts[1::3], parts[2::3], strict=True):
        why = re.sub(r"^# ", "", comment, flags=re.MULTILINE).strip()
        cells.append(v4.new_markdown_cell(f"## {title}\n\n{why}".strip()))
        if code.strip():
            cells.append(v4.new_code_cell(code.strip()))
    for number, cell in enumerate(cells):
        cell["id"] = f"cell-{number}"  # the same file every time
    made = v4.new_notebook(
        cells=cells,
        metadata={
            "kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"},
            "language_info": {"name": "python"},
            "colab": {"provenance": []},
            **({"accelerator": accelerator} if accelerator else {}),
        },
    )
    nbformat.validate(made)
    text_of: str = nbformat.writes(made)
    return text_of + "\n"
