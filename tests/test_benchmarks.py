"""The benchmarks' commands, each in its shortest form, so that they can be run again at any time."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from benchmarks.logging import row
from benchmarks.tables import markdown
from core.dashboard.navigation import STEPS
from core.engine.datasets import cache_folders
from tests.conftest import ROOT


def benchmark(name: str, *arguments: str) -> list[dict[str, Any]]:
    """Runs a command; with ``--json`` standard output must hold one object and nothing else."""
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{name}", *arguments, "--json"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)
    assert "tensorflow" in results["machine"] or "streamlit" in results["machine"]
    assert results["command"].startswith(f"python -m benchmarks.{name} ")
    rows: list[dict[str, Any]] = results["rows"]
    return rows


def test_a_table_is_aligned_and_marks_what_is_missing() -> None:
    rows = [{"what": "ours", "us": 1234.5}, {"what": "a longer name", "us": None}]
    table = markdown(rows, {"what": ("What", "{}"), "us": ("µs", "{:,.0f}")})
    assert table.splitlines() == [
        "| What          | µs    |",
        "|---------------|-------|",
        "| ours          | 1,234 |",
        "| a longer name | –     |",
    ]


def test_the_logging_benchmark_counts_every_step_and_the_supervision() -> None:
    short = ["--runs", "1", "--epochs", "2", "--batch-size", "512"]
    nothing, ours = benchmark("logging", *short, "--callback", "none", "--callback", "mirrorboard")
    assert nothing["callback"] == "None"
    assert nothing["core_percent"] is None
    assert ours["callback"] == "Mirrorboard"
    assert 0 < ours["step_us"] < 1e6 * ours["epoch_s"]
    assert 0 < ours["epoch_percent"] < 100
    assert 0 < ours["core_percent"] < 100


def test_a_tracker_that_is_not_installed_is_listed_as_such() -> None:
    missing = row("mlflow", [], None)
    assert missing["callback"] == "MLflow: not installed"
    assert missing["step_us"] is None


@pytest.mark.skipif(
    not any((folder / "reuters.npz").exists() for folder in cache_folders()),
    reason="reuters.npz is not in Keras's cache (KERAS_HOME/datasets)",
)
def test_the_engine_benchmark_compares_with_the_script() -> None:
    (row,) = benchmark("engine", "--runs", "1", "--epochs", "2", "--batch-size", "512", "--devices", "1")
    assert row["devices"] == 1
    assert row["script_epoch_s"] > 0
    assert row["engine_epoch_s"] > 0
    assert row["times_as_fast"] == pytest.approx(row["script_epoch_s"] / row["engine_epoch_s"], abs=0.02)
    assert row["script_val_accuracy"] > 0.3
    assert row["engine_val_accuracy"] > 0.3


def test_the_memory_benchmark_sees_every_process() -> None:
    (row,) = benchmark("memory", "--runs", "1", "--answers", "1")
    assert row["run"] == 1
    assert all(10 < row[name] < 4_000 for name in ("launcher_mib", "desk_mib", "layout_peak_mib"))


def test_the_dashboard_benchmark_opens_every_page() -> None:
    rows = {row["measure"]: row for row in benchmark("dashboard", "--runs", "1", "--rounds", "1")}
    assert rows["First paint, s"]["median"] > 0
    for page in ("Mirrorboard", *(step.name for step in STEPS), "Runs"):
        assert rows[f"Switch to {page}, ms"]["median"] > 0
    assert rows["Switch to any page, ms"]["lowest"] > 0
    memory = [row["median"] for measure, row in rows.items() if measure.startswith("Memory")]
    assert len(memory) == 3
    assert all(10 < mib < 2_000 for mib in memory)


def test_a_refresh_of_more_points_sends_no_more() -> None:
    few, many = benchmark("points", "--points", "2000,30000", "--refreshes", "1")
    assert (few["points"], many["points"]) == (2_000, 30_000)
    assert many["bytes"] < 1.1 * few["bytes"]


def test_the_soak_does_harm_and_counts() -> None:
    (row,) = benchmark("soak", "--runs", "2")
    assert (row["runs"], row["wrong"], row["lost"], row["left_over"], row["orphans"]) == (2, 0, 0, 0, 0)
    assert row["unseen"] == 0
    # Harm that comes too late proves nothing.
    assert row["in_time"] == 2 - int(row["fates"].split(" none")[0])
    assert row["seconds_each"] > 0
