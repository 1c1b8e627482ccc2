"""The code to take home: it runs without us, gives the run's own history, and shows what a strategy adds."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from typing import Any

import nbformat
import pytest
from conftest import command, ended, json_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from nbclient import NotebookClient
from playwright.sync_api import expect

from core.config import DeviceLayout, RunConfig, parse_config
from core.engine import datasets
from core.errors import ConfigError, DatasetError, RunStateError
from core.exports import code_file, configuration
from core.records import Kind, Status
from core.report import add_import, history
from core.take_home import comparison, device_lines, layout_code, script, strategy_lines
from tests.browser_app import CHROMIUM, DESKTOP, PHONE, chromium, dashboard, heading, tab
from tests.page_app import drawings, sound, texts
from tests.recorded import finished_run, prepared

OURS = {"epoch", "duration_s", "val_expected_calibration_error"}
"""What a history has that Keras does not record."""

RUNS: dict[str, tuple[dict[str, Any], float]] = {
    # Both add up in the same order on one device.
    "single": (
        {
            "layout": {"strategy": "single", "logical_devices": 1},
            "data": {"dataset": "reuters", "max_len": 30},
            "model": {"dropout": 0.2, "optimizer": "adam"},
            "training": {"epochs": 2, "batch_size": 1_024},
        },
        1e-5,
    ),
    # Double precision; what is left is that a history is recorded in single precision (6e-8 of 4).
    "mirrored, deterministic": (
        {
            "data": {"dataset": "synthetic", "max_len": 30},
            "training": {"epochs": 2, "batch_size": 1_024, "deterministic": True},
            "execution": {"steps_per_execution": 8},
        },
        1e-6,
    ),
    # Three replicas cannot share the last batches (774 and 194 rows) evenly. Single precision, in which SGD
    # ends two epochs up to 4e-4 apart when replicas add up in another order.
    "mirrored, uneven batches, stopped early": (
        {
            "layout": {"logical_devices": 3, "cross_device_ops": "reduction_to_one_device"},
            "data": {"dataset": "synthetic", "max_len": 30},
            "model": {"optimizer": "sgd", "from_logits": True, "filters": [16, 8]},
            "training": {
                "epochs": 4,
                "batch_size": 1_026,
                "learning_rate": 0.1,
                "patience": 1,
                "monitor": "val_sparse_categorical_accuracy",
            },
            "execution": {"intra_op_threads": 1, "steps_per_execution": 4},
        },
        5e-4,
    ),
}


@pytest.mark.parametrize("name", RUNS)
def test_script_and_notebook_give_the_run_s_history(home, store, launcher, tmp_path, name):
    values, tolerance = RUNS[name]
    if values["data"]["dataset"] == "reuters":
        try:
            datasets.prepare("reuters", home, lambda *_: None)
        except DatasetError as error:
            pytest.skip(f"the real Reuters files are needed: {error.message}")
    run = ended(store, store.submit(Kind.TRAIN, values))
    assert run.status is Status.COMPLETED, run.error
    recorded = history(store, run)
    stopped_early = "patience" in values["training"]
    assert (len(recorded) < values["training"]["epochs"]) == stopped_early
    for kind in ("py", "ipynb"):
        json_of(command("export", run.id, "--format", kind, "--output", str(tmp_path), "--json", home=home))

    written = subprocess.Popen(
        [sys.executable, f"{run.id}.py"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    elsewhere = tmp_path / "notebook"
    elsewhere.mkdir()
    book = nbformat.read(tmp_path / f"{run.id}.ipynb", as_version=4)
    NotebookClient(book, timeout=200, resources={"metadata": {"path": str(elsewhere)}}).execute()
    said, _ = written.communicate(timeout=200)
    assert written.returncode == 0, said

    for folder in (tmp_path, elsewhere):
        mine = json.loads((folder / "history.json").read_text())
        assert mine.keys() == recorded[0].keys() - OURS
        for metric, epochs in mine.items():
            assert epochs == pytest.approx([row[metric] for row in recorded], abs=tolerance), metric
    best = min(range(len(recorded)), key=lambda epoch: recorded[epoch]["val_loss"]) + 1
    assert f"Epoch {best} of {len(recorded)} was best" in said
    assert f"Epoch {best} of {len(recorded)} was best" in json.dumps(book)


# What the script says


SETTINGS: list[tuple[dict[str, Any], str]] = [
    ({}, 'tf.config.set_visible_devices([], "GPU")'),
    ({}, "    cpu, [tf.config.LogicalDeviceConfiguration()] * 2\n"),
    ({}, "\nstrategy = tf.distribute.MirroredStrategy()\n"),
    ({"layout": {"visible_devices": [1]}}, 'cpu = tf.config.list_physical_devices("CPU")[1]\n'),
    (
        {"layout": {"cross_device_ops": "hierarchical_copy"}},
        (
            "\nreduction = tf.distribute.HierarchicalCopyAllReduce()\n"
            "strategy = tf.distribute.MirroredStrategy(cross_device_ops=reduction)\n"
        ),
    ),
    (
        {"layout": {"device_type": "GPU", "logical_devices": 1, "visible_devices": [0, 2]}},
        'visible = [gpus[i] for i in (0, 2)]\ntf.config.set_visible_devices(visible, "GPU")\n',
    ),
    (
        {"layout": {"device_type": "GPU", "logical_devices": 1, "memory_growth": True}},
        "tf.config.experimental.set_memory_growth(gpu, True)",
    ),
    (
        {"layout": {"device_type": "GPU", "memory_limit_mb": 2048}},
        "    gpu, [tf.config.LogicalDeviceConfiguration(memory_limit=2048)] * 2\n",
    ),
    # Keras would compile with XLA on a single GPU; the engine does only when it is asked to.
    ({"layout": {"device_type": "GPU", "logical_devices": 1}}, "jit_compile=False"),
    (
        {"layout": {"strategy": "single", "logical_devices": 1}, "execution": {"jit_compile": True}},
        "jit_compile=True",
    ),
    ({"layout": {"strategy": "tpu", "tpu": 'a "TPU" \\ Ω'}}, '(tpu="a \\"TPU\\" \\\\ Ω")'),
    ({"layout": {"logical_devices": 3}, "training": {"batch_size": 32}}, "\nBATCH_SIZE = 33 "),
    ({"training": {"epochs": 7}}, "\nEPOCHS = 7\n"),
    ({"training": {"seed": 5}}, "\nSEED = 5\n"),
    ({"training": {"patience": 4}}, "patience=4"),
    ({"training": {"patience": 4, "restore_best": False}}, "restore_best_weights=False"),
    ({"training": {"patience": 4, "monitor": "val_sparse_categorical_accuracy"}}, 'mode="max"'),
    ({"training": {"deterministic": True}}, 'keras.config.set_dtype_policy("float64")'),
    ({"training": {"deterministic": True}}, "tf.config.experimental.enable_op_determinism()"),
    ({"training": {"learning_rate": 0.005}}, "optimizer=Nadam(learning_rate=0.005)"),
    ({"model": {"optimizer": "sgd"}}, "optimizer=keras.optimizers.SGD(learning_rate=0.01)"),
    ({"model": {"from_logits": True}}, "from_logits=True"),
    ({"model": {"dropout": 0.3}}, "keras.layers.Dropout(0.3)"),
    ({"model": {"embedding_size": 9}}, "keras.layers.Embedding(30982, 9)"),
    ({"model": {"filters": [10, 11], "kernels": [2, 4]}}, 'Conv1D(11, 4, activation="relu")'),
    ({"model": {"pool": 3}}, "keras.layers.MaxPooling1D(3)"),
    ({"data": {"max_len": 77}}, "\nMAX_LEN = 77 "),
    ({"execution": {"intra_op_threads": 3}}, "set_intra_op_parallelism_threads(3)"),
    ({"execution": {"inter_op_threads": 0}}, "set_inter_op_parallelism_threads(0)"),
    # It cannot be carried over, and that is said.
    ({"execution": {"steps_per_execution": 4}}, "# The run took 4 steps per execution."),
]


@pytest.mark.parametrize(("values", "line"), SETTINGS, ids=[line.strip() for _, line in SETTINGS])
def test_every_setting_is_carried_over(values, line):
    assert line in script(parse_config(values))


def test_a_run_that_may_have_been_extended_after_its_early_stop_is_not_promised_whole():
    for patience, said in ((4, True), (None, False)):
        config = parse_config({"training": {"patience": patience}})
        assert ("its history goes on where this one ends" in script(config, "12345678")) is said
    assert "goes on" not in script(parse_config({"training": {"patience": 4}}))


@st.composite
def configurations(draw: st.DrawFn) -> RunConfig:
    """Any configuration that can be."""
    kind = draw(st.sampled_from(["CPU", "GPU"]))
    layout = {
        "strategy": draw(st.sampled_from(["single", "mirrored", "tpu"])),
        "device_type": kind,
        "visible_devices": draw(st.lists(st.integers(0, 12), min_size=1, max_size=8, unique=True)),
        "logical_devices": draw(st.integers(1, 8)),
        "memory_limit_mb": draw(st.none() | st.integers(64, 1_048_576)) if kind == "GPU" else None,
        "memory_growth": draw(st.booleans()) and kind == "GPU",
        "cross_device_ops": draw(
            st.sampled_from(["auto", "nccl", "hierarchical_copy", "reduction_to_one_device"])
        ),
        "tpu": draw(st.sampled_from(["local", "grpc://10.0.0.2:8470"])),
    }
    values = {
        "layout": layout,
        "data": {
            "dataset": draw(st.sampled_from(["reuters", "synthetic"])),
            "max_len": draw(st.integers(20, 5_000)),
        },
        "model": {
            "dropout": draw(st.sampled_from([0.0, 0.1, 1e-7, 0.9])),
            "optimizer": draw(st.sampled_from(["nadam", "adam", "sgd"])),
            "from_logits": draw(st.booleans()),
        },
        "training": {
            "batch_size": draw(st.integers(1, 65_536)),
            "learning_rate": draw(st.none() | st.floats(1e-300, 100, exclude_min=True)),
            "seed": draw(st.integers(0, 2**31 - 1)),
            "patience": draw(st.none() | st.integers(1, 10_000)),
            "restore_best": draw(st.booleans()),
            "deterministic": draw(st.booleans()),
        },
        "execution": {
            "steps_per_execution": draw(st.none() | st.integers(1, 64)),
            "intra_op_threads": draw(st.none() | st.integers(0, 256)),
            "jit_compile": draw(st.booleans()),
        },
    }
    try:
        return parse_config(values)
    except ConfigError:
        return draw(st.nothing())


def ruff(code: str, *arguments: str) -> str:
    """What ruff, with its default rules, says of a script."""
    done = subprocess.run(
        [sys.executable, "-m", "ruff", *arguments, "--isolated", "-"],
        input=code,
        capture_output=True,
        text=True,
        check=False,
    )
    return "" if done.returncode == 0 else done.stdout + done.stderr


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
@given(configurations())
def test_any_configuration_makes_a_script_in_order(config):
    code = script(config, "20260101-aaaa")
    compile(code, "script.py", "exec")
    assert "core" not in re.findall(r"^(?:from|import) (\w+)", code, re.MULTILINE)
    assert ruff(code, "check") == ""
    assert ruff(code, "format", "--diff") == ""
    nbformat.validate(nbformat.reads(code_file(config, "ipynb").decode(), as_version=4))


# What a strategy adds


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
@given(configurations())
def test_a_strategy_adds_two_lines_or_six_and_takes_none_away(config):
    lines = comparison(config)
    added = [line.right.strip() for line in lines if line.is_added]
    strategy = config.layout.strategy
    assert len(added) == {"single": 0, "mirrored": 2, "tpu": 6}[strategy]
    assert added == strategy_lines(config.layout) + ["with strategy.scope():"] * (strategy != "single")
    assert all(line.is_added or line.left.strip() == line.right.strip() for line in lines)
    for side in ("left", "right"):
        compile("\n".join(getattr(line, side) or "" for line in lines), side, "exec")
    # With the lines that make the devices, which stand apart, it is the script itself.
    comment = "# They come first: TensorFlow cannot change them after its first operation."
    shown = "\n".join(line.right for line in lines)
    whole = shown.replace(comment, "\n".join([comment, *device_lines(config.layout)]))
    assert whole == script(config)


def test_a_tpu_is_found_before_anything_is_computed_and_gets_batches_of_one_shape():
    code = script(parse_config({"layout": {"strategy": "tpu", "tpu": "grpc://10.0.0.2:8470"}}))
    order = [
        'TPUClusterResolver(tpu="grpc://10.0.0.2:8470")',
        "experimental_connect_to_cluster(tpu)",
        "initialize_tpu_system(tpu)",
        "TPUStrategy(tpu)",
        "load_data()",
        "tf.data.",
        "with strategy.scope():",
        "model.fit(",
    ]
    places = [code.index(line) for line in order]
    assert places == sorted(places)
    assert "list_physical_devices" not in code
    assert "train, validation = train.map(fill), validation.map(fill)" in code
    even = parse_config({"layout": {"strategy": "tpu"}, "training": {"batch_size": 8}})
    assert even.steps(8_982) * 8 != 8_982
    assert "fill" in script(even)


@pytest.mark.parametrize("strategy", ["single", "mirrored", "tpu"])
def test_the_page_of_devices_shows_the_script_s_own_lines(strategy):
    layout = DeviceLayout(strategy=strategy)
    shown = layout_code(layout)
    code = script(RunConfig(layout=layout))
    compile(shown, "lines.py", "exec")
    for line in shown.split("\n"):
        assert "build_and_compile" in line or line in code
    assert ("with strategy.scope():\n    model =" in shown) == (strategy != "single")


# As a file


def test_a_notebook_has_the_script_s_code_in_cells_with_headings():
    config = parse_config({"layout": {"logical_devices": 4}})
    made = code_file(config, "ipynb", "20260101-aaaa")
    assert made == code_file(config, "ipynb", "20260101-aaaa")
    book = nbformat.reads(made.decode(), as_version=4)
    nbformat.validate(book)
    text = [cell.source for cell in book.cells if cell.cell_type == "markdown"]
    assert [line.split("\n")[0] for line in text] == [
        "# Classify Reuters newswires by their topic.",
        *(f"## {name}" for name in ("Settings", "Devices", "Data", "Model", "Training", "Result")),
    ]
    assert "20260101-aaaa" in text[0]
    assert "They come first" in text[2]
    code = "\n".join(cell.source for cell in book.cells if cell.cell_type == "code")
    mine = script(config, "20260101-aaaa").split('"""', 2)[2]
    bare = re.sub(r"^# (%%|They come first|Newswires as word ids).*\n", "", mine, flags=re.MULTILINE)
    assert code.split() == bare.split()
    assert book.metadata.colab is not None
    assert "accelerator" not in book.metadata


