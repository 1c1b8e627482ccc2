"""Room: what the store takes, what a run needs, a quota that refuses it, and deleting that gives it back."""

from __future__ import annotations

import pytest
from conftest import QUICK, command, json_of

from core import retention
from core.config import RunConfig, parse_config
from core.errors import ConfigError, NoRoom
from core.exports import exported, order
from core.records import Kind, Status
from core.report import add_import
from tests.page_app import texts
from tests.recorded import finished_run, prepared

FEW = "0.0000001"
"""A quota of 100 bytes."""


def test_a_run_needs_about_what_was_estimated(home, store, run_job):
    config = {**QUICK, "training": {"epochs": 3, "batch_size": 64}}
    before = retention.room(home)
    job = run_job(Kind.TRAIN, config)
    assert job.status is Status.COMPLETED, job.error
    after = retention.room(home)
    need = retention.needed_bytes(parse_config(config))
    checkpoints = after.checkpoints_bytes - before.checkpoints_bytes
    # Two of the three generations that there may be for a moment stay.
    assert checkpoints == retention.folder_bytes(store.checkpoints(job.id))
    assert 0.5 * need < checkpoints < need
    assert after.total_bytes == sum(file.stat().st_size for file in home.rglob("*") if file.is_file())


def test_a_quota_refuses_a_run_with_the_figures_and_what_to_do(home, store, run_job, monkeypatch):
    monkeypatch.setenv("MIRRORBOARD_QUOTA_GB", "0.001")
    job = run_job(Kind.TRAIN, QUICK)
    assert job.status is Status.FAILED
    assert job.error["type"] == "NoRoom"
    need = retention.size(retention.needed_bytes(parse_config(QUICK)))
    assert f"This run needs about {need}" in job.error["message"]
    assert "of the quota of 1 MB (MIRRORBOARD_QUOTA_GB) are left" in job.error["message"]
    assert "Delete runs" in job.error["hint"]
    assert not store.checkpoints(job.id).exists()


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 kB"),
        (1_500, "2 kB"),
        (999_400, "999 kB"),
        (999_900_000, "1 GB"),
        (12_345_678, "12.3 MB"),
        (1_234e12, "1,230 TB"),
    ],
)
def test_sizes_are_written_with_the_unit_that_suits_them(count, text):
    assert retention.size(count) == text


def test_a_disk_without_room_refuses_too(home, store):
    big = RunConfig.model_validate({"training": {"epochs": 10_000, "batch_size": 1}})
    monstrous = retention.needed_bytes(big)
    assert monstrous > 10e9
    with pytest.raises(NoRoom, match="on the disk are left"):
        retention.require_room(home, big, has_bytes=monstrous - 2**62)


def test_the_command_line_and_the_page_refuse_before_anything_is_queued(home, store, show, monkeypatch):
    monkeypatch.setenv("MIRRORBOARD_QUOTA_GB", FEW)
    done = command("train", "--dataset", "synthetic", home=home)
    assert done.returncode == 1
    assert "This run needs about" in done.stderr
    assert "of the quota of 0 kB" in done.stderr
    prepared(store)
    app = show("pages/training.py", data__dataset="synthetic")
    app.button(key="start").click().run()
    assert "This run needs about" in texts(app)
    assert store.jobs(kinds=[Kind.TRAIN]) == []


EPOCHS = [{"epoch": number, "loss": 1.0, "val_loss": 1.0} for number in range(1, 5_001)]


def test_an_import_needs_no_more_than_was_estimated(home, store, monkeypatch):
    before = retention.room(home).total_bytes
    monkeypatch.setenv("MIRRORBOARD_QUOTA_GB", str((before + 2_000_000) / 1e9))
    add_import(store, EPOCHS, file="log.csv")
    assert retention.room(home).total_bytes <= before + 2_000_000
    monkeypatch.setenv("MIRRORBOARD_QUOTA_GB", str((before + 1_000_000) / 1e9))
    with pytest.raises(
        NoRoom, match=r"This import needs about 1\.\d* MB for its values, but \d+ kB of the quota"
    ):
        add_import(store, EPOCHS, file="log.csv")
    assert len(store.jobs(kinds=[Kind.IMPORT])) == 1


def test_long_names_of_metrics_count(home, store, monkeypatch):
    monkeypatch.setenv("MIRRORBOARD_QUOTA_GB", "0.05")
    with pytest.raises(NoRoom, match=r"This import needs about 10[12] MB"):
        add_import(store, [{**row, "x" * 10_000: 1.0} for row in EPOCHS], file="log.csv")


