"""The dashboard in a real browser: first paint, switching pages, the first point of a run, and memory.

Usage: ``python -m benchmarks.dashboard [--runs N] [--rounds N] [--json] [--write]``. Every run starts
``streamlit run`` twice in turn, with the engines that it warms up and without, on a store that holds the
synthetic newswires and a finished run of 10 epochs. Needs Chromium and ``tests/requirements.txt``.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import click
import psutil
from playwright.sync_api import Browser, Page

from benchmarks.tables import Columns, publish
from core import corpus
from core.engine import synthetic
from core.records import Job, Kind
from core.store import Store
from tests.browser_app import chromium, dashboard, settled, tab
from tests.conftest import wait_for
from tests.recorded import finished_run

COLUMNS: Columns = {
    "measure": ("Measure", "{}"),
    "median": ("Median", "{:,.4g}"),
    "lowest": ("Lowest", "{:,.4g}"),
    "highest": ("Highest", "{:,.4g}"),
    "count": ("Of", "{}"),
}

_ENGINES_READY_S = 120
_LAYOUTS = {"one CPU": "layout.strategy=single", "two logical CPUs": "layout.strategy=mirrored"}
_SWITCH = """async number => {
    const title = () => document.querySelector("h1")?.textContent;
    const state = () => document.querySelector("[data-testid=stApp]").dataset.testScriptState;
    const links = document.querySelectorAll("[data-testid=stSidebar] [data-testid=stPageLink] a");
    const before = title(), began = performance.now();
    links[number].click();
    do {
        await new Promise((done) => setTimeout(done, 20));  // no frames: they would be drawn
        if (performance.now() - began > 30000) throw new Error(`"${before}" did not change`);
    } while (!title() || title() === before || state() !== "notRunning");
    return [title(), performance.now() - began];
}"""
"""Clicks a link of the sidebar; gives the new page's heading, and after how many ms it had settled."""
_START = """async () => {
    const points = () => document.querySelector(".st-key-loss_chart .plot")?._fullData?.[0]?.x?.length;
    const began = performance.now();
    document.querySelector(".st-key-start button").click();
    while (!points()) {
        await new Promise((done) => setTimeout(done, 20));  // no frames: they would be drawn
        if (performance.now() - began > 120000) throw new Error("no point came");
    }
    return performance.now() - began;
}"""
"""Clicks Start; gives the ms until a point of the new run is on the chart."""


@dataclass
class Measured:
    """What was measured, over all runs."""

    paint_s: list[float] = field(default_factory=list)
    paint_alone_s: list[float] = field(default_factory=list)
    switch_ms: dict[str, list[float]] = field(default_factory=dict)
    """By the heading of the page that was opened."""
    idle_bytes: list[int] = field(default_factory=list)
    pages_bytes: list[int] = field(default_factory=list)
    run_bytes: list[int] = field(default_factory=list)
    start_s: dict[str, list[float]] = field(default_factory=dict)
    """By the layout that is trained on."""


def first_paint(home: Path, browser: Browser) -> float:
    """Seconds from starting a dashboard that starts no engines to the first page's heading."""
    began = time.perf_counter()
    with dashboard(home, MIRRORBOARD_WATCH="1") as address, tab(browser) as page:
        return _paint(page, address) - began


def look(home: Path, browser: Browser, run: Job, rounds: int, measured: Measured) -> None:
    """Starts a dashboard as people do, opens each of its pages, a finished run, and starts others."""
    began = time.perf_counter()
    with dashboard(home) as address, closing(Store(home)) as store, tab(browser) as page:
        measured.paint_s.append(_paint(page, address) - began)
        (process,) = (child for child in psutil.Process().children() if "streamlit" in child.cmdline())
        wait_for(lambda: _ready(store), _ENGINES_READY_S, "the engines")
        settled(page)
        measured.idle_bytes.append(process.memory_info().rss)
        pages = page.locator("[data-testid=stSidebar] [data-testid=stPageLink] a").count()
        for turn in range(rounds + 1):
            for number in [*range(1, pages), 0]:
                heading, duration_ms = page.evaluate(_SWITCH, number)
                if turn:  # the first time around, the server imports and reads what the pages need
                    measured.switch_ms.setdefault(heading, []).append(duration_ms)
        measured.pages_bytes.append(process.memory_info().rss)
        page.goto(f"{address}/training?run={run.id}")
        page.wait_for_selector("[role=figure] .plot-container")
        settled(page)
        measured.run_bytes.append(process.memory_info().rss)
        loaded = {Path(part.path).parts for part in process.memory_maps()}
        assert not any("tensorflow" in parts or "keras" in parts for parts in loaded)
        page.goto("about:blank")
        _start(browser, address, store, measured)


