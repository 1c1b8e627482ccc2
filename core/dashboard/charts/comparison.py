"""The chart that lays the validation losses of several runs over each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Literal

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from core.dashboard.charts.component import WHOLE, Part, chart, say_if_empty
from core.dashboard.charts.series import is_thinned, shown

Along = Literal["epoch", "step", "time"]

_TITLES: dict[Along, str] = {
    "epoch": "Epoch",
    "step": "Training step",
    "time": "Time since the first epoch began (s)",
}
_DASHES = ("solid", "dash", "dot", "dashdot")
_COLOURS = 6
_MOST_MARKERS = 200
_LONGEST_NAME = 40


@dataclass(frozen=True)
class Overlaid:
    """One run's curve.

    Attributes:
        title: What the run is called.
        place: Of the run among all runs; fixes its colour and dash unless an earlier run has the same.
        x: Epochs, steps or seconds, shape (n,).
        losses: Validation losses, NaN where unknown, shape (n,).
        epochs: One-based, shape (n,).
    """

    title: str
    place: int
    x: NDArray[np.float64]
    losses: NDArray[np.float64]
    epochs: NDArray[np.int32]


def _looks(places: Sequence[int]) -> dict[int, int]:
    """Which colour and dash the runs at these places have.

    Each has its own whichever others are drawn; of those that would look alike all but the earliest take
    the next that nobody has.
    """
    every = _COLOURS * len(_DASHES)
    looks: dict[int, int] = {}
    free = set(range(every)) - {(place - 1) % every for place in places}
    for place in sorted(places):
        look = (place - 1) % every
        if look in looks.values() and free:
            look = min(free, key=lambda other: (other - look) % every)
            free.remove(look)
        looks[place] = look
    return looks


def overlaid_losses(
    runs: Sequence[Overlaid],
    along: Along,
    part: Part = WHOLE,
    title: str = "Validation loss of the chosen runs",
) -> bytes:
    """Validation loss of several runs.

    Args:
        runs: What to draw.
        along: What the x axis counts.
        part: What of the chart is looked at.
        title: Of the chart.
    """
    figure = go.Figure()
    lowest = []
    looks = _looks([run.place for run in runs])
    for run in runs:
        drawn = np.arange(len(run.x)) if part.every_point else shown(run.x, run.losses, part.visible(along))
        name = escape(run.title[:_LONGEST_NAME], quote=False)
        dash, colour = divmod(looks[run.place], _COLOURS)
        figure.add_scatter(
            x=run.x[drawn],
            y=run.losses[drawn],
            name=name,
            mode="lines+markers" if len(run.x) <= _MOST_MARKERS else "lines",
            line={
                "width": 2.5,
                "color": f"var(--palette-{colour})",
                "dash": _DASHES[dash],
            },
            customdata=run.epochs[drawn],
            hovertemplate="epoch %{customdata}: %{y:.3f}<extra>" + name + "</extra>",
        )
        if np.isfinite(run.losses).any():
            lowest.append(f"{run.title} {np.nanmin(run.losses):.3f}")
    figure.update_xaxes(title_text=_TITLES[along], tickformat=",d", rangemode="tozero")
    figure.update_yaxes(title_text="Validation loss (nats)", rangemode="tozero")
    say_if_empty(figure, "None of these runs has a finite validation loss.")
    figure.update_layout(height=400, uirevision=along, legend_uirevision="runs", showlegend=True)
    return chart(
        figure,
        title,
        f"Lowest: {', '.join(lowest) or 'none'}.",
        file="validation-loss-of-runs",
        thinned=any(is_thinned(len(run.x)) for run in runs),
    )
