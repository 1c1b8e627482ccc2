"""Drawings in HTML that follow the theme: layouts, pipelines, shards, architectures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from itertools import groupby
from operator import itemgetter
from typing import Any

import streamlit as st

from core.analysis.dataset import shards
from core.config import DeviceLayout, RunConfig
from core.take_home import Line
from core.words import plural

_JS = """
export default function ({ data, parentElement }) {
  let root = parentElement.querySelector(".drawing");
  if (!root) {
    root = document.createElement("div");
    root.className = "drawing";
    parentElement.appendChild(root);
  }
  root.style.cssText = getComputedStyle(parentElement.host ?? parentElement)
    .getPropertyValue("--st-chart-categorical-colors").split(",").map((c, i) => `--c${i}:${c}`).join(";");
  root.innerHTML = data;
}
"""

_CSS = """
.drawing { font-family: var(--st-font); color: var(--st-text-color); font-size: 0.86rem; line-height: 1.35; }
.row { display: flex; flex-wrap: wrap; gap: 0.5rem; align-items: stretch; }
.box { border: 1px solid var(--st-border-color); border-radius: var(--st-base-radius); min-width: 0;
       background: var(--st-secondary-background-color); padding: 0.55rem 0.7rem; }
.box b { display: block; font-weight: 620; }
.box small, .note { opacity: 0.78; font-size: 0.8rem; }
.flow .box { flex: 1 1 6.6rem; position: relative; }
.flow code { font-family: var(--st-code-font); font-size: 0.78rem; color: var(--st-code-text-color);
             overflow-wrap: anywhere; }
.arrow { align-self: center; opacity: 0.55; }
.device { flex: 1 1 11rem; background: transparent; }
.device .row { margin-top: 0.45rem; }
.replica { flex: 1 1 5.5rem; border-left: 4px solid var(--tint); }
.idle { border-left: 4px solid var(--st-border-color); opacity: 0.65; }
.cells { display: flex; flex-wrap: wrap; gap: 3px; margin-top: 0.4rem; }
.cell { width: 13px; height: 13px; border-radius: 3px; background: var(--tint); }
.cell.filler { background: transparent; border: 1px dashed var(--st-text-color); opacity: 0.4;
               box-sizing: border-box; }
.shard { flex: 1 1 9rem; border-left: 4px solid var(--tint); }
.shard ul { margin: 0.35rem 0 0; padding-left: 1rem; }
.layers { display: flex; align-items: flex-start; gap: 0.6rem 0.2rem; flex-wrap: wrap; }
.layer { text-align: center; flex: 1 1 5.4rem; min-width: 5.4rem; font-size: 0.8rem; }
.layer .solid { margin-bottom: 0.4rem; border-radius: 4px; background: var(--tint); opacity: 0.88; }
.exchange { max-width: 26rem; display: block; margin: 0 auto; overflow: visible; }
.exchange text { fill: var(--st-text-color); font-size: 13px; text-anchor: middle; }
.exchange circle { fill: var(--st-background-color); stroke-width: 3; }
.exchange line { stroke: var(--st-text-color); opacity: 0.6; stroke-width: 1.5; }
.exchange path { fill: var(--st-text-color); }
.newswire { white-space: pre-wrap; overflow-wrap: anywhere; line-height: 1.75; font-size: 0.92rem; }
.newswire mark { color: inherit; border-radius: 3px; padding: 0.1em 0;
                 background: color-mix(in srgb, var(--tint) calc(var(--weight) * 1%), transparent); }
.newswire u { text-decoration: underline dotted 2px; text-underline-offset: 3px; }
.newswire details { opacity: 0.75; margin-bottom: 0.4rem; }
.newswire summary { cursor: pointer; font-style: italic; }
.bars { display: grid; grid-template-columns: max-content 1fr max-content; gap: 0.3rem 0.7rem;
        align-items: center; max-width: 34rem; }
.bars i { display: block; height: 0.85rem; border-radius: 3px; background: var(--c0); min-width: 1px; }
.stage { display: flex; align-items: flex-end; height: 130px; justify-content: center; }
.code { border: 1px solid var(--st-border-color); border-radius: var(--st-base-radius); overflow: hidden; }
.code .line { display: grid; grid-template-columns: minmax(0, 1fr) minmax(0, 1fr); }
.code .line > * { padding: 0 0.6rem 0 calc(1.7rem + 2ch); text-indent: -2ch; position: relative;
                  text-decoration: none; min-height: 1.35em;
                  font-family: var(--st-code-font); font-size: 0.78rem; white-space: pre-wrap;
                  overflow-wrap: anywhere; }
