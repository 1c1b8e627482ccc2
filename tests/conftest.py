"""What the tests share: a store in a temporary folder, the command line, and waiting."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from core.launcher import Launcher
from core.records import Job, Kind
from core.store import Store
from tests.page_app import Open, sound

ROOT = Path(__file__).parent.parent


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """The folder of a store."""
    return tmp_path / "home"


@pytest.fixture
def store(home: Path) -> Iterator[Store]:
    """An empty store."""
    store = Store(home)
    yield store
    store.close()


@pytest.fixture
def show(home: Path, monkeypatch: pytest.MonkeyPatch) -> Open:
    """Opens a page of a dashboard that starts no engines."""
    monkeypatch.setenv("MIRRORBOARD_HOME", str(home))
    monkeypatch.setenv("MIRRORBOARD_WATCH", "1")

    def open_page(script: str, **query: str) -> AppTest:
        app = AppTest.from_file(str(ROOT / "streamlit_app.py"), default_timeout=20)
        for name, value in query.items():
            app.query_params[name.replace("__", ".")] = value
        if script != "streamlit_app.py":
            app.switch_page(script)
        return sound(app.run())

    return open_page


@contextmanager
def launching(store: Store, *, keep_warm: bool) -> Iterator[Launcher]:
    """A launcher that starts engines for the store's jobs and ends them afterwards."""
    launcher = Launcher(store, keep_warm=keep_warm)
    launcher.start()
    yield launcher
    for job in store.jobs():
        if not job.status.is_final:
            store.request_stop(job.id)
    wait_for(lambda: all(job.status.is_final for job in store.jobs()), 20, "jobs to end")
    launcher.close()


@pytest.fixture
def launcher(store: Store) -> Iterator[Launcher]:
    """A launcher that starts engines for the store's jobs."""
    with launching(store, keep_warm=False) as launcher:
        yield launcher


@pytest.fixture
def run_job(store: Store, launcher: Launcher) -> Callable[..., Job]:
    """Queues a job and returns it when it has ended."""

    def run(kind: Kind, config: dict[str, Any], timeout_s: float = 120) -> Job:
        job_id = store.submit(kind, config)
        launcher.wake()
        return ended(store, job_id, timeout_s)

    return run


def ended(store: Store, job_id: str, timeout_s: float = 120) -> Job:
    """Waits for a job's end."""
    return wait_for(
        lambda: (job := store.job(job_id)).status.is_final and job, timeout_s, f"job {job_id} to end"
    )


def wait_for(condition: Callable[[], Any], timeout_s: float, what: str) -> Any:
    """Waits until a condition holds and returns its value."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < deadline, f"waited {timeout_s} s for {what}"
        time.sleep(0.05)
    return value


def command(
    *arguments: str, home: Path | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Runs the command line to its end."""
    shared = ["--home", str(home)] if home else []
    return subprocess.run(
        [sys.executable, "-m", "core", *arguments, *shared],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


def json_of(done: subprocess.CompletedProcess[str]) -> Any:
    """What a command printed with ``--json``; standard output must hold nothing else."""
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


QUICK: dict[str, Any] = {
    "layout": {"logical_devices": 2},
    "data": {"dataset": "synthetic"},
    "training": {"epochs": 1, "batch_size": 512},
}
"""A run on real code paths that takes a second or two."""

LONG: dict[str, Any] = {**QUICK, "training": {"epochs": 500, "batch_size": 64}}
"""A run that lasts until somebody ends it."""
