"""The run store: states, claims, metrics, and the ways a file can be bad."""

from __future__ import annotations

import sqlite3
import threading
import time

import numpy as np
import pytest

from core import schema
from core.config import RunConfig
from core.errors import ConfigError, LimitExceeded, MirrorboardError, RunNotFound, RunStateError, StoreError
from core.records import RUNS, Engine, Kind, LogLine, Metric, Sample, Status
from core.store import Store
from tests.conftest import QUICK
from tests.recorded import claim, claimed


def engine(engine_id: str, pid: int = 1) -> Engine:
    return Engine(engine_id, "layout", pid, 0.0, 1, time.time(), None, None)


def test_a_job_is_claimed_once_however_many_engines_ask(home, store):
    ids = [store.submit(Kind.CHECK, {"n": n}) for n in range(20)]
    claimed: list[str] = []

    def take(name: str) -> None:
        mine = Store(home)
        while (job := claim(mine, [Kind.CHECK], name)) is not None:
            claimed.append(job.id)
            mine.finish(job.id, Status.COMPLETED)
        mine.close()

    threads = [threading.Thread(target=take, args=(f"e{n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(claimed) == sorted(ids)


def test_one_training_at_a_time_in_order_and_the_queue_says_behind_whom(store):
    first, second, third = (store.submit(Kind.TRAIN, {}) for _ in range(3))
    store.add_engine(engine("a", pid=4321))
    running = claim(store, [Kind.TRAIN], "a")
    assert running.id == first
    assert running.pid == 4321
    assert claim(store, [Kind.TRAIN], "b") is None
    assert [job.id for job in store.ahead_of(store.job(third))] == [first, second]
    store.finish(first, Status.COMPLETED)
    assert store.job(first).pid is None
    assert claim(store, [Kind.TRAIN], "b").id == second


def test_an_engine_that_is_to_end_has_a_job_or_gets_none(store):
    """A launcher ends its idle engines while a command line beside it queues a run."""
    first, second = (store.submit(Kind.TRAIN, {}) for _ in range(2))
    for name in ("a", "b"):
        store.add_engine(engine(name))
    assert store.claim([Kind.TRAIN], "a").id == first
    assert not store.retire_engine("a")
    assert store.retire_engine("b")
    store.finish(first, Status.COMPLETED)
    assert store.claim([Kind.TRAIN], "b") is None
    assert store.job(second).status is Status.QUEUED
    assert store.retire_engine("a")
    assert store.engines() == []
    assert store.retire_engine("a")  # another launcher was faster; the process is still to be ended


def test_an_engine_whose_store_did_not_answer_finds_the_job_that_it_took(store, monkeypatch):
    first, _ = (store.submit(Kind.CHECK, {}) for _ in range(2))
    store.add_engine(engine("a"))
    with monkeypatch.context() as patch:
        patch.setattr(store, "job", lambda _: Store(store.path))  # a file where a folder belongs
        with pytest.raises(StoreError):
            store.claim([Kind.CHECK], "a")
    assert store.job(first).status is Status.RUNNING
    assert store.claim([Kind.CHECK], "a").id == first


def test_a_final_status_never_changes(store):
    job_id = store.submit(Kind.TRAIN, {})
    claim(store, [Kind.TRAIN], "a")
    assert store.finish(job_id, Status.FAILED, error=MirrorboardError("it broke", "mend it"), details="trace")
    assert not store.finish(job_id, Status.COMPLETED)
    assert store.request_stop(job_id) is Status.FAILED
    job = store.job(job_id)
    assert job.error == {
        "type": "MirrorboardError",
        "message": "it broke",
        "hint": "mend it",
        "field": "",
        "details": "trace",
    }


def test_stop_ends_a_queued_job_at_once_and_asks_a_running_one(store):
    running, queued = store.submit(Kind.TRAIN, {}), store.submit(Kind.TRAIN, {})
    job = claim(store, [Kind.TRAIN], "a")
    assert store.request_stop(queued) is Status.STOPPED
    assert not store.report(job, phase="training")
    assert store.request_stop(running) is Status.STOPPING
    assert store.report(job)


def test_metrics_are_read_from_where_the_reader_stopped(store):
    job = store.job(store.submit(Kind.TRAIN, {}))
    rows = [Metric("step", n, 0, "train", "loss", n / 2, 1.0) for n in range(5)]
    store.report(job, metrics=[*rows[:3], Metric("epoch", 2, 0, "validation", "loss", 0.5, 2.0)])
    seen = store.metrics(job, per="step")
    assert [row.value for row in seen] == [0.0, 0.5, 1.0]
    store.report(job, metrics=rows[3:])
    assert [row.step for row in store.metrics(job, per="step", after=seen[-1].id)] == [3, 4]
    assert store.epochs_done(job) == 1
    assert store.last_metric_id(job) == 6


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), np.float32("nan"), None])
def test_what_is_not_finite_is_kept_as_a_gap(store, value):
    job = store.job(store.submit(Kind.TRAIN, {}))
    store.report(job, metrics=[Metric("step", 0, 0, "train", "loss", value, 1.0)])
    assert [row.value for row in store.metrics(job, per="step")] == [None]


