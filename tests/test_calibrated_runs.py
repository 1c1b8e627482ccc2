"""Calibration of a run: measured by the engine, kept in the store, shown on the page."""

from __future__ import annotations

import base64
import json
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from core import report, schema
from core.analysis.calibration import expected_calibration_error
from core.dashboard.live import RunView
from core.records import ConfidenceBin, Job, Kind, Metric, Status
from core.store import Store
from tests.conftest import QUICK, ROOT
from tests.page_app import Open, charts, texts
from tests.recorded import STEPS, finished_run, running_run

NAME = "expected_calibration_error"
ERRORS = (0.05, 0.04, 0.09, 0.15, 0.2, 0.22, 0.23, 0.24, 0.24, 0.33)
ERROR_TITLE = "Expected calibration error: how far validation confidence is off"

# Fits with the engine's own code, and recomputes each epoch's ECE from the outputs of the same weights.
_RECOMPUTING = """
import json, sys, threading
from pathlib import Path
import numpy as np
from core import corpus
from core.analysis.calibration import expected_calibration_error, reliability, top_label
from core.config import parse_config
from core.engine import fit
from core.engine.callbacks import Outbox
from core.engine.checkpoints import Checkpoints

config, home = parse_config(json.loads(sys.argv[1])), Path(sys.argv[2])
recomputed = []

class Recomputing(fit.Reporter):
    def on_epoch_end(self, epoch, logs=None):
        super().on_epoch_end(epoch, logs)
        data = corpus.load(home, config.data.dataset)
        parts = np.array_split(data.padded("test", config.data.max_len), 5)
        outputs = np.concatenate([np.asarray(self.model(part, training=False)) for part in parts])
        bars = reliability(*top_label(outputs, data.split_labels("test")))
        recomputed.append((expected_calibration_error(bars), [bar.count for bar in bars]))

fit.Reporter = Recomputing
outbox = Outbox()
checkpoints = Checkpoints(home / sys.argv[3])
fit.train(config, home, outbox, threading.Event(), checkpoints=checkpoints, start=None)
bins = outbox.take_bins()
print(json.dumps({
    "recomputed": recomputed,
    "errors": [row.value for row in outbox.take_metrics() if row.name == "expected_calibration_error"],
    "counts": [[each.count for each in bins if each.epoch == epoch] for epoch in (0, 1)],
}))
"""

# The engine's bins of rows on the edges, of fillers and of outputs that are not numbers, in two shards.
_BY_HAND = """
import json
import numpy as np
from core.analysis.calibration import reliability, top_label
from core.engine.metrics import CalibrationSums

random = np.random.default_rng(3)
outputs = random.dirichlet(np.full(46, 0.05), 400)
outputs[:16, 0] = np.arange(16) / 15
outputs[:16, 1:] = 0
outputs[16] = np.nan
outputs[17, 0] = 1.0000001
labels = random.integers(0, 3, 400)
real = np.ones(400, np.float32)
real[380:] = 0
outputs[390:] = np.nan
sums = CalibrationSums()
for shard in (slice(0, 150), slice(150, 400)):
    sums.update_state(labels[shard], outputs[shard], real[shard])
expected = [
    (bar.count, (bar.confidence or 0.0) * bar.count, (bar.accuracy or 0.0) * bar.count)
    for bar in reliability(*top_label(outputs[:380], labels[:380]))
]
print(json.dumps({"measured": np.asarray(sums.result()).tolist(), "expected": expected}))
"""


