"""What devices this machine has, and in plain words why no GPU can be used."""

from __future__ import annotations

import ctypes
import platform
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import keras
import psutil
import pynvml
import tensorflow as tf


def inspect(startup_log: str) -> dict[str, Any]:
    """Lists the physical devices without claiming any.

    Args:
        startup_log: What TensorFlow has written on standard error since the process began; it names
            libraries that could not be loaded.
    """
    devices = [
        _describe(device.device_type, index)
        for kind in ("CPU", "GPU", "TPU")
        for index, device in enumerate(tf.config.list_physical_devices(kind))
    ]
    # A TPU may only be listed once it has been initialised; its driver's file is there before.
    has_tpu = any(device["type"] == "TPU" for device in devices) or Path("/dev/accel0").exists()
    has_gpu = any(device["type"] == "GPU" for device in devices)
    return {
        "devices": devices,
        "gpu_reason": "" if has_gpu else why_no_gpu(startup_log),
        "tpu_reason": "" if has_tpu else "This machine has no TPU that TensorFlow could use.",
        "tensorflow": tf.__version__,
        "keras": keras.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(terse=True),
        "cpus": psutil.cpu_count() or 1,
        "memory_bytes": psutil.virtual_memory().total,
    }


def _describe(kind: str, index: int) -> dict[str, Any]:
    name, memory, capability = kind, None, None
    if kind == "CPU":
        name, memory = _cpu_name(), psutil.virtual_memory().total
    elif kind == "GPU":
        details = tf.config.experimental.get_device_details(tf.config.list_physical_devices("GPU")[index])
        name = details.get("device_name", "GPU")
        capability = ".".join(str(part) for part in details.get("compute_capability", ())) or None
        memory = _gpu_memory_bytes(index)
    return {
        "type": kind,
        "index": index,
        "name": name,
        "memory_bytes": memory,
        "compute_capability": capability,
    }


def _cpu_name() -> str:
    with suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as lines:  # noqa: PTH123 - not a real file
        for line in lines:
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def _gpu_memory_bytes(index: int) -> int | None:
    with suppress(pynvml.NVMLError):
        pynvml.nvmlInit()
        try:
            return int(pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(index)).total)
        finally:
            pynvml.nvmlShutdown()
    return None


def has_nvidia_driver() -> bool:
    """True when the NVIDIA driver's library can be loaded."""
    for library in ("libcuda.so.1", "nvcuda.dll"):
        with suppress(OSError):
            ctypes.CDLL(library)
            return True
    return False


def why_no_gpu(
    startup_log: str,
    *,
    system: str = platform.system(),
    built_for_gpu: bool = tf.test.is_built_with_gpu_support(),
    has_driver: Callable[[], bool] = has_nvidia_driver,
) -> str:
    """One plain sentence: why TensorFlow sees no GPU, and what would change that.

    Args:
        startup_log: What TensorFlow wrote on standard error at its start.
        system: The operating system, as `platform.system` names it.
        built_for_gpu: Whether this TensorFlow was built with GPU support.
        has_driver: Tells whether the NVIDIA driver is installed.
    """
    if system == "Windows":
        return (
            "TensorFlow on native Windows uses the CPU only, since version 2.11;"
            " run Mirrorboard in WSL2 to use an NVIDIA GPU."
        )
    if not built_for_gpu:
        return (
            "This TensorFlow was built for CPUs only;"
            " install the package tensorflow[and-cuda] to use an NVIDIA GPU."
        )
    if not has_driver():
        return "No NVIDIA driver was found, so training uses the CPU; with a GPU, install its driver."
    missing = re.findall(r"(?:Could not load dynamic library|dlopen of) '?([\w.+-]+\.so[\w.]*)", startup_log)
    if missing or "Cannot dlopen some GPU libraries" in startup_log:
        which = f" ({', '.join(dict.fromkeys(missing))})" if missing else ""
        return (
            f"The NVIDIA driver is there, but TensorFlow could not load its CUDA libraries{which};"
            " install the package tensorflow[and-cuda]."
        )
    return "The NVIDIA driver is there, but it reports no GPU to TensorFlow; see `nvidia-smi`."
