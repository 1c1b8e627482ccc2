"""The run store's SQLite file: its connections, and what goes wrong with a file."""

from __future__ import annotations

import shutil
import sqlite3
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from core.errors import DiskFull, StoreError
from core.schema import migrate, newest_schema

FILE_NAME = "mirrorboard.sqlite3"

_BUSY_TIMEOUT_S = 10.0
_BUSY_POLL_S = 0.01
_NO_ROOM_BYTES = 1_000_000


class Database:
    """Connections to the file, brought to the newest schema. Any number of threads may use one instance.

    Args:
        home: Folder of the file; made when it does not exist.

    Raises:
        StoreError: The folder cannot be written, or the file is damaged or newer than this code.
    """

    def __init__(self, home: Path) -> None:
        self.home = home.expanduser().absolute()
        self.path = self.home / FILE_NAME
        self._idle: list[sqlite3.Connection] = []
        self._file: tuple[int, int] | None = None
        try:
            self.home.mkdir(parents=True, exist_ok=True)
            # A database on a read-only folder opens and even reads; only writing tells.
            tempfile.TemporaryFile(dir=self.home).close()
        except OSError as error:
            raise StoreError(
                f"The run store's folder {self.home} cannot be written: {error.strerror}.",
                "Make it writable, or set MIRRORBOARD_HOME (or --home) to a folder that is.",
            ) from None
        if self._was_emptied():
            raise StoreError(
                f"The run store {self.path} is empty, but there are checkpoints of its runs beside it.",
                "Put a backup in its place, or move its folder away to begin a new store.",
            )
        self._migrate()
        self._file = self._on_disk()

    def _was_emptied(self) -> bool:
        """SQLite takes a file of no bytes for a new database; a new launcher would then sweep checkpoints."""
        empty = self.path.exists() and self.path.stat().st_size == 0
        return empty and any((self.home / "checkpoints").glob("*"))

    def _on_disk(self) -> tuple[int, int] | None:
        """Which file is at the path; None where there is none."""
        try:
            found = self.path.stat()
        except OSError:
            return None
        return found.st_dev, found.st_ino

    def close(self) -> None:
        """Closes the connections. Using the store again opens new ones."""
        while self._idle:
            self._idle.pop().close()

    @contextmanager
    def read(self) -> Iterator[sqlite3.Connection]:
        """A connection that nobody else uses meanwhile."""
        if self._file is not None and self._on_disk() != self._file:
            # An open connection would go on with a file that nobody finds again.
            raise StoreError(
                f"The run store {self.path} was moved, deleted or replaced while Mirrorboard used it.",
                "Put it back, or start Mirrorboard again to use what is there now.",
            )
        connection = None
        try:
            try:
                connection = self._idle.pop()
            except IndexError:
                connection = self._connect()
            yield connection
        except sqlite3.DatabaseError as error:
            raise self._explained(error) from error
        finally:
            if connection is not None:
                self._idle.append(connection)

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self.path, timeout=_BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
        )
        try:
            connection.row_factory = sqlite3.Row
            _log_ahead(connection)
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.execute("PRAGMA foreign_keys = ON")
        except sqlite3.DatabaseError:
            connection.close()
            raise
        return connection

    @contextmanager
    def write(self) -> Iterator[sqlite3.Connection]:
        """A transaction that takes the write lock at once.

        A deferred transaction that reads first fails with "database is locked" without waiting when
        another writer came between (SQLite, "isolation in WAL mode"); BEGIN IMMEDIATE waits.
        """
        with self.read() as connection:
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

    def _explained(self, error: sqlite3.DatabaseError) -> StoreError:
        text = str(error)
        if "not a database" in text or "malformed" in text:
            return StoreError(
                f"The run store {self.path} is damaged ({text}).",
                "Stop Mirrorboard, then put a backup in its place, or move its folder away to begin a new"
                " store.",
            )
        if "readonly" in text or "unable to open" in text:
            return StoreError(
                f"The run store {self.path} cannot be written ({text}).",
                "Make the folder writable, or set MIRRORBOARD_HOME (or --home) to one that is.",
            )
        # The index beside the write-ahead log cannot grow either, which SQLite calls an I/O error.
        if "full" in text or ("I/O" in text and shutil.disk_usage(self.home).free < _NO_ROOM_BYTES):
            return DiskFull(
                f"The disk of the run store {self.path} is full.", "Make room: delete runs or other files."
            )
        return StoreError(
            f"The run store {self.path} did not answer ({text}).",
            "Another program may hold it; try again in a moment.",
        )

    def _migrate(self) -> None:
        with self.write() as connection:
            version: int = connection.execute("PRAGMA user_version").fetchone()[0]
            if version > newest_schema():
                raise StoreError(
                    f"The run store {self.path} has schema {version}; this Mirrorboard knows"
                    f" {newest_schema()} and older.",
                    "Update Mirrorboard, or choose another folder with MIRRORBOARD_HOME (or --home).",
                )
            migrate(connection, to=newest_schema())


def _log_ahead(connection: sqlite3.Connection) -> None:
    """Has a database write ahead, which lets readers and one writer work side by side.

    Several processes that open a new database at once get in each other's way, and SQLite does not wait
    here as it does elsewhere: it answers "database is locked" at once (seen with SQLite 3.40).
    """
    deadline = time.monotonic() + _BUSY_TIMEOUT_S
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(_BUSY_POLL_S)
        else:
            return


def marks(values: Sequence[Any]) -> str:
    """A question mark for each value of an SQL list."""
    return ", ".join("?" * len(values))
