"""Harm done for real to engines, to the store and to the machine under it."""

from __future__ import annotations

import os
import resource
import signal
import time

import numpy as np
import psutil
import pytest
from conftest import LONG, QUICK, ended, wait_for

from core.errors import ConfigError, RunStateError
from core.exports import order
from core.launcher import Launcher
from core.records import Kind, Status
from core.watchdog import Watchdog


def training(store, job_id, epochs=1):
    """Waits until a run has so many checkpoints, and steps after them."""

    def there():
        job = store.job(job_id)
        assert not job.status.is_final, job.error or job.status
        beyond = job.progress.get("epoch", 0) >= epochs and job.progress.get("step", 0) > 0
        return job if job.checkpoint_epochs >= epochs and beyond else None

    return wait_for(there, 120, f"epoch {epochs + 1}")


def warm(store, role="layout"):
    """Waits for an engine that has TensorFlow imported and no job."""

    def found():
        return next((e for e in store.engines() if e.role == role and e.ready_at and not e.job), None)

    return wait_for(found, 60, f"a warm {role} engine")


@pytest.fixture
def warm_launcher(store):
    """A launcher with an engine ready, so that a test can do it harm before it has a job."""
    launcher = Launcher(store)
    launcher.start()
    yield launcher
    for job in store.jobs():
        if not job.status.is_final:
            store.request_stop(job.id)
    wait_for(lambda: all(job.status.is_final for job in store.jobs()), 20, "jobs to end")
    launcher.close()


# The engine


def test_a_segfault_in_mid_epoch_ends_the_run_as_failed_and_resumable(store, launcher):
    job_id = store.submit(Kind.TRAIN, LONG)
    os.kill(training(store, job_id).pid, signal.SIGSEGV)
    job = ended(store, job_id, 10)
    assert job.status is Status.FAILED
    assert "crashed: signal 11, a fault in native code" in job.error["message"]
    assert f"Resume it: it goes on after epoch {job.checkpoint_epochs}." in job.error["hint"]
    assert "memory" not in job.error["hint"]
    assert job.can_resume
    assert store.epochs_done(job) >= job.checkpoint_epochs >= 1


@pytest.mark.parametrize("room_mib", [100, 1_500])
def test_out_of_memory_says_so_and_what_to_do(home, store, warm_launcher, room_mib):
    """With little room native code gives up while it starts, with more TensorFlow refuses a tensor."""
    engine = warm(store)
    limit = psutil.Process(engine.pid).memory_info().vms + room_mib * 2**20
    resource.prlimit(engine.pid, resource.RLIMIT_AS, (limit, limit))
    config = {**QUICK, "model": {"embedding_size": 512}}
    job = ended(store, store.submit(Kind.TRAIN, config), 60)
    assert job.status is Status.FAILED
    assert job.error["type"] == "OutOfMemory", job.error
    assert job.error["message"].startswith("The engine ran out of memory.")
    assert "Use a smaller model, a smaller batch or fewer replicas" in job.error["hint"]
    # The machine is well: the next run has an engine of its own.
    assert ended(store, store.submit(Kind.TRAIN, QUICK), 60).status is Status.COMPLETED


def test_an_exception_in_the_fit_thread_ends_the_run_with_its_text(home, store, launcher):
    job_id = store.submit(Kind.TRAIN, LONG)
    training(store, job_id)
    store.request_pause(job_id)
    ended(store, job_id, 10)
    # Nobody expects a folder in the place of a checkpoint.
    state = max(store.checkpoints(job_id).glob("state-*"))
    state.unlink()
    state.mkdir()
    store.resume(job_id)
    job = ended(store, job_id, 60)
    assert job.status is Status.FAILED
    assert job.error["message"].startswith(("IsADirectoryError", "PermissionError"))
    assert job.pid is None
    assert "Traceback" in job.error["details"]


