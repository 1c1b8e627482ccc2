"""Every control of every page is on, or refused with a reason, as the role has it."""

from __future__ import annotations

import ast
import inspect
import re

import pytest
import streamlit
from conftest import ROOT

from core import newswire, predictions
from core.access import ANYBODY, Person, Role
from core.config import RunConfig
from core.errors import DownloadFailed, TrainingError
from core.gate import Gate
from core.predictions import question
from core.records import Kind, Scaling, Status
from tests.controls import ACTIONS, FREE, ON_RUNS, OUTSIDE, action
from tests.page_app import sound
from tests.recorded import (
    MACHINE,
    answered,
    claimed,
    evaluated,
    finished_run,
    prepared,
    running_run,
)
from tests.test_one_step import asked as one_step
from tests.test_one_step import recorded_step

SYNTHETIC = {"data": {"dataset": "synthetic"}}
FAILED = TrainingError("It did not work.", "Try again.")
TEXT = "oil prices"
NAMED_BY_CALLERS = {
    "core/dashboard/answers.py button",
    "core/dashboard/chooser.py selectbox",
    "core/dashboard/confusion.py selectbox",
    "core/dashboard/downloads.py files.button",
    "core/dashboard/file_buttons.py download_button",
    *(
        f"core/dashboard/forms.py {element}"
        for element in ("number_input", "text_input", "slider", "toggle", "segmented_control", "multiselect")
    ),
    "core/dashboard/run_table.py multiselect",
    "core/dashboard/run_table.py text_input",
    "core/dashboard/stopping.py text_input",
}
"""Where the source leaves a control's key to who calls; pages show such controls under keys of their own."""
SEEN: dict[str, set[bool]] = {}
"""Keys of all controls that were shown in a test, and whether they were on."""
DONE: list[str] = []
"""Who has seen all pages in one of the states."""


@pytest.fixture
def hosted(show, monkeypatch):
    monkeypatch.setenv("MIRRORBOARD_HOSTED", "1")
    yield show
    streamlit.set_option("client.showErrorDetails", "type")


def failed(store, kind, config):
    store.finish(claimed(store, kind, config).id, Status.FAILED, error=FAILED)


def starts(show, store, mine):
    """The pages as somebody finds them who begins, without Reuters."""
    prepared(store)
    answered(store, Kind.INSPECT, {}, MACHINE)
    reuters = claimed(store, Kind.PREPARE, {"dataset": "reuters"})
    store.finish(reuters.id, Status.FAILED, error=DownloadFailed("No way.", "", ""))
    yield show("streamlit_app.py")
    yield show("pages/devices.py")
    yield show("pages/data.py")
    yield show("pages/training.py", data__dataset="reuters")
    wrong = {"model__from_logits": "true", "training__patience": "2"}
    yield show("pages/training.py", data__dataset="synthetic", **wrong)
    yield show("pages/scaling.py", data__dataset="synthetic", training__batch_size="4")
    yield show("pages/take_home.py")
    yield show("pages/one_step.py", data__dataset="synthetic")
    answered(store, Kind.STEP, one_step(RunConfig.model_validate(SYNTHETIC), 0), recorded_step())
    yield show("pages/one_step.py", data__dataset="synthetic")
    failed(store, Kind.DESCRIBE, described(RunConfig()))
    yield show("pages/model.py")


def described(config):
    """What an engine is asked about the model."""
    plain = config.model_dump(mode="json")
    return {
        "layout": plain["layout"],
        "data": {"max_len": config.data.max_len},
        "model": plain["model"],
        "training": {name: plain["training"][name] for name in ("batch_size", "deterministic")},
    }


def goes_on(show, store, mine):
    """A run that trains, another that waits, and a study."""
    prepared(store)
    run = running_run(mine, epochs=2)
    yield show("pages/training.py", run=run.id)
    waiting = mine.submit(Kind.TRAIN, RunConfig.model_validate(SYNTHETIC).model_dump(mode="json"))
    yield show("pages/training.py", run=waiting)
    yield show("streamlit_app.py")
    study = mine.submit_study(Scaling.STRONG, [RunConfig.model_validate(SYNTHETIC).model_dump(mode="json")])
    yield show("pages/scaling.py", study=study)


def has_ended(show, store, mine):
    """Runs to resume, to extend, to take away, to edit."""
    prepared(store)
    stopped = finished_run(mine, epochs=2, status=Status.STOPPED)
    yield show("pages/training.py", run=stopped.id, layout__logical_devices="4")
    done = finished_run(mine)
    yield show("pages/training.py", run=done.id)
    store.tag([done.id], add=["kept"])
    yield show("pages/runs.py", runs=f'["{done.id}"]')
    yield show("pages/runs.py", runs=f'["{done.id}", "{stopped.id}"]')