def _printed(script: str, *arguments: str) -> Any:
    """What a script prints in a process of its own: TensorFlow takes one layout in a process's life."""
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def fits(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Small fits, by name; of the 2,246 validation rows the last batch holds 248, a whole one 999.

    In double precision as the experiment from_logits=True, of which Keras then makes a second softmax.
    """
    home = tmp_path_factory.mktemp("calibration")
    results = {}
    for name, replicas, double in (("one", 1, True), ("three", 3, True), ("three, single", 3, False)):
        config = {
            "layout": {"strategy": "single" if replicas == 1 else "mirrored", "logical_devices": replicas},
            "data": {"dataset": "synthetic", "max_len": 60},
            "model": {"embedding_size": 4, "filters": [8, 8], "from_logits": double},
            "training": {
                "epochs": 2,
                "batch_size": 999,
                "learning_rate": 0.01,
                "deterministic": double,
            },
            "execution": {"steps_per_execution": 8},
        }
        results[name] = _printed(_RECOMPUTING, json.dumps(config), str(home), name)
    return results


def test_bins_hold_every_validation_row_once(fits: dict[str, Any]) -> None:
    for name, measured in fits.items():
        assert [sum(counts) for counts in measured["counts"]] == [2246, 2246], name
        # More bins than the one of a second softmax, which leaves no confidence above 5.7 %.
        assert all(sum(counts[1:]) > 1000 for counts in measured["counts"]), name


def test_error_is_that_of_the_models_outputs(fits: dict[str, Any]) -> None:
    for name, measured in fits.items():
        assert measured["errors"] == pytest.approx([error for error, _ in measured["recomputed"]], abs=1e-6)
        assert measured["counts"] == [counts for _, counts in measured["recomputed"]], name


def test_error_does_not_depend_on_the_replicas(fits: dict[str, Any]) -> None:
    assert fits["three"]["errors"] == pytest.approx(fits["one"]["errors"], abs=1e-6)
    assert fits["three"]["counts"] == fits["one"]["counts"]


def test_edges_fillers_and_what_is_no_number() -> None:
    printed = _printed(_BY_HAND)
    assert sum(count for count, _, _ in printed["expected"]) == 379
    np.testing.assert_allclose(printed["measured"], printed["expected"], atol=1e-12)


def test_a_training_leaves_its_calibration_in_the_store(store: Store, run_job: Callable[..., Job]) -> None:
    job = run_job(Kind.TRAIN, {**QUICK, "training": {"epochs": 2, "batch_size": 512}})
    assert job.status is Status.COMPLETED, job.error
    assert job.result is not None
    rows = job.result["validation_examples"]
    for epoch in report.history(store, job):
        bins = store.confidence_bins(job, epoch["epoch"] - 1)
        assert sum(each.count for each in bins) == rows
        accuracy = sum(each.correct for each in bins) / rows
        assert accuracy == pytest.approx(epoch["val_sparse_categorical_accuracy"], abs=1e-6)
        diagram = report.reliability(store, job, epoch["epoch"])
        assert expected_calibration_error(diagram) == pytest.approx(epoch[f"val_{NAME}"], abs=1e-12)
        assert NAME not in epoch
    assert store.confidence_bins(job, 2) == []


def bins_of(epoch: int) -> list[ConfidenceBin]:
    """Three bins: empty, half right, and right less often the later the epoch."""
    return [
        ConfidenceBin(epoch, 0, 0, 0.0, 0),
        ConfidenceBin(epoch, 1, 1_000, 500.0, 500),
        ConfidenceBin(epoch, 2, 1_000, 900.0, 900 - 50 * epoch),
    ]


def calibrated(store: Store, job: Job, first: int = 0, last: int = 10) -> Job:
    """Adds the calibration of epochs to a run."""
    store.report(
        job,
        metrics=[
            Metric("epoch", (epoch + 1) * STEPS - 1, epoch, "validation", NAME, ERRORS[epoch], 1.0)
            for epoch in range(first, last)
        ],
        bins=[each for epoch in range(first, last) for each in bins_of(epoch)],
    )
    return store.job(job.id)


def test_bins_are_kept_by_epoch_and_go_with_their_run(store: Store) -> None:
    other = calibrated(store, finished_run(store, epochs=1), last=1)
    job = calibrated(store, running_run(store, epochs=3), last=3)
    assert store.confidence_bins(job, 1) == bins_of(1)
    again = [ConfidenceBin(1, 0, 5, 0.1, 1)]
    store.report(job, bins=again)
    assert store.confidence_bins(job, 1) == [*again, *bins_of(1)[1:]]
    assert store.delete([other.id]) == [other.id]
    connection = sqlite3.connect(store.path)
    assert connection.execute("SELECT DISTINCT job FROM confidence_bins").fetchall() == [(job.number,)]
    connection.close()


def test_a_store_without_bins_gets_them(home: Path) -> None:
    older = next(n for n, script in enumerate(schema._MIGRATIONS) if "confidence_bins" in script)
    home.mkdir()
    connection = sqlite3.connect(home / "mirrorboard.sqlite3")
    for script in schema._MIGRATIONS[:older]:
        connection.executescript(script)
    connection.execute(
        "INSERT INTO jobs (id, kind, status, config, created_at) VALUES ('a', 'train', 'running', '{}', 1.0)"
    )
    connection.execute(f"PRAGMA user_version = {older}")
    connection.commit()
    connection.close()
    store = Store(home)
    job = store.job("a")
    assert store.confidence_bins(job, 0) == []
    store.report(job, bins=bins_of(0))
    assert store.confidence_bins(job, 0) == bins_of(0)
    store.close()


def numbers(trace: dict[str, Any], name: str) -> list[float]:
    packed = trace[name]
    return np.frombuffer(base64.b64decode(packed["bdata"]), packed["dtype"]).astype(float).tolist()


@pytest.mark.parametrize(("axis", "scale"), [("epoch", 1), ("step", STEPS)])
def test_error_by_epoch_on_the_axis_of_the_curves(show: Open, store: Store, axis: str, scale: int) -> None:
    job = calibrated(store, finished_run(store))
    app = show("pages/training.py", run=job.id, axis=axis)
    shown = charts(app)
    figure = shown[ERROR_TITLE]["figure"]
    (line,) = figure["data"]
    assert numbers(line, "y") == pytest.approx([100 * error for error in ERRORS])
    assert numbers(line, "x") == [scale * epoch for epoch in range(1, 11)]
    loss = shown["Loss: training against validation"]["figure"]["layout"]
    assert figure["layout"]["xaxis"]["range"] == loss["xaxis"]["range"]
    assert "best epoch 3, then overfitting" in [a["text"] for a in figure["layout"]["annotations"]]
    assert [4 * scale, 10 * scale] in [[shape["x0"], shape["x1"]] for shape in figure["layout"]["shapes"]]
    assert shown[ERROR_TITLE]["label"] == (
        "ECE is 33.0 points after epoch 10; it was lowest, 4.0, after epoch 2."
    )
    assert "Its confidence is off by 33 points; at epoch 3 it was 9." in texts(app)


def test_reliability_of_the_best_epoch_against_the_last(show: Open, store: Store) -> None:
    job = calibrated(store, finished_run(store))
    shown = charts(show("pages/training.py", run=job.id))
    diagram = shown["Reliability diagram: best epoch 3 against last epoch 10"]
    diagonal, best, last = diagram["figure"]["data"]
    assert (diagonal["x"], diagonal["y"]) == ([0, 100], [0, 100])
    assert (best["name"], last["name"]) == ("epoch 3, best", "epoch 10, last")
    for trace, right in ((best, 80.0), (last, 45.0)):
        assert trace["visible"] is True
        assert numbers(trace, "x") == [50.0, 90.0]
        assert numbers(trace, "y") == [50.0, right]
    assert [text.split("<br>") for text in last["hovertext"]] == [
        [
            "epoch 10, last",
            "confidence 33 to 67 %, 50.0 % on average",
            "1,000 predictions, 50.0 % of them right",
        ],
        [
            "epoch 10, last",
            "confidence 67 to 100 %, 90.0 % on average",
            "1,000 predictions, 45.0 % of them right",
        ],
    ]
    assert diagram["label"] == (
        "At epoch 3 the confidence of 2,000 predictions is off by 5.0 points on average."
        " At epoch 10 the confidence of 2,000 predictions is off by 22.5 points on average."
    )


def test_figures_follow_a_run_and_are_drawn_once(store: Store) -> None:
    job = calibrated(store, running_run(store, epochs=3), last=2)
    shown = RunView(store, job.id)
    assert (shown.has_calibration, shown.reliability()) == (False, None)
    shown.refresh()
    assert shown.has_calibration
    assert shown.reliability() is None  # of the best epoch, the third, no bins are there
    calibrated(store, job, first=2, last=3)
    shown._read_at = 0.0
    shown.refresh()
    diagram = shown.reliability()
    assert diagram is not None
    content = json.loads(diagram)
    assert content["title"] == "Reliability diagram: epoch 3"
    _, best, last = content["figure"]["data"]
    assert (best["visible"], last["visible"], last["name"]) == (False, True, "epoch 3, best and last")
    assert shown.reliability() is diagram
    assert shown.calibration_error("epoch", {}) is shown.calibration_error("epoch", {})


def test_an_epoch_whose_outputs_are_no_numbers(show: Open, store: Store) -> None:
    job = running_run(store, epochs=1)
    store.report(
        job,
        metrics=[Metric("epoch", STEPS - 1, 0, "validation", NAME, None, 1.0)],
        bins=[ConfidenceBin(0, place, 0, 0.0, 0) for place in range(3)],
    )
    shown = charts(show("pages/training.py", run=job.id))
    assert shown[ERROR_TITLE]["label"] == "No calibration is known yet."
    assert shown["Reliability diagram: epoch 1"]["label"] == (
        "At epoch 1 no prediction had a finite confidence."
    )


def test_runs_without_calibration_have_no_such_charts(show: Open, store: Store) -> None:
    imported = report.add_import(store, [{"epoch": 1, "loss": 1.0, "val_loss": 1.2}], file="log.csv")
    for run_id in (finished_run(store).id, imported):
        titles = charts(show("pages/training.py", run=run_id))
        assert "Loss: training against validation" in titles
        assert not [title for title in titles if "calibration" in title or "Reliability" in title]
