"""The command line, as scripts and CI use it."""

from __future__ import annotations

import json
import os
import pty
import select
import signal
import subprocess
import sys
import termios
import threading
from contextlib import suppress
from pathlib import Path

import pytest
from conftest import ROOT, command, json_of, wait_for

from core.processes import is_alive
from core.records import Kind, Status
from core.report import add_import
from core.store import Store
from tests.recorded import MACHINE, answered, rows_of, running_run

TRAIN = ("train", "--dataset", "synthetic", "--batch-size", "512")


@pytest.mark.parametrize("address", ["", "local", "grpc://127.0.0.1:9"])
def test_a_tpu_that_is_not_there_is_an_invalid_configuration(home, address):
    done = command(*TRAIN, "--strategy", "tpu", "--tpu", address, home=home)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert "TPU" in done.stderr.split("Error: ")[1].splitlines()[0]
    assert "Hint: " in done.stderr


def test_train_prints_one_object_and_runs_and_show_agree(home):
    execution = ("--steps-per-execution", "5", "--intra-op-threads", "2", "--inter-op-threads", "3")
    trained = json_of(command(*TRAIN, *execution, "--epochs", "3", "--json", home=home))
    assert trained["status"] == "completed"
    assert trained["config"]["layout"]["logical_devices"] == 2
    assert trained["engine"] == {
        "steps_per_execution": 5,
        "intra_op_threads": 2,
        "inter_op_threads": 3,
        "cross_device_ops": "reduction_to_one_device",
        "jit_compile": False,
    }
    assert trained["model"]["params"] == 332_856
    assert [layer["params"] for layer in trained["model"]["layers"]] == [
        216_874,
        2_304,
        0,
        6_176,
        0,
        0,
        107_502,
    ]
    assert (trained["steps_per_epoch"], trained["validation_steps"]) == (18, 5)
    assert [epoch["epoch"] for epoch in trained["history"]] == [1, 2, 3]
    assert set(trained["history"][0]) == {
        "epoch",
        "duration_s",
        "loss",
        "sparse_categorical_accuracy",
        "sparse_top_k_categorical_accuracy",
        "val_loss",
        "val_expected_calibration_error",
        "val_sparse_categorical_accuracy",
        "val_sparse_top_k_categorical_accuracy",
    }
    losses = [epoch["val_loss"] for epoch in trained["history"]]
    assert trained["diagnosis"]["best_epoch"] == losses.index(min(losses)) + 1
    assert trained["duration_s"] > 0

    shown = json_of(command("--json", "show", trained["run_id"], home=home))
    assert shown == trained
    (listed,) = json_of(command("runs", "--json", home=home))
    assert (listed["run_id"], listed["status"], listed["epochs_done"], listed["pid"]) == (
        trained["run_id"],
        "completed",
        3,
        None,
    )
    assert f"Run {trained['run_id']} completed" in command("show", trained["run_id"], home=home).stdout


def test_home_stands_before_or_after_the_subcommand(home):
    assert json_of(command("--home", str(home), "runs", "--json")) == []
    assert json_of(command("runs", "--home", str(home), "--json")) == []
    assert json_of(command("runs", "--json", MIRRORBOARD_HOME=str(home))) == []
    assert "No runs yet" in command("runs", home=home).stdout


def test_devices_lists_the_processor_and_says_why_there_is_no_gpu(home):
    found = json_of(command("devices", "--json", home=home))
    cpu = found["devices"][0]
    assert (cpu["type"], cpu["index"], cpu["compute_capability"]) == ("CPU", 0, None)
    assert cpu["name"]
    assert cpu["memory_bytes"] > 2**28
    has_gpu = any(device["type"] == "GPU" for device in found["devices"])
    assert bool(found["gpu_reason"]) != has_gpu


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--epochs", "0"), "Epochs must be at least 1, not 0."),
        (("--logical-devices", "9"), "Logical devices must be at most 8, not 9."),
        (("--learning-rate", "-1"), "Learning rate must be above 0, not -1."),
        (("--learning-rate", "nan"), "Learning rate must be a finite number, not NaN."),
        (("--learning-rate", "fast"), "--learning-rate must be a number, not 'fast'."),
        (("--patience", "0"), "Patience (epochs) must be at least 1, not 0."),
        (("--strategy", "tpus"), "--strategy must be one of single, mirrored, tpu, not 'tpus'."),
        (("--batch-size", "many"), "--batch-size must be a whole number, not 'many'."),
        (("--epoch", "3"), "Did you mean '--epochs'?"),
        (("--steps-per-execution", "65"), "Steps per execution must be at most 64, not 65."),
        (("--steps-per-execution", "x"), "--steps-per-execution must be a whole number, not 'x'."),
        (("--intra-op-threads", "1.5"), "--intra-op-threads must be a whole number, not '1.5'."),
        (("--jit-compile",), "XLA cannot compile the step of 2 replicas"),
    ],
)
def test_an_invalid_configuration_ends_with_2_and_no_traceback(home, arguments, words):
    done = command("train", *arguments, "--json", home=home)
    assert done.returncode == 2
    assert done.stdout == ""
    assert words in done.stderr
    assert "Traceback" not in done.stderr


