"""Pause, resume, extend, and the checkpoints behind them, with real engines and real harm."""

from __future__ import annotations

import os
import signal
import time
from functools import partial
from typing import Any

import numpy as np
import psutil
import pytest
from conftest import LONG, ended, launching, wait_for

from core.config import parse_config
from core.engine.checkpoints import Checkpoints, Patience, State
from core.errors import ConfigError, RunStateError, TrainingError
from core.records import Job, Kind, Status
from core.report import history
from core.store import Store

SMALL: dict[str, Any] = {
    "layout": {"strategy": "single", "logical_devices": 1},
    "data": {"dataset": "synthetic", "max_len": 40},
    "training": {"epochs": 3, "batch_size": 64, "deterministic": True},
}
"""Epochs of half a second, which give the same numbers whenever they are repeated."""
TWO = {"layout": {"strategy": "mirrored", "logical_devices": 2}}


def config(training: dict[str, Any] | None = None, **sections: Any) -> dict[str, Any]:
    return {**SMALL, **sections, "training": {**SMALL["training"], **(training or {})}}


def in_mid_epoch(store: Store, job_id: str, epochs: int) -> Job:
    """Waits until a run has so many checkpoints and steps of the epoch after them."""

    def there() -> Job | None:
        job = store.job(job_id)
        assert not job.status.is_final, job.error or job.status
        beyond = job.progress.get("epoch", 0) >= epochs and job.progress.get("step", 0) > 0
        return job if job.checkpoint_epochs >= epochs and beyond else None

    return wait_for(there, 120, f"epoch {epochs + 1}")


def curves(store: Store, job: Job) -> list[list[float]]:
    """A run's epochs without their durations, and its steps."""
    epochs = [[v for name, v in row.items() if name != "duration_s"] for row in history(store, job)]
    steps = [[row.step, row.epoch, row.value] for row in store.metrics(job, per="step")]
    return [*epochs, *steps]


def test_a_run_killed_in_mid_epoch_and_resumed_is_the_uninterrupted_one(store, launcher):
    """Dropout's random state, Nadam's moments and schedule, and the order of the epoch all go on."""
    wanted = config(model={"dropout": 0.3})
    whole = ended(store, store.submit(Kind.TRAIN, wanted))
    assert whole.status is Status.COMPLETED, whole.error
    job_id = store.submit(Kind.TRAIN, wanted)
    os.kill(in_mid_epoch(store, job_id, 1).pid, signal.SIGKILL)
    killed = ended(store, job_id, 10)
    assert killed.status is Status.FAILED
    assert f"Resume it: it goes on after epoch {killed.checkpoint_epochs}." in killed.error["hint"]
    assert any(row.epoch == killed.checkpoint_epochs for row in store.metrics(killed, per="step"))

    store.resume(job_id)
    queued = store.job(job_id)
    assert (queued.place, queued.error) == (killed.place, None)
    assert all(row.epoch < killed.checkpoint_epochs for row in store.metrics(queued, per="step"))
    with pytest.raises(RunStateError, match="cannot be resumed now"):
        store.resume(job_id)
    done = ended(store, job_id)
    assert done.status is Status.COMPLETED, done.error
    assert done.result["resumed"] == {"epochs": killed.checkpoint_epochs, "damaged": []}
    assert len(curves(store, done)) == len(curves(store, whole))
    np.testing.assert_allclose(
        np.concatenate(curves(store, done)), np.concatenate(curves(store, whole)), atol=1e-6, rtol=0
    )
    assert done.checkpoint == whole.checkpoint
    assert done.duration_s > killed.duration_s
    (lines,) = [[line.text for line in store.logs(done) if "checkpoint" in line.text]]
    assert lines == [f"Going on from the checkpoint of epoch {killed.checkpoint_epochs}."]


def gone(pid: int) -> bool:
    return not psutil.pid_exists(pid)


