"""Short runs back to back while harm is done to them at random: what is lost, and what is left over.

Usage: ``python -m benchmarks.soak [--runs N] [--seed N] [--json] [--write]``. A launcher, in a process of
its own as on a server, looks after a store, and a dashboard shows each run to a viewer. Each run meets one
fate, chosen by the seed: none, a stop, a pause and a resume, SIGTERM, SIGKILL and a resume, or the launcher's
death and a new one. A run that ends otherwise than its fate says counts as wrong, each step or epoch that is
missing, or there twice, as a lost row, and one whose curve never came to its viewer as unseen. Needs
``tests/requirements.txt``.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import click
import psutil

from benchmarks.memory import resident_mib
from benchmarks.session import Seen, watch
from benchmarks.tables import Columns, publish
from core import retention
from core.errors import RunStateError
from core.processes import is_alive
from core.records import Job, Kind, Status
from core.store import Store
from tests.browser_app import dashboard

ROOT = Path(__file__).parent.parent
EPOCHS = 30
"""So many that a run still trains when harm comes to it, on a fast machine too."""
CONFIG: dict[str, Any] = {
    "layout": {"strategy": "single", "logical_devices": 1},
    "data": {"dataset": "synthetic", "max_len": 40},
    "model": {"optimizer": "sgd", "embedding_size": 2, "filters": [8, 8]},
    "training": {"epochs": EPOCHS, "batch_size": 256},
}
STEPS = 36
"""Of an epoch."""
_POLL_S = 0.05
_PATIENCE_S = 120.0
_SEEN_S = 20.0
"""From a run's end until its viewer must have seen its curve."""

COLUMNS: Columns = {
    "runs": ("Runs", "{:,}"),
    "fates": ("Fates", "{}"),
    "in_time": ("Harmed before their end", "{:,}"),
    "wrong": ("Wrong status", "{:,}"),
    "lost": ("Lost rows", "{:,}"),
    "unseen": ("Unseen", "{:,}"),
    "left_over": ("Files left over", "{:,}"),
    "orphans": ("Processes left over", "{:,}"),
    "launcher_mib": ("Launcher, MiB, first and last tenth", "{}"),
    "dashboard_mib": ("Dashboard, MiB, first and last tenth", "{}"),
    "desk_mib": ("Desk engine, MiB, first and last tenth", "{}"),
    "kb_each": ("Disk, kB a run, first and last half", "{}"),
    "seconds_each": ("Seconds a run", "{:.1f}"),
}


