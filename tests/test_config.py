"""A run's configuration: what it derives, what it refuses and how it says so."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.config import RunConfig, parse_config
from core.errors import ConfigError

TWO_GPUS = {"device_type": "GPU", "visible_devices": [0, 1], "logical_devices": 1}


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
        ({"training": {"epochs": 0}}, "training.epochs", "Epochs must be at least 1, not 0."),
        ({"training": {"epochs": 20_000}}, "training.epochs", "Epochs must be at most 10,000, not 20,000."),
        ({"training": {"epochs": "many"}}, "training.epochs", "Epochs must be a whole number, not 'many'."),
        ({"training": {"epochs": 1.5}}, "training.epochs", "Epochs must be a whole number, not 1.5."),
        ({"training": {"epochs": None}}, "training.epochs", "Epochs must be a whole number, not None."),
        (
            {"training": {"learning_rate": float("nan")}},
            "training.learning_rate",
            "Learning rate must be a finite number, not NaN.",
        ),
        ({"training": {"learning_rate": 0}}, "training.learning_rate", "must be above 0, not 0."),
        ({"training": {"seed": -1}}, "training.seed", "Seed must be at least 0, not -1."),
        (
            {"training": {"deterministic": "maybe"}},
            "training.deterministic",
            "Deterministic must be true or false, not 'maybe'.",
        ),
        (
            {"layout": {"logical_devices": 9}},
            "layout.logical_devices",
            "Logical devices must be at most 8, not 9.",
        ),
        (
            {"layout": {"tpu": "x" * 10_000}},
            "layout.tpu",
            "TPU must have at most 255 characters, not 10,000.",
        ),
        (
            {"layout": {"visible_devices": [0, "x"]}},
            "layout.visible_devices.1",
            "Value 2 of visible devices must be a whole number, not 'x'.",
        ),
        ({"model": {"filters": [64]}}, "model.filters.1", "Value 2 of filters is missing."),
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
        ({"model": {"dropout": 1.5}}, "model.dropout", "Dropout must be at most 0.9, not 1.5."),
        ({"data": {"max_len": 1}}, "model.kernels", "Sequences of 1 word are too short"),
        (
            {"data": {"dataset": "imdb"}},
            "data.dataset",
            "Dataset must be one of reuters, synthetic, not 'imdb'.",
        ),
        (
            {"execution": {"steps_per_execution": 65}},
            "execution.steps_per_execution",
            "Steps per execution must be at most 64, not 65.",
        ),
        (
            {"execution": {"intra_op_threads": -1}},
            "execution.intra_op_threads",
            "must be at least 0, not -1.",
        ),
        (
            {"execution": {"jit_compile": True}},
            "execution.jit_compile",
            "XLA cannot compile the step of 2 replicas",
        ),
        (
            {"layout": {"strategy": "tpu"}, "execution": {"jit_compile": True}},
            "execution.jit_compile",
            "XLA cannot compile the step of 8 replicas",
        ),
        (
            {"layout": TWO_GPUS, "execution": {"steps_per_execution": 2}},
            "execution.steps_per_execution",
            "2 steps per execution are not safe with the default cross-device ops",
        ),
        (
            {"layout": {**TWO_GPUS, "cross_device_ops": "nccl"}, "execution": {"steps_per_execution": 64}},
            "execution.steps_per_execution",
            "64 steps per execution",
        ),
        ({"colour": "blue"}, "colour", "There is no setting 'colour'."),
        ({"training": {"epoch": 3}}, "training.epoch", "There is no setting 'epoch' in training."),
        ({"training": 5}, "training", "Training must be a group of settings, not 5."),
        ({"data": [["x" * 60] * 9] * 9}, "data", "xxx…."),
        ({1: 2}, "1", "The name of a setting must be text, not 1."),
    ],
)
def test_what_cannot_work_is_refused_at_its_field(values, field, words):
    with pytest.raises(ConfigError) as caught:
        parse_config(values)
    assert caught.value.field == field
    assert words in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize(
    "values",
    [
        {"execution": {"steps_per_execution": 64}},
        {"layout": {"strategy": "single"}, "execution": {"jit_compile": True, "steps_per_execution": 64}},
        {"layout": TWO_GPUS, "execution": {"steps_per_execution": 1}},
        {"layout": {**TWO_GPUS, "visible_devices": [1]}, "execution": {"steps_per_execution": 8}},
        {
            "layout": {**TWO_GPUS, "cross_device_ops": "hierarchical_copy"},
            "execution": {"steps_per_execution": 8},
        },
        {"layout": {"strategy": "tpu"}, "execution": {"steps_per_execution": 64}},
    ],
)
def test_executions_that_work_are_accepted(values):
    assert parse_config(values).execution.steps_per_execution == values["execution"]["steps_per_execution"]


def test_hints_name_the_range_and_what_was_meant():
    with pytest.raises(ConfigError) as caught:
        parse_config({"training": {"epochs": 0}})
    assert caught.value.hint == "Choose a value from 1 to 10,000."
    with pytest.raises(ConfigError) as caught:
        parse_config({"training": {"learning_rate": 500}})
    assert caught.value.hint == "Choose a value above 0 and up to 100."
    with pytest.raises(ConfigError) as caught:
        parse_config({"training": {"epoch": 3}})
    assert caught.value.hint == "Did you mean epochs?"


SETTINGS = [
    (section, name) for section in RunConfig.model_fields for name in RunConfig().model_dump()[section]
]
LEAVES = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.sampled_from(["", "x" * 10_000])
)
JSON = st.recursive(LEAVES, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8)


@given(JSON | st.builds(lambda at, value: {at[0]: {at[1]: value}}, st.sampled_from(SETTINGS), JSON))
def test_any_json_is_a_configuration_or_a_short_error_in_our_words(values):
    try:
        parse_config(values)
    except ConfigError as error:
        said = f"{error.message} {error.hint}"
        assert error.message
        assert len(said) < 400
        assert "Input should" not in said
        assert "pydantic" not in said
