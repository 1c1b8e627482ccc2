"""Every page without a browser and without engines: what it shows for what the store holds."""

from __future__ import annotations

import ast
import base64
import gc
import json
import math
import operator
import re
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from streamlit import get_option
from streamlit.testing.v1 import AppTest

from core.analysis import memory
from core.config import DeviceLayout, RunConfig
from core.dashboard import draft, units
from core.dashboard.job_status import unfinished_run
from core.errors import DownloadFailed, RunNotFound
from core.records import Job, Kind, LogLine, Metric, Scaling, Status
from core.report import add_import
from core.store import Store
from tests.browser_app import BROWSERS
from tests.conftest import ROOT
from tests.page_app import Open, charts, drawings, sound, texts, unescaped
from tests.recorded import (
    DESCRIPTION,
    MACHINE,
    RESULT,
    answered,
    claim,
    claimed,
    finished_run,
    prepared,
    rows_of,
    running_run,
)

PAGES = {
    "streamlit_app.py": "Mirrorboard",
    "pages/devices.py": "Devices",
    "pages/data.py": "Data",
    "pages/model.py": "Model",
    "pages/training.py": "Training",
    "pages/one_step.py": "Inside one step",
    "pages/evaluate.py": "Evaluate",
    "pages/runs.py": "Runs",
    "pages/scaling.py": "Scaling",
    "pages/take_home.py": "Code to take home",
}

# The frame


@pytest.mark.parametrize("script", PAGES)
def test_empty_store(show: Open, script: str) -> None:
    app = show(script)
    assert app.title[0].value == PAGES[script]
    assert [element.type for element in app.main][1:3] == ["title", "markdown"]
    assert get_option("runner.magicEnabled") is False, "strings in a page's code would be shown on it"
    assert [element.proto.label.split(". ")[-1] for element in app.sidebar.get("page_link")] == [
        "Start", *list(PAGES.values())[1:]
    ]  # fmt: skip
    prepares = [element.proto.text for element in app.sidebar.get("progress")] == [
        "Preparing Reuters newswires"
    ]
    assert prepares or "Nothing is running" in texts(app)


@pytest.mark.parametrize("script", PAGES)
@pytest.mark.parametrize("harm", ["not a folder", "damaged", "newer"])
def test_store_that_cannot_be_used(show: Open, home: Path, script: str, harm: str) -> None:
    if harm == "not a folder":
        home.write_text("in the way")
    else:
        Store(home).close()
        database = home / "mirrorboard.sqlite3"
        if harm == "damaged":
            for extra in home.glob("mirrorboard.sqlite3-*"):
                extra.unlink()
            database.write_bytes(b"junk " * 4_000)
        else:
            connection = sqlite3.connect(database)
            connection.execute("PRAGMA user_version = 99")
            connection.close()
    app = show(script)
    assert app.title[0].value == "The run store cannot be used"
    said = {"not a folder": "cannot be written", "damaged": "is damaged", "newer": "has schema 99"}[harm]
    assert said in texts(app)
    assert "MIRRORBOARD_HOME" in texts(app) or "move its folder away" in texts(app)


def test_a_wrong_setting_is_not_blamed_on_the_store(show: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIRRORBOARD_WATCH", "0")
    monkeypatch.setenv("MIRRORBOARD_FIRST_STEP_LIMIT_S", "soon")
    app = show("pages/runs.py")
    assert app.title[0].value == "A setting of the dashboard is wrong"
    assert "MIRRORBOARD_FIRST_STEP_LIMIT_S must be a number of seconds above 0" in texts(app)


def test_store_that_breaks_while_it_is_used(show: Open, home: Path) -> None:
    app = show("pages/training.py")
    connection = sqlite3.connect(home / "mirrorboard.sqlite3")
    connection.execute("ALTER TABLE jobs RENAME TO gone")
    connection.close()
    app.run()
    assert not app.exception
    assert "did not answer (no such table: jobs)" in texts(app)


def test_store_that_is_moved_while_it_is_used(show: Open, home: Path) -> None:
    app = show("pages/training.py")
    home.rename(home.with_name("elsewhere"))
    app.run()
    assert not app.exception
    assert "was moved, deleted or replaced while Mirrorboard used it" in texts(app)
    home.with_name("elsewhere").rename(home)
    sound(app.run())


def test_running_job_is_on_every_page(show: Open, store: Store) -> None:
    job = running_run(store, epochs=4)
    waiting = store.submit(Kind.TRAIN, RunConfig().model_dump(mode="json"))
    for script in PAGES:
        app = show(script)
        assert f"Run {waiting} is queued" in texts(app)
        assert "Last run queued" not in texts(app)
        progress = [element.proto.text for element in app.sidebar.get("progress")]
        assert progress == [f"**Run {job.id}**, epoch 4 of 10: training"]


# The settings


def test_settings_come_from_the_address_and_are_brought_into_range(show: Open) -> None:
    app = show(
        "pages/training.py",
        training__epochs="99999999",
        training__learning_rate="0.5",
        training__seed="nonsense",
        layout__logical_devices="3",
    )
    assert app.number_input(key="training.epochs").value == 10_000
    assert app.number_input(key="training.learning_rate").value == 0.5
    assert app.number_input(key="training.seed").value == 1
    assert "MirroredStrategy on 3 logical CPUs" in texts(app)


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("[99]", [99]),
        ("[0,0]", [0]),
        ("[-1]", [0]),
        ("x", [0]),
        ("1e999", [0]),
        ("[1e999]", [0]),
        ("[]", [0]),
    ],
)
def test_visible_devices_of_the_address(show: Open, store: Store, given: str, kept: list[int]) -> None:
    answered(store, Kind.INSPECT, {}, MACHINE)
    training = show("pages/training.py", layout__visible_devices=given)
    assert draft_value(training, "layout.visible_devices") == kept
    assert ("This machine has no CPU:99." in texts(training)) == (kept == [99])
    devices = show("pages/devices.py", layout__visible_devices=given)
    assert devices.multiselect(key="layout.visible_devices").value == [0]
    assert not devices.error


