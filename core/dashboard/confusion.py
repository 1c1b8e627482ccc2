"""Which classes a model takes for which, and the newswires behind each number."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import streamlit as st

from core import newswire
from core.analysis.evaluation import TOP_K, Evaluation, Order, cell, ordered, shares
from core.dashboard import charts, draft, forms, units
from core.dashboard.evaluation import Judged
from core.dashboard.messages import plain
from core.dashboard.newswire import explained
from core.predictions import SPLIT
from core.store import Store

_VALUES = {"counts": "Newswires", "shares": "% of right class"}
_ORDERS: dict[Order, str] = {"support": "Largest classes first", "confusion": "Most mistakes first"}
_FIRST = 12
"""Classes of a matrix that can be read on a phone."""
_A_PAGE = 5
_CUT_SHOWN = 12
"""Words of a newswire's beginning that is cut off."""


def confusion(store: Store, models: Sequence[Judged]) -> None:
    """The confusion matrix of one of the models, and the newswires in the chosen cell.

    Args:
        store: Where the runs are.
        models: One or two.
    """
    st.subheader("Confusions", anchor=False)
    with st.container(horizontal=True, key="matrix_controls"):
        if len(models) > 1:
            forms.view(
                "matrix.of", "Model", {"first": plain(models[0].title), "second": plain(models[1].title)}
            )
        forms.view("matrix.values", "Values", _VALUES)
        forms.view("matrix.order", "Order", _ORDERS)
        forms.view("matrix.classes", "Classes", {"all": "All classes", "first": f"First {_FIRST}"})
    model = models[-1] if draft.value("matrix.of") == "second" else models[0]
    names, evaluation = model.corpus.class_names, model.evaluation
    chosen = _chosen(evaluation)

    def pick(answer: Any, true: Any) -> None:
        if true in names and answer in names:
            st.session_state["cell.true"] = names.index(true)
            st.session_state["cell.answer"] = names.index(answer)

    order = ordered(evaluation.confusion, draft.value("matrix.order"))
    if draft.value("matrix.classes") == "first":
        order = order[:_FIRST]
    charts.show(
        charts.confusion_matrix(
            "{run_id}-{which}-epoch-{epoch}".format(**model.asked),
            names,
            confusion=evaluation.confusion,
            shares=shares(evaluation.confusion) if draft.value("matrix.values") == "shares" else None,
            order=order,
            chosen=chosen,
        ),
        key="confusion_chart",
        on_click=pick,
    )
    st.caption(
        "Click a cell to read its newswires, or choose its classes below. Colour grows with the square root"
        " of the number, so that few mistakes show too. “Most mistakes” counts a class's newswires that were"
        " taken for others together with others' that were taken for it."
    )
    _newswires(store, model, chosen)


def _chosen(evaluation: Evaluation) -> tuple[int, int]:
    """The right class and the answer to look at: the most frequent mistake until others are chosen."""
    classes = len(evaluation.scores)
    mistakes = evaluation.confusion - np.diag(evaluation.confusion.diagonal())
    for name, usual in zip(
        ("cell.true", "cell.answer"), divmod(int(mistakes.argmax()), classes), strict=True
    ):
        if not 0 <= draft.value(name) < classes:
            st.session_state[name] = usual
    return draft.value("cell.true"), draft.value("cell.answer")


def _newswires(store: Store, model: Judged, chosen: tuple[int, int]) -> None:
    names, (true, answer) = model.corpus.class_names, chosen
    with st.container(horizontal=True, key="cell"):
        for name, text in (("cell.true", "Right class"), ("cell.answer", "Taken for")):
            st.selectbox(
                text,
                range(len(names)),
                format_func=lambda i: f"{i}: {names[i]}" if isinstance(i, int) else i,
                key=name,
                persist_state="session",
                width=260,
            )
    rows = cell(model.evaluation, model.predictions.probabilities, model.predictions.labels, true, answer)
    what = (
        f"of {plain(names[true])} recognised"
        if true == answer
        else f"of {plain(names[true])} taken for {plain(names[answer])}"
    )
    st.markdown(f"**{units.plural(len(rows), 'newswire')} {what}**")
    pages = max(-(-len(rows) // _A_PAGE), 1)
    at = st.pagination(pages, key=f"cell_page_{true}_{answer}_{pages}") if pages > 1 else 1
    for row in rows[(at - 1) * _A_PAGE : at * _A_PAGE].tolist():
        _newswire(store, model, row, true)


def _newswire(store: Store, model: Judged, row: int, true: int) -> None:
    names, probabilities = model.corpus.class_names, model.predictions.probabilities[row]
    likeliest = np.argsort(-probabilities, kind="stable")[:TOP_K].tolist()
    figures = ", ".join(
        f"{plain(names[i])} **{units.percent(float(probabilities[i]))}**"
        for i in [*likeliest, *([] if true in likeliest else [true])]
    )
    text = model.corpus.text(model.corpus.rows(SPLIT)[row])
    max_len = model.config.data.max_len
    with st.container(border=True, key=f"newswire_{row}"):
        with st.container(horizontal=True, horizontal_alignment="distribute"):
            st.markdown(f"Test newswire {row:,}: {figures}")
            words = st.toggle("Words that mattered", key=f"words_{row}")
        read = newswire.read(text, model.corpus, max_len)
        if words:
            explained(store, model, read, key=f"words_of_{row}")
            return
        start = read.words[read.cut].start
        # Only the last of what is cut off: the part that the model gets must be in sight.
        end = " ".join(text[:start].split()[-_CUT_SHOWN:])
        with st.container(height=150, border=False):
            st.markdown((f":gray[… ~~{plain(end)}~~] " if read.cut else "") + plain(text[start:]))
        if read.cut:
            st.caption(
                f"The model gets the last {max_len:,} of {units.plural(len(read.words), 'word')}; the first"
                f" {read.cut:,} are cut off."
            )
