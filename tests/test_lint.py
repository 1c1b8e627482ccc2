"""The lesson's linter: each rule on a configuration or script that breaks it, and on one that does not."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import nbformat
import numpy as np
import pytest
from conftest import Open, command
from hypothesis import given
from hypothesis import strategies as st
from nbformat import v4

from core.analysis.lint import check_config
from core.analysis.script_lint import check_script
from core.config import parse_config
from core.corpus import Corpus
from core.errors import ConfigError
from core.exports import code_file
from tests.page_app import sound, texts

_CONFIGS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "softmax-from-logits": ({"model": {"from_logits": True}}, {}),
    "batch-smaller-than-replicas": (
        {"layout": {"logical_devices": 8}, "training": {"batch_size": 7}},
        {"layout": {"logical_devices": 8}, "training": {"batch_size": 8}},
    ),
    "learning-rate-not-scaled": (
        {"training": {"batch_size": 256}},
        {"training": {"batch_size": 256, "learning_rate": 0.008}},
    ),
    "validation-on-the-test-set": ({"training": {"patience": 3}}, {}),
    "colab-tpu-addr": (
        {"layout": {"strategy": "tpu", "tpu": "grpc://COLAB_TPU_ADDR"}},
        {"layout": {"strategy": "tpu"}},
    ),
}


@pytest.mark.parametrize("rule", _CONFIGS)
def test_each_rule_tells_a_bad_configuration_from_a_good_one(rule):
    bad, good = _CONFIGS[rule]
    found = check_config(parse_config(bad))
    assert [finding.rule for finding in found] == [rule]
    assert all((finding.what, finding.why, finding.effect, finding.remedy) for finding in found)
    assert check_config(parse_config(good)) == []


@pytest.mark.parametrize("rule", [rule for rule in _CONFIGS if rule != "validation-on-the-test-set"])
def test_what_a_finding_offers_puts_it_right(rule):
    values = parse_config(_CONFIGS[rule][0]).model_dump(mode="json")
    [finding] = check_config(parse_config(values))
    assert finding.settings
    for name, value in finding.settings:
        section, setting = name.split(".")
        values[section][setting] = value
    assert check_config(parse_config(values)) == []


def test_the_linear_rule_follows_the_batch():
    [finding] = check_config(parse_config({"training": {"batch_size": 128}}))
    assert finding.settings == (("training.learning_rate", 0.004),)
    [sgd] = check_config(parse_config({"training": {"batch_size": 64}, "model": {"optimizer": "sgd"}}))
    assert sgd.settings == (("training.learning_rate", 0.02),)


def test_memory_growth_beside_a_limit_is_refused_before_any_finding():
    layout = {"device_type": "GPU", "logical_devices": 1, "memory_growth": True, "memory_limit_mb": 2_048}
    with pytest.raises(ConfigError, match="exclude each other"):
        parse_config({"layout": layout})


@pytest.fixture
def corpus() -> Corpus:
    return Corpus(
        name="synthetic",
        title="Four newswires",
        tokens=np.array([1, 3, 1, 4, 1, 3, 1, 4], np.int32),
        offsets=np.array([0, 2, 4, 6, 8], np.int64),
        labels=np.array([0, 1, 0, 1], np.int32),
        train_size=2,
        words=("<pad>", "<start>", "<unk>", "tea", "tin"),
        class_names=("tea", "tin"),
    )


def _rules(corpus: Corpus) -> list[str]:
    return [finding.rule for finding in check_config(parse_config({}), corpus)]


def test_data_with_every_class_and_every_id_in_range_is_fine(corpus):
    assert _rules(corpus) == []


@pytest.mark.parametrize(
    ("field", "values", "words"),
    [
        ("labels", [0, 1, 0, 2], "a class of 2; only 0 to 1 exist"),
        ("labels", [0, -1, 0, 1], "a class of -1; only 0 to 1 exist"),
        ("tokens", [1, 3, 1, 4, 1, 3, 1, 5], "a word id of 5; only 0 to 4 exist"),
    ],
)
def test_ids_out_of_range_are_found(corpus, field, values, words):
    [finding] = check_config(parse_config({}), replace(corpus, **{field: np.array(values, np.int32)}))
    assert finding.rule == "ids-out-of-range"
    assert words in finding.what


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        ([0, 0, 0, 1], "tin is in no newswire to learn from"),
        ([0, 1, 1, 1], "tea is in no newswire to validate"),
    ],
)
def test_a_class_that_is_missing_from_a_split_is_named(corpus, labels, words):
    [finding] = check_config(parse_config({}), replace(corpus, labels=np.array(labels, np.int32)))
    assert finding.rule == "class-missing-from-a-split"
    assert words in finding.what


_GOOD = """
import keras
import tensorflow as tf

