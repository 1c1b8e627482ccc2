"""Charts of what a model got right and wrong."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from core.dashboard import units
from core.dashboard.charts.component import chart

_ROW = 17
"""Pixels of a row: enough for a topic's name."""
_AROUND = 150


def confusion_matrix(
    run_id: str,
    names: Sequence[str],
    *,
    confusion: NDArray[np.int64],
    shares: NDArray[np.float64] | None,
    order: NDArray[np.int64],
    chosen: tuple[int, int],
) -> bytes:
    """What each class was taken for; a click on a cell gives the names of the answer and of the right class.

    Args:
        run_id: Zoom is kept as long as this stays the same.
        names: Of the classes.
        confusion: Examples, the right class in rows, the answer in columns.
        shares: The same as shares of each row, to be drawn instead.
        order: In which the classes stand.
        chosen: The right class and the answer of the marked cell.
    """
    ordered = [names[i] for i in order]
    counts = confusion[np.ix_(order, order)]
    percents = None if shares is None else 100.0 * shares[np.ix_(order, order)]
    values = counts.astype(np.float64) if percents is None else percents
    # Empty cells stay blank. Most mistakes are few beside the diagonal: a root brings them out.
    shown = np.where(counts > 0, values, np.nan)
    most = np.nanmax(shown, initial=1.0)
    ticks = _ticks(most)
    figure = go.Figure(
        go.Heatmap(
            x=ordered,
            y=ordered,
            z=np.sqrt(shown),
            zmin=0,
            zmax=np.sqrt(most),
            colorscale=[[0, "var(--st-secondary-background-color)"], [1, "var(--palette-0)"]],
            text=[["" if np.isnan(value) else f"{value:.0f}" for value in row] for row in shown],
            texttemplate="%{text}",
            textfont_size=9,
            customdata=np.stack(
                [counts, 100 * counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)], axis=2
            ),
            hovertemplate="%{y}, taken for %{x}<br>newswires: %{customdata[0]:,}, %{customdata[1]:.1f} %"
            " of the class<extra></extra>",
            hoverongaps=False,
            xgap=1,
            ygap=1,
            colorbar={
                "title": {"text": "Newswires" if percents is None else "% of class", "side": "right"},
                "tickvals": np.sqrt(ticks),
                "ticktext": [f"{tick:,}" for tick in ticks],
                "thickness": 12,
                "outlinewidth": 0,
            },
        )
    )
    at = {int(number): place for place, number in enumerate(order)}
    row, column = at[chosen[0]], at[chosen[1]]
    figure.add_shape(
        type="rect",
        x0=column - 0.5,
        x1=column + 0.5,
        y0=row - 0.5,
        y1=row + 0.5,
        line={"width": 2, "color": "var(--palette-1)"},
    )
    last = len(order) - 0.5
    figure.update_xaxes(
        title_text="Taken for", tickangle=-90, tickfont_size=10, range=[-0.5, last], showgrid=False, dtick=1
    )
    figure.update_yaxes(
        title_text="Right class",
        tickfont_size=10,
        range=[last, -0.5],
        showgrid=False,
        dtick=1,
        zeroline=False,
    )
    figure.update_layout(height=_AROUND + _ROW * len(order), uirevision=run_id)
    wrong = counts.sum() - counts.trace()
    mistakes = confusion - np.diag(confusion.diagonal())
    true, answer = divmod(int(mistakes.argmax()), len(names))
    often = f" Most often, {mistakes[true, answer]:,} times, {names[true]} was taken for {names[answer]}."
    return chart(
        figure,
        "Confusion matrix: "
        + ("how many newswires of each class" if percents is None else "what share of each class, in %,")
        + " were taken for which",
        f"{units.plural(int(counts.sum()), 'newswire')}, {wrong:,} of them wrong.{often if wrong else ''}",
        file=f"{run_id}-confusion",
        clickable=True,
    )


def _ticks(most: float) -> NDArray[np.int64]:
    """Round numbers up to the largest, about evenly spaced under a root."""
    steps = np.array([0, 1, 5, 20, 50, 100, 200, 400, 800, 1_500, 3_000, 6_000, 12_000])
    return steps[steps <= most]
