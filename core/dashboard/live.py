"""What the page of a run shows, read and drawn once for everybody who looks at it."""

from __future__ import annotations

import threading
import time
from array import array
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import streamlit as st

from core import report
from core.analysis.calibration import ERROR
from core.analysis.criteria import Stop, Thresholds, what_would_have_happened
from core.analysis.overfitting import Diagnosis, diagnose
from core.config import parse_config
from core.dashboard import charts
from core.dashboard.charts import Axis, Curves, Quantity, StepValues
from core.records import Job, Kind, Metric, Sample
from core.store import Store

_Made = TypeVar("_Made")

_FRESH_S = 0.5
"""Within this time a second viewer gets what the first one's refresh has read."""
_MOST_KEPT = 64
"""Charts and tables kept of one run: viewers may choose among many thresholds."""


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
        self._lock = threading.Lock()
        self._read_at = 0.0
        self._last_id = {"step": 0, "epoch": 0, "sample": 0}
        self._steps: dict[str, tuple[array[int], array[float]]] = {}
        self._samples: dict[str, tuple[array[int], array[float]]] = {}
        self._made: dict[tuple[Any, ...], Any] = {}
        self.job: Job = store.job(run_id)
        self.history: list[dict[str, Any]] = []
        self.diagnosis: Diagnosis = diagnose([])

    def refresh(self) -> None:
        """Reads what was written since the last look, unless somebody has just done so."""
        with self._lock:
            if time.monotonic() - self._read_at < _FRESH_S and not self._has_just_changed():
                return
            before, self.job = self.job, self._store.job(self.job.id)
            steps, epochs = (
                self._store.metrics(self.job, per=per, after=self._last_id[per]) for per in ("step", "epoch")
            )
            samples = self._store.samples(self.job, after=self._last_id["sample"])
            _append(self._steps, steps)
            _append(self._samples, samples)
            if samples:
                self._last_id["sample"] = samples[-1].id
            if epochs:
                self.history = report.history(self._store, self.job)
                self.diagnosis = diagnose(self.history, num_classes=report.classes(self.job))
            for rows in (steps, epochs):
                if rows:
                    self._last_id[rows[-1].per] = rows[-1].id
            if steps or epochs or samples or self.job.status is not before.status:
                self._made.clear()
            self._read_at = time.monotonic()

    def _has_just_changed(self) -> bool:
        """A stop request must be seen at once by the one who made it."""
        return self._store.job(self.job.id).status is not self.job.status

    @property
    def steps_per_epoch(self) -> int:
        """Training steps in an epoch; 1 until the engine says it, 0 where a log from elsewhere does not."""
        return 0 if self.job.kind is Kind.IMPORT else int((self.job.result or {}).get("steps_per_epoch") or 1)

    def stops(self, thresholds: Thresholds) -> list[Stop]:
        """What would have happened under each stopping rule."""
        return self._once(("stops", thresholds), lambda: what_would_have_happened(self.history, thresholds))

    def loss(self, axis: Axis, stops: Mapping[str, int]) -> bytes:
        """The chart of training and validation loss, with the stop epochs of some rules."""
        return self._once(
            ("loss", axis, *stops.items()),
            lambda: charts.loss_curve(self._curves(axis, stops), self._batches("loss")),
        )

    def accuracy(self, axis: Axis, stops: Mapping[str, int], name: str) -> bytes:
        """The chart of training and validation accuracy of one kind."""
        return self._once(
            (name, axis, *stops.items()),
            lambda: charts.accuracy_curve(self._curves(axis, stops), self._batches(name), name),
        )

    def gap(self, axis: Axis, stops: Mapping[str, int]) -> bytes:
        """The chart of the generalization gap."""
        return self._once(("gap", axis, *stops.items()), lambda: charts.gap_curve(self._curves(axis, stops)))

    def generalization_loss(self, axis: Axis, stops: Mapping[str, int], thresholds: Thresholds) -> bytes:
        """The chart of GL with its thresholds."""
        alphas = thresholds.generalization_loss
        return self._once(
            ("GL", axis, alphas, *stops.items()),
            lambda: charts.generalization_loss_curve(self._curves(axis, stops), alphas),
        )

    def calibration_error(self, axis: Axis, stops: Mapping[str, int]) -> bytes | None:
        """The chart of the expected calibration error; None where it was not recorded."""
        if not any(f"val_{ERROR}" in row for row in self.history):
            return None
        return self._once(
            ("ECE", axis, *stops.items()), lambda: charts.calibration_error_curve(self._curves(axis, stops))
        )

    def reliability(self) -> bytes | None:
        """The reliability diagram of the best and the last epoch; None where no bins were recorded."""
        return self._once(("reliability",), self._reliability)

    def _reliability(self) -> bytes | None:
        epochs = [self.diagnosis.best_epoch, self.history[-1]["epoch"] if self.history else None]
        diagrams = {
            epoch: report.reliability(self._store, self.job, epoch) for epoch in epochs if epoch is not None
        }
        if not diagrams or not all(diagrams.values()):
            return None
        return charts.reliability_diagram(self.job.id, diagrams)

    def system(self, axis: Axis, quantity: Quantity) -> bytes | None:
        """The chart of one quantity of the machine; None where it was not sampled."""
        return self._once(
            ("system", axis, quantity),
            lambda: charts.system_curve(
                self._curves(axis, {}),
                {name: _values(*columns) for name, columns in self._samples.items()},
                quantity,
                self._memory_limit_bytes(),
            ),
        )

    def _memory_limit_bytes(self) -> float | None:
        """What the layout lets the run take of each physical GPU."""
        layout = self.job.config.get("layout", {})
        limit = layout.get("memory_limit_mb")
        return None if limit is None else limit * layout.get("logical_devices", 1) * 2**20

    def _curves(self, axis: Axis, stops: Mapping[str, int]) -> Curves:
        if self.job.status.is_final:
            planned = max(len(self.history), 1)
        else:
            planned = parse_config(self.job.config).training.epochs
        return Curves(self.job.id, self.history, self.diagnosis, axis, self.steps_per_epoch, planned, stops)

    def _once(self, key: tuple[Any, ...], make: Callable[[], _Made]) -> _Made:
        """What was made under this key since the last new row, or makes it."""
        with self._lock:
            if key not in self._made:
                if len(self._made) >= _MOST_KEPT:
                    self._made.clear()
                self._made[key] = make()
            made: _Made = self._made[key]
            return made

    def _batches(self, name: str) -> StepValues:
        return _values(*self._steps.get(name, (array("q"), array("d"))))


def _append(columns: dict[str, tuple[array[int], array[float]]], rows: Sequence[Metric | Sample]) -> None:
    for row in rows:
        at, values = columns.setdefault(row.name, (array("q"), array("d")))
        at.append(row.step)
        values.append(np.nan if row.value is None else row.value)


def _values(steps: array[int], values: array[float]) -> StepValues:
    # Copies: an array that lends out its memory could not grow.
    return StepValues(np.array(steps, np.int64), np.array(values, np.float64))


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
