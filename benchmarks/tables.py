"""How every benchmark tells its results: the machine, the command and the rows, as JSON or as a table."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import click
import psutil

README = Path(__file__).with_name("README.md")

Row = Mapping[str, Any]
Columns = Mapping[str, tuple[str, str]]
"""For each key of a row that a table shows: its heading, and the format of its values."""


def machine(*packages: str) -> str:
    """This machine in words: processor, cores, memory, system, and the versions of these packages."""
    memory_gib = psutil.virtual_memory().total / 2**30
    parts = [
        _processor(),
        f"{os.cpu_count()} logical CPUs",
        f"{memory_gib:.0f} GiB",
        f"{platform.system()} {platform.release().split('-')[0]}",
        f"Python {platform.python_version()}",
        *(f"{package} {version(package)}" for package in packages),
    ]
    return ", ".join(parts)


def _processor() -> str:
    """The processor's name; only Linux's /proc tells it there."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def publish(
    name: str,
    rows: Sequence[Row],
    columns: Columns,
    *,
    packages: Sequence[str],
    as_json: bool,
    write: bool,
) -> None:
    """Prints a benchmark's results, and keeps them in benchmarks/README.md when asked to.

    Args:
        name: The benchmark's module; its part of the README stands between two comments with this name.
        rows: The results.
        columns: What a table shows of them.
        packages: Whose versions belong to the results.
        as_json: Print one JSON object instead of a table.
        write: Put the table into the README.
    """
    here = machine(*packages)
    command = " ".join(["python -m", f"benchmarks.{name}", *(a for a in sys.argv[1:] if a != "--write")])
    table = markdown(rows, columns)
    if as_json:
        results = {"machine": here, "command": command, "rows": rows}
        click.echo(json.dumps(results, allow_nan=False, indent=2))
    else:
        click.echo(f"{here}\n\n{table}")
    if write:
        begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
        before, _, rest = README.read_text("utf-8").partition(begin)
        after = rest.partition(end)[2]
        README.write_text(f"{before}{begin}\n`{command}` on {here}:\n\n{table}\n\n{end}{after}", "utf-8")


def markdown(rows: Sequence[Row], columns: Columns) -> str:
    """Rows as a Markdown table, its columns aligned; – where a value is None."""
    texts = [[heading for heading, _ in columns.values()]]
    for row in rows:
        values = ((row[key], form) for key, (_, form) in columns.items())
        texts.append(["–" if value is None else form.format(value) for value, form in values])
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    first, *others = (
        f"| {' | '.join(text.ljust(width) for text, width in zip(line, widths, strict=True))} |"
        for line in texts
    )
    rule = "|".join("-" * (width + 2) for width in widths)
    return "\n".join([first, f"|{rule}|", *others])
