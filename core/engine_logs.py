"""What engine processes write on standard output and standard error: a file each, under the store."""

from __future__ import annotations

import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

_BEGINNING_S = 10.0
"""How old the log of an engine is that should be in the store by now."""


def engine_log(home: Path, engine_id: str) -> Path:
    """The file of one engine."""
    return home / "engines" / f"{engine_id}.log"


def tail(log: Path, lines: int = 120) -> str:
    """The last lines of a file, or nothing when it cannot be read.

    So many, because TensorFlow prints a stack trace of its process after the line that tells why it ends.
    """
    try:
        return "\n".join(log.read_text("utf-8", "replace").splitlines()[-lines:])
    except OSError:
        return ""


def sweep(home: Path, known: Collection[str]) -> None:
    """Removes the logs of engines that nobody knows.

    A launcher was killed just when it had begun them.

    Args:
        home: Folder of the store.
        known: Ids of the engines in it.
    """
    for log in list((home / "engines").glob("*.log")):
        with suppress(FileNotFoundError):  # somebody else was faster
            if log.stem not in known and time.time() - log.stat().st_mtime > _BEGINNING_S:
                log.unlink()
