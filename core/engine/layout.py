"""Gives this process the devices that a layout asks for, and the strategy that trains on them.

TensorFlow takes one layout in a process's life: all of this must happen before its first operation.
"""

from __future__ import annotations

import os
import platform
from dataclasses import asdict, dataclass, replace

import psutil
import tensorflow as tf

from core.config import MOST_STEPS_PER_EXECUTION, CrossDeviceOps, DeviceLayout, ModelConfig, RunConfig
from core.engine import self_test, tpu
from core.errors import ConfigError, TrainingError, UnknownDevice

_REDUCTIONS = {
    "nccl": tf.distribute.NcclAllReduce,
    "hierarchical_copy": tf.distribute.HierarchicalCopyAllReduce,
    "reduction_to_one_device": tf.distribute.ReductionToOneDevice,
}

_ROWS_PER_EXECUTION = 1024
"""A ninth of an epoch of Reuters: each call costs a millisecond, and the charts grow by it."""
_FLOP_PER_EXECUTION = 25e9
"""About half a second of one core's work: what a stop may have to wait for."""
_FLOP_WORTH_SHARING = 2e9
"""Below this a replica's step is faster on one thread than on several (6.4 against 8.0 ms measured)."""


@dataclass(frozen=True)
class Execution:
    """How the engine drives TensorFlow: chosen by `plan`, shown on the run.

    Attributes:
        steps_per_execution: Training steps inside one call of the compiled function.
        intra_op_threads: Threads that share one operation; 0 leaves it to TensorFlow.
        inter_op_threads: Operations that run side by side; 0 leaves it to TensorFlow.
        cross_device_ops: How gradients are added up over the replicas.
        jit_compile: Whether XLA compiles the step.
    """

    steps_per_execution: int
    intra_op_threads: int
    inter_op_threads: int
    cross_device_ops: CrossDeviceOps
    jit_compile: bool = False

    def to_json(self) -> dict[str, int | str | bool]:
        """The fields by name."""
        return asdict(self)


