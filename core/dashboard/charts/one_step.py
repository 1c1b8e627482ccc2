"""Charts of one training step taken apart: gradients before and after the sum, and who waited for whom."""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go

from core.dashboard.charts.component import chart

_PARTS = (
    # Name, what it does; the times between which it lasts.
    ("computing", "forward and backward pass on its own shard"),
    ("all-reduce", "until the sum of all gradients is there"),
    ("updating", "applying the sum to its copy of the variables"),
)


def gradient_norms(result: dict[str, Any]) -> bytes:
    """How large each layer's gradient is on each replica, and after the sum.

    Args:
        result: What the engine found out about the step.
    """
    layers = result["layers"]
    figure = go.Figure()
    norms = [(f"Replica {i}", replica["gradient_norms"]) for i, replica in enumerate(result["replicas"])]
    for i, (name, values) in enumerate([*norms, ("Sum", result["reduced_norms"])]):
        total = name == "Sum"
        figure.add_bar(
            x=layers,
            y=[values[layer] for layer in layers],
            name=name,
            marker={
                "color": "var(--st-text-color)" if total else f"var(--palette-{i % 6})",
                "pattern": {"shape": "/" if not total and i > 5 else ""},  # noqa: PLR2004 - colours
            },
            hovertemplate="%{x}: norm %{y:.4g}<extra>" + name + "</extra>",
        )
    figure.update_layout(height=320, barmode="group", bargap=0.25, uirevision="norms")
    figure.update_xaxes(title_text="Layer")
    figure.update_yaxes(title_text="Norm of the gradient", rangemode="tozero")
    largest = max(layers, key=lambda layer: result["reduced_norms"][layer])
    return chart(
        figure,
        "Each replica's gradient differs, because each saw other newswires"
        if len(result["replicas"]) > 1
        else "One replica saw all newswires, so its gradient is the sum",
        f"The sum's largest norm is that of {largest}: {result['reduced_norms'][largest]:.4g}.",
    )


def timeline(result: dict[str, Any]) -> bytes:
    """When each replica computed, exchanged and updated.

    Args:
        result: What the engine found out about the step.
    """
    replicas = result["replicas"]
    names = [str(i) for i in range(len(replicas))]
    figure = go.Figure()
    for part, (name, meaning) in enumerate(_PARTS):
        begins = [replica["times_ms"][part] for replica in replicas]
        lasts = [
            replica["times_ms"][part + 1] - begin for replica, begin in zip(replicas, begins, strict=True)
        ]
        figure.add_bar(
            x=lasts,
            y=names,
            base=begins,
            orientation="h",
            name=name,
            marker_color=f"var(--palette-{part})",
            customdata=[[begin, begin + last] for begin, last in zip(begins, lasts, strict=True)],
            hovertemplate="Replica %{y}, "
            + meaning
            + ": %{x:.1f} ms, from %{customdata[0]:.1f} to %{customdata[1]:.1f} ms<extra></extra>",
        )
    figure.update_layout(
        height=130 + 44 * len(replicas), barmode="overlay", bargap=0.35, uirevision="timeline"
    )
    figure.update_xaxes(title_text="Time since the step began (ms)")
    figure.update_yaxes(title_text="Replica", type="category", autorange="reversed")
    slowest = max(range(len(replicas)), key=lambda i: replicas[i]["times_ms"][1])
    computed = replicas[slowest]["times_ms"][1]
    return chart(
        figure,
        f"The slowest, replica {slowest}, computed until {computed:.1f} ms; the others wait for it"
        if len(replicas) > 1
        else f"One replica computes for {computed:.1f} ms and waits for nobody",
        f"The step took {max(replica['times_ms'][3] for replica in replicas):.1f} ms.",
    )
