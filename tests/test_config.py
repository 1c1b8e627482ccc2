"""A run's configuration: what it derives, what it refuses and how it says so."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.config import RunConfig, parse_config
from core.errors import ConfigError


def test_defaults_are_the_chapters_run():
    config = RunConfig()
    assert config.layout.replicas == 2
    assert config.global_batch_size == 32
    assert config.per_replica_batch_size == 16
    assert (config.steps(8_982), config.steps(2_246)) == (281, 71)
    assert config.model.lengths(config.data.max_len) == [296, 148, 146, 73]
    assert config.learning_rate == 0.001


def test_json_comes_back_equal():
    config = parse_config(
        {"layout": {"logical_devices": 4}, "training": {"patience": 3, "learning_rate": 0.01}}
    )
    assert RunConfig.model_validate_json(config.model_dump_json()) == config


@given(st.integers(1, 65_536), st.integers(1, 8), st.integers(1, 100_000))
def test_a_global_batch_is_shared_evenly_and_never_smaller(batch_size, replicas, examples):
    config = parse_config({"layout": {"logical_devices": replicas}, "training": {"batch_size": batch_size}})
    assert config.global_batch_size % replicas == 0
    assert batch_size <= config.global_batch_size < batch_size + replicas
    assert config.per_replica_batch_size * replicas == config.global_batch_size
    assert (config.steps(examples) - 1) * config.global_batch_size < examples
    assert config.steps(examples) * config.global_batch_size >= examples


def test_single_device_has_one_replica_however_many_logical_devices_there_are():
    config = parse_config({"layout": {"strategy": "single", "logical_devices": 4}})
    assert config.layout.replicas == 1
    assert config.layout.available == 4


@pytest.mark.parametrize(
    ("values", "field", "words"),
    [
        ({"training": {"epochs": 0}}, "training.epochs", "greater than or equal to 1, but it is 0"),
        ({"training": {"epochs": "many"}}, "training.epochs", "'many'"),
        ({"training": {"learning_rate": float("nan")}}, "training.learning_rate", "finite"),
        ({"training": {"seed": -1}}, "training.seed", "-1"),
        ({"layout": {"logical_devices": 9}}, "layout.logical_devices", "but it is 9"),
        ({"layout": {"visible_devices": [0, 0]}}, "layout.visible_devices", "[0, 0]"),
        ({"layout": {"visible_devices": []}}, "layout.visible_devices", "[] must be one or more"),
        ({"layout": {"cross_device_ops": "nccl"}}, "layout.cross_device_ops", "no NCCL kernel for CPUs"),
        ({"layout": {"memory_growth": True}}, "layout.memory_growth", "GPUs only"),
        ({"layout": {"memory_limit_mb": 1024}}, "layout.memory_limit_mb", "GPUs only"),
        (
            {
                "layout": {
                    "device_type": "GPU",
                    "memory_growth": True,
                    "memory_limit_mb": 1024,
                    "logical_devices": 1,
                }
            },
            "layout.memory_growth",
            "1024 MiB exclude each other",
        ),
        (
            {"layout": {"device_type": "GPU", "memory_growth": True, "logical_devices": 2}},
            "layout.memory_growth",
            "2 logical GPUs exclude each other",
        ),
        (
            {"layout": {"device_type": "GPU", "logical_devices": 2}},
            "layout.memory_limit_mb",
            "needs a memory limit",
        ),
        ({"data": {"max_len": 9}}, "model.kernels", "the length goes 9 → 5 → 2 → 0 → 0"),
        ({"model": {"filters": [64, 0]}}, "model.filters", "[64, 0] must each be from 1 to 1,024"),
        ({"model": {"dropout": 1.5}}, "model.dropout", "1.5"),
        ({"data": {"dataset": "imdb"}}, "data.dataset", "'imdb'"),
        ({"colour": "blue"}, "colour", "'blue'"),
        ({"training": 5}, "training", "5"),
    ],
)
def test_what_cannot_work_is_refused_at_its_field(values, field, words):
    with pytest.raises(ConfigError) as caught:
        parse_config(values)
    assert caught.value.field == field
    assert words in caught.value.message
    assert caught.value.hint


NAMES = st.sampled_from(["layout", "data", "model", "training", "epochs", "filters", "pool", "x"])
LEAVES = st.none() | st.booleans() | st.floats() | st.text()


@given(st.recursive(LEAVES, lambda inner: st.lists(inner) | st.dictionaries(NAMES, inner), max_leaves=8))
def test_any_json_is_a_configuration_or_a_clear_error(values):
    try:
        parse_config(values)
    except ConfigError as error:
        assert error.message
