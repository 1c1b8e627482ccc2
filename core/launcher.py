"""Starts engine processes, keeps one warm, and notices when one has died.

An engine is ``python -m core.engine.worker``. Two roles divide the work: a *desk* engine answers
questions that need no device layout (inspect, prepare, describe, export, evaluate, classify), one after
another; a *layout* engine takes one job that fixes the process's devices (check, step, train), and ends
with it.

The launcher talks to engines through the store alone, so several launchers (a dashboard restarted, a
command line beside it) get along, and an engine in the middle of a run outlives the launcher that
started it.
"""

from __future__ import annotations

import logging
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

from core import engine_logs, faults
from core.engine_logs import engine_log, tail
from core.errors import RunNotFound, StoreError
from core.processes import boot_id, is_alive, started_at
from core.records import ACTIVE, Engine, Job, Kind, Status
from core.store import Store
from core.watchdog import Watchdog, first_step_limit_s

ROLES: dict[str, tuple[Kind, ...]] = {
    "desk": (Kind.INSPECT, Kind.PREPARE, Kind.DESCRIBE, Kind.EXPORT, Kind.EVALUATE, Kind.CLASSIFY),
    "layout": (Kind.CHECK, Kind.STEP, Kind.TRAIN),
}

ENGINE_ENVIRONMENT = {
    # glibc gives memory back to the system and takes it again at every step, about 11,000 page faults
    # each with two replicas; keeping 64 MiB in hand makes a step 2.4 times as fast (measured, TF 2.21).
    "MALLOC_TOP_PAD_": str(64 * 2**20),
    "TF_CPP_MIN_LOG_LEVEL": "0",
    # Reports and logs are read back as UTF-8 wherever the process was started from.
    "PYTHONIOENCODING": "utf-8",
}

_TICK_S = 0.2
_AFTER_ERROR_S = 1.0
_DESK_PATIENCE_S = 1.0
"""Desk jobs take milliseconds; only behind a slow one, such as a download, is a second desk worth it."""
_MOST_IDLE = 2
_MOST_STARTS = 3
"""Engines in a row that end before they are ready, after which no other is expected to do better."""
_GRACE_S = 3.0
"""How long the launcher that started an engine has to tell its exit code before others say "lost"."""

_log = logging.getLogger(__name__)


