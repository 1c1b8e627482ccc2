"""Charts of a run: loss, accuracy, and what they say of generalization."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from core.dashboard import units
from core.dashboard.charts.component import chart, is_empty, say_if_empty
from core.dashboard.charts.curves import APART, Curves, annotate, by_epoch, finish, grouped, strip
from core.dashboard.charts.series import Series, is_thinned

_TOWER = 100
"""How many times the first loss another must be for the axis to become logarithmic."""
_STRIP = 210
"""Height of a small chart in pixels."""


def loss_curve(curves: Curves, batches: Series) -> bytes:
    """Training and validation loss.

    Args:
        curves: The run.
        batches: Loss of each step's batch.
    """
    figure = _figure(curves, batches, "loss", digits=3)
    if _towers(curves, figure.data[0].y):
        figure.update_yaxes(
            title_text="Cross-entropy loss (nats, logarithmic)", type="log", exponentformat="power"
        )
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
    for height, names in grouped([(alpha, f"GL_{alpha:g}") for alpha in thresholds], APART * 2 * top):
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
        "Generalization loss GL: percent above the lowest so far",
        description,
        file=f"{curves.run_id}-generalization-loss",
        thinned=is_thinned(len(values)),
    )


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
            by_epoch(
                curves,
                [row.get(key) for row in curves.history],
                name=label,
                line={"width": 2.5, "color": f"var(--palette-{place})"},
                marker={"size": 7, "symbol": symbol, "color": f"var(--palette-{place})"},
                hovertemplate=f"epoch %{{customdata}}: %{{y:.{digits}f}}<extra>{label}</extra>",
            )
        )
    return figure


def _listed(values: Sequence[float]) -> str:
    return ", ".join(f"{value:g}" for value in values)


def _say_if_nothing_is_finite(figure: go.Figure, curves: Curves, name: str, why: str) -> None:
    if curves.history:
        recorded = any(key in row for row in curves.history for key in (name, f"val_{name}"))
        say_if_empty(figure, why if recorded else "This was not recorded.")


def _in_words(name: str, curves: Curves) -> str:
    if not curves.history:
        return "No epoch has ended yet."
    last = curves.history[-1]
    return (
        f"After epoch {last['epoch']}: training {units.number(last.get(name))},"
        f" validation {units.number(last.get(f'val_{name}'))}. {curves.diagnosis.sentence}"
    )