def draft_value(app: AppTest, name: str) -> Any:
    return app.session_state[name]


HOSTILE = {
    "a long text": "x" * 10_000,
    "a long number": "9" * 6_000,
    "a number beyond all floats": "9" * 1_500,
    "a huge number": "1e308",
    "infinity": "1e999",
    "a negative number": "-12345678901234567890",
    "no number": "NaN",
    "nothing": "null",
    "an empty text": "",
    "true": "true",
    "deep": "[" * 5_000,
    "nested": '{"a": {"b": [1, {"c": null}]}}',
    "a list": '[0, 0, -1, 99, 1e3, "x", null]',
    "many": str(list(range(300))),
    "markup": "<img src=x onerror=alert(1)> **:red[$x$]** \x00 😀",
}


@pytest.mark.parametrize("value", HOSTILE.values(), ids=HOSTILE)
def test_no_address_breaks_a_page(show: Open, store: Store, value: str) -> None:
    """Every setting and view at once; what a single one does is in the test below."""
    answered(store, Kind.INSPECT, {}, MACHINE)
    prepared(store)
    _fail_reuters(store)
    finished_run(store)
    query = dict.fromkeys([*draft._ADDRESSED, "run", "nonsense"], value)
    for script, title in PAGES.items():
        app = show(script, **query)
        assert app.title[0].value == title
        assert len(texts(app)) < 10_000, "it repeats what it was given"


@pytest.mark.parametrize("page", ["training", "evaluate", "take_home"])
def test_an_address_with_the_id_of_a_job_that_is_no_run(show: Open, store: Store, page: str) -> None:
    prepared(store)
    job = answered(store, Kind.INSPECT, {}, MACHINE)
    app = show(f"pages/{page}.py", run=job.id)
    assert f"'{job.id}' is no run but a job of kind inspect" in texts(app)
    assert not app.get("download_button")


@given(
    text=st.text()
    | st.sampled_from(list(HOSTILE.values()))
    | st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    ).map(json.dumps)
)
def test_what_the_address_says_is_a_value_of_its_setting(text: str) -> None:
    for name, setting in draft._ADDRESSED.items():
        value = setting.decoded(text)
        setting.adapter.validate_python(value)
        for bound, beyond in ((setting.low, operator.lt), (setting.high, operator.gt)):
            assert bound is None or value is None or not beyond(value, bound), name
        if isinstance(value, list):
            assert len(set(value)) == len(value), name
        assert len(json.dumps(value, allow_nan=False)) < 20_000


@given(text=st.text() | st.sampled_from(["11e52951", "12345678", "NaN", "null", "true", '"quoted"', "[1]"]))
def test_a_text_comes_back_from_the_address(text: str) -> None:
    for name in ("study", "compare", "compare.baseline", "runs.find", "stop.gl"):
        assert draft._ADDRESSED[name].decoded(text) == text


def test_settings_survive_a_page_switch(show: Open) -> None:
    app = show("pages/model.py")
    app.number_input(key="model.embedding_size").set_value(12).run()
    sound(app.switch_page("pages/devices.py").run())
    sound(app.switch_page("pages/model.py").run())
    assert app.number_input(key="model.embedding_size").value == 12


def test_an_empty_choice_comes_back_from_the_address(show: Open, store: Store) -> None:
    run = finished_run(store)
    assert show("pages/training.py", run=run.id, stops="[]").session_state["stops"] == []
    assert show("pages/training.py", run=run.id).session_state["stops"] == ["GL"]


def test_every_setting_of_a_run_has_a_field(show: Open) -> None:
    """A setting that the configuration gets later must not be forgotten on the pages."""
    keys = set()
    for script, query in (
        ("pages/devices.py", {"layout__device_type": "GPU"}),
        ("pages/data.py", {}),
        ("pages/model.py", {}),
        ("pages/training.py", {"training__patience": "3"}),
    ):
        app = show(script, **query)
        for kind in (
            "number_input",
            "text_input",
            "selectbox",
            "multiselect",
            "slider",
            "toggle",
            "button_group",
        ):
            keys |= {element.key for element in app.get(kind)}
    nested = draft.values()
    names = {f"{section}.{name}" for section, fields in nested.items() for name in fields}
    shown = {key.rsplit(".", 1)[0] if key.split(".")[-1].isdigit() else key for key in keys if key}
    # max_len is on Data, which needs a prepared dataset to show it; the strategy is chosen by buttons.
    assert names - shown <= {"data.max_len", "layout.strategy"}


# Start


def test_start_lists_recent_runs_and_starts_the_lesson(show: Open, store: Store) -> None:
    answered(store, Kind.INSPECT, {}, MACHINE)
    prepared(store)
    answered(store, Kind.PREPARE, {"dataset": "synthetic"}, {})
    _fail_reuters(store)
    done = finished_run(store)
    app = show("streamlit_app.py")
    assert "Test CPU, 2 processors, 8 GiB of memory, no GPU" in texts(app)
    row = app.dataframe[0].value.iloc[0]
    assert row["Run"] == done.id
    assert row["Best epoch"] == 3
    assert row["Lowest validation loss"] == pytest.approx(1.5232)
    assert row["Dataset"] == "Synthetic"
    assert json.loads(app.dataframe[0].proto.columns)["Run"]["pinned"] is True
    assert app.dataframe[0].proto.placeholder == "–", "where there is no value, not None"
    app.button(key="lesson").click().run()
    started = store.jobs(kinds=[Kind.TRAIN])[0]
    config = RunConfig.model_validate(started.config)
    assert started.status is Status.QUEUED
    assert config.data.dataset == "synthetic"
    assert config.layout.replicas == 2


