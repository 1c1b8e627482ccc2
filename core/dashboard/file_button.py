"""A button that makes a file when it is clicked."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial

import streamlit as st
from streamlit import runtime

_MOST_KEPT = 8
"""Files that stay until as many others have been made."""
_BYTES = "application/octet-stream"

_turns = itertools.count()


def file_button(
    label: str,
    content: Callable[[], bytes],
    name: str,
    *,
    key: str,
    mime: str = _BYTES,
    icon: str | None = None,
    reason: str | None = None,
) -> None:
    """Draws it.

    Args:
        label: What the file is.
        content: Makes it, outside of any page.
        name: Of the file.
        key: Of the button.
        mime: Type of the file.
        icon: On the button.
        reason: Why the viewer may not have it.
    """
    st.download_button(
        label,
        partial(_kept, content, name, mime),
        name,
        mime,
        key=key,
        icon=icon,
        on_click="ignore",
        disabled=reason is not None,
        help=reason,
    )


def _kept(content: Callable[[], bytes], name: str, mime: str) -> bytes:
    """Makes a file, and keeps it until the browser has had time to fetch it.

    Streamlit 1.67 throws it away after the second run of anybody's script
    (``MediaFileManager.remove_orphaned_files``), with many viewers before it is asked for. A file that has a
    place on a page stays.
    """
    made = content()
    if runtime.exists():
        place = f"files.{next(_turns) % _MOST_KEPT}"
        runtime.get_instance().media_file_mgr.add(made, mime, place, name, is_for_static_download=True)
    return made
