"""What a refresh of a live run costs as the run grows: time on the server, bytes to the browser.

Usage: ``python -m benchmarks.points [--points 1000,10000,100000,1000000] [--json]``. Each run has so many
logged values of loss and as many of accuracy; a refresh reads another 16 steps and makes the two charts that
change with every step. Times are the thread's own processor time, so that what else runs counts little.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import numpy as np

from benchmarks.tables import Columns, publish
from core.config import RunConfig
from core.dashboard.charts import Part
from core.dashboard.live import RunView
from core.records import Engine, Kind, Metric
from core.store import Store

_COLUMNS: Columns = {
    "points": ("Points", "{:,}"),
    "opened_s": ("First reading (s)", "{:.2f}"),
    "read_ms": ("A refresh reads in (ms)", "{:.1f}"),
    "draw_ms": ("and draws in (ms)", "{:.1f}"),
    "draw_zoomed_ms": ("zoomed (ms)", "{:.1f}"),
    "bytes": ("Bytes to the browser", "{:,}"),
}
_NAMES = ("loss", "sparse_categorical_accuracy")
_STEPS_PER_EPOCH = 281
_NEW = 16
"""Steps between two refreshes."""
_EPOCHS = 10
_AT_ONCE = 100_000


def measure(points: int, refreshes: int) -> dict[str, Any]:
    """Grows a run to so many points, then refreshes it some times."""
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder) / "home")
        config = RunConfig.model_validate({"data": {"dataset": "synthetic"}})
        run_id = store.submit(Kind.TRAIN, config.model_dump(mode="json"))
        store.add_engine(Engine("nobody", "layout", 1, 0.0, 1, time.time(), None, None))
        job = store.claim([Kind.TRAIN], "nobody")
        assert job is not None
        result = {"steps_per_epoch": max(points // _EPOCHS, _STEPS_PER_EPOCH)}
        store.report(job, result=result, metrics=_epochs())
        values = np.random.default_rng(1).normal(2.0, 0.3, points + refreshes * _NEW)

        def write(first: int, end: int) -> None:
            rows = (
                Metric("step", step, 0, "train", name, values[step], 0.0)
                for step in range(first, end)
                for name in _NAMES
            )
            store.report(job, metrics=rows)

        for first in range(0, points, _AT_ONCE):
            write(first, min(first + _AT_ONCE, points))
        shown = RunView(store, run_id)
        opened_s = _timed(shown.refresh)
        read_s, draw_s, zoomed_s, size = [], [], [], 0
        for first in range(points, points + refreshes * _NEW, _NEW):
            write(first, first + _NEW)
            time.sleep(0.5)  # what was read in the last half second counts as fresh
            read_s.append(_timed(shown.refresh))
            draw_s.append(_timed(lambda: _draw(shown)))
            zoomed_s.append(_timed(lambda: _draw(shown, Part(4.0, 4.5, f"{run_id} epoch"))))
            size = _draw(shown)
        store.close()
    return {
        "points": points,
        "opened_s": round(opened_s, 3),
        "read_ms": round(1e3 * statistics.median(read_s), 2),
        "draw_ms": round(1e3 * statistics.median(draw_s), 2),
        "draw_zoomed_ms": round(1e3 * statistics.median(zoomed_s), 2),
        "bytes": size,
    }


def _epochs() -> Iterator[Metric]:
    for epoch in range(3):
        for split in ("train", "validation"):
            for name in _NAMES:
                yield Metric("epoch", epoch, epoch, split, name, 2.0 - epoch / 10, 0.0)


def _draw(shown: RunView, part: Part | None = None) -> int:
    """Makes both charts, and returns their size in bytes."""
    part = part or Part()
    return len(shown.loss("epoch", {}, part)) + len(shown.accuracy("epoch", {}, _NAMES[1], part))


def _timed(act: Callable[[], object]) -> float:
    begin = time.thread_time()
    act()
    return time.thread_time() - begin


@click.command()
@click.option("--points", default="1000,10000,100000,1000000", show_default=True)
@click.option("--refreshes", default=20, show_default=True)
@click.option("--json", "as_json", is_flag=True)
@click.option("--write", is_flag=True, help="Put the table into benchmarks/README.md.")
def main(points: str, refreshes: int, *, as_json: bool, write: bool) -> None:
    """Measures, and prints the table."""
    rows = [measure(int(count), refreshes) for count in points.split(",")]
    packages = ("streamlit", "plotly", "tsdownsample")
    publish("points", rows, _COLUMNS, packages=packages, as_json=as_json, write=write)


if __name__ == "__main__":
    main()
