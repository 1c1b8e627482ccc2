"""How busy the machine is while a run trains: processor, memory, NVIDIA GPUs."""

from __future__ import annotations

import os
from contextlib import suppress

import psutil
import pynvml

from core.config import DeviceLayout
from core.engine.layout import cuda_visible_devices


class Sampler:
    """Samples this process and the machine; made before the layout is applied.

    Args:
        layout: Whose GPUs to look at.
    """

    def __init__(self, layout: DeviceLayout) -> None:
        self._process = psutil.Process()
        self._gpus = list(_gpus(layout)) if layout.device_type == "GPU" else []
        self._cores = psutil.cpu_count() or 1
        # psutil measures from one call to the next; the first one returns nothing of use.
        self._process.cpu_percent()
        psutil.cpu_percent()

    def sample(self) -> dict[str, float]:
        """The values since the last call: processor shares in percent of all cores, memory in bytes."""
        values: dict[str, float] = {
            "process_cpu_percent": self._process.cpu_percent() / self._cores,
            "machine_cpu_percent": psutil.cpu_percent(),
            "process_memory_bytes": self._process.memory_info().rss,
            "machine_memory_bytes": psutil.virtual_memory().used,
        }
        for number, gpu in enumerate(self._gpus):
            # A GPU may tell one and not another: laptops often keep their power to themselves.
            with suppress(pynvml.NVMLError):
                values[f"gpu{number}_memory_bytes"] = pynvml.nvmlDeviceGetMemoryInfo(gpu).used
            with suppress(pynvml.NVMLError):
                values[f"gpu{number}_percent"] = pynvml.nvmlDeviceGetUtilizationRates(gpu).gpu
            with suppress(pynvml.NVMLError):
                values[f"gpu{number}_power_w"] = pynvml.nvmlDeviceGetPowerUsage(gpu) / 1_000
        return values


def _gpus(layout: DeviceLayout) -> list[pynvml.c_nvmlDevice_t]:
    """NVML's handles of the layout's GPUs; empty without an NVIDIA driver."""
    names = cuda_visible_devices(layout.visible_devices, os.environ.get("CUDA_VISIBLE_DEVICES"))
    try:
        pynvml.nvmlInit()
        return [
            pynvml.nvmlDeviceGetHandleByIndex(int(name))
            if name.isdigit()
            else pynvml.nvmlDeviceGetHandleByUUID(name)
            for name in names.split(",")
            if name
        ]
    except pynvml.NVMLError:
        return []