(x_train, y_train), (x_test, y_test) = keras.datasets.reuters.load_data(num_words=10_000)
x_fit, x_held = x_train[:8000], x_train[8000:]
strategy = tf.distribute.MirroredStrategy(["/GPU:0", "/GPU:1"])
batch_size = 32 * strategy.num_replicas_in_sync
data = tf.data.Dataset.from_tensor_slices((x_fit, y_train[:8000])).cache()
data = data.shuffle(8000).batch(64)
held = tf.data.Dataset.from_tensor_slices((x_held, y_train[8000:])).batch(64)

def build():
    layers = [keras.layers.Embedding(10_000, 7), keras.layers.Flatten()]
    return keras.Sequential([*layers, keras.layers.Dense(46, activation="softmax")])

with strategy.scope():
    model = build()
    model.compile(keras.optimizers.Nadam(0.001 * strategy.num_replicas_in_sync),
                  loss=keras.losses.SparseCategoricalCrossentropy())
gpu = tf.config.list_physical_devices("GPU")[0]
tf.config.experimental.set_memory_growth(gpu, True)
stop = keras.callbacks.EarlyStopping(patience=3)
model.fit(data, validation_data=held, epochs=10, callbacks=[stop])
"""

_SPOILED = {
    "softmax-from-logits": ("Crossentropy()", "Crossentropy(from_logits=True)", "loss="),
    "logits-with-a-probability-loss": (', activation="softmax"', "", "loss="),
    "shuffle-before-cache": ("data.shuffle(8000)", "data.shuffle(8000).cache()", "data.shuffle"),
    "validation-on-the-test-set": ("(x_held, y_train[8000:])", "(x_test, y_test)", "fit("),
    "batch-smaller-than-replicas": ("batch(64)\nheld", "batch(1)\nheld", "MirroredStrategy("),
    "learning-rate-not-scaled": (" * strategy.num_replicas_in_sync),", "),", "batch_size ="),
    "ids-out-of-range": ("num_words=10_000", "num_words=20_000", "Embedding("),
    "early-stopping-without-validation": ("validation_data=held, ", "", "EarlyStopping("),
    "colab-tpu-addr": ("import keras", 'import os, keras; os.environ["COLAB_TPU_ADDR"]', "import os"),
    "memory-growth-with-limits": (
        "gpu = tf",
        "limit = tf.config.LogicalDeviceConfiguration(memory_limit=1024)\ngpu = tf",
        "set_memory_growth(",
    ),
    "model-outside-the-scope": (
        "with strategy.scope():\n    model",
        "model = build()\nif 1:\n    model",
        "return",
    ),
}


def test_a_good_script_has_no_finding():
    assert check_script(_GOOD) == []


@pytest.mark.parametrize("rule", _SPOILED)
def test_each_rule_finds_its_line_in_a_script(rule):
    before, after, where = _SPOILED[rule]
    assert _GOOD.count(before) == 1
    spoiled = _GOOD.replace(before, after)
    [finding] = check_script(spoiled)
    assert finding.rule == rule
    assert where in spoiled.splitlines()[finding.line - 1]


def test_too_few_units_for_reuters_are_found():
    [finding] = check_script(_GOOD.replace("Dense(46", "Dense(45"))
    assert finding.rule == "ids-out-of-range"
    assert "45 units" in finding.what


def test_layers_written_out_and_functional_models_are_read_too():
    script = """
