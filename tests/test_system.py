"""How busy the machine is while a run trains: sampled, stored, drawn."""

from __future__ import annotations

import base64
import sqlite3
import time
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import psutil
import pytest

from core.config import DeviceLayout, RunConfig
from core.engine.system import Sampler
from core.records import Job, Kind, Sample, Status
from core.store import Store
from tests.conftest import QUICK
from tests.page_app import Open, charts
from tests.recorded import STEPS, claim, running_run

NAMES = {"process_cpu_percent", "machine_cpu_percent", "process_memory_bytes", "machine_memory_bytes"}


def test_a_busy_process_shows_as_a_busy_core() -> None:
    sampler = Sampler(DeviceLayout())
    until = time.process_time() + 0.5
    while time.process_time() < until:
        pass
    values = sampler.sample()
    assert set(values) == NAMES
    share = 100 / (psutil.cpu_count() or 1)
    assert 0.1 * share < values["process_cpu_percent"] < 1.3 * share
    assert 0 < values["machine_cpu_percent"] <= 100
    assert 20 * 2**20 < values["process_memory_bytes"] < psutil.virtual_memory().total


def test_gpus_without_an_nvidia_driver_leave_the_rest() -> None:
    gpu = DeviceLayout(strategy="single", device_type="GPU", logical_devices=1)
    assert set(Sampler(gpu).sample()) >= NAMES


def test_a_training_is_sampled_about_once_a_second(store: Store, run_job: Callable[..., Job]) -> None:
    job = run_job(Kind.TRAIN, {**QUICK, "training": {"epochs": 12, "batch_size": 256}})
    assert job.status is Status.COMPLETED, job.error
    samples = store.samples(job)
    assert {sample.name for sample in samples} == NAMES
    memory = [sample for sample in samples if sample.name == "process_memory_bytes"]
    assert len(memory) >= 3
    assert all(0.9 < b.at - a.at < 3 for a, b in pairwise(memory))
    steps = [sample.step for sample in memory]
    assert steps == sorted(steps)
    assert 0 < steps[-1] <= 12 * 36
    assert all(sample.value is not None and sample.value > 200 * 2**20 for sample in memory)


def test_samples_are_read_by_cursor_and_go_with_their_run(store: Store) -> None:
    job = running_run(store, epochs=1)
    store.report(job, samples=[Sample(1.0, 5, "machine_cpu_percent", 40.0)])
    (first,) = store.samples(job)
    store.report(job, samples=[Sample(2.0, 9, "machine_cpu_percent", float("nan"))])
    (second,) = store.samples(job, after=first.id)
    assert (second.step, second.value) == (9, None)
    store.finish(job.id, Status.COMPLETED)
    assert store.delete([job.id]) == [job.id]
    connection = sqlite3.connect(store.path)
    assert connection.execute("SELECT count(*) FROM samples").fetchone() == (0,)
    connection.close()


@pytest.mark.parametrize(("axis", "last"), [("epoch", 2.0), ("step", 2.0 * STEPS)])
def test_charts_stand_beneath_the_curves_on_their_axis(
    show: Open, store: Store, axis: str, last: float
) -> None:
    job = running_run(store, epochs=3)
    for step in (0, STEPS, 2 * STEPS):
        values = dict.fromkeys(sorted(NAMES), 2.0**30)
        store.report(job, samples=[Sample(float(step), step, name, value) for name, value in values.items()])
    shown = charts(show("pages/training.py", run=job.id, axis=axis))
    loss = shown["Loss: training against validation"]["figure"]
    memory = shown["Memory in use"]
    assert memory["label"].endswith("At last: machine 1.0 GiB, this run 1.0 GiB.")
    assert memory["figure"]["layout"]["xaxis"]["range"] == loss["layout"]["xaxis"]["range"]
    assert np.frombuffer(base64.b64decode(memory["figure"]["data"][0]["x"]["bdata"]), "f4")[
        -1
    ] == pytest.approx(last)
    assert "Processor: how busy it is" in shown
    assert "Power of the GPUs" not in shown


@pytest.mark.parametrize(("samples", "mode"), [(1, "markers"), (2, "lines")])
def test_a_single_sample_is_seen(show: Open, store: Store, samples: int, mode: str) -> None:
    job = running_run(store, epochs=3)
    for step in range(samples):
        store.report(job, samples=[Sample(1.0 + step, step, "process_memory_bytes", 2.0**30)])
    (curve,) = charts(show("pages/training.py", run=job.id))["Memory in use"]["figure"]["data"]
    assert (curve["mode"], curve["marker"]["color"]) == (mode, curve["line"]["color"])


def test_a_run_without_samples_has_no_such_charts(show: Open, store: Store) -> None:
    job = running_run(store, epochs=3)
    assert "Memory in use" not in charts(show("pages/training.py", run=job.id))


def test_the_memory_limit_of_a_gpu_is_drawn(show: Open, store: Store) -> None:
    config = {"layout": {"device_type": "GPU", "logical_devices": 2, "memory_limit_mb": 2048}}
    store.submit(Kind.TRAIN, RunConfig.model_validate(config).model_dump(mode="json"))
    job = claim(store, [Kind.TRAIN], "somebody")
    assert job is not None
    store.report(
        job, samples=[Sample(1.0, 0, "gpu0_memory_bytes", 3.0 * 2**30), Sample(1.0, 0, "gpu0_power_w", 70.0)]
    )
    shown = charts(show("pages/training.py", run=job.id))
    assert shown["Memory in use"]["figure"]["layout"]["shapes"][0]["y0"] == 4.0
    assert "GPU 0 70.0 W" in shown["Power of the GPUs"]["label"]
