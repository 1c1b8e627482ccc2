"""Whatever comes in, from anywhere: a clear message, no traceback, and the page stays up."""

from __future__ import annotations

import json
import sqlite3
import string
from contextlib import closing

import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st
from streamlit.testing.v1 import AppTest

from core.__main__ import main
from core.analysis.imported import read_history
from core.config import parse_config
from core.dashboard.navigation import CODE, EVALUATE, ONE_STEP, RUNS, SCALING, STEPS
from core.database import FILE_NAME
from core.errors import ConfigError
from core.report import add_import
from core.store import Store
from tests.conftest import ROOT
from tests.page_app import texts
from tests.recorded import finished_run, prepared

quick = settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
few = settings(quick, max_examples=8, phases=[Phase.explicit, Phase.generate])

words = st.text(max_size=40)
numbers = st.one_of(
    st.integers(-(10**30), 10**30).map(str),
    st.floats().map(str),
    st.sampled_from(["", "1e3", "٣", "0x10", "1_0"]),
)
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=12,
)
SECTIONS = {
    "layout": ["strategy", "device_type", "logical_devices", "visible_devices", "memory_limit_mb", "tpu"],
    "data": ["dataset", "max_len"],
    "model": ["embedding_size", "filters", "kernels", "pools", "dropout", "optimizer", "from_logits"],
    "training": ["epochs", "batch_size", "learning_rate", "seed", "patience", "monitor", "deterministic"],
    "execution": ["steps_per_execution", "intra_op_threads", "inter_op_threads", "jit_compile"],
}
configs = st.fixed_dictionaries(
    {},
    optional={
        section: st.dictionaries(st.sampled_from(names), anything, max_size=4) | anything
        for section, names in SECTIONS.items()
    },
)


@quick
@given(configs | anything)
@example({"layout": {"visible_devices": [0] * 10_000}})
@example({"training": {"seed": 10**400}})
def test_a_configuration_is_read_or_refused(value):
    try:
        config = parse_config(value)
    except ConfigError as error:
        assert error.message
        assert error.hint
    else:
        assert parse_config(json.loads(json.dumps(config.model_dump(mode="json")))) == config


def run(home, *arguments):
    """The command line in this process: its exit code, and no exception that it does not know."""
    done = CliRunner().invoke(main, ["--home", str(home), *arguments])
    assert done.exception is None or isinstance(done.exception, SystemExit), (arguments, done.exception)
    assert done.exit_code in (0, 1, 2)
    assert "Traceback" not in done.output
    return done


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    """A store with a run, which no command changes that ends in an error."""
    home = tmp_path_factory.mktemp("fuzz") / "home"
    store = Store(home)
    finished_run(store)
    store.close()
    return home


@quick
@given(st.sampled_from(["show", "stop", "delete", "pause", "resume", "export", "evaluate"]), words)
@example("stop", "\udc80")
@example("delete", "\udc80")
@example("pause", "\x00")
def test_an_id_that_is_none(filled, name, run_id):
    options = ["--format", "json"] if name == "export" else []
    done = run(filled, name, *options, "--", run_id)
    assert done.exit_code in (1, 2)


@quick
@given(
    st.sampled_from(
        ["--epochs", "--batch-size", "--learning-rate", "--seed", "--patience", "--logical-devices"]
    ),
    numbers | words,
)
def test_a_number_that_is_none(filled, option, value):
    # With this quota no run starts, however good the number is.
    done = CliRunner().invoke(
        main,
        ["--home", str(filled), "train", "--dataset", "synthetic", f"{option}={value}"],
        env={"MIRRORBOARD_QUOTA_GB": "1e-9"},
    )
    assert isinstance(done.exception, SystemExit), done.exception
    assert done.exit_code in (1, 2)
    assert ("This run needs about" in done.output) == (done.exit_code == 1), done.output


names = st.text(
    st.characters(blacklist_categories=["Cs"], blacklist_characters="/\0"), min_size=1, max_size=300
)


@quick
@given(st.sampled_from(["backup", "restore", "diagnose"]), names)
def test_a_path_that_is_none(filled, name, path):
    home = filled.parent / "elsewhere" if name == "restore" else filled
    done = run(home, name, "--", f"{filled.parent}/missing/{path}")
    assert done.exit_code in (1, 2)


CSV = b"epoch,accuracy,loss,val_accuracy,val_loss\n0,0.5,2.0,0.5,1.9\n1,0.6,1.5,0.5,1.8\n2,0.7,1.2,0.5,1.9\n"
JSON = json.dumps({"loss": [2.0, 1.5, 1.2], "val_loss": [1.9, 1.8, 1.9]}).encode()
EVENTS = min(
    (ROOT / "tests" / "fixtures" / "tensorboard").rglob("*v2"), key=lambda file: file.stat().st_size
).read_bytes()


