"""The page of all runs, without a browser: table, filters, compare, rename, delete, import, export."""

from __future__ import annotations

import base64
import io
import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from streamlit.testing.v1 import AppTest

from core.analysis.comparison import change, differences, flat
from core.config import RunConfig
from core.dashboard.run_table import epochs_frame, runs_frame
from core.errors import ConfigError
from core.records import RUNS, Job, Kind, Metric, Status
from core.report import add_import
from core.store import Store
from tests.page_app import Open, charts, sound, texts, unescaped
from tests.recorded import claimed, finished_run, running_run

LOG = Path(__file__).parent / "fixtures" / "tensorboard"
CHART = "Validation loss of the chosen runs"


def sgd_run(store: Store) -> Job:
    """A finished run with other settings, half as fast, and better by a tenth."""
    config = RunConfig.model_validate({"model": {"optimizer": "sgd"}, "training": {"seed": 7}})
    job = claimed(store, Kind.TRAIN, config.model_dump(mode="json"))
    values = [1.6, 1.37088, 1.4]
    rows = [Metric("epoch", 281 * n, n, "validation", "loss", value, 0.0) for n, value in enumerate(values)]
    store.report(job, progress={"examples_per_s": 1_105.0}, metrics=rows)
    store.finish(job.id, Status.COMPLETED)
    return store.job(job.id)


def chosen(*jobs: Job) -> str:
    return json.dumps([job.id for job in jobs])


def drawn(app: AppTest) -> dict[str, dict[str, Any]]:
    return {trace["name"]: trace for trace in charts(app)[CHART]["figure"]["data"]}


def x_of(trace: dict[str, Any]) -> list[float]:
    return np.frombuffer(base64.b64decode(trace["x"]["bdata"]), trace["x"]["dtype"]).tolist()


def test_table(show: Open, store: Store) -> None:
    done, failed = finished_run(store), finished_run(store, epochs=2, status=Status.FAILED)
    table = show("pages/runs.py").dataframe[0].value.set_index("Run")
    assert table.index.tolist() == [failed.id, done.id]
    row = table.loc[done.id]
    assert row["Created"].timestamp() == pytest.approx(done.created_at, abs=1e-3)
    assert row.drop("Created").to_dict() == {
        "Status": "completed",
        "Strategy": "mirrored",
        "Devices": "2 × CPU",
        "Best validation loss": 1.5232,
        "At epoch": 3,
        "Examples/s": 2_210.0,
        "Duration (s)": pytest.approx(done.duration_s),
        "Checkpoints (MB)": None,
    }


def test_filters(show: Open, store: Store) -> None:
    done, other = finished_run(store), sgd_run(store)
    finished_run(store, epochs=2, status=Status.FAILED)
    store.rename(done.id, "Two Replicas")
    assert len(show("pages/runs.py", runs__status='["failed"]').dataframe[0].value) == 1
    assert show("pages/runs.py", runs__find="replicas TWO").dataframe[0].value["Run"].tolist() == [
        "Two Replicas"
    ]
    assert show("pages/runs.py", runs__find="sgd").dataframe[0].value["Run"].tolist() == [other.id]
    app = show("pages/runs.py", runs__find="nothing like it")
    assert "No run fits the filter." in texts(app)
    app = show("pages/runs.py", runs__status='["nonsense"]')
    assert len(app.dataframe[0].value) == 3


def test_a_filter_keeps_what_is_chosen(show: Open, store: Store) -> None:
    one, two = finished_run(store), sgd_run(store)
    app = show("pages/runs.py", runs=chosen(one, two))
    app.text_input(key="runs.find").set_value("sgd").run()
    assert len(sound(app).dataframe[0].value) == 1
    assert set(drawn(app)) == {one.id, two.id}