def test_logs_keep_the_newest_lines_in_order(store):
    job = store.job(store.submit(Kind.TRAIN, {}))
    store.report(job, logs=[LogLine(float(n), "info", "tensorflow", f"line {n} ✓") for n in range(10)])
    assert [line.text for line in store.logs(job, limit=2)] == ["line 8 ✓", "line 9 ✓"]


def test_an_unknown_run_is_named(store):
    with pytest.raises(RunNotFound, match="no run 'abc'"):
        store.job("abc")


def test_writers_wait_for_each_other(home, store):
    """Two writers that read first fail at once with a deferred transaction."""
    job = store.job(store.submit(Kind.TRAIN, {}))
    failures: list[Exception] = []

    def write() -> None:
        mine = Store(home)
        try:
            for n in range(50):
                mine.report(job, metrics=[Metric("step", n, 0, "train", "loss", 1.0, 1.0)])
                claim(mine, [Kind.CHECK], "nobody")
        except StoreError as error:
            failures.append(error)
        mine.close()

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert len(store.metrics(job, per="step")) == 200


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="cannot be written: Not a directory") as caught:
        Store(tmp_path / "file" / "home")
    assert "MIRRORBOARD_HOME" in caught.value.hint


def test_a_damaged_database_is_named_and_left_alone(home):
    home.mkdir()
    (home / "mirrorboard.sqlite3").write_bytes(b"this is no database" * 100)
    with pytest.raises(StoreError, match=r"mirrorboard.sqlite3 is damaged"):
        Store(home)
    assert (home / "mirrorboard.sqlite3").read_bytes().startswith(b"this is no database")


def test_a_store_that_was_replaced_is_noticed(home, store):
    job_id = store.submit(Kind.TRAIN, {})
    aside = store.path.with_name("aside")
    store.path.rename(aside)
    with pytest.raises(StoreError, match="was moved, deleted or replaced"):
        store.jobs()
    with pytest.raises(StoreError, match="was moved, deleted or replaced"):
        store.submit(Kind.TRAIN, {})
    assert not store.path.exists()
    aside.rename(store.path)
    assert store.job(job_id).status is Status.QUEUED


def test_a_newer_schema_is_refused(home, store):
    connection = sqlite3.connect(home / "mirrorboard.sqlite3")
    connection.execute("PRAGMA user_version = 99")
    connection.close()
    with pytest.raises(StoreError, match="schema 99"):
        Store(home)