@st.composite
def uploads(draw):
    """Random bytes, or a valid file with some of its bytes changed, left out or put in."""
    content = bytearray(draw(st.sampled_from([b"", CSV, JSON, EVENTS])))
    if not content:
        return draw(st.binary(max_size=200))
    for _ in range(draw(st.integers(0, 6))):
        at = draw(st.integers(0, max(len(content) - 1, 0)))
        match draw(st.integers(0, 2)):
            case 0:
                content[at : at + 1] = draw(st.binary(min_size=1, max_size=3))
            case 1:
                del content[at : at + draw(st.integers(1, 30))]
            case 2:
                content[at:at] = draw(
                    st.sampled_from([b"nan", b"1e999", b",,", b"\n", b'"', b"\xff", b"{", b"[]"])
                )
    return bytes(content)


@settings(quick, max_examples=200)
@given(uploads(), st.text(string.printable, min_size=1, max_size=20), st.integers(2, 10**6) | st.none())
@example(b'{"loss": [1' + b"0" * 5_000 + b"]}", "log.json", None)
@example(b"[" * 100_000, "log.json", None)
@example(b"epoch,loss\n1" + b"0" * 400 + b",1\n", "log.csv", None)
def test_an_uploaded_file_is_imported_or_refused(tmp_path_factory, content, name, classes):
    try:
        epochs = read_history({name: content}, max_values=10_000)
        home = tmp_path_factory.mktemp("upload")
        store = Store(home)
        run_id = add_import(store, epochs, file=name, name=name, num_classes=classes)
    except ConfigError as error:
        assert error.message
        return
    assert store.job(run_id).title
    store.close()
    assert run(home, "show", run_id, "--json").exit_code == 0


PAGES = ["streamlit_app.py", *(step.script for step in (*STEPS, ONE_STEP, EVALUATE, RUNS, SCALING, CODE))]
COLUMNS = ("config", "result", "error", "progress", "tags", "checkpoint", "status", "kind")


@few
@given(
    st.sampled_from(COLUMNS),
    st.sampled_from(["", "{", "[]", "null", "7", '"text"', '{"steps": "x"}', '{"layout": 3}', "\x00", "nan"])
    | st.text(max_size=20),
    st.sampled_from(PAGES),
)
@example("config", "{", "pages/runs.py")
@example("progress", "[]", "pages/training.py")
@example("tags", "7", "pages/runs.py")
@example("status", "unheard of", "streamlit_app.py")
def test_a_damaged_row_is_told_and_the_page_stays_up(tmp_path_factory, monkeypatch, column, text, script):
    home = tmp_path_factory.mktemp("rows") / "home"
    store = Store(home)
    prepared(store)
    job = finished_run(store)
    store.close()
    with closing(sqlite3.connect(home / FILE_NAME)) as connection:
        connection.execute(f"UPDATE jobs SET {column} = ? WHERE id = ?", (text, job.id))
        connection.commit()
    monkeypatch.setenv("MIRRORBOARD_HOME", str(home))
    monkeypatch.setenv("MIRRORBOARD_WATCH", "1")
    opened(script, job.id)
    for name in ("runs", "show", "health"):
        run(home, name, *([job.id] if name == "show" else []))


def opened(script, run_id):
    app = AppTest.from_file(str(ROOT / "streamlit_app.py"), default_timeout=20)
    app.query_params["run"] = run_id
    if script != "streamlit_app.py":
        app.switch_page(script)
    app.run()
    assert not app.exception, app.exception
    assert app.title
    return app


@pytest.mark.parametrize(("column", "text"), [("config", "{"), ("status", "unheard of"), ("progress", "[]")])
def test_a_damaged_row_is_named_with_the_way_out(home, store, show, column, text):
    whole, job = finished_run(store), finished_run(store)
    with store.write() as connection:
        connection.execute(f"UPDATE jobs SET {column} = ? WHERE id = ?", (text, job.id))
    app = show("pages/runs.py")
    assert f"row of job '{job.id}' is damaged" in texts(app)
    assert f"python -m core delete {job.id}" in texts(app)
    refused = run(home, "runs")
    assert (refused.exit_code, "is damaged" in refused.output) == (1, True)
    assert run(home, "delete", job.id).exit_code == 0
    assert [kept.id for kept in store.jobs()] == [whole.id]