def test_compare(show: Open, store: Store) -> None:
    one, two = finished_run(store), sgd_run(store)
    app = show("pages/runs.py", runs=chosen(one))
    assert "Choose two runs or more" in texts(app)
    app = show("pages/runs.py", runs=chosen(one, two))
    parameters = app.table[0].value.set_index("Parameter").rename(index=unescaped)
    assert parameters[one.id].to_dict() == {
        "data.dataset": "synthetic", "model.optimizer": "nadam", "training.seed": "1"
    }  # fmt: skip
    assert parameters[two.id].to_dict() == {
        "data.dataset": "reuters", "model.optimizer": "sgd", "training.seed": "7"
    }  # fmt: skip
    figures = app.table[1].value.set_index("Figure")
    assert figures.loc["Best validation loss"].to_dict() == {one.id: "1.523", two.id: "1.371 (-10.0\xa0%)"}
    assert figures.loc["Examples/s"].to_dict() == {one.id: "2,210", two.id: "1,105 (-50.0\xa0%)"}
    app.selectbox(key="compare.baseline").set_value(two.id).run()
    figures = sound(app).table[1].value.set_index("Figure")
    assert figures.loc["Examples/s"].to_dict() == {one.id: "2,210 (+100.0\xa0%)", two.id: "1,105"}


def test_baseline_that_was_renamed(show: Open, store: Store) -> None:
    """The browser answers with the words it shows; they can be from before a run was renamed."""
    done, other = finished_run(store), sgd_run(store)
    app = show("pages/runs.py", runs=chosen(done, other))
    baseline = app.selectbox(key="compare.baseline")
    baseline.options.append("its former name")
    baseline.set_value("its former name").run()
    assert sound(app).selectbox(key="compare.baseline").value in {done.id, other.id}


def test_runs_with_the_same_parameters(show: Open, store: Store) -> None:
    app = show("pages/runs.py", runs=chosen(finished_run(store), finished_run(store)))
    assert "The chosen runs have the same parameters." in texts(app)


def test_curves_by_epoch_step_and_time(show: Open, store: Store) -> None:
    one, two = finished_run(store), sgd_run(store)
    app = show("pages/runs.py", runs=chosen(one, two))
    assert x_of(drawn(app)[one.id]) == list(range(1, 11))
    app.button_group(key="compare.along").set_value("step").run()
    assert x_of(drawn(sound(app))[one.id]) == [281 * n for n in range(1, 11)]
    assert f"the steps per epoch were not recorded: {two.id}" in texts(app)
    app.button_group(key="compare.along").set_value("time").run()
    assert x_of(drawn(sound(app))[one.id]) == [4 * n for n in range(1, 11)]
    assert f"the epoch durations were not recorded: {two.id}" in texts(app)


def test_a_run_keeps_its_colour(show: Open, store: Store) -> None:
    jobs = [finished_run(store, epochs=3) for _ in range(8)]
    lines = {
        job.id: drawn(show("pages/runs.py", runs=chosen(job, jobs[-1])))[job.id]["line"] for job in jobs[:-1]
    }
    assert len({(line["color"], line["dash"]) for line in lines.values()}) == 7
    store.delete([jobs[0].id, jobs[3].id])
    together = drawn(show("pages/runs.py", runs=chosen(*jobs)))
    assert {name: trace["line"] for name, trace in together.items() if name in lines} == {
        name: line for name, line in lines.items() if name in together
    }
    assert len(together) == 6


def test_runs_whose_colours_come_round_again_are_told_apart(show: Open, store: Store) -> None:
    jobs = [finished_run(store, epochs=1) for _ in range(26)]
    few = drawn(show("pages/runs.py", runs=chosen(jobs[0], jobs[1], jobs[2])))
    clashing = drawn(show("pages/runs.py", runs=chosen(jobs[24], jobs[25], jobs[2], jobs[1], jobs[0])))
    lines = {name: (trace["line"]["color"], trace["line"]["dash"]) for name, trace in clashing.items()}
    assert len(set(lines.values())) == len(lines) == 5
    for job in jobs[:3]:
        assert clashing[job.id]["line"] == few[job.id]["line"], "an earlier run gave its look away"
    all_but_two = drawn(show("pages/runs.py", runs=chosen(*jobs[2:])))
    assert len({(trace["line"]["color"], trace["line"]["dash"]) for trace in all_but_two.values()}) == 24