def test_a_resumed_run_comes_before_newer_ones_that_have_ended(show: Open, store: Store) -> None:
    older, newer = finished_run(store, epochs=4, status=Status.PAUSED), finished_run(store)
    assert "Last run completed" in texts(show("streamlit_app.py"))
    assert "**Run " not in texts(show("pages/training.py"))
    store.resume(older.id)
    assert "A run is queued" in texts(show("streamlit_app.py"))
    assert claim(store, [Kind.TRAIN], "an engine") is not None
    waiting = store.submit(Kind.TRAIN, newer.config)
    assert "A run is running" in texts(show("streamlit_app.py"))
    assert f"**Run {older.id}** " in texts(show("pages/training.py"))
    store.request_stop(waiting)
    assert f"**Run {older.id}** " in texts(show("pages/training.py"))


def test_the_next_in_line_is_the_first_that_was_queued(store: Store) -> None:
    older = finished_run(store, epochs=4, status=Status.PAUSED)
    waiting = store.submit(Kind.TRAIN, older.config)
    store.resume(older.id)
    found = unfinished_run(store)
    assert found is not None
    assert found.id == waiting


def _fail_reuters(store: Store) -> Job:
    job = claimed(store, Kind.PREPARE, {"dataset": "reuters"})
    error = DownloadFailed(
        "No network: Reuters could not be fetched.",
        "Connect to the internet and try again.",
        "URL fetch failure",
    )
    store.finish(job.id, Status.FAILED, error=error)
    return job


def test_reuters_is_asked_for_once(show: Open, store: Store) -> None:
    app = show("streamlit_app.py")
    app.run()
    assert [job.config for job in store.jobs(kinds=[Kind.PREPARE])] == [{"dataset": "reuters"}]
    assert app.button(key="lesson").disabled


def test_what_a_restart_of_the_engines_has_stopped_is_asked_for_again(show: Open, store: Store) -> None:
    preparing = claimed(store, Kind.PREPARE, {"dataset": "reuters"})
    show("pages/model.py")
    describing = claim(store, [Kind.DESCRIBE], "engine")
    assert describing is not None
    for job in (preparing, describing):
        store.finish(job.id, Status.STOPPED)
    show("streamlit_app.py")
    show("pages/model.py")
    for kind in (Kind.PREPARE, Kind.DESCRIBE):
        newest, before = store.jobs(kinds=[kind])
        assert newest.status is Status.QUEUED
        assert newest.config == before.config


def test_synthetic_takes_the_place_of_reuters(show: Open, store: Store) -> None:
    _fail_reuters(store)
    app = show("streamlit_app.py")
    warning = app.warning[0].value.replace("\\", "")
    assert warning.startswith(
        "**No network: Reuters could not be fetched. Synthetic newswires take the place"
    )
    assert "URL fetch failure" not in warning
    assert [code.value for code in app.code] == ["URL fetch failure"]
    assert store.jobs(kinds=[Kind.PREPARE])[0].config == {"dataset": "synthetic"}
    app.button(key="retry_reuters").click().run()
    assert store.jobs(kinds=[Kind.PREPARE])[0].config == {"dataset": "reuters"}


def test_where_synthetic_newswires_stand_in_it_is_said(show: Open, store: Store) -> None:
    _fail_reuters(store)
    prepared(store)
    running_run(store, epochs=1)
    training = show("pages/training.py")
    assert "Synthetic newswires take the place of Reuters." in training.warning[0].value.replace("\\", "")
    assert ":gray-badge[synthetic newswires]" in texts(training)
    data = show("pages/data.py")
    kinds = [element.type for element in data.main if element.type in ("info", "metric", "flex_container")]
    assert "This text is synthetic" in texts(data)
    assert kinds[0] == "info", "it stands above the figures"


# Devices


def test_devices_of_this_machine(show: Open, store: Store) -> None:
    answered(store, Kind.INSPECT, {}, MACHINE)
    app = show("pages/devices.py")
    assert app.table[0].value.iloc[0].to_dict() == {
        "Device": "CPU:0", "Name": "Test CPU", "Memory": "8 GiB", "Compute capability": "–"
    }  # fmt: skip
    assert "No NVIDIA driver was found." in texts(app)
    assert "1 physical CPU, 2 logical CPUs, 2 replicas in sync" in texts(app)
    assert "cpu, [tf.config.LogicalDeviceConfiguration()] * 2" in app.code[0].value
    assert "\nstrategy = tf.distribute.MirroredStrategy()\n" in app.code[0].value
    assert "replica 1" in drawings(app)


@pytest.mark.parametrize(
    ("query", "message"),
    [
        ({"layout__device_type": "GPU"}, "This machine has no GPU:0."),
        (
            {"layout__device_type": "GPU", "layout__memory_growth": "true", "layout__memory_limit_mb": "512"},
            "Memory growth and a memory limit of 512 MiB exclude each other.",
        ),
        (
            {"layout__device_type": "GPU", "layout__memory_growth": "true"},
            "Memory growth and a split into 2 logical GPUs exclude each other.",
        ),
        ({"layout__device_type": "GPU"}, "needs a memory limit for each"),
        ({"layout__cross_device_ops": "nccl"}, "NCCL reduces between GPUs only"),
    ],
)
def test_layout_that_cannot_work(show: Open, store: Store, query: dict[str, str], message: str) -> None:
    answered(store, Kind.INSPECT, {}, MACHINE)
    if message.startswith("This machine"):
        query = {**query, "layout__logical_devices": "1"}
    app = show("pages/devices.py", **query)
    assert len(app.error) == 1
    assert message in app.error[0].value.replace("\\", "")
    assert all(button.disabled for button in app.button if button.key == "check")
    training = show("pages/training.py", **query)
    assert message in texts(training)
    assert training.button(key="start").disabled


def test_tiers_with_the_lines_they_add(show: Open, store: Store) -> None:
    answered(store, Kind.INSPECT, {}, MACHINE)
    app = show("pages/devices.py")
    assert ["adds 0–4 lines" in texts(app), "adds 2 lines" in texts(app), "adds 6 lines" in texts(app)] == [
        True
    ] * 3
    app.button(key="strategy_single").click().run()
    assert "1 replica in sync" in texts(sound(app))
    sound(app.switch_page("pages/training.py").run())
    assert "a single CPU" in texts(app)


