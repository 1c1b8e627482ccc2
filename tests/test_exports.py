"""What is taken away of a run: models that need none of our code, and curves that other programs read."""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from conftest import command, ended, json_of, wait_for
from playwright.sync_api import expect

from core import corpus
from core.analysis.imported import read_history
from core.commands import main
from core.config import parse_config
from core.dashboard.downloads import made
from core.engine import models
from core.engine.checkpoints import Checkpoints
from core.exports import exported, history_file, order
from core.records import Kind, Scaling, Status
from core.report import history
from core.store import Store
from tests.browser_app import CHROMIUM, chromium, dashboard, heading, settled, tab
from tests.recorded import claim, finished_run, prepared

PREDICT = """
import json, sys, zipfile
import keras, numpy as np, tensorflow as tf
path, rows, out = sys.argv[1:]
rows = np.load(rows)
if path.endswith(".keras"):
    with zipfile.ZipFile(path) as archive:
        about = json.loads(archive.read("mirrorboard.json"))
    model = keras.models.load_model(path)
    assert type(model).__module__.startswith("keras."), type(model)
    values = model.predict(rows, verbose=0)
else:
    with zipfile.ZipFile(path) as archive:
        archive.extractall(path + ".d")
    about = json.load(open(path + ".d/mirrorboard.json"))
    loaded = tf.saved_model.load(path + ".d")
    values = loaded.serve(rows).numpy()
assert not [name for name in sys.modules if name == "core" or name.startswith("core.")]
np.save(out, values)
print(json.dumps(about))
"""


