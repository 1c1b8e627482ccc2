"""Charts of a run: loss, accuracy and what they say of generalization, with the epochs that matter marked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from core.analysis.overfitting import Diagnosis
from core.dashboard import units
from core.dashboard.charts.component import WHOLE, Part, chart, is_empty, say_if_empty
from core.dashboard.charts.series import Series, is_thinned, shown

Axis = Literal["epoch", "step"]

_ROOM = 10
"""Epochs that the x axis has room for at least."""
_MOST_MARKERS = 200
"""Epochs up to which each has a marker."""
_TOWER = 100
"""How many times the first loss another must be for the axis to become logarithmic."""
_STRIP = 210
"""Height of a small chart in pixels."""
_ABOVE = 20
"""Room above the plot for the label of the best epoch, in pixels."""
_LEGEND = 1.08
"""Height of the legend's foot, above that label, as a share of the plot's."""
_APART = 0.07
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
        planned: Epochs that the run will have when it goes on; those it has when it is over.
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
    def end(self) -> int:
        """Where the x axis ends: room for the epochs to come, but not for thousands of them."""
        done = len(self.history) + 1
        return min(self.planned, max(_ROOM, done + done // 3)) * self.scale

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


def loss_curve(curves: Curves, batches: Series) -> bytes:
    """Training and validation loss.

    Args:
        curves: The run.
        batches: Loss of each step's batch.
    """
    figure = _figure(curves, batches, "loss", digits=3)
    if _towers(curves, figure.data[0].y):
        figure.update_yaxes(title_text="Cross-entropy loss (nats, logarithmic)", type="log")
    else:
        figure.update_yaxes(title_text="Cross-entropy loss (nats)", rangemode="tozero")
    annotate(figure, curves, labels_at=1)
    _say_if_nothing_is_finite(figure, curves, "loss", "Every loss was NaN or infinite: the run diverged.")
    return chart(
        finish(figure, curves),
        "Loss: training against validation",
        _in_words("loss", curves),
        file=f"{curves.run_id}-loss",
        thinned=_is_thinned(curves, batches),
    )


def _is_thinned(curves: Curves, batches: Series) -> bool:
    return is_thinned(len(batches)) or is_thinned(len(curves.history))


def _towers(curves: Curves, batches: NDArray[np.float64]) -> bool:
    """True when the losses of a training that diverges would press all others onto the axis."""
    epochs = [row.get(name) for row in curves.history for name in ("loss", "val_loss")]
    losses = np.concatenate([batches, np.array(epochs, np.float64)])
    losses = losses[np.isfinite(losses)]
    return losses.size > 0 and float(losses.max()) > _TOWER * max(float(losses[0]), 1.0)


def accuracy_curve(curves: Curves, batches: Series, name: str) -> bytes:
    """Training and validation accuracy.

    Args:
        curves: The run.
        batches: Accuracy of each step's batch.
        name: Which accuracy, as Keras names it.
    """
    figure = _figure(curves, batches, name, digits=4)
    figure.update_yaxes(title_text="Accuracy (share of examples)", tickformat=".3~%")
    if is_empty(figure):
        figure.update_yaxes(range=[0, 1])  # else an empty chart goes from -100 % to 400 %
    annotate(figure, curves, labels_at=0)
    _say_if_nothing_is_finite(figure, curves, name, "Every accuracy was NaN or infinite.")
    kind = "Top-5 accuracy" if "top_k" in name else "Accuracy"
    return chart(
        finish(figure, curves),
        f"{kind}: training against validation",
        _in_words(name, curves),
        file=f"{curves.run_id}-{kind.lower().replace(' ', '-')}",
        thinned=_is_thinned(curves, batches),
    )


def gap_curve(curves: Curves) -> bytes:
    """The generalization gap, validation loss minus training loss, by epoch."""
    gaps = curves.diagnosis.gap
    figure = strip(curves, gaps, "violet", "epoch %{customdata}: gap %{y:+.3f} nats<extra></extra>")
    figure.update_yaxes(title_text="Gap (nats)")
    annotate(figure, curves)
    if gaps:
        say_if_empty(figure, "No epoch has a finite loss of both kinds.")
    last = next((gap for gap in reversed(gaps) if gap is not None), None)
    description = "No epoch has ended yet."
    if last is not None:
        description = (
            f"Validation loss minus training loss is {last:+.3f} nats after epoch {curves.epochs[-1]}."
        )
    return chart(
        finish(figure, curves, height=_STRIP),
        "Generalization gap: validation loss minus training loss",
        description,
        file=f"{curves.run_id}-generalization-gap",
        thinned=is_thinned(len(gaps)),
    )


def generalization_loss_curve(curves: Curves, thresholds: Sequence[float]) -> bytes:
    """Prechelt's GL by epoch, with the thresholds at which training would have stopped.

    Args:
        curves: The run.
        thresholds: α of each GL_α, in percent.
    """
    values = curves.diagnosis.generalization_loss
    figure = strip(curves, values, "blue", "epoch %{customdata}: GL %{y:.1f} %<extra></extra>")
    known = [value for value in values if value is not None]
    top = 1.08 * max([*known, *thresholds, 1.0])
    for height, names in _grouped([(alpha, f"GL_{alpha:g}") for alpha in thresholds], _APART * 2 * top):
        figure.add_annotation(
            x=0,  # the first epoch ends further right, and GL begins at 0
            xref="paper",
            xanchor="left",
            y=height,
            yanchor="bottom",
            text=names,
            showarrow=False,
            font_size=10,
            bgcolor="var(--st-background-color)",
            opacity=0.85,
        )
    for alpha in thresholds:
        figure.add_hline(y=alpha, line={"width": 1, "dash": "dash", "color": "var(--st-text-color)"})
    figure.update_yaxes(title_text="GL (%)", range=[-0.04 * top, top])
    annotate(figure, curves)
    if values:
        say_if_empty(figure, "No epoch has a finite validation loss.")
    description = "No epoch has ended yet."
    if known:
        description = f"GL is at most {max(known):,.1f} %; the thresholds are {_listed(thresholds)} %."
    return chart(
        finish(figure, curves, height=_STRIP),
        "Generalization loss GL: percent above the lowest validation loss so far",
        description,
        file=f"{curves.run_id}-generalization-loss",
        thinned=is_thinned(len(values)),
    )


def strip(curves: Curves, values: Sequence[float | None], colour: str, hover: str) -> go.Figure:
    """A line with one value an epoch, filled down to zero, in one of Streamlit's named colours."""
    return go.Figure(
        _by_epoch(
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


def _by_epoch(curves: Curves, values: Sequence[float | None], **looks: Any) -> go.Scatter:
    """A trace with one value an epoch, or of the highest and lowest where there are too many to be seen."""
    y = _floats(values)
    epochs = np.array(curves.epochs, np.int32)
    drawn = curves.drawn(epochs * curves.scale, y)
    epochs = epochs[drawn]
    mode = "lines+markers" if len(y) <= _MOST_MARKERS else "lines"
    return go.Scatter(x=epochs * curves.scale, y=y[drawn], mode=mode, customdata=epochs, **looks)


def _figure(curves: Curves, batches: Series, name: str, digits: int) -> go.Figure:
    figure = go.Figure()
    # Both traces are there from the first refresh on: a trace that came later would shift the others,
    # and with them what the viewer has hidden.
    drawn = curves.drawn_steps(batches)
    steps = (batches.steps[drawn] + 1).astype(np.int32)
    # Half as many bytes for the screen, all digits for a file.
    precision = np.float64 if curves.part.every_point else np.float32
    x = (steps / curves.steps_per_epoch).astype(precision) if curves.axis == "epoch" else steps
    figure.add_scatter(
        x=x,
        y=batches.values[drawn].astype(precision),
        name="each batch",
        mode="lines",
        line={"width": 1, "color": "var(--st-gray-color)"},
        opacity=0.3,
        customdata=steps,
        hovertemplate=f"step %{{customdata:,}}: %{{y:.{digits}f}}<extra>batch</extra>",
    )
    figure.add_scatter(
        x=x,
        y=batches.smoothed[drawn].astype(precision),
        name="batches, smoothed",
        mode="lines",
        line={"width": 1.5, "color": "var(--st-gray-color)"},
        opacity=0.8,
        hoverinfo="skip",
    )
    for place, (label, key, symbol) in enumerate(
        (("training", name, "circle"), ("validation", f"val_{name}", "diamond"))
    ):
        figure.add_trace(
            _by_epoch(
                curves,
                [row.get(key) for row in curves.history],
                name=label,
                line={"width": 2.5, "color": f"var(--palette-{place})"},
                marker={"size": 7, "symbol": symbol, "color": f"var(--palette-{place})"},
                hovertemplate=f"epoch %{{customdata}}: %{{y:.{digits}f}}<extra>{label}</extra>",
            )
        )
    return figure


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
        xanchor="right" if at > curves.end / 2 else "left",
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
    for at, names in _grouped(stops, 0.6 * _APART * curves.end):
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


def _grouped(places: Iterable[tuple[float, str]], apart: float) -> list[tuple[float, str]]:
    """Names by place; what lies closer than `apart` to the first of a group is named with it."""
    groups: list[tuple[float, list[str]]] = []
    for place, name in sorted(places, key=lambda item: item[0]):
        if groups and place - groups[-1][0] < apart:
            groups[-1][1].append(name)
        else:
            groups.append((place, [name]))
    return [(place, ", ".join(names)) for place, names in groups]


def _listed(values: Sequence[float]) -> str:
    return ", ".join(f"{value:g}" for value in values)


def finish(figure: go.Figure, curves: Curves, height: int = 360) -> go.Figure:
    """Gives a chart the run's x axis, and keeps what its viewer has zoomed and hidden."""
    by_epoch = curves.axis == "epoch"
    figure.update_xaxes(
        title_text="Epoch" if by_epoch else "Training step", tickformat=",d", range=[0, curves.end * 1.02]
    )
    if by_epoch and curves.end <= 2 * _ROOM:
        figure.update_xaxes(dtick=1)
    # Zoom stays as long as the axis does, hidden traces as long as the run does.
    figure.update_layout(height=height, uirevision=curves.revision, hovermode="closest")
    figure.update_layout(legend_uirevision=curves.run_id)
    return figure


def _say_if_nothing_is_finite(figure: go.Figure, curves: Curves, name: str, why: str) -> None:
    if curves.history:
        recorded = any(key in row for row in curves.history for key in (name, f"val_{name}"))
        say_if_empty(figure, why if recorded else "This was not recorded.")


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