def test_a_run_goes_on_with_two_replicas_and_back_with_one(store, launcher):
    wanted = config(model={"optimizer": "sgd"})
    whole = ended(store, store.submit(Kind.TRAIN, wanted))
    job_id = store.submit(Kind.TRAIN, wanted)
    for epochs, layout in ((1, TWO), (2, SMALL)):
        pid = in_mid_epoch(store, job_id, epochs).pid
        asked = time.monotonic()
        assert store.request_pause(job_id) is Status.PAUSING
        assert ended(store, job_id, 10).status is Status.PAUSED
        assert time.monotonic() - asked < 3
        assert wait_for(partial(gone, pid), 10, "the paused engine to end")
        store.resume(job_id, parse_config({"layout": layout["layout"]}).layout)
        wait_for(lambda: store.job(job_id).progress.get("step"), 120, "the resumed run")
        assert len(store.job(job_id).result["devices"]) == layout["layout"]["logical_devices"]
    done = ended(store, job_id)
    assert done.status is Status.COMPLETED, done.error
    for mine, other in zip(history(store, done), history(store, whole), strict=True):
        for name in mine.keys() - {"duration_s"}:
            assert mine[name] == pytest.approx(other[name], abs=1e-6), name


def test_patience_survives_a_resume_and_an_extended_run_gets_it_anew(store, launcher):
    # With this learning rate no weight ever changes, so no epoch is better than the first.
    wanted = config({"epochs": 40, "patience": 3, "learning_rate": 1e-30})
    job_id = store.submit(Kind.TRAIN, wanted)
    in_mid_epoch(store, job_id, 1)
    store.request_pause(job_id)
    assert ended(store, job_id, 10).status is Status.PAUSED
    store.resume(job_id)
    done = ended(store, job_id)
    assert done.result["early_stop"] == {"epoch": 4, "best_epoch": 1}
    assert (done.status, done.checkpoint["best_epoch"]) == (Status.COMPLETED, 1)
    with pytest.raises(RunStateError, match="is completed: it cannot be resumed"):
        store.resume(job_id)
    store.extend(job_id, 2)
    longer = ended(store, job_id)
    assert longer.status is Status.COMPLETED, longer.error
    assert longer.result.get("early_stop") is None
    assert [epoch["epoch"] for epoch in history(store, longer)] == [1, 2, 3, 4, 5, 6]
    assert store.best_epochs()[longer.number][0] == 0


