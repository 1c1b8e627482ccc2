"""Numbers as people read them: with units, thousands separators and the viewer's time zone."""

from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import streamlit as st

from core.config import DeviceLayout
from core.words import plural as plural  # noqa: PLC0414 - a number as people read it, too


def memory(size_bytes: float | None) -> str:
    """A size in binary units, such as ``1.3 MiB``; "not available" for None."""
    if size_bytes is None:
        return "not available"
    if size_bytes < 1024:  # noqa: PLR2004 - the base of the units
        return f"{size_bytes:,.0f} B"
    for unit in ("KiB", "MiB", "GiB"):
        size_bytes /= 1024
        if size_bytes < 1000:  # noqa: PLR2004 - three digits at most
            return f"{size_bytes:.3g} {unit}"
    return f"{size_bytes / 1024:,.1f} TiB"


def duration(seconds: float | None) -> str:
    """A time span, such as ``4.2 s``, ``2 min 05 s`` or ``1 h 12 min``; a dash for None."""
    if seconds is None:
        return "–"
    if seconds < 9.95:  # noqa: PLR2004 - below ten, tenths matter
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:  # noqa: PLR2004
        return f"{whole} s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:  # noqa: PLR2004
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours:,} h {minutes:02d} min"


def number(value: float | None, digits: int = 3) -> str:
    """A metric's value with a fixed number of decimals; a dash for None."""
    return "–" if value is None else f"{value:,.{digits}f}"


def percent(share: float | None, digits: int = 1) -> str:
    """A share as ``11.0 %``; a dash for None."""
    return "–" if share is None else f"{100 * share:.{digits}f} %"


def layout(devices: DeviceLayout) -> str:
    """A device layout, such as ``MirroredStrategy on 2 logical CPUs``."""
    if devices.strategy == "tpu":
        return f"TPUStrategy on the TPU {devices.tpu!r}"
    if devices.strategy == "mirrored":
        return f"MirroredStrategy on {plural(devices.replicas, f'logical {devices.device_type}')}"
    return f"a single {devices.device_type}"


def ordinal(count: int) -> str:
    """A place in a row: ``1st``, ``2nd``, ``3rd``, ``4th``."""
    if count % 100 in (11, 12, 13):
        return f"{count}th"
    return f"{count}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(count % 10, 'th') }"


def moment(at: float) -> str:
    """A point in time, in the viewer's zone and with its name: ``30 Nov, 14:03 CET``."""
    return f"{_local(at):%d %b, %H:%M %Z}".lstrip("0")


def clock(at: float) -> str:
    """A time of day in the viewer's zone, to the second."""
    return f"{_local(at):%H:%M:%S}"


def zone() -> str:
    """Name of the viewer's time zone, such as ``Europe/Berlin``; UTC where the browser names none we know."""
    try:
        return ZoneInfo(st.context.timezone or "UTC").key
    except (ZoneInfoNotFoundError, ValueError):
        return "UTC"


def _local(at: float) -> datetime:
    return datetime.fromtimestamp(at, ZoneInfo(zone()))
