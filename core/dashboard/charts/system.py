"""Charts of how busy the machine was, on the same axis as the run's curves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np
import plotly.graph_objects as go

from core.dashboard.charts.component import chart
from core.dashboard.charts.training import Curves, StepValues, extremes, finish

Quantity = Literal["percent", "bytes", "w"]
"""What is drawn; the samples' names end with it."""

_TITLES: dict[Quantity, tuple[str, str, str, float]] = {
    # Title, y axis, unit in the hover, units of a sample in one of the axis.
    "percent": ("Processor: how busy it is", "Busy (%)", "%", 1),
    "bytes": ("Memory in use", "Memory (GiB)", "GiB", 2**30),
    "w": ("Power of the GPUs", "Power (W)", "W", 1),
}
_WHOSE = {"process": "this run", "machine": "machine"}
_HEIGHT = 240
_MOST_POINTS = 1_000


def system_curve(
    curves: Curves, samples: Mapping[str, StepValues], quantity: Quantity, limit: float | None = None
) -> bytes | None:
    """One quantity of the machine; the run's share beside the whole.

    Args:
        curves: The run.
        samples: Values by name, at the step that training had reached.
        quantity: Which.
        limit: Where to draw the layout's memory limit, in bytes.

    Returns:
        The chart, None where nothing of this quantity was sampled.
    """
    title, axis, unit, scale = _TITLES[quantity]
    figure, last = go.Figure(), []
    for name, sampled in samples.items():
        if not name.endswith(f"_{quantity}"):
            continue
        first = name.split("_", maxsplit=1)[0]
        label = _WHOSE.get(first) or f"GPU {first.removeprefix('gpu')}"
        y = sampled.values / scale
        shown = extremes(y, _MOST_POINTS)
        x = sampled.steps[shown] * (curves.scale / curves.steps_per_epoch)
        figure.add_scatter(
            x=x.astype(np.float32),
            y=y[shown].astype(np.float32),
            name=label,
            mode="lines",
            line={"width": 2, "color": f"var(--palette-{len(figure.data)})"},
            hovertemplate=f"%{{y:.1f}} {unit}<extra>{label}</extra>",
        )
        last.append(f"{label} {y[-1]:.1f} {unit}")
    if not last:
        return None
    if quantity == "bytes" and limit is not None:
        figure.add_hline(
            y=limit / scale,
            line={"width": 1, "dash": "dash", "color": "var(--st-text-color)"},
            annotation_text="memory limit of a GPU",
        )
    figure.update_yaxes(title_text=axis, rangemode="tozero")
    return chart(finish(figure, curves, height=_HEIGHT), title, f"At last: {', '.join(last)}.")
