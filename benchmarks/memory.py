"""What stays in memory when one run follows another, and when the desk engine answers many times.

Usage: ``python -m benchmarks.memory [--runs N] [--answers N] [--json] [--write]``. Runs are short, on
two logical CPUs, queued back to back in a store that one launcher looks after. Each layout engine ends with
its run; the desk engine and the launcher's own process stay.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import psutil

from benchmarks.tables import Columns, publish
from core.launcher import Launcher
from core.records import Job, Kind, Status
from core.store import Store

_POLL_S = 0.05

COLUMNS: Columns = {
    "run": ("After run", "{:,}"),
    "launcher_mib": ("Launcher, MiB", "{:,.0f}"),
    "desk_mib": ("Desk engine, MiB", "{:,.0f}"),
    "layout_peak_mib": ("Peak of the run's engine, MiB", "{:,.0f}"),
}


def resident_mib(pid: int) -> float:
    """Resident memory of a process; 0 when it is gone."""
    try:
        return psutil.Process(pid).memory_info().rss / 2**20
    except psutil.NoSuchProcess:
        return 0.0


def done(
    store: Store, launcher: Launcher, kind: Kind, config: dict[str, Any], each: Callable[[Job], None]
) -> None:
    """Queues a job and waits for its end.

    Args:
        store: Where.
        launcher: Who looks after the store.
        kind: What to do.
        config: With what.
        each: Called with the job while it goes on.
    """
    job_id = store.submit(kind, config)
    launcher.wake()
    while not (job := store.job(job_id)).status.is_final:
        each(job)
        time.sleep(_POLL_S)
    assert job.status is Status.COMPLETED, job.error


def measure(store: Store, launcher: Launcher, runs: int, answers: int) -> list[dict[str, Any]]:
    """A row for each run."""
    rows = []
    for run in range(1, runs + 1):
        for answer in range(answers):
            model = {"embedding_size": 7 + answer % 20}
            done(store, launcher, Kind.DESCRIBE, {"model": model}, lambda _: None)
        peaks_mib = [0.0]

        def look(job: Job, peaks_mib: list[float] = peaks_mib) -> None:
            if job.pid is not None:
                peaks_mib.append(resident_mib(job.pid))

        config = {
            "layout": {"logical_devices": 2},
            "data": {"dataset": "synthetic"},
            "training": {"epochs": 2, "batch_size": 256},
        }
        done(store, launcher, Kind.TRAIN, config, look)
        desks = [engine.pid for engine in store.engines() if engine.role == "desk"]
        rows.append(
            {
                "run": run,
                "launcher_mib": round(resident_mib(psutil.Process().pid), 1),
                "desk_mib": round(sum(map(resident_mib, desks)), 1),
                "layout_peak_mib": round(max(peaks_mib), 1),
            }
        )
    return rows


@click.command()
@click.option("--runs", default=20, show_default=True)
@click.option("--answers", default=20, show_default=True, help="Models described before each run.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--write", is_flag=True, help="Put the table into benchmarks/README.md.")
def main(runs: int, answers: int, *, as_json: bool, write: bool) -> None:
    """Measures, and prints the table."""
    with tempfile.TemporaryDirectory() as home:
        store = Store(Path(home))
        launcher = Launcher(store)
        launcher.start()
        try:
            rows = measure(store, launcher, runs, answers)
        finally:
            launcher.close()
            store.close()
    publish("memory", rows, COLUMNS, packages=["tensorflow", "keras"], as_json=as_json, write=write)


if __name__ == "__main__":
    main()