def predicted(tmp_path, file, rows):
    """What a fresh process without our code makes of an exported model."""
    np.save(tmp_path / "rows.npy", rows)
    done = subprocess.run(
        [sys.executable, "-c", PREDICT, str(file), str(tmp_path / "rows.npy"), str(tmp_path / "out.npy")],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return np.load(tmp_path / "out.npy"), json.loads(done.stdout.splitlines()[-1])


def test_exported_models_give_the_run_s_predictions_without_our_code(home, store, launcher, tmp_path):
    values = {
        "layout": {"strategy": "single", "logical_devices": 1},
        "data": {"dataset": "synthetic", "max_len": 40},
        "model": {"dropout": 0.2},
        # So fast that the best epoch is not the last.
        "training": {"epochs": 4, "batch_size": 256, "learning_rate": 0.03},
    }
    run = ended(store, store.submit(Kind.TRAIN, values))
    assert run.status is Status.COMPLETED, run.error
    best = run.checkpoint["best_epoch"]
    assert best < 4
    data = corpus.load(home, "synthetic")
    rows = data.padded("test", 40)[:64]
    checkpoints = Checkpoints(store.checkpoints(run.id))
    for which, epoch, kind in (("best", best, "keras"), ("last", 4, "savedmodel")):
        told = json_of(
            command(
                "export", run.id, "--format", kind, "--which", which, "--output", str(tmp_path), "--json",
                home=home,
            )
        )  # fmt: skip
        assert told["epoch"] == epoch
        assert f"{run.id}-{which}-epoch-{epoch}" in told["file"]
        mine, about = predicted(tmp_path, told["file"], rows)
        assert (about["run_id"], about["which"], about["epoch"]) == (run.id, which, epoch)
        model = models.build(parse_config(values), vocabulary=data.vocabulary, classes=46)
        for variable, value in zip(model.variables, checkpoints.model(which, epoch), strict=True):
            variable.assign(value)
        np.testing.assert_allclose(mine, model(rows).numpy(), atol=1e-6)
        if which == "best":
            loss = -np.log(
                model(data.padded("test", 40)).numpy()[range(2246), data.split_labels("test")]
            ).mean()
            assert loss == pytest.approx(run.checkpoint["best_val_loss"], abs=1e-4)
    assert list((store.checkpoints(run.id) / "exports").iterdir()) == []

    told = json_of(
        command("export", run.id, "--format", "tensorboard", "--output", str(tmp_path), "--json", home=home)
    )
    with zipfile.ZipFile(told["file"]) as archive:
        files = {name: archive.read(name) for name in archive.namelist() if "tfevents" in name}
    assert len(files) == 2
    for read, kept in zip(read_history(files), history(store, run), strict=True):
        for name in kept.keys() - {"duration_s"}:
            assert read[name] == pytest.approx(kept[name], rel=1e-6), name


def test_two_who_ask_for_the_same_file_both_get_it(store):
    run = finished_run(store, epochs=1)
    asked = order(run, "tensorboard", "last")
    file = exported(store.checkpoints(run.id), asked)
    file.parent.mkdir(parents=True)
    with ThreadPoolExecutor(2) as people:
        got = [people.submit(made, store, asked, file) for _ in range(2)]
        wait_for(lambda: store.jobs(kinds=[Kind.EXPORT]), 10, "the first order")
        time.sleep(0.1)  # time enough for a second order, were it given
        done = 0
        while done < 2:
            # As an engine does, which has both files made before anybody looks.
            if job := claim(store, [Kind.EXPORT], "engine"):
                file.write_bytes(b"zipped")
                store.finish(job.id, Status.COMPLETED, result={})
                done += 1
        assert [each.result() for each in got] == [b"zipped"] * 2
    assert not file.exists()


@pytest.mark.parametrize("kind", ["csv", "json"])
def test_an_exported_history_is_read_back(store, tmp_path, kind):
    run = finished_run(store)
    (tmp_path / f"h.{kind}").write_bytes(history_file(store, run, kind))
    read = read_history(tmp_path / f"h.{kind}")
    assert [row["val_loss"] for row in read] == [row["val_loss"] for row in history(store, run)]


def test_a_history_in_parquet_has_one_row_an_epoch_and_names_its_run(store):
    run = finished_run(store)
    table = pq.read_table(io.BytesIO(history_file(store, run, "parquet")))
    assert table.to_pylist() == history(store, run)
    assert table.schema.metadata[b"run_id"] == run.id.encode()


def test_what_cannot_be_exported_is_said(home, store, tmp_path):
    job_id = store.submit(Kind.TRAIN, {})
    done = command("export", job_id, "--format", "keras", "--output", str(tmp_path), home=home)
    assert (done.returncode, "has no model to export" in done.stderr) == (1, True)
    for kind in ("csv", "json", "parquet", "tensorboard"):
        done = command("export", job_id, "--format", kind, "--output", str(tmp_path), home=home)
        assert (done.returncode, "has no whole epoch to export." in done.stderr) == (1, True), kind
    assert [job.id for job in store.jobs()] == [job_id], "an engine was asked"
    assert [path.name for path in tmp_path.iterdir()] == ["home"]
    (tmp_path / "there").touch()
    run = finished_run(store, epochs=1)
    done = command("export", run.id, "--format", "csv", "--output", str(tmp_path / "there"), home=home)
    assert (done.returncode, "exists already" in done.stderr) == (2, True)


@pytest.mark.parametrize("kind", ["csv", "py", "keras", "tensorboard"])
@pytest.mark.parametrize("place", ["/proc/x", f"{'x' * 300}.csv"])
def test_a_place_that_takes_no_file_is_told_before_an_engine_works(home, store, tmp_path, kind, place):
    run = finished_run(store)
    target = tmp_path / place
    done = command("export", run.id, "--format", kind, "--output", str(target), home=home)
    assert done.returncode == 2
    assert f"Error: {target} cannot be written (" in done.stderr
    assert "Hint: Name another file with --output." in done.stderr
    assert [job.id for job in store.jobs()] == [run.id]
    assert [path.name for path in tmp_path.iterdir()] == ["home"]


@pytest.mark.parametrize("kind", ["csv", "ipynb", "keras"])
def test_a_disk_without_room_for_the_file_is_told_and_nothing_left(home, store, tmp_path, monkeypatch, kind):
    run = finished_run(store)
    made = exported(store.checkpoints(run.id), order(run, "keras", "best"))

    def engine_makes_it(*_):
        made.parent.mkdir(parents=True)
        made.write_text("whole")
        return replace(run, kind=Kind.EXPORT)

    def write(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("core.commands.results.follow", engine_makes_it)
    monkeypatch.setattr("shutil.move", write)
    monkeypatch.setattr(Path, "write_bytes", write)
    arguments = ["export", run.id, "--format", kind, "--home", str(home), "--output", str(tmp_path / "x")]
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 2
    assert done.stderr.startswith(f"Error: {tmp_path / 'x'} cannot be written (No space left on device).")
    assert not made.exists()
    assert [path.name for path in tmp_path.iterdir()] == ["home"]


def test_event_files_of_no_epoch_are_not_made_for_want_of_a_smaller_batch(store, run_job):
    run = store.job(store.submit(Kind.TRAIN, {}))
    store.request_stop(run.id)
    job = run_job(Kind.EXPORT, order(run, "tensorboard", "last"))
    assert job.status is Status.FAILED
    assert job.error["message"] == f"Run {run.id} has no whole epoch to export."


def test_the_page_offers_no_history_of_a_run_without_one(show, store):
    prepared(store)
    config = parse_config({"data": {"dataset": "synthetic"}}).model_dump(mode="json")
    run_id = store.submit(Kind.TRAIN, config)
    store.request_stop(run_id)
    app = show("pages/training.py", run=run_id)
    assert [button.label for button in app.get("download_button")] == ["Python script", "Notebook"]
    app = show("pages/training.py", run=finished_run(store, epochs=1).id)
    assert "History, CSV" in [button.label for button in app.get("download_button")]


@pytest.mark.skipif(not shutil.which(CHROMIUM), reason=f"needs {CHROMIUM}")
def test_a_file_that_cannot_be_made_is_told_with_the_reason_until_the_next_try(home):
    values = {
        "layout": {"strategy": "single", "logical_devices": 1},
        "data": {"dataset": "synthetic", "max_len": 40},
        "training": {"epochs": 1, "batch_size": 512},
    }
    with (
        dashboard(home, logged="Callable execution failed") as address,
        chromium() as browser,
        tab(browser) as page,
    ):
        page.goto(address)  # engines are started from the first page on
        heading(page, "Mirrorboard")
        store = Store(home)
        run = ended(store, store.submit(Kind.TRAIN, values))
        assert run.status is Status.COMPLETED, run.error
        folder = store.checkpoints(run.id)
        page.goto(f"{address}/training?run={run.id}")
        heading(page, "Training")
        page.get_by_text("Take it away").click()
        panel = page.get_by_test_id("stExpander").filter(has_text="Take it away")
        button = lambda key: page.locator(f".st-key-export_{key} button").first  # noqa: E731
        told = panel.get_by_test_id("stAlert")

        (best,) = folder.glob("best-*.npz")
        whole = best.read_bytes()
        best.write_bytes(whole[: len(whole) // 2])
        button("keras_best").click()
        expect(told).to_contain_text("Best model, epoch 1, for Keras could not be made.", timeout=60_000)
        expect(told).to_contain_text("The best model, of epoch 1, cannot be read.")
        expect(told).to_contain_text("Its checkpoint is damaged or was deleted; try the other")
        expect(page.get_by_text("Failed to generate file")).to_have_count(0, timeout=20_000)
        expect(told).to_be_visible()  # longer than Streamlit's own

        best.write_bytes(whole)
        with page.expect_download(timeout=60_000) as model:
            button("keras_best").click()
        assert zipfile.is_zipfile(model.value.path())
        expect(told).to_have_count(0, timeout=20_000)

        for state in folder.glob("state-*.npz"):
            state.unlink()
        button("savedmodel_last").click()
        expect(told).to_contain_text("The last model, of epoch 1, cannot be read.", timeout=60_000)

        # A disk that takes no file: its folder cannot be made.
        shutil.rmtree(folder / "exports")
        (folder / "exports").write_bytes(b"")
        button("tensorboard_last").click()
        expect(told).to_contain_text("TensorBoard event files could not be made.", timeout=60_000)
        (folder / "exports").unlink()

        page.keyboard.press("r")  # the whole page is drawn anew, and still tells
        settled(page)
        expect(told).to_be_visible()
        store.delete([run.id])
        button("csv").click()
        expect(told).to_contain_text(re.compile("History, CSV could not be made. There is no run"))
        store.close()


@pytest.mark.skipif(not shutil.which(CHROMIUM), reason=f"needs {CHROMIUM}")
def test_files_of_all_runs_and_of_studies_are_told_of_too(home):
    store = Store(home)
    prepared(store)
    run = finished_run(store)
    plain = parse_config({"data": {"dataset": "synthetic"}}).model_dump(mode="json")
    study = store.submit_study(Scaling.STRONG, [plain])
    store.request_stop(store.study(study)[0].id)
    with (
        dashboard(home, logged="Callable execution failed", MIRRORBOARD_WATCH="1") as address,
        chromium() as browser,
        tab(browser) as page,
        contextlib.closing(sqlite3.connect(store.path, isolation_level=None)) as damaged,
    ):
        told = page.get_by_test_id("stAlert").filter(has_text="could not be made")
        page.goto(f"{address}/runs")
        heading(page, "Runs")
        page.locator(".st-key-export button").first.click()
        (whole,) = damaged.execute("SELECT config FROM jobs WHERE id = ?", (run.id,)).fetchone()
        damaged.execute("UPDATE jobs SET config = '{' WHERE id = ?", (run.id,))
        page.locator(".st-key-export_runs_CSV button").click()
        expect(told).to_contain_text(f"row of job '{run.id}' is damaged", timeout=20_000)
        expect(told).to_contain_text(f"Delete it with `python -m core delete {run.id}`")
        damaged.execute("UPDATE jobs SET config = ? WHERE id = ?", (whole, run.id))
        with page.expect_download() as table:
            page.locator(".st-key-export_runs_CSV button").click()
        assert run.id in table.value.path().read_text("utf-8")
        expect(told).to_have_count(0, timeout=20_000)

        page.goto(f"{address}/scaling?study={study}")
        heading(page, "Scaling")
        save = page.locator(".st-key-save_study button")
        settled(page)
        store.delete([job.id for job in store.study(study)])
        save.click()
        expect(told).to_contain_text("Study as JSON could not be made. There is no study", timeout=20_000)
    store.close()