def test_a_batch_that_replicas_cannot_share_is_adjusted_and_said(home):
    done = command(
        *TRAIN[:3], "--batch-size", "511", "--epochs", "1", "--logical-devices", "3", "--json", home=home
    )
    assert "from 511 to 513: 3 replicas share it evenly" in done.stderr
    assert json_of(done)["steps_per_epoch"] == 18


def test_an_unknown_run_a_bad_home_and_a_failed_run_end_with_1(home, tmp_path):
    done = command("show", "nonsense", "--json", home=home)
    assert (done.returncode, done.stdout) == (1, "")
    assert "no run 'nonsense'" in done.stderr
    (tmp_path / "file").touch()
    done = command("runs", home=tmp_path / "file" / "home")
    assert done.returncode == 1
    assert "cannot be written" in done.stderr
    assert "Traceback" not in done.stderr
    done = command("stop", "nonsense", home=home)
    assert done.returncode == 1


@pytest.mark.parametrize(
    "arguments",
    [
        *(
            ("show",),
            ("stop",),
            ("pause",),
            ("delete",),
            ("resume",),
            ("extend", "--epochs", "1"),
            ("evaluate",),
        ),
        *(("export", "--format", kind) for kind in ("csv", "py", "keras", "tensorboard")),
    ],
)
def test_a_job_that_is_no_run_is_refused(home, store, arguments):
    job = answered(store, Kind.INSPECT, {}, MACHINE)
    done = command(arguments[0], job.id, *arguments[1:], home=home)
    assert done.returncode == 1
    assert f"'{job.id}' is no run but a job of kind inspect" in done.stderr
    assert store.jobs() == [job]


def test_show_leaves_open_what_is_not_known_of_a_run(home, store):
    imported = add_import(store, [{"epoch": 1, "loss": 1.5, "val_loss": None}], file="history.csv")
    shown = command("show", imported, home=home)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert shown.stdout.startswith(f"Run {imported} completed\nepoch   1  –  loss 1.5000  val_loss –\n")
    died = running_run(store, epochs=1)
    store.report(died, metrics=[row for row in rows_of(1) if row.per == "epoch"][:1])
    shown = command("show", died.id, home=home)
    assert "epoch   1  4.0 s  loss 2.0270" in shown.stdout
    assert "epoch   2  –  loss 1.5206" in shown.stdout


def test_reuters_without_files_or_network_fails_with_advice(home, tmp_path):
    offline = {"http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9", "no_proxy": ""}
    done = command(
        "train", "--epochs", "1", "--json", home=home, KERAS_HOME=str(tmp_path / "keras"), **offline
    )
    assert done.returncode == 1
    assert "synthetic dataset" in done.stderr
    assert '"status": "failed"' in done.stdout
    assert "Traceback" not in done.stderr


