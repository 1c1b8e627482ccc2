"""What the page of a run shows, read and drawn once for everybody who looks at it."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import streamlit as st

from core import report
from core.analysis.calibration import ERROR
from core.analysis.criteria import Stop, Thresholds, what_would_have_happened
from core.analysis.overfitting import Diagnosis, diagnose
from core.config import parse_config
from core.dashboard import charts
from core.dashboard.charts import WHOLE, Axis, Curves, Part, Quantity, Series
from core.records import ACTIVE, Job, Kind, LogLine
from core.store import Store

_Made = TypeVar("_Made")

_FRESH_S = 0.5
"""Within this time a second viewer gets what the first one's refresh has read."""
_MOST_KEPT = 64
"""Charts and tables kept of one run: viewers may choose among many thresholds."""
_MOST_LINES = 200
"""Lines of the log that are shown."""


class Versions(NamedTuple):
    """What is shown of a run; each is another number when it has changed.

    Attributes:
        step: Progress, and what was measured.
        epoch: What is known of whole epochs.
        log: Its lines.
        page: The status, or which parts the page has.
    """

    step: int = 0
    epoch: int = 0
    log: int = 0
    page: int = 0


class RunView:
    """A run's history, diagnosis and charts. Any number of threads may use one instance.

    Args:
        store: Where the run is.
        run_id: Which.

    Raises:
        RunNotFound: There is no such run.
    """

    def __init__(self, store: Store, run_id: str) -> None:
        self._store = store
        self._reading = threading.Lock()
        self._making = threading.Lock()
        self._read_at = 0.0
        self._heard_at = time.monotonic()
        self.job: Job = store.job(run_id)
        self.versions = Versions()
        self._forget()

    def _forget(self) -> None:
        self._last_id = {"step": 0, "epoch": 0, "sample": 0, "log": 0}
        self._steps: dict[str, Series] = {}
        self._samples: dict[str, Series] = {}
        self._made: dict[tuple[Any, ...], tuple[tuple[Any, ...], Any]] = {}
        self.history: list[dict[str, Any]] = []
        self.diagnosis: Diagnosis = diagnose([])
        self.log: deque[LogLine] = deque(maxlen=_MOST_LINES)

    def refresh(self) -> None:
        """Reads what was written since the last look, unless somebody has just done so."""
        if time.monotonic() - self._read_at < _FRESH_S and not self._has_just_changed():
            return
        with self._reading:
            if time.monotonic() - self._read_at < _FRESH_S and not self._has_just_changed():
                return  # somebody has read while this one waited
            before, self.job = self.job, self._store.job(self.job.id)
            if self.job.rewinds != before.rewinds:
                self._forget()
            seen, shape = dict(self._last_id), self._shape
            self._read_steps()
            self._read_epochs()
            self._read_samples()
            self._read_log()
            # A heartbeat alone is nothing to look at.
            same = replace(before, heartbeat_at=self.job.heartbeat_at, elapsed_s=self.job.elapsed_s)
            if self.job.heartbeat_at != before.heartbeat_at:
                self._heard_at = time.monotonic()
            moved = self.job != same
            same = replace(
                same, progress=self.job.progress, phase=self.job.phase, checkpoint=self.job.checkpoint
            )
            self.versions = Versions(
                step=self.versions.step + (moved or {**self._last_id, "log": 0} != {**seen, "log": 0}),
                epoch=self.versions.epoch + (self._last_id["epoch"] != seen["epoch"]),
                log=self.versions.log + (self._last_id["log"] != seen["log"]),
                page=self.versions.page + (self.job != same or self._shape != shape),
            )
            self._read_at = time.monotonic()

    @property
    def _shape(self) -> tuple[Any, ...]:
        """Tells which parts of the page there are."""
        problem = (self.job.checkpoint or {}).get("problem")
        return bool(self.history), self.diagnosis.best_epoch is not None, self.has_calibration, problem

    def _has_just_changed(self) -> bool:
        """A stop request must be seen at once by the one who made it."""
        return self._store.job(self.job.id).status is not self.job.status

    def _read_steps(self) -> None:
        while rows := self._store.step_values(self.job, after=self._last_id["step"]):
            ids, steps, names, values = zip(*rows, strict=True)
            _extend(self._steps, steps, names, values)
            self._last_id["step"] = ids[-1]

    def _read_epochs(self) -> None:
        epochs = self._store.metrics(self.job, per="epoch", after=self._last_id["epoch"])
        if epochs:
            self.history = report.history(self._store, self.job)
            self.diagnosis = diagnose(self.history, num_classes=report.classes(self.job))
            self._last_id["epoch"] = epochs[-1].id

    def _read_samples(self) -> None:
        samples = self._store.samples(self.job, after=self._last_id["sample"])
        if samples:
            columns = zip(*((sample.step, sample.name, sample.value) for sample in samples), strict=True)
            _extend(self._samples, *columns)
            self._last_id["sample"] = samples[-1].id

    def _read_log(self) -> None:
        lines = self._store.logs(self.job, after=self._last_id["log"], limit=_MOST_LINES)
        if lines:
            self.log.extend(lines)
            self._last_id["log"] = lines[-1].id

    @property
    def silent_s(self) -> float:
        """Seconds since the engine's last heartbeat, as this process has seen it; 0 without an engine.

        The times in the store would say otherwise whenever somebody sets the clock.
        """
        return time.monotonic() - self._heard_at if self.job.status in ACTIVE else 0.0

    @property
    def steps_per_epoch(self) -> int:
        """Training steps in an epoch; 1 until the engine says it, 0 where a log from elsewhere does not."""
        return 0 if self.job.kind is Kind.IMPORT else int((self.job.result or {}).get("steps_per_epoch") or 1)

    @property
    def sampled(self) -> list[Quantity]:
        """The quantities of the machine that were sampled."""
        quantities: tuple[Quantity, ...] = ("percent", "bytes", "w")
        return [
            quantity
            for quantity in quantities
            if any(name.endswith(f"_{quantity}") for name in list(self._samples))
        ]

    def stops(self, thresholds: Thresholds) -> list[Stop]:
        """What would have happened under each stopping rule."""
        return self._once(
            ("stops", thresholds), self._by_epoch, lambda: what_would_have_happened(self.history, thresholds)
        )

    def loss(self, axis: Axis, stops: Mapping[str, int], part: Part = WHOLE) -> bytes:
        """The chart of training and validation loss, with the stop epochs of some rules."""
        return self._chart(
            ("loss", axis, *stops.items()),
            self._by_step,
            part,
            lambda: charts.loss_curve(self._curves(axis, stops, part), self._batches("loss")),
        )

    def accuracy(self, axis: Axis, stops: Mapping[str, int], name: str, part: Part = WHOLE) -> bytes:
        """The chart of training and validation accuracy of one kind."""
        return self._chart(
            (name, axis, *stops.items()),
            self._by_step,
            part,
            lambda: charts.accuracy_curve(self._curves(axis, stops, part), self._batches(name), name),
        )

    def gap(self, axis: Axis, stops: Mapping[str, int], part: Part = WHOLE) -> bytes:
        """The chart of the generalization gap."""
        return self._chart(
            ("gap", axis, *stops.items()),
            self._by_epoch,
            part,
            lambda: charts.gap_curve(self._curves(axis, stops, part)),
        )

    def generalization_loss(
        self, axis: Axis, stops: Mapping[str, int], thresholds: Thresholds, part: Part = WHOLE
    ) -> bytes:
        """The chart of GL with its thresholds."""
        alphas = thresholds.generalization_loss
        return self._chart(
            ("GL", axis, alphas, *stops.items()),
            self._by_epoch,
            part,
            lambda: charts.generalization_loss_curve(self._curves(axis, stops, part), alphas),
        )

    @property
    def has_calibration(self) -> bool:
        """Whether the expected calibration error was recorded."""
        return any(f"val_{ERROR}" in row for row in self.history)

    def calibration_error(self, axis: Axis, stops: Mapping[str, int], part: Part = WHOLE) -> bytes:
        """The chart of the expected calibration error, where `has_calibration`."""
        return self._chart(
            ("ECE", axis, *stops.items()),
            self._by_epoch,
            part,
            lambda: charts.calibration_error_curve(self._curves(axis, stops, part)),
        )

    def reliability(self) -> bytes | None:
        """The reliability diagram of the best and the last epoch; None where no bins were recorded."""
        return self._once(("reliability",), self._by_epoch, self._reliability)

    def _reliability(self) -> bytes | None:
        epochs = [self.diagnosis.best_epoch, self.history[-1]["epoch"] if self.history else None]
        diagrams = {
            epoch: report.reliability(self._store, self.job, epoch) for epoch in epochs if epoch is not None
        }
        if not diagrams or not all(diagrams.values()):
            return None
        return charts.reliability_diagram(self.job.id, diagrams)

    def system(self, axis: Axis, quantity: Quantity, part: Part = WHOLE) -> bytes:
        """The chart of one quantity of the machine, one of `sampled`."""
        return self._chart(
            ("system", axis, quantity),
            (*self._by_epoch, self._last_id["sample"]),
            part,
            lambda: charts.system_curve(
                self._curves(axis, {}, part), self._samples, quantity, self._memory_limit_bytes()
            ),
        )

    def _memory_limit_bytes(self) -> float | None:
        """What the layout lets the run take of each physical GPU."""
        layout = self.job.config.get("layout", {})
        limit = layout.get("memory_limit_mb")
        return None if limit is None else limit * layout.get("logical_devices", 1) * 2**20

    def _curves(self, axis: Axis, stops: Mapping[str, int], part: Part) -> Curves:
        if self.job.status.is_final:
            planned = max(len(self.history), 1)
        else:
            planned = parse_config(self.job.config).training.epochs
        return Curves(
            self.job.id, self.history, self.diagnosis, axis, self.steps_per_epoch, planned, stops, part
        )

    @property
    def _by_epoch(self) -> tuple[Any, ...]:
        """Changes when a chart of epochs does."""
        return self._last_id["epoch"], self.job.status, self.steps_per_epoch

    @property
    def _by_step(self) -> tuple[Any, ...]:
        """Changes when a chart of steps does."""
        return (*self._by_epoch, self._last_id["step"])

    def _chart(
        self, key: tuple[Any, ...], depends: tuple[Any, ...], part: Part, make: Callable[[], bytes]
    ) -> bytes:
        if part.every_point:
            # For a file, seldom asked for and as large as the run.
            with self._making:
                return make()
        return self._once((*key, part), depends, make)

    def _once(self, key: tuple[Any, ...], depends: tuple[Any, ...], make: Callable[[], _Made]) -> _Made:
        """What was made under this key, or makes it when what it depends on has changed."""
        known = self._made.get(key)
        # Looked up without the lock too: a hundred viewers need not wait in line for what is there.
        if known is None or known[0] != depends:
            with self._making:
                known = self._made.get(key)
                if known is None or known[0] != depends:
                    known = depends, make()
                    if len(self._made) >= _MOST_KEPT:
                        self._made.clear()
                    self._made[key] = known
        made: _Made = known[1]
        return made

    def _batches(self, name: str) -> Series:
        return self._steps.get(name) or Series()


def _extend(
    series: dict[str, Series], steps: Sequence[int], names: Sequence[str], values: Sequence[float | None]
) -> None:
    all_steps, all_names = np.array(steps, np.int64), np.array(names)
    all_values = np.array(values, np.float64)  # None becomes NaN
    for name in dict.fromkeys(names):
        its = all_names == name
        series.setdefault(name, Series()).extend(all_steps[its], all_values[its])


def view(store: Store, run_id: str) -> RunView:
    """The shared view of a run, refreshed.

    Raises:
        RunNotFound: There is no such run.
    """
    shared = _view(store.home, run_id, store)
    shared.refresh()
    return shared


@st.cache_resource(show_spinner=False, max_entries=64)
def _view(home: Path, run_id: str, _store: Store) -> RunView:  # noqa: ARG001 - home is part of the key
    return RunView(_store, run_id)