def test_tpu_is_greyed_where_there_is_none_but_can_be_reached_by_address(show: Open, store: Store) -> None:
    answered(store, Kind.INSPECT, {}, MACHINE)
    app = show("pages/devices.py")
    assert app.button(key="strategy_tpu").disabled
    assert "This machine has no TPU that TensorFlow could use." in texts(app)
    app.text_input(key="layout.tpu").set_value("grpc://10.0.0.2:8470").run()
    app.button(key="strategy_tpu").click().run()
    sound(app)
    assert "The TPU at grpc://10.0.0.2:8470" in texts(app)
    (code,) = [block.value for block in app.code if "TPUStrategy" in block.value]
    added = [line for line in code.splitlines() if line and "import" not in line and "model =" not in line]
    assert len(added) == 6
    assert not app.button(key="check").disabled
    app.text_input(key="layout.tpu").set_value("local").run()
    assert app.button(key="check").disabled
    assert len(app.error) == 1
    app.text_input(key="layout.tpu").set_value("").run()
    assert "The TPU has neither name nor address." in unescaped(app.error[0].value)


def test_layout_check(show: Open, store: Store) -> None:
    answered(store, Kind.INSPECT, {}, MACHINE)
    app = show("pages/devices.py")
    app.button(key="check").click().run()
    (job,) = store.jobs(kinds=[Kind.CHECK])
    assert DeviceLayout.model_validate(job.config) == DeviceLayout()
    assert "A fresh engine process is trying this layout" in texts(app)
    actual = {
        "physical": ["CPU:0"],
        "logical": ["/device:CPU:0"],
        "replicas": 1,
        "devices": ["/device:CPU:0"],
    }
    wanted = {"physical": 1, "logical": 2, "replicas": 2}
    tries = [
        {"device": "CPU:0", "op": "matmul", "ok": True, "error": "", "ms": 0.25},
        {"device": "CPU:0", "op": "embedding", "ok": False, "error": "No kernel.", "ms": None},
        {"device": "CPU:0", "op": "convolution", "ok": True, "error": "", "ms": 1.0},
    ]
    result = {
        "requested": wanted,
        "actual": actual,
        "matches": False,
        "self_test": tries,
        "log": ["One device."],
    }
    taken = claim(store, [Kind.CHECK], "somebody")
    assert taken is not None
    store.finish(taken.id, Status.COMPLETED, result=result)
    app.run()
    assert "TensorFlow made something else of this layout" in texts(app)
    assert app.table[1].value["Actual"].tolist() == ["1", "1", "1"]
    assert app.table[2].value.iloc[0].to_dict() == {
        "Device": "CPU:0",
        "Matrix product": "passed, 0.2 ms",
        "Embedding": "failed",
        "Convolution": "passed, 1.0 ms",
    }
    assert "CPU:0 failed at the embedding. No kernel." in texts(app)


# Data


def test_data_page(show: Open, store: Store) -> None:
    corpus = prepared(store)
    app = show("pages/data.py", data__dataset="synthetic", data__max_len="100")
    assert "This text is synthetic" in texts(app)
    figures = {metric.label: metric.value for metric in app.metric}
    assert figures["Training newswires"] == "240"
    cut = float((corpus.lengths[:240] > 100).mean())
    assert figures["Newswires cut"] == units.percent(cut)
    shown = charts(app)
    lengths = shown["How long the training newswires are, and where they are cut"]
    assert f"max_len 100 cuts {units.percent(cut)}" in lengths["figure"]["layout"]["annotations"][0]["text"]
    classes = shown["Newswires in each of the 5 classes, train and test"]
    assert classes["figure"]["layout"]["yaxis"]["type"] == "linear"
    # A bar may stand for a single newswire.
    assert (
        lengths["figure"]["data"][0]["hovertemplate"]
        == "words: %{customdata}<br>newswires: %{y:,}<extra></extra>"
    )
    assert corpus.text(0) in texts(app)
    assert "shape `(100,)`" in texts(app)
    assert "int32 (240, 100)" in drawings(app)
    # 240 newswires are 7 batches of 32 and one of 16, whose second shard is all fillers.
    assert "The last batch of an epoch has only 16 newswires" in texts(app)
    assert "16 fillers" in drawings(app)
    app.toggle(key="log_classes").set_value(True).run()
    classes = charts(app)["Newswires in each of the 5 classes, train and test"]
    assert classes["figure"]["layout"]["yaxis"]["type"] == "log"


def test_data_example_of_the_test_split(show: Open, store: Store) -> None:
    corpus = prepared(store)
    app = show("pages/data.py", data__dataset="synthetic")
    app.number_input(key="example").set_value(239).run()
    app.button_group(key="example_split").set_value("test").run()
    sound(app)
    assert app.number_input(key="example").value == 59
    assert corpus.text(299) in texts(app)


def test_data_while_it_is_prepared(show: Open, store: Store) -> None:
    job = claimed(store, Kind.PREPARE, {"dataset": "reuters"})
    store.report(job, phase="downloading", progress={"downloaded_bytes": 2**20, "total_bytes": 2**21})
    app = show("pages/data.py")
    assert "being prepared" in texts(app)
    assert "downloading: 1 MiB of 2 MiB" in [element.proto.text for element in app.get("progress")]


# Model


def test_model_page(show: Open, store: Store) -> None:
    app = show("pages/model.py")
    assert "Keras is building the model" in texts(app)
    (job,) = store.jobs(kinds=[Kind.DESCRIBE])
    taken = claim(store, [Kind.DESCRIBE], "somebody")
    assert taken is not None
    store.finish(job.id, Status.COMPLETED, result=DESCRIPTION)
    sound(app.run())
    assert {metric.label: metric.value for metric in app.metric} == {
        "Parameters": "332,856",
        "Memory per replica": "7.46 MiB",
        "Replicas": "2",
        "Memory of all replicas": "14.9 MiB",
    }
    assert app.table[0].value["Output shape"].tolist()[0] == "(None, 300, 7)"
    assert "with `from_logits=False`" in texts(app)
    assert "2.865" in texts(app)
    app.run()
    assert len(store.jobs(kinds=[Kind.DESCRIBE])) == 1, "the same model was described twice"
    app.number_input(key="model.pool").set_value(3).run()
    assert len(store.jobs(kinds=[Kind.DESCRIBE])) == 2
    assert app.metric[0].value == "332,856", "the last description stays until the next is there"


