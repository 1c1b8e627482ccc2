"""The engine processes: their table in the store, and which of them live.

A pid alone says little: it is used again, after a while and after a restart of the machine.
"""

from __future__ import annotations

import time
from contextlib import suppress
from functools import cache
from pathlib import Path

import psutil

from core.database import Database, marks
from core.records import ACTIVE, Engine


@cache
def boot_id() -> str:
    """The same until the machine starts again; empty where the system tells none (only Linux does)."""
    with suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    return ""


def started_at(pid: int) -> float:
    """When a process began: seconds since the machine's start on Linux, since 1970 elsewhere.

    psutil 7.2 adds the time of the machine's start, which moves whenever somebody sets the clock.

    Raises:
        psutil.NoSuchProcess: There is no such process.
    """
    try:
        # The name in brackets may hold spaces; field 22 of all counts hundredths of a second (proc(5)).
        fields = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2].split()
        return int(fields[19]) / 100
    except OSError:
        return psutil.Process(pid).create_time()


def is_alive(pid: int, began: float, boot: str) -> bool:
    """True while the process that began then, after that start of the machine, runs."""
    if boot != boot_id():
        return False
    try:
        return started_at(pid) == began and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


class Processes(Database):
    """The table of engine processes."""

    def add_engine(self, engine: Engine) -> None:
        """Records an engine process that has just been started."""
        with self.write() as connection:
            connection.execute(
                "INSERT INTO engines (id, role, pid, pid_started_at, owner_pid, started_at, boot_id)"
                " VALUES (?, ?, ?, ?, ?, ?, ?)",
                (
                    engine.id,
                    engine.role,
                    engine.pid,
                    engine.pid_started_at,
                    engine.owner_pid,
                    engine.started_at,
                    engine.boot_id,
                ),
            )

    def engine_ready(self, engine_id: str) -> None:
        """Records that an engine has TensorFlow imported and waits for work."""
        with self.write() as connection:
            connection.execute("UPDATE engines SET ready_at = ? WHERE id = ?", (time.time(), engine_id))

    def engine_idle(self, engine_id: str) -> None:
        """Records that an engine has finished its job and takes another."""
        with self.write() as connection:
            connection.execute("UPDATE engines SET job = NULL WHERE id = ?", (engine_id,))

    def remove_engine(self, engine_id: str) -> None:
        """Forgets an engine process that has ended."""
        with self.write() as connection:
            connection.execute("DELETE FROM engines WHERE id = ?", (engine_id,))

    def retire_engine(self, engine_id: str) -> bool:
        """Forgets an engine process that is to be ended; it is given no job any more.

        Returns:
            False when it has a job, and stays.
        """
        with self.write() as connection:
            busy = connection.execute(
                f"SELECT 1 FROM jobs WHERE engine_id = ? AND status IN ({marks(ACTIVE)})",
                (engine_id, *ACTIVE),
            ).fetchone()
            if busy is None:
                connection.execute("DELETE FROM engines WHERE id = ?", (engine_id,))
        return busy is None

    def engines(self) -> list[Engine]:
        """The engine processes that were started and not yet found ended."""
        with self.read() as connection:
            rows = connection.execute("SELECT * FROM engines ORDER BY started_at").fetchall()
        return [Engine(**row) for row in rows]
