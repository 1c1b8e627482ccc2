"""Scaling studies: the laws, the step times, the runs of a study, the price of all-reduce, and the page."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from core.analysis.scaling import (
    Analysis,
    Timed,
    amdahl,
    analyse,
    gustafson,
    median_step_s,
    price,
    verdict,
)
from core.config import DeviceLayout, RunConfig, parse_config
from core.errors import ConfigError, RunNotFound, TrainingError
from core.records import Engine, Job, Kind, Metric, Scaling, Status
from core.store import Store
from core.study import configs, possible_replicas, report, shares_devices, stop
from tests.conftest import ROOT
from tests.page_app import Open, charts, sound, texts
from tests.recorded import REFERENCE, RESULT, claim, finished_run, prepared

# Pure numbers

FRACTIONS = st.floats(0.0, 1.0)
COUNTS = st.sets(st.integers(1, 8), min_size=2)
SPEEDS = st.floats(1e-3, 1e6)


def by_law(scaling: Scaling, fraction: float, replicas: set[int], speed: float) -> Analysis:
    """What is measured where the law holds exactly."""
    law = amdahl if scaling is Scaling.STRONG else gustafson
    return analyse(scaling, {n: Timed(1.0, speed * law(fraction, n)) for n in replicas})


@pytest.mark.parametrize("scaling", Scaling)
@given(FRACTIONS, COUNTS, SPEEDS)
def test_exact_data_give_back_the_serial_fraction(
    scaling: Scaling, fraction: float, replicas: set[int], speed: float
) -> None:
    found = by_law(scaling, fraction, replicas, speed)
    assert found.serial_fraction == pytest.approx(fraction, abs=1e-6)
    for n, run in found.scaled.items():
        assert found.predicted(n) == pytest.approx(run.speed_up, rel=1e-5)


@pytest.mark.parametrize("scaling", Scaling)
@given(st.dictionaries(st.integers(1, 8), SPEEDS))
def test_whatever_was_measured_is_answered(scaling: Scaling, speeds: dict[int, float]) -> None:
    found = analyse(scaling, {n: Timed(1.0, speed) for n, speed in speeds.items()})
    assert (found.serial_fraction is None) == (len(speeds) < 2)
    assert found.serial_fraction is None or 0 <= found.serial_fraction <= 1
    assert list(found.scaled) == sorted(speeds)
    if speeds:
        first = found.scaled[min(speeds)]
        assert (first.speed_up, first.ideal, first.efficiency) == (1, 1, 1)
    assert verdict(found).endswith(".")


@given(st.dictionaries(st.integers(1, 8), st.floats(0.5, 8), min_size=2), st.floats(0, 1))
def test_no_other_fraction_within_the_bounds_fits_better(speeds: dict[int, float], other: float) -> None:
    """With the baseline on one replica the fit is least squares of the times relative to it."""
    found = analyse(Scaling.STRONG, {n: Timed(1.0, speed) for n, speed in {**speeds, 1: 1.0}.items()})
    assume(found.serial_fraction is not None)

    def squares(fraction: float) -> float:
        return sum((1 / run.speed_up - 1 / amdahl(fraction, n)) ** 2 for n, run in found.scaled.items())

    assert found.serial_fraction is not None
    assert squares(found.serial_fraction) <= squares(other) + 1e-9


def test_speed_up_and_efficiency() -> None:
    found = analyse(
        Scaling.STRONG,
        {4: Timed(0.04, 800.0), 1: Timed(0.1, 320.0), 2: Timed(0.0625, 512.0), 8: None},
    )
    assert list(found.timed) == [1, 2, 4]
    assert {n: (run.speed_up, run.efficiency) for n, run in found.scaled.items()} == {
        1: (1.0, 1.0),
        2: (1.6, 0.8),
        4: (2.5, 0.625),
    }
    assert found.serial_fraction == pytest.approx(0.175 / 0.8125)


def test_a_study_whose_single_run_was_deleted_is_measured_against_the_fewest_left() -> None:
    found = by_law(Scaling.STRONG, 0.1, {2, 4, 8}, 100.0)
    assert found.baseline == 2
    assert found.scaled[8].ideal == 4
    assert found.scaled[8].speed_up == pytest.approx(amdahl(0.1, 8) / amdahl(0.1, 2))
    assert "as fast as on 2;" in verdict(found)


@pytest.mark.parametrize(
    ("scaling", "speeds", "words"),
    [
        (Scaling.STRONG, {}, "No run has a step time yet"),
        (Scaling.STRONG, {1: 100.0}, "Only the run on one replica has a step time so far"),
        (Scaling.STRONG, {1: 100.0, 4: 250.0}, "training runs 2.50 times as fast as on one replica; ideal"),
        (Scaling.STRONG, {1: 100.0, 4: 250.0}, "no more than 5.0 times the speed of one"),
        (Scaling.STRONG, {1: 100.0, 2: 60.0}, "slower than on one replica, at 0.60 times its speed"),
        (Scaling.STRONG, {1: 100.0, 2: 60.0}, "Amdahl's law ends at a serial fraction of 100 %"),
        (Scaling.STRONG, {1: 100.0, 2: 101.0}, "no faster than on one replica (1.01 times its speed)"),
        (Scaling.STRONG, {1: 100.0, 2: 200.0}, "serial fraction of 0.0 %: no limit is in sight"),
        (Scaling.WEAK, {1: 100.0, 4: 325.0}, "fraction of 25.0 %: each added replica brings 0.75 of one"),
        (Scaling.WEAK, {1: 100.0, 4: 325.0}, "ideal would be 4 times, so the efficiency is 81 %"),
    ],
)  # fmt: skip
def test_verdict(scaling: Scaling, speeds: dict[int, float], words: str) -> None:
    assert words in verdict(analyse(scaling, {n: Timed(1.0, speed) for n, speed in speeds.items()}))


def test_verdict_tells_the_price() -> None:
    timed = {1: Timed(1.0, 100.0, 0.0), 2: Timed(1.0, 150.0, 0.18)}
    assert "All-reduce takes 18 % of a step on 2 replicas." in verdict(analyse(Scaling.STRONG, timed))
    timed[2] = Timed(1.0, 150.0, 0.0)
    assert "All-reduce takes hardly any of a step" in verdict(analyse(Scaling.STRONG, timed))
    assert price(10.0, 8.0) == pytest.approx(0.2)
    assert price(8.0, 10.0) == 0  # noise


def test_median_step_leaves_out_the_first_epoch_and_what_lies_between_epochs() -> None:
    slow_tracing = [(0, 8, 10.0), (0, 2, 30.0)]
    first = [(1, 8, 35.0), (1, 8, 35.8), (1, 2, 37.0)]
    second = [(2, 8, 99.0), (2, 8, 99.8)]
    assert median_step_s([*slow_tracing, *first, *second]) == pytest.approx(0.1)
    # Eight steps of one second outweigh two of three, however few executions they were.
    assert median_step_s([(1, 8, 0.0), (1, 8, 8.0), (1, 1, 11.0), (1, 1, 14.0)]) == 1.0


@pytest.mark.parametrize(
    "executions",
    [[], [(0, 8, 1.0), (0, 8, 2.0)], [(0, 8, 1.0), (1, 8, 2.0)], [(1, 8, 2.0), (1, 8, 1.0)]],
    ids=["none", "first epoch only", "one execution an epoch", "clock set back"],
)
def test_median_step_that_cannot_be_known(executions: list[tuple[int, int, float]]) -> None:
    assert median_step_s(executions) is None


# The runs of a study


@pytest.mark.parametrize(
    ("layout", "possible"),
    [
        (DeviceLayout(), [1, 2, 3, 4, 5, 6, 7, 8]),
        (DeviceLayout(strategy="single", logical_devices=1), [1, 2, 3, 4, 5, 6, 7, 8]),
        (DeviceLayout(device_type="GPU", visible_devices=(0, 1, 3), logical_devices=1), [1, 2, 3, 6]),
        (DeviceLayout(strategy="tpu"), []),
    ],
)
def test_possible_replicas(layout: DeviceLayout, possible: list[int]) -> None:
    assert possible_replicas(layout) == possible


def test_strong_scaling_keeps_the_global_batch_and_weak_the_replicas() -> None:
    config = parse_config({"training": {"batch_size": 64, "seed": 3}})
    strong, weak = (configs(config, scaling, [4, 1, 2]) for scaling in Scaling)
    assert [run.layout.replicas for run in strong] == [1, 2, 4]
    assert [run.global_batch_size for run in strong] == [64, 64, 64]
    assert [run.per_replica_batch_size for run in weak] == [64, 64, 64]
    assert strong[0].layout.strategy == "single"
    assert {run.training.seed for run in strong + weak} == {3}


def test_whole_gpus_first_then_split_alike() -> None:
    layout = {
        "device_type": "GPU",
        "visible_devices": [0, 2],
        "logical_devices": 1,
        "memory_limit_mb": 2048,
    }
    runs = configs(parse_config({"layout": layout}), Scaling.STRONG, [1, 2, 4])
    assert [(run.layout.visible_devices, run.layout.logical_devices) for run in runs] == [
        ((0,), 1),
        ((0, 2), 1),
        ((0, 2), 2),
    ]


@pytest.mark.parametrize(
    ("layout", "replicas", "words"),
    [
        ({"strategy": "tpu"}, [1], "A TPU always uses all its cores"),
        ({}, [], "No number of replicas was chosen"),
        ({}, [1, 9], r"9 replicas cannot be spread evenly over the devices \[0\]"),
        ({"visible_devices": [0, 1]}, [3], r"3 replicas cannot be spread evenly over the devices \[0, 1\]"),
    ],
)
def test_replicas_that_are_refused(layout: dict[str, Any], replicas: list[int], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        configs(parse_config({"layout": layout}), Scaling.STRONG, replicas)


def study_of(store: Store, *replicas: int, scaling: Scaling = Scaling.STRONG) -> str:
    config = RunConfig.model_validate({"data": {"dataset": "synthetic"}})
    runs = configs(config, scaling, replicas)
    return store.submit_study(scaling, [run.model_dump(mode="json") for run in runs])


def test_a_study_is_found_again_and_its_runs_are_ordinary_ones(store: Store) -> None:
    alone = finished_run(store)
    first, second = study_of(store, 1, 2), study_of(store, 1, 4, scaling=Scaling.WEAK)
    assert [jobs[0].study for jobs in store.studies(limit=9)] == [second, first]
    assert [jobs[0].study for jobs in store.studies(limit=1)] == [second]
    jobs = store.study(second)
    assert [parse_config(job.config).layout.replicas for job in jobs] == [1, 4]
    assert {(job.kind, job.scaling, job.status) for job in jobs} == {
        (Kind.TRAIN, Scaling.WEAK, Status.QUEUED)
    }
    assert (store.job(alone.id).study, store.job(alone.id).scaling) == (None, None)
    assert [job.place for job in store.jobs(kinds=[Kind.TRAIN])] == [5, 4, 3, 2, 1]
    assert store.study("nothing") == []


def test_a_study_waits_in_line(store: Store) -> None:
    before = store.submit(Kind.TRAIN, {})
    study = study_of(store, 1, 2)
    after = store.submit(Kind.TRAIN, {})
    waiting = [job.id for job in store.study(study)]
    assert [job.id for job in store.ahead_of(store.job(waiting[0]))] == [before]
    assert [job.id for job in store.ahead_of(store.job(after))] == [before, *waiting]


def test_stopping_a_study_leaves_no_run_waiting(store: Store) -> None:
    study = study_of(store, 1, 2, 4)
    claim(store, [Kind.TRAIN], "an engine")
    stop(store, study)
    assert [job.status for job in store.study(study)] == [Status.STOPPING, Status.STOPPED, Status.STOPPED]


def test_a_study_shares_devices_when_one_is_split(store: Store) -> None:
    assert shares_devices(store.study(study_of(store, 1, 2)))
    assert not shares_devices(store.study(study_of(store, 1)))


# The price of all-reduce

REDUCTION = """
import json, sys, threading
from pathlib import Path
import keras, numpy as np, tensorflow as tf
from core.config import parse_config
from core.engine import all_reduce, datasets, layout, metrics, models
from core.engine.pipeline import batches