def test_model_page_shows_what_is_set_on_the_page_training(show: Open, store: Store) -> None:
    query = {"training__learning_rate": "0.05", "training__deterministic": "true"}
    show("pages/model.py", **query)
    taken = claim(store, [Kind.DESCRIBE], "somebody")
    assert taken is not None
    assert taken.config["training"] == {"batch_size": 32, "deterministic": True}
    store.finish(taken.id, Status.COMPLETED, result=DESCRIPTION)
    app = show("pages/model.py", **query)
    assert "**Compiled with** Nadam (learning rate 0.05)" in texts(app)
    (memory_each,) = [metric for metric in app.metric if metric.label == "Memory per replica"]
    assert "float64" in memory_each.help


def test_from_logits_experiment_warns_and_is_compiled_and_shown(show: Open, store: Store) -> None:
    assert not show("pages/model.py").warning
    (plain,) = store.jobs(kinds=[Kind.DESCRIBE])
    store.request_stop(plain.id)
    app = show("pages/model.py", model__from_logits="true")
    assert "softmax is applied twice and the loss cannot fall below 2.865" in app.warning[0].value
    taken = claim(store, [Kind.DESCRIBE], "somebody")
    assert taken is not None
    assert taken.config["model"]["from_logits"] is True
    store.finish(taken.id, Status.COMPLETED, result=DESCRIPTION)
    assert "with `from_logits=True`" in texts(sound(app.run()))
    assert "from_logits=True (experiment)" in texts(sound(app.switch_page("pages/training.py").run()))


def test_impossible_model(show: Open, store: Store) -> None:
    app = show("pages/model.py")
    app.number_input(key="model.kernels.0").set_value(99)
    app.number_input(key="model.pool").set_value(90).run()
    assert len(app.error) == 1
    assert "Sequences of 300 words are too short for kernels 99 and 3" in app.error[0].value
    assert len(store.jobs(kinds=[Kind.DESCRIBE])) == 1, "an impossible model was asked for"


LARGEST = {
    "model__embedding_size": "512",
    "model__filters__0": "1024",
    "model__filters__1": "1024",
    "model__kernels__0": "100",
    "model__kernels__1": "100",
    "model__pool": "1",
    "data__max_len": "5000",
}


@pytest.mark.parametrize("script", ["pages/model.py", "pages/training.py"])
def test_a_model_beyond_the_machines_memory_is_warned_of(show: Open, store: Store, script: str) -> None:
    answered(store, Kind.INSPECT, {}, MACHINE)
    prepared(store)
    usual = show(script, data__dataset="synthetic")
    assert "of memory; this machine has" not in texts(usual)
    app = show(script, data__dataset="synthetic", **LARGEST)
    (warning,) = [element.value for element in app.warning]
    assert warning.startswith("This model needs about 15.2 GiB of memory; this machine has 8 GiB.")
    assert (
        "399,344,686 parameters × 4 values of 4 bytes (weight, gradient, optimizer) are 5.95 GiB" in warning
    )
    assert "on each of 2 replicas" in warning
    assert not app.error
    if script == "pages/training.py":
        assert not app.button(key="start").disabled


def test_memory_of_a_gpu_counts_where_the_model_is_there(show: Open, store: Store) -> None:
    gpus = [{**MACHINE["devices"][0], "type": "GPU", "index": i, "memory_bytes": 4 * 2**30} for i in range(2)]
    answered(store, Kind.INSPECT, {}, {**MACHINE, "devices": [*MACHINE["devices"], *gpus]})
    app = show(
        "pages/model.py",
        **LARGEST,
        layout__device_type='"GPU"',
        layout__visible_devices="[0,1]",
        layout__logical_devices="1",
    )
    (warning,) = [element.value for element in app.warning]
    assert warning.startswith("This model needs about 7.58 GiB of memory; a GPU has 4 GiB.")


def test_parameters_are_counted_as_keras_counts_them() -> None:
    assert memory.needed(RunConfig()).parameters == DESCRIPTION["params"]


# Training


def test_training_form_starts_a_run(show: Open, store: Store) -> None:
    prepared(store)
    app = show("pages/training.py", data__dataset="synthetic")
    assert "global 32 = 2 × 16" in texts(app)
    app.number_input(key="training.batch_size").set_value(33).run()
    assert "changed from 33 to 34" in texts(app)
    assert "global 34 = 2 × 17" in texts(app)
    app.number_input(key="training.patience").set_value(4).run()
    app.button(key="start").click().run()
    sound(app)
    (job,) = store.jobs(kinds=[Kind.TRAIN])
    config = RunConfig.model_validate(job.config)
    assert config.training.patience == 4
    assert config.global_batch_size == 34
    assert "Waiting for an engine process to start" in texts(app)


def test_execution_is_the_engines_choice_until_somebody_makes_one(show: Open, store: Store) -> None:
    prepared(store)
    app = show("pages/training.py", data__dataset="synthetic")
    (part,) = [element for element in app.get("expander") if element.label == "Execution"]
    assert part.proto.expanded is False
    assert app.number_input(key="execution.steps_per_execution").value is None
    app.number_input(key="execution.steps_per_execution").set_value(3)
    app.toggle(key="execution.jit_compile").set_value(True).run()
    (part,) = [element for element in app.get("expander") if element.label == "Execution"]
    assert part.proto.expanded is True
    (problem,) = part.error
    assert unescaped(problem.value).startswith("XLA cannot compile the step of 2 replicas (TensorFlow 2.21).")
    assert app.button(key="start").disabled
    app.toggle(key="execution.jit_compile").set_value(False).run()
    sound(app.button(key="start").click().run())
    execution = store.jobs(kinds=[Kind.TRAIN])[0].config["execution"]
    assert (execution["steps_per_execution"], execution["inter_op_threads"]) == (3, None)


