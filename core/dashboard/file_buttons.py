"""Buttons that make a file when they are clicked, and what became of the last click."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import streamlit as st
from streamlit import runtime

from core.dashboard.fragments import fragment
from core.dashboard.messages import boundary, problem
from core.errors import MirrorboardError

_log = logging.getLogger(__name__)
_MOST_KEPT = 8
"""Files that stay until as many others have been made."""
_BYTES = "application/octet-stream"

_turns = itertools.count()

# Streamlit makes such a file outside of any page and tells the browser only that it failed (1.67). After a
# click this asks every second what came of it; the buttons must not be drawn anew meanwhile, because that
# takes the order back.
_ask = st.components.v2.component(
    "mirrorboard_files",
    js="""
export default function ({ data, parentElement: here, setTriggerValue }) {
  here.over = data.over;
  here.tell = setTriggerValue;  // that of an earlier drawing may go nowhere
  if (here.listens) return;
  here.listens = true;
  here.wanted = data.over;
  const ask = (left) => {
    if (!here.isConnected || here.over >= here.wanted) return;
    if (left === 0) return void (here.wanted = here.over);
    here.tell("asked", Date.now());
    setTimeout(ask, 1000, left - 1);
  };
  const clicked = (event) => {
    if (!here.isConnected) return document.removeEventListener("click", clicked, true);
    if (!event.target.closest(`.st-key-${data.place} button:enabled`)) return;
    here.wanted = Math.max(here.wanted, here.over) + 1;
    setTimeout(ask, 500, 90);
  };
  document.addEventListener("click", clicked, true);  // before the button turns itself off
}
""",
)


@dataclass
class _Tries:
    """What became of clicks: written where the files are made, read by the page.

    Attributes:
        over: How many have come to an end.
        of: What the last one's file was of.
        error: What went wrong with it, and what to do.
    """

    over: int = 0
    of: str = ""
    error: tuple[str, str] | None = None

    def make(self, of: str, what: str, content: Callable[[], bytes], name: str, mime: str) -> bytes:
        """Makes a file, and keeps what went wrong."""
        self.of, self.error = of, None
        try:
            return _kept(content(), name, mime)
        except MirrorboardError as error:
            self.error = (f"{what} could not be made. {error.message}", error.hint)
            raise
        except Exception as error:
            _log.exception("A file could not be made")
            self.error = (
                f"{what} could not be made ({type(error).__name__}).",
                "Try again. If it comes back, the dashboard's log on the terminal has the details.",
            )
            raise
        finally:
            self.over += 1


class FileButtons:
    """What `file_buttons` gives.

    Args:
        tries: What became of clicks so far.
        of: What the files are of.
    """

    def __init__(self, tries: _Tries, of: str) -> None:
        self._tries, self._of = tries, of

    def button(
        self,
        label: str,
        content: Callable[[], bytes],
        name: str,
        *,
        key: str,
        mime: str = _BYTES,
        icon: str | None = None,
        reason: str | None = None,
    ) -> None:
        """Draws a button.

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
            partial(self._tries.make, self._of, label, content, name, mime),
            name,
            mime,
            key=key,
            icon=icon,
            on_click="ignore",
            disabled=reason is not None,
            help=reason,
        )


@contextmanager
def file_buttons(place: str, of: str = "") -> Iterator[FileButtons]:
    """A place for buttons, beneath which it is told why a file could not be made.

    Args:
        place: Key of the place.
        of: What the files are of, such as a run's id: another's failure is not told beside its buttons.
    """
    tries: _Tries = st.session_state.setdefault(f"{place}_tries", _Tries())
    with st.container(key=place):
        yield FileButtons(tries, of)
    fragment(_tell)(tries, place, of)


def _tell(tries: _Tries, place: str, of: str) -> None:
    """What has become of the last click, until the next."""
    with boundary():
        if tries.of == of and tries.error is not None:
            problem(*tries.error)
        _ask(key=f"{place}_news", data={"over": tries.over, "place": place}, on_asked_change=lambda: None)


def _kept(made: bytes, name: str, mime: str) -> bytes:
    """Keeps a file until the browser has had time to fetch it.

    Streamlit 1.67 throws it away after the second run of anybody's script
    (``MediaFileManager.remove_orphaned_files``), with many viewers before it is asked for. A file that has a
    place on a page stays.
    """
    if runtime.exists():
        place = f"files.{next(_turns) % _MOST_KEPT}"
        runtime.get_instance().media_file_mgr.add(made, mime, place, name, is_for_static_download=True)
    return made
