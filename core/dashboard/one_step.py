"""The six parts of a synchronous step, drawn from one that was really taken."""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from typing import Any

import streamlit as st

from core.analysis.one_step import exchange
from core.dashboard import charts, units
from core.dashboard.drawings import draw, exchange_drawing

_Result = dict[str, Any]
_MOST_ROWS = 4
_COLOURS = 6


def _copied(result: _Result) -> None:
    st.markdown(
        f"Every replica holds all **{result['params']:,}** parameters. The checksums of the copies are equal:"
        " they start from the same weights."
        if len(result["replicas"]) > 1
        else f"The only replica holds all **{result['params']:,}** parameters."
    )
    _replicas(result, lambda replica: _checksum(replica["checksum_before"]))


def _cut(result: _Result) -> None:
    batch, shards = result["batch"], [len(replica["rows"]) for replica in result["replicas"]]
    sizes = " + ".join(f"{size:,}" for size in shards)
    cut = f"cut into {sizes}" if len(shards) > 1 else "all for the only replica"
    text = f"The global batch has **{units.plural(batch['rows'], 'newswire')}**, {cut}."
    if batch["rows"] < batch["global"]:
        text += (
            f" It is the last batch of the epoch: {batch['global'] - batch['rows']} fillers of weight 0 make"
            " it whole, so that every real newswire counts the same."
        )
    st.markdown(text)
    _replicas(result, _shard)


def _shard(replica: dict[str, Any]) -> str:
    rows = [
        f"<li><b>{escape(row['class'])}</b> <small>row {row['row']:,}: {escape(row['text'])}</small></li>"
        for row in replica["rows"][:_MOST_ROWS]
    ]
    more = len(replica["rows"]) - _MOST_ROWS
    if more > 0:
        rows.append(f"<li><small>and {more:,} more</small></li>")
    if replica["fillers"]:
        rows.append(f"<li><small>{units.plural(replica['fillers'], 'filler')} of weight 0</small></li>")
    return f"<ul>{''.join(rows)}</ul>"


def _computed(result: _Result) -> None:
    st.markdown(
        "Each replica runs forward and backward on its own shard, without a word to the others: its loss and"
        " its gradient are its own."
        if len(result["replicas"]) > 1
        else "The only replica runs forward and backward on the whole batch."
    )
    _replicas(
        result,
        lambda replica: (
            "<small>no newswire, no gradient</small>"
            if replica["mean_loss"] is None
            else f"<small>mean loss of its shard</small><b>{replica['mean_loss']:.4f}</b>"
        ),
    )
    charts.show(charts.gradient_norms(result), key="gradient_norms_chart")


def _reduced(result: _Result) -> None:
    replicas = len(result["replicas"])
    how = exchange(result["path"], replicas, result["gradient_bytes"])
    st.markdown(f"**{how.name}.** {how.text}")
    if replicas > 1:
        draw(exchange_drawing(replicas, how.links, two_way=how.two_way), key="one_step_drawing")
        st.caption(
            f"Each replica has {units.plural(result['gradients'], 'gradient')} of"
            f" {units.memory(result['gradient_bytes'])} together."
            f" In all {units.memory(how.moved_bytes)} move between the devices in every step. The weights of"
            f" the rows already divide by the {units.plural(result['batch']['rows'], 'newswire')} of the"
            " batch, so the sum over the replicas is the gradient of its mean loss."
        )


def _updated(result: _Result) -> None:
    update = result["update"]
    applied = (
        "Every replica applies the same sum to its own copy with its own optimizer, so the copies stay equal:"
        f" the largest difference between any two is **{update['between_replicas']:g}**."
        if len(result["replicas"]) > 1
        else "The only replica applies its gradient to its variables."
    )
    st.markdown(f"{applied} The value that moved most moved by {update['moved']:.3g}.")
    _replicas(
        result,
        lambda replica: (
            f"<small>before</small> <code>{replica['checksum_before']}</code>"
            f"<br>{_checksum(replica['checksum_after'])}"
        ),
    )


def _waited(result: _Result) -> None:
    st.markdown(
        "The sum needs everybody's gradient, so the next step begins when the slowest replica is done."
        if len(result["replicas"]) > 1
        else "With one replica there is nobody to wait for."
    )
    charts.show(charts.timeline(result), key="timeline_chart")


PARTS: tuple[tuple[str, Callable[[_Result], None]], ...] = (
    ("Copy", _copied),
    ("Cut", _cut),
    ("Compute", _computed),
    ("All-reduce", _reduced),
    ("Update", _updated),
    ("Wait", _waited),
)
"""Name of each part, and what shows it."""


def on_one_device(result: _Result) -> None:
    """The same batch on one device, and how far the numbers are apart."""
    single = result["single"]
    st.subheader("The same batch on one device", anchor=False)
    together = sum(replica["loss"] for replica in result["replicas"])
    with st.container(horizontal=True, gap="medium"):
        st.metric("Loss, replicas together", f"{together:.6f}", width="content")
        st.metric("Loss, one device", f"{single['loss']:.6f}", width="content")
        st.metric("Difference of the losses", _tiny(single["loss_difference"]), width="content")
        st.metric("Largest difference of a gradient", _tiny(single["gradient_difference"]), width="content")
    st.caption(
        "Each replica drops other features, so with dropout the two differ by more than rounding."
        if result["dropout"]
        else "What is left is rounding: the same numbers were added up in another order."
    )


def _tiny(difference: float) -> str:
    return f"{difference:.1e}" if difference else "0"


def _checksum(checksum: str) -> str:
    return f"<small>checksum of the variables</small> <code>{checksum}</code>"


def _replicas(result: _Result, content: Callable[[dict[str, Any]], str]) -> None:
    boxes = [
        f'<div class="box shard" style="--tint:var(--c{i % _COLOURS})"><b>Replica {i}</b>'
        f"<small>{escape(replica['device'])}</small><div>{content(replica)}</div></div>"
        for i, replica in enumerate(result["replicas"])
    ]
    draw(f'<div class="row">{"".join(boxes)}</div>', key="one_step_drawing")
