"""Backup and restore: in the middle of a training, of damaged files, and of a store that is in use."""

from __future__ import annotations

import os
import re
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from conftest import LONG, QUICK, ROOT, command, ended, json_of, launching, wait_for

from core import backup as backups
from core.database import FILE_NAME
from core.engine.checkpoints import Checkpoints
from core.errors import StoreError
from core.records import Kind, LogLine, Metric, Status
from core.schema import migrate, newest_schema
from core.store import Store
from tests.recorded import claim

HOLDER = """
import sys, time
from pathlib import Path
from core.store import Store
store = Store(Path(sys.argv[1]))
print("open", flush=True)
time.sleep(600)
"""


@pytest.fixture
def filled(store):
    """A store with a run that is over, and its values; closed, as after the dashboard's end."""
    job = store.job(store.submit(Kind.TRAIN, LONG))
    claim(store, [Kind.TRAIN], "e")
    store.report(job, metrics=[Metric("epoch", n, n, "train", "loss", 1.0 / (n + 1), 1.0) for n in range(50)])
    store.report(job, logs=[LogLine(1.0, "info", "mirrorboard", "said")])
    store.finish(job.id, Status.COMPLETED)
    store.close()
    return store


def rows_of(store, job):
    return [*store.metrics(job, per="step"), *store.metrics(job, per="epoch"), *store.samples(job)]


def test_a_backup_in_mid_run_is_consistent_and_restored_elsewhere_the_run_is_lost(
    home, store, launcher, tmp_path
):
    run_id = store.submit(Kind.TRAIN, LONG)
    queued = store.submit(Kind.TRAIN, LONG)
    wait_for(lambda: store.epochs_done(store.job(run_id)) >= 2, 90, "two epochs")
    before = rows_of(store, store.job(run_id))
    file = tmp_path / "backup.sqlite3"
    made = json_of(command("backup", str(file), "--json", home=home))
    after = rows_of(store, store.job(run_id))
    assert made == {"file": str(file), "size_bytes": file.stat().st_size, "runs": 2}
    assert sorted(path.name for path in tmp_path.iterdir()) == ["backup.sqlite3", "home"]
    # It went on meanwhile.
    epochs = store.epochs_done(store.job(run_id))
    wait_for(lambda: store.epochs_done(store.job(run_id)) > epochs, 60, "another epoch")
    assert store.job(run_id).status is Status.RUNNING

    elsewhere = tmp_path / "elsewhere"
    done = json_of(command("restore", str(file), "--json", home=elsewhere))
    assert done == {"home": str(elsewhere), "runs": 2, "lost": [run_id], "kept": None}
    shown = json_of(command("show", run_id, "--json", home=elsewhere))
    assert shown["status"] == "lost"
    assert "when the backup was made" in shown["error"]["message"]
    restored = Store(elsewhere)
    rows = rows_of(restored, restored.job(run_id))
    assert set(before) <= set(rows) <= set(after)
    assert len(before) > 36
    assert restored.job(queued).status is Status.QUEUED
    assert restored.engines() == []
    restored.close()
    assert sorted(path.name for path in elsewhere.iterdir()) == [FILE_NAME]


def test_restore_keeps_the_store_that_was_there_and_says_where(home, filled, tmp_path):
    file = tmp_path / "backup"
    assert backups.backup(home, file) == 1
    later = Store(home)
    (older,) = later.jobs()
    newer = later.submit(Kind.TRAIN, LONG)
    for run_id in (newer, older.id):
        later.checkpoints(run_id).mkdir(parents=True)
    later.close()

    done = json_of(command("restore", str(file), "--json", home=home))
    assert done["runs"] == 1
    assert newer not in [run["run_id"] for run in json_of(command("runs", "--json", home=home))]
    assert newer in [run["run_id"] for run in json_of(command("runs", "--json", "--home", done["kept"]))]
    # Its runs can still be resumed, when somebody goes back to it.
    assert Store(Path(done["kept"])).checkpoints(newer).is_dir()
    Store(home).sweep_checkpoints()
    assert Store(home).checkpoints(older.id).is_dir()
    assert not Store(home).checkpoints(newer).exists()
    (run,) = Store(home).jobs()
    assert len(Store(home).metrics(run, per="epoch")) == 50
    assert [line.text for line in Store(home).logs(run)] == ["said"]
    said = command("restore", str(file), home=tmp_path / "third").stdout
    assert said == f"1 run is in {tmp_path / 'third'}.\n"


