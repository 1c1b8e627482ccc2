"""What TensorFlow 2.21 and Keras 3.15 do by themselves on logical CPUs, and why the engine does otherwise.

Each trap is sprung in a fresh process, on plain Keras: a test here that fails after an upgrade says that the
framework has changed, and that our answer to it, named beside each, can be looked at again.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

_PRELUDE = """
import warnings
warnings.filterwarnings("ignore")
import keras, numpy as np, tensorflow as tf
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * {logical})
tf.config.threading.set_intra_op_parallelism_threads(1)
keras.utils.set_random_seed(1)

def strategy(names=("/CPU:0", "/CPU:1"), ops=None):
    return tf.distribute.MirroredStrategy(list(names), cross_device_ops=ops)

def model(scope, classes=3, **compiled):
    with scope.scope():
        built = keras.Sequential([
            keras.Input((5,)), keras.layers.Embedding(9, 2), keras.layers.Flatten(),
            keras.layers.Dense(classes, activation="softmax"),
        ])
        built.compile("sgd", "sparse_categorical_crossentropy", **compiled)
    return built

def data(rows, batch, **options):
    x = np.arange(rows * 5, dtype="int32").reshape(rows, 5) % 9
    y = np.arange(rows, dtype="int32") % 3
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(batch, **options)

def fit(built, dataset, **options):
    return built.fit(dataset, shuffle=False, verbose=0, **options).history["loss"]

"""
_DEADLINE_S = 60.0
_HANG_S = 15.0


def _start(tmp_path: Path, script: str, logical: int = 2) -> subprocess.Popen[str]:
    source = tmp_path / "script.py"
    source.write_text(_PRELUDE.format(logical=logical) + script)
    return subprocess.Popen(
        [sys.executable, str(source)],
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "1", "CUDA_VISIBLE_DEVICES": ""},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def _outcome(tmp_path: Path, script: str, logical: int = 2) -> tuple[int, str]:
    """Exit code and output of a script."""
    process = _start(tmp_path, script, logical)
    try:
        output, _ = process.communicate(timeout=_DEADLINE_S)
    finally:
        process.kill()
        process.wait()
    return process.returncode, output


@pytest.mark.parametrize(
    "script",
    [
        "fit(model(strategy()), data(15, 15))",
        "fit(model(strategy()), data(32, 16), validation_data=data(15, 15))",
    ],
    ids=["training", "validation"],
)
def test_a_first_batch_that_replicas_cannot_share_evenly_fails(tmp_path: Path, script: str) -> None:
    """Ours: `RunConfig.global_batch_size` divides by the replicas, and `pipeline` fills the last batch up."""
    code, output = _outcome(tmp_path, script)
    assert code == 1
    assert "Inputs to operation AddN of type AddN must have the same size and shape" in output


def test_an_empty_slice_on_a_replica_fails_in_a_first_batch(tmp_path: Path) -> None:
    """Ours: a replica's slice always has rows, fillers of weight 0 where nothing is left."""
    script = "fit(model(strategy(f'/CPU:{i}' for i in range(4))), data(1, 16))"
    code, output = _outcome(tmp_path, script, logical=4)
    assert code == 1
    assert "Input 0: [1,5] != input 1: [0,5] [Op:AddN]" in output


def test_an_empty_slice_in_a_later_batch_makes_its_rows_weigh_less(tmp_path: Path) -> None:
    """Row 17 is alone in the last batch of four replicas, and pulls with a quarter of its weight.

    Ours: `pipeline` weighs each of a batch's R real rows 1/R, and a step adds the replicas' losses up.
    """
    script = """
rows = data(17, 16)
four, one, before = (
    model(scope) for scope in (strategy(f"/CPU:{i}" for i in range(4)), *[tf.distribute.get_strategy()] * 2)
)
for other in (one, before):
    other.set_weights(four.get_weights())
fit(four, rows)
fit(one, rows)
fit(before, rows.take(1))
bias, right, without = (np.asarray(built.get_weights()[-1]) for built in (four, one, before))
np.testing.assert_allclose(bias - without, (right - without) / 4, atol=1e-6)
print("a quarter of", np.abs(right - without).max())
"""
    code, output = _outcome(tmp_path, script, logical=4)
    assert code == 0, output
    assert float(output.split("a quarter of ")[1]) > 1e-3


