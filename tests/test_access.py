"""Who may do what: the policy, the gate that every change passes, and the limits of a hosted server."""

from __future__ import annotations

import ast
import inspect
import sqlite3

import pytest
import streamlit
from conftest import QUICK, ended
from pydantic import ValidationError
from streamlit import config

from core import schema
from core.access import ANYBODY, AccessSettings, Action, Limits, Person, Role, Roles, parse_access, person_id
from core.config import DeviceLayout, ModelConfig, RunConfig, parse_config
from core.dashboard import access
from core.errors import ConfigError, DatasetError, LimitExceeded, NotAllowed
from core.gate import Gate, over
from core.records import Kind, LogLine, Scaling, Status
from core.store import Store
from tests.page_app import texts, unescaped
from tests.recorded import DESCRIPTION, MACHINE, answered, claim, finished_run, prepared, running_run

ME, OTHER = "me@school.edu", "other@school.edu"
RUN = RunConfig.model_validate({"data": {"dataset": "synthetic"}}).model_dump(mode="json")

CHANGES = {
    # What each action does to a store, given a run.
    "submit": (Action.START, lambda gate, _: gate.submit(Kind.TRAIN, RUN)),
    "submit (work)": (Action.WORK, lambda gate, _: gate.submit(Kind.CHECK, {})),
    "submit_study": (Action.START, lambda gate, _: gate.submit_study(Scaling.STRONG, [RUN, RUN])),
    "add_import": (Action.IMPORT, lambda gate, _: gate.add_import("log", {"file": "log.csv"}, [], None)),
    "rename": (Action.RENAME, lambda gate, run: gate.rename(run, "other")),
    "tag": (Action.TAG, lambda gate, run: gate.tag([run], add=["new"])),
    "delete": (Action.DELETE, lambda gate, run: gate.delete([run])),
    "request_stop": (Action.STOP, lambda gate, run: gate.request_stop(run)),
    "request_pause": (Action.PAUSE, lambda gate, run: gate.request_pause(run)),
    "resume": (Action.RESUME, lambda gate, run: gate.resume(run, DeviceLayout())),
    "extend": (Action.EXTEND, lambda gate, run: gate.extend(run, 2)),
}
ON_A_RUN = ("rename", "tag", "delete", "request_stop", "request_pause", "resume", "extend")


def contents(store):
    """All that stands in the store."""
    with store.read() as connection:
        return list(connection.iterdump())


def run_for(store, change, owner):
    """A run of somebody's, in the state that the change is for."""
    whose = Gate(store, Person(owner, Role.OWNER), None)
    if change in ("request_stop", "request_pause"):
        return running_run(whose, epochs=1)
    status = Status.STOPPED if change in ("resume", "extend") else Status.COMPLETED
    return finished_run(whose, epochs=2, status=status)


@pytest.mark.parametrize("role", Role)
@pytest.mark.parametrize(
    ("change", "owner"),
    [(change, owner) for change in CHANGES for owner in ((ME, OTHER, "") if change in ON_A_RUN else (ME,))],
)
def test_each_role_changes_what_it_may_and_nothing_else(store, change, role, owner):
    action, do = CHANGES[change]
    run = run_for(store, change, owner)
    gate = Gate(store, Person(ME, role), None)
    before = contents(store)
    allowed = role is Role.OWNER or (role is Role.RUNNER and owner == ME)
    if allowed:
        do(gate, run.id)
        assert contents(store) != before
    else:
        with pytest.raises(NotAllowed, match=str(action)) as refused:
            do(gate, run.id)
        assert refused.value.hint
        assert contents(store) == before
    assert (Person(ME, role).refusal(action, [run]) is None) == allowed


