"""Charts of how busy the machine was, on the same axis as the run's curves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import numpy as np
import plotly.graph_objects as go

from core.dashboard.charts.component import chart
from core.dashboard.charts.curves import Curves, finish
from core.dashboard.charts.series import Series, is_thinned

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


def system_curve(
    curves: Curves, samples: Mapping[str, Series], quantity: Quantity, limit: float | None = None
) -> bytes:
    """One quantity of the machine; the run's share beside the whole.

    Args:
        curves: The run.
        samples: Values by name, at the step that training had reached.
        quantity: Which, one that was sampled.
        limit: Where to draw the layout's memory limit, in bytes.
    """
    title, axis, unit, scale = _TITLES[quantity]
    figure, last, longest = go.Figure(), [], 0
    precision = np.float64 if curves.part.every_point else np.float32
    for name, sampled in samples.items():
        if not name.endswith(f"_{quantity}"):
            continue
        first = name.split("_", maxsplit=1)[0]
        label = _WHOSE.get(first) or f"GPU {first.removeprefix('gpu')}"
        y = sampled.values / scale
        drawn = curves.drawn_steps(sampled)
        x = sampled.steps[drawn] * (curves.scale / curves.steps_per_epoch)
        colour = f"var(--palette-{len(figure.data)})"
        figure.add_scatter(
            x=x.astype(precision),
            y=y[drawn].astype(precision),
            name=label,
            mode="lines" if len(sampled) > 1 else "markers",  # of one sample a line shows nothing
            line={"width": 2, "color": colour},
            marker={"color": colour},
            hovertemplate=f"%{{y:.1f}} {unit}<extra>{label}</extra>",
        )
        last.append(f"{label} {y[-1]:.1f} {unit}")
        longest = max(longest, len(sampled))
    if quantity == "bytes" and limit is not None:
        figure.add_hline(
            y=limit / scale,
            line={"width": 1, "dash": "dash", "color": "var(--st-text-color)"},
            annotation_text="memory limit of a GPU",
        )
    figure.update_yaxes(title_text=axis, rangemode="tozero")
    return chart(
        finish(figure, curves, height=_HEIGHT),
        title,
        f"At last: {', '.join(last)}.",
        file=f"{curves.run_id}-{title.split()[0].strip(':').lower()}",
        thinned=is_thinned(longest),
    )