def test_a_hang_before_the_first_step_is_ended_by_the_watchdog(store, monkeypatch):
    monkeypatch.setenv("MIRRORBOARD_FIRST_STEP_LIMIT_S", "8")
    launcher = Launcher(store, keep_warm=False)
    launcher.start()
    job_id = store.submit(Kind.TRAIN, {**LONG, "layout": {"logical_devices": 2}})
    job = wait_for(lambda: (j := store.job(job_id)).phase.startswith("building") and j, 60, "the graph")
    assert not job.progress.get("step")
    os.kill(job.pid, signal.SIGSTOP)
    stopped_at = time.monotonic()
    job = ended(store, job_id, 20)
    assert time.monotonic() - stopped_at > 6
    assert job.status is Status.FAILED
    assert "made no progress for 8 s before its first step" in job.error["message"]
    assert "It was at: building" in job.error["message"]
    assert "MIRRORBOARD_FIRST_STEP_LIMIT_S" in job.error["hint"]
    wait_for(lambda: not store.engines(), 10, "the engine to be gone")
    # Nothing is left that stands in the way of the next.
    following = store.submit(Kind.TRAIN, LONG)
    wait_for(lambda: store.job(following).status is Status.RUNNING, 60, "the next run")
    store.request_stop(following)
    ended(store, following, 20)
    launcher.close()


def test_the_watchdog_counts_what_a_job_tells_and_only_before_its_first_step(store):
    watchdog = Watchdog(10.0)
    job = store.job(store.submit(Kind.TRAIN, QUICK))
    assert watchdog.hanging([job], 0.0) == []
    assert watchdog.hanging([job], 9.0) == []
    assert watchdog.hanging([job], 11.0) == [job]
    store.report(job, phase="building the model")
    later = store.job(job.id)
    assert watchdog.hanging([later], 12.0) == []
    assert watchdog.hanging([later], 21.0) == []
    assert watchdog.hanging([later], 23.0) == [later]
    store.report(job, progress={"step": 8})
    assert watchdog.hanging([store.job(job.id)], 1e6) == []
    # Another look at it begins anew: a resumed run has its whole time again.
    assert watchdog.hanging([later], 1e6) == []


@pytest.mark.parametrize("text", ["0", "-1", "nan", "soon"])
def test_a_limit_that_is_none_is_refused_by_name(store, monkeypatch, text):
    monkeypatch.setenv("MIRRORBOARD_FIRST_STEP_LIMIT_S", text)
    with pytest.raises(ConfigError, match=f"MIRRORBOARD_FIRST_STEP_LIMIT_S .* not '{text}'"):
        Launcher(store)


def test_a_loss_that_explodes_ends_the_run_as_diverged_and_keeps_the_last_good_checkpoint(store, run_job):
    config = {
        "layout": {"strategy": "single", "logical_devices": 1},
        "data": {"dataset": "synthetic", "max_len": 40},
        "model": {"optimizer": "sgd"},
        "training": {"epochs": 50, "batch_size": 4096, "learning_rate": 30},
    }
    job = run_job(Kind.TRAIN, config)
    assert job.status is Status.DIVERGED, job.error
    kept = job.checkpoint_epochs
    assert 1 <= kept < 10
    assert "the training diverged" in job.error["message"]
    assert "learning rate below 30" in job.error["hint"]
    assert f"The model of epoch {kept}, from before, is kept" in job.error["hint"]
    losses = [row.value for row in store.metrics(job, per="step") if row.name == "loss"]
    assert losses[-1] is None
    assert None not in losses[: 3 * kept]
    (state,) = (file for file in store.checkpoints(job.id).glob(f"state-{kept:05d}.*"))
    with np.load(state, allow_pickle=False) as arrays:
        assert all(np.isfinite(arrays[name]).all() for name in arrays.files if name != "about")
    exported = run_job(Kind.EXPORT, order(job, "keras", "last"))
    assert exported.status is Status.COMPLETED, exported.error
    assert not job.can_resume
    assert not job.can_extend
    with pytest.raises(RunStateError, match="has diverged: it cannot be resumed") as refused:
        store.resume(job.id)
    assert "lower learning rate" in refused.value.hint


def test_a_validation_loss_that_is_none_ends_the_run_as_diverged_too(run_job):
    config = {
        "layout": {"strategy": "single", "logical_devices": 1},
        "data": {"dataset": "synthetic", "max_len": 40},
        "model": {"optimizer": "sgd"},
        "training": {"epochs": 50, "batch_size": 2048, "learning_rate": 100},
    }
    job = run_job(Kind.TRAIN, config)
    assert (job.status, job.checkpoint_epochs) == (Status.DIVERGED, 0)
    assert "The validation loss is not a finite number after epoch 1" in job.error["message"]
    assert "No epoch before that ended well" in job.error["hint"]
