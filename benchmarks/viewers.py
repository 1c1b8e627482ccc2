"""Live viewers of one training: how soon they see a row, what the server pays, and what the training loses.

Usage: ``python -m benchmarks.viewers [--viewers 1,10,30,100] [--seconds N] [--json]``. The dashboard has the
first core to itself, the training the second, the viewers the others or, on two cores, the dashboard's too,
which counts against it. Viewers speak Streamlit's own protocol over websockets, see `benchmarks.session`.
Phases without viewers before and after say how fast the training is undisturbed.
"""

from __future__ import annotations

import asyncio
import bisect
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import numpy as np
import psutil

from benchmarks.session import Seen, watch
from benchmarks.tables import Columns, publish
from core.records import Job, Kind
from core.store import Store

ROOT = Path(__file__).parent.parent
_COLUMNS: Columns = {
    "viewers": ("Viewers", "{}"),
    "row_to_figure_p50_s": ("Row written to figure, p50 (s)", "{:.2f}"),
    "row_to_figure_p95_s": ("p95 (s)", "{:.2f}"),
    "asked_to_figure_p50_s": ("Asked to figure, p50 (s)", "{:.3f}"),
    "asked_to_figure_p95_s": ("p95 (s)", "{:.3f}"),
    "between_looks_s": ("Between looks (s)", "{:.1f}"),
    "server_cpu": ("Server, of a core", "{:.0%}"),
    "bytes_per_viewer_s": ("Bytes/s a viewer", "{:,.0f}"),
    "training_slowed": ("Training slowed by", "{:.1%}"),
}
_SETTLE_S = 5.0
"""From the last viewer's first figure until anything is measured."""
_ARRIVED_S = 60.0
"""How long viewers may take to get their first figure."""
_ARRIVE_S = 0.1
"""Between two viewers who open the page."""


class Clock:
    """Writes down when each row of a run got into the store. Times are of `time.perf_counter`."""

    def __init__(self, store: Store, job: Job) -> None:
        self._store, self._job = store, job
        self.written: list[tuple[float, int]] = []
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        version, last = -1, 0
        while not self._is_over.wait(0.005):
            now = time.perf_counter()
            if (newest := self._store.data_version()) == version:
                continue
            version = newest
            rows = [row for row in self._store.step_values(self._job, after=last) if row[2] == "loss"]
            if rows:
                last = rows[-1][0]
                self.written.append((now, rows[-1][1]))

    def stop(self) -> None:
        """Ends the looking."""
        self._is_over.set()
        self._thread.join()


@contextmanager
def on_cores(cores: Sequence[int]) -> Iterator[None]:
    """What is started meanwhile runs on these cores alone, and so do its children."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _wait(condition: Any, seconds: float, what: str) -> Any:
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise click.ClickException(f"waited {seconds:.0f} s for {what}")
        time.sleep(0.1)
    return value


def _answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://{address}/_stcore/health", timeout=1) as answer:
            return bool(answer.status == 200)  # noqa: PLR2004
    except OSError:
        return False


@contextmanager
def _process(arguments: Sequence[str], cores: Sequence[int], **environment: str) -> Iterator[psutil.Process]:
    with on_cores(cores):
        process = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=ROOT,
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", **environment},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
    try:
        yield psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait(timeout=30)


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def _phase(
    address: str, server: psutil.Process, clock: Clock, job: Job, *, viewers: int, seconds: float
) -> dict[str, Any]:
    """Lets so many viewers watch for a while."""
    seen = [Seen() for _ in range(viewers)]
    is_over = threading.Event()

    async def arrive(one: Seen, after_s: float) -> None:
        await asyncio.sleep(after_s)
        await watch(address, job.id, one, is_over.is_set)

    async def all_arrive() -> None:
        await asyncio.gather(*(arrive(one, i * _ARRIVE_S) for i, one in enumerate(seen)))

    crowd = threading.Thread(target=lambda: asyncio.run(all_arrive()))
    crowd.start()
    deadline = time.monotonic() + _ARRIVED_S
    while not all(one.figures for one in seen) and time.monotonic() < deadline:
        time.sleep(0.1)
    time.sleep(_SETTLE_S)
    begin = time.perf_counter()
    server_s, clients_s, counted = _cpu_s(server), time.process_time(), [_counts(one) for one in seen]
    time.sleep(seconds)
    end = time.perf_counter()
    server_s, clients_s = _cpu_s(server) - server_s, time.process_time() - clients_s
    counts = np.array([_counts(one) for one in seen]) - np.array(counted)
    is_over.set()
    crowd.join()
    written = [(at, step) for at, step in clock.written if begin <= at < end]
    trained = (written[-1][1] - written[0][1]) / (written[-1][0] - written[0][0])
    late = [each for one in seen for each in _latencies(written, one.figures)]
    answers = [
        answer for one, before in zip(seen, counted, strict=True) for answer in one.answers_s[before[2] :]
    ]
    ticks, received, _ = counts.sum(axis=0) if viewers else (0, 0, 0)
    return {
        "viewers": viewers,
        **_quantiles("row_to_figure", late),
        **_quantiles("asked_to_figure", answers),
        "between_looks_s": round(viewers * seconds / int(ticks), 2) if ticks else None,
        "server_cpu": round(server_s / seconds, 3),
        "viewers_cpu": round(clients_s / seconds, 3),
        "bytes_per_viewer_s": round(int(received) / viewers / seconds) if viewers else None,
        "without_figure": sum(not one.figures for one in seen),
        "trained_steps_per_s": round(trained, 2),
    }


def _counts(seen: Seen) -> tuple[int, int, int]:
    return len(seen.before_look), seen.received_bytes, len(seen.answers_s)


def _latencies(written: list[tuple[float, int]], figures: list[tuple[float, int]]) -> list[float]:
    """From each row's way into the store until the first figure that shows it."""
    steps = [step for _, step in figures]
    places = ((at, bisect.bisect_left(steps, step)) for at, step in written)
    return [figures[place][0] - at for at, place in places if place < len(figures)]


