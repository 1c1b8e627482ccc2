"""What SECURITY.md says of the code: nothing is unpickled or evaluated, text is text, paths stay inside."""

from __future__ import annotations

import ast
import contextlib
import os
import pickle
import re
import shutil
import subprocess
import sys
import zipfile
from urllib.parse import urlencode

import numpy as np
import pytest
from conftest import QUICK, ROOT
from playwright.sync_api import expect

from core.config import parse_config
from core.errors import ConfigError, EngineError
from core.records import Kind, LogLine, Status
from core.report import add_import
from core.store import Store
from tests.browser_app import CHROMIUM, chromium, dashboard, heading, tab
from tests.page_app import texts
from tests.recorded import MACHINE, answered, claim, finished_run, prepared

SOURCES = [ROOT / "streamlit_app.py", *(ROOT / "core").rglob("*.py"), *(ROOT / "pages").rglob("*.py")]
MODULES = {"pickle", "marshal", "shelve", "dill", "joblib", "cloudpickle", "yaml", "tarfile"}
CALLS = re.compile(
    r"(eval|exec|compile|__import__|os\.system|os\.popen"
    r"|(.*\.)?(load_model|load_weights|read_pickle|from_config|model_from_json|extract|extractall))"
)
OPTIONS = {"unsafe_allow_html", "allow_pickle", "shell"}
CONSTANT_HTML = re.compile(r"st\.html\(_?[A-Z_]+\)")