from tensorflow.keras import layers, Model
from tensorflow.nn import softmax
out = layers.Dense(46, softmax)(hidden)
model = Model(inputs, out)
model.compile("adam", loss=tf.keras.losses.SparseCategoricalCrossentropy(True, from_logits=True))
"""
    assert [finding.rule for finding in check_script(script)] == ["softmax-from-logits"]
    assert check_script("model.compile('adam', 'sparse_categorical_crossentropy')") == []


_BUILT_BY_ANOTHER = _GOOD.replace("model = build()", "model = outer()").replace(
    "with strategy.scope()", "def outer():\n    return build()\n\nwith strategy.scope()"
)


@pytest.mark.parametrize(
    "script",
    [
        _GOOD.replace("import keras", 'import re, keras\nnumber = re.compile("[0-9]+")', 1),
        _GOOD.replace("import keras", 'import keras\ncode = compile("1", "", "eval")', 1),
        _BUILT_BY_ANOTHER,
        _GOOD.replace(', activation="softmax")', '), keras.layers.Activation("softmax")'),
        _GOOD.replace(', activation="softmax")', ", **options)"),
        _GOOD.replace("x_held, y_train", "x_latest, y_train").replace("x_fit, x_held", "x_fit, x_latest"),
        "model.add(Dense(46))\nmodel.compile('adam', SparseCategoricalCrossentropy(True))",
        "answer = tf.nn.softmax(Dense(46)(x))\nmodel.compile('adam', 'sparse_categorical_crossentropy')",
    ],
)
def test_what_only_looks_like_a_mistake_is_none(script):
    assert script != _GOOD
    assert check_script(script) == []


def test_a_softmax_layer_of_its_own_and_logits_given_by_place_are_read_too():
    script = """
