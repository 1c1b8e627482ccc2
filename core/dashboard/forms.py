"""Fields for the settings of the draft, each with its error beneath it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import streamlit as st

from core.dashboard import draft
from core.errors import ConfigError


def number(
    name: str,
    label: str,
    error: ConfigError | None,
    *,
    help: str | None = None,  # noqa: A002 - Streamlit's word
    step: float | None = None,
    form: str | None = None,
    empty: str | None = None,
    disabled: bool = False,
) -> None:
    """A field for a number.

    Args:
        name: The setting.
        label: Its name for people.
        error: What is wrong with the draft, shown here when it belongs here.
        help: What the setting does.
        step: Change of one click.
        form: How the number is written, such as ``%g``.
        empty: What an empty field means; only for settings that may be None.
        disabled: Shown, but not to be changed.
    """
    low, high = draft.bounds(name)
    if isinstance(step, float):
        # Streamlit wants all numbers of a field to be of one type.
        low, high = (None if bound is None else float(bound) for bound in (low, high))
    optional: dict[str, Any] = {"value": None, "placeholder": empty} if empty else {}
    st.number_input(
        label,
        min_value=low,
        max_value=high,
        **optional,
        step=step,
        format=form,
        key=name,
        help=help,
        disabled=disabled,
        persist_state="session",
    )
    draft.problem_at(error, name)


def text(
    name: str,
    label: str,
    error: ConfigError | None,
    *,
    help: str | None = None,  # noqa: A002
) -> None:
    """A field for a line of text; arguments as for `number`."""
    st.text_input(label, key=name, help=help, persist_state="session")
    draft.problem_at(error, name)


def slider(name: str, label: str, error: ConfigError | None, *, help: str | None = None) -> None:  # noqa: A002
    """A slider over the whole range of a setting; arguments as for `number`."""
    low, high = draft.bounds(name)
    st.slider(label, low, high, key=name, help=help, persist_state="session")
    draft.problem_at(error, name)


def switch(
    name: str,
    label: str,
    error: ConfigError | None,
    *,
    help: str | None = None,  # noqa: A002
    disabled: bool = False,
) -> None:
    """A field for yes or no; arguments as for `number`."""
    st.toggle(label, key=name, help=help, disabled=disabled, persist_state="session")
    draft.problem_at(error, name)


def choice(
    name: str,
    label: str,
    options: Mapping[Any, str],
    error: ConfigError | None,
    *,
    help: str | None = None,  # noqa: A002
) -> None:
    """One of a few values.

    Args:
        name: The setting.
        label: Its name for people.
        options: What each value is called.
        error: As for `number`.
        help: As for `number`.
    """
    st.segmented_control(
        label,
        list(options),
        format_func=options.__getitem__,
        key=name,
        help=help,
        required=True,
        persist_state="session",
    )
    draft.problem_at(error, name)


def view(name: str, label: str, options: Mapping[Any, str]) -> None:
    """How something is looked at: one of a few ways, whose label only screen readers are told.

    Args:
        name: The view.
        label: Its name.
        options: What each way is called.
    """
    st.segmented_control(
        label,
        list(options),
        format_func=options.__getitem__,
        key=name,
        required=True,
        label_visibility="collapsed",
        persist_state="session",
    )


def keep(name: str, options: Sequence[int]) -> None:
    """Drops from a setting with several values what is no option; the first takes their place if none is."""
    st.session_state[name] = [one for one in draft.value(name) if one in options] or list(options[:1])


def several(
    name: str, label: str, options: Sequence[int], called: Callable[[int], str], error: ConfigError | None
) -> None:
    """Some of several numbered things, at least one.

    Args:
        name: The setting.
        label: Its name for people.
        options: The numbers there are; a value that is none of them is dropped first.
        called: What each is called.
        error: As for `number`.
    """
    keep(name, options)
    st.multiselect(label, options, format_func=called, key=name, persist_state="session")
    draft.problem_at(error, name)