def _start(browser: Browser, address: str, store: Store, measured: Measured) -> None:
    """Starts runs on the synthetic newswires while a warm engine waits, and times their first point."""
    for name, layout in _LAYOUTS.items():
        wait_for(lambda: _ready(store), _ENGINES_READY_S, "the engines")
        with tab(browser) as page:
            page.goto(f"{address}/training?data.dataset=synthetic&training.epochs=50&{layout}")
            page.wait_for_selector(".st-key-start button:not([disabled])", state="attached")
            settled(page)
            measured.start_s.setdefault(name, []).append(page.evaluate(_START) / 1e3)
        run = store.jobs(kinds=[Kind.TRAIN], limit=1)[0]
        store.request_stop(run.id)
        wait_for(partial(_ended, store, run.id), 30, "the run to stop")


def _ended(store: Store, run_id: str) -> bool:
    return store.job(run_id).status.is_final


def _paint(page: Page, address: str) -> float:
    page.goto(address)
    page.wait_for_selector("h1")
    return time.perf_counter()


def _ready(store: Store) -> bool:
    """Whether an engine of each role waits; that of a run which has just ended is still about to leave."""
    engines = store.engines()
    waiting = {engine.role for engine in engines if engine.ready_at is not None and engine.job is None}
    return waiting == {"desk", "layout"} and len(engines) == len(waiting)


def table(measured: Measured) -> list[dict[str, Any]]:
    """The rows of the table."""
    switches = [ms for values in measured.switch_ms.values() for ms in values]
    mib = 2**20
    return [
        _row("First paint, s", measured.paint_s),
        _row("First paint without engines beside it, s", measured.paint_alone_s),
        *(_row(f"Switch to {name}, ms", values) for name, values in measured.switch_ms.items()),
        _row("Switch to any page, ms", switches),
        {
            "measure": "Switch to any page, 95th percentile, ms",
            "median": round(statistics.quantiles(switches, n=20, method="inclusive")[-1], 1),
            "lowest": None,
            "highest": None,
            "count": len(switches),
        },
        *(_row(f"Start to the first point, {name}, s", values) for name, values in measured.start_s.items()),
        _row("Memory when idle, MiB", [size / mib for size in measured.idle_bytes]),
        _row("Memory after all pages, MiB", [size / mib for size in measured.pages_bytes]),
        _row("Memory with a run open, MiB", [size / mib for size in measured.run_bytes]),
    ]


def _row(measure: str, values: Sequence[float]) -> dict[str, Any]:
    return {
        "measure": measure,
        "median": round(statistics.median(values), 2),
        "lowest": round(min(values), 2),
        "highest": round(max(values), 2),
        "count": len(values),
    }


@click.command()
@click.option("--runs", default=3, show_default=True, help="Starts of the dashboard, of each kind.")
@click.option("--rounds", default=5, show_default=True, help="Times around all pages, each run.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--write", is_flag=True, help="Put the table into benchmarks/README.md.")
def main(runs: int, rounds: int, *, as_json: bool, write: bool) -> None:
    """Measures, and prints the table."""
    measured = Measured()
    with tempfile.TemporaryDirectory() as folder, chromium() as browser:
        home = Path(folder) / "home"
        store = Store(home)
        corpus.save(synthetic.generate(), home)
        run = finished_run(store)
        store.close()
        for _ in range(runs):
            measured.paint_alone_s.append(first_paint(home, browser))
            look(home, browser, run, rounds, measured)
    packages = ["streamlit", "plotly"]
    publish("dashboard", table(measured), COLUMNS, packages=packages, as_json=as_json, write=write)


if __name__ == "__main__":
    main()
