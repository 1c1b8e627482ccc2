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
    model: str,
    names: Sequence[str],
    *,
    confusion: NDArray[np.int64],
    shares: NDArray[np.float64] | None,
    order: NDArray[np.int64],
    chosen: tuple[int, int],
) -> bytes:
    """What each class was taken for; a click on a cell gives the names of the answer and of the right class.

    Args:
        model: Which it is; zoom is kept as long as it stays the same, and a saved chart is called by it.
        names: Of the classes.
        confusion: Examples, the right class in rows, the answer in columns.
        shares: The same as shares of each row, to be drawn instead.
        order: The classes that are drawn, in the order in which they stand.
        chosen: The right class and the answer of the marked cell.
    """
    ordered = [names[i] for i in order]
    counts = confusion[np.ix_(order, order)]
    percents = None if shares is None else 100.0 * shares[np.ix_(order, order)]
    values = counts.astype(np.float64) if percents is None else percents
    # Empty cells stay blank. Most mistakes are few beside the diagonal: a root brings them out.
    shown = np.where(counts > 0, values, np.nan)
    most = np.nanmax(shown, initial=1.0)
    figure = go.Figure(
        go.Heatmap(
            x=ordered,
            y=ordered,
            name="newswires",
            z=np.sqrt(shown),
            zmin=0,
            zmax=np.sqrt(most),
            colorscale=[[0, "var(--st-secondary-background-color)"], [1, "var(--palette-0)"]],
            text=[["" if np.isnan(value) else f"{value:.0f}" for value in row] for row in shown],
            texttemplate="%{text}",
            textfont_size=10,
            # The first is what the chart's CSV tells.
            customdata=np.stack(
                [counts, 100 * counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)], axis=2
            ),
            hovertemplate="%{y}, taken for %{x}<br>newswires: %{customdata[0]:,}, %{customdata[1]:.1f} %"
            " of the class<extra></extra>",
            hoverongaps=False,
            xgap=1,
            ygap=1,
            showscale=False,
        )
    )
    places = order.tolist()
    if set(chosen) <= set(places):
        row, column = map(places.index, chosen)
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
    figure.update_layout(height=_AROUND + _ROW * len(order), uirevision=f"{model} {len(order)}")
    mistakes = confusion - np.diag(confusion.diagonal())
    true, answer = divmod(int(mistakes.argmax()), len(names))
    often = (
        ""
        if not mistakes.any()
        else f" Most often, {mistakes[true, answer]:,} times, {names[true]} was taken for {names[answer]}."
    )
    return chart(
        figure,
        "Confusion matrix: how many newswires of each class were taken for which"
        if percents is None
        else "Confusion matrix: what share of each class, in %, was taken for which",
        f"{units.plural(int(confusion.sum()), 'newswire')}, {mistakes.sum():,} of them wrong.{often}",
        file=f"{model}-confusion",
        clickable=True,
    )
