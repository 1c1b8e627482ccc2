"""What the page of a run shows, drawn once for everybody who looks at it."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import streamlit as st

from core import report
from core.analysis.criteria import Stop, Thresholds, what_would_have_happened
from core.config import parse_config
from core.dashboard import charts
from core.dashboard.charts import WHOLE, Axis, Curves, Part, Quantity, Series
from core.dashboard.reading import Reading
from core.store import Store

_Made = TypeVar("_Made")

_MOST_KEPT = 64
"""Charts and tables kept of one run: viewers may choose among many thresholds."""
_MOST_RUNS = 16
"""Runs kept: with a million steps each they take a gigabyte. One that is not kept is read again."""


class RunView(Reading):
    """A run's charts and tables, each made once. Any number of threads may use one instance."""

    def __init__(self, store: Store, run_id: str) -> None:
        super().__init__(store, run_id)
        self._making = threading.Lock()
        self._made: dict[tuple[Any, ...], tuple[tuple[Any, ...], Any]] = {}

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
            # A run that was ended in mid-epoch shows how, too.
            steps = self._batches("loss").steps[-1:] + 1
            begun = [math.ceil(step / self.steps_per_epoch) for step in steps]
            planned = max([1, *begun, *(row["epoch"] for row in self.history[-1:])])
        else:
            planned = parse_config(self.job.config).training.epochs
        return Curves(
            self.job.id, self.history, self.diagnosis, axis, self.steps_per_epoch, planned, stops, part
        )

    @property
    def _by_epoch(self) -> tuple[Any, ...]:
        """Changes when a chart of epochs does."""
        return self.job.rewinds, self._last_id["epoch"], self.job.status, self.steps_per_epoch

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


def view(store: Store, run_id: str) -> RunView:
    """The shared view of a run, refreshed.

    Raises:
        RunNotFound: There is no such run.
    """
    shared = _view(store.home, run_id, store)
    shared.refresh()
    return shared


@st.cache_resource(show_spinner=False, max_entries=_MOST_RUNS)
def _view(home: Path, run_id: str, _store: Store) -> RunView:  # noqa: ARG001 - home is part of the key
    return RunView(_store, run_id)
