"""When a live page looks for news: as often as the server can bear, and it draws only what has changed.

A timer of Streamlit's (``run_every``) ticks in the browser whether or not the last answer has come, so that
a server with too many viewers falls ever further behind. Here the next question follows the last answer, and
the server says when: once a second for up to 40 viewers, then `REFRESH_S` of the server's time for each.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable

import streamlit as st
from streamlit.runtime.scriptrunner import get_script_run_ctx

from core.dashboard.frame import JOB_STATUS
from core.errors import MirrorboardError

SHORTEST_S = 1.0
"""Time between two looks when few people watch."""
REFRESH_S = 0.025
"""Share of the time between two looks that each viewer adds: twice what a refresh costs on a slow core."""
_GONE_S = 5.0
"""How long after the time of their next look somebody still counts as a viewer."""

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


class Audience:
    """Who watches live pages of this server. Any number of threads may use one instance."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._until: dict[str, float] = {}

    def wait_s(self, viewer: str, now: float) -> float:
        """Counts a viewer who has just looked, and says after how many seconds to look again."""
        with self._lock:
            self._until = {each: until for each, until in self._until.items() if until > now}
            self._until[viewer] = 0.0
            wait_s = max(SHORTEST_S, REFRESH_S * len(self._until))
            self._until[viewer] = now + wait_s + _GONE_S
            return wait_s


_audience = Audience()


def follow(news: Callable[[], list[str]]) -> None:
    """Draws parts of the page anew whenever something has changed, and sends nothing when not.

    Args:
        news: Keys of the fragments in which something has changed. The sidebar's is drawn with them.
    """

    def look() -> None:
        try:
            changed = news()
        except MirrorboardError:
            st.rerun()  # the page itself shows what is wrong
        if changed:
            st.rerun([*changed, JOB_STATUS, "pulse"])

    with st.container(key="pulse"):
        st.fragment(_tick, key="pulse")(look)


def _tick(look: Callable[[], None]) -> None:
    context = get_script_run_ctx()
    viewer = "" if context is None else context.session_id
    wait_s = _audience.wait_s(viewer, time.monotonic())
    _ask(key="pulse_timer", data={"turn": next(_turns), "wait_s": wait_s}, on_due_change=look)