all_reduce._BUDGET_S = 0.0  # no more rounds than it takes
config = parse_config(json.loads(sys.argv[1]))
execution = layout.plan(config)
strategy = layout.apply(config.layout, execution)
corpus = datasets.prepare("synthetic", Path(sys.argv[2]), lambda *_: None)
rows = (corpus.padded("train", 40)[:72], corpus.split_labels("train")[:72])
keras.utils.set_random_seed(1)
with strategy.scope():
    model = models.build(config, vocabulary=corpus.vocabulary, classes=46, steps_per_execution=2)
    model.step_sums = metrics.StepSums(2)
training = batches(*rows, 16, strategy=strategy)
model.steps = (5, 0)
fitted = model.fit(training.dataset, steps_per_epoch=5, shuffle=False, verbose=0)

def apart():
    copies = [strategy.experimental_local_results(v.value) for v in model.trainable_variables]
    return max(float(np.max(np.abs(c[0].numpy() - c[-1].numpy()))) for c in copies)

before = [v.numpy() for v in model.variables]
taken = []
duration_s = all_reduce._duration_s

def counted_s(*asked):
    began, seconds = model.optimizer.iterations.numpy(), duration_s(*asked)
    taken.append(int(model.optimizer.iterations.numpy() - began))
    return seconds

