"""Files that readers see whole or not at all."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def replacing(target: Path) -> Iterator[Path]:
    """Puts a file into place once it has been written.

    Args:
        target: Its place; the folder is made where there is none.

    Yields:
        Where to write it. Nothing of it stays when that fails.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    aside = target.with_name(f"{target.name}.{secrets.token_hex(4)}")
    try:
        yield aside
        aside.replace(target)
    finally:
        aside.unlink(missing_ok=True)
