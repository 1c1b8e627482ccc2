"""A page without a browser, and what stands on it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from streamlit.testing.v1 import AppTest

Open = Callable[..., AppTest]


def sound(app: AppTest) -> AppTest:
    """The page ran to its end; what it could not do it said."""
    assert not app.exception, app.exception
    assert not [error.value for error in app.error if "This part of the page failed" in error.value]
    return app


def texts(app: AppTest) -> str:
    """All that stands on the page, Markdown's escapes taken out."""
    parts = [*app.markdown, *app.caption, *app.info, *app.warning, *app.error, *app.success, *app.title]
    return unescaped("\n".join(str(part.value) for part in parts))


def unescaped(text: str) -> str:
    """Markdown's text as people see it."""
    return text.replace("\\", "").replace("\N{WORD JOINER}", "")


def charts(app: AppTest) -> dict[str, dict[str, Any]]:
    """The charts on the page, by title, as the browser gets them."""
    found = {}
    for element in app.get("bidi_component"):
        if element.proto.component_name == "mirrorboard_chart":
            content = json.loads(element.proto.bytes)
            found[content["title"]] = content
    return found


def drawings(app: AppTest) -> str:
    return "\n".join(
        element.proto.json
        for element in app.get("bidi_component")
        if element.proto.component_name == "mirrorboard_drawing"
    )
