"""What the whole dashboard process holds once: the store, the launcher of engines, the datasets' state."""

from __future__ import annotations

import atexit
import gc
import logging
import os
import threading
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import streamlit as st

from core import corpus
from core.analysis import memory
from core.config import LOCAL_TPU, Dataset, DeviceLayout, RunConfig
from core.corpus import Corpus
from core.dashboard import access, units
from core.dashboard.charts import install_scripts
from core.errors import UnknownDevice
from core.launcher import Launcher
from core.records import Job, Kind, Status
from core.store import Store, default_home

_log = logging.getLogger(__name__)
_one_at_a_time = threading.Lock()
_opening = threading.RLock()
_SOON_POLL_S = 0.01
_MOST_NAMED = 4
"""Missing devices that are named."""


def open_store() -> Store:
    """The store of this dashboard, looked after by a launcher from the first call on.

    With ``MIRRORBOARD_WATCH=1`` in the environment no engine is started: a second dashboard can show a
    store that another one works on.

    Raises:
        StoreError: The store cannot be used.
    """
    # Not st.cache_resource: any browser may ask Streamlit 1.67 to clear it, and so begin another launcher.
    with _opening:
        return _open(default_home().expanduser().absolute(), watch=os.environ.get("MIRRORBOARD_WATCH") == "1")


@cache
def _open(home: Path, *, watch: bool) -> Store:
    store = Store(home)
    try:
        install_scripts()
    except OSError as error:
        _log.warning("The charts will stay empty, their scripts could not be put in ./static: %s", error)
    if access.is_hosted():
        # Nothing is written elsewhere, so engines keep what Keras downloads here too.
        os.environ.setdefault("KERAS_HOME", str(home / "keras"))
    if not watch:
        launcher = Launcher(store)
        launcher.start()
        atexit.register(launcher.close)
        store.submit(Kind.INSPECT, {})
    # Streamlit collects garbage after every script run; what the imports brought need not be looked at
    # each time (50 ms a refresh, Streamlit 1.67).
    gc.collect()
    gc.freeze()
    return store


def machine(store: Store) -> Job | None:
    """The newest look at the devices of this machine: one that has succeeded, else the last attempt."""
    jobs = store.jobs(kinds=[Kind.INSPECT], limit=10)
    return next((job for job in jobs if job.status is Status.COMPLETED), jobs[0] if jobs else None)


def latest_answer(store: Store, kind: Kind, config: dict[str, Any]) -> Job | None:
    """The newest job that was asked the same, finished or not."""
    return next((job for job in store.jobs(kinds=[kind], limit=50) if job.config == config), None)


def soon(store: Store, job_id: str, patience_s: float = 0.3) -> Job:
    """A job that a warm engine does at once, when it has: the page then need not be drawn twice."""
    deadline = time.monotonic() + patience_s
    while not (job := store.job(job_id)).status.is_final and time.monotonic() < deadline:
        time.sleep(_SOON_POLL_S)
    return job


def missing_device(found: Job | None, layout: DeviceLayout) -> UnknownDevice | None:
    """Why a layout cannot work on this machine: it asks for a device that is not there."""
    if found is None or found.result is None:
        return None
    if layout.strategy == "tpu":
        reason = found.result.get("tpu_reason") if layout.tpu == LOCAL_TPU else None
        return (
            UnknownDevice(reason, "Give the address of another, or choose MirroredStrategy.", "layout.tpu")
            if reason
            else None
        )
    kind = layout.device_type
    present = sum(device["type"] == kind for device in found.result["devices"])
    missing = [f"{kind}:{i}" for i in layout.visible_devices if i >= present]
    if not missing:
        return None
    more = f" and {len(missing) - _MOST_NAMED:,} more" if len(missing) > _MOST_NAMED else ""
    return UnknownDevice(
        f"This machine has no {', '.join(missing[:_MOST_NAMED])}{more}.",
        f"Choose among its {units.plural(present, kind)}." if present else "Choose the CPU.",
        "layout.visible_devices",
    )