def test_validation_counts_every_row_once(tmp_path: Path) -> None:
    """Keras 3.15 weighs each shard's loss by its rows; only a first batch that does not divide fails."""
    script = """
built = model(strategy(f"/CPU:{i}" for i in range(4)))
built.layers[-1].bias.assign([3.0, 0.0, -3.0])
built.optimizer.learning_rate.assign(0.0)
x, _ = next(iter(data(17, 17)))
y = np.repeat([0, 2], [16, 1])  # the last row is the one that the model gets wrong
rows = tf.data.Dataset.from_tensor_slices((x, y)).batch(16)
tell = keras.callbacks.LambdaCallback(on_test_end=lambda logs: print("reported", logs["loss"]))
fit(built, data(32, 16), validation_data=rows, callbacks=[tell])
print("expected", -np.log(built.predict(x, verbose=0)[np.arange(17), y]).mean())
"""
    code, output = _outcome(tmp_path, script, logical=4)
    assert code == 0, output
    reported, expected = (float(line.split()[1]) for line in output.splitlines()[-2:])
    assert reported == pytest.approx(expected, rel=1e-5)


def test_several_steps_in_a_call_fail_with_the_default_cross_device_ops(tmp_path: Path) -> None:
    """Ours: `layout.plan` takes ReductionToOneDevice on CPUs, with which it works."""
    script = "fit(model(strategy({ops}), steps_per_execution=4), data(64, 8)); print('trained')"
    code, output = _outcome(tmp_path, script.format(ops=""))
    assert code == 1
    assert "You must feed a value for placeholder tensor" in output
    code, output = _outcome(tmp_path, script.format(ops="ops=tf.distribute.ReductionToOneDevice()"))
    assert (code, output.splitlines()[-1]) == (0, "trained")


def test_adam_squares_each_occurrence_of_a_word_apart(tmp_path: Path) -> None:
    """Adam's second moment is of a gradient, which for a word that comes twice is the sum of two.

    Ours: `ReplicatedModel.train_step` adds a word's slices up before the optimizer sees them.
    """
    script = """
def second_moment(gradient):
    word = keras.Variable(np.zeros((1, 1), "float32"))
    optimizer = keras.optimizers.Adam(beta_2=0.0)
    optimizer.build([word])
    optimizer.apply([gradient], [word])
    return float(optimizer._velocities[0][0, 0])

twice = tf.IndexedSlices(tf.constant([[1.0], [3.0]]), tf.constant([0, 0]), tf.constant([1, 1]))
print(second_moment(twice), second_moment(tf.convert_to_tensor(twice)))
"""
    code, output = _outcome(tmp_path, script)
    assert code == 0, output
    assert output.splitlines()[-1] == "10.0 16.0"


def test_xla_fails_with_replicas(tmp_path: Path) -> None:
    """Ours: `models.build` compiles with ``jit_compile=False``; Keras's default is "auto"."""
    code, output = _outcome(tmp_path, "fit(model(strategy(), jit_compile=True), data(32, 8))")
    assert code == 1
    assert "tfvariable_on_a_different_device" in output


def test_a_model_outside_the_scope_trains_on_one_device_in_silence(tmp_path: Path) -> None:
    """Ours: `fit.train` builds and compiles inside it, and the linter finds scripts that do not."""
    outside = """
from contextlib import nullcontext
several = strategy()
built = model(tf.distribute.get_strategy())
with {scope}:
    built.compile("sgd", "sparse_categorical_crossentropy")
fit(built, data(32, 8))
print(built.distribute_strategy.num_replicas_in_sync)
"""
    code, output = _outcome(tmp_path, outside.format(scope="nullcontext()"))
    assert (code, output.splitlines()[-1]) == (0, "1"), output
    code, output = _outcome(tmp_path, outside.format(scope="several.scope()"))
    assert (code, output.splitlines()[-1]) == (1, "AssertionError"), output


def test_a_second_model_in_a_process_fails(tmp_path: Path) -> None:
    """Ours: an engine process trains once, and ends."""
    script = """
fit(model(strategy()), data(32, 8))
print("first trained", flush=True)
fit(model(strategy(), classes=5), data(32, 8))
"""
    code, output = _outcome(tmp_path, script)
    assert code == 1
    assert "first trained" in output
    assert "Shape mismatch in the collective instance" in output


def test_a_device_that_does_not_exist_hangs(tmp_path: Path) -> None:
    """Ours: `layout.apply` compares the devices asked for with those there are, before any strategy."""
    script = """
built = model(strategy(["/CPU:0", "/CPU:9"]))
print("built", flush=True)
fit(built, data(32, 8))
print("trained")
"""
    process = _start(tmp_path, script)
    try:
        assert process.stdout is not None
        output = ""
        while "built\n" not in output:
            line = process.stdout.readline()
            assert line, output
            output += line
        # Everything else here trains within two seconds of having built its model.
        time.sleep(_HANG_S)
        assert process.poll() is None, process.stdout.read()
    finally:
        process.kill()
        process.communicate()


def test_drop_remainder_that_leaves_nothing_ends_in_a_bare_stop_iteration(tmp_path: Path) -> None:
    """Ours: `pipeline` drops no rows; a split has one batch at least."""
    code, output = _outcome(tmp_path, "fit(model(strategy()), data(7, 16, drop_remainder=True))")
    assert code == 1
    assert output.splitlines()[-1] == "StopIteration"