@pytest.mark.parametrize(
    ("layout", "accelerator"),
    [({"strategy": "tpu"}, "TPU"), ({"device_type": "GPU", "logical_devices": 1}, "GPU")],
)
def test_a_notebook_tells_colab_what_it_needs(layout, accelerator):
    book = nbformat.reads(code_file(parse_config({"layout": layout}), "ipynb").decode(), as_version=4)
    assert book.metadata.accelerator == accelerator


def test_an_imported_run_has_no_code(home, store, tmp_path):
    run_id = add_import(store, [{"epoch": 1, "loss": 1.0}], file="log.csv")
    with pytest.raises(RunStateError, match="was imported"):
        configuration(store.job(run_id))
    done = command("export", run_id, "--format", "py", "--output", str(tmp_path / "run.py"), home=home)
    assert (done.returncode, "was imported" in done.stderr) == (1, True)
    assert not (tmp_path / "run.py").exists()


# The page


def test_the_page_shows_what_the_draft_s_strategy_adds(show, store):
    app = show("pages/take_home.py", layout__strategy="tpu")
    assert "TPUStrategy adds 6 lines" in [heading.value for heading in app.subheader]
    assert drawings(app).count("<ins>") == 6
    assert app.code[0].value == script(parse_config({"layout": {"strategy": "tpu"}})).strip()
    app = show("pages/take_home.py", layout__logical_devices="4")
    assert "MirroredStrategy adds 2 lines" in [heading.value for heading in app.subheader]
    assert drawings(app).count("<ins>") == 2
    assert app.code[0].value == "\n".join(device_lines(DeviceLayout(logical_devices=4)))
    assert "MirroredStrategy, 4 replicas" in drawings(app)
    app = show("pages/take_home.py", layout__strategy="single")
    assert drawings(app) == ""
    assert "no strategy adds anything" in texts(app)