def test_every_change_of_the_store_passes_the_gate_or_is_an_engines():
    """A method that a later version adds belongs in one of the two."""
    engines = {
        "claim",
        "rewind",
        "finish",
        "report",
        "add_engine",
        "engine_ready",
        "engine_idle",
        "remove_engine",
        "retire_engine",
    }
    classes = [one for one in Store.__mro__ if one.__module__.startswith("core.")]
    writes = {
        method.name
        for one in classes
        for method in ast.walk(ast.parse(inspect.getsource(one)))
        if isinstance(method, ast.FunctionDef)
        and not method.name.startswith("_")
        and "self.write()" in ast.unparse(method)
    }
    assert {"submit", "delete", "extend"} < writes
    assert writes - engines == {name.split(" ")[0] for name in CHANGES}
    assert writes - engines <= set(vars(Gate))


def test_a_run_that_is_gone_keeps_nobody_from_changing_the_others(store):
    """Two people look at the same table, and one of them deletes."""
    gate = Gate(store, Person(ME, Role.RUNNER), None)
    mine, gone = finished_run(gate, epochs=1), finished_run(gate, epochs=1)
    store.delete([gone.id])
    gate.tag([gone.id, mine.id], add=["kept"])
    assert store.job(mine.id).tags == ["kept"]
    assert gate.delete([gone.id, mine.id]) == [mine.id]


def test_what_is_queued_belongs_to_who_asked_and_goes_on_in_their_name(store):
    gate = Gate(store, Person(ME, Role.RUNNER), Limits(minutes=2))
    job = store.job(gate.submit(Kind.TRAIN, RUN))
    assert (job.owner, job.limit_s) == (ME, 120)
    (study, *_) = store.study(gate.submit_study(Scaling.WEAK, [RUN]))
    assert (study.owner, study.limit_s) == (ME, 120)
    assert store.job(gate.add_import("log", {"file": "f"}, [], None)).owner == ME
    assert store.job(store.submit(Kind.TRAIN, RUN)).owner == ""
    run = run_for(store, "extend", ME)
    gate.extend(run.id, 1)
    assert (store.job(run.id).owner, store.job(run.id).limit_s) == (ME, 120)


def test_an_owner_who_goes_on_with_somebodys_run_does_not_take_it(store):
    run = run_for(store, "resume", OTHER)
    Gate(store, Person(ME, Role.OWNER), None).resume(run.id)
    assert store.job(run.id).owner == OTHER


@pytest.mark.parametrize(
    ("who", "role"),
    [
        ("teacher@school.edu", Role.OWNER),
        ("student@school.edu", Role.RUNNER),
        ("student@evil.school.edu", None),
        ("student@notschool.edu", None),
        ("guest@elsewhere.org", Role.VIEWER),
        ("sub:12aB", Role.RUNNER),
        ("sub:12Ab", None),
        ("sub:x@school.edu", None),
        ("somebody@elsewhere.org", None),
    ],
)
def test_roles_are_given_by_address_by_domain_and_by_the_providers_id(who, role):
    roles = Roles(
        owner=("Teacher@School.edu",), runner=("*@school.edu", "sub:12aB"), viewer=("guest@elsewhere.org",)
    )
    assert roles.of(who) is role
    assert Roles(runner=("*@school.edu",)).of("somebody@elsewhere.org") is Role.VIEWER


@pytest.mark.parametrize(
    ("claims", "known_as"),
    [
        ({"sub": "1", "email": "Me@School.edu", "email_verified": True}, "me@school.edu"),
        ({"sub": "1", "email": "me@school.edu", "email_verified": False}, "sub:1"),
        ({"sub": "aB", "email": "me@school.edu"}, "sub:aB"),
        ({"sub": "1", "email": "", "email_verified": True}, "sub:1"),
        ({"sub": "1", "email": ["me@school.edu"], "email_verified": True}, "sub:1"),
    ],
)
def test_an_address_counts_only_where_the_provider_vouches_for_it(claims, known_as):
    assert person_id(claims) == known_as


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"rolls": {}}, "There is no setting 'rolls'. Did you mean roles?"),
        ({"roles": {"admin": ["x"]}}, "There is no setting 'admin' in roles."),
        ({"roles": {"owner": "me@school.edu"}}, "Owner must be a list"),
        ({"limits": {"epochs": 0}}, "Epochs must be at least 1, not 0. Choose a value from 1 to 10,000."),
        ({"limits": {"minutes": "many"}}, "Minutes must be a number, not 'many'."),
        ({"role_without_sign_in": "admin"}, "must be one of viewer, runner, owner, not 'admin'"),
        ({"hosted": "perhaps"}, "Hosted must be true or false, not 'perhaps'."),
    ],
)
def test_settings_that_cannot_be_are_refused_by_name(values, message):
    with pytest.raises(ConfigError) as refused:
        parse_access(values)
    assert message in str(refused.value)


