"""Charts of a dataset: how its classes are distributed and how long its newswires are."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go

from core.analysis.dataset import ClassBalance, LengthHistogram, Padding
from core.dashboard import units
from core.dashboard.charts.component import chart


def class_distribution(names: Sequence[str], train: ClassBalance, test: ClassBalance, *, log: bool) -> bytes:
    """Newswires in each class, the largest class first.

    Args:
        names: Name of each class.
        train: Of the training split.
        test: Of the test split.
        log: Draw the counts on a logarithmic axis.
    """
    order = np.argsort(-train.counts, kind="stable")
    figure = go.Figure()
    for place, (split, balance) in enumerate((("train", train), ("test", test))):
        counts = balance.counts[order]
        figure.add_bar(
            x=[names[i] for i in order],
            y=counts,
            name=split,
            marker_color=f"var(--palette-{place})",
            customdata=np.stack([order, 100 * counts / counts.sum()], axis=1),
            hovertemplate="%{x} (class %{customdata[0]:d})<br>newswires: %{y:,}, %{customdata[1]:.1f} % of "
            + split
            + "<extra></extra>",
        )
    figure.update_layout(height=400, barmode="group", bargap=0.15, bargroupgap=0, uirevision="classes")
    figure.update_xaxes(title_text="Class, the largest first", tickangle=-60, tickfont_size=10)
    figure.update_yaxes(title_text="Newswires", tickformat=",d", type="log" if log else "linear")
    if log:
        figure.update_yaxes(title_text="Newswires (log scale)", dtick=1)
    return chart(
        figure,
        f"Newswires in each of the {len(names)} classes, train and test",
        f"The largest class, {names[train.majority]}, holds {units.percent(train.majority_share)} of the"
        f" training newswires; it has {train.imbalance:,.0f} for each one of the smallest class.",
    )


def length_histogram(lengths: LengthHistogram, padding: Padding, max_len: int) -> bytes:
    """How long the training newswires are, and where they are cut.

    Args:
        lengths: Of the training split.
        padding: What `max_len` does to them.
        max_len: Length that sequences are padded or cut to.
    """
    starts, width = lengths.starts, lengths.width
    ranges = [f"{start} to {start + width - 1}" for start in starts[:-1]] + [f"{starts[-1]} or more"]
    figure = go.Figure(
        go.Bar(
            x=starts + width / 2,
            y=lengths.counts,
            width=width * 0.9,
            marker_color=["var(--palette-1)" if at >= max_len else "var(--palette-0)" for at in starts],
            customdata=ranges,
            hovertemplate="words: %{customdata}<br>newswires: %{y:,}<extra></extra>",
            showlegend=False,
        )
    )
    end = max(int(starts[-1]) + width, max_len)
    figure.add_vline(x=max_len, line={"width": 2, "dash": "dash", "color": "var(--st-text-color)"})
    figure.add_annotation(
        x=max_len,
        y=1,
        yref="paper",
        yanchor="top",
        xanchor="left" if max_len < end / 2 else "right",
        text=f" max_len {max_len:,} cuts {units.percent(padding.truncated_share)} ",
        showarrow=False,
        bgcolor="var(--st-background-color)",
    )
    figure.update_layout(height=320, uirevision="lengths", bargap=0)
    figure.update_xaxes(
        title_text=f"Length (words); the last bar holds all from {starts[-1]:,}", range=[0, end * 1.02]
    )
    figure.update_yaxes(title_text="Training newswires", tickformat=",d")
    return chart(
        figure,
        "How long the training newswires are, and where they are cut",
        f"{units.percent(padding.truncated_share)} of the training newswires are longer than {max_len:,}"
        " words and are cut.",
    )