class Launcher:
    """Keeps a store's jobs supplied with engines, in a background thread.

    Args:
        store: Whose jobs.
        keep_warm: Also hold a desk and a layout engine ready before there is work for them.

    Raises:
        ConfigError: The environment's limit for the first step is none.
    """

    def __init__(self, store: Store, *, keep_warm: bool = True) -> None:
        self._store = store
        self._keep_warm = keep_warm
        self._watchdog = Watchdog(first_step_limit_s())
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._exits: dict[str, int] = {}
        self._starting: set[str] = set()
        self._failed_starts = dict.fromkeys(ROLES, 0)
        """In a row, by role."""
        self._wake = threading.Event()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="mirrorboard-launcher", daemon=True)

    def start(self) -> None:
        """Begins to look after the store."""
        self._store.sweep_checkpoints()
        self._thread.start()

    @property
    def is_running(self) -> bool:
        """False before `start`, after `close`, and when an error has ended its thread."""
        return self._thread.is_alive()

    def wake(self) -> None:
        """Looks after the store now instead of at the next tick, because a job was just queued."""
        self._wake.set()

    def close(self) -> None:
        """Stops; idle engines that were started here are ended, one with a job goes on with it."""
        self._closed.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(timeout=10)
        # An engine that takes a job in this moment keeps it, and one that is ended here takes none.
        idle = [engine_id for engine_id in self._children if self._store.retire_engine(engine_id)]
        for engine_id in idle:
            self._children[engine_id].terminate()
        for engine_id in idle:
            child = self._children[engine_id]
            try:
                child.wait(timeout=5)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
            self._forget(engine_id)

    def _run(self) -> None:
        told = ""
        while not self._closed.is_set():
            try:
                self._tick()
            except (StoreError, OSError) as error:
                # A store that does not answer, a full disk, no more processes: the pages show the first,
                # and the next tick may do better.
                if str(error) != told:
                    _log.warning("%s", error)
                told = str(error)
            else:
                told = ""
            self._wake.wait(_AFTER_ERROR_S if told else _TICK_S)
            self._wake.clear()

    def _tick(self) -> None:
        for engine_id, child in list(self._children.items()):
            code = child.poll()
            if code is not None:
                del self._children[engine_id]
                self._exits[engine_id] = code
        self._end_hanging()
        self.bury_dead_engines()
        self._supply()

    def _end_hanging(self) -> None:
        """Fails jobs that hang before their first step, and kills their engines."""
        active = self._store.jobs(kinds=ROLES["layout"], statuses=ACTIVE)
        for job in self._watchdog.hanging(active, time.monotonic()):
            # Failed first: an engine that is only found dead would be taken for lost.
            self._store.finish(job.id, Status.FAILED, error=faults.hung(job, self._watchdog.limit_s))
            for engine in self._store.engines():
                if engine.id == job.engine_id and self._lives(engine):
                    with suppress(ProcessLookupError):
                        os.kill(engine.pid, signal.SIGKILL)

    def bury_dead_engines(self) -> None:
        """Ends the jobs of engines that are gone, and forgets those engines; starts none."""
        for engine in self._store.engines():
            known = engine.id in self._exits
            # One that was started here lives until its exit code is known, which tells more.
            if not known and (engine.id in self._children or self._lives(engine)):
                continue
            if engine.job is not None:
                job = self._job_of(engine)
                if job is not None and not self._end(job, engine):
                    continue
            elif engine.ready_at is None and self._exits.get(engine.id):
                self._failed_starts[engine.role] += 1
                if self._failed_starts[engine.role] >= _MOST_STARTS:
                    self._fail_waiting(engine)
            self._forget(engine.id)
            self._exits.pop(engine.id, None)
        for job in self._store.jobs(statuses=ACTIVE):
            if job.engine_id not in {engine.id for engine in self._store.engines()}:
                self._end_lost(job)
        engine_logs.sweep(self._store.home, {engine.id for engine in self._store.engines()})

    def _lives(self, engine: Engine) -> bool:
        return is_alive(engine.pid, engine.pid_started_at, engine.boot_id)

    def _job_of(self, engine: Engine) -> Job | None:
        """The job that an engine has to end; None where that is done, or the run was deleted or resumed."""
        assert engine.job is not None
        with suppress(RunNotFound):
            job = self._store.job(engine.job)
            if job.engine_id == engine.id and not job.status.is_final:
                return job
        return None

    def _forget(self, engine_id: str) -> None:
        self._store.remove_engine(engine_id)
        self._starting.discard(engine_id)
        engine_log(self._store.home, engine_id).unlink(missing_ok=True)

    def _end(self, job: Job, engine: Engine) -> bool:
        """Writes the end of a job whose engine is gone; False when somebody else should first."""
        code = self._exits.get(engine.id)
        if code is None:
            # A heartbeat far in the future means that the clock was set back since.
            if abs(time.time() - (job.heartbeat_at or 0)) < _GRACE_S:
                return False
            return self._end_lost(job)
        details = tail(engine_log(self._store.home, engine.id))
        error = faults.died(job, code, details)
        return self._store.finish(job.id, Status.FAILED, error=error, details=details)

    def _end_lost(self, job: Job) -> bool:
        return self._store.finish(job.id, Status.LOST, error=faults.disappeared(job))

    def _fail_waiting(self, engine: Engine) -> None:
        """Engines that cannot even start would leave their jobs queued for ever."""
        details = tail(engine_log(self._store.home, engine.id))
        kinds = ROLES[engine.role]
        if self._is_training():
            # It may be what takes the memory; trainings wait for its end anyway.
            kinds = tuple(kind for kind in kinds if kind is not Kind.TRAIN)
        for job in self._store.jobs(kinds=kinds, statuses=[Status.QUEUED]):
            error = faults.could_not_start(job, self._exits[engine.id], details)
            self._store.finish(job.id, Status.FAILED, error=error, details=details)

    def _is_training(self) -> bool:
        return bool(self._store.jobs(kinds=[Kind.TRAIN], statuses=ACTIVE))

    def _keeps_warm(self, role: str) -> bool:
        return self._keep_warm and self._failed_starts[role] < _MOST_STARTS

    def _supply(self) -> None:
        """Starts the engines that the queue, or keeping warm, asks for."""
        engines = self._store.engines()
        queued = self._store.jobs(statuses=[Status.QUEUED])
        for engine in engines:
            if engine.ready_at is not None and engine.id in self._starting:
                self._starting.remove(engine.id)
                self._failed_starts[engine.role] = 0

        desks = [engine for engine in engines if engine.role == "desk"]
        waiting = [job for job in queued if job.kind in ROLES["desk"]]
        needed = waiting or self._keeps_warm("desk")
        stuck = all(engine.job for engine in desks) and any(_overdue(job) for job in waiting)
        if stuck if desks else needed:
            self._spawn("desk")

        idle = [engine for engine in engines if engine.role == "layout" and engine.job is None]
        wanted = len([job for job in queued if job.kind in (Kind.CHECK, Kind.STEP)])
        if not self._is_training():
            # While a run trains, warming the next engine would take its processor time.
            wanted += any(job.kind is Kind.TRAIN for job in queued) or self._keeps_warm("layout")
        for _ in range(min(wanted, _MOST_IDLE) - len(idle)):
            self._spawn("layout")

    def _spawn(self, role: str) -> None:
        engine_id = secrets.token_hex(4)
        log = engine_log(self._store.home, engine_id)
        log.parent.mkdir(parents=True, exist_ok=True)
        me = os.getpid()
        with log.open("wb") as output:
            child = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "core.engine.worker",
                    "--home",
                    str(self._store.home),
                    "--role",
                    role,
                    "--id",
                    engine_id,
                    "--owner",
                    str(me),
                    "--owner-started-at",
                    str(started_at(me)),
                ],
                cwd=Path(__file__).parent.parent,
                env={**os.environ, **ENGINE_ENVIRONMENT},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                # Ctrl-C in the dashboard's terminal is not meant for a training.
                start_new_session=True,
            )
        engine = Engine(
            id=engine_id,
            role=role,
            pid=child.pid,
            pid_started_at=started_at(child.pid),
            owner_pid=me,
            started_at=time.time(),
            ready_at=None,
            job=None,
            boot_id=boot_id(),
        )
        try:
            self._store.add_engine(engine)
        except StoreError:
            # Unknown to the store it would be started again at every tick.
            child.kill()
            child.wait()
            log.unlink(missing_ok=True)
            raise
        self._children[engine_id] = child
        self._starting.add(engine_id)


def _overdue(job: Job) -> bool:
    return time.time() - job.created_at > _DESK_PATIENCE_S