def is_judged(show, store, mine):
    """A model that could not be evaluated, then one that was, then newswires it could not read."""
    data = prepared(store)
    run = finished_run(mine)
    asked = predictions.order(run, "best")
    failed(store, Kind.EVALUATE, asked)
    yield show("pages/evaluate.py", run=run.id)
    evaluated(store, run, data)
    app = show("pages/evaluate.py", run=run.id, cell__true="0", cell__answer="0")
    yield app
    toggle = next(one for one in app.toggle if one.key.startswith("words_"))
    row = int(toggle.key.removeprefix("words_"))
    max_len = run.config["data"]["max_len"]
    for text in (data.text(data.rows(predictions.SPLIT)[row]), TEXT):
        failed(store, Kind.CLASSIFY, question(asked, newswire.read(text, data, max_len).ids))
    toggle.set_value(True)
    app.text_area(key="newswire").set_value(TEXT)
    yield sound(app.run())


def controls(node, popovers=()):
    """All controls below a node: key, whether it is on, and what it says of itself.

    What stands in a popover that is off is off.
    """
    if not hasattr(node, "children"):
        is_drawing = getattr(node.proto, "component_name", "") == "mirrorboard_drawing"  # takes no input
        if getattr(node.proto, "id", "") and not is_drawing:
            yield node.key, not getattr(node.proto, "disabled", False), getattr(node.proto, "help", "")
        return
    if node.type == "popover":
        popovers = (*popovers, node.proto.popover)
        yield node.proto.id.rpartition("-")[2], not node.proto.popover.disabled, node.proto.popover.help
    for child in node.children.values():
        for key, is_on, says in controls(child, popovers):
            off = next((one for one in popovers if one.disabled), None)
            yield (key, is_on, says) if off is None else (key, False, off.help)


STATES = (starts, goes_on, has_ended, is_judged)
OTHER = "other@school.edu"
WHO = {
    # Role, and who owns the runs; where nobody signs in all are one person.
    "viewer": (Role.VIEWER, ANYBODY),
    "runner on their own run": (Role.RUNNER, ANYBODY),
    "runner on somebody else's run": (Role.RUNNER, OTHER),
    "owner": (Role.OWNER, OTHER),
}


@pytest.mark.parametrize("states", STATES)
@pytest.mark.parametrize("who", WHO)
def test_each_control_is_on_or_says_why_not(hosted, store, monkeypatch, who, states):
    role, owner = WHO[who]
    monkeypatch.setenv("MIRRORBOARD_ROLE", role)
    for app in states(hosted, store, Gate(store, Person(owner, Role.OWNER), None)):
        for key, is_on, says in controls(app._tree):
            does = action(key)
            refused = does is not None and (
                role is Role.VIEWER or (does in ON_RUNS and not (role is Role.OWNER or owner == ANYBODY))
            )
            if refused:
                assert not is_on, key
                assert f"may not {does}" in says, key
            else:
                assert "may not" not in says, key
            SEEN.setdefault(key, set()).add(is_on)
    DONE.append(who)


def test_every_control_in_the_source_was_tried():
    """One that the tests before have not met could be on for anybody."""
    if len(DONE) < len(STATES) * len(WHO):
        pytest.skip("needs all tests before it")
    for pattern in (*ACTIONS, *FREE):
        assert [key for key in SEEN if re.fullmatch(pattern, key)], pattern
    for pattern in ACTIONS:
        met = set.union(*(on for key, on in SEEN.items() if re.fullmatch(pattern, key)))
        assert met == {True, False}, pattern
    for place, pattern in written():
        if pattern is None:
            assert place.partition(":")[0] in NAMED_BY_CALLERS, place
        elif pattern not in OUTSIDE:
            assert [key for key in SEEN if re.fullmatch(pattern, key)], place


def written():
    """Where the source draws controls, and what their keys are like; None where callers say."""
    for file in (ROOT / "streamlit_app.py", *ROOT.glob("pages/*.py"), *ROOT.glob("core/dashboard/**/*.py")):
        for call in ast.walk(ast.parse(file.read_text("utf-8"))):
            if not isinstance(call, ast.Call):
                continue
            called = ast.unparse(call.func)
            name = called.removeprefix("st.")
            element = {"files.button": streamlit.download_button}.get(called)
            if element is None:
                element = getattr(streamlit, name, None) if called != name else None
            if not callable(element) or element in (streamlit.expander, streamlit.page_link):
                continue  # which unfold or lead somewhere
            given = {word.arg for word in call.keywords}
            takes = set(inspect.signature(element).parameters)
            if not takes & {"disabled", "on_click", "on_change"} and "on_select" not in given:
                continue
            place = f"{file.relative_to(ROOT)} {name}: line {call.lineno}"
            key = next((word.value for word in call.keywords if word.arg == "key"), None)
            assert key is not None, f"{place}: a control without a key"
            if isinstance(key, ast.Constant):
                yield place, re.escape(key.value)
            elif isinstance(key, ast.JoinedStr):
                parts = (
                    re.escape(part.value) if isinstance(part, ast.Constant) else ".*" for part in key.values
                )
                yield place, "".join(parts)
            else:
                yield place, None
