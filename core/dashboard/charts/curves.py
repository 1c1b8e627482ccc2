"""What a run's charts have in common: their x axis, lines by epoch, and marks of the epochs that matter."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from core.analysis.overfitting import Diagnosis
from core.dashboard.charts.component import WHOLE, Part
from core.dashboard.charts.series import Series, shown

Axis = Literal["epoch", "step"]

_ROOM = 10
"""Epochs that the x axis has room for at least."""
_MOST_MARKERS = 200
"""Epochs up to which each has a marker."""
_ABOVE = 20
"""Room above the plot for the label of the best epoch, in pixels."""
_LEGEND = 1.08
"""Height of the legend's foot, above that label, as a share of the plot's."""
APART = 0.07
"""Share of an axis that two labels must be apart to have one each."""


@dataclass(frozen=True)
class Curves:
    """What the charts of a run have in common.

    Attributes:
        run_id: Zoom and hidden traces are kept as long as this stays the same.
        history: One object an epoch, see `core.report.history`.
        diagnosis: Of that history.
        axis: What the x axis counts.
        steps_per_epoch: Training steps in an epoch.
        planned: Last epoch that the run will have when it goes on; when it is over, the last that it began.
        stops: One-based epoch after which each stopping criterion to be marked would have stopped.
        part: What of the chart is looked at.
    """

    run_id: str
    history: Sequence[dict[str, Any]]
    diagnosis: Diagnosis
    axis: Axis
    steps_per_epoch: int
    planned: int
    stops: Mapping[str, int]
    part: Part = WHOLE

    @property
    def revision(self) -> str:
        """Zoom is kept as long as this stays the same: the run and its axis."""
        return f"{self.run_id} {self.axis}"

    @property
    def scale(self) -> int:
        """Units of the x axis in an epoch."""
        return 1 if self.axis == "epoch" else self.steps_per_epoch

    @property
    def begin(self) -> int:
        """Where the x axis begins: later than at 0 when a log from elsewhere does."""
        return max(self.history[0]["epoch"] - 1, 0) * self.scale if self.history else 0

    @property
    def end(self) -> int:
        """Where the x axis ends: room for the epochs to come, but not for thousands of them."""
        done = self.history[-1]["epoch"] + 1 if self.history else 1
        return min(self.planned, max(_ROOM, done + done // 3)) * self.scale

    @property
    def span(self) -> int:
        """Length of the x axis."""
        return self.end - self.begin

    @property
    def epochs(self) -> list[int]:
        """One-based numbers of the epochs."""
        return [row["epoch"] for row in self.history]

    def drawn(self, x: NDArray[Any], values: NDArray[np.float64]) -> NDArray[np.int64]:
        """Places of the values that are drawn; `x` and `values` have shape (n,), `x` ascends."""
        if self.part.every_point:
            return np.arange(len(values))
        return shown(x, values, self.part.visible(self.revision))

    def drawn_steps(self, series: Series) -> NDArray[np.int64]:
        """The same for values by step, without an x for each of them."""
        if self.part.every_point:
            return np.arange(len(series))
        visible = self.part.visible(self.revision)
        if visible is not None:
            per_unit = self.steps_per_epoch / self.scale
            visible = (visible[0] * per_unit - 1, visible[1] * per_unit - 1)
        return shown(series.steps, series.values, visible)


def strip(curves: Curves, values: Sequence[float | None], colour: str, hover: str) -> go.Figure:
    """A line with one value an epoch, filled down to zero, in one of Streamlit's named colours."""
    return go.Figure(
        by_epoch(
            curves,
            values,
            line={"color": f"var(--st-{colour}-color)", "width": 2},
            fill="tozeroy",
            fillcolor=f"var(--st-{colour}-background-color)",
            hovertemplate=hover,
            showlegend=False,
            cliponaxis=False,  # else the outer markers are cut in half
        )
    )


def by_epoch(curves: Curves, values: Sequence[float | None], **looks: Any) -> go.Scatter:
    """A trace with one value an epoch, or of the highest and lowest where there are too many to be seen."""
    y = _floats(values)
    epochs = np.array(curves.epochs, np.int32)
    drawn = curves.drawn(epochs * curves.scale, y)
    epochs = epochs[drawn]
    mode = "lines+markers" if len(y) <= _MOST_MARKERS else "lines"
    return go.Scatter(x=epochs * curves.scale, y=y[drawn], mode=mode, customdata=epochs, **looks)


