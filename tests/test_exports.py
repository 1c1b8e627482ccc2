"""What is taken away of a run: models that need none of our code, and curves that other programs read."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import time
import zipfile
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pyarrow.parquet as pq
import pytest
from conftest import command, ended, json_of, wait_for

from core import corpus
from core.analysis.imported import read_history
from core.config import parse_config
from core.dashboard.downloads import made
from core.engine import models
from core.engine.checkpoints import Checkpoints
from core.exports import exported, history_file, order
from core.records import Kind, Status
from core.report import history
from tests.recorded import finished_run

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
            if job := store.claim([Kind.EXPORT], "engine"):
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
    (tmp_path / "there").touch()
    done = command("export", job_id, "--format", "csv", "--output", str(tmp_path / "there"), home=home)
    assert (done.returncode, "exists already" in done.stderr) == (2, True)
