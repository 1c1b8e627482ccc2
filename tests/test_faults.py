"""Harm done for real to engines, to the store and to the machine under it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import time

import numpy as np
import psutil
import pytest
from conftest import LONG, QUICK, ROOT, command, ended, launching, wait_for
from playwright.sync_api import expect
from streamlit.testing.v1 import AppTest
from tensorflow.errors import ResourceExhaustedError
from test_launcher import STARTER

from core import faults
from core.dashboard import run_panel
from core.database import FILE_NAME
from core.errors import ConfigError, DiskFull, OutOfMemory, RunStateError
from core.exports import order
from core.health import examine
from core.launcher import Launcher
from core.processes import boot_id, is_alive, started_at
from core.records import Engine, Kind, Status
from core.report import history
from core.store import Store
from core.watchdog import Watchdog
from tests.browser_app import CHROMIUM, chromium, dashboard, heading, tab
from tests.page_app import sound, texts
from tests.recorded import claim, finished_run, prepared, running_run


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
    with launching(store, keep_warm=True) as launcher:
        yield launcher


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


@pytest.mark.parametrize("room_mib", [40, 100, 400])
def test_out_of_memory_says_so_and_what_to_do(home, store, warm_launcher, room_mib):
    """With little room native code gives up while it starts, with more NumPy refuses an array."""
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


def test_out_of_memory_is_told_of_an_engine_that_starts_too(store, launcher):
    job_id = store.submit(Kind.TRAIN, QUICK)

    def squeezed():
        for engine in store.engines():
            with contextlib.suppress(ProcessLookupError):
                # Enough for Python, not for TensorFlow.
                resource.prlimit(engine.pid, resource.RLIMIT_AS, (1_000 * 2**20, 1_000 * 2**20))
        return store.job(job_id).status.is_final

    wait_for(squeezed, 60, "the run's end")
    job = store.job(job_id)
    assert (job.status, job.error["type"]) == (Status.FAILED, "OutOfMemory"), job.error
    assert job.error["message"].startswith("The engine ran out of memory. The engine process could not start")


@pytest.mark.parametrize(
    "last_words",
    [
        "Check failed: ret == 0 (11 vs. 0) Thread tf_Compute creation via pthread_create() failed.",
        "LLVM ERROR: pthread_create failed: Resource temporarily unavailable",
        "LLVM ERROR: out of memory",
        "RuntimeError: can't start new thread",
        "terminate called after throwing an instance of 'std::bad_alloc'",
        "libc.so.6: cannot allocate memory in static TLS block",
        "ImportError: libtensorflow_cc.so.2: failed to map segment from shared object",
    ],
)
def test_memory_that_runs_out_is_known_by_the_last_words_of_whoever_asked_for_it(store, last_words):
    """TensorFlow 2.21 and LLVM were seen to end with the first two where a thread found no room."""
    job = store.job(store.submit(Kind.TRAIN, QUICK))
    details = f"Using MirroredStrategy\n{last_words}\n*** Check failure stack trace: ***"
    for ended_by in (faults.died, faults.could_not_start):
        assert isinstance(ended_by(job, -signal.SIGABRT, details), OutOfMemory)
        for other in (
            "Check failed: size >= 0",
            "failed to map segment from shared object: Operation not permitted",
        ):
            assert not isinstance(ended_by(job, -signal.SIGABRT, other), OutOfMemory)


@pytest.mark.parametrize(
    "error",
    [
        ResourceExhaustedError(None, None, "OOM when allocating tensor with shape[512,30981]"),
        ResourceExhaustedError(None, None, "{{function_node __wrapped__StatelessRandomUniformV2}}"),
        MemoryError("Unable to allocate 39.4 MiB for an array"),
    ],
)
def test_an_exception_for_want_of_memory_says_so(store, error):
    job = store.job(store.submit(Kind.TRAIN, QUICK))
    told = faults.raised(job, error)
    assert isinstance(told, OutOfMemory)
    assert str(error).strip()[:20] in told.message
    assert not isinstance(faults.raised(job, ValueError("no room for doubt")), OutOfMemory)


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
        "execution": {"steps_per_execution": 3},
    }
    job = run_job(Kind.TRAIN, config)
    assert job.status is Status.DIVERGED, job.error
    kept = job.checkpoint_epochs
    assert 1 <= kept < 10
    assert "the training diverged" in job.error["message"]
    assert "learning rate below 30" in job.error["hint"]
    assert f"The model of epoch {kept}, from before, is kept" in job.error["hint"]
    losses = [row.value for row in store.metrics(job, per="step") if row.name == "loss"]
    at = losses.index(None)
    assert losses[-1] is None
    assert f"at step {at % 3 + 1} of epoch {at // 3 + 1}" in job.error["message"]
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


def test_a_run_that_diverged_in_its_first_epoch_is_not_to_be_started_again_as_it_was(store):
    run = running_run(store, epochs=0)
    store.finish(run.id, Status.DIVERGED)
    with pytest.raises(RunStateError, match="has diverged") as refused:
        store.resume(run.id)
    assert "lower learning rate" in refused.value.hint


def test_a_validation_loss_that_is_none_ends_the_run_as_diverged_too(run_job):
    config = {
        "layout": {"strategy": "single", "logical_devices": 1},
        "data": {"dataset": "synthetic", "max_len": 40},
        "model": {"optimizer": "sgd"},
        "training": {"epochs": 50, "batch_size": 2048, "learning_rate": 100},
        "execution": {"steps_per_execution": 5},
    }
    job = run_job(Kind.TRAIN, config)
    assert (job.status, job.checkpoint_epochs) == (Status.DIVERGED, 0)
    assert "The validation loss is not a finite number after epoch 1" in job.error["message"]
    assert "No epoch before that ended well" in job.error["hint"]


# The store


@pytest.fixture
def small_disk(tmp_path):
    """A folder on a disk of 6 MB that a test can fill."""
    folder = tmp_path / "disk"
    folder.mkdir()
    asked = ["mount", "-t", "tmpfs", "-o", "size=6m", "none", str(folder)]
    if shutil.which("mount") is None or subprocess.run(asked, capture_output=True, check=False).returncode:
        pytest.skip("mounting a small disk is not permitted")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def fill(folder):
    """Takes all room; returns the file that holds it."""
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(b"x" * 4096):
            pass
    return filler


def test_a_disk_that_gets_full_costs_a_run_nothing(small_disk, tmp_path):
    home = small_disk / "home"
    home.mkdir()
    # The prepared dataset is larger than the disk is to be.
    corpora = tmp_path / "datasets"
    corpora.mkdir()
    (home / "datasets").symlink_to(corpora)
    store = Store(home)
    launcher = Launcher(store, keep_warm=False)
    launcher.start()
    config = {
        "layout": {"strategy": "single", "logical_devices": 1},
        "data": {"dataset": "synthetic", "max_len": 40},
        "model": {"optimizer": "sgd", "embedding_size": 2, "filters": [8, 8]},
        "training": {"epochs": 15, "batch_size": 64},
    }
    try:
        job_id = store.submit(Kind.TRAIN, config)
        training(store, job_id)
        filler = fill(small_disk)
        before = len(store.metrics(store.job(job_id), per="step"))
        with pytest.raises(DiskFull, match="is full"):
            write_on(store, job_id)
        time.sleep(6)
        job = store.job(job_id)
        assert job.status is Status.RUNNING
        assert is_running(job.pid)
        # The engine trains on into its memory; nobody starts engines that the store cannot know of.
        assert len(psutil.Process().children()) <= 3
        assert any("nearly full" in problem for problem in examine(home)["problems"])
        filler.unlink()
        job = ended(store, job_id, 120)
        assert job.status is Status.COMPLETED, job.error
        losses = [row.step for row in store.metrics(job, per="step") if row.name == "loss"]
        assert losses == list(range(15 * 141))
        assert len(losses) * 3 > before
        assert [epoch["epoch"] for epoch in history(store, job)] == list(range(1, 16))
        said = [line.text for line in store.logs(job) if line.source == "mirrorboard"]
        (full,) = [text for text in said if "is full" in text]
        assert "The job goes on, and what it records waits in memory." in full
        assert any("takes what is recorded again" in text for text in said)
        assert not list(home.rglob("*.part"))
    finally:
        (small_disk / "filler").unlink(missing_ok=True)
        launcher.close()
        store.close()


def write_on(store, job_id):
    """Writes more and more, until the store refuses."""
    for length in range(100, 2_000):
        store.rename(job_id, "x" * 1_000 * length)


def is_running(pid):
    return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def test_a_run_that_is_silent_is_told_of_on_its_page(show, store, monkeypatch):
    prepared(store)
    job = running_run(store, epochs=2)
    monkeypatch.setattr(run_panel, "_QUIET_S", -1.0)
    app = show("pages/training.py", run=job.id)
    assert "Nothing has been recorded for" in texts(app)
    assert "the engine process may hang" in texts(app).lower()


def test_a_read_only_store_is_told_on_the_page_and_on_the_command_line(small_disk, tmp_path, monkeypatch):
    home = small_disk / "home"
    Store(home).close()
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    done = command("runs", home=home)
    assert done.returncode == 1
    assert "cannot be written: Read-only file system" in done.stderr
    assert "Traceback" not in done.stderr
    monkeypatch.setenv("MIRRORBOARD_HOME", str(home))
    app = sound(AppTest.from_file(str(ROOT / "streamlit_app.py"), default_timeout=20).run())
    assert "Read-only file system" in texts(app)


def truncate(home):
    path = home / FILE_NAME
    os.truncate(path, path.stat().st_size // 2)


def empty(home):
    os.truncate(home / FILE_NAME, 0)
    (home / "checkpoints" / "abcd").mkdir(parents=True)


def age(home):
    with contextlib.closing(sqlite3.connect(home / FILE_NAME)) as connection:
        connection.execute("PRAGMA user_version = 99")


@pytest.mark.parametrize(
    ("harm", "words"), [(truncate, "is damaged"), (empty, "is empty, but there are"), (age, "has schema 99")]
)
def test_a_bad_database_is_told_on_the_page_and_on_the_command_line(home, monkeypatch, harm, words):
    store = Store(home)
    for _ in range(20):
        finished_run(store)
    store.close()
    harm(home)
    before = (home / FILE_NAME).read_bytes()
    done = command("runs", home=home)
    assert done.returncode == 1
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    monkeypatch.setenv("MIRRORBOARD_HOME", str(home))
    monkeypatch.setenv("MIRRORBOARD_WATCH", "1")
    app = AppTest.from_file(str(ROOT / "streamlit_app.py"), default_timeout=20)
    assert words in texts(sound(app.run()))
    assert (home / FILE_NAME).read_bytes() == before
    assert not any((home / "checkpoints").glob("*")) or harm is empty


# The machine


def test_a_clock_that_is_set_back_makes_no_duration_negative_and_stops_nothing(home, store, tmp_path):
    """The launcher and its engine live a day in the past, who looks at them does not."""
    (tmp_path / "sitecustomize.py").write_text(
        "import time\npresent = time.time\ntime.time = lambda: present() - 86_400\n"
    )
    long = store.submit(Kind.TRAIN, LONG)
    past = subprocess.Popen(
        [sys.executable, "-c", STARTER, str(home)], cwd=ROOT, env={**os.environ, "PYTHONPATH": str(tmp_path)}
    )
    try:
        job = training(store, long)
        assert job.started_at < job.created_at - 80_000
        assert 0 < job.duration_s < 120
        short = store.submit(Kind.TRAIN, QUICK)
        # Who asks lives in the present, where the last heartbeat is a day old, and the process still lives.
        Launcher(store).bury_dead_engines()
        assert store.job(long).status is Status.RUNNING
        assert not any("not been heard" in problem for problem in examine(home)["problems"])
        store.request_stop(long)
        ended(store, long, 20)
        done = ended(store, short, 90)
        assert done.status is Status.COMPLETED, done.error
        assert 0 < done.duration_s < 90
    finally:
        past.terminate()
        past.wait(20)
    wait_for(
        lambda: not any(is_alive(e.pid, e.pid_started_at, e.boot_id) for e in store.engines()), 20, "end"
    )


def test_nobody_overtakes_in_the_queue_when_the_clock_is_set_back(store):
    first = store.submit(Kind.TRAIN, QUICK)
    with store.write() as connection:  # the clock stood an hour later then
        connection.execute("UPDATE jobs SET queued_at = queued_at + 3600")
    second, third = store.submit(Kind.TRAIN, QUICK), store.submit(Kind.TRAIN, QUICK)
    order = []
    for _ in range(3):
        job = claim(store, [Kind.TRAIN], "a")
        order.append(job.id)
        store.finish(job.id, Status.COMPLETED)
    assert order == [first, second, third]


def test_an_engine_that_died_with_a_heartbeat_in_the_future_is_buried_at_once(store):
    gone = Engine("ab", "layout", 2**22 + 1, 0.0, os.getpid(), time.time(), None, None, boot_id())
    store.add_engine(gone)
    job = store.job(store.submit(Kind.TRAIN, QUICK))
    claim(store, [Kind.TRAIN], gone.id)
    with store.write() as connection:
        connection.execute(
            "UPDATE jobs SET heartbeat_at = heartbeat_at + 7200, started_at = started_at + 7200"
        )
    Launcher(store).bury_dead_engines()
    job = store.job(job.id)
    assert job.status is Status.LOST
    assert job.duration_s >= 0


def test_after_a_restart_of_the_machine_its_runs_are_lost_and_can_be_resumed(store, launcher):
    """Another process has got the pid meanwhile, which began as long after the machine's start."""
    job_id = store.submit(Kind.TRAIN, LONG)
    job = training(store, job_id)
    launcher._closed.set()
    launcher._thread.join()
    os.kill(job.pid, signal.SIGKILL)
    wait_for(lambda: launcher._children[job.engine_id].poll() is not None, 10, "the engine's end")
    me = psutil.Process().pid
    with store.write() as connection:
        connection.execute(
            "UPDATE engines SET pid = ?, pid_started_at = ?, boot_id = 'the one before'", (me, started_at(me))
        )
        connection.execute("UPDATE jobs SET heartbeat_at = heartbeat_at - 600")
    after = Launcher(store, keep_warm=False)
    after.bury_dead_engines()
    lost = store.job(job_id)
    assert lost.status is Status.LOST
    assert "may have been restarted" in lost.error["message"] + lost.error["hint"]
    assert lost.can_resume
    store.resume(job_id)
    after.start()
    again = training(store, job_id, lost.checkpoint_epochs + 1)
    assert again.result["resumed"]["epochs"] == lost.checkpoint_epochs
    store.request_stop(job_id)
    ended(store, job_id, 20)
    after.close()


