"""What watching a fit costs: our callback beside none, and beside those of other trackers.

Usage: ``python -m benchmarks.logging [--runs N] [--epochs N] [--json] [--write]``. Each fit has a process of
its own, and the callbacks take turns, so that a busy minute meets them all. The first epoch of each fit is
left out: it builds graphs. Trackers that are not installed (``benchmarks/requirements.txt``) are listed as
such. Nothing is sent over the network.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import click

from benchmarks.tables import Columns, publish
from core.launcher import ENGINE_ENVIRONMENT

ROOT = Path(__file__).parent.parent

NAMES = {
    "none": "None",
    "reading": "Only reads the logs",
    "mirrorboard": "Mirrorboard",
    "mirrorboard_step": "Mirrorboard, one step per execution",
    "trackio": "Trackio",
    "mlflow": "MLflow",
    "wandb": "Weights & Biases, offline",
    "tensorboard": "TensorBoard",
}
DISTRIBUTIONS = {
    "trackio": "trackio",
    "mlflow": "mlflow-skinny",
    "wandb": "wandb",
    "tensorboard": "tensorboard",
}
SUPERVISED = ("mirrorboard", "mirrorboard_step")

COLUMNS: Columns = {
    "callback": ("Callback", "{}"),
    "step_us": ("µs a step", "{:,.0f}"),
    "epoch_percent": ("% of the epoch", "{:.2f}"),
    "core_percent": ("% of a core, all counted", "{:.2f}"),
    "epoch_s": ("Epoch, s", "{:.2f}"),
}

_OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "WANDB_MODE": "offline",
    "WANDB_SILENT": "true",
    "WANDB_ERROR_REPORTING": "false",
}


def fit(name: str, home: Path, dataset: str, epochs: int, batch_size: int) -> dict[str, float | None]:
    """One fit in a process of its own, and its figures over all epochs but the first."""
    environment = {
        **os.environ,
        **ENGINE_ENVIRONMENT,
        **_OFFLINE,
        "TF_CPP_MIN_LOG_LEVEL": "3",
        # The trackers keep settings and caches in the user's home, and MLflow writes to where it is started.
        "HOME": str(home),
        "PYTHONPATH": str(ROOT),
        "TRACKIO_DIR": str(home / "trackio"),
        "KERAS_HOME": os.environ.get("KERAS_HOME", str(Path.home() / ".keras")),
    }
    arguments = [name, str(home), dataset, str(epochs), str(batch_size)]
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.watched_fit", *arguments],
        cwd=home,
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    run = json.loads(done.stdout.splitlines()[-1])
    later: list[dict[str, float]] = run["epochs"][1:]
    total = {key: sum(epoch[key] for epoch in later) for key in later[0]}
    cpu_s = total["hooks_cpu_s"] + total["main_cpu_s"]
    return {
        "step_us": total["steps_s"] / len(later) / run["steps"] * 1e6,
        "epoch_percent": 100 * total["hooks_s"] / total["epoch_s"],
        # What other trackers do in threads and processes of their own cannot be told apart from the fit.
        "core_percent": 100 * cpu_s / total["epoch_s"] if name in SUPERVISED else None,
        "epoch_s": total["epoch_s"] / len(later),
    }


def row(name: str, fits: list[dict[str, float | None]], found: str | None) -> dict[str, Any]:
    """A callback's row of the table: medians over its fits.

    Args:
        name: Which callback.
        fits: Their figures; none when the tracker is not installed.
        found: The tracker's version.
    """
    what = f"{NAMES[name]} {found or ''}".strip() if fits else f"{NAMES[name]}: not installed"
    figures: dict[str, float | None] = {}
    for key in ("step_us", "epoch_percent", "core_percent", "epoch_s"):
        values = [value for fit in fits if (value := fit[key]) is not None]
        figures[key] = round(statistics.median(values), 3) if values else None
    return {"callback": what, **figures}


def installed(name: str) -> str | None:
    """The version of a tracker; None where it is not installed."""
    try:
        return version(DISTRIBUTIONS[name])
    except PackageNotFoundError:
        return None


@click.command()
@click.option("--runs", default=3, show_default=True, help="Fits of each callback.")
@click.option("--epochs", default=4, show_default=True, type=click.IntRange(min=2))
@click.option("--batch-size", default=32, show_default=True)
@click.option(
    "--dataset", default="synthetic", show_default=True, type=click.Choice(["synthetic", "reuters"])
)
@click.option("--callback", "names", multiple=True, type=click.Choice(list(NAMES)), help="Only this one.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--write", is_flag=True, help="Put the table into benchmarks/README.md.")
def main(
    runs: int,
    epochs: int,
    batch_size: int,
    dataset: str,
    names: tuple[str, ...],
    *,
    as_json: bool,
    write: bool,
) -> None:
    """Measures, and prints the table."""
    fits: dict[str, list[dict[str, float | None]]] = {name: [] for name in names or NAMES}
    versions = {name: installed(name) for name in DISTRIBUTIONS}
    with tempfile.TemporaryDirectory() as home:
        for _ in range(runs):
            for name, done in fits.items():
                if name not in DISTRIBUTIONS or versions[name]:
                    done.append(fit(name, Path(home), dataset, epochs, batch_size))
    rows = [row(name, done, versions.get(name)) for name, done in fits.items()]
    publish("logging", rows, COLUMNS, packages=["tensorflow", "keras"], as_json=as_json, write=write)


if __name__ == "__main__":
    main()
