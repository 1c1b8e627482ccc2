"""Tries on each device what the chapter's model is made of, forward and backward."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

_Result = tuple[tf.Tensor, tf.Tensor, NDArray[Any], NDArray[Any]]
"""Output and gradient of its sum, as the device has them and as they must be."""


def run(devices: Sequence[str]) -> list[dict[str, Any]]:
    """Runs a matrix product, an embedding lookup and a convolution on each device.

    Leaves soft placement off, with which TensorFlow would silently move an operation to the CPU that the
    device cannot do.

    Args:
        devices: Names of logical devices.

    Returns:
        One object for each device and operation: ``device``, ``op``, ``ok``, ``error`` (why not; else
        empty) and ``ms``, the time of a second pass, None where the first one failed.
    """
    tf.config.set_soft_device_placement(False)
    return [_tried(device, name, op) for device in devices for name, op in _OPS.items()]


def _tried(device: str, name: str, op: Callable[[], _Result]) -> dict[str, Any]:
    error, ms = "", None
    try:
        with tf.device(device):
            error = _wrong(*op())
            began = time.perf_counter()
            op()[1].numpy()
            ms = (time.perf_counter() - began) * 1e3
    except (tf.errors.OpError, RuntimeError, ValueError) as refused:
        first = str(refused).strip().splitlines() or [""]
        error = f"{type(refused).__name__}: {first[0].split('. ')[0]}."
    short = device.rsplit("/device:", maxsplit=1)[-1].lstrip("/")
    return {"device": short, "op": name, "ok": not error, "error": error, "ms": ms}


def _wrong(output: tf.Tensor, gradient: tf.Tensor, output_must: Any, gradient_must: Any) -> str:
    for what, value, must in (("output", output, output_must), ("gradient", gradient, gradient_must)):
        off = float(np.max(np.abs(value.numpy() - must)))
        if not off < 1e-3:  # noqa: PLR2004 - a NaN fails too
            return f"Its {what} is off by up to {off:.3g}."
    return ""


def _matmul() -> _Result:
    values = np.arange(64, dtype=np.float32).reshape(8, 8) / 64
    x = tf.Variable(values)
    with tf.GradientTape() as tape:
        output = tf.linalg.matmul(x, tf.constant(values))
    gradient_must = np.broadcast_to(values.sum(axis=1), (8, 8))
    return output, tape.gradient(output, x), values @ values, gradient_must


def _embedding() -> _Result:
    values = np.arange(20, dtype=np.float32).reshape(5, 4)
    ids = [3, 0, 3]
    table = tf.Variable(values)
    with tf.GradientTape() as tape:
        output = tf.nn.embedding_lookup(table, tf.constant(ids))
    counts = np.bincount(ids, minlength=5)[:, None]
    gradient = tf.convert_to_tensor(tape.gradient(output, table))
    return output, gradient, values[ids], np.broadcast_to(counts, (5, 4)).astype(np.float32)


def _convolution() -> _Result:
    """A kernel of three ones over the numbers 0 to 9 adds up three neighbours."""
    signal = np.arange(10, dtype=np.float32)
    kernel = tf.Variable(np.ones((3, 1, 1), np.float32))
    with tf.GradientTape() as tape:
        output = tf.nn.conv1d(tf.constant(signal.reshape(1, 10, 1)), kernel, stride=1, padding="VALID")
    windows = np.lib.stride_tricks.sliding_window_view(signal, 3)
    return (
        output,
        tape.gradient(output, kernel),
        windows.sum(axis=1, dtype=np.float32).reshape(1, 8, 1),
        windows.sum(axis=0, dtype=np.float32).reshape(3, 1, 1),
    )


_OPS: dict[str, Callable[[], _Result]] = {
    "matmul": _matmul,
    "embedding": _embedding,
    "convolution": _convolution,
}
