"""Engine processes: queued, killed, lost, outliving who started them, ending when nobody needs them."""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import time

import psutil
import pytest
from conftest import LONG, QUICK, ROOT, ended, launching, wait_for

from core.engine_logs import engine_log
from core.faults import exit_in_words
from core.launcher import Launcher
from core.processes import boot_id, is_alive, started_at
from core.records import Engine, Kind, Status
from tests.recorded import claim

STARTER = """
import sys, time
from pathlib import Path
from core.launcher import Launcher
from core.store import Store
Launcher(Store(Path(sys.argv[1]))).start()
time.sleep(600)
"""


def reaching_epochs(store, job_id, epochs=1):
    """Waits until a run trains and has this many epochs recorded."""
    wait_for(
        lambda: store.epochs_done(store.job(job_id)) >= epochs or store.job(job_id).status.is_final,
        90,
        f"{epochs} epochs",
    )
    job = store.job(job_id)
    assert job.status is Status.RUNNING, job.error
    return job


def test_an_engine_that_could_not_be_started_is_tried_again(store, launcher):
    job_id = store.submit(Kind.CHECK, {"strategy": "single"})
    in_the_way = store.home / "engines"
    shutil.rmtree(in_the_way, ignore_errors=True)
    in_the_way.write_text("a file where the folder belongs")
    launcher.wake()
    time.sleep(1)
    assert launcher.is_running
    in_the_way.unlink()
    launcher.wake()
    assert ended(store, job_id, 60).status is Status.COMPLETED


def test_kill_9_in_mid_epoch_ends_the_run_as_failed_and_keeps_what_was_recorded(store, launcher):
    job_id = store.submit(Kind.TRAIN, LONG)
    job = reaching_epochs(store, job_id)
    os.kill(job.pid, signal.SIGKILL)
    killed_at = time.monotonic()
    job = ended(store, job_id, 10)
    assert time.monotonic() - killed_at < 3
    assert job.status is Status.FAILED
    assert "killed: signal 9, often out of memory" in job.error["message"]
    assert store.epochs_done(job) >= 1
    assert store.metrics(job, per="step")
    assert job.pid is None


def test_a_run_goes_on_without_the_process_that_started_it_and_the_next_one_looks_after_it(home, store):
    starter = subprocess.Popen(
        [
            sys.executable,
            "-c",
            STARTER,
            str(home),
        ],
        cwd=ROOT,
    )
    job_id = store.submit(Kind.TRAIN, LONG)
    job = reaching_epochs(store, job_id)
    starter.kill()
    starter.wait()
    epochs = store.epochs_done(job)
    reaching_epochs(store, job_id, epochs + 2)
    idle = [engine for engine in store.engines() if engine.job is None]
    wait_for(
        lambda: not any(psutil.pid_exists(e.pid) for e in idle), 10, "idle engines to end with their owner"
    )

    launcher = Launcher(store, keep_warm=False)
    launcher.start()
    time.sleep(1)
    assert store.job(job_id).status is Status.RUNNING
    os.kill(job.pid, signal.SIGKILL)
    job = ended(store, job_id, 10)
    assert job.status is Status.LOST
    assert "disappeared" in job.error["message"]
    launcher.close()


def test_two_starts_at_once_one_runs_the_other_waits(store, launcher):
    first, second = store.submit(Kind.TRAIN, QUICK), store.submit(Kind.TRAIN, QUICK)
    wait_for(lambda: store.job(first).status is Status.RUNNING, 30, "the first to run")
    assert store.job(second).status is Status.QUEUED
    assert [job.id for job in store.ahead_of(store.job(second))] == [first]
    one, two = ended(store, first), ended(store, second)
    assert (one.status, two.status) == (Status.COMPLETED, Status.COMPLETED)
    assert two.started_at >= one.finished_at


def test_stop_ends_a_fit_within_two_seconds_and_keeps_its_epochs(store, launcher):
    job_id = store.submit(Kind.TRAIN, LONG)
    reaching_epochs(store, job_id)
    asked = time.monotonic()
    assert store.request_stop(job_id) is Status.STOPPING
    job = ended(store, job_id, 10)
    assert time.monotonic() - asked < 2
    assert job.status is Status.STOPPED
    assert store.epochs_done(job) >= 1
    assert job.result["params"] == 332_856


def test_stop_during_validation_does_not_wait_for_its_end(store, launcher):
    job_id = store.submit(Kind.TRAIN, {**QUICK, "training": {"epochs": 500, "batch_size": 8}})
    wait_for(lambda: store.job(job_id).phase == "validating", 90, "validation")
    asked = time.monotonic()
    store.request_stop(job_id)
    job = ended(store, job_id, 10)
    assert time.monotonic() - asked < 2
    assert job.status is Status.STOPPED
    assert store.epochs_done(job) == 0


