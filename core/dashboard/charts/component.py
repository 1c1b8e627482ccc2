"""Draws Plotly figures on a node that stays, so that zoom, hidden traces and hover survive a refresh.

``st.plotly_chart`` puts a new chart in the place of the old one whenever its data changes (Streamlit 1.67).
This component keeps its node and calls ``Plotly.react``. Colours in a figure may be Streamlit's CSS
variables, ``var(--st-primary-color)``, or places in its palette, ``var(--palette-0)``; they are looked up in
the browser, in whatever theme is on.
"""

from __future__ import annotations

import json
import secrets
from pathlib import Path

import numpy as np
import pandas as pd  # noqa: F401 - Plotly looks for it, and must not find it half imported by another thread
import plotly
import plotly.graph_objects as go
import streamlit as st

_STATIC = Path(__file__).parents[3] / "static"
"""The folder that Streamlit serves as ``app/static`` (``server.enableStaticServing``)."""

_CSS = """
figure { margin: 0; font-family: var(--st-font); }
figcaption { font-weight: 600; font-size: 0.98rem; line-height: 1.35; margin: 0 0 0.15rem 0.1rem;
             color: var(--st-text-color); }
.plot { width: 100%; overflow: hidden; }
.plot.failed { display: flex; align-items: center; justify-content: center; opacity: 0.75; }
"""

_JS = """
const load = (src) => (window.mirrorboardPlotly ??= new Promise((done, fail) => {
  const script = document.createElement("script");
  script.src = src;
  script.onload = () => done(window.Plotly);
  script.onerror = () => { window.mirrorboardPlotly = undefined; fail(new Error(src)); };
  document.head.appendChild(script);
}));

const lookUp = (name, style) => {
  const place = /^--palette-(\\d)$/.exec(name);
  if (!place) return style.getPropertyValue(name).trim();
  return style.getPropertyValue("--st-chart-categorical-colors").split(",")[place[1]].trim();
};

const resolve = (value, style) => {
  if (typeof value === "string") {
    const name = /^var\\((--[\\w-]+)\\)$/.exec(value);
    return name ? lookUp(name[1], style) : value;
  }
  if (Array.isArray(value)) return value.map((v) => resolve(v, style));
  if (value && typeof value === "object" && !("bdata" in value)) {
    for (const key of Object.keys(value)) value[key] = resolve(value[key], style);
  }
  return value;
};

const merge = (base, over) => {
  for (const key of Object.keys(over)) {
    const both = base[key] && over[key] && typeof base[key] === "object" && typeof over[key] === "object";
    base[key] = both && !Array.isArray(over[key]) ? merge(base[key], over[key]) : over[key];
  }
  return base;
};

const axis = (text, line) => ({
  gridcolor: line, linecolor: line, zerolinecolor: line, automargin: true,
  title: { standoff: 8, font: { size: 12 } }, tickfont: { size: 11 },
});

export default async function ({ data, parentElement }) {
  const { src, label, title, figure } = JSON.parse(new TextDecoder().decode(data));
  let node = parentElement.querySelector(".plot");
  if (!node) {
    const frame = document.createElement("figure");
    frame.append(document.createElement("figcaption"), document.createElement("div"));
    node = frame.lastChild;
    node.className = "plot";
    parentElement.appendChild(frame);
  }
  const frame = node.parentElement;
  frame.setAttribute("role", "figure");
  frame.setAttribute("aria-label", label);
  frame.firstChild.textContent = title;
  node.style.minHeight = `${figure.layout.height}px`;
  const turn = (node.turn = (node.turn ?? 0) + 1);

  let Plotly;
  try {
    Plotly = await load(src);
  } catch {
    node.classList.add("failed");
    node.textContent = "The chart library did not load. Reload the page to try again.";
    return;
  }
  if (turn !== node.turn || !node.isConnected) return;
  if (node.classList.contains("failed")) { node.classList.remove("failed"); node.textContent = ""; }

  const style = getComputedStyle(parentElement.querySelector("figure"));
  const read = (name) => style.getPropertyValue(name).trim();
  const [text, line] = [read("--st-text-color"), read("--st-border-color")];
  const layout = merge({
    autosize: true, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    colorway: read("--st-chart-categorical-colors").split(","),
    font: { family: read("--st-font"), color: text, size: 12 },
    margin: { l: 8, r: 12, t: 8, b: 8 },
    xaxis: axis(text, line), yaxis: axis(text, line),
    legend: { orientation: "h", x: 0, y: 1.02, xanchor: "left", yanchor: "bottom", font: { size: 12 } },
    hoverlabel: { bgcolor: read("--st-background-color"), bordercolor: line,
                  font: { color: text, family: read("--st-font") } },
    modebar: { bgcolor: "rgba(0,0,0,0)", color: line, activecolor: text },
  }, resolve(figure.layout, style));
  const config = { displaylogo: false, responsive: true, displayModeBar: "hover",
                   modeBarButtonsToRemove: ["lasso2d", "select2d", "autoScale2d"],
                   showSendToCloud: false, showEditInChartStudio: false, plotlyServerURL: "" };
  await Plotly.react(node, resolve(figure.data, style), layout, config);
  if (!node.watcher) {
    let width = node.clientWidth;
    node.watcher = new ResizeObserver(() => {
      if (!node.clientWidth || node.clientWidth === width) return;
      width = node.clientWidth;
      Plotly.Plots.resize(node);
    });
    node.watcher.observe(node);
  }
  return () => { node.watcher?.disconnect(); Plotly.purge(node); };
}
"""

# Plotly's own styles live in the document's head, where a shadow root does not see them.
_mount = st.components.v2.component("mirrorboard_chart", css=_CSS, js=_JS, isolate_styles=False)


def _file_name() -> str:
    return f"plotly-{plotly.__version__}.min.js"


def install_plotly_js() -> None:
    """Puts the plotly.js that belongs to the installed plotly where Streamlit serves it.

    Raises:
        OSError: The folder cannot be written.
    """
    target = _STATIC / _file_name()
    if target.exists():
        return
    source = Path(plotly.__file__).parent / "package_data" / "plotly.min.js"
    _STATIC.mkdir(exist_ok=True)
    aside = target.with_name(f"{target.name}.{secrets.token_hex(4)}")
    aside.write_bytes(source.read_bytes())
    aside.replace(target)


def chart(figure: go.Figure, title: str, description: str) -> bytes:
    """A figure ready to be shown any number of times.

    Args:
        figure: What to draw; give it a height, and a ``uirevision`` when it will be refreshed.
        title: What the chart shows, as a heading.
        description: The same for those who cannot see it, with the figures that matter.
    """
    figure.layout.template = None
    base = st.get_option("server.baseUrlPath").strip("/")
    src = f"/{base}/app/static/{_file_name()}" if base else f"/app/static/{_file_name()}"
    about = json.dumps({"src": src, "label": description, "title": title}, allow_nan=False)
    return f'{about[:-1]}, "figure": {figure.to_json()}}}'.encode()


def say_if_empty(figure: go.Figure, why: str) -> None:
    """Writes into the plot why it is empty, when no trace has a finite value."""
    if not any(np.isfinite(np.asarray(trace.y, np.float64)).any() for trace in figure.data):
        figure.add_annotation(
            x=0.5, y=0.5, xref="paper", yref="paper", text=why, showarrow=False, font_size=13
        )


def show(content: bytes, key: str) -> None:
    """Draws what `chart` made. The key is what keeps the node, and with it zoom and hidden traces."""
    _mount(key=key, data=content)