def test_limits_are_the_documented_ones():
    assert Limits().model_dump() == {"epochs": 50, "parameters": 10_000_000, "minutes": 30, "runs": 3}
    with pytest.raises(ValidationError):
        Limits(epochs=10**9)


LARGE = {**RUN, "model": {**RUN["model"], "embedding_size": 512}}


@pytest.mark.parametrize(
    ("kind", "config", "message"),
    [
        (Kind.TRAIN, {**RUN, "training": {"epochs": 51}}, "51 epochs are more than the 50"),
        (Kind.TRAIN, LARGE, r"The model has 1\d,\d{3},\d{3} parameters; this server allows 10,000,000"),
        (Kind.DESCRIBE, LARGE, "parameters; this server allows"),
        (Kind.STEP, {"run": LARGE, "batch": 0}, "parameters; this server allows"),
    ],
)
def test_a_hosted_server_queues_nothing_beyond_its_limits(store, kind, config, message):
    before = contents(store)
    with pytest.raises(LimitExceeded, match=message):
        Gate(store, Person(ME, Role.OWNER), Limits()).submit(kind, config)
    assert contents(store) == before
    assert Gate(store, Person(ME, Role.OWNER), None).submit(kind, config)


def test_each_person_has_so_many_runs_and_other_jobs_at_a_time(store):
    mine = Gate(store, Person(ME, Role.RUNNER), Limits(runs=2))
    first, _ = mine.submit(Kind.TRAIN, RUN), mine.submit(Kind.TRAIN, RUN)
    before = contents(store)
    for more in (
        lambda: mine.submit(Kind.TRAIN, RUN),
        lambda: mine.submit_study(Scaling.STRONG, [RUN]),
    ):
        with pytest.raises(LimitExceeded, match="You have 2 runs queued or going on, and 1 more is wanted"):
            more()
    assert contents(store) == before
    assert Gate(store, Person(OTHER, Role.RUNNER), Limits(runs=2)).submit(Kind.TRAIN, RUN)
    for _ in range(2):
        mine.submit(Kind.CHECK, {})
    with pytest.raises(LimitExceeded, match="You have 2 other jobs"):
        mine.submit(Kind.CHECK, {})
    mine.request_stop(first)
    assert mine.submit(Kind.TRAIN, RUN)
    with pytest.raises(LimitExceeded, match="3 more are wanted"):
        Gate(store, Person("new", Role.RUNNER), Limits(runs=2)).submit_study(Scaling.STRONG, [RUN] * 3)


@pytest.mark.parametrize(
    ("owner", "who"), [(OTHER, OTHER), ("", "The command line"), (ANYBODY, "Visitors"), (ME, "You")]
)
def test_runs_that_an_owner_resumes_count_for_those_whose_they_are(store, owner, who):
    runs = [run_for(store, "resume", owner) for _ in range(3)]
    boss = Gate(store, Person(ME, Role.OWNER), Limits(runs=2))
    for run in runs[:2]:
        boss.resume(run.id)
    verb = "has" if owner in (OTHER, "") else "have"
    with pytest.raises(LimitExceeded, match=f"^{who} {verb} 2 runs queued or going on, and 1 more is wanted"):
        boss.resume(runs[2].id)
    if owner != ME:
        assert boss.submit(Kind.TRAIN, RUN)