all_reduce._duration_s = counted_s
measured = all_reduce.measure(model, training, threading.Event())
kept = all(np.array_equal(a, v.numpy()) for a, v in zip(before, model.variables))
function, iterator, gaps = model.train_function, iter(training.dataset), [apart()]
function(iterator)
gaps.append(apart())
with all_reduce.no_reduction(model):
    model.make_train_function(force=True)
    model.train_function(iterator)
gaps.append(apart())
stopped = threading.Event()
stopped.set()
print("RESULT" + json.dumps({
    "measured": measured, "kept": kept, "gaps": gaps, "taken": taken,
    "steps": model.steps, "loss": fitted.history["loss"],
    "stopped": all_reduce.measure(model, training, stopped),
}))
"""


@pytest.mark.parametrize("cross_device_ops", ["auto", "hierarchical_copy"])
def test_all_reduce_is_left_out_of_one_of_the_two_steps_and_the_model_is_kept(
    home: Any, cross_device_ops: str
) -> None:
    config = {
        "layout": {"logical_devices": 2, "cross_device_ops": cross_device_ops},
        "data": {"dataset": "synthetic", "max_len": 40},
        "model": {"filters": [4, 4]},
    }
    # In a process of its own: it accepts one device layout in its life.
    done = subprocess.run(
        [sys.executable, "-c", REDUCTION, json.dumps(config), str(home)],
        cwd=ROOT, capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.split("RESULT")[1])
    assert found["measured"]["step_s"] > 0
    assert found["measured"]["step_without_s"] > 0
    assert found["measured"]["steps"] >= 10
    assert found["kept"]
    assert found["steps"] == [5, 0]
    assert set(found["taken"]) == {2}  # the end of an epoch of five steps cuts none short
    assert found["loss"] == [pytest.approx(3.8, abs=0.2)]  # about ln 46
    together, after_a_step, after_one_without = found["gaps"]
    assert together == after_a_step == 0
    assert after_one_without > 0
    assert found["stopped"] is None


# The page


def record(
    store: Store,
    study: str,
    replicas: int,
    step_s: float,
    *,
    without_s: float | None = None,
    epochs: int = 3,
    status: Status = Status.COMPLETED,
) -> None:
    """The oldest waiting run of a study, done: executions of eight steps, the first epoch slower."""
    engine = f"engine-{study}-{replicas}"
    store.add_engine(Engine(engine, "layout", 1, 0.0, 1, time.time(), None, None))
    job = claim(store, [Kind.TRAIN], engine)
    assert job is not None
    assert (job.study, parse_config(job.config).layout.replicas) == (study, replicas)
    rows, at = [], 1e9
    for epoch in range(epochs):
        for execution in range(4):
            at += 8 * step_s * (1 if epoch else 40)
            first = 32 * epoch + 8 * execution
            rows += [Metric("step", first + i, epoch, "train", "loss", 1.0, at) for i in range(8)]
        rows.append(
            Metric("epoch", 32 * epoch + 31, epoch, "validation", "loss", REFERENCE[epoch][2] + replicas, at)
        )
        at += 5.0  # validation
    reduce = None if without_s is None else {"step_s": 1.0, "step_without_s": without_s, "steps": 80}
    store.report(job, metrics=rows, result={**RESULT, "all_reduce": reduce}, phase="training")
    if status.is_final:
        failed = status is Status.FAILED
        error = TrainingError("Out of memory.", "Use a smaller batch.") if failed else None
        store.finish(job.id, status, error=error)


def recorded_study(store: Store) -> str:
    """Strong scaling on 1, 2 and 4 replicas: 10, 6.25 and 3.9 ms a step."""
    study = study_of(store, 1, 2, 4)
    record(store, study, 1, 0.010)
    record(store, study, 2, 0.00625, without_s=0.9)
    record(store, study, 4, 0.0039, without_s=0.75)
    return study


def test_report_of_a_study(store: Store) -> None:
    study = recorded_study(store)
    with pytest.raises(RunNotFound, match="There is no study 'none' in"):
        report(store, "none")
    found = report(store, study)
    assert [row["replicas"] for row in found["runs"]] == [1, 2, 4]
    assert [row["step_s"] for row in found["runs"]] == pytest.approx([0.01, 0.00625, 0.0039], rel=1e-3)
    assert [row["speed_up"] for row in found["runs"]] == pytest.approx([1, 1.6, 2.564], rel=1e-3)
    assert [row["examples_per_s"] for row in found["runs"]] == pytest.approx([3_200, 5_120, 8_205], rel=1e-3)
    assert [row["all_reduce"] for row in found["runs"]] == pytest.approx([0, 0.1, 0.25])
    assert found["serial_fraction"] == pytest.approx(0.2062, abs=1e-3)
    assert (found["scaling"], found["shared_device"]) == ("strong", True)


def test_finished_study(show: Open, store: Store) -> None:
    study = recorded_study(store)
    app = show("pages/scaling.py", study=study)
    said = texts(app)
    assert "On 4 replicas the training runs 2.56 times as fast as on one replica" in said
    assert "Amdahl's law fits with a serial fraction of 20.6 %" in said
    assert "All-reduce takes 25 % of a step on 4 replicas." in said
    assert "no speed-up is expected; what you see is the cost of synchronising" in said
    assert "run faster all the same" in said
    table = app.table[0].value.set_index("Replicas")
    assert table.loc["4"].drop("Run").to_dict() == {
        "Global batch": "32 = 4 × 8",
        "Median step": "3.9\xa0ms",
        "Examples/s": "8,205",
        "Speed-up": "2.56 of 4",
        "Efficiency": "64 %",
        "All-reduce": "25.0 %",
        "Best validation loss": "5.523",
    }
    assert table.loc["1", "All-reduce"] == "0.0 %"
    drawn = charts(app)
    assert list(drawn) == [
        "Speed-up: measured against ideal",
        "Efficiency: speed-up as a share of the ideal",
        "Where a step's time goes",
        "Validation loss on each number of replicas",
    ]
    names = [[trace["name"] for trace in content["figure"]["data"]] for content in drawn.values()]
    assert names == [
        ["Ideal", "Amdahl's law, serial fraction 20.6 %", "Measured"],
        ["Ideal", "Measured"],
        ["Forward, backward, update, input", "All-reduce"],
        ["1 replica", "2 replicas", "4 replicas"],
    ]
    assert drawn["Speed-up: measured against ideal"]["figure"]["data"][2]["y"] == pytest.approx(
        [1, 1.6, 2.564], rel=1e-3
    )
    assert "stop_study" not in [button.key for button in app.button]


def test_replicas_that_are_no_faster_are_not_said_to_be(show: Open, store: Store) -> None:
    study = study_of(store, 1, 2)
    record(store, study, 1, 0.010)
    record(store, study, 2, 0.0097)
    said = texts(show("pages/scaling.py", study=study))
    assert "no speed-up is expected" in said
    assert "run faster all the same" not in said


def test_weak_scaling_has_gustafsons_law(show: Open, store: Store) -> None:
    study = study_of(store, 1, 4, scaling=Scaling.WEAK)
    record(store, study, 1, 0.010)
    record(store, study, 4, 0.0125)
    app = show("pages/scaling.py", study=study)
    assert "On 4 replicas the training runs 3.20 times as fast" in texts(app)
    assert "Gustafson's law fits with a serial fraction of 26.7 %" in texts(app)
    table = app.table[0].value.set_index("Replicas")
    assert table["Global batch"].tolist() == ["32 = 1 × 32", "128 = 4 × 32"]
    assert table["All-reduce"].tolist() == ["0.0 %", "–"]


def test_study_with_failed_deleted_and_waiting_runs(show: Open, store: Store) -> None:
    study = study_of(store, 1, 2, 3, 4)
    record(store, study, 1, 0.010)
    record(store, study, 2, 0.005, epochs=1, status=Status.FAILED)
    record(store, study, 3, 0.005, status=Status.STOPPED)
    app = show("pages/scaling.py")  # the newest study is shown of itself
    said = texts(app)
    assert "3 of 4 runs ended" in said
    assert "2 replicas: Out of memory. " in said.replace("**", "").replace("  \n", " ") + " "
    assert "On 3 replicas the training runs 2.06 times as fast" in said
    table = app.table[0].value.set_index("Replicas")
    assert table.loc["2", "Median step"] == "–"  # only its first epoch was trained
    assert table.loc["4", "Best validation loss"] == "–"
    (one,) = [job.id for job in store.study(study) if job.config["layout"]["strategy"] == "single"]
    store.delete([one])
    app = show("pages/scaling.py", study=study)
    assert "Only the run on 3 has a step time so far" in texts(app)
    app.button(key="stop_study").click().run()
    assert all(job.status.is_final for job in store.study(study))
    store.delete([job.id for job in store.study(study)])
    app = show("pages/scaling.py", study=study)
    assert f"There is no study '{study}'" in texts(app)


def moved(store: Store, study: str, replicas: int) -> Job:
    """The study's run on so many replicas, stopped, resumed on a single device, and done."""
    (job,) = [job for job in store.study(study) if parse_config(job.config).layout.replicas == replicas]
    store.report(job, checkpoint={"epochs": 3, "best_epoch": 1, "best_val_loss": 2.0})
    store.resume(job.id, DeviceLayout(strategy="single", logical_devices=1))
    assert claim(store, [Kind.TRAIN], "an engine") is not None
    store.finish(job.id, Status.COMPLETED)
    return store.job(job.id)


