"""The run that is being put together on the pages: each setting is the value of one widget.

A widget's key is the setting's dotted name, such as ``training.epochs``, which is also the name in a
`ConfigError` and in the address: settings that differ from their defaults are kept there, so that a reload
or a sent link brings them back. Session state alone would lose them with the session (Streamlit 1.67, 120 s
after the connection), and ``bind="query-params"`` drops those of other pages.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any, Literal, cast, get_args
from urllib.parse import urlencode

import streamlit as st
from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from core.config import MODEL_LIMITS, DeviceLayout, RunConfig, parse_config
from core.dashboard.markdown import plain
from core.errors import ConfigError
from core.exports import Which
from core.records import Scaling, Status

_ADDRESS = """
export default function ({ data, parentElement: here }) {
  if (here.written === data) return;  // of several the one that has something new writes
  here.written = data;
  const url = new URL(window.location.href);
  const wanted = new URLSearchParams(data);
  if (url.searchParams.toString() === wanted.toString()) return;
  url.search = wanted.toString();
  // Not pushState: settings are no places that the Back button should return to.
  window.history.replaceState(window.history.state, "", url);
}
"""
_address = st.components.v2.component("mirrorboard_address", js=_ADDRESS)


@dataclass(frozen=True)
class _Setting:
    default: Any
    low: float | None
    high: float | None
    adapter: TypeAdapter[Any]
    may_be_empty: bool = False
    """Whether a viewer may choose none of several things."""

    def decoded(self, text: str) -> Any:
        """A value from the address: brought into range, the default where it makes no sense."""
        if len(text) > _LONGEST:
            return self.default
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            value = text
        # As a text first: of the id "11e52951", infinite as a number, nothing would be left.
        for meant in (text, self._within(value)):
            try:
                value = self.adapter.validate_python(meant)
            except ValidationError:
                continue
            if isinstance(value, list | tuple):
                # Nothing can be chosen twice, and what is counted is counted from 0.
                kept = [one for one in dict.fromkeys(value) if not isinstance(one, int) or one >= 0]
                return kept if kept or (self.may_be_empty and not value) else self.default
            return self._within(value)
        return self.default

    def _within(self, value: Any) -> Any:
        """A number brought into range; the default where it is not finite."""
        if isinstance(value, bool) or not isinstance(value, int | float):
            return value
        if isinstance(value, float) and not math.isfinite(value):
            return self.default
        value = max(value, self.low) if self.low is not None else value
        return min(value, self.high) if self.high is not None else value


def _settings() -> dict[str, _Setting]:
    settings: dict[str, _Setting] = {}
    for section, model in RunConfig.model_fields.items():
        assert isinstance(model.annotation, type)
        assert issubclass(model.annotation, BaseModel)
        for name, field in model.annotation.model_fields.items():
            key = f"{section}.{name}"
            parts = get_args(field.annotation)
            if isinstance(field.default, tuple) and Ellipsis not in parts:
                for i, part in enumerate(field.default):
                    settings[f"{key}.{i}"] = _Setting(part, 1, MODEL_LIMITS[name], TypeAdapter(int))
            else:
                settings[key] = _setting(field)
    return settings


def _setting(field: FieldInfo) -> _Setting:
    def bound(name: str) -> Any:
        return next((getattr(rule, name) for rule in field.metadata if hasattr(rule, name)), None)

    default = list(field.default) if isinstance(field.default, tuple) else field.default
    return _Setting(default, bound("ge"), bound("le"), TypeAdapter(cast("Any", field.annotation)))


_SETTINGS = _settings()
_VIEWS = {
    name: _Setting(default, None, None, TypeAdapter(cast("Any", kind)), may_be_empty=True)
    for name, default, kind in (
        ("axis", "epoch", Literal["epoch", "step"]),
        ("accuracy", "", str),
        ("stops", ["GL"], list[Literal["GL", "PQ", "UP", "patience"]]),
        ("stop.gl", "2, 5, 20", str),
        ("stop.pq", "0.5", str),
        ("stop.up", "1, 2", str),
        ("stop.k", "5, 2", str),
        ("stop.patience", "2, 3, 5", str),
        ("runs", [], list[str]),
        ("runs.find", "", str),
        ("runs.status", [], list[Status]),
        ("runs.tags", [], list[str]),
        ("step.at", 1, Literal[1, 2, 3, 4, 5, 6]),
        ("step.batch", 1, int),
        ("compare.along", "epoch", Literal["epoch", "step", "time"]),
        ("compare.baseline", "", str),
        ("which", "best", Which),
        ("compare", "", str),
        ("matrix.of", "first", Literal["first", "second"]),
        ("matrix.values", "counts", Literal["counts", "shares"]),
        ("matrix.order", "support", Literal["support", "confusion"]),
        ("matrix.classes", "all", Literal["all", "first"]),
        ("cell.true", -1, int),
        ("cell.answer", -1, int),
        ("scaling.kind", Scaling.STRONG, Scaling),
        ("scaling.replicas", [1, 2, 4], list[int]),
        ("study", "", str),
    )
}
"""How runs are looked at: widget values that are no settings of a run, but belong in the address as well."""
_ADDRESSED = {**_SETTINGS, **_VIEWS}
_LONGEST = 2_000
"""Characters of a value in the address; a longer one is not read."""
_LONGEST_ID = 40
"""What is longer is no run's id, and would be carried along in every link."""
_CHOSEN_RUN = "run"
_PAGE = "page"