def plan(config: RunConfig, *, system: str = platform.system(), cores: int | None = None) -> Execution:
    """Chooses how to run a configuration fast and safely, save for what it chooses itself.

    The default cross-device ops fail with more than one step per execution on logical CPUs, and logical
    CPUs that share a thread pool wait for each other (both measured with TensorFlow 2.21); on GPUs the
    choice stays TensorFlow's own.

    Args:
        config: The run.
        system: The operating system, as `platform.system` names it.
        cores: Physical processor cores; None asks the machine.
    """
    layout = config.layout
    on_cpu = layout.device_type == "CPU" and layout.strategy != "tpu"
    reduction = layout.cross_device_ops
    if reduction == "auto" and layout.strategy == "mirrored" and layout.replicas > 1:
        if on_cpu:
            reduction = "reduction_to_one_device"
        elif system == "Windows":
            reduction = "hierarchical_copy"  # there is no NCCL on Windows
    one_call = layout.replicas == 1 or reduction in ("reduction_to_one_device", "hierarchical_copy")
    rows = config.global_batch_size
    flop = _flop_per_row(config.model, config.data.max_len) * rows
    steps = min(MOST_STEPS_PER_EXECUTION, _ROWS_PER_EXECUTION // rows, int(_FLOP_PER_EXECUTION / flop))
    cores = cores or psutil.cpu_count(logical=False) or 1
    sharing = flop / layout.replicas > _FLOP_WORTH_SHARING
    automatic = Execution(
        steps_per_execution=max(1, steps) if one_call else 1,
        intra_op_threads=(max(1, cores // layout.replicas) if sharing else 1) if on_cpu else 0,
        inter_op_threads=max(2, layout.replicas) if on_cpu else 0,
        cross_device_ops=reduction,
    )
    return replace(automatic, **config.execution.model_dump(exclude_none=True))


def _flop_per_row(model: ModelConfig, max_len: int) -> float:
    """Floating-point operations of one example, forward and backward, in the two convolutions."""
    first, _, second, _ = model.lengths(max_len)
    wide = [model.embedding_size, *model.filters]
    forward = 2 * sum(
        length * kernel * wide[i] * wide[i + 1]
        for i, (length, kernel) in enumerate(zip((first, second), model.kernels, strict=True))
    )
    return 3.0 * forward


def apply(layout: DeviceLayout, execution: Execution | None = None) -> tf.distribute.Strategy:
    """Gives this process its devices.

    Args:
        layout: Which devices, how split.
        execution: Thread pools and cross-device ops; None leaves both as the layout and TensorFlow have it.

    Returns:
        The strategy to train with; TensorFlow's default one for a single device.

    Raises:
        UnknownDevice: The layout names a device that is not there. TensorFlow would accept it in a
            MirroredStrategy and hang in ``fit`` (2.21). Or no TPU answered.
        TrainingError: TensorFlow refused the layout.
    """
    if execution is not None:
        tf.config.threading.set_intra_op_parallelism_threads(execution.intra_op_threads)
        tf.config.threading.set_inter_op_parallelism_threads(execution.inter_op_threads)
    if layout.strategy == "tpu":
        return tpu.connect(layout.tpu)
    kind = layout.device_type
    visible = _visible(layout)
    try:
        tf.config.set_visible_devices(visible, kind)
        if kind == "CPU":
            tf.config.set_visible_devices([], "GPU")  # a run on the CPU must not hold a GPU's memory
        for device in visible:
            if layout.memory_growth:
                tf.config.experimental.set_memory_growth(device, enable=True)
            elif layout.logical_devices > 1 or layout.memory_limit_mb is not None:
                part = tf.config.LogicalDeviceConfiguration(memory_limit=layout.memory_limit_mb)
                tf.config.set_logical_device_configuration(device, [part] * layout.logical_devices)
        logical = tf.config.list_logical_devices(kind)
    except (RuntimeError, ValueError) as error:
        raise TrainingError(
            f"TensorFlow refused the device layout: {error}", "Change the layout on the page Devices."
        ) from error
    if len(logical) != layout.available:
        raise TrainingError(
            f"The layout asks for {layout.available} logical devices, but TensorFlow made {len(logical)}.",
            "Change the layout on the page Devices.",
        )
    if layout.strategy == "single":
        return tf.distribute.get_strategy()
    reduction = execution.cross_device_ops if execution else layout.cross_device_ops
    make = _REDUCTIONS.get(reduction)
    return tf.distribute.MirroredStrategy(layout.device_names, cross_device_ops=make() if make else None)


def check_shares(config: RunConfig, strategy: tf.distribute.Strategy) -> None:
    """Raises `ConfigError` where the replicas cannot share the batch: a TPU says only now how many it has."""
    replicas = strategy.num_replicas_in_sync
    if config.global_batch_size % replicas:
        raise ConfigError(
            f"The {replicas} replicas of this TPU cannot share a global batch of"
            f" {config.global_batch_size} evenly.",
            f"Choose a multiple of {replicas}.",
            "training.batch_size",
        )


def _visible(layout: DeviceLayout) -> list[tf.config.PhysicalDevice]:
    """The physical devices a layout names; raises `UnknownDevice` where one is not there."""
    if layout.device_type == "GPU":
        # Hiding GPUs before CUDA starts keeps NCCL; hiding them afterwards makes TensorFlow fall back
        # to a slower reduction (tensorflow issue 44797).
        os.environ["CUDA_VISIBLE_DEVICES"] = cuda_visible_devices(
            layout.visible_devices, os.environ.get("CUDA_VISIBLE_DEVICES")
        )
        visible = tf.config.list_physical_devices("GPU")
        if len(visible) != len(layout.visible_devices):
            raise _unknown(layout, len(visible))
        return list(visible)
    present = tf.config.list_physical_devices("CPU")
    if max(layout.visible_devices) >= len(present):
        raise _unknown(layout, len(present))
    return [present[i] for i in layout.visible_devices]


def cuda_visible_devices(indices: tuple[int, ...], already: str | None) -> str:
    """The value of ``CUDA_VISIBLE_DEVICES`` that shows these GPUs of those already visible.

    Args:
        indices: Which GPUs, counted among the visible ones.
        already: The variable's present value; None shows all GPUs of the machine.
    """
    if already is None:
        return ",".join(str(i) for i in indices)
    names = [name.strip() for name in already.split(",") if name.strip()]
    return ",".join(names[i] for i in indices if i < len(names))


def _unknown(layout: DeviceLayout, present: int) -> UnknownDevice:
    kind = layout.device_type
    names = ", ".join(f"{kind}:{i}" for i in layout.visible_devices)
    there = {0: f"has no {kind}", 1: f"has {kind}:0 only"}.get(present, f"has {present} {kind}s")
    return UnknownDevice(
        f"The layout asks for {names}, but this machine {there}.",
        "Choose among the devices listed on the page Devices, or by `python -m core devices`.",
        "layout.visible_devices",
    )


def check(layout: DeviceLayout) -> dict[str, object]:
    """Applies a layout and tells what came of it.

    Returns:
        ``requested`` and ``actual`` counts and names, whether they match, and the devices' ``self_test``.
    """
    strategy = apply(layout)
    if layout.strategy == "tpu":
        return _check_tpu(strategy)
    kind = layout.device_type
    visible = tf.config.get_visible_devices(kind)
    physical = [device.name.removeprefix("/physical_device:") for device in visible]
    logical = [device.name for device in tf.config.list_logical_devices(kind)]
    requested = {
        "physical": len(layout.visible_devices),
        "logical": layout.available,
        "replicas": layout.replicas,
    }
    actual = {"physical": len(physical), "logical": len(logical), "replicas": strategy.num_replicas_in_sync}
    return {
        "requested": requested,
        "actual": {**actual, "physical": physical, "logical": logical, "devices": devices_of(strategy)},
        "matches": requested == actual,
        "self_test": self_test.run(logical),
    }


def _check_tpu(strategy: tf.distribute.TPUStrategy) -> dict[str, object]:
    """As `check`, for a TPU: it says itself what it has."""
    devices = devices_of(strategy)
    logical = [device.name for device in tf.config.list_logical_devices("TPU")]
    counts = {"logical": len(logical), "replicas": strategy.num_replicas_in_sync}
    return {
        "requested": {"physical": len(logical), **counts},
        "actual": {**counts, "physical": logical, "logical": logical, "devices": devices},
        "matches": True,
        "self_test": self_test.run(logical),
    }


def devices_of(strategy: tf.distribute.Strategy) -> list[str]:
    """The devices that hold a replica, such as ``/device:CPU:0``."""
    if not isinstance(strategy, tf.distribute.MirroredStrategy | tf.distribute.TPUStrategy):
        kind = "GPU" if tf.config.list_logical_devices("GPU") else "CPU"
        return [f"/device:{kind}:0"]
    return [f"/device:{name.split('/device:')[-1]}" for name in strategy.extended.worker_devices]
