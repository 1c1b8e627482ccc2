"""Charts of a scaling study: speed-up and efficiency against the ideal, and the price of all-reduce."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go

from core.analysis.scaling import Analysis
from core.dashboard.charts.component import chart, say_if_empty
from core.records import Scaling
from core.words import plural

_HEIGHT = 340
_BESIDE_LOSSES = 400
"""Height of the chart that stands beside the validation losses, the same as theirs."""
_LAWS = {Scaling.STRONG: "Amdahl's law", Scaling.WEAK: "Gustafson's law"}
_IDEAL = {"color": "var(--st-text-color)", "width": 1.5, "dash": "dash"}
_MEASURED, _FITTED = "var(--palette-0)", "var(--palette-1)"


def speed_up_curve(analysis: Analysis, study: str) -> bytes:
    """Speed-up by number of replicas, beside the ideal and the fitted law.

    Args:
        analysis: Of the study.
        study: Its id; zoom and hidden traces are kept as long as this stays the same.
    """
    replicas = list(analysis.scaled)
    figure = go.Figure()
    figure.add_scatter(
        x=replicas,
        y=[run.ideal for run in analysis.scaled.values()],
        name="Ideal",
        mode="lines",
        line=_IDEAL,
        hovertemplate="replicas %{x}: %{y:.2f} times<extra>Ideal</extra>",
    )
    if analysis.serial_fraction is not None:
        law = _LAWS[analysis.scaling]
        smooth = np.linspace(replicas[0], replicas[-1], 100)
        figure.add_scatter(
            x=smooth,
            y=np.array([analysis.predicted(n) for n in smooth], np.float64),
            name=f"{law}, serial fraction {100 * analysis.serial_fraction:.1f} %",
            mode="lines",
            line={"color": _FITTED, "width": 2, "dash": "dot"},
            hovertemplate="replicas %{x:.1f}: %{y:.2f} times<extra>" + law + "</extra>",
        )
    figure.add_scatter(
        x=replicas,
        y=[run.speed_up for run in analysis.scaled.values()],
        name="Measured",
        mode="lines+markers",
        line={"color": _MEASURED, "width": 2.5},
        marker={"size": 8},
        customdata=[run.examples_per_s for run in analysis.timed.values()],
        hovertemplate="replicas %{x}: %{y:.2f} times, %{customdata:,.0f} examples/s<extra>Measured</extra>",
    )
    figure.update_yaxes(
        title_text=f"Speed-up over {plural(analysis.baseline or 1, 'replica')}", rangemode="tozero"
    )
    _finish(figure, replicas, study)
    told = ", ".join(f"{plural(n, 'replica')} {run.speed_up:.2f}" for n, run in analysis.scaled.items())
    return chart(
        figure, "Speed-up: measured against ideal", f"Speed-up: {told or 'none yet'}.", file="speed-up"
    )


def efficiency_curve(analysis: Analysis, study: str) -> bytes:
    """Share of the ideal speed-up that is reached; arguments as for `speed_up_curve`."""
    replicas = list(analysis.scaled)
    figure = go.Figure()
    figure.add_scatter(
        x=replicas,
        y=[1.0] * len(replicas),
        name="Ideal",
        mode="lines",
        line=_IDEAL,
        hoverinfo="skip",
    )
    figure.add_scatter(
        x=replicas,
        y=[run.efficiency for run in analysis.scaled.values()],
        name="Measured",
        mode="lines+markers",
        line={"color": _MEASURED, "width": 2.5},
        marker={"size": 8},
        hovertemplate="replicas %{x}: %{y:.0%} of the ideal<extra></extra>",
    )
    figure.update_yaxes(title_text="Efficiency (share of the ideal)", tickformat=".0%", rangemode="tozero")
    _finish(figure, replicas, study)
    told = ", ".join(
        f"{plural(n, 'replica')} {100 * run.efficiency:.0f} %" for n, run in analysis.scaled.items()
    )
    return chart(
        figure,
        "Efficiency: speed-up as a share of the ideal",
        f"Efficiency: {told or 'none yet'}.",
        file="efficiency",
    )


def step_bars(analysis: Analysis, study: str) -> bytes:
    """Median step time, split into all-reduce and the rest; arguments as for `speed_up_curve`."""
    replicas = list(analysis.timed)
    step_ms = np.array([run.step_s * 1e3 for run in analysis.timed.values()], np.float64)
    known = np.array([run.price is not None for run in analysis.timed.values()])
    shares = np.array([run.price or 0.0 for run in analysis.timed.values()], np.float64)
    figure = go.Figure()
    figure.add_bar(
        x=replicas,
        y=step_ms * (1.0 - shares),
        name="Forward, backward, update, input",
        marker={"color": _MEASURED},
        hovertemplate="replicas %{x}: %{y:.1f} ms<extra>Without all-reduce</extra>",
    )
    figure.add_bar(
        x=replicas,
        y=np.where(known, step_ms * shares, np.nan),
        name="All-reduce",
        marker={"color": _FITTED},
        customdata=shares,
        hovertemplate="replicas %{x}: %{y:.1f} ms, %{customdata:.1%} of the step<extra>All-reduce</extra>",
    )
    figure.update_yaxes(title_text="Median step time (ms)", rangemode="tozero")
    figure.update_layout(barmode="stack", bargap=0.45)
    _finish(figure, replicas, study, _BESIDE_LOSSES)
    told = ", ".join(
        f"{plural(n, 'replica')} {ms:.1f} ms" + (f" with {100 * share:.1f} % all-reduce" if is_known else "")
        for n, ms, share, is_known in zip(replicas, step_ms, shares, known, strict=True)
    )
    return chart(
        figure, "Where a step's time goes", f"Median step time: {told or 'none yet'}.", file="step-time"
    )


def _finish(figure: go.Figure, replicas: list[int], study: str, height: int = _HEIGHT) -> None:
    say_if_empty(figure, "No run has a step time yet.")
    figure.update_xaxes(title_text="Replicas", tickvals=replicas)
    figure.update_layout(height=height, uirevision=study, showlegend=True)
