"""Real fits: the chapter's run on Reuters, the same numbers on every layout, and what is refused."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import pairwise

import pytest
from conftest import QUICK, ROOT, command, json_of

from core import corpus as corpora
from core.config import parse_config
from core.engine.datasets import cache_folders
from core.engine.devices import why_no_gpu
from core.engine.layout import cuda_visible_devices, plan
from core.records import Kind, Status
from core.store import Store

needs_reuters = pytest.mark.skipif(
    not any((folder / "reuters.npz").exists() for folder in cache_folders()),
    reason="reuters.npz is not in Keras's cache (KERAS_HOME/datasets)",
)
METRICS = ("loss", "sparse_categorical_accuracy", "sparse_top_k_categorical_accuracy")


@pytest.fixture(scope="module")
def reuters_home(tmp_path_factory):
    return tmp_path_factory.mktemp("reuters")


def train(home, *arguments):
    return json_of(command("train", *arguments, "--json", home=home))


@needs_reuters
def test_the_chapters_run_on_reuters(reuters_home):
    run = train(reuters_home, "--strategy", "mirrored", "--logical-devices", "2", "--epochs", "10")
    assert run["status"] == "completed"
    assert run["model"]["params"] == 332_856
    assert [layer["output_shape"] for layer in run["model"]["layers"]] == [
        [None, 300, 7],
        [None, 296, 64],
        [None, 148, 64],
        [None, 146, 32],
        [None, 73, 32],
        [None, 2336],
        [None, 46],
    ]
    assert (run["steps_per_epoch"], run["validation_steps"]) == (281, 71)
    assert run["devices"] == ["/device:CPU:0", "/device:CPU:1"]
    history = run["history"]
    assert len(history) == 10
    assert max(epoch["val_sparse_categorical_accuracy"] for epoch in history) >= 0.60
    losses = [epoch["val_loss"] for epoch in history]
    best = losses.index(min(losses)) + 1
    assert best < 6
    assert losses[-1] > min(losses) * 1.2
    assert run["diagnosis"]["best_epoch"] == best
    assert run["diagnosis"]["sentence"].startswith(
        f"Validation loss was lowest at epoch {best} ({min(losses):.3f})."
    )


@pytest.fixture(scope="module")
def one_device(reuters_home):
    return {
        optimizer: train(reuters_home, *parity(optimizer), "--strategy", "single")
        for optimizer in ("sgd", "nadam")
    }


def parity(optimizer):
    # 48 rows are shared evenly by 1, 2, 3, 4 and 8 replicas; 8,982 and 2,246 rows leave partial batches.
    return ("--epochs", "2", "--batch-size", "48", "--optimizer", optimizer, "--deterministic")


@needs_reuters
@pytest.mark.parametrize("optimizer", ["sgd", "nadam"])
@pytest.mark.parametrize("replicas", [2, 3, 4, 8])
def test_replicas_are_one_device(reuters_home, one_device, replicas, optimizer):
    """With SGD losses to 1e-5 and not one row counted differently; Nadam's m/√v amplifies rounding."""
    tolerance = {"sgd": 1e-5, "nadam": 2e-3}[optimizer]
    run = train(reuters_home, *parity(optimizer), "--logical-devices", str(replicas))
    assert len(run["devices"]) == replicas
    for one, many in zip(one_device[optimizer]["history"], run["history"], strict=True):
        for name in METRICS:
            for metric in (name, f"val_{name}"):
                assert many[metric] == pytest.approx(one[metric], abs=tolerance), metric


@pytest.mark.parametrize("layout", [{"strategy": "single", "logical_devices": 1}, {"logical_devices": 2}])
def test_from_logits_on_a_softmax_is_rescued_by_keras(store, run_job, layout):
    """Same numbers as without the experiment, and Keras's warning in the run's log."""
    plain, experiment = (
        run_job(Kind.TRAIN, {**QUICK, "layout": layout, "model": {"from_logits": from_logits}})
        for from_logits in (False, True)
    )
    losses = [
        [row.value for row in store.metrics(job, per="step") if row.name == "loss"]
        for job in (plain, experiment)
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)
    warned = [any("`from_logits=True`" in line.text for line in store.logs(j)) for j in (plain, experiment)]
    assert warned == [False, True]


