"""The engine beside the chapter's own script on real Reuters: one device, and two logical CPUs.

Usage: ``python -m benchmarks.engine [--rounds N] [--epochs N] [--json]``. Script and engine run in turn,
A B A B; an epoch's time includes validation, and the first epoch of each run is left out: it builds graphs.
Needs the Reuters files in Keras's cache.
"""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import click

ROOT = Path(__file__).parent.parent


def script(devices: int, epochs: int) -> dict[str, Any]:
    """One run of the chapter's script."""
    out = _python("-m", "benchmarks.chapter", str(devices), str(epochs))
    result: dict[str, Any] = json.loads(out.splitlines()[-1])
    return result


def engine(devices: int, epochs: int, home: Path) -> dict[str, Any]:
    """One run of the engine, from the command line."""
    strategy = "single" if devices == 1 else "mirrored"
    arguments = ["--strategy", strategy, "--logical-devices", str(devices), "--epochs", str(epochs)]
    run = json.loads(_python("-m", "core", "train", *arguments, "--json", "--home", str(home)))
    return {
        "epoch_s": [epoch["duration_s"] for epoch in run["history"]],
        "val_accuracy": max(epoch["val_sparse_categorical_accuracy"] for epoch in run["history"]),
    }


def _python(*arguments: str) -> str:
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout


@click.command()
@click.option("--rounds", default=3, show_default=True)
@click.option("--epochs", default=4, show_default=True)
@click.option("--json", "as_json", is_flag=True)
def main(rounds: int, epochs: int, *, as_json: bool) -> None:
    """Compares, and prints the table."""
    table: dict[str, Any] = {
        "machine": f"{platform.processor() or platform.machine()}, {os.cpu_count()} cores"
    }
    with tempfile.TemporaryDirectory() as home:
        for devices in (1, 2):
            a: list[dict[str, Any]] = []
            b: list[dict[str, Any]] = []
            for _ in range(rounds):
                a.append(script(devices, epochs))
                b.append(engine(devices, epochs, Path(home)))
            medians = [statistics.median(s for run in runs for s in run["epoch_s"][1:]) for runs in (a, b)]
            pairs = [
                statistics.median(x["epoch_s"][1:]) / statistics.median(y["epoch_s"][1:])
                for x, y in zip(a, b, strict=True)
            ]
            table[f"{devices} device{'s' * (devices > 1)}"] = {
                "script_epoch_s": round(medians[0], 3),
                "engine_epoch_s": round(medians[1], 3),
                "times_as_fast": round(statistics.median(pairs), 2),
                "script_val_accuracy": round(statistics.median(run["val_accuracy"] for run in a), 3),
                "engine_val_accuracy": round(statistics.median(run["val_accuracy"] for run in b), 3),
            }
    if as_json:
        click.echo(json.dumps(table, indent=2))
        return
    click.echo(table.pop("machine"))
    for layout, row in table.items():
        click.echo(
            f"{layout:>10}: script {row['script_epoch_s']:.2f} s an epoch, engine"
            f" {row['engine_epoch_s']:.2f} s, {row['times_as_fast']:.2f} times as fast;"
            f" validation accuracy {row['script_val_accuracy']:.3f} and {row['engine_val_accuracy']:.3f}"
        )


if __name__ == "__main__":
    main()