def test_rename(show: Open, store: Store) -> None:
    job = finished_run(store)
    app = show("pages/runs.py", runs=chosen(job))
    app.text_input(key=f"name_{job.id}").set_value("  <b>two</b>   *replicas* ")
    app.button(key="save_name").click().run()
    assert store.job(job.id).name == "<b>two</b> *replicas*"
    assert sound(app).dataframe[0].value["Run"].tolist() == ["<b>two</b> *replicas*"]
    assert "**Run <b>two</b> *replicas***" in texts(show("pages/training.py", run=job.id))


def test_tags_are_given_found_and_taken_away(show: Open, store: Store) -> None:
    one, two = finished_run(store), finished_run(store)
    app = show("pages/runs.py", runs=chosen(one, two))
    tags = app.multiselect(key=f"tags_{two.id}_{one.id}")
    tags.options += ["  lesson  1 ", "*b*"]  # what the browser offers when a new one is typed
    tags.set_value(["  lesson  1 ", "*b*"]).run()
    app.button(key="save_tags").click().run()
    assert [store.job(job.id).tags for job in (one, two)] == [["*b*", "lesson 1"]] * 2
    shown = sound(app).dataframe[0].value["Tags"]
    assert [list(tags) for tags in shown] == [["*b*", "lesson 1"]] * 2

    app = show("pages/runs.py", runs=chosen(one))
    app.multiselect(key=f"tags_{one.id}").set_value(["*b*"]).run()
    app.button(key="save_tags").click().run()
    assert [store.job(job.id).tags for job in (one, two)] == [["*b*"], ["*b*", "lesson 1"]]

    app = show("pages/runs.py", runs__tags='["lesson 1"]')
    assert sound(app).dataframe[0].value["Run"].tolist() == [two.id]
    app = show("pages/runs.py", runs__tags='["gone"]')
    assert len(sound(app).dataframe[0].value) == 2
    app.text_input(key="runs.find").set_value("LESSON").run()
    assert sound(app).dataframe[0].value["Run"].tolist() == [two.id]
    assert runs_frame(store).tags.tolist() == ['["*b*", "lesson 1"]', '["*b*"]']


def test_delete_asks_first_and_leaves_running_ones(show: Open, store: Store) -> None:
    done, kept, running = finished_run(store), finished_run(store), running_run(store, epochs=1)
    app = show("pages/runs.py", runs=chosen(done, running), run=done.id)
    assert f"Delete **{done.id}** with all measurements" in texts(app)
    assert "Runs that have not ended are left alone" in texts(app)
    assert len(store.jobs(kinds=RUNS)) == 3
    app.button(key="delete_for_good").click().run()
    sound(app)
    assert [job.id for job in store.jobs(kinds=RUNS)] == [running.id, kept.id]
    assert app.session_state["runs"] == [running.id]
    assert app.session_state["run"] is None


def _import(app: AppTest, *files: tuple[str, bytes], name: str = "", classes: int | None = None) -> AppTest:
    app.file_uploader(key="import_files").set_value([(title, data, "text/plain") for title, data in files])
    app.text_input(key="import_name").set_value(name)
    app.number_input(key="import_classes").set_value(classes)
    app.button(key="import_now").click().run()
    return sound(app)


def test_import_a_csv_log_and_look_at_it(show: Open, store: Store) -> None:
    app = _import(show("pages/runs.py"), ("log.csv", (LOG / "log.csv").read_bytes()), classes=4)
    (job,) = store.jobs(kinds=RUNS)
    assert (job.kind, job.status, job.name) == (Kind.IMPORT, Status.COMPLETED, "log.csv")
    assert job.config == {"file": "log.csv", "classes": 4}
    assert f"log.csv is run {job.id}: 4 epochs." in texts(app)
    assert app.dataframe[0].value["Strategy"].tolist() == ["imported"]
    assert app.session_state["runs"] == [job.id]
    page = show("pages/training.py", run=job.id)
    shown = charts(page)
    assert len(shown["Loss: training against validation"]["figure"]["data"]) == 4
    assert "Accuracy: training against validation" in shown
    assert "Generalization loss GL: percent above the lowest so far" in shown
    assert "Imported from log.csv, the log of a model with 4 classes" in texts(page)
    assert "What would have happened" in [element.value for element in page.subheader]


