"""The engine beside the chapter's own script on real Reuters: one device, and two logical CPUs.

Usage: ``python -m benchmarks.engine [--runs N] [--epochs N] [--unwatched] [--json] [--write]``. Script and
engine run in turn, A B A B; an epoch's time includes validation, and the first epoch of each run is left out:
it builds graphs. While the engine trains, a dashboard on the same machine shows the run in a browser. Needs
the Reuters files in Keras's cache, and unless ``--unwatched`` Chromium and ``tests/requirements.txt``.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click
from playwright.sync_api import Browser

from benchmarks.tables import Columns, publish
from core.config import parse_config
from core.launcher import Launcher
from core.records import Kind, Status
from core.report import report
from core.store import Store
from tests.browser_app import chromium, dashboard, heading, tab

ROOT = Path(__file__).parent.parent
_POLL_S = 0.5

COLUMNS: Columns = {
    "devices": ("Logical CPUs", "{}"),
    "script_epoch_s": ("Script, s an epoch", "{:.2f}"),
    "engine_epoch_s": ("Engine, s an epoch", "{:.2f}"),
    "times_as_fast": ("Times as fast", "{:.2f}"),
    "script_val_accuracy": ("Script, best validation accuracy", "{:.3f}"),
    "engine_val_accuracy": ("Engine, best validation accuracy", "{:.3f}"),
}


def script(devices: int, epochs: int, batch_size: int) -> dict[str, Any]:
    """One run of the chapter's script."""
    out = _python("-m", "benchmarks.chapter", str(devices), str(epochs), str(batch_size))
    result: dict[str, Any] = json.loads(out.splitlines()[-1])
    return result


def engine(devices: int, epochs: int, batch_size: int, home: Path, browser: Browser | None) -> dict[str, Any]:
    """One run of the engine, watched in a browser if there is one."""
    strategy = "single" if devices == 1 else "mirrored"
    config = {
        "layout": {"strategy": strategy, "logical_devices": devices},
        "training": {"epochs": epochs, "batch_size": batch_size},
    }
    with ExitStack() as stack:
        store = Store(home)
        stack.callback(store.close)
        launcher = Launcher(store, keep_warm=False)
        launcher.start()
        stack.callback(launcher.close)
        address, page = "", None
        if browser is not None:
            # Before the run: what a dashboard takes to start is another table's.
            address = stack.enter_context(dashboard(home, MIRRORBOARD_WATCH="1"))
            page = stack.enter_context(tab(browser))
            page.goto(f"{address}/training")
            heading(page, "Training")
        job_id = store.submit(Kind.TRAIN, parse_config(config).model_dump(mode="json"))
        launcher.wake()
        if page is not None:
            page.goto(f"{address}/training?run={job_id}")
        while not (job := store.job(job_id)).status.is_final:
            time.sleep(_POLL_S)
        assert job.status is Status.COMPLETED, job.error
        history = report(store, job_id)["history"]
    return {
        "epoch_s": [epoch["duration_s"] for epoch in history],
        "val_accuracy": max(epoch["val_sparse_categorical_accuracy"] for epoch in history),
    }


def _python(*arguments: str) -> str:
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=True
    )
    return done.stdout


def compare(
    devices: int, runs: int, epochs: int, *, batch_size: int, home: Path, browser: Browser | None
) -> dict[str, Any]:
    """One layout's row of the table."""
    a: list[dict[str, Any]] = []
    b: list[dict[str, Any]] = []
    for _ in range(runs):
        a.append(script(devices, epochs, batch_size))
        b.append(engine(devices, epochs, batch_size, home, browser))
    script_s, engine_s = (statistics.median(s for run in done for s in run["epoch_s"][1:]) for done in (a, b))
    ratios = [
        statistics.median(x["epoch_s"][1:]) / statistics.median(y["epoch_s"][1:])
        for x, y in zip(a, b, strict=True)
    ]
    return {
        "devices": devices,
        "script_epoch_s": round(script_s, 3),
        "engine_epoch_s": round(engine_s, 3),
        "times_as_fast": round(statistics.median(ratios), 2),
        "script_val_accuracy": round(statistics.median(run["val_accuracy"] for run in a), 3),
        "engine_val_accuracy": round(statistics.median(run["val_accuracy"] for run in b), 3),
    }


@click.command()
@click.option("--runs", default=3, show_default=True, help="Runs of each, on each layout.")
@click.option("--epochs", default=3, show_default=True, type=click.IntRange(min=2))
@click.option("--batch-size", default=32, show_default=True)
@click.option("--devices", default=(1, 2), show_default=True, multiple=True, help="Logical CPUs.")
@click.option("--unwatched", is_flag=True, help="Without a dashboard and a browser beside the engine.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--write", is_flag=True, help="Put the table into benchmarks/README.md.")
def main(
    runs: int,
    epochs: int,
    batch_size: int,
    devices: tuple[int, ...],
    *,
    unwatched: bool,
    as_json: bool,
    write: bool,
) -> None:
    """Compares, and prints the table."""
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        browser = None if unwatched else stack.enter_context(chromium())
        home = Path(folder) / "home"
        rows = [compare(n, runs, epochs, batch_size=batch_size, home=home, browser=browser) for n in devices]
    publish("engine", rows, COLUMNS, packages=["tensorflow", "keras"], as_json=as_json, write=write)


if __name__ == "__main__":
    main()