def test_stop_from_another_process_and_ctrl_c_keep_what_was_recorded(home):
    long = [sys.executable, "-m", "core", *TRAIN, "--epochs", "500", "--home", str(home)]
    store = Store(home)

    def running() -> str | None:
        jobs = store.jobs(kinds=[Kind.TRAIN], statuses=[Status.RUNNING])
        return jobs[0].id if jobs and store.epochs_done(jobs[0]) else None

    first = subprocess.Popen(long, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    run_id = wait_for(running, 90, "an epoch")
    (listed,) = json_of(command("runs", "--json", home=home))
    assert listed["status"] == "running"
    assert listed["pid"] == store.job(run_id).pid
    stopped = json_of(command("stop", run_id, "--json", home=home))
    assert stopped == {"run_id": run_id, "status": "stopped"}
    out, err = first.communicate(timeout=20)
    assert first.returncode == 0
    assert f"Run {run_id} stopped" in out
    assert "building the graph" in err

    second = subprocess.Popen(long, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    run_id = wait_for(running, 90, "an epoch")
    second.send_signal(signal.SIGINT)
    out, err = second.communicate(timeout=20)
    assert second.returncode == 0
    assert "Traceback" not in err
    assert store.job(run_id).status is Status.STOPPED
    assert store.epochs_done(store.job(run_id)) >= 1
    store.close()


def test_ctrl_c_while_the_command_itself_is_starting(home):
    """Python imports libraries for a second or two before a line of ours could catch anything."""
    process = subprocess.Popen(
        [sys.executable, "-m", "core", *TRAIN, "--home", str(home)],
        cwd=ROOT,
        stderr=subprocess.PIPE,
        text=True,
    )
    maps = Path(f"/proc/{process.pid}/maps")
    wait_for(lambda: "_pydantic_core" in maps.read_text(), 30, "the imports to be under way")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert "Traceback" not in err
    assert (process.returncode, "Interrupted before anything was begun." in err) in (
        (130, True),
        (0, False),  # the imports were over; the run was stopped
    )


def test_ctrl_c_while_tensorflow_starts_says_what_became_of_the_run(home):
    process = subprocess.Popen(
        [sys.executable, "-m", "core", *TRAIN, "--home", str(home)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    # A connection must not be what creates the file.
    wait_for((home / "mirrorboard.sqlite3").exists, 30, "a store")
    store = Store(home)
    wait_for(lambda: store.jobs(kinds=[Kind.TRAIN]), 30, "the run to be queued")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    (run,) = store.jobs(kinds=[Kind.TRAIN])
    assert (process.returncode, run.status) == (0, Status.STOPPED)
    assert f"Stopping run {run.id}." in err
    assert f"Run {run.id} stopped" in out
    assert f"python -m core show {run.id}" in out
    assert "Traceback" not in err
    store.close()


@pytest.mark.parametrize("asked_before", [False, True])
def test_a_terminal_shows_the_time_left_from_the_first_epoch_on_and_a_second_ctrl_c_leaves_the_run(
    home, asked_before
):
    """Whether or not another process has asked for the stop already."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(ours, (24, 120))
    process = subprocess.Popen(
        [sys.executable, "-m", "core", *TRAIN[:3], "--epochs", "500", "--home", str(home)],
        cwd=ROOT,
        stderr=theirs,
    )
    os.close(theirs)
    said = bytearray()

    def reads(wanted: bytes) -> bool:
        if select.select([ours], [], [], 0)[0]:
            with suppress(OSError):  # the other side is closed
                said.extend(os.read(ours, 65_536))
        return wanted in said

    try:
        wait_for(lambda: reads(b" left"), 90, "the time left")
        assert b"at least " in said
        assert b"epoch 1/500" in said
        assert b"epoch 2/500" not in said
        store = Store(home)
        (run,) = store.jobs(kinds=[Kind.TRAIN])
        os.kill(run.pid, signal.SIGSTOP)  # it cannot stop before the second Ctrl-C
        if asked_before:
            store.request_stop(run.id)
        process.send_signal(signal.SIGINT)
        wait_for(lambda: reads(f"Stopping run {run.id}.".encode()), 20, "the answer to Ctrl-C")
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=20) == 130
        wait_for(lambda: reads(f"python -m core show {run.id}".encode()), 20, "the way to see the run")
        assert b"Traceback" not in said
        os.kill(run.pid, signal.SIGCONT)
        wait_for(lambda: store.job(run.id).status is Status.STOPPED, 20, "the run to stop")
        store.close()
    finally:
        process.kill()
        process.wait()
        os.close(ours)
        # An engine outlives the command that started it.
        for engine in Store(home).engines():
            if is_alive(engine.pid, engine.pid_started_at, engine.boot_id):
                os.kill(engine.pid, signal.SIGKILL)


def test_two_trains_in_one_second_run_one_after_the_other(home):
    results = []

    def train() -> None:
        results.append(command(*TRAIN, "--epochs", "1", home=home))

    threads = [threading.Thread(target=train) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [done.returncode for done in results] == [0, 0], [done.stderr for done in results]
    assert sum("waiting behind run" in done.stderr for done in results) == 1
    store = Store(home)
    later, earlier = store.jobs(kinds=[Kind.TRAIN])
    assert later.started_at >= earlier.finished_at
    store.close()


def test_an_engine_killed_under_the_command_line_is_reported(home):
    store = Store(home)
    process = subprocess.Popen(
        [sys.executable, "-m", "core", *TRAIN, "--epochs", "500", "--home", str(home)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_for(lambda: any(store.epochs_done(job) for job in store.jobs()), 90, "an epoch")
    os.kill(store.jobs(kinds=[Kind.TRAIN])[0].pid, signal.SIGKILL)
    _, err = process.communicate(timeout=20)
    assert process.returncode == 1
    assert "killed: signal 9, often out of memory" in err
    store.close()


def test_runs_and_stop_notice_an_engine_that_nobody_looks_after(home):
    store = Store(home)
    process = subprocess.Popen(
        [sys.executable, "-m", "core", *TRAIN, "--epochs", "500", "--home", str(home)],
        cwd=ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    wait_for(lambda: any(store.epochs_done(job) for job in store.jobs()), 90, "an epoch")
    run = store.jobs(kinds=[Kind.TRAIN])[0]
    process.kill()
    process.wait()
    os.kill(run.pid, signal.SIGKILL)
    stopped = json_of(command("stop", run.id, "--json", home=home))
    assert stopped["status"] == "lost"
    (listed,) = json_of(command("runs", "--json", home=home))
    assert (listed["status"], listed["pid"]) == ("lost", None)
    store.close()


@pytest.mark.parametrize(
    "arguments", [("extend", "--epochs", "1"), ("export", "--format", "keras"), ("evaluate",)]
)
def test_a_run_whose_engine_is_gone_is_not_waited_for(home, store, arguments):
    run = running_run(store, epochs=1)
    with store.write() as connection:
        connection.execute("UPDATE jobs SET heartbeat_at = 0")
    done = command(arguments[0], run.id, *arguments[1:], home=home)
    assert done.returncode == 1
    assert "running" not in done.stderr
    assert store.job(run.id).status is Status.LOST


def test_pause_resume_and_extend(home):
    store = Store(home)
    process = subprocess.Popen(
        [sys.executable, "-m", "core", *TRAIN, "--epochs", "40", "--home", str(home)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    wait_for(lambda: any(job.checkpoint_epochs for job in store.jobs()), 120, "a checkpoint")
    run_id = store.jobs(kinds=[Kind.TRAIN])[0].id
    assert json_of(command("pause", run_id, "--json", home=home)) == {"run_id": run_id, "status": "paused"}
    out, _ = process.communicate(timeout=20)
    assert (process.returncode, f"Run {run_id} paused" in out) == (0, True)
    refused = command("extend", run_id, "--epochs", "1", home=home)
    assert refused.returncode == 1
    assert "is paused: it cannot be extended" in refused.stderr
    assert "Hint: Resume it." in refused.stderr
    uneven = command("resume", run_id, "--logical-devices", "3", home=home)
    assert uneven.returncode == 2
    assert "3 replicas cannot share the run's global batch of 512 evenly" in uneven.stderr

    # As if only one more epoch had been asked for: the test need not wait for all.
    done = store.job(run_id).checkpoint_epochs
    config = store.job(run_id).config
    config["training"]["epochs"] = done + 1
    with store.write() as connection:
        connection.execute("UPDATE jobs SET config = ? WHERE id = ?", (json.dumps(config), run_id))
    resumed = json_of(command("resume", run_id, "--strategy", "single", "--json", home=home))
    assert (resumed["run_id"], resumed["status"]) == (run_id, "completed")
    assert resumed["config"]["layout"]["strategy"] == "single"
    assert [epoch["epoch"] for epoch in resumed["history"]] == list(range(1, done + 2))
    refused = command("resume", run_id, "--json", home=home)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "Extend it by some epochs." in refused.stderr
    extended = json_of(command("extend", run_id, "--epochs", "1", "--json", home=home))
    assert len(extended["history"]) == done + 2
    store.close()


@pytest.mark.parametrize("arguments", [("pause",), ("resume",), ("extend", "--epochs", "1")])
def test_what_cannot_go_on_is_said(home, arguments):
    done = command(*arguments, "nonsense", "--json", home=home)
    assert (done.returncode, done.stdout) == (1, "")
    assert "no run 'nonsense'" in done.stderr
    store = Store(home)
    run_id = store.submit(Kind.TRAIN, {})
    done = command(*arguments, run_id, home=home)
    assert done.returncode == 1
    assert f"Run {run_id} is queued" in done.stderr
    store.close()