def test_forty_starts_in_a_second_wait_in_order_and_run_one_at_a_time(home, store):
    """From four processes at once, with two launchers on the store."""
    script = "import sys, pathlib, json; from core.store import Store; from core.records import Kind;"
    script += "store = Store(pathlib.Path(sys.argv[1])); sys.stdin.read(1);"
    script += "[store.submit(Kind.TRAIN, json.loads(sys.argv[2])) for _ in range(10)]"
    people = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(home), json.dumps(QUICK)], cwd=ROOT, stdin=subprocess.PIPE
        )
        for _ in range(4)
    ]
    launchers = [Launcher(store, keep_warm=False), Launcher(Store(home), keep_warm=False)]
    for person in people:
        person.stdin.write(b"x")
        person.stdin.close()
    assert all(person.wait(30) == 0 for person in people)
    runs = store.jobs(kinds=[Kind.TRAIN])[::-1]
    assert len(runs) == 40
    assert [len(store.ahead_of(run)) for run in runs] == list(range(40))
    for launcher in launchers:
        launcher.start()
    together = 0
    ended_runs = 0
    while ended_runs < 3:
        jobs = store.jobs(kinds=[Kind.TRAIN])
        ended_runs = sum(job.status.is_final for job in jobs)
        together = max(together, sum(job.status is Status.RUNNING for job in jobs))
        time.sleep(0.02)
    assert together == 1
    for run in reversed(runs):
        store.request_stop(run.id)
    wait_for(lambda: all(job.status.is_final for job in store.jobs()), 30, "the end of all")
    done = [job for job in store.jobs(kinds=[Kind.TRAIN])[::-1] if job.started_at]
    assert [job.id for job in done] == [run.id for run in runs[: len(done)]]
    assert all(job.status is Status.COMPLETED for job in done[:3])
    for launcher in launchers:
        launcher.close()
    assert store.engines() == []
    assert list((home / "engines").iterdir()) == []
    assert sorted(path.name for path in home.iterdir() if not path.name.startswith(FILE_NAME)) == [
        "checkpoints",
        "datasets",
        "engines",
    ]


