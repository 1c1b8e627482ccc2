"""When a live page looks for news: as often as the server can bear, and it draws only what has changed.

A timer of Streamlit's (``run_every``) ticks in the browser whether or not the last answer has come, so that
a server with too many viewers falls ever further behind. Here the next question follows the last answer, and
the server says when: a second later, or when its timetable has room.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable

import streamlit as st

from core.dashboard import draft
from core.dashboard.fragments import fragment
from core.dashboard.job_status import FOLLOWED, JOB_STATUS
from core.errors import MirrorboardError

SHORTEST_S = 1.0
"""Time between two looks when few people watch."""
_SOON_S = 0.2
"""The same, of somebody who waits for something to begin."""
REFRESH_S = 0.02
"""Least time between the looks of any two viewers."""
_WEIGHT = 0.05
"""Of the newest look in the running mean of how long one takes."""
_LOOKED_AT = "looked_at"
"""In the session's state: when the look began that is under way."""

_turns = itertools.count()

_ask = st.components.v2.component(
    "mirrorboard_pulse",
    js="""
export default function ({ data, parentElement: here, setTriggerValue }) {
  if (here.turn === data.turn) return;
  here.turn = data.turn;
  clearTimeout(here.timer);
  const ask = () => {
    if (!here.isConnected || here.turn !== data.turn) return;
    if (document.hidden) return document.addEventListener("visibilitychange", ask, { once: true });
    setTriggerValue("due", data.turn);
    here.timer = setTimeout(ask, 10000);  // should the answer have been lost
  };
  here.timer = setTimeout(ask, 1000 * data.wait_s);
}
""",
)


class Timetable:
    """When everybody's next look is due. Any number of threads may use one instance.

    Looks are spread evenly, as far apart as one takes: many at once would make each wait for all the others.
    Whatever else keeps the processor busy makes looks longer, and so rarer.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._takes_s = 0.0
        self._last = 0.0

    def wait_s(self, now: float, took_s: float | None = None, least_s: float = SHORTEST_S) -> float:
        """Gives somebody who has just looked the next free time, in seconds from now.

        Args:
            now: Time of a monotonic clock, s.
            took_s: How long the look took; None when the whole page was drawn.
            least_s: The least time to give.
        """
        with self._lock:
            if took_s is not None:
                self._takes_s += _WEIGHT * (min(took_s, SHORTEST_S) - self._takes_s)
            self._last = max(now + least_s, self._last + max(REFRESH_S, self._takes_s))
            return self._last - now


_timetable = Timetable()


def follow(news: Callable[[], list[str]], is_soon: Callable[[], bool] = lambda: False) -> None:
    """Draws parts of the page anew whenever something has changed, and sends nothing when not.

    Args:
        news: Keys of the fragments in which something has changed. The sidebar's is drawn with them.
        is_soon: Whether the viewer waits for something that is about to begin.
    """
    page = draft.page()

    def look() -> None:
        if draft.page() != page:
            return  # asked late: see `core.dashboard.fragments`
        st.session_state[_LOOKED_AT] = time.monotonic()
        try:
            changed = news()
        except MirrorboardError:
            st.rerun()  # the page itself shows what is wrong
        if changed:
            st.rerun([*changed, JOB_STATUS, "pulse"])

    st.session_state[FOLLOWED] = True
    with st.container(key="pulse"):
        fragment(_tick, key="pulse")(look, is_soon)


def _tick(look: Callable[[], None], is_soon: Callable[[], bool]) -> None:
    now = time.monotonic()
    began = st.session_state.pop(_LOOKED_AT, None)
    took_s = None if began is None else now - began
    wait_s = _timetable.wait_s(now, took_s, _SOON_S if is_soon() else SHORTEST_S)
    _ask(key="pulse_timer", data={"turn": next(_turns), "wait_s": wait_s}, on_due_change=look)