def test_the_page_shows_a_run_s_code_or_the_draft_s(show, store):
    run = finished_run(store)
    app = show("pages/take_home.py", run=run.id, training__epochs="77")
    assert app.code[-1].value == script(parse_config(run.config), run.id).strip()
    assert [button.proto.label for button in app.get("download_button")] == ["Python script", "Notebook"]
    sound(app.selectbox(key="code_of").set_value("").run())
    assert "\nEPOCHS = 77\n" in app.code[-1].value
    assert run.id not in app.code[-1].value


def test_runs_of_the_same_name_can_be_told_apart(show, store):
    """The browser sends back the words that it shows."""
    runs = [finished_run(store), finished_run(store)]
    for run in runs:
        store.rename(run.id, "same")
    options = show("pages/take_home.py").selectbox(key="code_of").options
    assert len(set(options)) == 3
    assert all(run.id in " ".join(options) for run in runs)


def test_the_page_says_what_is_wrong(show, store):
    app = show("pages/take_home.py", data__max_len="5")
    assert "too short for kernels" in texts(app)
    assert not app.get("download_button")
    imported = add_import(store, [{"epoch": 1, "loss": 1.0}], file="log.csv")
    app = show("pages/take_home.py", run=imported)
    assert "was imported, so its code is not known" in texts(app)
    app = show("pages/take_home.py", run="nonsense")
    assert "Choose one of the runs above." in texts(app)


