"""The engine's optimizers against Keras's own."""

import subprocess
import sys

import pytest

from core.config import parse_config
from core.engine import optimizers
from tests.conftest import ROOT

SCRIPT = """
import sys
import keras
import numpy as np
import tensorflow as tf
from core.engine import optimizers

kind, dtype, replicas, is_compiled = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4] == "XLA"
keras.config.set_floatx(dtype)
if replicas > 1:
    (cpu,) = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * replicas)
    names = [f"CPU:{i}" for i in range(replicas)]
    strategy = tf.distribute.MirroredStrategy(names, tf.distribute.ReductionToOneDevice())
else:
    strategy = tf.distribute.get_strategy()
random = np.random.default_rng(1)
begin = [random.normal(size=(40, 3)), random.normal(size=5)]
steps = [[random.normal(size=value.shape) for value in begin] for _ in range(6)]
for gradients in steps[1:]:
    gradients[0][10:] = 0  # as of an embedding, most of whose words are not in the batch


def trained(module):
    with strategy.scope():
        variables = [keras.Variable(value, dtype=dtype) for value in begin]
        optimizer = getattr(module, kind)(learning_rate=0.01)
        optimizer.build(variables)

    @tf.function(jit_compile=is_compiled)
    def apply(*gradients):
        strategy.run(lambda *own: optimizer.apply([one / replicas for one in own], variables), gradients)

    for gradients in steps:
        apply(*[tf.constant(value, dtype) for value in gradients])
    assert optimizer.iterations.numpy() == len(steps)
    for variable in variables if replicas > 1 else []:
        first, *others = [copy.numpy() for copy in strategy.experimental_local_results(variable.value)]
        assert all((first == other).all() for other in others)
    return [value.numpy() for value in [*variables, *optimizer.variables]]


ours, kerass = trained(optimizers), trained(keras.optimizers)
assert len(ours) == len(kerass) > 5
assert abs(ours[0] - begin[0]).max() > 0.01
for one, other in zip(ours, kerass):
    precision = 1e-12 if dtype == "float64" else 1e-6
    np.testing.assert_allclose(one, other, rtol=20 * precision, atol=precision)
"""


@pytest.mark.parametrize("kind", ["Nadam", "Adam"])
@pytest.mark.parametrize(
    ("dtype", "replicas", "way"),
    [("float64", 1, ""), ("float64", 3, ""), ("float32", 2, ""), ("float64", 1, "XLA")],
)
def test_the_same_values_as_keras(kind: str, dtype: str, replicas: int, way: str) -> None:
    arguments = [sys.executable, "-c", SCRIPT, kind, dtype, str(replicas), way]
    done = subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("replicas", "module"), [(1, "keras.src.optimizers.nadam"), (2, optimizers.__name__)]
)
def test_a_single_device_has_kerass_own(replicas: int, module: str) -> None:
    config = parse_config({"layout": {"logical_devices": replicas}})
    assert config.layout.replicas == replicas
    made = optimizers.optimizer_of(config)
    assert (type(made).__module__, type(made).__name__) == (module, "Nadam")