def restore(page: str) -> bool:
    """Brings the settings of the address into a new session, and defaults for the rest.

    Args:
        page: The page that is drawn. The address chooses the run when the viewer arrives there; later it only
            follows what the viewer chooses, a moment behind.

    Returns:
        Whether the viewer comes from another page of the same session.
    """
    for name, setting in _ADDRESSED.items():
        if name not in st.session_state:
            text = st.query_params.get(name)
            st.session_state[name] = setting.default if text is None else setting.decoded(text)
    before = st.session_state.get(_PAGE)
    st.session_state[_PAGE] = page
    if before != page and _CHOSEN_RUN in st.query_params:
        st.session_state[_CHOSEN_RUN] = st.query_params[_CHOSEN_RUN][:_LONGEST_ID]
    return before not in (None, page)


def page() -> str:
    """The page that is drawn."""
    return str(st.session_state[_PAGE])


def address() -> dict[str, str]:
    """What the address must carry: settings and views that differ from their defaults, and the chosen run."""
    changed = {}
    for name, setting in _ADDRESSED.items():
        now = value(name)
        if now != setting.default:
            changed[name] = now if isinstance(now, str) else json.dumps(now)
    run = chosen_run()
    return {**changed, _CHOSEN_RUN: run} if run else changed


def keep_in_address(part: str = "page") -> None:
    """Writes the settings and the chosen run to the address bar.

    Args:
        part: Name of a part of the page that is drawn by itself and holds views.
    """
    _address(key=f"address_{part}", data=urlencode(address()))


def chosen_run() -> str | None:
    """Id of the run that the viewer looks at."""
    run = st.session_state.get(_CHOSEN_RUN)
    return run if isinstance(run, str) else None


def choose_run(run_id: str | None) -> None:
    """Looks at another run, or at none."""
    st.session_state[_CHOSEN_RUN] = run_id


def bounds(name: str) -> tuple[Any, Any]:
    """Lowest and highest value of a setting; None where there is no limit."""
    return _SETTINGS[name].low, _SETTINGS[name].high


def default(name: str) -> Any:
    """The default of a setting or a view."""
    return _ADDRESSED[name].default


def value(name: str) -> Any:
    """The present value of a setting or a view."""
    return st.session_state.get(name, _ADDRESSED[name].default)


def values() -> dict[str, Any]:
    """All settings, nested as `core.config.parse_config` takes them."""
    nested: dict[str, dict[str, Any]] = {}
    for name in _SETTINGS:
        section, field, *place = name.split(".")
        if place:
            nested.setdefault(section, {}).setdefault(field, []).append(value(name))
        else:
            nested.setdefault(section, {})[field] = value(name)
    if nested["layout"]["device_type"] == "CPU":
        # Their fields are hidden for a CPU, so nobody could take back what was set for a GPU before.
        nested["layout"] |= {"memory_limit_mb": None, "memory_growth": False}
    return nested


def config(**sections: dict[str, Any]) -> RunConfig:
    """The run as it stands.

    Args:
        sections: Settings that take the place of the draft's, by section.

    Raises:
        ConfigError: It cannot work; `ConfigError.field` is the name of a setting.
    """
    nested = values()
    for section, changes in sections.items():
        nested[section] = {**nested[section], **changes}
    return parse_config(nested)


def layout() -> DeviceLayout:
    """The draft's device layout, whatever the other settings are.

    Raises:
        ConfigError: It cannot work.
    """
    return parse_config({"layout": values()["layout"]}).layout


def problem_at(error: ConfigError | None, *names: str) -> None:
    """Shows an error under the fields it belongs to.

    Args:
        error: What `config` raised, if anything.
        names: Settings, or the beginnings of their names.
    """
    if error is not None and any(error.field == name or error.field.startswith(f"{name}.") for name in names):
        st.error(f"{plain(error.message)} {plain(error.hint)}", icon=":material/error:")