# The dashboard


@pytest.fixture(scope="module")
def browser():
    if not shutil.which(CHROMIUM):
        pytest.skip(f"needs {CHROMIUM}")
    with chromium() as browser:
        yield browser


def points(page):
    """Batches on the loss chart."""
    return page.evaluate(
        "() => document.querySelector('.st-key-loss_chart .plot')?._fullData?.[0]?.x?.length ?? 0"
    )


def server(address):
    """The process that listens at an address."""
    port = int(address.rsplit(":", 1)[1])
    return next(
        connection.pid
        for connection in psutil.net_connections("tcp")
        if connection.laddr.port == port and connection.status == psutil.CONN_LISTEN
    )


def test_fifty_reloads_leave_nothing_behind_and_the_run_goes_on(home, store, launcher, browser):
    job_id = store.submit(Kind.TRAIN, LONG)
    training(store, job_id)
    with dashboard(home, MIRRORBOARD_WATCH="1") as address, tab(browser) as page:
        process = psutil.Process(server(address))
        sizes = []
        for number in range(50):
            # Not waited for: impatient people reload before the page is there.
            page.goto(f"{address}/training?run={job_id}", wait_until="commit")
            if number % 10 == 9:
                heading(page, "Training")
                wait_for(lambda: points(page) > 0, 20, "the curve")
                sizes.append((process.num_threads(), process.memory_info().rss))
        epochs = store.epochs_done(store.job(job_id))
        wait_for(lambda: store.epochs_done(store.job(job_id)) > epochs, 60, "another epoch")
        assert store.job(job_id).status is Status.RUNNING
    # 20 to 50 reloads; each session that stayed would hold a thread and some MB.
    assert sizes[-1][0] - sizes[1][0] <= 5, sizes
    assert sizes[-1][1] - sizes[1][1] < 60e6, sizes