def too_large(found: Job | None, config: RunConfig) -> str | None:
    """Says in figures that a model may need more memory than there is; None where it should fit."""
    layout, need = config.layout, memory.needed(config)
    if found is None or found.result is None or layout.strategy == "tpu":
        return None
    replicas, where, available = layout.replicas, "this machine has", found.result["memory_bytes"]
    if layout.device_type == "GPU":
        replicas = layout.logical_devices if layout.strategy == "mirrored" else 1
        sizes = [
            device["memory_bytes"]
            for device in found.result["devices"]
            if device["type"] == "GPU"
            and device["index"] in layout.visible_devices
            and device["memory_bytes"]
        ]
        where, available = "a GPU has", min(sizes, default=None)
    if available is None or need.total_bytes * replicas <= available:
        return None
    copies = f" on each of {units.plural(replicas, 'replica')}" if replicas > 1 else ""
    return (
        f"This model needs about {units.memory(need.total_bytes * replicas)} of memory; {where}"
        f" {units.memory(available)}. {need.parameters:,} parameters × {need.values_each} values of"
        f" {need.value_bytes} bytes (weight, gradient, optimizer) are {units.memory(need.parameter_bytes)},"
        f" the layers' outputs for {units.plural(config.per_replica_batch_size, 'row')}"
        f" {units.memory(need.activation_bytes)}{copies}. The run may be killed."
    )


@dataclass(frozen=True)
class Readiness:
    """Which datasets can be used.

    Attributes:
        is_ready: Prepared datasets.
        preparing: The job that prepares one at present, if any.
        failed: The job that could not prepare Reuters, when that was the last attempt.
    """

    is_ready: frozenset[Dataset]
    preparing: Job | None
    failed: Job | None

    def use(self, wanted: Dataset) -> Dataset:
        """The dataset a run gets: the synthetic one takes Reuters's place while that cannot be had."""
        return "synthetic" if wanted not in self.is_ready and self.failed is not None else wanted


def readiness(store: Store, wanted: Dataset = "reuters") -> Readiness:
    """Looks which datasets are prepared, and sets going what is missing.

    Args:
        store: Where they are.
        wanted: The dataset to prepare; the synthetic one is prepared too when Reuters cannot be had.
    """
    house = open_store()  # what the lesson cannot do without is not asked for by a person
    with _one_at_a_time:
        ready = frozenset[Dataset](
            name for name in ("reuters", "synthetic") if corpus.path(store.home, name).exists()
        )
        jobs = store.jobs(kinds=[Kind.PREPARE], limit=20)
        latest = {job.config["dataset"]: job for job in reversed(jobs)}

        def prepare(name: Dataset) -> None:
            last = latest.get(name)
            # What somebody's restart of the engines stopped has no error, and is taken up again.
            if name not in ready and (last is None or (last.status.is_final and last.error is None)):
                latest[name] = store.job(house.submit(Kind.PREPARE, {"dataset": name}))

        prepare(wanted)
        reuters = latest.get("reuters")
        failed = reuters if reuters is not None and reuters.error and "reuters" not in ready else None
        if failed is not None:
            prepare("synthetic")
        preparing = next((job for job in latest.values() if not job.status.is_final), None)
    return Readiness(ready, preparing, failed)


def load_corpus(store: Store, name: Dataset) -> Corpus:
    """A prepared dataset, read once for everybody and again when its file has changed.

    Raises:
        DatasetError: It is not there, or cannot be read.
    """
    source = corpus.path(store.home, name)
    return _load(store.home, name, source.stat().st_mtime_ns if source.exists() else 0)


@st.cache_resource(show_spinner=False, max_entries=2)
def _load(home: Path, name: Dataset, changed_ns: int) -> Corpus:  # noqa: ARG001 - part of the key
    return corpus.load(home, name)