def test_checkpoints_newer_than_the_backup_go_along_with_the_store_they_belong_to(home, tmp_path):
    store = Store(home)
    with launching(store, keep_warm=False):
        run_id = store.submit(Kind.TRAIN, QUICK)
        assert ended(store, run_id).checkpoint_epochs == 1
        backups.backup(home, tmp_path / "backup")
        store.extend(run_id, 1)
        assert ended(store, run_id).checkpoint_epochs == 2
        other = ended(store, store.submit(Kind.TRAIN, QUICK)).id
        backups.backup(home, tmp_path / "later")
    store.close()

    done = backups.restore(home, tmp_path / "backup")
    restored = Store(home)
    assert not restored.checkpoints(run_id).exists()
    restored.close()
    kept = Store(done.kept)
    assert Checkpoints(kept.checkpoints(run_id)).newest(2).epochs == 2
    kept.close()
    # Those that belong to what is restored stay.
    for folder in (done.kept / "checkpoints").iterdir():
        folder.rename(home / "checkpoints" / folder.name)
    backups.restore(home, tmp_path / "later")
    assert {path.name for path in (home / "checkpoints").iterdir()} == {run_id, other}


def test_what_only_the_write_ahead_log_holds_is_kept_aside_too(home, store, tmp_path):
    file = tmp_path / "backup"
    backups.backup(home, file)
    holder = Store(home)
    run_id = holder.submit(Kind.TRAIN, LONG)
    # A machine that loses power leaves the log beside the database.
    copies = {path.name: path.read_bytes() for path in home.iterdir() if path.is_file()}
    assert any(name.endswith("-wal") for name in copies)
    holder.close()
    store.close()
    for name, content in copies.items():
        (home / name).write_bytes(content)
    kept = backups.restore(home, file).kept
    assert [job.id for job in Store(kept).jobs()] == [run_id]
    assert Store(home).jobs() == []


def test_restore_refuses_while_somebody_uses_the_store(home, filled, tmp_path):
    file = tmp_path / "backup"
    backups.backup(home, file)
    content = (home / FILE_NAME).read_bytes()
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(home)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout.readline() == "open\n"
    refused = command("restore", str(file), "--json", home=home)
    holder.kill()
    holder.communicate()
    assert (refused.returncode, refused.stdout) == (1, "")
    assert f"is in use by process {holder.pid}" in refused.stderr
    assert "Stop the dashboard" in refused.stderr
    assert (home / FILE_NAME).read_bytes() == content
    assert not list(home.glob(".restore-*"))
    assert not list(home.glob("replaced-*"))
    assert json_of(command("restore", str(file), "--json", home=home))["runs"] == 1


def test_a_damaged_store_can_be_replaced_by_its_backup(home, filled, tmp_path):
    file = tmp_path / "backup"
    backups.backup(home, file)
    (home / FILE_NAME).write_bytes(b"nothing of use" * 100)
    assert command("runs", home=home).returncode == 1
    kept = backups.restore(home, file).kept
    assert (kept / FILE_NAME).read_bytes().startswith(b"nothing of use")
    assert len(Store(home).jobs()) == 1