def test_a_new_store_waits_for_who_is_making_it_too(home):
    """SQLite says at once that a database is locked while its journal is to be changed."""
    home.mkdir(exist_ok=True)
    maker = sqlite3.connect(home / "mirrorboard.sqlite3", isolation_level=None, check_same_thread=False)
    maker.execute("BEGIN IMMEDIATE")
    maker.execute("CREATE TABLE theirs (id INTEGER)")
    done = threading.Timer(0.5, maker.execute, ["COMMIT"])
    done.start()
    store = Store(home)
    store.submit(Kind.TRAIN, {})
    assert len(store.jobs()) == 1
    store.close()
    done.join()
    maker.close()


def test_opening_a_store_again_keeps_what_is_in_it(home, store):
    job_id = store.submit(Kind.TRAIN, {"a": [1, None, "ü"]})
    again = Store(home)
    assert again.job(job_id).config == {"a": [1, None, "ü"]}
    again.close()


def rows(home, table):
    connection = sqlite3.connect(home / "mirrorboard.sqlite3")
    count = connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
    connection.close()
    return count


def test_deleting_takes_measurements_and_logs_along_and_spares_what_goes_on(home, store):
    ids = [store.submit(Kind.TRAIN, {}) for _ in range(3)]
    for job_id in ids:
        metrics, logs = (
            [Metric("step", 0, 0, "train", "loss", 1.0, 1.0)],
            [LogLine(1.0, "info", "stderr", "x")],
        )
        store.report(store.job(job_id), metrics=metrics, logs=logs)
    check = store.submit(Kind.CHECK, {})
    for job_id in (*ids[:2], check):
        store.request_stop(job_id)
    assert store.delete([ids[0], ids[2], check, "nobody"]) == [ids[0]]
    assert [job.id for job in store.jobs()] == [check, ids[2], ids[1]]
    assert (rows(home, "metrics"), rows(home, "logs")) == (2, 2)
    with pytest.raises(RunNotFound):
        store.job(ids[0])
    assert store.delete([]) == []


def test_a_name_is_kept_and_can_be_taken_away(store):
    job_id = store.submit(Kind.TRAIN, {})
    store.rename(job_id, "Zwölf Epochen'; --")
    assert (store.job(job_id).name, store.job(job_id).title) == ("Zwölf Epochen'; --",) * 2
    store.rename(job_id, "")
    assert store.job(job_id).title == job_id


def test_an_import_is_a_finished_run_that_no_engine_takes(store):
    job_id = store.add_import(
        "log.csv", {"file": "log.csv"}, [Metric("epoch", 0, 0, "validation", "loss", 1.5, 0.0)], 12.5
    )
    job = store.job(job_id)
    assert (job.kind, job.status, job.title) == (Kind.IMPORT, Status.COMPLETED, "log.csv")
    assert job.duration_s == pytest.approx(12.5)
    assert [row.value for row in store.metrics(job, per="epoch")] == [1.5]
    assert claim(store, list(Kind), "a") is None
    assert store.job(store.add_import("x", {}, [], None)).duration_s is None


def test_the_best_epoch_is_the_first_of_the_lowest(store):
    job = store.job(store.submit(Kind.TRAIN, {}))
    values = [2.0, 1.0, None, 1.0, 3.0]
    store.report(
        job,
        metrics=[
            *(Metric("epoch", n, n, "validation", "loss", value, 1.0) for n, value in enumerate(values)),
            Metric("epoch", 5, 5, "train", "loss", 0.1, 1.0),
            Metric("step", 5, 5, "validation", "loss", 0.1, 1.0),
        ],
    )
    store.submit(Kind.TRAIN, {})
    assert store.best_epochs() == {job.number: (1, 1.0)}


def test_a_run_keeps_its_place_when_others_go(store):
    ids = []
    for _ in range(3):
        store.submit(Kind.CHECK, {})
        ids.append(store.submit(Kind.TRAIN, {}))
    assert [store.job(job_id).place for job_id in ids] == [1, 2, 3]
    store.request_stop(ids[0])
    store.delete(ids[:1])
    assert [store.job(job_id).place for job_id in ids[1:]] == [2, 3]
    assert store.job(store.add_import("x", {}, [], None)).place == 4