def test_from_logits_bites_in_double_precision_and_the_diagnosis_says_so(home):
    arguments = ("--dataset", "synthetic", "--batch-size", "256", "--epochs", "4", "--deterministic")
    run = train(home, *arguments, "--from-logits")
    assert run["config"]["model"]["from_logits"] is True
    assert run["diagnosis"]["verdict"] == "double_softmax"
    assert "softmax applied twice cannot go below 2.865" in run["diagnosis"]["sentence"]
    assert run["history"][-1]["loss"] > 2.865
    assert train(home, *arguments)["diagnosis"]["verdict"] != "double_softmax"


@needs_reuters
def test_a_repeated_run_is_the_same_to_the_last_bit(reuters_home):
    first, second = (train(reuters_home, *parity("nadam"), "--logical-devices", "2") for _ in range(2))
    for one, two in zip(first["history"], second["history"], strict=True):
        assert {**one, "duration_s": 0} == {**two, "duration_s": 0}


def test_every_step_is_recorded_and_adds_up_to_the_epoch(store, run_job):
    """Partial batch, shards of fillers only, several steps in a call: nothing is lost or counted twice.

    That the values are right as well, `test_take_home` sees: plain Keras gives the same.
    """
    config = {
        **QUICK,
        "layout": {"logical_devices": 8},
        "training": {"epochs": 2, "batch_size": 1000},
        "execution": {"steps_per_execution": 4},
    }
    job = run_job(Kind.TRAIN, config)
    assert job.status is Status.COMPLETED, job.error
    rows = store.metrics(job, per="step")
    assert [row.step for row in rows if row.name == "loss"] == list(range(18))
    assert [row.epoch for row in rows if row.name == "loss"] == [0] * 9 + [1] * 9
    sizes = [1000] * 8 + [982]
    epochs = {
        (row.epoch, row.name): row.value for row in store.metrics(job, per="epoch") if row.split == "train"
    }
    for epoch in (0, 1):
        for name in METRICS:
            values = [row.value for row in rows if row.epoch == epoch and row.name == name]
            mean = sum(value * size for value, size in zip(values, sizes, strict=True)) / 8982
            assert mean == pytest.approx(epochs[epoch, name], rel=1e-5)


LAYOUTS = [("--strategy", "single"), ("--logical-devices", "2")]
QUICK_RUN = ("--dataset", "synthetic", "--batch-size", "480", "--epochs", "2")
"""19 steps an epoch: a prime."""


def steps_recorded(home, layout, steps_per_execution):
    run = train(home, *QUICK_RUN, *layout, "--steps-per-execution", str(steps_per_execution))
    assert run["engine"]["steps_per_execution"] == steps_per_execution
    store = Store(home)
    job = store.job(run["run_id"])
    rows = store.metrics(job, per="step")
    store.close()
    progress = {name: job.progress[name] for name in ("epoch", "step", "steps", "validation_step")}
    assert progress == {"epoch": 1, "step": 19, "steps": 19, "validation_step": run["validation_steps"]}
    return rows


@pytest.fixture(scope="module")
def steps_one_by_one(tmp_path_factory):
    """What each layout records with one step in a call."""
    return {layout: steps_recorded(tmp_path_factory.mktemp("steps"), layout, 1) for layout in LAYOUTS}


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("steps", [3, 8, 64])
def test_every_step_has_its_own_values_whatever_the_steps_per_execution(
    home, steps_one_by_one, layout, steps
):
    """Each of 38 steps once and in order, with the last call of an epoch never full."""
    expected, rows = steps_one_by_one[layout], steps_recorded(home, layout, steps)
    assert [(row.step, row.name) for row in expected] == [
        (step, name) for step in range(38) for name in METRICS
    ]
    assert [(row.step, row.epoch, row.name) for row in rows] == [
        (row.step, row.epoch, row.name) for row in expected
    ]
    assert [row.value for row in rows] == pytest.approx([row.value for row in expected], abs=1e-3)
    losses = [row.value for row in expected if row.name == "loss"]
    assert (
        min(abs(one - two) for one, two in pairwise(losses)) > 2e-3
    )  # none could stand in for its neighbour