def test_import_the_event_files_of_both_splits(show: Open, store: Store) -> None:
    files = [next((LOG / split).iterdir()) for split in ("train", "validation")]
    _import(
        show("pages/runs.py"), *((file.name, file.read_bytes()) for file in files), name="From  elsewhere"
    )
    (job,) = store.jobs(kinds=RUNS)
    assert job.name == "From elsewhere"
    assert job.duration_s is not None
    assert {(metric.split, metric.epoch) for metric in store.metrics(job, per="epoch")} == {
        (split, epoch) for split in ("train", "validation") for epoch in range(4)
    }


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ([], "No file was chosen."),
        ([("x.csv", b"")], "x.csv holds no epoch."),
        ([("x.csv", b"city,people\nUlm,1\n")], "x.csv holds no loss or val_loss; found: 'city', 'people'."),
        ([("x.pkl", pickle.dumps({"loss": [1.0]}))], "x.pkl is not text"),
        ([("x.csv", b"epoch,loss\n1e300,2\n")], "x.csv has an epoch 1e+300"),
        ([("x.csv", b"epoch,loss\n" + b"1,2\n" * 200_001)], "x.csv holds more than 100,000 values."),
        ([("x.json", b'{"loss": [' + b"1," * 200_001 + b"1]}")], "x.json holds more than 100,000 values."),
        ([("a.csv", b"loss\n1\n"), ("b.csv", b"loss\n1\n")], "are not all event files"),
    ],
    ids=["none", "empty", "other columns", "a pickle", "epoch", "long CSV", "long JSON", "several"],
)
def test_what_cannot_be_imported(
    show: Open, store: Store, files: list[tuple[str, bytes]], words: str
) -> None:
    app = _import(show("pages/runs.py"), *files)
    assert words in texts(app)
    assert len(app.error) == 1
    assert not store.jobs(kinds=RUNS)


def test_an_import_of_too_many_values_is_refused(store: Store) -> None:
    with pytest.raises(ConfigError, match=r"long.csv holds 100,002 values; a run may have 100,000\."):
        add_import(store, [{"epoch": 1, "loss": 1.0}] * 50_001, file="long.csv")


def test_export_holds_every_run_in_both_formats(store: Store) -> None:
    done, other = finished_run(store), sgd_run(store)
    for frame in (runs_frame(store), epochs_frame(store)):
        buffer = io.BytesIO()
        frame.to_parquet(buffer, index=False)
        read = pd.read_parquet(io.BytesIO(buffer.getvalue()))
        assert read["run_id"].drop_duplicates().tolist() == [other.id, done.id]
        assert len(pd.read_csv(io.StringIO(frame.to_csv(index=False)))) == len(frame)
    runs, epochs = runs_frame(store).set_index("run_id"), epochs_frame(store)
    assert runs.loc[done.id, "training.epochs"] == "10"
    assert runs.loc[done.id, "best_epoch"] == 3
    picked = epochs[(epochs.run_id == done.id) & (epochs.split == "validation") & (epochs.metric == "loss")]
    assert picked.value.tolist()[:3] == [1.7517, 1.5715, 1.5232]
    assert picked.epoch.tolist() == list(range(1, 11))


def test_export_of_an_empty_store(store: Store) -> None:
    assert epochs_frame(store).empty
    assert runs_frame(store).empty


def test_comparison_of_parameters_and_figures() -> None:
    assert flat({"a": {"b": 1, "c": [1, 2]}, "d": None}) == {"a.b": 1, "a.c": [1, 2], "d": None}
    assert differences({"one": {"a": 1, "b": True}, "two": {"a": 1, "b": 1, "c": 0}}) == {
        "b": {"one": True, "two": 1},
        "c": {"one": None, "two": 0},
    }
    assert differences({}) == {}
    assert change(1.1, 1.0) == pytest.approx(0.1)
    assert change(1.0, 0.0) is None
    assert change(None, 1.0) is None