def test_queued_run_says_behind_whom(show: Open, store: Store) -> None:
    running = running_run(store, epochs=1)
    config = RunConfig().model_dump(mode="json")
    store.submit(Kind.TRAIN, config)
    last = store.submit(Kind.TRAIN, config)
    app = show("pages/training.py", run=last)
    assert f"Waiting behind run {running.id}, 2nd in line." in texts(app)


def test_running_run_can_be_stopped(show: Open, store: Store) -> None:
    job = running_run(store, epochs=4)
    app = show("pages/training.py", run=job.id)
    figures = {metric.label: metric.value for metric in app.metric}
    assert figures == {
        "Epoch": "4 of 10", "Step": "281 of 281", "Time left": "21 s", "Throughput": "2,210 newswires/s"
    }  # fmt: skip
    assert charts(app)["Loss: training against validation"]["figure"]["layout"]["xaxis"]["range"][1] > 10
    app.button(key="stop").click().run()
    assert store.job(job.id).status is Status.STOPPING
    assert app.button(key="stop").label == "Stopping…"
    assert app.button(key="stop").disabled


def test_running_run_can_be_paused(show: Open, store: Store) -> None:
    job = running_run(store, epochs=4)
    app = show("pages/training.py", run=job.id)
    app.button(key="pause").click().run()
    assert store.job(job.id).status is Status.PAUSING
    assert (app.button(key="pause").label, app.button(key="pause").disabled) == ("Pausing…", True)
    assert not app.button(key="stop").disabled
    assert "pausing" in texts(sound(app))


def _labels(app: AppTest) -> set[str]:
    wanted = ("pause", "stop", "resume", "resume_elsewhere", "extend_now")
    return {button.key for button in app.button if button.key in wanted}


def test_paused_run_goes_on_where_it_was_or_on_the_layout_of_the_draft(show: Open, store: Store) -> None:
    answered(store, Kind.INSPECT, {}, MACHINE)
    job = finished_run(store, epochs=4, status=Status.PAUSED)
    app = show("pages/training.py", run=job.id)
    assert "Paused after epoch 4. It holds no device." in texts(app)
    assert _labels(app) == {"resume"}
    sound(app.button(key="resume").click().run())
    assert store.job(job.id).status is Status.QUEUED
    assert "Loss: training against validation" in charts(app)
    assert _labels(app) == {"stop"}
    app.button(key="stop").click().run()

    app = show("pages/training.py", run=job.id, layout__strategy="single", layout__logical_devices="1")
    assert app.button(key="resume_elsewhere").label == "Resume on a single CPU"
    sound(app.button(key="resume_elsewhere").click().run())
    moved = store.job(job.id)
    assert (moved.status, moved.config["layout"]["strategy"]) == (Status.QUEUED, "single")
    assert moved.config["training"]["batch_size"] == 32


def test_layout_that_cannot_share_the_batch_or_is_not_there_is_no_place_to_resume(
    show: Open, store: Store
) -> None:
    answered(store, Kind.INSPECT, {}, MACHINE)
    job = finished_run(store, epochs=4, status=Status.LOST)
    app = show("pages/training.py", run=job.id, layout__logical_devices="3")
    assert app.button(key="resume_elsewhere").disabled
    assert "cannot share the run's global batch of 32 evenly" in unescaped(
        app.button(key="resume_elsewhere").help
    )
    app = show("pages/training.py", run=job.id, layout__device_type="GPU", layout__logical_devices="1")
    assert "This machine has no GPU:0." in unescaped(app.button(key="resume_elsewhere").help)


def test_run_resumed_by_somebody_else_meanwhile(show: Open, store: Store) -> None:
    job = finished_run(store, epochs=4, status=Status.PAUSED)
    app = show("pages/training.py", run=job.id)
    store.resume(job.id)
    sound(app.button(key="resume").click().run())
    assert store.job(job.id).rewinds == 1


def test_completed_run_can_be_extended(show: Open, store: Store) -> None:
    job = finished_run(store)
    app = show("pages/training.py", run=job.id)
    assert _labels(app) == {"extend_now"}
    app.number_input(key="extend_epochs").set_value(3).run()
    sound(app.button(key="extend_now").click().run())
    longer = store.job(job.id)
    assert (longer.status, longer.config["training"]["epochs"]) == (Status.QUEUED, 13)


@pytest.mark.parametrize(("epochs", "text"), [(6, "epoch 7 of 10"), (10, "epoch 10 of 10")])
def test_a_resumed_run_stands_at_its_checkpoint_until_the_engine_reports(
    show: Open, store: Store, epochs: int, text: str
) -> None:
    job = finished_run(store, epochs=epochs, status=Status.LOST)
    store.resume(job.id)
    assert claim(store, [Kind.TRAIN], "an engine") is not None
    app = show("pages/training.py", run=job.id)
    bars = {bar.proto.text: bar.proto.value for bar in app.get("progress")}
    assert bars[f"**Run {job.id}**, {text}: starting"] == 10 * epochs
    assert bars[":material/play_circle: Starting TensorFlow"] == 10 * epochs


def test_page_says_from_which_checkpoint_a_run_went_on(show: Open, store: Store) -> None:
    job = running_run(store, epochs=4)
    result = {**RESULT, "resumed": {"epochs": 2, "damaged": [3]}}
    problem = "The checkpoint of epoch 4 could not be written: No space left on device."
    store.report(job, result=result, checkpoint={"epochs": 3, "problem": problem})
    said = texts(show("pages/training.py", run=job.id))
    assert "Went on from the checkpoint of epoch 2." in said
    assert "The checkpoint of epoch 3 was damaged, so the run went back to the one before." in said
    assert f"{problem} The newest one is of epoch 3." in said


def test_what_can_be_taken_away_says_which_epoch_it_is_from(show: Open, store: Store) -> None:
    app = show("pages/training.py", run=finished_run(store).id)
    assert [button.proto.label for button in app.get("download_button")] == [
        "History, CSV", "History, JSON", "History, Parquet", "History, TensorBoard event files",
        "Best model, epoch 3, for Keras", "Best model, epoch 3, for serving (SavedModel)",
        "Last model, epoch 10, for Keras", "Last model, epoch 10, for serving (SavedModel)",
        "Python script", "Notebook",
    ]  # fmt: skip