def test_a_run_that_went_on_elsewhere_is_left_out_of_its_study(show: Open, store: Store) -> None:
    study = study_of(store, 1, 2, 4)
    record(store, study, 1, 0.010)
    record(store, study, 2, 0.005, status=Status.STOPPED)
    record(store, study, 4, 0.004)
    run = moved(store, study, 2)
    found = report(store, study)
    assert [row["replicas"] for row in found["runs"]] == [1, 4]
    assert [row["speed_up"] for row in found["runs"]] == pytest.approx([1, 2.5], rel=1e-3)
    assert found["left_out"] == [run.id]
    app = show("pages/scaling.py", study=study)
    assert app.table[0].value["Replicas"].tolist() == ["1", "4"]
    assert "On 4 replicas the training runs 2.50 times as fast as on one replica" in texts(app)
    assert f"Runs that were resumed on another device layout are left out: {run.id}." in texts(app)
    assert "replicas 1, 4" in app.selectbox(key="study_chooser").options[0]


def test_a_study_of_which_no_run_is_left_says_so(show: Open, store: Store) -> None:
    study = study_of(store, 2)
    record(store, study, 2, 0.005, status=Status.STOPPED)
    moved(store, study, 2)
    assert "are left out" in texts(show("pages/scaling.py", study=study))
    assert report(store, study)["runs"] == []