def test_a_run_cannot_be_carried_beyond_the_limits_in_portions(store):
    run = run_for(store, "extend", ME)
    gate = Gate(store, Person(ME, Role.RUNNER), Limits(epochs=5))
    before = contents(store)
    with pytest.raises(LimitExceeded, match="6 epochs are more than the 5"):
        gate.extend(run.id, 4)
    with pytest.raises(LimitExceeded, match="10 epochs are more than the 5"):
        gate.resume(run.id)
    with store.write() as connection:
        connection.execute("UPDATE jobs SET trained_s = 1800")
    for go_on in (lambda: gate.extend(run.id, 1), lambda: gate.resume(run.id)):
        with pytest.raises(LimitExceeded, match="has trained for 30 min; this server allows 30 min"):
            go_on()
    assert store.job(run.id).status is Status.STOPPED
    assert len(contents(store)) == len(before)


def test_a_model_that_is_too_large_is_not_gone_on_with(store):
    """It may be from the command line, which has no limits, or from before they were set."""
    run = run_for(store, "extend", ME)
    gate = Gate(store, Person(ME, Role.OWNER), Limits(parameters=1_000))
    for go_on in (lambda: gate.extend(run.id, 1), lambda: gate.resume(run.id)):
        with pytest.raises(LimitExceeded, match="332,856 parameters; this server allows 1,000"):
            go_on()
    assert store.job(run.id).status is Status.STOPPED


def test_limits_name_the_setting_that_the_form_marks():
    assert over(Limits(), parse_config(RUN)) is None
    assert over(Limits(epochs=9), parse_config(RUN)).field == "training.epochs"
    assert over(Limits(parameters=1), parse_config(RUN)).field == "model.filters"


def test_a_run_that_has_used_up_its_time_is_stopped_keeps_its_checkpoints_and_says_why(
    store, run_job, launcher
):
    config = parse_config({**QUICK, "layout": {}}).model_dump(mode="json")
    run = run_job(Kind.TRAIN, config)
    assert run.checkpoint_epochs == 1
    gate = Gate(store, Person("", Role.OWNER), Limits(epochs=500, minutes=(run.duration_s + 1) / 60))
    gate.extend(run.id, 499)
    launcher.wake()
    run = ended(store, run.id)
    assert run.status is Status.STOPPED
    assert run.error["message"].startswith("Stopped after ")
    assert run.error["message"].endswith(" min, the longest that this server allows.")
    assert run.checkpoint_epochs >= 1
    assert list(store.checkpoints(run.id).rglob("*"))
    with pytest.raises(LimitExceeded, match="has trained for"):
        gate.resume(run.id)


def test_runs_of_an_older_schema_belong_to_nobody_and_have_no_limit(home):
    home.mkdir()
    before = next(n for n, script in enumerate(schema._MIGRATIONS) if "ADD COLUMN owner" in script)
    connection = sqlite3.connect(home / "mirrorboard.sqlite3", isolation_level=None)
    schema.migrate(connection, to=before)
    connection.execute(
        "INSERT INTO jobs (id, kind, status, config, created_at) VALUES ('old', 'train', 'lost', '{}', 1)"
    )
    connection.close()
    store = Store(home)
    assert (store.job("old").owner, store.job("old").limit_s) == ("", None)
    refusal = Person(ME, Role.RUNNER).refusal(Action.DELETE, [store.job("old")])
    assert "was not started by anybody who signed in" in str(refusal)
    store.close()


@pytest.fixture
def hosted(home, store, show, monkeypatch):
    """Opens a page of a hosted dashboard that nobody signs in to."""
    monkeypatch.setenv("MIRRORBOARD_HOSTED", "1")
    prepared(store)
    answered(store, Kind.INSPECT, {}, MACHINE)
    yield show
    streamlit.set_option("client.showErrorDetails", "type")


def button(app, key):
    return next(one for one in [*app.button, *app.get("download_button")] if f"-{key}" in one.proto.id)