@pytest.mark.parametrize("steps", [1, 4])
def test_the_default_cross_device_ops_work_in_our_loop(steps):
    """Keras's own fails with them, see `test_framework`."""
    script = """
import sys
import numpy as np
import tensorflow as tf
from core.config import parse_config
from core.engine import layout, models
from core.engine.pipeline import batches
config = parse_config({"layout": {"logical_devices": 2}})
layout.apply(config.layout)
strategy = tf.distribute.MirroredStrategy(["/CPU:0", "/CPU:1"])
rows = batches(np.ones((40, 300), np.int32), np.ones(40, np.int32), 8, strategy=strategy)
with strategy.scope():
    model = models.build(config, vocabulary=9, classes=3, steps_per_execution=int(sys.argv[1]))
model.steps = (rows.steps, rows.steps)
built = []
build = model._symbolic_build
model._symbolic_build = lambda **given: built.append(build(**given))
fitted = model.fit(
    rows.dataset, steps_per_epoch=5, validation_data=rows.dataset, validation_steps=5,
    epochs=2, shuffle=False, verbose=0,
)
assert len(built) == 1, "Keras alone would build the model again for each validation"
print(fitted.history["loss"], model.optimizer.iterations.numpy())
"""
    arguments = [sys.executable, "-c", script, str(steps)]
    done = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-1] == "10"


def test_a_word_that_comes_often_has_one_gradient():
    """Adam squares the sum of what its occurrences say; Keras alone does not, see `test_framework`."""
    script = """
import keras
import numpy as np
import tensorflow as tf
from core.config import parse_config
from core.engine import layout, models
from core.engine.pipeline import batches
# What 1,200 occurrences say cancels out all but a thousandth: single precision leaves nothing to compare.
keras.config.set_floatx("float64")
config = parse_config({"layout": {"logical_devices": 2}, "model": {"optimizer": "adam"}})
strategy = layout.apply(config.layout)
x, y = np.ones((4, 300), np.int32), np.arange(4, dtype=np.int32)
rows = batches(x, y, 4, strategy=strategy)
with strategy.scope():
    model = models.build(config, vocabulary=9, classes=4)
plain = models.build(config, vocabulary=9, classes=4)
plain.set_weights(model.get_weights())
with tf.GradientTape() as tape:
    loss = plain.compute_loss(x, y, plain(x, training=True), np.full(4, 0.25))
gradient = tape.gradient(loss, plain.trainable_weights[:1])[0]
assert len(gradient.indices) == 1200
model.fit(rows.dataset, steps_per_epoch=1, shuffle=False, verbose=0)
second_moment = model.optimizer._velocities[0].numpy()
np.testing.assert_allclose(second_moment, 0.001 * tf.convert_to_tensor(gradient).numpy() ** 2, rtol=1e-8)
assert second_moment[1].min() > 0
"""
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr


def test_what_a_run_chooses_itself_takes_the_place_of_the_plan(run_job):
    execution = {"steps_per_execution": 2, "intra_op_threads": 2, "inter_op_threads": 0, "jit_compile": True}
    job = run_job(Kind.TRAIN, {**QUICK, "layout": {"strategy": "single"}, "execution": execution})
    assert job.status is Status.COMPLETED, job.error
    assert job.result["engine"] == {**execution, "cross_device_ops": "auto"}


@pytest.mark.parametrize("replicas", [1, 3, 5, 6, 7])
def test_no_number_of_replicas_crashes_on_what_does_not_divide(run_job, replicas):
    config = {**QUICK, "layout": {"logical_devices": replicas}, "training": {"epochs": 1, "batch_size": 1111}}
    job = run_job(Kind.TRAIN, config)
    assert job.status is Status.COMPLETED, job.error
    assert len(job.result["devices"]) == replicas


def test_early_stopping_ends_a_run_and_says_so(store, run_job):
    config = {**QUICK, "training": {"epochs": 40, "batch_size": 256, "patience": 1, "learning_rate": 0.02}}
    job = run_job(Kind.TRAIN, config)
    assert job.status is Status.COMPLETED, job.error
    stop = job.result["early_stop"]
    assert stop["epoch"] == store.epochs_done(job) < 40
    assert stop["best_epoch"] == stop["epoch"] - 1


def test_the_log_holds_tensorflows_lines_about_the_strategy(store, run_job):
    job = run_job(Kind.TRAIN, QUICK)
    lines = [line.text for line in store.logs(job) if line.source == "tensorflow"]
    assert any("Using MirroredStrategy with devices" in line for line in lines)


