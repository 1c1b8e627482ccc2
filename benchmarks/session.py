"""A viewer without a browser: speaks Streamlit's protocol as a tab on the training page does."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import websockets
from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg

_LOSS = "Loss: training against validation"
_TRIGGER = "$$STREAMLIT_INTERNAL_KEY_{}__events"
"""Widget that carries a component's triggers (Streamlit 1.67, components/v2/bidi_component/main.py)."""


@dataclass
class Seen:
    """What a viewer has received. Times are of `time.perf_counter`."""

    figures: list[tuple[float, int]] = field(default_factory=list)
    """When a loss chart came, and the last step on it."""
    answers_s: list[float] = field(default_factory=list)
    """From asking for news until the loss chart came."""
    is_live: bool = False
    """Whether the page that was sent last asks for news."""
    messages: int = 0
    before_look: list[int] = field(default_factory=list)
    """Messages that had come when the page asked for news, each time."""
    received_bytes: int = 0


async def watch(address: str, run_id: str, seen: Seen, is_over: Callable[[], bool]) -> None:
    """Watches a run as a tab does, until told to end.

    Args:
        address: Of the dashboard, ``127.0.0.1:8501``.
        run_id: Which run.
        seen: Where to write down what comes.
        is_over: Asked every half second whether to leave.
    """
    # The browser sends a protocol's name, the XSRF token and the session to come back to.
    async with websockets.connect(
        f"ws://{address}/_stcore/stream",
        subprotocols=[websockets.Subprotocol("streamlit"), websockets.Subprotocol("PLACEHOLDER_AUTH_TOKEN")],
        max_size=None,
        compression=None,
        open_timeout=60,
    ) as socket:
        await _Tab(socket, f"run={run_id}", seen).stay(is_over)


class _Tab:
    def __init__(self, socket: websockets.ClientConnection, query: str, seen: Seen) -> None:
        self._socket, self._query, self._seen = socket, query, seen
        self._page = ""
        self._asked_at: float | None = None
        self._timer: asyncio.Task[None] | None = None
        # What the browser keeps of the last runs, so that the server need not send it again.
        self._kept: dict[str, tuple[int, bytes]] = {}
        self._runs = 0

    async def stay(self, is_over: Callable[[], bool]) -> None:
        await self._rerun()
        while not is_over():
            try:
                raw = await asyncio.wait_for(self._socket.recv(), timeout=0.5)
            except TimeoutError:
                continue
            assert isinstance(raw, bytes)
            self._take(raw)
        if self._timer is not None:
            self._timer.cancel()

    def _take(self, raw: bytes) -> None:
        now = time.perf_counter()
        self._seen.messages += 1
        self._seen.received_bytes += len(raw)
        message = ForwardMsg.FromString(raw)
        kind = message.WhichOneof("type")
        if kind == "navigation":
            self._page = message.navigation.page_script_hash
        elif kind == "new_session" and not message.metadata.run.fragment_ids:
            self._seen.is_live = False
        elif kind == "script_finished":
            self._runs += 1
            self._kept = {key: kept for key, kept in self._kept.items() if kept[0] > self._runs - 3}
        elif kind == "ref_hash":
            self._kept[message.ref_hash] = (self._runs, self._kept[message.ref_hash][1])
        elif kind == "delta":
            if message.metadata.cacheable:
                self._kept[message.hash] = (self._runs, raw)
            component = message.delta.new_element.bidi_component
            if component.component_name == "mirrorboard_chart":
                self._chart(component.bytes, now)
            elif component.component_name == "mirrorboard_pulse":
                self._seen.is_live = True
                wait_s = json.loads(component.json)["wait_s"]
                self._timer = asyncio.create_task(self._ask(component.id, message.delta.fragment_id, wait_s))

    def _chart(self, content: bytes, now: float) -> None:
        chart: dict[str, Any] = json.loads(content)
        if chart["title"] != _LOSS:
            return
        steps = chart["figure"]["data"][0]["customdata"]
        if not steps:
            return
        shown = np.frombuffer(base64.b64decode(steps["bdata"]), steps["dtype"])
        self._seen.figures.append((now, int(shown[-1]) - 1))
        if self._asked_at is not None:
            self._seen.answers_s.append(now - self._asked_at)
            self._asked_at = None

    async def _ask(self, component: str, fragment: str, wait_s: float) -> None:
        await asyncio.sleep(wait_s)
        self._seen.before_look.append(self._seen.messages)
        self._asked_at = time.perf_counter()
        await self._rerun(component, fragment)

    async def _rerun(self, component: str = "", fragment: str = "") -> None:
        back = BackMsg()
        rerun = back.rerun_script
        rerun.query_string = self._query
        rerun.page_script_hash = self._page
        rerun.page_name = "" if self._page else "training"
        rerun.context_info.timezone = "UTC"
        if component:
            rerun.fragment_id = fragment
            state = rerun.widget_states.widgets.add(id=_TRIGGER.format(component))
            state.json_trigger_value = json.dumps([{"event": "due", "value": len(self._seen.before_look)}])
            rerun.cached_message_hashes.extend(self._kept)
        await self._socket.send(back.SerializeToString())
