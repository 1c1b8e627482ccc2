"""Backup and restore of the run store, each as one file that SQLite's own tools can open too.

A backup holds everything that is recorded: runs, their settings, metrics, logs and samples. Left out are
checkpoints, without which a run restored elsewhere can be looked at but not resumed, what can be made again
(prepared datasets) and what means nothing later (the output of engine processes).
"""

from __future__ import annotations

import fcntl
import secrets
import shutil
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import psutil

from core.database import FILE_NAME
from core.engine.checkpoints import Checkpoints
from core.errors import EngineError, InvalidDatabase, StoreError
from core.records import ACTIVE, RUNS, Job, Status
from core.schema import migrate, newest_schema
from core.store import Store

_BUSY_TIMEOUT_S = 10.0
_SHARED_LOCK = (510, 0x4000_0002)
"""Length and start of the bytes that every open SQLite connection in WAL mode has locked (os.h, 3.40)."""


@dataclass(frozen=True)
class Restored:
    """What `restore` did.

    Attributes:
        runs: How many runs the store now holds.
        lost: Ids of those that were going on when the backup was made, and now count as lost.
        kept: The folder that the store that was there before has been moved to, if there was one.
    """

    runs: int
    lost: list[str]
    kept: Path | None


def backup(home: Path, file: Path) -> int:
    """Copies the run store into one file while everything goes on.

    Unlike opening a `Store`, this leaves the store's schema as it is, so that one can make a backup with a
    new version before it brings the schema up to date.

    Args:
        home: The store's folder.
        file: Where the backup goes; nothing may be there yet.

    Returns:
        How many runs it holds.

    Raises:
        StoreError: There is no store, it is damaged, or the file cannot be written.
    """
    source = home / FILE_NAME
    if not source.is_file():
        raise StoreError(
            f"There is no run store in {home}.",
            "Name the folder that has one with --home or MIRRORBOARD_HOME.",
        )
    if _exists(file):
        raise StoreError(f"{file} exists already.", "Choose another name, or delete it first.")
    if not file.parent.is_dir():
        raise StoreError(f"There is no folder {file.parent}.", "Make it first, or choose another.")
    aside = file.with_name(f".{file.name}.{secrets.token_hex(4)}")
    try:
        runs = _copy(source, aside)
        aside.replace(file)
    except OSError as error:
        raise StoreError(
            f"The backup {file} cannot be written ({error.strerror}).", "Choose another place."
        ) from error
    finally:
        _discard(aside)
    return runs


def restore(home: Path, file: Path) -> Restored:
    """Puts a backup in the place of the run store, which is moved aside.

    Args:
        home: The store's folder; made when it does not exist.
        file: The backup. It is checked first, and brought to the newest schema.

    Raises:
        InvalidDatabase: The backup is damaged, newer than this code or none.
        StoreError: Somebody uses the store, or its folder cannot be written.
    """
    if not _exists(file) or not file.is_file():
        raise InvalidDatabase(
            f"There is no backup {file}.", "Give the file that `python -m core backup` made."
        )
    target = home / FILE_NAME
    staging = home / f".restore-{secrets.token_hex(4)}"
    try:
        staging.mkdir(parents=True)
        with _unused(target):
            _copy(file, staging / FILE_NAME)
            known, lost = _settle(staging)
            kept = _move_aside(home, known)
            (staging / FILE_NAME).replace(target)
    except OSError as error:
        raise StoreError(
            f"The run store's folder {home} cannot be written ({error.strerror}).",
            "Make it writable, or choose another with --home.",
        ) from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return Restored(len(known), lost, kept)


def _exists(file: Path) -> bool:
    try:
        return file.exists()
    except OSError:  # its name is too long, say
        return False


def _copy(source: Path, target: Path) -> int:
    """Copies a database as it is at one moment, checks the copy, and counts its runs."""
    # mode=rw makes no file where there is none, and SQLite reads where it may not write.
    try:
        with (
            closing(
                sqlite3.connect(f"{source.absolute().as_uri()}?mode=rw", uri=True, timeout=_BUSY_TIMEOUT_S)
            ) as old,
            closing(sqlite3.connect(target, isolation_level=None)) as new,
        ):
            # All pages in one step: between steps a training would write, and the copy begin again.
            old.backup(new)
            # Without this, whoever opens the copy has to be able to write beside it.
            new.execute("PRAGMA journal_mode = DELETE")
            _check(new, source)
            marks = ", ".join("?" * len(RUNS))
            runs: int = new.execute(f"SELECT count(*) FROM jobs WHERE kind IN ({marks})", RUNS).fetchone()[0]
    except sqlite3.DatabaseError as error:
        text = str(error)
        if "full" in text or "unable to open" in text or "locked" in text or "disk I/O" in text:
            raise StoreError(
                f"{source} could not be copied to {target.parent} ({text}).",
                "See that the disk has room and the folder can be written, then try again.",
            ) from error
        raise _damaged(source, text) from error
    return runs


