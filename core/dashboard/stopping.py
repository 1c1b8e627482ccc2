"""When the training should have stopped: which criteria, their thresholds, and what they would have saved."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import streamlit as st

from core.analysis.criteria import Stop, Thresholds
from core.dashboard import draft, units
from core.dashboard.fragments import fragment
from core.dashboard.live import RunView
from core.dashboard.messages import boundary, plain

_FAMILIES = ("GL", "PQ", "UP", "patience")
_MOST = 5
"""Thresholds of one kind."""


@dataclass(frozen=True)
class _Field:
    """A field with some numbers, separated by commas."""

    key: str
    label: str
    low: float
    high: float
    whole: bool
    help: str

    def read(self, text: str) -> tuple[Any, ...]:
        """The numbers in a text.

        Raises:
            ValueError: What is wrong with it, for people.
        """
        kind = "whole numbers" if self.whole else "numbers"
        wanted = f"Write up to {_MOST} {kind} from {self.low:g} to {self.high:,.0f}, separated by commas."
        parts = [part.strip() for part in text.split(",") if part.strip()]
        if not 1 <= len(parts) <= _MOST:
            raise ValueError(f"{len(parts)} values. {wanted}")
        numbers = []
        for part in parts:
            try:
                number = int(part) if self.whole else float(part)
            except ValueError:
                raise ValueError(f"{part[:20]!r} is not among them. {wanted}") from None
            if not self.low <= number <= self.high:
                raise ValueError(f"{part[:20]} is out of range. {wanted}")
            numbers.append(number)
        return tuple(dict.fromkeys(numbers))


_FIELDS = {
    "generalization_loss": _Field(
        "stop.gl", "GL (%)", 0, 1e6, whole=False, help="Validation loss above its lowest so far, in percent."
    ),
    "progress_quotient": _Field(
        "stop.pq", "PQ", 0, 1e6, whole=False, help="GL divided by the training progress of the last strip."
    ),
    "successive_strips": _Field(
        "stop.up",
        "UP (strips)",
        1,
        1_000,
        whole=True,
        help="Strips in succession that end with a higher loss.",
    ),
    "strip_lengths": _Field(
        "stop.k", "k (epochs)", 2, 1_000, whole=True, help="Length of a strip, for PQ and UP."
    ),
    "patience": _Field(
        "stop.patience",
        "Patience (epochs)",
        1,
        10_000,
        whole=True,
        help="Epochs without improvement, as Keras's EarlyStopping counts them.",
    ),
}
assert set(_FIELDS) == {field.name for field in fields(Thresholds)}


def chosen_thresholds() -> Thresholds:
    """The viewer's thresholds; the defaults where a field cannot be read."""
    chosen = {}
    for name, field in _FIELDS.items():
        try:
            chosen[name] = field.read(draft.value(field.key))
        except ValueError:
            chosen[name] = getattr(Thresholds(), name)
    return Thresholds(**chosen)


def choose_lines() -> None:
    """Lets the viewer choose the criteria whose stop epochs are drawn."""
    st.pills(
        "Stop lines",
        _FAMILIES,
        selection_mode="multi",
        key="stops",
        help="Criteria whose stop epochs are drawn. They are explained below the charts.",
        persist_state="session",
    )


def lines(stops: list[Stop]) -> dict[str, int]:
    """Stop epoch of each rule that is to be drawn."""
    shown = draft.value("stops")
    return {
        stop.rule: stop.epoch
        for stop in stops
        if stop.epoch is not None and stop.rule.partition("_")[0] in shown
    }


def stopping(shown: RunView) -> None:
    """What stopping earlier would have brought, and what not stopping has cost."""
    if not shown.history or shown.diagnosis.best_epoch is None:
        return
    thresholds = chosen_thresholds()
    st.subheader("What would have happened", anchor=False)
    fragment(_saved, key="saved")(shown, thresholds)
    st.caption(
        "GL: validation loss so many percent above its lowest. PQ: GL divided by how much the training loss"
        " still falls within a strip of k epochs. UP: validation loss higher at the end of so many strips in"
        " succession. Criteria by Prechelt (1998). Patience: Keras's EarlyStopping on validation loss."
    )
    with st.expander("Thresholds", icon=":material/tune:"):
        for column, field in zip(st.columns(len(_FIELDS)), _FIELDS.values(), strict=True):
            with column:
                st.text_input(field.label, key=field.key, help=field.help, persist_state="session")
                try:
                    field.read(draft.value(field.key))
                except ValueError as error:
                    st.error(
                        f"{plain(str(error))} Until then the usual ones are used.", icon=":material/error:"
                    )


def _saved(shown: RunView, thresholds: Thresholds) -> None:
    with boundary():
        stops = shown.stops(thresholds)
        _price(shown, stops)
        st.table([_row(stop) for stop in stops], hide_index=True, border="horizontal")


def _price(shown: RunView, stops: list[Stop]) -> None:
    diagnosis, history = shown.diagnosis, shown.history
    after = len(history) - 1 - [row["epoch"] for row in history].index(diagnosis.best_epoch)
    if not after:
        early = any(stop.epochs_saved for stop in stops)
        what = "stopping earlier would have cost it" if early else "no rule would have stopped before it"
        st.markdown(f"The last epoch is the best one so far: {what}.")
        return
    spent = "" if diagnosis.after_best_s is None else f" and {units.duration(diagnosis.after_best_s)}"
    change = diagnosis.val_loss_change
    cost = "" if change is None else f"; validation loss changed by **{100 * change:+,.0f} %** meanwhile"
    st.markdown(
        f"The price of not stopping: **{units.plural(after, 'epoch')}{spent}** after the best epoch{cost}."
    )


def _row(stop: Stop) -> dict[str, str]:
    return {
        "Stop rule": stop.rule,
        "Stops after epoch": "never" if stop.epoch is None else f"{stop.epoch:,}",
        "Validation loss": units.number(stop.val_loss),
        "Validation accuracy": units.percent(stop.val_accuracy),
        "Epochs saved": f"{stop.epochs_saved:,}",
        "Time saved": units.duration(stop.saved_s),
    }