def test_view_of_a_run_forgets_what_a_resume_takes_back(show: Open, store: Store) -> None:
    job = running_run(store, epochs=4)
    store.report(job, checkpoint={"epochs": 2, "best_epoch": 2, "best_val_loss": 1.5})
    app = show("pages/training.py", run=job.id)
    store.finish(job.id, Status.LOST)
    store.resume(job.id)
    app.run()
    loss = charts(app)["Loss: training against validation"]["figure"]["data"]
    assert len(next(trace for trace in loss if trace["name"] == "validation")["x"]) == 2


@pytest.mark.parametrize("status", [Status.COMPLETED, Status.STOPPED, Status.FAILED, Status.LOST])
def test_run_that_is_over_shows_its_charts(show: Open, store: Store, status: Status) -> None:
    job = finished_run(store, status=status)
    app = show("pages/training.py", run=job.id)
    assert "Validation loss was lowest at epoch 3 (1.523)" in texts(app)
    assert "the model is memorising" in texts(app)
    shown = charts(app)
    loss = shown["Loss: training against validation"]["figure"]
    assert loss["layout"]["uirevision"] == f"{job.id} epoch"
    assert [trace["name"] for trace in loss["data"]] == [
        "each batch", "batches, smoothed", "training", "validation"
    ]  # fmt: skip
    # Best epoch, GL_2 and GL_5 together, GL_20, and the region of overfitting.
    assert sorted((shape["x0"], shape["x1"]) for shape in loss["layout"]["shapes"]) == [
        (3, 3), (4, 4), (4, 10), (5, 5)
    ]  # fmt: skip
    assert "Generalization gap: validation loss minus training loss" in shown
    failed = status in (Status.FAILED, Status.LOST)
    assert ("Out of memory." in texts(app)) is failed
    assert ("Traceback of the engine" in [code.value for code in app.code]) is failed


def test_steps_and_top_5(show: Open, store: Store) -> None:
    job = finished_run(store)
    app = show("pages/training.py", run=job.id)
    app.button_group(key="axis").set_value("step").run()
    loss = charts(app)["Loss: training against validation"]["figure"]
    assert loss["layout"]["xaxis"]["title"]["text"] == "Training step"
    assert 3 * 281 in [shape["x0"] for shape in loss["layout"]["shapes"]]
    app.button_group(key="accuracy").set_value("sparse_top_k_categorical_accuracy").run()
    assert "Top-5 accuracy: training against validation" in charts(sound(app))


def test_log_says_what_tensorflow_means(show: Open, store: Store) -> None:
    run = finished_run(store)
    reduce = "Reduce to /CPU:0 then broadcast to ('/CPU:0', '/CPU:1')."
    lines = [LogLine(0.0, "info", "tensorflow", text) for text in (reduce, "`a` <b>b</b>", reduce, reduce)]
    store.report(run, logs=lines)
    (log,) = [m.value for m in show("pages/training.py", run=run.id).markdown if "Reduce to" in m.value]
    assert log.count("Reduce to") == 1
    assert f"` {reduce} ` **3 times**  \n:green[:material/check_circle:] One variable's gradient" in log
    assert "`` `a` <b>b</b> ``" in log


def test_unknown_run_in_the_address(show: Open, store: Store) -> None:
    finished_run(store)
    app = show("pages/training.py", run="<script>")
    assert "There is no run '<script>'" in texts(app)
    assert "Choose one of the runs above" in texts(app)
    long = show("pages/training.py", run="0123456789" * 500)
    (error,) = [element.value for element in long.error]
    assert "There is no run" in error
    assert len(error) < 400
    with pytest.raises(RunNotFound, match="There is no run"):
        store.job("\udcff")  # a byte that is no UTF-8, as a shell may pass it


def test_choosing_among_runs(show: Open, store: Store) -> None:
    first, second = finished_run(store), finished_run(store, epochs=2, status=Status.STOPPED)
    app = show("pages/training.py", run=first.id)
    app.selectbox(key="chooser").set_value(second.id).run()
    sound(app)
    assert f"**Run {second.id}**" in texts(app)


def test_words_that_are_no_runs_any_more(show: Open, store: Store) -> None:
    """The browser answers with the words it shows; they can be from before a run was renamed."""
    run = finished_run(store)
    app = show("pages/training.py", run=run.id)
    chooser = app.selectbox(key="chooser")
    chooser.options.append("its former name")
    chooser.set_value("its former name").run()
    assert f"**Run {run.id}**" in texts(sound(app))
    assert "There is no run" not in texts(app)


def test_loss_that_is_not_finite_breaks_the_line(show: Open, store: Store) -> None:
    job = running_run(store, epochs=3)
    rows = [
        Metric("epoch", 4 * 281 - 1, 3, split, name, math.nan, 0.0)
        for split in ("train", "validation")
        for name in ("loss", "sparse_categorical_accuracy")
    ]
    store.report(job, metrics=[*rows, Metric("step", 3 * 281, 3, "train", "loss", math.inf, 0.0)])
    store.finish(job.id, Status.STOPPED)
    app = show("pages/training.py", run=job.id)
    validation = charts(app)["Loss: training against validation"]["figure"]["data"][3]
    assert np.isnan(np.frombuffer(base64.b64decode(validation["y"]["bdata"]), "f8")).tolist() == [
        False, False, False, True
    ]  # fmt: skip
    figures = {metric.label: metric.value for metric in app.metric}
    assert figures["Best epoch"] == "3 of 4"


