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

import psutil

from core.errors import EngineError, RunNotFound, StoreError
from core.records import ACTIVE, Engine, Job, Kind, Status
from core.store import Store

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
_DESK_PATIENCE_S = 1.0
"""Desk jobs take milliseconds; only behind a slow one, such as a download, is a second desk worth it."""
_MOST_IDLE = 2
_GRACE_S = 3.0
"""How long the launcher that started an engine has to tell its exit code before others say "lost"."""

_log = logging.getLogger(__name__)


def engine_log(home: Path, engine_id: str) -> Path:
    """The file that keeps what an engine process wrote on standard output and standard error."""
    return home / "engines" / f"{engine_id}.log"


def is_alive(pid: int, started_at: float) -> bool:
    """True while the process that had this pid at that time runs; a reused pid does not count."""
    try:
        process = psutil.Process(pid)
        return abs(process.create_time() - started_at) < 1 and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def exit_in_words(code: int) -> str:
    """What an exit code says, such as ``killed: signal 9, often out of memory``."""
    if code >= 0:
        return f"exit code {code}"
    words: dict[int, str] = {
        signal.SIGKILL: "killed: signal 9, often out of memory",
        signal.SIGSEGV: "crashed: signal 11, a fault in native code",
        signal.SIGABRT: "aborted: signal 6, native code gave up",
        signal.SIGBUS: "crashed: signal 7, often a full disk or shared memory",
        signal.SIGTERM: "terminated: signal 15",
    }
    return words.get(-code, f"killed: signal {-code}")


class Launcher:
    """Keeps a store's jobs supplied with engines, in a background thread.

    Args:
        store: Whose jobs.
        keep_warm: Also hold a desk and a layout engine ready before there is work for them.
    """

    def __init__(self, store: Store, *, keep_warm: bool = True) -> None:
        self._store = store
        self._keep_warm = keep_warm
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self._exits: dict[str, int] = {}
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
        busy = {job.engine_id for job in self._store.jobs(statuses=ACTIVE)}
        for engine_id, child in self._children.items():
            if engine_id not in busy:
                child.terminate()
        for engine_id, child in list(self._children.items()):
            if engine_id not in busy:
                try:
                    child.wait(timeout=5)
                except subprocess.TimeoutExpired:
                    child.kill()
                    child.wait()
                self._forget(engine_id)

    def _run(self) -> None:
        while not self._closed.is_set():
            try:
                self._tick()
            except (StoreError, OSError) as error:
                # A store that does not answer, a full disk, no more processes: the pages show the first,
                # and the next tick may do better.
                _log.warning("%s", error)
            self._wake.wait(_TICK_S)
            self._wake.clear()

    def _tick(self) -> None:
        for engine_id, child in list(self._children.items()):
            code = child.poll()
            if code is not None:
                del self._children[engine_id]
                self._exits[engine_id] = code
        self.bury_dead_engines()
        self._supply()

    def bury_dead_engines(self) -> None:
        """Ends the jobs of engines that are gone, and forgets those engines; starts none."""
        for engine in self._store.engines():
            known = engine.id in self._exits
            if not known and is_alive(engine.pid, engine.pid_started_at):
                continue
            if engine.job is not None:
                job = self._job_of(engine)
                if job is not None and not self._end(job, engine):
                    continue
            elif engine.ready_at is None and self._exits.get(engine.id, 0) > 0:
                self._fail_waiting(engine)
            self._forget(engine.id)
            self._exits.pop(engine.id, None)
        for job in self._store.jobs(statuses=ACTIVE):
            if job.engine_id not in {engine.id for engine in self._store.engines()}:
                self._end_lost(job)

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
        engine_log(self._store.home, engine_id).unlink(missing_ok=True)

    def _end(self, job: Job, engine: Engine) -> bool:
        """Writes the end of a job whose engine is gone; False when somebody else should first."""
        code = self._exits.get(engine.id)
        if code is None:
            if time.time() - (job.heartbeat_at or 0) < _GRACE_S:
                return False
            return self._end_lost(job)
        error = EngineError(
            f"The engine process ended before the job did ({exit_in_words(code)}).",
            f"What was recorded is kept. {_again(job)} When out of memory, use a smaller model or batch.",
        )
        details = tail(engine_log(self._store.home, engine.id))
        return self._store.finish(job.id, Status.FAILED, error=error, details=details)

    def _end_lost(self, job: Job) -> bool:
        error = EngineError(
            "The engine process disappeared, and nobody was there to see its exit code.",
            f"What was recorded is kept. The machine may have been restarted. {_again(job)}",
        )
        return self._store.finish(job.id, Status.LOST, error=error)

    def _fail_waiting(self, engine: Engine) -> None:
        """An engine that cannot even start would leave its jobs queued for ever."""
        details = tail(engine_log(self._store.home, engine.id))
        error = EngineError(
            f"The engine process could not start ({exit_in_words(self._exits[engine.id])}).",
            "Check that TensorFlow is installed: python -c 'import tensorflow'.",
        )
        for job in self._store.jobs(kinds=ROLES[engine.role], statuses=[Status.QUEUED]):
            self._store.finish(job.id, Status.FAILED, error=error, details=details)
        self._keep_warm = False

    def _supply(self) -> None:
        """Starts the engines that the queue, or keeping warm, asks for."""
        engines = self._store.engines()
        queued = self._store.jobs(statuses=[Status.QUEUED])
        training = bool(self._store.jobs(kinds=[Kind.TRAIN], statuses=ACTIVE))

        desks = [engine for engine in engines if engine.role == "desk"]
        waiting = [job for job in queued if job.kind in ROLES["desk"]]
        needed = waiting or self._keep_warm
        stuck = all(engine.job for engine in desks) and any(_overdue(job) for job in waiting)
        if stuck if desks else needed:
            self._spawn("desk")

        idle = [engine for engine in engines if engine.role == "layout" and engine.job is None]
        wanted = len([job for job in queued if job.kind in (Kind.CHECK, Kind.STEP)])
        if not training:
            # While a run trains, warming the next engine would take its processor time.
            wanted += any(job.kind is Kind.TRAIN for job in queued) or self._keep_warm
        for _ in range(min(wanted, _MOST_IDLE) - len(idle)):
            self._spawn("layout")

    def _spawn(self, role: str) -> None:
        engine_id = secrets.token_hex(4)
        log = engine_log(self._store.home, engine_id)
        log.parent.mkdir(parents=True, exist_ok=True)
        me = psutil.Process()
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
                    str(me.pid),
                    "--owner-started-at",
                    str(me.create_time()),
                ],
                cwd=Path(__file__).parent.parent,
                env={**os.environ, **ENGINE_ENVIRONMENT},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                # Ctrl-C in the dashboard's terminal is not meant for a training.
                start_new_session=True,
            )
        self._children[engine_id] = child
        self._store.add_engine(
            Engine(
                id=engine_id,
                role=role,
                pid=child.pid,
                pid_started_at=psutil.Process(child.pid).create_time(),
                owner_pid=me.pid,
                started_at=time.time(),
                ready_at=None,
                job=None,
            )
        )


def _again(job: Job) -> str:
    if job.checkpoint_epochs:
        return f"Resume it: it goes on after epoch {job.checkpoint_epochs:,}."
    return "Start again."


def _overdue(job: Job) -> bool:
    return time.time() - job.created_at > _DESK_PATIENCE_S


def tail(log: Path, lines: int = 40) -> str:
    """The last lines of a file, or nothing when it cannot be read."""
    try:
        return "\n".join(log.read_text("utf-8", "replace").splitlines()[-lines:])
    except OSError:
        return ""
