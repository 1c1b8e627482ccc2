"""Draws Plotly figures on a node that stays, so that zoom, hidden traces and hover survive a refresh.

``st.plotly_chart`` puts a new chart in the place of the old one whenever its data changes (Streamlit 1.67).
This component keeps its node and calls ``Plotly.react``. Colours in a figure may be Streamlit's CSS
variables, ``var(--st-primary-color)``, or places in its palette, ``var(--palette-0)``; they are looked up in
the browser, in whatever theme is on.

The browser tells which part of a thinned chart is zoomed into, and gets that part finer. A menu on every
chart saves it as PNG or SVG, and all its points as CSV.
"""

from __future__ import annotations

import hashlib
import json
import math
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd  # noqa: F401 - Plotly looks for it, and must not find it half imported by another thread
import plotly
import plotly.graph_objects as go
import streamlit as st

_STATIC = Path(__file__).parents[3] / "static"
"""The folder that Streamlit serves as ``app/static`` (``server.enableStaticServing``)."""
_PLOTLY = f"plotly-{plotly.__version__}.min.js"


def _chart_js() -> str:
    """The module that draws, with its styles."""
    css, js = (Path(__file__).with_name(f"chart.{kind}").read_text("utf-8") for kind in ("css", "js"))
    return f"const CSS = {json.dumps(css)};\n{js}"


_CHART = f"chart-{hashlib.sha256(_chart_js().encode()).hexdigest()[:12]}.js"


def _address(file: str) -> str:
    base = st.get_option("server.baseUrlPath").strip("/")
    return f"/{base}/app/static/{file}" if base else f"/app/static/{file}"


# Streamlit 1.67 sends a component's script with each of its elements, again in every refresh: this one only
# fetches another. Plotly's own styles live in the document's head, where a shadow root does not see them.
_mount = st.components.v2.component(
    "mirrorboard_chart",
    js=f"""
const drawing = import(new URL({json.dumps(_address(_CHART))}, location.origin).href);
export default async (element) => {{
  let draw;
  try {{ draw = (await drawing).default; }} catch {{
    element.parentElement.textContent = "The chart did not load. Reload the page to try again.";
    return undefined;
  }}
  return draw(element);
}};
""",
    isolate_styles=False,
)


def install_scripts() -> None:
    """Puts what draws charts in the browser where Streamlit serves it: our module and plotly.js.

    Raises:
        OSError: The folder cannot be written.
    """
    _STATIC.mkdir(exist_ok=True)
    _install(_CHART, lambda: _chart_js().encode())
    _install(_PLOTLY, (Path(plotly.__file__).parent / "package_data" / "plotly.min.js").read_bytes)


def _install(file: str, content: Callable[[], bytes]) -> None:
    target = _STATIC / file
    if not target.exists():
        aside = target.with_name(f"{target.name}.{secrets.token_hex(4)}")
        aside.write_bytes(content())
        aside.replace(target)


@dataclass(frozen=True)
class Part:
    """What of a chart its viewer looks at.

    Attributes:
        start: Where the visible part of the x axis begins, in its units.
        end: Where it ends.
        revision: The ``uirevision`` of the figure that was zoomed; another figure is seen whole.
        every_point: True when nothing is to be thinned, for a file.
    """

    start: float = -math.inf
    end: float = math.inf
    revision: str = ""
    every_point: bool = False

    def visible(self, revision: str) -> tuple[float, float] | None:
        """The visible part of the x axis of a figure with this ``uirevision``; None for all of it."""
        return (self.start, self.end) if revision == self.revision else None


WHOLE = Part()


def chart(
    figure: go.Figure,
    title: str,
    description: str,
    *,
    file: str = "chart",
    thinned: bool = False,
    clickable: bool = False,
) -> bytes:
    """A figure ready to be shown any number of times.

    Args:
        figure: What to draw; give it a height, and a ``uirevision`` when it will be refreshed.
        title: What the chart shows, as a heading.
        description: The same for those who cannot see it, with the figures that matter.
        file: What the chart is called when it is saved, without an ending.
        thinned: Whether a drawing of the whole leaves points out.
        clickable: Whether a click on a point means something; see `show`.
    """
    figure.layout.template = None
    about = {
        "src": _address(_PLOTLY),
        "label": description,
        "title": title,
        "file": file,
        "thinned": thinned,
        "clickable": clickable,
    }
    return _with(json.dumps(about, allow_nan=False).encode(), figure=figure.to_json().encode())


def is_empty(figure: go.Figure) -> bool:
    """True when no trace has a finite value."""
    return not any(np.isfinite(np.asarray(trace.y, np.float64)).any() for trace in figure.data)


def say_if_empty(figure: go.Figure, why: str) -> None:
    """Writes into the plot why it is empty, when it is."""
    if is_empty(figure):
        figure.add_annotation(
            x=0.5, y=0.5, xref="paper", yref="paper", text=why, showarrow=False, font_size=13
        )


def _with(content: bytes, **more: bytes) -> bytes:
    """JSON with more members, which are JSON themselves."""
    members = b"".join(b', "%b": %b' % (name.encode(), value) for name, value in more.items())
    return content[:-1] + members + b"}"


def show(
    content: bytes | Callable[[Part], bytes], key: str, *, on_click: Callable[[Any, Any], None] | None = None
) -> None:
    """Draws what `chart` made. The key is what keeps the node, and with it zoom and hidden traces.

    Args:
        content: The chart; of one that may be thinned, what makes it for the part that is looked at.
        key: Of the chart, the same in every refresh.
        on_click: Told x and y of the point that was clicked, before the page is drawn anew.
    """
    if not isinstance(content, bytes):
        # What the browser has told about the node: `report` and `menu` in chart.js.
        said: Mapping[str, Any] = st.session_state.get(key) or {}
        asked = said.get("csv")
        part = _part(said.get("zoom"))
        every_point = content(Part(every_point=True)) if asked else None
        content = content(part)
        if every_point is not None:
            content = _with(content, asked=json.dumps(asked).encode(), csv=every_point)

    def clicked() -> None:
        point = (st.session_state.get(key) or {}).get("clicked")
        if on_click is not None and isinstance(point, Mapping):
            on_click(point.get("x"), point.get("y"))

    if on_click is None:
        _mount(key=key, data=content)
    else:
        _mount(key=key, data=content, on_clicked_change=clicked)


def _part(zoom: Any) -> Part:
    """What the browser says is visible; the whole when it says nothing that can be."""
    try:
        start, end, revision = float(zoom["start"]), float(zoom["end"]), str(zoom["revision"])
    except (TypeError, KeyError, ValueError):
        return WHOLE
    return Part(start, end, revision) if start < end else WHOLE
