"""One step taken apart: its numbers are those of plain Keras, and the page shows all six parts."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys

import pytest
from playwright.sync_api import expect

from core.analysis.one_step import exchange
from core.config import parse_config
from core.records import Kind, Status
from tests.browser_app import CHROMIUM, chromium, dashboard, heading, tab
from tests.conftest import ROOT, json_of
from tests.page_app import charts, drawings, texts
from tests.recorded import answered, prepared

_PLAIN = """
import json, sys
from pathlib import Path
import keras, numpy as np, tensorflow as tf
from core import corpus

rows, home = json.loads(sys.argv[1]), Path(sys.argv[2])
data = corpus.load(home, "synthetic")
x, y = data.padded("train", 300), data.split_labels("train")
keras.utils.set_random_seed(1)
model = keras.Sequential([
    keras.Input((300,), dtype="int32"),
    keras.layers.Embedding(data.vocabulary, 7),
    keras.layers.Conv1D(64, 5, activation="relu"), keras.layers.MaxPooling1D(2),
    keras.layers.Conv1D(32, 3, activation="relu"), keras.layers.MaxPooling1D(2),
    keras.layers.Flatten(), keras.layers.Dense(len(data.class_names), activation="softmax"),
])
model.compile("nadam", keras.losses.SparseCategoricalCrossentropy())

def mean_and_gradient(rows):
    with tf.GradientTape() as tape:
        predicted = model(x[rows], training=True)
        loss = tf.reduce_mean(keras.losses.sparse_categorical_crossentropy(y[rows], predicted))
    gradients = tape.gradient(loss, model.trainable_variables)
    squares = {}
    for variable, gradient in zip(model.trainable_variables, gradients):
        layer = variable.path.split("/")[-2]
        squares[layer] = squares.get(layer, 0.0) + float(tf.reduce_sum(tf.convert_to_tensor(gradient) ** 2))
    return {"loss": float(loss), "norms": [square ** 0.5 for square in squares.values()]}

