"""The lines of TensorFlow and Keras that a setting amounts to."""

from __future__ import annotations

import json

from core.config import DeviceLayout

_REDUCTIONS = {
    "nccl": "tf.distribute.NcclAllReduce()",
    "hierarchical_copy": "tf.distribute.HierarchicalCopyAllReduce()",
    "reduction_to_one_device": "tf.distribute.ReductionToOneDevice()",
}


_TPU = """\
import tensorflow as tf

tpu = tf.distribute.cluster_resolver.TPUClusterResolver(tpu={tpu})
tf.config.experimental_connect_to_cluster(tpu)
tf.tpu.experimental.initialize_tpu_system(tpu)
print(tf.config.list_logical_devices("TPU"))
strategy = tf.distribute.TPUStrategy(tpu)
with strategy.scope():
    model = build_and_compile()"""


def layout_code(layout: DeviceLayout) -> str:
    """A device layout in Python."""
    if layout.strategy == "tpu":
        return _TPU.format(tpu=json.dumps(layout.tpu))
    kind, many = layout.device_type, f"{layout.device_type.lower()}s"
    chosen = ", ".join(f"{many}[{i}]" for i in layout.visible_devices)
    lines = [
        "import tensorflow as tf",
        "",
        f'{many} = tf.config.list_physical_devices("{kind}")',
        f'tf.config.set_visible_devices([{chosen}], "{kind}")',
    ]
    limit = "" if layout.memory_limit_mb is None else f"memory_limit={layout.memory_limit_mb}"
    for i in layout.visible_devices:
        if layout.memory_growth:
            lines.append(f"tf.config.experimental.set_memory_growth({many}[{i}], True)")
        elif layout.logical_devices > 1 or limit:
            part = f"[tf.config.LogicalDeviceConfiguration({limit})] * {layout.logical_devices}"
            lines.append(f"tf.config.set_logical_device_configuration(\n    {many}[{i}], {part}\n)")
    if layout.strategy == "mirrored":
        names = ", ".join(f'"{name}"' for name in layout.device_names)
        reduction = _REDUCTIONS.get(layout.cross_device_ops)
        ops = f",\n    cross_device_ops={reduction}" if reduction else ""
        lines += [
            "",
            f"strategy = tf.distribute.MirroredStrategy(\n    [{names}]{ops}\n)",
            "with strategy.scope():",
        ]
        lines.append("    model = build_and_compile()")
    else:
        lines += ["", "model = build_and_compile()"]
    return "\n".join(lines)