def _check(connection: sqlite3.Connection, source: Path) -> None:
    """Refuses what is damaged, newer than this code, or the database of another program."""
    found: str = connection.execute("PRAGMA integrity_check(1)").fetchone()[0]
    if found != "ok":
        raise _damaged(source, found)
    version: int = connection.execute("PRAGMA user_version").fetchone()[0]
    if version > newest_schema():
        raise InvalidDatabase(
            f"{source} has schema {version}; this Mirrorboard knows {newest_schema()} and older.",
            "Use the version of Mirrorboard that made it, or a newer one.",
        )
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as model:
        migrate(model, to=version)
        if version < 1 or _schema(connection) != _schema(model):
            raise InvalidDatabase(
                f"{source} is a database, but not one of Mirrorboard's.",
                "Give the file that `python -m core backup` made.",
            )


def _schema(connection: sqlite3.Connection) -> set[tuple[str, ...]]:
    """Tables with their columns, indexes, and whatever else the schema holds, such as triggers."""
    return {
        tuple(row)
        for row in connection.execute(
            "SELECT s.type, s.name, coalesce(c.name, ''), coalesce(c.type, '') FROM sqlite_schema AS s"
            " LEFT JOIN pragma_table_info(s.name) AS c WHERE s.name NOT LIKE 'sqlite_%'"
        )
    }


def _damaged(source: Path, text: str) -> InvalidDatabase:
    return InvalidDatabase(f"{source} is damaged or no database ({text}).", "Use another backup.")


def _settle(staging: Path) -> tuple[list[Job], list[str]]:
    """Brings a copied store to the newest schema, and ends what was going on in it.

    Its engines may well be alive, but they work for the store that the backup was made of.

    Returns:
        All its runs, and the ids of those that were going on.
    """
    store = Store(staging)
    for engine in store.engines():
        store.remove_engine(engine.id)
    error = EngineError(
        "The run was going on when the backup was made, and the backup has been restored since.",
        "What was recorded until then is kept. Start it again if you need its end.",
    )
    going_on = store.jobs(statuses=ACTIVE)
    for job in going_on:
        store.finish(job.id, Status.LOST, error=error)
    known = store.jobs(kinds=RUNS)
    store.close()
    return known, [job.id for job in going_on if job.kind in RUNS]


@contextmanager
def _unused(database: Path) -> Iterator[None]:
    """Keeps everybody else from opening the store; refuses when somebody has it open."""
    if not database.exists():
        yield
        return
    # The bytes themselves, because asking SQLite would not work for a damaged store.
    with database.open("rb+") as file:
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, *_SHARED_LOCK)
        except BlockingIOError:
            raise StoreError(
                f"The run store {database} is in use{_by_whom(database)}.",
                "Stop the dashboard and its service, let runs end or stop them, then restore again.",
            ) from None
        yield


def _by_whom(database: Path) -> str:
    pids = []
    for process in psutil.process_iter():
        try:
            if any(Path(opened.path) == database.resolve() for opened in process.open_files()):
                pids.append(str(process.pid))
        except psutil.Error:
            continue  # another user's, or gone meanwhile
    return f" by process {', '.join(pids)}" if pids else ""


def _move_aside(home: Path, known: Sequence[Job]) -> Path | None:
    """Moves the store's files, those that SQLite keeps beside it included, into a folder of their own.

    The checkpoints of runs that the restored store does not know go along, because it would sweep them away,
    and those that are newer than what it knows of their runs, which would go on over them.
    """
    epochs = {job.id: job.checkpoint_epochs for job in known}
    files = [home / f"{FILE_NAME}{suffix}" for suffix in ("", "-wal", "-shm")]
    if not any(file.exists() for file in files):
        return None
    kept = home / f"replaced-{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{secrets.token_hex(2)}"
    kept.mkdir()
    for file in files:
        if file.exists():
            file.replace(kept / file.name)
    for folder in (home / "checkpoints").glob("*"):
        if folder.name not in epochs or Checkpoints(folder).newest_epoch > epochs[folder.name]:
            (kept / "checkpoints").mkdir(exist_ok=True)
            folder.replace(kept / "checkpoints" / folder.name)
    return kept


def _discard(file: Path) -> None:
    for suffix in ("", "-journal", "-wal", "-shm"):
        with suppress(OSError):  # it could not be made either
            file.with_name(f"{file.name}{suffix}").unlink(missing_ok=True)