@pytest.mark.parametrize(
    ("logical", "strategy", "replicas"), [(2, "mirrored", 2), (3, "single", 1), (8, "mirrored", 8)]
)
def test_check_shows_requested_against_actual(run_job, logical, strategy, replicas):
    job = run_job(Kind.CHECK, {"logical_devices": logical, "strategy": strategy})
    assert job.status is Status.COMPLETED, job.error
    assert job.result["requested"] == {"physical": 1, "logical": logical, "replicas": replicas}
    actual = job.result["actual"]
    assert actual["physical"] == ["CPU:0"]
    assert len(actual["logical"]) == logical
    assert actual["replicas"] == replicas
    assert job.result["matches"] is True
    if strategy == "mirrored":
        assert "Using MirroredStrategy" in " ".join(job.result["log"])
    tries = job.result["self_test"]
    ops = ("matmul", "embedding", "convolution")
    assert [(t["device"], t["op"]) for t in tries] == [(f"CPU:{i}", op) for i in range(logical) for op in ops]
    assert all(t["ok"] and t["error"] == "" and 0 < t["ms"] < 1000 for t in tries), tries


def test_the_self_test_says_why_a_device_fails():
    """In a process of its own: it turns soft placement off, without which the CPU would answer for a GPU."""
    script = (
        "import json; from core.engine import self_test;"
        " print(json.dumps(self_test.run(['/CPU:0', '/CPU:9', '/GPU:0'])))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    tries = json.loads(done.stdout)
    assert [t["ok"] for t in tries] == [True] * 3 + [False] * 6
    for t in tries[3:]:
        assert t["ms"] is None
        assert t["error"].startswith("InvalidArgumentError: Could not satisfy device specification")
        assert t["device"] in t["error"]


@pytest.mark.parametrize("kind", [Kind.CHECK, Kind.TRAIN])
@pytest.mark.parametrize(
    "layout",
    [
        {"visible_devices": [1], "logical_devices": 1},
        {"device_type": "GPU", "visible_devices": [7], "logical_devices": 1},
    ],
)
def test_a_device_that_does_not_exist_is_refused_before_a_strategy_is_built(run_job, kind, layout):
    """TensorFlow accepts it, and ``fit`` hangs."""
    job = run_job(kind, layout if kind is Kind.CHECK else {**QUICK, "layout": layout}, 30)
    assert job.status is Status.FAILED
    assert job.error["type"] == "UnknownDevice"
    assert job.error["field"] == "layout.visible_devices"
    assert "but this machine has" in job.error["message"]


TPUS = {
    "": "The TPU has neither name nor address.",
    "local": "This machine has no TPU: TensorFlow finds no TPU in it.",
    # Nobody listens on port 9, and TensorFlow would wait for more than a minute.
    "grpc://127.0.0.1:9": "There is no TPU at 'grpc://127.0.0.1:9': nothing answered there within 8 s.",
    "tpu-7.invalid": "There is no TPU at 'tpu-7.invalid': its name could not be looked up",
}


@pytest.mark.parametrize("address", TPUS)
def test_a_tpu_that_is_not_there_is_said_within_ten_seconds(run_job, address):
    job = run_job(Kind.CHECK, {"strategy": "tpu", "tpu": address}, 60)
    assert job.status is Status.FAILED
    assert job.error["field"] == "layout.tpu"
    assert job.error["message"].startswith(TPUS[address])
    assert "grpc://" in job.error["hint"]
    assert job.duration_s < 10


def test_a_tpus_batches_are_shared_by_the_usual_numbers_of_cores():
    config = parse_config({"layout": {"strategy": "tpu"}, "training": {"batch_size": 30}})
    assert config.global_batch_size == 32
    execution = plan(config, system="Linux", cores=2)
    assert (execution.steps_per_execution, execution.intra_op_threads, execution.cross_device_ops) == (
        1,
        0,
        "auto",
    )


def test_describe_reports_what_keras_reports(run_job):
    first = run_job(Kind.DESCRIBE, {})
    again = run_job(Kind.DESCRIBE, {"model": {"dropout": 0.5, "filters": [8, 4]}})
    layers = first.result["layers"]
    assert [layer["name"] for layer in layers] == [
        "embedding",
        "conv1d",
        "max_pooling1d",
        "conv1d_1",
        "max_pooling1d_1",
        "flatten",
        "dense",
    ]
    assert sum(layer["params"] for layer in layers) == first.result["params"] == 332_856
    memory = first.result["memory"]
    assert memory["weights_bytes"] == memory["gradients_bytes"] == 4 * 332_856
    assert memory["optimizer_bytes"] >= 2 * memory["weights_bytes"]
    # 16 rows a replica: 300·7 + 296·64 + 148·64 + 146·32 + 73·32 + 2336 + 46 float32 values each.
    assert memory["activations_bytes"] == 16 * 4 * 39_906
    double = run_job(Kind.DESCRIBE, {"training": {"deterministic": True}}).result["memory"]
    assert double["weights_bytes"] == 2 * memory["weights_bytes"]
    assert double["activations_bytes"] == 2 * memory["activations_bytes"]
    assert double["total_bytes"] == pytest.approx(2 * memory["total_bytes"], abs=64)
    assert run_job(Kind.DESCRIBE, {"data": {"max_len": 300}}).result["memory"] == memory
    assert [layer["name"] for layer in again.result["layers"]][:2] == ["embedding", "conv1d"]
    assert again.result["layers"][-2]["type"] == "Dropout"


def test_an_invalid_stored_configuration_fails_with_its_field(run_job):
    job = run_job(Kind.TRAIN, {"training": {"epochs": -3}})
    assert job.status is Status.FAILED
    assert job.error["field"] == "training.epochs"
    assert "-3" in job.error["message"]


def test_a_damaged_prepared_dataset_is_made_again(home, run_job):
    run_job(Kind.PREPARE, {"dataset": "synthetic"})
    corpora.path(home, "synthetic").write_bytes(b"PAR1 junk")
    job = run_job(Kind.TRAIN, QUICK)
    assert job.status is Status.COMPLETED, job.error
    assert corpora.load(home, "synthetic").train_size == 8982


def test_the_plan_is_safe_where_the_defaults_fail():
    def of(layout, **training):
        return plan(parse_config({"layout": layout, "training": training}), system="Linux", cores=2)

    two = of({"logical_devices": 2})
    assert (two.steps_per_execution, two.cross_device_ops) == (32, "reduction_to_one_device")
    assert (two.intra_op_threads, two.inter_op_threads) == (1, 2)
    gpus = {"device_type": "GPU", "visible_devices": [0, 1], "logical_devices": 1}
    # NCCL with several steps per execution is left alone; one GPU has nothing to reduce.
    assert of(gpus).steps_per_execution == 1
    assert of(gpus).cross_device_ops == "auto"
    assert of({**gpus, "visible_devices": [0]}).steps_per_execution == 32
    windows = plan(parse_config({"layout": gpus}), system="Windows", cores=2)
    assert windows.cross_device_ops == "hierarchical_copy"
    own = parse_config({"execution": {"steps_per_execution": 64, "inter_op_threads": 0}})
    execution = plan(own, system="Linux", cores=2)
    assert (execution.steps_per_execution, execution.intra_op_threads) == (64, 1)
    assert execution.inter_op_threads == 0
    # A chart grows several times in an epoch, and a stop does not wait for many slow steps.
    assert [of({}, batch_size=rows).steps_per_execution for rows in (8, 256, 4096)] == [64, 4, 1]
    heavy = parse_config({"model": {"embedding_size": 128, "filters": [256, 256]}})
    assert plan(heavy, system="Linux", cores=2).steps_per_execution == 1


@pytest.mark.parametrize(
    ("indices", "already", "value"),
    [((0, 2), None, "0,2"), ((1,), "3,5", "5"), ((4,), "0,1", ""), ((0, 1), "GPU-a, GPU-b", "GPU-a,GPU-b")],
)
def test_visible_gpus_are_chosen_among_those_already_visible(indices, already, value):
    assert cuda_visible_devices(indices, already) == value


@pytest.mark.parametrize(
    ("log", "system", "built", "driver", "words"),
    [
        ("", "Windows", True, True, "run Mirrorboard in WSL2"),
        ("", "Linux", False, True, "built for CPUs only"),
        ("", "Linux", True, False, "No NVIDIA driver was found"),
        ("Could not load dynamic library 'libcudnn.so.9'; x", "Linux", True, True, "libcudnn.so.9"),
        (
            "Cannot dlopen some GPU libraries. Skipping",
            "Linux",
            True,
            True,
            "could not load its CUDA libraries",
        ),
        ("", "Linux", True, True, "reports no GPU"),
    ],
)
def test_why_there_is_no_gpu_in_one_sentence(log, system, built, driver, words):
    reason = why_no_gpu(log, system=system, built_for_gpu=built, has_driver=lambda: driver)
    assert words in reason
    assert reason.endswith(".")
