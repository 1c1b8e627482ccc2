"""Reads the logs of trainings from elsewhere: Keras's CSVLogger, a saved ``History``, TensorBoard's files.

All come out as a history: one dict an epoch with ``epoch`` (one-based) and Keras's metric names. A value is
None where the log says NaN or infinity, and missing where it says nothing.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from core.analysis.event_files import is_event_file, read_event_files
from core.errors import ConfigError

MAX_BYTES = 50_000_000
MAX_EPOCHS = 1_000_000

Row = dict[str, float | int | None]

_SPLIT_FOLDERS = ("train", "validation")
"""Where ``keras.callbacks.TensorBoard`` writes, below its log folder."""

_EXPECTED = (
    "Expected is a file of keras.callbacks.CSVLogger, a history.json (History.history as JSON),"
    " or the folder of keras.callbacks.TensorBoard."
)


def read_history(
    source: Path | bytes | Mapping[str, bytes], name: str = "", *, max_values: int | None = None
) -> list[Row]:
    """Reads the epochs of a training from a log of Keras's.

    Which kind it is shows in its content:

    * ``CSVLogger``: comma, semicolon or tab between the columns; a byte order mark, as spreadsheets write it,
      and decimal commas beside semicolons are tolerated.
    * JSON: ``History.history`` (a list of values for each metric), what pandas makes of it, or a list of one
      object an epoch; also below a key ``history``. The bare words NaN and Infinity are tolerated.
    * TensorBoard: an event file, or the log folder of one training.

    Epochs counted from zero, as Keras does, are renumbered from one. Epochs that do not rise, as when a
    second fit appended to the first one's file, are numbered by their place.

    Args:
        source: A file, a folder of event files, a file's content, or the contents of all the event files of
            one training by their names.
        name: What messages call it; a path's own name where it is empty.
        max_values: Refuse text that must hold far more values than these before it is parsed.

    Raises:
        ConfigError: It cannot be read, is too large, or is no such log; the message says what was found.
    """
    if isinstance(source, bytes):
        _check_size(len(source), name)
        contents = {name: source}
    elif isinstance(source, Mapping):
        contents = dict(source)
        name = name or " and ".join(contents)
        _check_size(sum(map(len, contents.values())), name)
        if len(contents) > 1 and not all(map(is_event_file, contents.values())):
            raise ConfigError(
                f"{name} are not all event files, so they are not the log of one training.",
                "Read logs of other kinds one at a time.",
            )
    else:
        name = name or source.name
        contents = _load(source, name)
    first = next(iter(contents.values()))
    if is_event_file(first):
        return _checked(read_event_files(contents), name)
    text = _decode(first, name)
    if max_values is not None and text.count(",") + text.count(";") + text.count("\t") > 2 * max_values:
        raise ConfigError(
            f"{name} holds more than {max_values:,} values.",
            "Leave out metrics, or log by epoch instead of by batch.",
        )
    kind = text.lstrip()[:1]
    if not kind:
        rows = []  # as CSVLogger leaves its file until the first epoch is over
    elif kind in "{[":
        rows = _from_json(text, name)
    else:
        rows = _from_csv(text, name)
    return _numbered(_checked(rows, name))


def _load(path: Path, name: str) -> dict[str, bytes]:
    """The content of a file, or of all the event files of a training where it is one of them."""
    try:
        paths = [path]
        if path.is_dir():
            paths = _event_files(path)
        elif path.parent.name in _SPLIT_FOLDERS and "tfevents" in path.name:
            paths = _event_files_of(path.parent.parent)
        _check_size(sum(file.stat().st_size for file in paths), name)
        return {str(file): file.read_bytes() for file in paths}
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read: {error.strerror or error}.", "Name a file that exists and is readable."
        ) from None


def _event_files(folder: Path) -> list[Path]:
    runs = sorted(
        {
            file.parent.parent if file.parent.name in _SPLIT_FOLDERS else file.parent
            for file in folder.rglob("*tfevents*")
        }
    )
    if not runs:
        raise ConfigError(f"The folder {folder} holds no event files.", _EXPECTED)
    if len(runs) > 1:
        some = ", ".join(str(run) for run in runs[:5])
        raise ConfigError(
            f"The folder {folder} holds the event files of {len(runs)} trainings.",
            f"Name one of them: {some}.",
        )
    return _event_files_of(runs[0]) or sorted(runs[0].glob("*tfevents*"))


def _event_files_of(run: Path) -> list[Path]:
    return [file for split in _SPLIT_FOLDERS for file in sorted((run / split).glob("*tfevents*"))]


def _check_size(size_bytes: int, name: str) -> None:
    if size_bytes > MAX_BYTES:
        raise ConfigError(
            f"{name} has {size_bytes / 1e6:,.0f} MB; at most {MAX_BYTES / 1e6:,.0f} MB are read.",
            "Log by epoch instead of by batch, without histograms or images.",
        )


def _decode(data: bytes, name: str) -> str:
    # Spreadsheets and PowerShell write UTF-16, and say so in the first two bytes.
    encoding = "utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        raise ConfigError(f"{name} is not text: byte {error.start:,} is not {encoding}.", _EXPECTED) from None


def _from_csv(text: str, name: str) -> list[Row]:
    header, _, _ = text.partition("\n")
    separator = max(",;\t", key=header.count)
    lines = csv.reader(io.StringIO(text, newline=""), delimiter=separator)
    rows: list[Row] = []
    try:
        columns = [column.strip() for column in next(lines, [])]
        _require_loss(columns, name)
        for cells in lines:
            numbers = cells if separator == "," else [cell.replace(",", ".") for cell in cells]
            row = _row(zip(columns, numbers, strict=False), f"{name}, line {lines.line_num}")
            if row:
                rows.append(row)
    except csv.Error as error:
        raise ConfigError(f"{name}, line {lines.line_num}: {error}.", _EXPECTED) from None
    return rows


def _from_json(text: str, name: str) -> list[Row]:
    try:
        # NaN and Infinity, which Python writes but JSON does not know, are values that are not finite.
        value = json.loads(text, parse_constant=lambda _: None)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{name} begins like JSON but is not: {error}.", _EXPECTED) from None
    while isinstance(value, dict) and "history" in value:
        value = value["history"]
    if isinstance(value, dict):
        _require_loss(value, name)
        value = _transposed({metric: _listed(values) for metric, values in value.items()}, name)
    if not isinstance(value, list) or not all(isinstance(row, dict) for row in value):
        raise ConfigError(f"{name} is JSON, but neither lists by metric nor objects by epoch.", _EXPECTED)
    return [_row(row.items(), f"{name}, epoch {place}") for place, row in enumerate(value, start=1)]


def _listed(values: Any) -> Any:
    """The values of a metric as a list, also where pandas has written them as an object by row number."""
    if isinstance(values, dict) and all(key.isdecimal() for key in values):
        return [values[key] for key in sorted(values, key=int)]
    return values


def _transposed(columns: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    """One object an epoch from a list of values for each metric."""
    for metric, values in columns.items():
        if not isinstance(values, list):
            raise ConfigError(
                f"{name}: {metric!r} is {json.dumps(values)[:40]}, not a list with one value an epoch.",
                _EXPECTED,
            )
    lengths = {metric: len(values) for metric, values in columns.items()}
    if len(set(lengths.values())) > 1:
        counts = ", ".join(f"{metric} {length:,}" for metric, length in lengths.items())
        raise ConfigError(
            f"{name}: the metrics have different numbers of values ({counts}), so the epochs are unknown.",
            "Log every metric every epoch, or use CSVLogger, which marks the epochs without validation.",
        )
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def _row(cells: Iterable[tuple[str, Any]], where: str) -> Row:
    """The values of one epoch: those that are numbers, or should be one."""
    row: Row = {}
    for metric, cell in cells:
        value = cell.strip() if isinstance(cell, str) else cell
        # CSVLogger writes NA where an epoch had no such metric, and lists for metrics by class.
        if isinstance(value, list) or (isinstance(value, str) and (value in ("", "NA") or "[" in value)):
            continue
        try:
            number = math.nan if value is None else float(value)
        except OverflowError:
            number = math.inf
        except (TypeError, ValueError):
            raise ConfigError(f"{where}: {metric} is {str(value)[:40]!r}, not a number.", _EXPECTED) from None
        row[metric] = number if math.isfinite(number) else None
    return row


def _require_loss(names: Iterable[str], name: str) -> None:
    found = list(names)
    if "loss" not in found and "val_loss" not in found:
        listed = ", ".join(repr(column[:40]) for column in found[:10]) or "nothing"
        raise ConfigError(f"{name} holds no loss or val_loss; found: {listed}.", _EXPECTED)


def _checked(rows: list[Row], name: str) -> list[Row]:
    if not rows:
        raise ConfigError(f"{name} holds no epoch.", "Wait until the training has finished its first epoch.")
    if len(rows) > MAX_EPOCHS:
        raise ConfigError(
            f"{name} has {len(rows):,} epochs; at most {MAX_EPOCHS:,} are read.",
            "Log by epoch, not by batch.",
        )
    _require_loss(dict.fromkeys(metric for row in rows for metric in row), name)
    return rows


def _numbered(rows: list[Row]) -> list[Row]:
    """The rows with one-based epochs, which come first in each."""
    epochs = [row.pop("epoch", None) for row in rows]
    numbers = [int(epoch) for epoch in epochs if epoch is not None]
    rising = len(numbers) == len(rows) and all(a < b for a, b in pairwise(numbers))
    if not rising or numbers[0] < 0:
        numbers = list(range(len(rows)))
    # Keras counts from zero; a file that begins at another number is taken at its word.
    offset = 1 if numbers[0] == 0 else 0
    return [{"epoch": number + offset, **row} for number, row in zip(numbers, rows, strict=True)]
