"""A newswire that somebody types: what a model makes of it, and which of its words mattered."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from html import escape

import numpy as np
import streamlit as st

from core import newswire
from core.access import Action
from core.analysis.evaluation import TOP_K
from core.dashboard import units
from core.dashboard.access import why_not
from core.dashboard.answers import answer
from core.dashboard.drawings import draw
from core.dashboard.evaluation import Judged
from core.dashboard.messages import plain, problem
from core.errors import ConfigError
from core.newswire import Newswire
from core.predictions import question
from core.records import Kind
from core.store import Store

_MANY = 250
"""Words that had better be scrolled."""
_MOST_WORDS = 8
_STRONGEST = 60
"""Per cent of the colour behind the word that mattered most; more would make it hard to read."""


def field(store: Store, models: Sequence[Judged]) -> None:
    """The field to type in, and each model's answer.

    Args:
        store: Where the runs are.
        models: One or two.
    """
    st.subheader("Try a newswire", anchor=False)
    with st.form("newswire_form", border=False):
        text = st.text_area(
            "Newswire",
            key="newswire",
            height=150,
            placeholder="Type or paste a newswire in English, then classify it.",
            persist_state="session",
        )
        reason = why_not(Action.WORK)
        st.form_submit_button(
            "Classify",
            type="primary",
            icon=":material/play_arrow:",
            key="classify",
            disabled=reason is not None,
            help=reason,
        )
    if not text:
        return
    for model, column in zip(models, st.columns(len(models), gap="large"), strict=True):
        with column:
            if len(models) > 1:
                st.markdown(f"**{plain(model.title)}**")
            try:
                read = newswire.read(text, model.corpus, model.config.data.max_len)
            except ConfigError as error:
                problem(error.message, error.hint)
                return
            explained(store, model, read, key=f"typed_{model.run.id}_{model.asked['which']}")


def explained(store: Store, model: Judged, read: Newswire, key: str) -> None:
    """A model's answer to a newswire, and its words shaded by what they contributed.

    Args:
        store: Where the run is.
        model: Which is asked.
        read: The newswire.
        key: Of the drawing.
    """
    job = answer(store, Kind.CLASSIFY, question(model.asked, read.ids), key=f"{key}_again")
    if job is None:
        return
    if job.result is None:
        st.info("The model is being asked.", icon=":material/hourglass_top:")
        return
    names, result = model.corpus.class_names, job.result
    name = plain(names[result["class"]])
    draw(_bars(names, result["probabilities"]), key=f"{key}_bars")
    weights: list[float] = result["attributions"]
    start, words = (weights[0], weights[1:]) if read.has_start else (0.0, weights)
    with st.container(height="content" if len(read.ids) < _MANY else 320, border=True):
        draw(f'<div class="newswire">{_marked(read, words)}</div>', key=key)
    st.caption(_in_words(model, read))
    probability = result["probabilities"][result["class"]]
    st.markdown(
        f"Blue words speak for {name}, orange ones against it; hover for the number. An empty newswire gives"
        f" {name} {units.percent(result['empty'])}, this one {units.percent(probability)}: the words add"
        f" {100 * sum(words):+.1f} percentage points"
        + (f", the mark of the start {100 * start:+.1f}." if read.has_start else ".")
    )
    st.table(_strongest(read, words), hide_index=True, width="content")
    st.caption(
        "Integrated gradients (Sundararajan, Taly and Yan, 2017): the gradient of the probability, averaged"
        " on the way from an empty newswire to this one, so that what the words contribute adds up to the"
        " difference."
    )


def _bars(names: Sequence[str], probabilities: Sequence[float]) -> str:
    likeliest = np.argsort(-np.array(probabilities), kind="stable")[:TOP_K].tolist()
    rows = [
        f"<span>{escape(names[i])}</span><i style='width:{100 * probabilities[i]:.2f}%'></i>"
        f"<b>{units.percent(probabilities[i])}</b>"
        for i in likeliest
    ]
    return f'<div class="bars" role="group" aria-label="Likeliest classes">{"".join(rows)}</div>'


def _marked(read: Newswire, weights: Sequence[float]) -> str:
    """The text in HTML: words shaded, unknown ones underlined, those that were cut off folded away."""
    text, kept = read.text, read.words[read.cut :]
    largest = max(map(abs, weights), default=0.0) or 1.0
    at = kept[0].start
    parts = [escape(text[:at])]
    if read.cut:
        said = units.plural(read.cut, "word is", "words are")
        parts = [f"<details><summary>The first {said} cut off</summary>{escape(text[:at])}</details>"]
    for word, weight in zip(kept, weights, strict=True):
        shown = escape(text[word.start : word.end])
        shown = shown if word.is_known else f"<u>{shown}</u>"
        note = "" if word.is_known else " Not in the model's vocabulary."
        style = f"--tint:var(--c{0 if weight > 0 else 1});--weight:{_STRONGEST * abs(weight) / largest:.1f}"
        title = f"{100 * weight:+.2f} percentage points.{note}"
        parts.append(escape(text[at : word.start]))
        parts.append(f'<mark style="{style}" title="{title}">{shown}</mark>')
        at = word.end
    return "".join([*parts, escape(text[at:])])


def _in_words(model: Judged, read: Newswire) -> str:
    kept = read.words[read.cut :]
    unknown = sum(not word.is_known for word in kept)
    said = [f"{units.plural(len(read.words), 'word')}."]
    if read.cut:
        said.append(
            f"The model takes {model.config.data.max_len:,} at most: the first"
            f" {units.plural(read.cut, 'word is', 'words are')} cut off, from “{read.word(0)}” to"
            f" “{read.word(read.cut - 1)}”."
        )
    if unknown:
        rest = " of the rest" if read.cut else ""
        said.append(
            f"{units.plural(unknown, f'word{rest} is', f'words{rest} are')} not in the model's vocabulary and"
            " underlined; to the model all such words are the same."
        )
    return plain(" ".join(said))


def _strongest(read: Newswire, weights: Sequence[float]) -> list[dict[str, str]]:
    """The words that contributed most, all their occurrences together."""
    found: dict[str, list[float]] = defaultdict(list)
    for at, weight in enumerate(weights, start=read.cut):
        found[read.word(at).lower()].append(weight)
    strongest = sorted(found.items(), key=lambda item: -abs(sum(item[1])))[:_MOST_WORDS]
    return [
        {
            "Word": plain(word),
            "Times": f"{len(values):,}",
            "Percentage points": f"{100 * sum(values):+.2f}",
        }
        for word, values in strongest
    ]