def test_a_run_that_goes_on_where_it_was_stays_in_its_study(store: Store) -> None:
    study = study_of(store, 2)
    record(store, study, 2, 0.005, status=Status.STOPPED)
    (job,) = store.study(study)
    store.report(job, checkpoint={"epochs": 3, "best_epoch": 1, "best_val_loss": 2.0})
    store.resume(job.id, parse_config(job.config).layout)
    assert not store.job(job.id).layout_changed
    store.request_stop(job.id)
    store.resume(job.id, DeviceLayout(strategy="single", logical_devices=1))
    store.request_stop(job.id)
    store.resume(job.id, parse_config(job.config).layout)
    assert store.job(job.id).layout_changed, "its figures are of both layouts"


def test_a_run_of_a_study_that_pauses_is_still_told_of(show: Open, store: Store) -> None:
    study = study_of(store, 1, 2)
    run = claim(store, [Kind.TRAIN], "none")
    assert run is not None
    store.request_pause(run.id)
    app = show("pages/scaling.py", study=study)
    bars = [element.proto.text for element in app.main if element.type == "progress"]
    assert bars == ["1 replica: starting TensorFlow"]


def test_starting_a_study(show: Open, store: Store) -> None:
    prepared(store)
    app = show(
        "pages/scaling.py",
        data__dataset="synthetic",
        scaling__replicas="[1, 2, 8, 99]",
        training__batch_size="4",
        training__seed="7",
    )
    assert "No study has been started yet" in texts(app)
    assert app.button(key="start_study").label == "Start 3 runs"
    app.segmented_control(key="scaling.kind").set_value(Scaling.WEAK).run()
    assert app.number_input(key="training.batch_size").value == 4
    app.button(key="start_study").click().run()
    sound(app)
    (jobs,) = store.studies(limit=9)
    assert app.session_state["study"] == jobs[0].study
    runs = [parse_config(job.config) for job in jobs]
    assert [(run.layout.replicas, run.global_batch_size) for run in runs] == [(1, 4), (2, 8), (8, 32)]
    assert {run.training.seed for run in runs} == {7}
    assert "Weak scaling, study" in texts(app)
    assert "No run has a step time yet" in texts(app)


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ({"training__epochs": "1"}, "One epoch is not enough: the first one is not timed."),
        ({"scaling__replicas": "[]"}, "No number of replicas was chosen."),
        ({"layout__strategy": "tpu"}, "A TPU always uses all its cores"),
        ({"data__max_len": "3"}, "Sequences of 3 words are too short"),
    ],
)
def test_a_study_that_cannot_be_started(show: Open, store: Store, query: dict[str, str], words: str) -> None:
    prepared(store)
    app = show("pages/scaling.py", data__dataset="synthetic", **query)
    assert words in texts(app)
    assert app.button(key="start_study").disabled
    assert len(app.error) == 1


@pytest.mark.parametrize(
    ("batch_size", "bundle", "words"),
    [
        ("7", "", "2 replicas cannot share 7 rows evenly; that run has a global batch of 8."),
        ("64", "", "With a global batch of 64 an epoch has 4 steps, too few to be timed well."),
        ("8", "17", "With a global batch of 8 an epoch has 30 steps, too few to be timed well."),
    ],
)
def test_what_a_study_warns_of(show: Open, store: Store, batch_size: str, bundle: str, words: str) -> None:
    prepared(store)
    query = {"training__batch_size": batch_size, "execution__steps_per_execution": bundle}
    app = show("pages/scaling.py", data__dataset="synthetic", **{k: v for k, v in query.items() if v})
    assert words in texts(app)
    assert not app.button(key="start_study").disabled