def test_stop_before_the_first_step_takes_no_longer(store, launcher):
    job_id = store.submit(Kind.TRAIN, {**LONG, "layout": {"logical_devices": 8}})
    wait_for(lambda: store.job(job_id).phase.startswith("building"), 60, "the graph")
    asked = time.monotonic()
    store.request_stop(job_id)
    assert ended(store, job_id, 10).status is Status.STOPPED
    assert time.monotonic() - asked < 2.5


def test_sigterm_to_the_engine_stops_the_run_gracefully(store, launcher):
    job_id = store.submit(Kind.TRAIN, LONG)
    job = reaching_epochs(store, job_id)
    os.kill(job.pid, signal.SIGTERM)
    assert ended(store, job_id, 10).status is Status.STOPPED


def test_a_store_that_another_program_holds_costs_a_run_nothing(store, launcher):
    """Twice as long as a connection waits, and beyond the run's end."""
    job_id = store.submit(Kind.TRAIN, {**QUICK, "training": {"epochs": 4, "batch_size": 512}})
    reaching_epochs(store, job_id)
    holder = sqlite3.connect(store.home / "mirrorboard.sqlite3", isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    time.sleep(22)
    holder.execute("ROLLBACK")
    holder.close()
    job = ended(store, job_id)
    assert job.status is Status.COMPLETED, job.error
    losses = [row.step for row in store.metrics(job, per="step") if row.name == "loss"]
    assert losses == list(range(4 * 18))
    assert store.epochs_done(job) == 4
    assert any("did not answer (database is locked)" in line.text for line in store.logs(job))


def test_a_run_that_is_deleted_while_its_engine_ends_is_no_obstacle(store):
    gone = Engine("ab", "layout", 2**22 + 1, 0.0, os.getpid(), time.time(), None, None)
    store.add_engine(gone)
    job_id = store.submit(Kind.TRAIN, QUICK)
    assert claim(store, [Kind.TRAIN], gone.id) is not None
    store.finish(job_id, Status.COMPLETED)
    assert store.delete([job_id]) == [job_id]
    Launcher(store).bury_dead_engines()
    assert store.engines() == []


def test_no_process_and_no_file_is_left_over(home, store):
    launcher = Launcher(store, keep_warm=True)
    launcher.start()
    job = ended(store, store.submit(Kind.TRAIN, QUICK))
    assert job.status is Status.COMPLETED, job.error
    engines = wait_for(lambda: len(store.engines()) >= 2 and store.engines(), 30, "warm engines")
    launcher.close()
    assert not any(is_alive(engine.pid, engine.pid_started_at, engine.boot_id) for engine in engines)
    assert store.engines() == []
    assert list((home / "engines").iterdir()) == []


def test_the_log_of_an_engine_that_nobody_knows_is_removed(store):
    """Its launcher was killed between beginning it and telling the store; another may be doing so now."""
    orphan, begun, known = (engine_log(store.home, name) for name in ("orphan", "begun", "known"))
    orphan.parent.mkdir(parents=True)
    for log in (orphan, begun, known):
        log.write_bytes(b"")
    me = os.getpid()
    store.add_engine(Engine("known", "layout", me, started_at(me), me, time.time(), None, None, boot_id()))
    for log in (orphan, known):
        os.utime(log, (time.time() - 60, time.time() - 60))
    Launcher(store, keep_warm=False).bury_dead_engines()
    assert [log.exists() for log in (orphan, begun, known)] == [False, True, True]


def test_a_warm_engine_is_ready_before_work_comes(store):
    launcher = Launcher(store, keep_warm=True)
    launcher.start()
    wait_for(lambda: sum(e.ready_at is not None for e in store.engines()) == 2, 60, "two warm engines")
    submitted = time.monotonic()
    job = ended(store, store.submit(Kind.DESCRIBE, {}))
    assert job.status is Status.COMPLETED, job.error
    assert time.monotonic() - submitted < 3
    launcher.close()


def test_a_desk_engine_does_not_grow_with_its_answers(store, run_job):
    sizes_bytes = []
    for number in range(120):
        # Another embedding each time, so that no answer is a repetition.
        job = run_job(Kind.DESCRIBE, {"model": {"embedding_size": 7 + number % 20}})
        assert job.status is Status.COMPLETED, job.error
        (engine,) = store.engines()
        sizes_bytes.append(psutil.Process(engine.pid).memory_info().rss)
    assert sizes_bytes[-1] - sizes_bytes[19] < 40e6  # kept, models would be some 200 MB


def test_an_engine_that_cannot_start_fails_its_jobs_with_its_last_words(store, monkeypatch):
    monkeypatch.setenv("KERAS_BACKEND", "no_such_backend")
    launcher = Launcher(store, keep_warm=False)
    launcher.start()
    job = ended(store, store.submit(Kind.TRAIN, QUICK), 60)
    launcher.close()
    assert job.status is Status.FAILED
    assert "could not start (exit code 1)" in job.error["message"]
    assert "no_such_backend" in job.error["details"]


def test_runs_in_the_queue_wait_on_when_the_engine_of_a_check_cannot_start(store, launcher, monkeypatch):
    """The run that trains may be what takes the memory; the others' turn comes after it."""
    trains = reaching_epochs(store, store.submit(Kind.TRAIN, LONG))
    waits = [store.submit(Kind.TRAIN, QUICK) for _ in range(2)]
    monkeypatch.setenv("KERAS_BACKEND", "no_such_backend")
    check = ended(store, store.submit(Kind.CHECK, {"strategy": "single"}), 90)
    assert check.status is Status.FAILED
    assert "could not start" in check.error["message"]
    assert store.job(trains.id).status is Status.RUNNING
    assert [store.job(job_id).status for job_id in waits] == [Status.QUEUED] * 2
    monkeypatch.delenv("KERAS_BACKEND")
    store.request_stop(trains.id)
    assert [ended(store, job_id, 90).status for job_id in waits] == [Status.COMPLETED] * 2


def test_an_engine_that_a_signal_ends_at_its_start_is_not_started_for_ever(store, tmp_path, monkeypatch):
    """TensorFlow's own programs end so on a processor without AVX."""
    (tmp_path / "tensorflow").mkdir()
    starts = tmp_path / "starts"
    (tmp_path / "tensorflow" / "__init__.py").write_text(
        f"import os, signal\nopen({str(starts)!r}, 'a').write('.')\nos.kill(os.getpid(), signal.SIGILL)"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with launching(store, keep_warm=True):
        job = ended(store, store.submit(Kind.TRAIN, QUICK), 60)
        assert job.status is Status.FAILED
        assert "signal 4, this processor lacks instructions" in job.error["message"]
        wait_for(lambda: not store.engines(), 20, "the last of them")
        tries = len(starts.read_text())
        time.sleep(3)
        assert len(starts.read_text()) == tries
        # Somebody may have mended it.
        monkeypatch.delenv("PYTHONPATH")
        assert ended(store, store.submit(Kind.TRAIN, QUICK), 60).status is Status.COMPLETED
        wait_for(lambda: len([e for e in store.engines() if e.ready_at]) == 1, 60, "a warm engine again")


def test_an_engine_that_its_launcher_has_left_takes_no_job(store):
    """One that was still starting when its launcher died; nobody would see how it ends."""
    job_id = store.submit(Kind.TRAIN, QUICK)
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    arguments = ["--home", str(store.home), "--role", "layout", "--id", "left"]
    arguments += ["--owner", str(gone.pid), "--owner-started-at", "1.0"]
    child = subprocess.Popen([sys.executable, "-m", "core.engine.worker", *arguments], cwd=ROOT)
    store.add_engine(
        Engine(
            "left", "layout", child.pid, started_at(child.pid), gone.pid, time.time(), None, None, boot_id()
        )
    )
    assert child.wait(timeout=60) == 0
    job = store.job(job_id)
    assert (job.status, job.engine_id) == (Status.QUEUED, None)


def test_a_launcher_does_not_take_its_own_engine_for_lost(store):
    """The engine dies after the launcher has asked for exit codes, and before it looks who lives."""
    child = subprocess.Popen([sys.executable, "-c", "import os; os.abort()"])
    engine = Engine(
        "own", "layout", child.pid, started_at(child.pid), os.getpid(), time.time(), None, None, boot_id()
    )
    store.add_engine(engine)
    job_id = store.submit(Kind.TRAIN, QUICK)
    claim(store, [Kind.TRAIN], "own")
    wait_for(lambda: not is_alive(child.pid, engine.pid_started_at, engine.boot_id), 20, "its end")
    time.sleep(3.5)  # a machine so busy that the last heartbeat is long ago
    launcher = Launcher(store, keep_warm=False)
    launcher._children["own"] = child
    launcher.bury_dead_engines()
    assert store.job(job_id).status is Status.RUNNING
    launcher._tick()
    job = store.job(job_id)
    assert job.status is Status.FAILED
    assert "aborted: signal 6" in job.error["message"]
    launcher.close()


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (1, "exit code 1"),
        (-signal.SIGKILL, "killed: signal 9, often out of memory"),
        (-signal.SIGSEGV, "crashed: signal 11, a fault in native code"),
        (-signal.SIGILL, "killed: signal 4, this processor lacks instructions that TensorFlow needs"),
        (-signal.SIGUSR1, "killed: signal 10"),
        (-99, "killed: signal 99"),
    ],
)
def test_exit_codes_in_words(code, words):
    assert exit_in_words(code) == words


def test_a_reused_pid_is_not_taken_for_the_process_that_had_it():
    me = psutil.Process()
    began = started_at(me.pid)
    assert is_alive(me.pid, began, boot_id())
    assert not is_alive(me.pid, began - 100, boot_id())
    assert not is_alive(me.pid, began, "another start of the machine")
    assert not is_alive(2**22 + 1, 0.0, boot_id())


def test_an_engines_log_is_kept_under_the_store(tmp_path):
    assert engine_log(tmp_path, "ab") == tmp_path / "engines" / "ab.log"