def damage(path):
    """Overwrites a page in the middle, which opening the file does not notice."""
    with path.open("rb+") as file:
        file.seek(path.stat().st_size // 8192 * 4096)
        file.write(b"\xff" * 4096)


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda path: path.write_bytes(b""), "not one of Mirrorboard's"),
        (lambda path: path.write_bytes(b"text" * 1000), "damaged or no database"),
        (lambda path: os.truncate(path, path.stat().st_size // 2), "damaged"),
        (damage, "damaged"),
        (lambda path: path.unlink(), "There is no backup"),
        (
            lambda path: change(path, f"PRAGMA user_version = {newest_schema() + 1}"),
            f"has schema {newest_schema() + 1}",
        ),
        (lambda path: change(path, "DROP TABLE samples"), "not one of Mirrorboard's"),
        (
            lambda path: change(path, "CREATE TRIGGER t AFTER INSERT ON jobs BEGIN DELETE FROM logs; END"),
            "not one of Mirrorboard's",
        ),
    ],
)
def test_a_bad_backup_is_refused_and_the_store_stays(home, filled, tmp_path, spoil, words):
    file = tmp_path / "backup"
    backups.backup(home, file)
    spoil(file)
    refused = command("restore", str(file), home=home)
    assert (refused.returncode, re.search(words, refused.stderr) is not None) == (2, True), refused.stderr
    assert len(Store(home).jobs()) == 1
    assert [path.name for path in home.iterdir() if path.is_dir()] == []


def change(path, statement):
    with closing(sqlite3.connect(path)) as connection:
        connection.execute(statement)
        connection.commit()


def test_a_backup_of_an_older_schema_is_made_as_it_is_and_brought_up_to_date_when_restored(home, tmp_path):
    home.mkdir()
    with closing(sqlite3.connect(home / FILE_NAME, isolation_level=None)) as connection:
        migrate(connection, to=1)
        connection.execute(
            "INSERT INTO jobs (id, kind, status, config, created_at)"
            " VALUES ('old', 'train', 'running', '{}', 1)"
        )
    file = tmp_path / "backup"
    assert backups.backup(home, file) == 1
    for path in (home / FILE_NAME, file):
        with closing(sqlite3.connect(path)) as connection:
            assert connection.execute("PRAGMA user_version").fetchone() == (1,)
    assert backups.restore(tmp_path / "new", file).lost == ["old"]
    assert Store(tmp_path / "new").job("old").place == 1


def test_a_backup_goes_nowhere_it_should_not(home, filled, tmp_path):
    with pytest.raises(StoreError, match="no run store"):
        backups.backup(tmp_path / "nowhere", tmp_path / "backup")
    assert not (tmp_path / "nowhere").exists()
    precious = tmp_path / "thesis.txt"
    precious.write_text("precious")
    with pytest.raises(StoreError, match="exists already"):
        backups.backup(home, precious)
    assert precious.read_text() == "precious"
    with pytest.raises(StoreError, match="no folder"):
        backups.backup(home, tmp_path / "missing" / "backup")
    damage(home / FILE_NAME)
    with pytest.raises(StoreError, match="damaged"):
        backups.backup(home, tmp_path / "backup")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["home", "thesis.txt"]


def test_a_full_disk_ends_the_backup_with_a_message_and_leaves_nothing(home, filled, tmp_path):
    # A limit on the size of files fails writes as a full disk does.
    limited = "import resource, runpy, signal, sys; signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
    limited += "resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000));"
    limited += "sys.argv[0] = 'core'; runpy.run_module('core', run_name='__main__')"
    folder = tmp_path / "full"
    folder.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", limited, "backup", str(folder / "backup"), "--home", str(home)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "could not be copied" in done.stderr
    assert "disk has room" in done.stderr
    assert "Traceback" not in done.stderr
    assert list(folder.iterdir()) == []


def test_a_name_that_is_too_long_is_refused_in_words(home, filled, tmp_path):
    name = str(tmp_path / ("x" * 300))
    for arguments, code, said in (
        (("backup", name), 1, "could not be copied"),
        (("restore", name), 2, "There is no backup"),
    ):
        done = command(*arguments, home=home)
        assert (done.returncode, "Traceback" in done.stderr) == (code, False), done.stderr
        assert said in done.stderr
