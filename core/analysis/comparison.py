"""Runs beside each other: where their parameters differ, and by how much their figures do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested values by dotted names, such as ``training.epochs``; lists stay whole."""
    result: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            result |= flat(value, f"{prefix}{name}.")
        else:
            result[f"{prefix}{name}"] = value
    return result


def differences(parameters: Mapping[str, Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """The parameters in which runs differ.

    Args:
        parameters: Of each run, by dotted name.

    Returns:
        The value of every run, by parameter, in the order in which parameters first occur. A run that lacks
        one has None there.
    """
    names = dict.fromkeys(name for values in parameters.values() for name in values)
    rows = {name: {run: values.get(name) for run, values in parameters.items()} for name in names}
    return {name: row for name, row in rows.items() if len({repr(value) for value in row.values()}) > 1}


def change(value: float | None, baseline: float | None) -> float | None:
    """How much a value differs from the baseline's, as a share of it; None where that has no meaning."""
    if value is None or baseline is None or baseline <= 0:
        return None
    return value / baseline - 1.0
