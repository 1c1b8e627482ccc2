"""The code to take home: a run in plain Keras as a script or notebook, and the lines that its strategy adds.

The script is the template beside this file. The lines that make devices and strategy are written here, once
for the script, the comparison and the page of devices.
"""

from __future__ import annotations

import difflib
import inspect
import json
import re
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from core import synthetic_newswires
from core.config import DATASET_NAMES, OPTIMIZER_NAMES, DeviceLayout, RunConfig
from core.corpus import CLASSES, EXAMPLES, VOCABULARY

_REDUCTIONS = {
    "nccl": "tf.distribute.NcclAllReduce()",
    "hierarchical_copy": "tf.distribute.HierarchicalCopyAllReduce()",
    "reduction_to_one_device": "tf.distribute.ReductionToOneDevice()",
}
_SCOPE = "with strategy.scope():"
_TEMPLATES = Environment(
    loader=FileSystemLoader(Path(__file__).parent),
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
    autoescape=False,  # noqa: S701 - Python, not HTML
)


@dataclass(frozen=True)
class Line:
    """A line of two scripts side by side.

    Attributes:
        left: In the script for a single device; None where only the strategy's has it.
        right: In the script with the strategy.
    """

    left: str | None
    right: str

    @property
    def is_added(self) -> bool:
        """Whether the strategy needs the line."""
        return self.left is None


def script(config: RunConfig, run_id: str = "") -> str:
    """A run in plain Keras: one Python file that needs nothing of this project.

    Its parts begin with ``# %%`` and a heading, which editors know as cells.

    Args:
        config: The run.
        run_id: Of a run that is there.
    """
    return _render(config, config.layout, run_id, device_lines(config.layout))


def layout_code(layout: DeviceLayout) -> str:
    """The lines that a device layout amounts to, with a place for the model."""
    build = "model = build_and_compile()"
    scoped = [_SCOPE, f"    {build}"] if layout.strategy != "single" else [build]
    lines = ["import tensorflow as tf", "", *device_lines(layout), *strategy_lines(layout), "", *scoped]
    return "\n".join(lines)


def comparison(config: RunConfig) -> list[Line]:
    """The same training on a single device beside a run's own script, line by line.

    The lines that make the devices are in neither, see `device_lines`. A line that is only indented, because
    it came into a strategy's scope, counts as the same.

    Args:
        config: The run.
    """
    single = config.layout.model_copy(update={"strategy": "single"})
    left, right = (_render(config, layout, "", []).split("\n") for layout in (single, config.layout))
    matcher = difflib.SequenceMatcher(
        None, [line.strip() for line in left], [line.strip() for line in right], autojunk=False
    )
    lines: list[Line] = []
    for kind, left_from, left_to, right_from, right_to in matcher.get_opcodes():
        # A strategy takes no line away.
        assert kind in ("equal", "insert")
        before = left[left_from:left_to] if kind == "equal" else [None] * (right_to - right_from)
        lines += map(Line, before, right[right_from:right_to])
    return lines


def device_lines(layout: DeviceLayout) -> list[str]:
    """The lines that give TensorFlow a layout's devices; none for a TPU, which is found, not made."""
    if layout.strategy == "tpu":
        return []
    kind, one, indices = layout.device_type, layout.device_type.lower(), layout.visible_devices
    limit = "" if layout.memory_limit_mb is None else f"memory_limit={layout.memory_limit_mb}"
    making = []
    if layout.memory_growth:
        making = [f"tf.config.experimental.set_memory_growth({one}, True)"]
    elif layout.logical_devices > 1 or limit:
        part = f"[tf.config.LogicalDeviceConfiguration({limit})] * {layout.logical_devices}"
        making = ["tf.config.set_logical_device_configuration(", f"    {one}, {part}", ")"]
    if len(indices) == 1:
        listing = [f'{one} = tf.config.list_physical_devices("{kind}")[{indices[0]}]']
        visible = f"[{one}]"
    else:
        listing = [
            f'{one}s = tf.config.list_physical_devices("{kind}")',
            f"visible = [{one}s[i] for i in {indices}]",
        ]
        visible = "visible"
        making = [f"for {one} in visible:", *(f"    {line}" for line in making)] if making else []
    hiding = ['tf.config.set_visible_devices([], "GPU")  # CPUs only'] if kind == "CPU" else []
    # A machine with a second CPU is rare.
    is_all = kind == "CPU" and indices == (0,)
    choosing = [] if is_all else [f'tf.config.set_visible_devices({visible}, "{kind}")']
    chosen = layout.strategy == "mirrored" and layout.cross_device_ops != "auto"
    reducing = [f"reduction = {_REDUCTIONS[layout.cross_device_ops]}"] if chosen else []
    return [*hiding, *(listing if choosing or making else []), *choosing, *making, *reducing]


