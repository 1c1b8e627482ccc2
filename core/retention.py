"""How much room the store takes, how much a run will need, and whether there is that much."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from core.analysis import memory
from core.config import RunConfig
from core.corpus import EXAMPLES
from core.database import FILE_NAME
from core.errors import ConfigError, NoRoom
from core.records import Metric
from core.words import shown

VARIABLE = "MIRRORBOARD_QUOTA_GB"
LOW_BYTES = 200_000_000
"""Free room of a disk below which it is time to say so."""

_CHECKPOINTS = 3
"""Files of each sort: two generations, and the one that is being written."""
_STEP_BYTES = 400
"""What the database takes for a step's three values, with their index (measured: 330)."""
_EPOCH_BYTES = 6_000
"""The same for an epoch's values and confidence bins."""
_VALUE_BYTES = 70
"""The same for one imported value (measured: 63), beside its name."""


@dataclass(frozen=True)
class Room:
    """What a store takes of its disk, in bytes.

    Attributes:
        database_bytes: What runs measured and said.
        checkpoints_bytes: Checkpoints, with what was exported and predicted from them.
        other_bytes: Prepared datasets, and the logs of living engines.
        quota_bytes: What all of it together may be; None without a quota.
        free_bytes: Of the disk.
    """

    database_bytes: int
    checkpoints_bytes: int
    other_bytes: int
    quota_bytes: int | None
    free_bytes: int

    @property
    def total_bytes(self) -> int:
        """All that is there."""
        return self.database_bytes + self.checkpoints_bytes + self.other_bytes

    @property
    def left_bytes(self) -> int:
        """What may still come."""
        left = self.free_bytes
        if self.quota_bytes is not None:
            left = min(left, self.quota_bytes - self.total_bytes)
        return max(left, 0)

    @property
    def is_low(self) -> bool:
        """True when the disk is nearly full."""
        return self.free_bytes < LOW_BYTES

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return {**asdict(self), "total_bytes": self.total_bytes, "left_bytes": self.left_bytes}


def room(home: Path) -> Room:
    """Looks at a store's folder.

    Raises:
        ConfigError: The environment's quota is none.
        OSError: There is no such folder.
    """
    database = sum(map(_size, home.glob(f"{FILE_NAME}*")))
    checkpoints = folder_bytes(home / "checkpoints")
    other = folder_bytes(home) - database - checkpoints
    return Room(database, checkpoints, max(other, 0), quota_bytes(), shutil.disk_usage(home).free)


def folder_bytes(folder: Path) -> int:
    """What the files below a folder take; 0 where there is none."""
    return sum(map(_size, folder.rglob("*")))


def quota_bytes() -> int | None:
    """What a store may take altogether, from the environment; None without a quota.

    Raises:
        ConfigError: That is no positive number.
    """
    text = os.environ.get(VARIABLE, "")
    if not text:
        return None
    with suppress(ValueError, OverflowError):
        quota = int(float(text) * 1e9)
        if quota > 0:
            return quota
    raise ConfigError(
        f"{VARIABLE} must be a number of gigabytes above 0, not {shown(text)}.",
        "Correct it, or leave it out: then only the disk sets a limit.",
    )


def needed_bytes(config: RunConfig) -> int:
    """What a run will take of the disk, estimated from its model's parameters and its steps."""
    need = memory.needed(config)
    weights = need.parameters * need.value_bytes
    # A state holds the weights and what the optimizer keeps, but no gradients.
    state = weights * (need.values_each - 1)
    values = config.training.epochs * (config.steps(EXAMPLES["train"]) * _STEP_BYTES + _EPOCH_BYTES)
    return _CHECKPOINTS * (state + weights) + values


def require_room(home: Path, *configs: RunConfig, has_bytes: int = 0) -> None:
    """Refuses runs that the disk or the quota cannot hold together.

    Args:
        home: The store's folder.
        configs: The runs.
        has_bytes: What their checkpoints take already.

    Raises:
        NoRoom: They do not fit; the message has the figures.
        ConfigError: The environment's quota is none.
    """
    several = len(configs) > 1
    _require(
        home,
        sum(map(needed_bytes, configs)) - has_bytes,
        f"These {len(configs):,} runs need about {{}} for their checkpoints and measurements"
        if several
        else "This run needs about {} for its checkpoints and measurements",
        "or make the model smaller",
    )


def require_room_for_import(home: Path, metrics: Iterable[Metric]) -> None:
    """Refuses a training from elsewhere whose values the disk or the quota cannot hold.

    Raises:
        NoRoom: They do not fit; the message has the figures.
        ConfigError: The environment's quota is none.
    """
    # SQLite writes everything to its log first. Each row has its name, which may be of any length.
    need = 2 * sum(_VALUE_BYTES + len(metric.name.encode()) for metric in metrics)
    _require(home, need, "This import needs about {} for its values", "or leave out metrics")


def _require(home: Path, need: int, what: str, otherwise: str) -> None:
    there = room(home)
    if need <= there.left_bytes:
        return
    limit = "on the disk"
    if there.quota_bytes is not None and there.left_bytes < there.free_bytes:
        limit = f"of the quota of {size(there.quota_bytes)} ({VARIABLE})"
    raise NoRoom(
        f"{what.format(size(need))}, but {size(there.left_bytes)} {limit} are left.",
        f"Delete runs on the page Runs or with `python -m core delete`, {otherwise}.",
    )


def size(count: float) -> str:
    """A size in decimal units, as disks are sold, such as ``1.3 GB``."""
    for unit, bytes_each in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        rounded = float(f"{count / bytes_each:.3g}")
        if rounded >= 1:
            return f"{rounded:,g} {unit}"
    return f"{count / 1e3:,.0f} kB"


def _size(file: Path) -> int:
    # What is renamed or deleted meanwhile counts no more.
    with suppress(OSError):
        if file.is_file():
            return file.stat().st_size
    return 0