def _quantiles(name: str, values: Sequence[float]) -> dict[str, float | None]:
    return {
        f"{name}_p{share}_s": round(float(np.quantile(np.array(values), share / 100)), 3) if values else None
        for share in (50, 95)
    }


def measure(viewers: Sequence[int], seconds: float) -> list[dict[str, Any]]:
    """All phases."""
    cores = sorted(os.sched_getaffinity(0))
    serving, training, watching = cores[:1], cores[1:2] or cores[:1], cores[2:] or cores[:1]
    os.sched_setaffinity(0, watching)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "home"
        store = Store(home)
        page = ["-m", "streamlit", "run", "streamlit_app.py", "--server.headless", "true"]
        page += ["--server.port", address.partition(":")[2]]
        train = ["-m", "core", "train", "--dataset", "synthetic", "--strategy", "single"]
        train += ["--epochs", "1000", "--home", str(home)]
        with (
            _process(page, serving, MIRRORBOARD_HOME=str(home), MIRRORBOARD_WATCH="1") as server,
            _process(train, training),
        ):
            _wait(lambda: _answers(address), 60, "the dashboard")
            (job,) = _wait(lambda: store.jobs(kinds=[Kind.TRAIN]), 120, "the run")
            # The first epoch builds graphs.
            _wait(lambda: store.epochs_done(job) > 0, 180, "the first epoch")
            clock = Clock(store, job)
            try:
                rows = [
                    _phase(address, server, clock, job, viewers=count, seconds=seconds)
                    for count in (0, *viewers, 0)
                ]
            finally:
                clock.stop()
                store.request_stop(job.id)
                _wait(lambda: store.job(job.id).status.is_final, 30, "the training to stop")
        store.close()
    alone = statistics.mean(row["trained_steps_per_s"] for row in rows if not row["viewers"])
    for row in rows:
        row["training_slowed"] = round(1 - row["trained_steps_per_s"] / alone, 3)
    return rows


@click.command()
@click.option("--viewers", default="1,10,30,100", show_default=True)
@click.option("--seconds", default=40.0, show_default=True, help="Measured time of each phase.")
@click.option("--json", "as_json", is_flag=True)
@click.option("--write", is_flag=True, help="Put the table into benchmarks/README.md.")
def main(viewers: str, seconds: float, *, as_json: bool, write: bool) -> None:
    """Measures, and prints the table."""
    rows = measure([int(count) for count in viewers.split(",")], seconds)
    packages = ("tensorflow", "streamlit", "plotly")
    publish("viewers", rows, _COLUMNS, packages=packages, as_json=as_json, write=write)


if __name__ == "__main__":
    main()