def annotate(figure: go.Figure, curves: Curves, labels_at: int | None = None) -> None:
    """Marks the best epoch and the stopping criteria, and shades from where the model overfits.

    Args:
        figure: What to mark.
        curves: The run.
        labels_at: Where the names of the criteria stand: 0 at the foot, 1 at the top, None nowhere.
    """
    # From the first refresh on, so that nothing moves when the label comes.
    figure.update_layout(margin_t=_ABOVE, legend_y=_LEGEND)
    best = curves.diagnosis.best_epoch
    if best is None or len(curves.history) < 2:  # noqa: PLR2004 - a single epoch is best by default
        return
    last = curves.epochs[-1]
    at, end = best * curves.scale, last * curves.scale
    _mark_stops(figure, curves, labels_at)
    _across(figure, at, at, line={"width": 1.5, "dash": "dash", "color": "var(--st-green-color)"})
    overfit_from = curves.diagnosis.overfit_from
    figure.add_annotation(
        x=at,
        y=1,
        yref="paper",
        # Above the plot, where it hides nothing, and towards the side that has room for it.
        yanchor="bottom",
        xanchor="right" if at > curves.begin + curves.span / 2 else "left",
        text=f"best epoch {best}, then overfitting" if overfit_from else f"best epoch {best}",
        showarrow=False,
        font={"color": "var(--st-green-text-color)", "size": 11},
    )
    if overfit_from:
        _across(
            figure,
            overfit_from * curves.scale,
            end,
            type="rect",
            line_width=0,
            fillcolor="var(--st-orange-color)",
            opacity=0.1,
            layer="below",
        )


def _across(figure: go.Figure, begin: float, end: float, **looks: Any) -> None:
    """A shape from the foot to the top; add_vline and add_vrect take ten times as long (Plotly 7.1)."""
    looks = {"type": "line", **looks}
    figure.add_shape(x0=begin, x1=end, y0=0, y1=1, yref="y domain", **looks)


def _mark_stops(figure: go.Figure, curves: Curves, labels_at: int | None) -> None:
    """A thin line where criteria would have stopped; those that coincide share it and its label."""
    stops = [(float(epoch * curves.scale), rule) for rule, epoch in curves.stops.items()]
    for at in {at for at, _ in stops}:
        _across(figure, at, at, line={"width": 1, "dash": "dot", "color": "var(--st-text-color)"})
    if labels_at is None:
        return
    for at, names in grouped(stops, 0.6 * APART * curves.span):
        figure.add_annotation(
            x=at,
            y=labels_at,
            yref="paper",
            yanchor="top" if labels_at else "bottom",
            yshift=-4 if labels_at else 4,
            xanchor="right",
            text=names,
            textangle=-90,
            showarrow=False,
            font_size=10,
        )


def grouped(places: Iterable[tuple[float, str]], apart: float) -> list[tuple[float, str]]:
    """Names by place; what lies closer than `apart` to the first of a group is named with it."""
    groups: list[tuple[float, list[str]]] = []
    for place, name in sorted(places, key=lambda item: item[0]):
        if groups and place - groups[-1][0] < apart:
            groups[-1][1].append(name)
        else:
            groups.append((place, [name]))
    return [(place, ", ".join(names)) for place, names in groups]


def finish(figure: go.Figure, curves: Curves, height: int = 360) -> go.Figure:
    """Gives a chart the run's x axis, and keeps what its viewer has zoomed and hidden."""
    in_epochs = curves.axis == "epoch"
    figure.update_xaxes(
        title_text="Epoch" if in_epochs else "Training step",
        tickformat=",d",
        range=[curves.begin, curves.end + 0.02 * curves.span],
    )
    if in_epochs and curves.span <= 2 * _ROOM:
        figure.update_xaxes(dtick=1)
    # Zoom stays as long as the axis does, hidden traces as long as the run does.
    figure.update_layout(height=height, uirevision=curves.revision, hovermode="closest")
    figure.update_layout(legend_uirevision=curves.run_id)
    return figure


def _floats(values: Sequence[float | None]) -> NDArray[np.float64]:
    """None becomes NaN, at which plotly.js breaks the line."""
    return np.array([np.nan if value is None else value for value in values], np.float64)