@pytest.mark.parametrize(
    ("monitor", "words"),
    [("val_loss", "validation loss"), ("val_sparse_categorical_accuracy", "validation accuracy")],
)
def test_an_early_stop_says_what_had_not_improved(show: Open, store: Store, monitor: str, words: str) -> None:
    job = claimed(store, Kind.TRAIN, {"training": {"patience": 2, "monitor": monitor}})
    rows = [row for epoch in range(8) for row in rows_of(epoch)]
    store.report(job, metrics=rows, result={**RESULT, "early_stop": {"epoch": 8, "best_epoch": 6}})
    store.finish(job.id, Status.COMPLETED)
    told = f"Stopped early after epoch 8: {words} had not improved since epoch 6."
    assert told in texts(show("pages/training.py", run=job.id))


def test_the_best_of_epochs_that_begin_later_is_told_by_number(show: Open, store: Store) -> None:
    epochs = [{"epoch": 20 + i, "loss": 2.0 - 0.1 * i, "val_loss": abs(4 - i) + 1.0} for i in range(10)]
    app = show("pages/training.py", run=add_import(store, epochs, file="later.csv"))
    assert {metric.label: metric.value for metric in app.metric}["Best epoch"] == "24 of 29"


def test_charts_without_a_finite_value_say_why(show: Open, store: Store) -> None:
    job = running_run(store, epochs=0)
    rows = [
        Metric("epoch", 281 * (epoch + 1) - 1, epoch, split, "loss", math.nan, 0.0)
        for epoch in range(3)
        for split in ("train", "validation")
    ]
    store.report(job, metrics=rows)
    store.finish(job.id, Status.STOPPED)
    shown = charts(show("pages/training.py", run=job.id))
    assert {
        title.partition(":")[0]: [
            note["text"] for note in content["figure"]["layout"].get("annotations", [])
        ][-1]
        for title, content in shown.items()
    } == {
        "Loss": "Every loss was NaN or infinite: the run diverged.",
        "Accuracy": "This was not recorded.",
        "Generalization loss GL": "No epoch has a finite validation loss.",
        "Generalization gap": "No epoch has a finite loss of both kinds.",
    }
    finished = finished_run(store)
    notes = str(charts(show("pages/training.py", run=finished.id)))
    assert "finite" not in notes
    assert "recorded" not in notes


def test_accuracy_of_a_run_without_steps_goes_from_0_to_1(show: Open, store: Store) -> None:
    job = running_run(store, epochs=0)
    shown = charts(show("pages/training.py", run=job.id))
    assert shown["Accuracy: training against validation"]["figure"]["layout"]["yaxis"]["range"] == [0, 1]
    store.finish(job.id, Status.STOPPED)
    finished = finished_run(store)
    shown = charts(show("pages/training.py", run=finished.id))
    assert "range" not in shown["Accuracy: training against validation"]["figure"]["layout"]["yaxis"]


def test_nothing_opaque_lies_on_the_curves(show: Open, store: Store) -> None:
    """The label of the best epoch stands above the plot, those of the stopping rules have no background."""
    job = finished_run(store)
    shown = charts(show("pages/training.py", run=job.id))
    for content in shown.values():
        layout = content["figure"]["layout"]
        (best,) = [note for note in layout["annotations"] if note["text"].startswith("best epoch 3")]
        assert (best["yref"], best["y"], best["yanchor"], best["xanchor"]) == ("paper", 1, "bottom", "left")
        assert layout["margin"]["t"] >= 20
    for title in ("Loss: training against validation", "Accuracy: training against validation"):
        assert not [note for note in shown[title]["figure"]["layout"]["annotations"] if "bgcolor" in note]


# Rooms


def test_make_test_installs_a_browser_only_where_the_tests_would_find_none() -> None:
    """Else the tests in a browser would skip, and nobody would notice."""
    (line,) = [
        line for line in (ROOT / "Makefile").read_text("utf-8").splitlines() if "-y -qq chromium" in line
    ]
    assert tuple(re.findall(r"command -v (\S+)", line)) == BROWSERS


def test_dashboard_never_imports_tensorflow() -> None:
    """Streamlit clears Keras's session after every script run when keras is imported."""
    modules = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for path in sorted((ROOT / "core" / "dashboard").rglob("*.py"))
    ]
    assert len(modules) > 5
    # A page cannot be imported without running it; what it imports can.
    for page in [*sorted((ROOT / "pages").glob("*.py")), ROOT / "streamlit_app.py"]:
        imports = [
            node for node in ast.parse(page.read_text("utf-8")).body if isinstance(node, ast.ImportFrom)
        ]
        modules += [node.module for node in imports if node.module and node.module.startswith("core")]
    code = (
        f"import importlib, sys\nfor name in {sorted(set(modules))!r}: importlib.import_module(name)\n"
        "print(sorted({'tensorflow', 'keras'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "[]"


def test_what_was_set_for_a_gpu_does_not_stand_in_a_cpus_way(show: Open, store: Store) -> None:
    query = {
        "layout__memory_limit_mb": "2048",
        "layout__memory_growth": "true",
        "training__learning_rate": "NaN",
    }
    app = show("pages/devices.py", **query)
    assert not app.error
    training = show("pages/training.py", **query)
    assert not training.error


def test_optimizers_are_called_as_keras_calls_them(show: Open, store: Store) -> None:
    start = show("streamlit_app.py", model__optimizer="sgd")
    assert "64 and 32 filters, SGD" in texts(start)
    training = show("pages/training.py", model__optimizer="sgd")
    assert "MirroredStrategy on 2 logical CPUs; SGD." in texts(training)


@pytest.mark.parametrize("page", ["training", "evaluate", "runs", "scaling"])
def test_a_session_keeps_no_list_of_all_runs(show: Open, store: Store, page: str) -> None:
    """What fragments and callbacks keep of a page's module stays for minutes after a viewer has left."""
    prepared(store)
    listed = {finished_run(store, epochs=1).id for _ in range(20)}
    study = store.submit_study(Scaling.STRONG, [RunConfig().model_dump(mode="json")] * 20)
    listed |= {job.id for job in store.study(study)}
    run = running_run(store, epochs=1)
    app = show(f"pages/{page}.py", run=run.id, study=study)
    gc.collect()
    kept = {one.id for one in gc.get_objects() if isinstance(one, Job)} & listed
    assert len(kept) < 5, app