def test_a_damaged_checkpoint_gives_way_to_the_one_before_and_is_told(store, launcher):
    job_id = store.submit(Kind.TRAIN, config({"epochs": 500}))
    in_mid_epoch(store, job_id, 2)
    store.request_stop(job_id)
    stopped = ended(store, job_id, 10)
    epochs = stopped.checkpoint_epochs
    folder = store.checkpoints(job_id)
    states = sorted(folder.glob("state-*"))
    assert [int(file.name[6:11]) for file in states] == [epochs - 1, epochs]
    content = bytearray(states[-1].read_bytes())
    content[len(content) // 2] ^= 1
    states[-1].write_bytes(content)

    store.resume(job_id)
    wait_for(lambda: store.job(job_id).checkpoint_epochs > epochs, 120, "epochs after the resume")
    store.request_stop(job_id)
    job = ended(store, job_id, 10)
    assert job.result["resumed"] == {"epochs": epochs - 1, "damaged": [epochs]}
    said = [line.text for line in store.logs(job) if "damaged" in line.text]
    assert said == [f"The checkpoint of epoch {epochs} is damaged; going back to the one before."]
    numbers = [epoch["epoch"] for epoch in history(store, job)]
    assert numbers == list(range(1, len(numbers) + 1))
    steps = [row.step for row in store.metrics(job, per="step") if row.name == "loss"]
    assert steps == list(range(len(steps)))

    assert store.delete([job_id]) == [job_id]
    assert not folder.exists()


def test_a_disk_that_takes_no_checkpoint_ends_no_training_and_is_told(home, store, launcher):
    (home / "checkpoints").write_text("in the way")
    job = ended(store, store.submit(Kind.TRAIN, config({"epochs": 2})))
    assert job.status is Status.COMPLETED, job.error
    assert store.epochs_done(job) == 2
    assert "could not be written" in job.checkpoint["problem"]
    assert not job.can_extend


def test_a_pause_waits_for_the_checkpoint_of_a_slow_disk(store, tmp_path, monkeypatch):
    (tmp_path / "sitecustomize.py").write_text(
        "import os, time\nsync = os.fsync\nos.fsync = lambda file: (time.sleep(1), sync(file))"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with launching(store, keep_warm=False):
        job_id = store.submit(Kind.TRAIN, LONG)
        wait_for(lambda: store.epochs_done(store.job(job_id)) > 0, 90, "an epoch")
        store.request_pause(job_id)
        job = ended(store, job_id, 60)
    assert (job.status, job.checkpoint_epochs) == (Status.PAUSED, store.epochs_done(job))
    assert job.checkpoint_epochs > 0
    assert not list(store.checkpoints(job_id).glob("*.part"))


def state(epochs: int) -> State:
    weights = [np.full((3, 2), float(epochs)), np.array([1, 2], np.int64)]
    return State(epochs, weights, [np.array(7)], 1, 0.5, Patience(0.5, 0, epochs))


def test_two_generations_and_their_best_epochs_are_kept(tmp_path):
    checkpoints = Checkpoints(tmp_path)
    for epochs in range(1, 6):
        checkpoints.write(state(epochs), (epochs, [np.zeros(2)]) if epochs in (1, 2, 4) else None, epochs - 1)
    kept = sorted(file.name.split(".")[0] for file in tmp_path.iterdir())
    assert kept == ["best-00002", "best-00004", "state-00004", "state-00005"]
    found = checkpoints.newest(5)
    assert (found.epochs, found.best_epoch, found.best_val_loss) == (5, 1, 0.5)
    assert found.patience == Patience(0.5, 0, 5)
    for mine, other in zip(found.model + found.optimizer, state(5).model + state(5).optimizer, strict=True):
        np.testing.assert_array_equal(mine, other)
        assert (mine.dtype, mine.shape) == (other.dtype, other.shape)


def test_what_the_store_does_not_know_of_is_not_gone_on_from(tmp_path):
    """The engine was killed after it had written a checkpoint, before the epoch's values were recorded."""
    checkpoints = Checkpoints(tmp_path)
    for epochs in (1, 2):
        checkpoints.write(state(epochs), (epochs, [np.zeros(2)]), 0)
    (tmp_path / "state-00003.part").write_bytes(b"cut short")
    assert checkpoints.newest(1).epochs == 1
    assert sorted(file.name.split(".")[0] for file in tmp_path.iterdir()) == ["best-00001", "state-00001"]
    assert checkpoints.newest(0) is None
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(TrainingError, match="None of the run's checkpoints"):
        checkpoints.newest(1)


def test_where_none_is_whole_the_later_ones_are_not_removed(tmp_path):
    """Somebody has restored an old backup, and may go back to the store that was there before."""
    checkpoints = Checkpoints(tmp_path)
    for epochs in (4, 5):
        checkpoints.write(state(epochs), None, epochs)
    with pytest.raises(TrainingError, match="newer than what was restored from a backup"):
        checkpoints.newest(2)
    assert checkpoints.newest_epoch == 5
    assert checkpoints.newest(5).epochs == 5


def test_the_generation_that_the_store_knows_is_kept_however_old_it_is(tmp_path):
    """Epochs may end faster than the store is told, or the store may take nothing for a while."""
    checkpoints = Checkpoints(tmp_path)
    for epochs in range(1, 8):
        checkpoints.write(state(epochs), (epochs, [np.zeros(2)]), min(epochs - 1, 2))
    kept = sorted(file.name.split(".")[0] for file in tmp_path.iterdir())
    assert kept == [f"{what}-0000{epochs}" for what in ("best", "state") for epochs in (2, 6, 7)]
    assert checkpoints.newest(2).epochs == 2


@pytest.mark.parametrize("harm", ["cut", "emptied", "pickled"])
def test_no_damaged_file_is_read(tmp_path, harm):
    checkpoints = Checkpoints(tmp_path)
    checkpoints.write(state(1), None, 0)
    (file,) = tmp_path.iterdir()
    content = file.read_bytes()
    file.write_bytes({"cut": content[: len(content) // 2], "emptied": b"", "pickled": b"\x80\x04N."}[harm])
    with pytest.raises(TrainingError):
        checkpoints.newest(1)


def test_another_layout_keeps_the_global_batch(store):
    run = parse_config({"layout": {"logical_devices": 3}, "training": {"batch_size": 32}})
    assert run.global_batch_size == 33
    moved = run.on(parse_config({"layout": {"strategy": "single", "logical_devices": 1}}).layout)
    assert (moved.global_batch_size, moved.learning_rate) == (33, run.learning_rate)
    with pytest.raises(ConfigError, match="2 replicas cannot share the run's global batch of 33 evenly"):
        run.on(parse_config({"layout": {"logical_devices": 2}}).layout)