def test_a_hosted_dashboard_without_sign_in_is_read_only_and_says_how_to_change_that(hosted, store):
    run = running_run(store, epochs=2)
    before = contents(store)
    for script, keys in (
        ("streamlit_app.py", ["lesson"]),
        ("pages/devices.py", ["inspect", "check"]),
        ("pages/training.py", ["start", "pause", "stop"]),
        ("pages/one_step.py", ["take_step"]),
        ("pages/scaling.py", ["start_study"]),
    ):
        app = hosted(script, data__dataset="synthetic", run=run.id)
        assert "Read-only." in texts(app)
        assert "MIRRORBOARD_ROLE=owner" in texts(app)
        for key in keys:
            control = button(app, key)
            assert (control.proto.disabled, control.proto.help[:15]) == (True, "Viewers may not"), key
    # What the lesson cannot do without is prepared all the same, by nobody.
    new = [line for line in contents(store) if line not in before]
    assert all("'prepare'" in line for line in new if line.startswith('INSERT INTO "jobs"'))


def test_a_role_for_all_who_come_is_given_by_the_environment(hosted, store, monkeypatch):
    run = running_run(store, epochs=2)
    monkeypatch.setenv("MIRRORBOARD_ROLE", "owner")
    app = hosted("pages/training.py", data__dataset="synthetic", run=run.id)
    assert "Read-only." not in texts(app)
    button(app, "stop").click().run()
    assert store.job(run.id).status is Status.STOPPING
    monkeypatch.setenv("MIRRORBOARD_ROLE", "admin")
    app = hosted("pages/training.py")
    assert "must be one of viewer, runner, owner, not 'admin'" in texts(app)
    assert not app.button


def test_runners_without_sign_in_have_only_what_they_have_started_there(hosted, store, monkeypatch):
    monkeypatch.setenv("MIRRORBOARD_ROLE", "runner")
    elsewhere = running_run(store, epochs=2)  # such as on the command line
    app = hosted("pages/training.py", data__dataset="synthetic", run=elsewhere.id)
    told = f"Run {elsewhere.id} was started on the command line, or before this dashboard was shared"
    for key in ("stop", "pause"):
        assert button(app, key).proto.disabled
        assert told in unescaped(button(app, key).proto.help)
    assert "Signed in as" not in texts(app)
    button(app, "start").click().run()
    mine = store.jobs(kinds=[Kind.TRAIN])[0]
    assert mine.owner == ANYBODY
    button(hosted("pages/training.py", run=mine.id), "stop").click().run()
    assert store.job(mine.id).status is Status.STOPPED
    runs = hosted("pages/runs.py").dataframe[0].value.set_index("Run")
    assert runs["Started by"].fillna("").to_dict() == {mine.id: ANYBODY, elsewhere.id: ""}


def test_what_nobody_has_asked_for_counts_for_nobody(hosted, store, monkeypatch):
    """The command line's runs fill nobody's queue."""
    monkeypatch.setenv("MIRRORBOARD_ROLE", "runner")
    for _ in range(3):
        store.submit(Kind.TRAIN, RUN)
    app = hosted("pages/training.py", data__dataset="synthetic")
    button(app, "start").click().run()
    assert store.jobs(kinds=[Kind.TRAIN])[0].owner == ANYBODY
    theirs = Gate(store, Person(ANYBODY, Role.RUNNER), Limits(runs=1))
    with pytest.raises(LimitExceeded, match="You have 1 run queued"):
        theirs.submit(Kind.TRAIN, RUN)


def test_too_much_is_refused_at_its_field_before_it_is_asked_for(hosted, store, monkeypatch):
    monkeypatch.setenv("MIRRORBOARD_ROLE", "owner")
    app = hosted("pages/training.py", data__dataset="synthetic", training__epochs="51")
    assert "51 epochs are more than the 50 that this server allows." in texts(app)
    assert button(app, "start").proto.disabled
    app = hosted("pages/model.py", data__dataset="synthetic", model__embedding_size="512")
    assert "this server allows 10,000,000" in texts(app)
    assert store.jobs(kinds=[Kind.DESCRIBE, Kind.TRAIN]) == []