def strategy_lines(layout: DeviceLayout) -> list[str]:
    """The lines that make a layout's strategy; ``with strategy.scope():`` comes later."""
    match layout.strategy:
        case "single":
            return []
        case "mirrored":
            # Without names it takes all logical GPUs, or where none is visible all CPUs (TensorFlow 2.21).
            reduction = "" if layout.cross_device_ops == "auto" else "cross_device_ops=reduction"
            return [f"strategy = tf.distribute.MirroredStrategy({reduction})"]
        case "tpu":
            address = json.dumps(layout.tpu, ensure_ascii=False)
            return [
                f"tpu = tf.distribute.cluster_resolver.TPUClusterResolver(tpu={address})",
                "tf.config.experimental_connect_to_cluster(tpu)",
                "tf.tpu.experimental.initialize_tpu_system(tpu)",
                'print(tf.config.list_logical_devices("TPU"))',
                "strategy = tf.distribute.TPUStrategy(tpu)",
            ]


def _render(config: RunConfig, layout: DeviceLayout, run_id: str, devices: list[str]) -> str:
    execution, model = config.execution, config.model
    filled = _needs_filling(config)
    generated = config.data.dataset == "synthetic"
    on_gpu = config.layout.strategy != "tpu" and config.layout.device_type == "GPU"
    loss_arguments = {"from_logits=True": model.from_logits, 'reduction="sum"': filled}
    return _TEMPLATES.get_template("take_home.py.jinja").render(
        title=f"Classify {DATASET_NAMES[config.data.dataset]} newswires by their topic.",
        run=run_id,
        config=config,
        deterministic=config.training.deterministic,
        threads=[
            (pool, threads)
            for pool, threads in (
                ("intra", execution.intra_op_threads),
                ("inter", execution.inter_op_threads),
            )
            if threads is not None
        ],
        device_lines=devices,
        strategy_lines=strategy_lines(layout),
        scope="" if layout.strategy == "single" else _SCOPE,
        generated=generated,
        generator=_generator() if generated else "",
        train_examples=EXAMPLES["train"],
        filled=filled,
        vocabulary=VOCABULARY,
        classes=CLASSES,
        convolutions=list(zip(model.filters, model.kernels, strict=True)),
        optimizer=OPTIMIZER_NAMES[model.optimizer],
        sparse_apart=model.optimizer in ("nadam", "adam"),
        loss_arguments=[argument for argument, is_given in loss_arguments.items() if is_given],
        # Keras would choose XLA by itself on one GPU.
        jit_compile=execution.jit_compile if execution.jit_compile or on_gpu else None,
    )


def _needs_filling(config: RunConfig) -> bool:
    """Whether a split ends in a batch that the replicas cannot share evenly."""
    last = [examples % config.global_batch_size for examples in EXAMPLES.values()]
    # XLA compiles for one shape of batch.
    return (
        any(last) if config.layout.strategy == "tpu" else any(rows % config.layout.replicas for rows in last)
    )


def _generator() -> str:
    """The source of the synthetic newswires, without the module's docstring and imports."""
    source = inspect.getsource(synthetic_newswires)
    return re.split(r"^from numpy.typing import NDArray\n", source, maxsplit=1, flags=re.MULTILINE)[1].strip()