shards = [mean_and_gradient(shard) for shard in rows if shard]
print(json.dumps({"shards": shards, "batch": mean_and_gradient(sum(rows, []))}))
"""


def asked(config, batch):
    run = config.model_dump(mode="json")
    matter = ("batch_size", "learning_rate", "seed", "deterministic")
    return {"run": {**run, "training": {name: run["training"][name] for name in matter}}, "batch": batch}


def test_numbers_are_those_of_plain_keras(store, run_job):
    """The last batch of 12 rows on three replicas of 10: one is full, one has two rows, one is empty."""
    config = parse_config(
        {
            "layout": {"logical_devices": 3},
            "data": {"dataset": "synthetic"},
            "training": {"batch_size": 30},
        }
    )
    job = run_job(Kind.STEP, asked(config, 299))
    assert job.status is Status.COMPLETED, job.error
    step = job.result
    assert step["batch"] == {"number": 299, "of": 300, "rows": 12, "global": 30}
    replicas = step["replicas"]
    assert [(len(replica["rows"]), replica["fillers"]) for replica in replicas] == [(10, 0), (2, 8), (0, 10)]
    assert step["path"] == "reduction_to_one_device"
    assert step["gradient_bytes"] == 4 * step["params"] == 4 * 332_856

    rows = [[row["row"] for row in replica["rows"]] for replica in replicas]
    plain = json_of(
        subprocess.run(
            [sys.executable, "-c", _PLAIN, json.dumps(rows), str(store.home)],
            cwd=ROOT,
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "2"},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
    )
    for replica, shard in zip(replicas, plain["shards"], strict=False):
        assert replica["mean_loss"] == pytest.approx(shard["loss"], abs=1e-5)
        share = len(replica["rows"]) / 12
        norms = [norm * share for norm in shard["norms"]]
        assert list(replica["gradient_norms"].values()) == pytest.approx(norms, rel=1e-4)
    assert replicas[2]["mean_loss"] is None
    assert set(replicas[2]["gradient_norms"].values()) == {0.0}
    assert list(step["reduced_norms"].values()) == pytest.approx(plain["batch"]["norms"], rel=1e-4)
    assert step["single"]["loss"] == pytest.approx(plain["batch"]["loss"], abs=1e-5)
    assert step["single"]["loss_difference"] < 1e-6
    assert step["single"]["gradient_difference"] < 1e-6

    assert len({replica["checksum_before"] for replica in replicas}) == 1
    assert len({replica["checksum_after"] for replica in replicas}) == 1
    assert replicas[0]["checksum_before"] != replicas[0]["checksum_after"]
    assert step["update"]["between_replicas"] == 0.0
    # Nadam moves a value by about its learning rate in the first step.
    assert step["update"]["moved"] == pytest.approx(0.001, rel=0.2)
    for replica in replicas:
        assert replica["times_ms"] == sorted(replica["times_ms"])
    exchanged = min(replica["times_ms"][2] for replica in replicas)
    assert exchanged >= max(replica["times_ms"][1] for replica in replicas)


def test_a_batch_that_is_not_there(run_job):
    config = parse_config({"layout": {"strategy": "single"}, "data": {"dataset": "synthetic"}})
    job = run_job(Kind.STEP, asked(config, 281))
    assert job.status is Status.FAILED
    assert job.error["message"] == "There is no batch 282; an epoch has 281."


@pytest.mark.parametrize(
    ("path", "replicas", "name", "moved", "links"),
    [
        ("none", 1, "Nothing to exchange", 0, ()),
        ("reduction_to_one_device", 3, "Reduction to one device, then broadcast", 400, ((1, 0), (2, 0))),
        ("ReductionToOneDevice", 2, "Reduction to one device, then broadcast", 200, ((1, 0),)),
        ("hierarchical_copy", 4, "Hierarchical copy", 600, ((1, 0), (3, 2), (2, 0))),
        ("nccl", 4, "NCCL ring", 600, ((0, 1), (1, 2), (2, 3), (3, 0))),
        ("CollectiveAllReduce", 2, "Collective ring", 200, ((0, 1), (1, 0))),
    ],
)
def test_exchange(path, replicas, name, moved, links):
    how = exchange(path, replicas, 100)
    assert (how.name, how.moved_bytes, how.links) == (name, moved, links)


def recorded_step(replicas=2):
    norms = {"embedding": 0.05, "conv1d": 0.15}
    return {
        "batch": {"number": 0, "of": 281, "rows": 32, "global": 32},
        "params": 332_856,
        "layers": list(norms),
        "replicas": [
            {
                "device": f"/device:CPU:{i}",
                "rows": [{"row": 16 * i + n, "class": "<b>earn</b>", "text": "shr 3 cts"} for n in range(16)],
                "fillers": 0,
                "loss": 1.9,
                "mean_loss": 3.8 + i,
                "gradient_norms": norms,
                "checksum_before": "aaaa0000",
                "checksum_after": "bbbb1111",
                "times_ms": [0.0, 5.0 + i, 8.0, 9.0],
            }
            for i in range(replicas)
        ],
        "reduced_norms": norms,
        "gradient_bytes": 1_331_424,
        "gradients": 7,
        "path": "reduction_to_one_device",
        "update": {"between_replicas": 0.0, "moved": 0.00106},
        "single": {
            "loss": 3.8,
            "gradient_norms": norms,
            "loss_difference": 2.4e-7,
            "gradient_difference": 0.0,
        },
        "dropout": 0.0,
    }


@pytest.mark.parametrize(
    ("part", "words"),
    [
        (1, ["**332,856** parameters", "checksum of the variables</small> <code>aaaa0000"]),
        (2, ["**32 newswires**, cut into 16 + 16", "&lt;b&gt;earn&lt;/b&gt;", "and 12 more"]),
        (3, ["3.8000</b>", "4.8000</b>"]),
        (4, ["Reduction to one device", "In all 2.54 MiB move", "marker-end"]),
        (5, ["largest difference between any two is **0**", "bbbb1111"]),
        (6, ["begins when the slowest replica is done"]),
    ],
)
def test_page_shows_each_part(show, store, part, words):
    prepared(store)
    config = parse_config({"data": {"dataset": "synthetic"}})
    answered(store, Kind.STEP, asked(config, 0), recorded_step())
    app = show("pages/one_step.py", data__dataset="synthetic", step__at=str(part))
    text = texts(app) + drawings(app)
    for expected in words:
        assert expected in text
    metrics = {metric.label: metric.value for metric in app.metric}
    assert metrics["Difference of the losses"] == "2.4e-07"
    assert metrics["Largest difference of a gradient"] == "0"


@pytest.mark.parametrize(
    ("part", "words"),
    [
        (1, "The only replica holds all **332,856** parameters"),
        (2, "**32 newswires**, all for the only replica"),
        (3, "The only replica runs forward and backward on the whole batch"),
        (4, "There is one replica; its gradient is the sum"),
        (5, "The only replica applies its gradient to its variables"),
        (6, "With one replica there is nobody to wait for"),
    ],
)
def test_one_replica_has_no_others(show, store, part, words):
    prepared(store)
    layout = {"strategy": "single", "logical_devices": 1}
    config = parse_config({"layout": layout, "data": {"dataset": "synthetic"}})
    answered(store, Kind.STEP, asked(config, 0), recorded_step(replicas=1))
    app = show(
        "pages/one_step.py",
        data__dataset="synthetic",
        layout__strategy="single",
        layout__logical_devices="1",
        step__at=str(part),
    )
    shown = texts(app) + json.dumps(charts(app))
    assert words in shown
    assert not re.search("each (replica|saw)|every replica|others|any two|same numbers", shown, re.IGNORECASE)


@pytest.mark.skipif(not shutil.which(CHROMIUM), reason=f"needs {CHROMIUM}")
def test_walk_through_a_real_step(tmp_path):
    """From the button to the timeline, and by itself with Play."""
    with (
        dashboard(tmp_path / "home", KERAS_HOME=str(tmp_path)) as address,
        chromium() as browser,
        tab(browser) as page,
    ):
        page.goto(f"{address}/one_step?data.dataset=synthetic&step.batch=281")
        heading(page, "Inside one step")
        button = page.get_by_role("button", name="Take this step")
        expect(button).to_be_enabled(timeout=60_000)
        button.click()
        expect(page.get_by_text("22 newswires")).to_have_count(0)
        expect(page.get_by_text("The same batch on one device")).to_be_visible(timeout=90_000)
        expect(page.get_by_text("parameters. The checksums of the copies are equal")).to_be_visible()
        control = page.locator(".st-key-step_control")
        control.get_by_text("2. Cut").click()
        expect(page.get_by_text("22 newswires, cut into 16 + 6")).to_be_visible()
        expect(page.get_by_text("10 fillers of weight 0").first).to_be_visible()
        control.get_by_text("5. Update").click()
        expect(page.get_by_text("the largest difference between any two is 0")).to_be_visible()
        control.get_by_role("button", name="Play").click()
        expect(page.get_by_text("begins when the slowest replica is done")).to_be_visible(timeout=20_000)
        expect(page.locator(".st-key-timeline_chart .barlayer .point")).to_have_count(6, timeout=20_000)
        expect(control.get_by_role("button", name="Play")).to_be_visible()