def test_a_limit_below_the_usual_epochs_holds_for_trainings_only(hosted, store, monkeypatch):
    settings = AccessSettings(hosted=True, role_without_sign_in="owner", limits=Limits(epochs=5))
    monkeypatch.setattr(access, "settings", lambda: settings)
    failed = store.submit(Kind.PREPARE, {"dataset": "reuters"})  # so that synthetic newswires take its place
    store.finish(failed, Status.FAILED, error=DatasetError("Offline.", "Try again."))
    app = hosted("pages/training.py", data__dataset="synthetic")
    assert "10 epochs are more than the 5 that this server allows." in texts(app)
    app = hosted("pages/model.py", data__dataset="synthetic")
    assert "Keras is building the model." in texts(app)
    app = hosted("pages/one_step.py", data__dataset="synthetic")
    button(app, "take_step").click().run()
    assert "A fresh engine process is at it" in texts(app)
    app = hosted("streamlit_app.py")
    assert "for 5 epochs." in texts(app)
    button(app, "lesson").click().run()
    (lesson,) = store.jobs(kinds=[Kind.TRAIN])
    assert lesson.config["training"]["epochs"] == 5


def test_a_run_that_the_limits_hold_back_is_offered_no_more_than_they_leave(hosted, store, monkeypatch):
    monkeypatch.setenv("MIRRORBOARD_ROLE", "owner")
    run = finished_run(store, epochs=6, status=Status.STOPPED)
    longer = finished_run(store, epochs=9, status=Status.STOPPED)
    app = hosted("pages/training.py", run=run.id)
    assert not button(app, "resume").proto.disabled
    field = app.number_input(key="extend_epochs")
    assert (field.min, field.max, field.value) == (1, 44, 5)
    field.set_value(44).run()
    app.selectbox(key="chooser").set_value(longer.id).run()
    assert app.number_input(key="extend_epochs").value == 41
    settings = AccessSettings(hosted=True, role_without_sign_in="owner", limits=Limits(epochs=6))
    with monkeypatch.context() as strict:
        strict.setattr(access, "settings", lambda: settings)
        app = hosted("pages/training.py", run=run.id)
        assert "10 epochs are more than the 6" in button(app, "resume").proto.help
        assert "7 epochs are more than the 6" in popover(app, "extend").help
    tired = finished_run(store, epochs=6, status=Status.STOPPED)
    with store.write() as connection:
        connection.execute("UPDATE jobs SET trained_s = 1800 WHERE id = ?", (tired.id,))
    app = hosted("pages/training.py", run=tired.id, layout__strategy="single")
    told = "has trained for 30 min; this server allows 30 min"
    for control in (
        button(app, "resume").proto,
        button(app, "resume_elsewhere").proto,
        popover(app, "extend"),
    ):
        assert control.disabled
        assert told in control.help


def popover(app, key):
    blocks = [app.main]
    while blocks:
        block = blocks.pop()
        if block.type == "popover" and block.proto.id.endswith(f"-{key}"):
            return block.proto.popover
        blocks += [child for child in block.children.values() if hasattr(child, "children")]
    return None


def test_a_queue_that_is_full_is_told_and_the_page_goes_on(hosted, store, monkeypatch):
    monkeypatch.setenv("MIRRORBOARD_ROLE", "owner")
    anybody = Gate(store, Person(ANYBODY, Role.OWNER), None)
    for _ in range(3):
        anybody.submit(Kind.TRAIN, RUN)
    app = hosted("pages/training.py", data__dataset="synthetic")
    button(app, "start").click().run()
    assert "You have 3 runs queued or going on, and 1 more is wanted" in texts(app)
    assert len(store.jobs(kinds=[Kind.TRAIN])) == 3
    assert app.selectbox(key="chooser")
    for _ in range(3):
        anybody.submit(Kind.CHECK, {})
    told = "You have 3 other jobs queued or going on, and 1 more is wanted"
    app = hosted("pages/model.py", model__embedding_size="9")
    assert told in texts(app)
    assert "Correct the marked setting" not in texts(app)
    app = hosted("pages/devices.py")
    button(app, "inspect").click().run()
    assert told in texts(app)
    assert "What it amounts to" in [one.value for one in app.subheader]