class Server:
    """``python -m core launcher`` on a store."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [sys.executable, "-m", "core", "launcher", "--home", str(self._home)], cwd=ROOT
        )

    @property
    def pid(self) -> int:
        """Of the launcher."""
        return self._process.pid

    def kill(self) -> None:
        """Kills it with signal 9, and starts another."""
        self._process.kill()
        self._process.wait()
        self._process = self._start()

    def close(self) -> None:
        """Ends it as a service manager does."""
        self._process.terminate()
        self._process.wait(timeout=30)


class Soak:
    """A store, its launcher, and what went wrong so far.

    Args:
        home: Folder of the store.
        address: Of a dashboard that shows it.
        seed: Of the choice of fates and moments.
    """

    def __init__(self, home: Path, address: str, seed: int) -> None:
        self.store = Store(home)
        self._address = address.removeprefix("http://")
        self.server = Server(home)
        self._random = random.Random(seed)  # noqa: S311 - it must come out the same again
        self.fates: dict[str, int] = dict.fromkeys(_FATES, 0)
        self.in_time = 0
        """Runs that had not ended when harm came to them."""
        self.wrong = 0
        self.lost = 0
        self.unseen = 0

    def run(self) -> None:
        """One run and its fate."""
        fate = self._random.choice(list(_FATES))
        self.fates[fate] += 1
        job_id = self.store.submit(Kind.TRAIN, CONFIG)
        with self._watched(job_id):
            wanted = _FATES[fate](self, job_id)
            job = self.until(job_id, lambda job: job.status.is_final)
        if job.status not in wanted:
            self.wrong += 1
            click.echo(f"{fate}: run {job_id} is {job.status}, not {wanted[0]}. {job.error}", err=True)
        self.lost += self._missing(job)
        self._settle()

    @contextmanager
    def _watched(self, job_id: str) -> Iterator[None]:
        """Somebody looks at a run meanwhile, until he has seen its curve."""
        seen, is_over = Seen(), threading.Event()
        viewer = threading.Thread(
            target=lambda: asyncio.run(watch(self._address, job_id, seen, is_over.is_set)), daemon=True
        )
        viewer.start()
        try:
            yield
            deadline = time.monotonic() + _SEEN_S
            while not seen.figures and time.monotonic() < deadline:
                time.sleep(_POLL_S)
            self.unseen += not seen.figures
        finally:
            is_over.set()
            viewer.join()

    def _settle(self) -> None:
        """Waits until a launcher that has just been started has cleaned up after the one before."""
        deadline = time.monotonic() + _PATIENCE_S
        while time.monotonic() < deadline:
            engines = self.store.engines()
            alive = all(is_alive(e.pid, e.pid_started_at, e.boot_id) for e in engines)
            if alive and any(
                e.role == "desk" and e.ready_at and e.owner_pid == self.server.pid for e in engines
            ):
                return
            time.sleep(_POLL_S)
        raise TimeoutError("The launcher does not come to rest.")

    def until(self, job_id: str, condition: Callable[[Job], bool]) -> Job:
        """Waits until a condition holds for a job."""
        deadline = time.monotonic() + _PATIENCE_S
        while not condition(job := self.store.job(job_id)):
            if time.monotonic() > deadline:
                raise TimeoutError(f"Run {job_id} is {job.status}, {job.phase}: {job.progress}")
            time.sleep(_POLL_S)
        return job

    def midway(self, job_id: str) -> Job:
        """Waits for a moment after the first checkpoint, in the middle of things."""
        job = self.until(job_id, lambda job: job.status.is_final or job.checkpoint_epochs > 0)
        time.sleep(self._random.uniform(0.0, 0.3))
        job = self.store.job(job_id)
        self.in_time += not job.status.is_final
        return job

    def _missing(self, job: Job) -> int:
        """Rows that are not there, or there twice."""
        steps = [row.step for row in self.store.metrics(job, per="step") if row.name == "loss"]
        epochs = [
            row.epoch
            for row in self.store.metrics(job, per="epoch")
            if (row.split, row.name) == ("validation", "loss")
        ]
        whole = EPOCHS if job.status is Status.COMPLETED else job.checkpoint_epochs
        if job.status is Status.COMPLETED:
            wrong = set(steps) ^ set(range(EPOCHS * STEPS))
        else:
            wrong = set(range(whole * STEPS)) - set(steps)
        twice = len(steps) - len(set(steps)) + len(epochs) - len(set(epochs))
        return len(wrong) + twice + len(set(range(whole)) - set(epochs))

    def desk_mib(self) -> float:
        """Resident memory of the desk engines."""
        return sum(resident_mib(engine.pid) for engine in self.store.engines() if engine.role == "desk")


_Wanted = tuple[Status, ...]


def _none(_: Soak, __: str) -> _Wanted:
    return (Status.COMPLETED,)


def _stop(soak: Soak, job_id: str) -> _Wanted:
    soak.midway(job_id)
    soak.store.request_stop(job_id)
    return Status.STOPPED, Status.COMPLETED


def _pause(soak: Soak, job_id: str) -> _Wanted:
    if not soak.midway(job_id).status.is_final and soak.store.job(job_id).status is Status.RUNNING:
        with suppress(RunStateError):  # likewise
            soak.store.request_pause(job_id)
        if soak.until(job_id, lambda job: job.status.is_final).status is Status.PAUSED:
            soak.store.resume(job_id)
    return (Status.COMPLETED,)


def _signal(number: signal.Signals, ends_as: Status, soak: Soak, job_id: str) -> None:
    pid = soak.midway(job_id).pid
    if pid is not None:
        with suppress(ProcessLookupError):  # it has ended in its last moment
            os.kill(pid, number)
    if soak.until(job_id, lambda job: job.status.is_final).status is ends_as:
        soak.store.resume(job_id)


def _term(soak: Soak, job_id: str) -> _Wanted:
    _signal(signal.SIGTERM, Status.STOPPED, soak, job_id)
    return (Status.COMPLETED,)


def _kill(soak: Soak, job_id: str) -> _Wanted:
    _signal(signal.SIGKILL, Status.FAILED, soak, job_id)
    return (Status.COMPLETED,)


def _launcher(soak: Soak, job_id: str) -> _Wanted:
    soak.midway(job_id)
    soak.server.kill()
    return (Status.COMPLETED,)


_FATES: dict[str, Callable[[Soak, str], _Wanted]] = {
    "none": _none,
    "stop": _stop,
    "pause and resume": _pause,
    "SIGTERM and resume": _term,
    "kill -9 and resume": _kill,
    "launcher killed": _launcher,
}


def measure(home: Path, runs: int, seed: int) -> dict[str, Any]:
    """Does the harm and counts."""
    with dashboard(home, MIRRORBOARD_WATCH="1") as address:
        (shows,) = (child for child in psutil.Process().children() if "streamlit" in child.cmdline())
        return _measure(Soak(home, address, seed), shows.pid, home, runs)


def _measure(soak: Soak, dashboard_pid: int, home: Path, runs: int) -> dict[str, Any]:
    launcher_mib, dashboard_mib, desk_mib, bytes_after = [], [], [], [0]
    began = time.monotonic()
    engines: set[tuple[int, float, str]] = set()
    try:
        for _ in range(runs):
            soak.run()
            engines |= {(e.pid, e.pid_started_at, e.boot_id) for e in soak.store.engines()}
            launcher_mib.append(resident_mib(soak.server.pid))
            dashboard_mib.append(resident_mib(dashboard_pid))
            desk_mib.append(soak.desk_mib())
            bytes_after.append(retention.room(home).total_bytes)
    finally:
        soak.server.close()
    seconds_each = (time.monotonic() - began) / runs
    tenth, half = max(runs // 10, 1), (runs + 1) // 2
    left_over = [file for pattern in ("*.part", "engines/*", "tmp*") for file in home.rglob(pattern)]
    for file in left_over:
        click.echo(f"left over: {file.relative_to(home)}", err=True)
    return {
        "runs": runs,
        "fates": ", ".join(f"{count} {fate}" for fate, count in soak.fates.items()),
        "in_time": soak.in_time,
        "wrong": soak.wrong,
        "lost": soak.lost,
        "unseen": soak.unseen,
        "left_over": len(left_over),
        "orphans": sum(is_alive(*engine) for engine in engines),
        **{
            name: f"{max(mib[:tenth]):,.0f}, {max(mib[-tenth:]):,.0f}"
            for name, mib in (
                ("launcher_mib", launcher_mib),
                ("dashboard_mib", dashboard_mib),
                ("desk_mib", desk_mib),
            )
        },
        "kb_each": f"{(bytes_after[half] - bytes_after[1]) / 1e3 / max(half - 1, 1):,.0f},"
        f" {(bytes_after[-1] - bytes_after[half]) / 1e3 / max(runs - half, 1):,.0f}",
        "seconds_each": seconds_each,
    }


@click.command()
@click.option("--runs", default=200, show_default=True)
@click.option("--seed", default=1, show_default=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--write", is_flag=True, help="Put the table into benchmarks/README.md.")
def main(runs: int, seed: int, *, as_json: bool, write: bool) -> None:
    """Measures, and prints the table. Exit code 1: something was lost, wrong or left over."""
    with tempfile.TemporaryDirectory() as folder:
        row = measure(Path(folder) / "home", runs, seed)
    publish("soak", [row], COLUMNS, packages=["tensorflow", "keras"], as_json=as_json, write=write)
    if any(row[count] for count in ("wrong", "lost", "unseen", "left_over", "orphans")):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