def test_the_page_refuses_an_import_that_has_no_room_with_the_figures(home, store, show, monkeypatch):
    monkeypatch.setenv("MIRRORBOARD_QUOTA_GB", FEW)
    app = show("pages/runs.py")
    app.file_uploader(key="import_files").set_value(("log.csv", b"epoch,loss\n0,2\n1,1\n", "text/csv"))
    app.button(key="import_now").click().run()
    assert "This import needs about 0 kB for its values, but 0 kB of the quota of 0 kB" in texts(app)
    assert "Delete runs" in texts(app)
    assert store.jobs(kinds=[Kind.IMPORT]) == []


@pytest.mark.parametrize("text", ["0", "-1", "much", "nan", "inf"])
def test_a_quota_that_is_none_is_refused_by_name(monkeypatch, text):
    monkeypatch.setenv("MIRRORBOARD_QUOTA_GB", text)
    with pytest.raises(ConfigError, match=f"MIRRORBOARD_QUOTA_GB must be .* not '{text}'"):
        retention.quota_bytes()


def test_a_resumed_run_needs_only_what_it_does_not_have(home, monkeypatch):
    home.mkdir()
    config = parse_config(QUICK)
    need = retention.needed_bytes(config)
    monkeypatch.setenv("MIRRORBOARD_QUOTA_GB", str((need - 1_000) / 1e9))
    with pytest.raises(NoRoom):
        retention.require_room(home, config)
    retention.require_room(home, config, has_bytes=2_000)


def test_deleting_a_run_gives_back_all_that_was_made_of_it(home, store, run_job):
    kept, gone = run_job(Kind.TRAIN, QUICK), run_job(Kind.TRAIN, QUICK)
    asked = order(gone, "tensorboard", "last")
    assert run_job(Kind.EXPORT, asked).status is Status.COMPLETED
    assert exported(store.checkpoints(gone.id), asked).exists()
    before = retention.room(home)
    assert json_of(command("delete", gone.id, "--json", home=home)) == {"deleted": [gone.id]}
    assert [folder.name for folder in (home / "checkpoints").iterdir()] == [kept.id]
    assert retention.room(home).checkpoints_bytes < before.checkpoints_bytes * 0.6
    assert store.jobs(kinds=[Kind.EXPORT]) == []
    assert [job.id for job in store.jobs(kinds=[Kind.TRAIN])] == [kept.id]
    refused = command("delete", gone.id, home=home)
    assert (refused.returncode, "There is no run" in refused.stderr) == (1, True)


def test_a_run_that_goes_on_is_not_deleted(home, store):
    queued = store.submit(Kind.TRAIN, QUICK)
    refused = command("delete", queued, home=home)
    assert refused.returncode == 1
    assert f"Run {queued} is queued, so it was not deleted" in refused.stderr
    assert store.job(queued).status is Status.QUEUED


def test_the_runs_page_and_health_tell_what_the_store_takes(home, store, show):
    run = finished_run(store)
    folder = store.checkpoints(run.id)
    folder.mkdir(parents=True)
    (folder / "state").write_bytes(b"x" * 3_400_000)
    app = show("pages/runs.py")
    assert "checkpoints 3.4 MB" in texts(app)
    assert "are left" in texts(app)
    assert app.dataframe[0].value["Checkpoints (MB)"].tolist() == [3.4]
    room = json_of_health(home)["room"]
    assert room["checkpoints_bytes"] == 3_400_000
    assert room["quota_bytes"] is None
    assert 0 < room["left_bytes"] <= room["free_bytes"]


def json_of_health(home):
    done = command("health", "--json", home=home)
    assert done.returncode == 1  # no launcher
    done.returncode = 0
    return json_of(done)


def test_health_tells_of_a_quota_that_is_used_up(home, store, monkeypatch):
    monkeypatch.setenv("MIRRORBOARD_QUOTA_GB", FEW)
    assert any("The quota of 0 kB is used up" in problem for problem in json_of_health(home)["problems"])


def test_the_runs_of_a_study_must_fit_together(home, store, monkeypatch):
    config = RunConfig()
    each = retention.needed_bytes(config)
    quota = retention.room(home).total_bytes + 2.5 * each
    monkeypatch.setenv(retention.VARIABLE, f"{quota / 1e9:.9f}")
    retention.require_room(home, config, config)
    with pytest.raises(NoRoom, match=r"^These 3 runs need about .* for their checkpoints"):
        retention.require_room(home, config, config, config)