def test_viewers_see_the_chapters_model_whatever_they_set(hosted, store):
    hosted("pages/model.py", model__embedding_size="9")
    (job,) = store.jobs(kinds=[Kind.DESCRIBE])
    assert (job.owner, job.config["model"]) == ("", ModelConfig().model_dump(mode="json"))
    claim(store, [Kind.DESCRIBE], "e")
    store.finish(job.id, Status.COMPLETED, result=DESCRIPTION)
    for size in ("9", "10"):
        app = hosted("pages/model.py", model__embedding_size=size)
        assert "Viewers may not set an engine to work." in texts(app)
        assert "332,856" in str([metric.value for metric in app.metric])
    assert len(store.jobs(kinds=[Kind.DESCRIBE])) == 1


def test_details_of_errors_and_folders_of_the_server_stay_off_hosted_pages(
    show, hosted, home, store, monkeypatch
):
    run = finished_run(store, status=Status.FAILED)
    store.report(run, logs=[LogLine(0.0, "warning", "mirrorboard", f"The disk of {home}/x is full.")])
    app = hosted("pages/training.py", run=run.id)
    assert "Out of memory." in texts(app)
    assert "The disk of the store/x is full." in texts(app)
    assert not [code for code in app.code if "Traceback" in code.value]
    assert streamlit.get_option("client.showErrorDetails") == "none"
    gone = hosted("pages/training.py", run="gone")
    assert "There is no run 'gone' in the store" in texts(gone)
    assert str(home) not in texts(gone)
    reuters = claim(store, [Kind.PREPARE], "engine")
    store.finish(reuters.id, Status.FAILED, error=DatasetError(f"{home} is full.", f"Empty {home}."))
    start = texts(hosted("streamlit_app.py"))
    assert "the store is full" in start
    assert str(home) not in start
    # On a laptop both are there.
    monkeypatch.delenv("MIRRORBOARD_HOSTED")
    assert [code for code in show("pages/training.py", run=run.id).code if "Traceback" in code.value]
    assert str(home) in texts(show("pages/training.py", run="gone"))


def test_a_laptop_is_not_asked_who_it_is_and_may_do_everything(show, store):
    prepared(store)
    run = running_run(store, epochs=2)
    app = show("pages/training.py", data__dataset="synthetic", training__epochs="10000", run=run.id)
    assert not button(app, "start").proto.disabled
    button(app, "stop").click().run()
    assert store.job(run.id).status is Status.STOPPING
    assert "Started by" not in show("pages/runs.py").dataframe[0].value.columns


def test_who_started_a_run_stands_in_the_table_where_people_sign_in(show, store):
    run_for(store, "rename", ME)
    finished_run(store)
    frame = show("pages/runs.py").dataframe[0].value
    assert frame["Started by"].fillna("").tolist() == ["", ME]


@pytest.fixture
def option():
    """Sets an option as the command line does, and puts it back."""
    before = {}

    def change(name, value):
        before.setdefault(name, streamlit.get_option(name))
        config.set_option(name, value)

    yield change
    for name, value in before.items():
        config.set_option(name, value)


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("127.0.0.1", False),
        ("127.0.0.53", False),
        ("::1", False),
        ("localhost", False),
        ("unix:///run/mirrorboard.sock", False),
        ("0.0.0.0", True),
        ("::", True),
        ("192.168.1.7", True),
        ("mirrorboard.example.org", True),
        ("", True),
        (None, True),
    ],
)
def test_an_address_that_others_reach_is_public(option, address, public):
    option("server.address", address)
    assert access.is_public() == public


@pytest.mark.parametrize("protection", ["server.enableXsrfProtection", "server.enableCORS"])
def test_a_hosted_dashboard_does_not_open_without_its_protections(hosted, option, protection):
    option(protection, False)
    app = hosted("pages/runs.py")
    assert f"{protection} is turned off" in texts(app)
    assert not app.button


def test_a_secrets_file_that_cannot_be_read_lets_nobody_in(show, option, tmp_path):
    broken = tmp_path / "secrets.toml"
    broken.write_text("[auth")
    option("secrets.files", [str(broken)])
    streamlit.secrets._reset()
    app = show("pages/runs.py")
    assert "cannot be read" in texts(app)
    assert not app.button
    streamlit.secrets._reset()
