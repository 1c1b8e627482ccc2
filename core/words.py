"""Counts and values as they stand in sentences for people."""

from __future__ import annotations

import math
import reprlib
from typing import Any

_MOST = 40
"""Characters of a text or a number that are shown."""
_MOST_IN_ALL = 100
"""Characters of a list or a group of such."""
_short = reprlib.Repr()
_short.maxstring = _short.maxother = _short.maxlong = _MOST
_short.maxlevel = 2


def plural(count: int, one: str, many: str = "") -> str:
    """A count with its noun, such as ``1 replica`` or ``1,024 rows``."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def shown(value: Any) -> str:
    """A value that somebody has given, in a line at most: ``'many'``, ``20,000``, ``NaN``, ``[0, 0]``."""
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "infinity" if value > 0 else "-infinity"
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f"{value:,.15g}" if abs(value) < 1e15 else _short.repr(value)  # noqa: PLR2004
    text = _short.repr(value)
    return text if len(text) <= _MOST_IN_ALL else f"{text[:_MOST_IN_ALL]}…"