.code .line > :first-child { border-right: 1px solid var(--st-border-color); }
.code .titles > * { font-family: inherit; padding: 0.45rem 0.6rem 0.45rem 1.7rem; text-indent: 0;
                    font-weight: 620; background: var(--st-secondary-background-color); }
.code .none { background: var(--st-secondary-background-color); }
.code ins { background: color-mix(in srgb, var(--c2) 24%, transparent); font-weight: 620; }
.code ins::before { content: "+"; position: absolute; left: calc(0.6rem + 2ch); }
.code summary { cursor: pointer; padding: 0.3rem 0.6rem; font-size: 0.8rem;
                background: var(--st-secondary-background-color); }
@media (max-width: 900px) {
  .code .line { grid-template-columns: minmax(0, 1fr); }
  .code .line > :first-child { display: none; }
}
"""

_mount = st.components.v2.component("mirrorboard_drawing", css=_CSS, js=_JS)

_MOST_CELLS = 64
_CONTEXT = 5
"""Unchanged lines shown before and after an added one; more are folded."""
_COLOURS = 6


def draw(markup: str, key: str) -> None:
    """Shows a drawing."""
    _mount(key=key, data=markup)


def layout(config: DeviceLayout, names: Sequence[str]) -> str:
    """Physical devices, what each is split into, and which parts hold a replica.

    Args:
        config: The layout.
        names: Name of each visible physical device.
    """
    boxes, number = [], 0
    for physical, name in zip(config.visible_devices, names, strict=True):
        parts = []
        for _ in range(config.logical_devices):
            used = number < config.replicas
            what = f"replica {number}" if used else "not used"
            style = (
                f'class="box replica" style="--tint:var(--c{number % _COLOURS})"'
                if used
                else 'class="box idle"'
            )
            parts.append(f"<div {style}><b>/{config.device_type}:{number}</b><small>{what}</small></div>")
            number += 1
        boxes.append(
            f'<div class="box device"><b>{config.device_type}:{physical}</b><small>{escape(name)}</small>'
            f'<div class="row">{"".join(parts)}</div></div>'
        )
    return f'<div class="row">{"".join(boxes)}</div>'


def flow(steps: Sequence[tuple[str, str, str]]) -> str:
    """Steps in a row.

    Args:
        steps: Name, code or shape, and explanation of each.
    """
    boxes = [
        f'<div class="box"><b>{escape(name)}</b><code>{escape(code)}</code><br>'
        f"<small>{escape(text)}</small></div>"
        for name, code, text in steps
    ]
    return f'<div class="row flow">{"<div class=arrow>→</div>".join(boxes)}</div>'


def batch(config: RunConfig, rows: int) -> str:
    """One global batch, cut into a shard for each replica.

    Args:
        config: The run.
        rows: Real rows in the batch; the rest are fillers of weight 0.
    """
    boxes = []
    for replica, shard in enumerate(shards(config.global_batch_size, config.layout.replicas)):
        real = min(max(rows - shard.start, 0), len(shard))
        fillers = len(shard) - real
        cells = [
            f'<i class="cell{" filler" if i >= real else ""}"></i>'
            for i in range(min(len(shard), _MOST_CELLS))
        ]
        more = f"<small>and {len(shard) - _MOST_CELLS:,} more</small>" if len(shard) > _MOST_CELLS else ""
        span = f"rows {shard.start} to {shard.stop - 1}" if len(shard) > 1 else f"row {shard.start}"
        filled = f", {fillers} filler{'s' if fillers > 1 else ''}" if fillers else ""
        boxes.append(
            f'<div class="box shard" style="--tint:var(--c{replica % _COLOURS})"><b>Replica {replica}</b>'
            f'<small>{span}{filled}</small><div class="cells">{"".join(cells)}</div>{more}</div>'
        )
    return f'<div class="row">{"".join(boxes)}</div>'


def architecture(layers: Sequence[dict[str, Any]], max_len: int) -> str:
    """The model's layers as blocks: as tall as the sequence is long, as wide as it has features.

    Args:
        layers: As DESCRIBE lists them.
        max_len: Length of the input.
    """
    blocks = [("Input", [None, max_len], 0, 5)]
    kinds = {"Embedding": 2, "Conv1D": 0, "MaxPooling1D": 5, "Flatten": 3, "Dropout": 4, "Dense": 1}
    blocks += [
        (layer["type"], layer["output_shape"], layer["params"], kinds.get(layer["type"], 3))
        for layer in layers
    ]
    drawn = []
    for name, shape, params, tint in blocks:
        sizes = [size for size in shape if size is not None]
        length, features = (sizes[0], sizes[1]) if len(sizes) > 1 else (sizes[0], 1)
        flat = len(sizes) == 1 and name != "Input"
        height = 8 + 112 * min((length / max(max_len, 1)) if not flat else min(length / 2_500, 1), 1)
        width = 8 + 44 * min(features / 128, 1) ** 0.5 if len(sizes) > 1 else 8
        drawn.append(
            f'<div class="layer"><div class="stage"><div class="solid" style="--tint:var(--c{tint});'
            f'height:{height:.0f}px;width:{width:.0f}px"></div></div><b>{escape(name)}</b><br>'
            f'<small class="note">{" × ".join(f"{size:,}" for size in sizes)}'
            f"{f'<br>{params:,} parameters' if params else ''}</small></div>"
        )
    return f'<div class="layers">{"".join(drawn)}</div>'


def exchange_drawing(replicas: int, links: Sequence[tuple[int, int]], *, two_way: bool) -> str:
    """Which replicas exchange gradients with which.

    Args:
        replicas: How many there are, drawn on a circle.
        links: Pairs of replicas that exchange something.
        two_way: Whether both send, or only the first of each pair.
    """
    width, height, size = 420, 230, 20
    angles = [math.pi * (2 * i / replicas - 0.5 if replicas > 2 else i - 1) for i in range(replicas)]  # noqa: PLR2004
    at = [(width / 2 + 150 * math.cos(a), height / 2 + 85 * math.sin(a)) for a in angles]
    lines = []
    for one, other in links:
        (x1, y1), (x2, y2) = at[one], at[other]
        length = math.hypot(x2 - x1, y2 - y1)
        dx, dy = (x2 - x1) / length * (size + 6), (y2 - y1) / length * (size + 6)
        start = ' marker-start="url(#tip)"' if two_way else ""
        lines.append(
            f'<line x1="{x1 + dx:.1f}" y1="{y1 + dy:.1f}" x2="{x2 - dx:.1f}" y2="{y2 - dy:.1f}"'
            f'{start} marker-end="url(#tip)"/>'
        )
    nodes = [
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{size}" style="stroke:var(--c{i % _COLOURS})"/>'
        f'<text x="{x:.1f}" y="{y + 5:.1f}">{i}</text>'
        for i, (x, y) in enumerate(at)
    ]
    return (
        f'<svg class="exchange" viewBox="0 0 {width} {height}" role="img" aria-label="{replicas} replicas and'
        f' the {len(links)} links between them">'
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="6" refY="4" markerWidth="7" markerHeight="7"'
        ' orient="auto-start-reverse"><path d="M0 0 8 4 0 8z"/></marker></defs>'
        f"{''.join(lines)}{''.join(nodes)}</svg>"
    )


def code(lines: Sequence[Line], left: str, right: str) -> str:
    """Two scripts side by side, what the second has more marked; on a narrow screen the second alone.

    Args:
        lines: Of both.
        left: What the first one is called.
        right: What the second one is called.
    """
    added = [at for at, line in enumerate(lines) if line.is_added]
    parts = [f'<div class="line titles"><div>{escape(left)}</div><div>{escape(right)}</div></div>']
    near = [any(abs(at - one) <= _CONTEXT for one in added) for at in range(len(lines))]
    for is_near, group in groupby(zip(near, lines, strict=True), key=itemgetter(0)):
        drawn = [_line(line) for _, line in group]
        if is_near:
            parts += drawn
        else:
            summary = f"{plural(len(drawn), 'equal line')}"
            parts.append(f"<details><summary>{summary}</summary>{''.join(drawn)}</details>")
    return f'<div class="code">{"".join(parts)}</div>'


def _line(line: Line) -> str:
    if line.is_added:
        return f'<div class="line"><div class="none"></div><ins>{escape(line.right)}</ins></div>'
    return f'<div class="line"><div>{escape(line.left or "")}</div><div>{escape(line.right)}</div></div>'