def test_runs_of_the_first_schema_get_places_and_no_names(home):
    home.mkdir()
    connection = sqlite3.connect(home / "mirrorboard.sqlite3")
    connection.executescript(schema._MIGRATIONS[0])
    for n, kind in enumerate(("inspect", "train", "check", "train")):
        connection.execute(
            "INSERT INTO jobs (id, kind, status, config, created_at) VALUES (?, ?, 'completed', '{}', 1.0)",
            (f"job{n}", kind),
        )
    connection.execute("PRAGMA user_version = 1")
    connection.commit()
    connection.close()
    store = Store(home)
    assert [(job.id, job.name, job.place) for job in store.jobs(kinds=RUNS)] == [
        ("job3", "", 2),
        ("job1", "", 1),
    ]
    assert store.job("job0").place is None
    store.close()


def checkpointed(store, status, epochs=3):
    """A run that ended in this status with so many epochs behind its checkpoint."""
    job_id = store.submit(Kind.TRAIN, RunConfig().model_dump(mode="json"))
    job = claim(store, [Kind.TRAIN], "a")
    assert job.id == job_id
    rows = [Metric("epoch", 10 * e + 9, e, "train", "loss", 1.0, 1.0) for e in range(epochs)]
    rows += [Metric("step", s, s // 10, "train", "loss", 1.0, 1.0) for s in range(10 * epochs + 5)]
    samples = [Sample(1.0, s, "cpu", 0.5) for s in (0, 10 * epochs, 10 * epochs + 4)]
    checkpoint = {"epochs": epochs, "best_epoch": 1, "best_val_loss": 0.5} if epochs else None
    result = {"steps_per_epoch": 10, "early_stop": {"epoch": 3}}
    store.report(job, result=result, metrics=rows, samples=samples, checkpoint=checkpoint)
    if status is Status.PAUSED:
        assert store.request_pause(job_id) is Status.PAUSING
        status = Status.STOPPED
    assert store.finish(job_id, status)
    return store.job(job_id)


def test_a_pause_is_asked_for_once_and_ends_as_paused(store):
    queued = store.submit(Kind.TRAIN, {})
    with pytest.raises(RunStateError, match="is queued; only a running one can be paused"):
        store.request_pause(queued)
    job = claim(store, [Kind.TRAIN], "a")
    assert store.request_pause(queued) is Status.PAUSING
    assert store.request_pause(queued) is Status.PAUSING
    assert store.report(job)
    assert claim(store, [Kind.TRAIN], "b") is None
    store.finish(queued, Status.STOPPED)
    assert store.job(queued).status is Status.PAUSED
    assert store.request_pause(queued) is Status.PAUSED
    assert store.request_stop(queued) is Status.PAUSED
    with pytest.raises(RunNotFound):
        store.request_pause("nonsense")


def test_a_stop_overrules_a_pause(store):
    job_id = store.submit(Kind.TRAIN, {})
    claim(store, [Kind.TRAIN], "a")
    store.request_pause(job_id)
    assert store.request_stop(job_id) is Status.STOPPING
    store.finish(job_id, Status.STOPPED)
    assert store.job(job_id).status is Status.STOPPED


@pytest.mark.parametrize(
    ("status", "epochs", "resumes", "extends"),
    [
        (Status.PAUSED, 3, True, False),
        (Status.PAUSED, 0, True, False),
        (Status.STOPPED, 3, True, True),
        (Status.STOPPED, 0, False, False),
        (Status.FAILED, 3, True, False),
        (Status.FAILED, 0, False, False),
        (Status.LOST, 3, True, False),
        (Status.COMPLETED, 3, False, True),
    ],
)
def test_only_what_can_go_on_is_queued_again(store, status, epochs, resumes, extends):
    job = checkpointed(store, status, epochs)
    assert (job.status, job.can_resume, job.can_extend) == (status, resumes, extends)
    for may, queue in ((resumes, store.resume), (extends, lambda job_id: store.extend(job_id, 2))):
        if not may:
            with pytest.raises(RunStateError, match=f"Run {job.id} "):
                queue(job.id)
            assert store.job(job.id) == job


def test_a_resumed_run_keeps_its_place_and_what_its_checkpoint_has_behind_it(store):
    other = checkpointed(store, Status.COMPLETED)
    job = checkpointed(store, Status.LOST)
    waiting = store.submit(Kind.TRAIN, {})
    time.sleep(0.02)
    store.resume(job.id)
    queued = store.job(job.id)
    assert (queued.status, queued.place, queued.number) == (Status.QUEUED, job.place, job.number)
    assert (queued.result, queued.error, queued.started_at) == ({"steps_per_epoch": 10}, None, None)
    assert queued.duration_s == job.duration_s == queued.trained_s
    assert [row.step for row in store.metrics(queued, per="step")] == list(range(30))
    assert [row.step for row in store.samples(queued)] == [0, 30]
    assert len(store.metrics(other, per="step")) == 35
    assert queued.rewinds == job.rewinds + 1
    assert [ahead.id for ahead in store.ahead_of(queued)] == [waiting]
    assert claim(store, [Kind.TRAIN], "a").id == waiting
    store.finish(waiting, Status.COMPLETED)
    assert claim(store, [Kind.TRAIN], "a").id == job.id
    time.sleep(0.02)
    store.finish(job.id, Status.COMPLETED)
    assert job.duration_s < store.job(job.id).duration_s < job.duration_s + 0.5


def test_a_second_resume_at_the_same_time_is_refused(home, store):
    job = checkpointed(store, Status.PAUSED)
    outcomes: list[str] = []

    def go_on() -> None:
        mine = Store(home)
        try:
            mine.resume(job.id)
            outcomes.append("queued")
        except RunStateError as error:
            outcomes.append(error.message)
        mine.close()

    threads = [threading.Thread(target=go_on) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    refused = f"Run {job.id} is queued: it cannot be resumed now."
    assert sorted(outcomes) == [*[refused] * 3, "queued"]
    assert store.job(job.id).rewinds == 1


def test_a_run_is_extended_from_its_last_epoch(store):
    job = checkpointed(store, Status.COMPLETED)
    for epochs in (0, 10_000):
        with pytest.raises(ConfigError):
            store.extend(job.id, epochs)
    assert store.job(job.id) == job
    store.extend(job.id, 4)
    assert store.job(job.id).config["training"]["epochs"] == 7


def test_the_time_of_a_lost_run_ends_with_its_last_heartbeat(store):
    job = checkpointed(store, Status.LOST)
    assert job.finished_at == job.heartbeat_at


def test_checkpoints_go_with_their_run_and_strangers_are_swept(store):
    """What was exported from an imported run stands in such a folder, too."""
    kept, gone = checkpointed(store, Status.COMPLETED).id, checkpointed(store, Status.COMPLETED).id
    imported = store.add_import("elsewhere", {}, [], None)
    for name in (kept, gone, imported, "stranger"):
        store.checkpoints(name).mkdir(parents=True)
        (store.checkpoints(name) / "file").touch()
    store.delete([gone])
    store.sweep_checkpoints()
    assert {folder.name for folder in (store.home / "checkpoints").iterdir()} == {kept, imported}


def test_a_run_that_reaches_its_time_while_it_pauses_says_so(store):
    job = claimed(store, Kind.TRAIN, QUICK)
    store.request_pause(job.id)
    store.finish(
        job.id, Status.STOPPED, error=LimitExceeded("Stopped after 5 min.", "What was recorded is kept.")
    )
    job = store.job(job.id)
    assert (job.status, job.error["message"]) == (Status.STOPPED, "Stopped after 5 min.")


def test_only_a_training_can_be_paused(store):
    job = claimed(store, Kind.DESCRIBE, {})
    with pytest.raises(RunStateError, match=f"{job.id} is no training"):
        store.request_pause(job.id)
    assert store.job(job.id).status is Status.RUNNING