def test_a_dropped_websocket_is_made_again_and_the_page_goes_on_by_itself(home, store, launcher, browser):
    job_id = store.submit(Kind.TRAIN, LONG)
    training(store, job_id)
    # Not a `tab`: that Streamlit says it is disconnected is what is wanted here.
    with dashboard(home, MIRRORBOARD_WATCH="1") as address, browser.new_context() as context:
        page = context.new_page()
        sockets = []

        def pass_on(route):
            sockets.append(route)
            route.connect_to_server()

        page.route_web_socket(re.compile("_stcore/stream"), pass_on)
        page.goto(f"{address}/training?run={job_id}")
        heading(page, "Training")
        wait_for(lambda: points(page) > 0, 20, "the curve")
        before, made = points(page), len(sockets)
        sockets[-1].close()
        wait_for(lambda: page.wait_for_timeout(100) or len(sockets) > made, 30, "another websocket")
        wait_for(lambda: page.wait_for_timeout(100) or points(page) > before, 30, "newer points")
        assert f"run={job_id}" in page.url
        heading(page, "Training")


def test_two_dashboards_share_a_store_one_starts_a_run_the_other_stops_it(tmp_path, browser):
    home = tmp_path / "home"
    offline = {"KERAS_HOME": str(tmp_path / "keras"), "HTTPS_PROXY": "http://127.0.0.1:9"}
    store = Store(home)
    prepared(store)
    with dashboard(home, **offline) as one, dashboard(home, **offline) as two:
        with tab(browser) as page:
            page.goto(f"{one}/training?data.dataset=synthetic&training.epochs=500")
            heading(page, "Training")
            page.locator(".st-key-start button").click()
            wait_for(lambda: page.wait_for_timeout(100) or store.jobs(kinds=[Kind.TRAIN]), 20, "the run")
            (job,) = store.jobs(kinds=[Kind.TRAIN])
            wait_for(lambda: store.job(job.id).progress.get("step"), 90, "its first step")
        with tab(browser) as page:
            page.goto(f"{two}/training?run={job.id}")
            heading(page, "Training")
            page.locator(".st-key-stop button").click()
            assert ended(store, job.id, 20).status is Status.STOPPED
            expect(page.locator(".st-key-run_head").get_by_text("stopped")).to_be_visible(timeout=20_000)
        engines = store.engines()
    # No process stays when both have ended.
    wait_for(lambda: not any(is_alive(e.pid, e.pid_started_at, e.boot_id) for e in engines), 20, "their end")
    store.close()
