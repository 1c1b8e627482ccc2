"""Whether the run store is usable and its jobs are being done, for monitoring."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import psutil

from core import retention
from core.database import FILE_NAME
from core.errors import ConfigError, StoreError
from core.processes import is_alive, started_at
from core.records import ACTIVE, Engine, Job, Kind, Status
from core.store import Store

_SECOND_LOOK_S = 1.5
_FINAL = [status for status in Status if status.is_final]


def examine(home: Path, patience_s: float = 60.0) -> dict[str, Any]:
    """Looks at a store from outside, as plain JSON values.

    Args:
        home: The store's folder.
        patience_s: How long a job may wait with its turn come, or a running one stay silent.

    Returns:
        ``healthy``, the ``problems`` in words (none where it is healthy), ``free_bytes`` of the disk,
        ``room``, what the store takes and may take (`core.retention.Room`), whether a ``launcher`` lives, how
        many jobs are ``queued``, and the id of the ``running`` run.
    """
    about: dict[str, Any] = {
        "healthy": False,
        "problems": [],
        "home": str(home),
        "free_bytes": None,
        "room": None,
        "launcher": False,
        "queued": None,
        "running": None,
    }
    problems: list[str] = about["problems"]
    if not (home / FILE_NAME).exists():
        problems.append(f"There is no run store in {home}.")
        return about
    try:
        there = retention.room(home)
        about |= {"free_bytes": there.free_bytes, "room": there.to_json()}
        if there.is_low:
            problems.append(f"The disk is nearly full: {retention.size(there.free_bytes)} are left.")
        elif not there.left_bytes:
            problems.append(
                f"The quota of {retention.size(there.quota_bytes or 0)} is used up: no run starts."
            )
        store = Store(home)
        engines, active = store.engines(), store.jobs(statuses=ACTIVE)
        queued, ended = store.jobs(statuses=[Status.QUEUED]), store.jobs(statuses=_FINAL, limit=50)
        store.close()
    except (StoreError, ConfigError) as error:
        problems.append(str(error))
        return about
    training = next((job.id for job in active if job.kind is Kind.TRAIN), None)
    about |= {"launcher": any(map(_is_owned, engines)), "queued": len(queued), "running": training}
    if not about["launcher"]:
        problems.append("No launcher lives: queued jobs do not start until a dashboard or launcher does.")
    now = time.time()
    for job in reversed(queued):
        if job.kind is Kind.TRAIN and training:
            continue
        waits_s = now - max([job.queued_at, *(e.finished_at or 0.0 for e in ended if e.kind is job.kind)])
        if waits_s > patience_s:
            problems.append(f"The {_name(job)} has waited for {waits_s:,.0f} s though its turn has come.")
            break
    problems += _silent(home, active, patience_s)
    about["healthy"] = not problems
    return about


def _silent(home: Path, active: list[Job], patience_s: float) -> list[str]:
    """Tells of running jobs without a heartbeat; a second look makes sure, as the clock may have been set."""
    now = time.time()
    silent_s = {job.id: abs(now - (job.heartbeat_at or now)) for job in active}
    quiet = [job for job in active if silent_s[job.id] > patience_s]
    if not quiet:
        return []
    time.sleep(_SECOND_LOOK_S)
    store = Store(home)
    later = {job.id: job.heartbeat_at for job in store.jobs(statuses=ACTIVE)}
    store.close()
    return [
        f"The {_name(job)} has not been heard of for {silent_s[job.id]:,.0f} s."
        for job in quiet
        if later.get(job.id, 0) == job.heartbeat_at
    ]


def _is_owned(engine: Engine) -> bool:
    """True while the engine and the launcher that started it live; a reused pid began later."""
    try:
        lives = is_alive(engine.pid, engine.pid_started_at, engine.boot_id)
        return lives and started_at(engine.owner_pid) <= engine.pid_started_at
    except psutil.Error:
        return False


def _name(job: Job) -> str:
    return f"run {job.title}" if job.kind is Kind.TRAIN else f"job {job.kind} ({job.id})"