def dangers(source):
    """What a source file does that reads code from data, or gives text to a shell or to a page as HTML."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names if alias.name.split(".")[0] in MODULES]
        elif isinstance(node, ast.ImportFrom) and str(node.module).split(".")[0] in MODULES:
            found.append(node.module)
        elif isinstance(node, ast.Call):
            text, called = ast.unparse(node), ast.unparse(node.func)
            options = {option.arg: ast.unparse(option.value) for option in node.keywords}
            unsafe = any(options.get(name, "False") != "False" for name in OPTIONS)
            # Spelled out, it cannot change with a default.
            unpickles = called in ("np.load", "numpy.load") and options.get("allow_pickle") != "False"
            html = called.endswith(".html") and not CONSTANT_HTML.fullmatch(text)
            if CALLS.fullmatch(called) or unsafe or unpickles or html:
                found.append(text)
    return found


def test_no_source_unpickles_evaluates_loads_a_model_or_makes_html_of_text():
    assert len(SOURCES) > 40
    assert {path.name: found for path in SOURCES if (found := dangers(path.read_text("utf-8")))} == {}


@pytest.mark.parametrize(
    "harm",
    [
        "import pickle",
        "from joblib import load",
        "eval(text)",
        "np.load(file)",
        "numpy.load(file, allow_pickle=True)",
        "keras.models.load_model(path)",
        "st.markdown(text, unsafe_allow_html=True)",
        "st.html(text)",
        "st.html(f'<b>{name}</b>')",
        "subprocess.run(text, shell=True)",
        "os.system(text)",
        "archive.extractall(folder)",
    ],
)
def test_the_search_for_dangers_finds_them(harm):
    assert dangers(harm)
    harmless = "st.html(_STYLE)\nmodel.compile()\njson.load(file)\nnp.load(file, allow_pickle=False)"
    assert dangers(harmless) == []


class Gadget:
    """Unpickling it makes a file."""

    def __init__(self, proof):
        self.proof = proof

    def __reduce__(self):
        return os.mkdir, (str(self.proof),)


def test_a_tampered_reuters_runs_nothing(tmp_path, home):
    proof = tmp_path / "proof"
    cache = tmp_path / "keras" / "datasets"
    cache.mkdir(parents=True)
    with zipfile.ZipFile(cache / "reuters.npz", "w") as archive:
        for name in ("x", "y"):
            with archive.open(f"{name}.npy", "w") as file:
                np.lib.format.write_array_header_2_0(
                    file, {"descr": "|O", "fortran_order": False, "shape": (1,)}
                )
                file.write(pickle.dumps(Gadget(proof)))
    # The gadget is one: numpy, when told to, would run it.
    with np.load(cache / "reuters.npz", allow_pickle=True) as loaded, contextlib.suppress(AttributeError):
        loaded["x"]
    assert proof.exists()
    proof.rmdir()

    script = (
        "import sys, pathlib; from core.engine.datasets import prepare; home = pathlib.Path(sys.argv[1]);"
    )
    script += "prepare('reuters', home, print)"
    nowhere = "http://127.0.0.1:9"
    done = subprocess.run(
        [sys.executable, "-c", script, str(home)],
        cwd=ROOT,
        env={
            **os.environ,
            "KERAS_HOME": str(tmp_path / "keras"),
            "HTTPS_PROXY": nowhere,
            "https_proxy": nowhere,
        },
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert "DatasetDamaged" in done.stderr
    assert not proof.exists()


@pytest.mark.parametrize("name", ["../../evil", "/etc/passwd", "reuters/../../evil", ""])
def test_a_dataset_is_one_of_two_names_and_never_a_path(name):
    with pytest.raises(ConfigError, match="Dataset must be one of"):
        parse_config({"data": {"dataset": name}})


def test_an_engine_trusts_no_settings_that_it_finds_in_the_store(home, store, run_job):
    before = set(home.parent.rglob("*"))
    job = run_job(Kind.PREPARE, {"dataset": "../../evil"})
    assert job.status is Status.FAILED
    assert "../../evil" in job.error["message"]
    job = run_job(Kind.TRAIN, {**QUICK, "data": {"dataset": "../../evil"}})
    assert job.status is Status.FAILED
    assert "../../evil" in job.error["message"]
    made = {path for path in home.parent.rglob("*") if path not in before}
    assert all(path.is_relative_to(home) for path in made)
    assert not [path for path in made if "evil" in path.name]


@pytest.mark.parametrize(
    ("script", "query"),
    [
        ("pages/training.py", {"run": "../../../etc/passwd"}),
        ("pages/training.py", {"run": "' OR 1=1 --"}),
        ("pages/runs.py", {"runs": '["../../etc/passwd"]', "run": "%00"}),
        ("pages/data.py", {"data__dataset": "../../../etc/passwd"}),
        ("pages/devices.py", {"layout__tpu": "file:///etc/passwd", "layout__strategy": "tpu"}),
        ("pages/model.py", {"model__optimizer": "__import__('os').system('true')"}),
    ],
)
def test_no_part_of_an_address_becomes_a_path_or_a_query(show, home, store, script, query):
    prepared(store)
    finished_run(store)
    before = set(home.parent.rglob("*"))
    app = show(script, **query)
    assert "root:" not in texts(app)
    new = {path.name for path in set(home.parent.rglob("*")) - before}
    assert new <= {"mirrorboard.sqlite3-wal", "mirrorboard.sqlite3-shm"}


HARM = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
LINK = "[click](javascript:document.title='owned')"
ELSEWHERE = (
    "[Sign in again](https://evil.example) ![x](https://evil.example/p.png) www.evil.example me@evil.example"
)


@pytest.mark.skipif(not shutil.which(CHROMIUM), reason=f"needs {CHROMIUM}")
def test_names_tags_errors_and_log_lines_are_shown_as_text(tmp_path):
    home = tmp_path / "home"
    store = Store(home)
    prepared(store)
    done = finished_run(store)
    store.rename(done.id, HARM)
    store.tag([done.id], add=[LINK, HARM])
    brought = add_import(
        store, [{"epoch": 1, "loss": 1.0, "val_loss": 1.0}], file=f"../../{HARM}", name=HARM + LINK
    )
    failed = store.job(store.submit(Kind.TRAIN, QUICK))
    claim(store, [Kind.TRAIN], "e")
    store.report(failed, phase=HARM, logs=[LogLine(1.0, "info", "stderr", HARM + LINK)])
    store.finish(failed.id, Status.FAILED, error=EngineError(HARM, LINK), details=HARM)
    first, second = finished_run(store), finished_run(store, epochs=9, status=Status.STOPPED)
    for run in (first, second):
        store.rename(run.id, f"{ELSEWHERE} {run.id}")
    answered(store, Kind.INSPECT, {}, MACHINE)
    store.close()
    tpu = urlencode({"layout.strategy": "tpu", "layout.tpu": ELSEWHERE, "data.dataset": "synthetic"})
    with dashboard(home, MIRRORBOARD_WATCH="1") as address, chromium() as browser, tab(browser) as page:
        for path, title in (
            (f"training?run={done.id}", "Training"),
            (f"training?run={failed.id}", "Training"),
            (f"training?run={brought}", "Training"),
            (f'runs?runs=["{done.id}","{failed.id}","{brought}"]', "Runs"),
        ):
            page.goto(f"{address}/{path}")
            heading(page, title)
            expect(page.get_by_text("onerror").first).to_be_attached()
            for harm in ('img[src="x"]', 'a[href^="javascript"]'):
                expect(page.locator(harm)).to_have_count(0)
            assert "owned" not in page.title()
        for path, title in (
            (f'runs?runs=["{first.id}","{second.id}"]', "Runs"),
            (f'runs?runs=["{brought}","{first.id}"]&compare.along=step', "Runs"),
            (f"training?{tpu}", "Training"),
            (f"training?run={second.id}&{tpu}", "Training"),
            (f"devices?{tpu}", "Devices"),
            (f"one_step?{tpu}", "Inside one step"),
        ):
            page.goto(f"{address}/{path}")
            heading(page, title)
            expect(page.get_by_text("[Sign in again]").first).to_be_attached()
            links = ", ".join(f'a[href^="{begin}"]' for begin in ("https:", "http://www.", "mailto:"))
            for harm in ('img[src*="evil.example"]', links):
                expect(page.locator(harm)).to_have_count(0)