model.add(Dense(46))
model.add(Activation("softmax"))
model.compile("adam", loss=SparseCategoricalCrossentropy(True))
"""
    assert [(found.rule, found.line) for found in check_script(script)] == [("softmax-from-logits", 4)]


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("model = (", "Line 1 is not Python"),
        ("!pip install keras", "Line 1 is not Python"),
        ("a\x00b", "not Python|cannot be read"),
        ("x = 1\n" * 50_000, "300,000 bytes; up to 200,000"),
        ("x = " + "-" * 90_000 + "1", "cannot be read|nested too deeply|not Python"),
        ("a" + ".b" * 60_000, "cannot be read|nested too deeply|not Python"),
        *((f"reuters{'.b' * deep}.load_data()", "nested too deeply") for deep in (450, 900)),
        ('{"val_loss": [1.5, 1.4]}', "JSON, but not a notebook"),
        ("[1, 2]", "JSON, but not a notebook"),
        ('{"cells": [{"cell_type": "code"}]}', "JSON, but not a notebook"),
        ('{"cells": [{"cell_type": "code", "sour', "not Python"),
        ("[" * 100_000, "cannot be read|nested too deeply|not Python"),
    ],
)
def test_what_cannot_be_read_is_said(source, words):
    with pytest.raises(ConfigError, match=words):
        check_script(source)


_PICTURE = v4.new_output("display_data", {"image/png": "A" * 300_000})


def _notebook(*cells: str) -> str:
    made = [v4.new_markdown_cell("# Words: (")]
    made += [v4.new_code_cell(cell, outputs=[_PICTURE]) for cell in cells]
    return nbformat.writes(v4.new_notebook(cells=made))


_SPOILED_CELLS = [
    *(
        "!pip install \\\n  keras\n%matplotlib inline\nfiles = !ls {home}\nkeras?",
        "%%bash\nfor x in *; do echo\ndone",
    ),
    "rows = (7\n  % 4)\nmodel.add(Dense(46))\nif rows:\n    %reload_ext tensorboard\n",
    "%%time\nmodel.add(Softmax())\n\nmodel.compile('adam', loss=SparseCategoricalCrossentropy(True))",
    "",
    "limit = LogicalDeviceConfiguration(1024)\nset_memory_growth(gpu, True)",
]


def test_a_notebooks_cells_are_read_and_lines_counted_in_each():
    found = check_script(_notebook(*_SPOILED_CELLS))
    assert [(one.rule, one.cell, one.line) for one in found] == [
        ("softmax-from-logits", 4, 4),
        ("memory-growth-with-limits", 6, 2),
    ]
    assert "the limit in line 1 of code cell 6" in found[1].remedy
    assert check_script(_notebook(*_GOOD.split("\n\n"))) == []


def test_a_cell_that_is_not_python_is_named():
    with pytest.raises(ConfigError, match=r"Line 2 of code cell 2 is not Python: .* Correct the cell"):
        check_script(_notebook("x = 1", "y = 1\nz = = 2"))
    with pytest.raises(ConfigError, match="300,000 bytes; up to 200,000"):
        check_script(_notebook(*["x = 1\n" * 10_000] * 5))


def test_the_notebook_to_take_home_has_no_finding_of_its_own():
    config = parse_config({"model": {"from_logits": True}})
    rules = {finding.rule for finding in check_script(code_file(config, "ipynb").decode())}
    assert rules == {finding.rule for finding in check_script(code_file(config, "py").decode())}
    assert "softmax-from-logits" in rules


@given(st.text(max_size=200))
def test_any_text_is_answered(source):
    try:
        found = check_script(source)
    except ConfigError as error:
        assert error.message
    else:
        assert all(finding.line for finding in found)


@given(st.permutations(_GOOD.strip().splitlines()))
def test_lines_in_any_order_are_answered(lines):
    try:
        check_script("\n".join(lines))
    except ConfigError as error:
        assert "is not Python" in error.message


def test_the_command_line_names_file_and_line(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        _GOOD.replace("SparseCategoricalCrossentropy()", "SparseCategoricalCrossentropy(from_logits=True)")
    )
    told = command("lint", script)
    assert told.returncode == 1
    line = (
        _GOOD.splitlines().index("                  loss=keras.losses.SparseCategoricalCrossentropy())") + 1
    )
    assert told.stdout.startswith(f"{script}:{line}: softmax-from-logits: The last layer is a softmax")
    as_json = command("lint", script, "--json")
    assert [(one["rule"], one["line"]) for one in json.loads(as_json.stdout)] == [
        ("softmax-from-logits", line)
    ]
    script.write_text(_GOOD)
    assert command("lint", script).returncode == 0
    script.write_bytes(b"\xff\xfe")
    broken = command("lint", script)
    assert broken.returncode == 2
    assert "cannot be read" in broken.stderr
    assert "Traceback" not in broken.stderr


def test_the_command_line_names_a_notebooks_cell_and_line(tmp_path):
    notebook = tmp_path / "train.ipynb"
    notebook.write_text(_notebook(*_SPOILED_CELLS))
    told = command("lint", notebook)
    assert (told.returncode, told.stderr) == (1, "")
    assert f"\n{notebook}:cell 6:2: memory-growth-with-limits: " in told.stdout
    as_json = json.loads(command("lint", notebook, "--json").stdout)
    assert [(one["cell"], one["line"]) for one in as_json] == [(4, 4), (6, 2)]


def test_the_training_page_tells_before_the_start_and_puts_it_right(show: Open):
    app = show("pages/training.py", training__batch_size="256", training__patience="3")
    assert "Before you start: 2 findings" in texts(app)
    told = [expander.label.replace("\\", "") for expander in app.expander]
    assert "The global batch is 8 times the chapter's, the learning rate still 0.001." in told
    assert "Training is stopped by the test set." in told
    offered = app.button(key="fix_learning-rate-not-scaled")
    assert offered.label == "Put it right: learning rate 0.008"
    app = sound(offered.click().run())
    assert app.session_state["training.learning_rate"] == 0.008
    assert "Before you start: 1 finding**" in texts(app)


def test_the_command_line_tells_before_it_trains(home):
    told = command(
        *("train", "--dataset", "synthetic", "--from-logits", "--epochs", "1", "--json"),
        *("--strategy", "single", "--batch-size", "32"),
        home=home,
    )
    assert told.returncode == 0, told.stderr
    assert "Note: The last layer is a softmax, but the loss is told to expect logits." in told.stderr
    assert "The global batch is" not in told.stderr


def test_a_script_of_ones_own_is_checked_on_the_page(show: Open):
    app = show("pages/take_home.py")
    app = sound(
        app.text_area(key="script")
        .set_value(_GOOD.replace("data.shuffle(8000)", "data.shuffle(8000).cache()"))
        .run()
    )
    told = texts(app).replace("\\", "")
    assert "The dataset is shuffled and then cached." in told
    assert "data = data.shuffle(8000).cache().batch(64)" in [code.value for code in app.code]
    app = sound(app.text_area(key="script").set_value("# a\x0cb\nname = 'COLAB_TPU_ADDR'").run())
    assert [code.value for code in app.code][-1] == "name = 'COLAB_TPU_ADDR'"
    app = sound(app.text_area(key="script").set_value(_GOOD).run())
    assert "None of the classic mistakes" in app.success[0].value
    app = sound(app.text_area(key="script").set_value(_notebook(*_SPOILED_CELLS)[:-2]).run())
    assert "is not Python" in app.error[0].value
    small = json.loads(_notebook(*_SPOILED_CELLS))
    for cell in small["cells"]:
        cell["outputs"] = []
    app = sound(app.text_area(key="script").set_value(json.dumps(small)).run())
    assert "Line 2 of code cell 6" in texts(app)
    assert [code.value for code in app.code][-1] == "set_memory_growth(gpu, True)"
    app = sound(app.text_area(key="script").set_value("def (").run())
    assert "Line 1 is not Python" in app.error[0].value
