"""When a live page looks for news: as often as the server can bear, and it draws only what has changed.

A timer of Streamlit's (``run_every``) ticks in the browser whether or not the last answer has come, so that
a server with too many viewers falls ever further behind. Here the next question follows the last answer, and
the server says when: a second later, or when its timetable has room, `REFRESH_S` after somebody else's.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable

import streamlit as st

from core.dashboard.job_status import FOLLOWED, JOB_STATUS
from core.errors import MirrorboardError

SHORTEST_S = 1.0
"""Time between two looks when few people watch."""
REFRESH_S = 0.02
"""Least time between the looks of any two viewers."""
_SHARE = 0.6
"""Of the time of a processor that looks may take; beyond it one viewer would wait for many others."""
_WEIGHT = 0.05
"""Of the newest look in the running mean of what one costs."""

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

    Looks are spread evenly: many at once would make each wait for all the others. The more one costs, the
    further apart they are.

    Args:
        used_s: Tells the processor time that everything here has used so far, in seconds.
    """

    def __init__(self, used_s: Callable[[], float] = time.process_time) -> None:
        self._lock = threading.Lock()
        self._used_s = used_s
        self._used = used_s()
        self._cost_s = 0.0
        self._last = 0.0

    def wait_s(self, now: float) -> float:
        """Gives somebody who has just looked the next free time, in seconds from now.

        Args:
            now: Time of a monotonic clock, s.
        """
        with self._lock:
            before, self._used = self._used, self._used_s()
            self._cost_s += _WEIGHT * (self._used - before - self._cost_s)
            self._last = max(now + SHORTEST_S, self._last + max(REFRESH_S, self._cost_s / _SHARE))
            return self._last - now


_timetable = Timetable()


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

    st.session_state[FOLLOWED] = True
    with st.container(key="pulse"):
        st.fragment(_tick, key="pulse")(look)


def _tick(look: Callable[[], None]) -> None:
    wait_s = _timetable.wait_s(time.monotonic())
    _ask(key="pulse_timer", data={"turn": next(_turns), "wait_s": wait_s}, on_due_change=look)
