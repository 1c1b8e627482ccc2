"""Charts of calibration: how far a model's confidence can be believed, epoch by epoch and bin by bin."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import numpy as np
import plotly.graph_objects as go

from core.analysis.calibration import ERROR, Bin, expected_calibration_error
from core.dashboard import units
from core.dashboard.charts.component import chart, say_if_empty
from core.dashboard.charts.curves import Curves, annotate, finish, strip
from core.dashboard.charts.series import is_thinned

_HEIGHT = 330
_SMALLEST, _LARGEST = 5.0, 22.0
"""Diameters in pixels of the markers of an empty bin and of one with all predictions."""


def calibration_error_curve(curves: Curves) -> bytes:
    """The expected calibration error by epoch, in percentage points."""
    errors = [row.get(f"val_{ERROR}") for row in curves.history]
    points = [None if error is None else 100.0 * error for error in errors]
    figure = strip(curves, points, "blue", "epoch %{customdata}: ECE %{y:.1f} points<extra></extra>")
    figure.update_yaxes(title_text="ECE (percentage points)", rangemode="tozero")
    annotate(figure, curves)
    say_if_empty(figure, "Every confidence was NaN.")
    known = [(p, epoch) for p, epoch in zip(points, curves.epochs, strict=True) if p is not None]
    description = "No calibration is known yet."
    if known:
        description = (
            f"ECE is {known[-1][0]:.1f} points after epoch {known[-1][1]};"
            f" it was lowest, {min(known)[0]:.1f}, after epoch {min(known)[1]}."
        )
    return chart(
        finish(figure, curves, height=_HEIGHT),
        "Expected calibration error: how far validation confidence is off",
        description,
        file=f"{curves.run_id}-calibration-error",
        thinned=is_thinned(len(errors)),
    )


def reliability_diagram(run_id: str, diagrams: Mapping[int, Sequence[Bin]]) -> bytes:
    """How often predictions of each confidence are right, against what they claim.

    Args:
        run_id: Zoom and hidden traces are kept as long as this stays the same.
        diagrams: Bins by one-based epoch: of the best, then of the last where that is another one.
    """
    figure = _empty_diagram(run_id)
    best, last = next(iter(diagrams)), list(diagrams)[-1]
    looks = (
        ("best", best, "circle", 2),
        ("last", last, "diamond", 1),
    )
    # Both are there as long as the run is: a trace that came later would shift what the viewer has hidden.
    for what, epoch, symbol, place in looks:
        name = f"epoch {epoch}, {what}" if best != last else f"epoch {epoch}, best and last"
        figure.add_trace(
            _answers(name, diagrams[epoch], symbol, place, visible=what == "last" or best != last)
        )
    epochs = f"best epoch {best} against last epoch {last}" if best != last else f"epoch {best}"
    return chart(
        figure,
        f"Reliability diagram: {epochs}",
        " ".join(_in_words(f"At epoch {epoch}", bins) for epoch, bins in diagrams.items()),
        file=f"{run_id}-reliability",
    )


def reliability_of(models: Mapping[str, Sequence[Bin]]) -> bytes:
    """How often each model's predictions of a confidence are right, against what they claim.

    Args:
        models: Bins of one or two models by their name.
    """
    figure = _empty_diagram(" ".join(models))
    for (name, bins), symbol, place in zip(models.items(), ("circle", "diamond"), (0, 1), strict=False):
        figure.add_trace(_answers(escape(name, quote=False), bins, symbol, place))
    return chart(
        figure,
        "Reliability diagram: how often answers of each confidence are right",
        " ".join(_in_words(f"With {name}", bins) for name, bins in models.items()),
        file="reliability",
    )


def _empty_diagram(revision: str) -> go.Figure:
    """A reliability diagram with nothing in it but the diagonal."""
    figure = go.Figure()
    figure.add_scatter(
        x=[0, 100],
        y=[0, 100],
        name="perfectly calibrated",
        mode="lines",
        line={"width": 1, "dash": "dash", "color": "var(--st-text-color)"},
        hoverinfo="skip",
    )
    for text, x, y in (("underconfident", "left", "top"), ("overconfident", "right", "bottom")):
        figure.add_annotation(
            text=text,
            x=0 if x == "left" else 1,
            y=1 if y == "top" else 0,
            xref="paper",
            yref="paper",
            xanchor=x,
            yanchor=y,
            xshift=6 if x == "left" else -6,
            showarrow=False,
            font_size=11,
            opacity=0.7,
        )
    figure.update_xaxes(title_text="Confidence, mean of each bin (%)", range=[0, 102])
    figure.update_yaxes(title_text="Right validation answers (%)", range=[-4, 104])
    figure.update_layout(height=_HEIGHT, hovermode="closest", uirevision=revision)
    return figure


def _answers(name: str, bins: Sequence[Bin], symbol: str, place: int, *, visible: bool = True) -> go.Scatter:
    """One model's line in a reliability diagram; `place` is that of its colour."""
    return go.Scatter(
        **_points(bins, name),
        name=name,
        mode="lines+markers",
        line={"width": 2, "color": f"var(--palette-{place})"},
        marker_symbol=symbol,
        marker_line={"width": 1, "color": "var(--st-background-color)"},
        hoverinfo="text",
        visible=visible,
    )


def _points(bins: Sequence[Bin], name: str) -> dict[str, Any]:
    """A point for each bin that is not empty, the larger the more predictions it holds."""
    total = sum(each.count for each in bins)
    filled = [
        (each, 100.0 * each.confidence, 100.0 * each.accuracy)
        for each in bins
        if each.confidence is not None and each.accuracy is not None
    ]
    shares = np.array([each.count / total for each, _, _ in filled], np.float32)
    return {
        "x": np.array([confidence for _, confidence, _ in filled], np.float32),
        "y": np.array([accuracy for _, _, accuracy in filled], np.float32),
        "marker_size": _SMALLEST + (_LARGEST - _SMALLEST) * np.sqrt(shares),
        "hovertext": [
            f"{name}<br>confidence {100 * each.lower:.0f} to {100 * each.upper:.0f} %, {confidence:.1f} %"
            f" on average<br>{units.plural(each.count, 'prediction')}, {accuracy:.1f} % of them right"
            for each, confidence, accuracy in filled
        ],
    }


def _in_words(when: str, bins: Sequence[Bin]) -> str:
    error = expected_calibration_error(bins)
    if error is None:
        return f"{when} no prediction had a finite confidence."
    return (
        f"{when} the confidence of {units.plural(sum(each.count for each in bins), 'prediction')}"
        f" is off by {100 * error:.1f} points on average."
    )
