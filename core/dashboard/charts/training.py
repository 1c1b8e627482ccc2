"""Charts of a run: loss, accuracy and generalization gap, with the best epoch marked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from core.analysis.overfitting import Diagnosis
from core.dashboard import units
from core.dashboard.charts.component import chart

Axis = Literal["epoch", "step"]

_WINDOW = 15
"""Batches in the running mean."""
_MOST_POINTS = 3_000
"""Batches drawn at most; a screen has fewer pixels."""
_ROOM = 10
"""Epochs that the x axis has room for at least."""


@dataclass(frozen=True)
class StepValues:
    """The values of every step's own batch. `steps` is global, zero-based; both have shape (steps,)."""

    steps: NDArray[np.int64]
    values: NDArray[np.float64]


@dataclass(frozen=True)
class Curves:
    """What the charts of a run have in common.

    Attributes:
        run_id: Zoom and hidden traces are kept as long as this stays the same.
        history: One object an epoch, see `core.report.history`.
        diagnosis: Of that history.
        axis: What the x axis counts.
        steps_per_epoch: Training steps in an epoch.
        planned: Epochs that the run will have when it goes on; those it has when it is over.
    """

    run_id: str
    history: Sequence[dict[str, Any]]
    diagnosis: Diagnosis
    axis: Axis
    steps_per_epoch: int
    planned: int

    @property
    def scale(self) -> int:
        """Units of the x axis in an epoch."""
        return 1 if self.axis == "epoch" else self.steps_per_epoch

    @property
    def x(self) -> list[int]:
        """Where each epoch ends."""
        return [row["epoch"] * self.scale for row in self.history]

    @property
    def end(self) -> int:
        """Where the x axis ends: room for the epochs to come, but not for thousands of them."""
        done = len(self.history) + 1
        return min(self.planned, max(_ROOM, done + done // 3)) * self.scale

    @property
    def epochs(self) -> list[int]:
        """One-based numbers of the epochs."""
        return [row["epoch"] for row in self.history]


def loss_curve(curves: Curves, batches: StepValues) -> bytes:
    """Training and validation loss.

    Args:
        curves: The run.
        batches: Loss of each step's batch.
    """
    figure = _figure(curves, batches, "loss", digits=3)
    figure.update_yaxes(title_text="Cross-entropy loss (nats)", rangemode="tozero")
    _annotate(figure, curves)
    return chart(_finish(figure, curves), "Loss: training against validation", _in_words("loss", curves))


def accuracy_curve(curves: Curves, batches: StepValues, name: str) -> bytes:
    """Training and validation accuracy.

    Args:
        curves: The run.
        batches: Accuracy of each step's batch.
        name: Which accuracy, as Keras names it.
    """
    figure = _figure(curves, batches, name, digits=4)
    figure.update_yaxes(title_text="Accuracy (share of newswires)", tickformat=".0%")
    _annotate(figure, curves)
    kind = "Top-5 accuracy" if "top_k" in name else "Accuracy"
    return chart(_finish(figure, curves), f"{kind}: training against validation", _in_words(name, curves))


def gap_curve(curves: Curves) -> bytes:
    """The generalization gap, validation loss minus training loss, by epoch."""
    gaps = curves.diagnosis.gap
    figure = go.Figure(
        go.Scatter(
            x=curves.x,
            y=_floats(gaps),
            mode="lines+markers",
            line={"color": "var(--st-violet-color)", "width": 2},
            fill="tozeroy",
            fillcolor="var(--st-violet-background-color)",
            customdata=curves.epochs,
            hovertemplate="epoch %{customdata}: gap %{y:+.3f} nats<extra></extra>",
            showlegend=False,
        )
    )
    figure.update_yaxes(title_text="Gap (nats)")
    _annotate(figure, curves)
    last = next((gap for gap in reversed(gaps) if gap is not None), None)
    description = "No epoch has ended yet."
    if last is not None:
        description = (
            f"Validation loss minus training loss is {last:+.3f} nats after epoch {curves.epochs[-1]}."
        )
    return chart(
        _finish(figure, curves, height=210),
        "Generalization gap: validation loss minus training loss",
        description,
    )


def _figure(curves: Curves, batches: StepValues, name: str, digits: int) -> go.Figure:
    figure = go.Figure()
    # Both traces are there from the first refresh on: a trace that came later would shift the others,
    # and with them what the viewer has hidden.
    smoothed = _smoothed(batches.values)
    shown = _extremes(batches.values, _MOST_POINTS)
    steps = (batches.steps[shown] + 1).astype(np.int32)
    x = (steps / curves.steps_per_epoch).astype(np.float32) if curves.axis == "epoch" else steps
    figure.add_scatter(
        x=x,
        y=batches.values[shown].astype(np.float32),
        name="each batch",
        mode="lines",
        line={"width": 1, "color": "var(--st-gray-color)"},
        opacity=0.3,
        customdata=steps,
        hovertemplate=f"step %{{customdata:,}}: %{{y:.{digits}f}}<extra>batch</extra>",
    )
    figure.add_scatter(
        x=x,
        y=smoothed[shown].astype(np.float32),
        name="batches, smoothed",
        mode="lines",
        line={"width": 1.5, "color": "var(--st-gray-color)"},
        opacity=0.8,
        hoverinfo="skip",
    )
    for place, (label, key, symbol) in enumerate(
        (("training", name, "circle"), ("validation", f"val_{name}", "diamond"))
    ):
        figure.add_scatter(
            x=curves.x,
            y=_floats([row.get(key) for row in curves.history]),
            name=label,
            mode="lines+markers",
            line={"width": 2.5, "color": f"var(--palette-{place})"},
            marker={"size": 7, "symbol": symbol, "color": f"var(--palette-{place})"},
            customdata=curves.epochs,
            hovertemplate=f"epoch %{{customdata}}: %{{y:.{digits}f}}<extra>{label}</extra>",
        )
    return figure


def _extremes(values: NDArray[np.float64], most: int) -> NDArray[np.int64]:
    """Places of at most `most` values that keep every peak: the lowest and the highest of equal stretches."""
    if len(values) <= most:
        return np.arange(len(values))
    length = -(-2 * len(values) // most)
    padded = np.pad(values, (0, -len(values) % length), mode="edge").reshape(-1, length)
    first = np.arange(len(padded)) * length
    lowest = np.where(np.isnan(padded), np.inf, padded).argmin(axis=1)
    highest = np.where(np.isnan(padded), -np.inf, padded).argmax(axis=1)
    return np.unique(np.minimum(np.concatenate([first + lowest, first + highest]), len(values) - 1))


def _smoothed(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """A running mean over the last batches; a value that is not finite leaves a hole in it."""
    finite = np.isfinite(values)
    total = np.cumsum(np.concatenate([[0.0], np.where(finite, values, 0.0)]))
    count = np.cumsum(np.concatenate([[0], finite]))
    end = np.arange(1, len(values) + 1)
    begin = np.maximum(end - _WINDOW, 0)
    return np.where(finite, (total[end] - total[begin]) / np.maximum(count[end] - count[begin], 1), np.nan)


def _annotate(figure: go.Figure, curves: Curves) -> None:
    """Marks the best epoch and shades what comes after it."""
    best = curves.diagnosis.best_epoch
    if best is None or len(curves.history) < 2:  # noqa: PLR2004 - a single epoch is best by default
        return
    last = curves.epochs[-1]
    at, end = best * curves.scale, last * curves.scale
    figure.add_vline(x=at, line={"width": 1.5, "dash": "dash", "color": "var(--st-green-color)"})
    overfits = curves.diagnosis.overfit_from is not None
    figure.add_annotation(
        x=at,
        y=1,
        yref="paper",
        yanchor="top",
        xanchor="right" if best > 0.7 * last else "left",
        align="left",
        text=f" best epoch {best} <br> overfitting after it " if overfits else f" best epoch {best} ",
        showarrow=False,
        font={"color": "var(--st-green-text-color)"},
        bgcolor="var(--st-background-color)",
        opacity=0.9,
    )
    if overfits:
        figure.add_vrect(
            x0=at, x1=end, line_width=0, fillcolor="var(--st-orange-color)", opacity=0.1, layer="below"
        )


def _finish(figure: go.Figure, curves: Curves, height: int = 360) -> go.Figure:
    by_epoch = curves.axis == "epoch"
    figure.update_xaxes(
        title_text="Epoch" if by_epoch else "Training step", tickformat=",d", range=[0, curves.end * 1.02]
    )
    if by_epoch and curves.end <= 2 * _ROOM:
        figure.update_xaxes(dtick=1)
    # Zoom stays as long as the axis does, hidden traces as long as the run does.
    figure.update_layout(height=height, uirevision=f"{curves.run_id} {curves.axis}", hovermode="closest")
    figure.update_layout(legend_uirevision=curves.run_id)
    return figure


def _floats(values: Sequence[float | None]) -> NDArray[np.float64]:
    """None becomes NaN, at which plotly.js breaks the line."""
    return np.array([np.nan if value is None else value for value in values], np.float64)


def _in_words(name: str, curves: Curves) -> str:
    if not curves.history:
        return "No epoch has ended yet."
    last = curves.history[-1]
    return (
        f"After epoch {last['epoch']}: training {units.number(last.get(name))},"
        f" validation {units.number(last.get(f'val_{name}'))}. {curves.diagnosis.sentence}"
    )