@pytest.mark.skipif(not shutil.which(CHROMIUM), reason=f"needs {CHROMIUM}")
def test_in_a_browser_two_lines_are_marked_and_script_and_notebook_are_saved(home, store, tmp_path):
    run = finished_run(store)
    prepared(store)  # else the page waits for Reuters, and is drawn anew under the click
    with dashboard(home, MIRRORBOARD_WATCH="1") as address, chromium() as browser:
        for size in (DESKTOP, PHONE):
            with tab(browser, size) as page:
                page.goto(f"{address}/training?run={run.id}&data.dataset=synthetic")
                heading(page, "Training")
                page.get_by_text("Take it away").click()
                page.get_by_role("link", name="See the code").click()
                heading(page, "Code to take home")
                expect(page.locator("ins")).to_have_text(
                    ["strategy = tf.distribute.MirroredStrategy()", "with strategy.scope():"]
                )
                for line in page.locator("ins").all():
                    expect(line).to_be_visible()
                    expect(line).not_to_have_css("background-color", "rgba(0, 0, 0, 0)")
                # Side by side where there is room, else the strategy's script alone.
                left = page.get_by_text("Single device", exact=True)
                expect(left).to_be_visible(visible=size is DESKTOP)
                folded = page.get_by_text("import tensorflow as tf", exact=True).last
                expect(folded).to_be_hidden()
                page.locator("summary").first.click()
                expect(folded).to_be_visible()
                for label, kind in (("Python script", "py"), ("Notebook", "ipynb")):
                    with page.expect_download() as download:
                        page.get_by_role("button", name=label).click()
                    assert download.value.suggested_filename == f"{run.id}.{kind}"
                    download.value.save_as(tmp_path / kind)
    config = parse_config(run.config)
    assert (tmp_path / "py").read_text("utf-8") == script(config, run.id)
    assert (tmp_path / "ipynb").read_bytes() == code_file(config, "ipynb", run.id)
