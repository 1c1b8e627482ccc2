"""Step 2: the newswires, how they become tensors, and how a batch reaches the replicas."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import streamlit as st
from numpy.typing import NDArray

from core.analysis import dataset as statistics
from core.config import DATASET_NAMES, Dataset, RunConfig
from core.corpus import Corpus, Split
from core.dashboard import charts, draft, drawings, forms, units
from core.dashboard.fragments import fragment
from core.dashboard.frame import page
from core.dashboard.job_status import rerun_when_done
from core.dashboard.messages import boundary, plain, problem, reuters_missing
from core.dashboard.server import Readiness, load_corpus, readiness
from core.errors import ConfigError
from core.store import Store

_DATASETS: dict[str, str] = {
    name: f"{called.capitalize()} newswires" for name, called in DATASET_NAMES.items()
}
_SYNTHETIC = (
    "This text is synthetic: generated from a seed with the sizes, class proportions and word frequencies of"
    " Reuters. It can be learnt and overfitted, but it says nothing."
)
_SHOWN_IDS = 40


@st.cache_data(show_spinner=False, max_entries=16)
def _classes_chart(home: Path, name: Dataset, size: int, *, log: bool, _corpus: Corpus) -> bytes:  # noqa: ARG001
    names = _corpus.class_names
    train, test = (
        statistics.class_balance(_corpus.split_labels(split), len(names)) for split in ("train", "test")
    )
    return charts.class_distribution(names, train, test, log=log)


@st.cache_data(show_spinner=False, max_entries=64)
def _lengths_chart(home: Path, name: Dataset, size: int, max_len: int, _corpus: Corpus) -> bytes:  # noqa: ARG001
    lengths = _train_lengths(_corpus)
    return charts.length_histogram(
        statistics.length_histogram(lengths), statistics.padding(lengths, max_len), max_len
    )


def _train_lengths(corpus: Corpus) -> NDArray[np.int64]:
    rows = corpus.rows("train")
    return corpus.lengths[rows.start : rows.stop]


def _preparing(store: Store, state: Readiness, name: Dataset) -> None:
    job = state.preparing
    if job is None:
        problem("This dataset could not be prepared.", "Choose the other one, or try again.")
        return
    st.info(
        f"{_DATASETS[name]} are being prepared. This is done once and takes some seconds.",
        icon=":material/hourglass_top:",
    )
    fragment(_download, run_every=0.5)(store, job.id)
    rerun_when_done(store, job)


def _download(store: Store, job_id: str) -> None:
    with boundary():
        job = store.job(job_id)
        total = job.progress.get("total_bytes") or 0
        done = job.progress.get("downloaded_bytes") or 0
        text = f"{units.memory(done)} of {units.memory(total)}" if total else "starting"
        st.progress(min(done / total, 1.0) if total else 0.0, f"{plain(job.phase) or 'Waiting'}: {text}")


def _facts(corpus: Corpus) -> None:
    balance = statistics.class_balance(corpus.split_labels("train"), len(corpus.class_names))
    with st.container(horizontal=True, gap="medium"):
        for label, text, meaning in (
            ("Training newswires", f"{len(corpus.rows('train')):,}", "Rows the model learns from."),
            ("Test newswires", f"{len(corpus.rows('test')):,}", "Rows it is validated on."),
            ("Classes", f"{len(corpus.class_names):,}", "Topics; each newswire has one."),
            ("Vocabulary", f"{corpus.vocabulary:,} words", "Different word ids, special ones included."),
            (
                "Largest class",
                units.percent(balance.majority_share),
                f"Always answering “{corpus.class_names[balance.majority]}” is right this often.",
            ),
        ):
            st.metric(label, text, help=meaning, width="content")


def _classes(store: Store, corpus: Corpus) -> None:
    st.subheader("Classes", anchor=False)
    log = st.toggle("Logarithmic scale", key="log_classes", persist_state="session")
    charts.show(
        _classes_chart(store.home, corpus.name, len(corpus.labels), log=log, _corpus=corpus),
        key="classes_chart",
    )


def _lengths(store: Store, corpus: Corpus, error: ConfigError | None) -> None:
    st.subheader("Lengths", anchor=False)
    left, right = st.columns([1, 3], gap="large")
    with left:
        forms.number(
            "data.max_len",
            "Sequence length, max_len (words)",
            error,
            step=50,
            help="Every newswire is brought to this many word ids: shorter ones are padded with 0 in front,"
            " longer ones keep their end.",
        )
        max_len = draft.value("data.max_len")
        effect = statistics.padding(_train_lengths(corpus), max_len)
        with st.container(horizontal=True):
            st.metric("Newswires cut", units.percent(effect.truncated_share), width="content")
            st.metric("Words kept", units.percent(effect.kept_share), width="content")
            st.metric("Padding", units.percent(effect.padding_share), width="content")
    with right:
        charts.show(
            _lengths_chart(store.home, corpus.name, len(corpus.labels), max_len, corpus), key="lengths_chart"
        )


def _examples(corpus: Corpus) -> None:
    st.subheader("Examples", anchor=False)
    left, right = st.columns([1, 3], gap="large")
    with left:
        split: Split = st.segmented_control(
            "Split",
            ["train", "test"],
            default="train",
            key="example_split",
            required=True,
            persist_state="session",
        )
        rows = corpus.rows(split)
        st.session_state["example"] = min(st.session_state.get("example", 0), len(rows) - 1)
        number = st.number_input(
            f"Newswire (0 to {len(rows) - 1:,})", 0, len(rows) - 1, key="example", persist_state="session"
        )
        row = rows[number]
        label = int(corpus.labels[row])
        with st.container(horizontal=True):
            st.metric("Class", plain(f"{label}: {corpus.class_names[label]}"), width="content")
            st.metric("Length", units.plural(int(corpus.lengths[row]), "word"), width="content")
    with right:
        max_len = draft.value("data.max_len")
        ids = corpus.sequence(row)
        padded = np.pad(ids[-max_len:], (max(max_len - len(ids), 0), 0))
        st.markdown("**As text**" + (" (synthetic)" if corpus.is_synthetic else ""))
        with st.container(height=190, border=True):
            st.markdown(plain(corpus.text(row)) or "*empty*")
        st.markdown(f"**As the model gets it:** shape `({max_len:,},)`, dtype `{padded.dtype}`")
        begin = max(max_len - len(ids), 0)
        shown = padded[max(begin - 4, 0) : max(begin - 4, 0) + _SHOWN_IDS]
        dots_before = "… " if begin > 4 else ""  # noqa: PLR2004 - four zeros are shown
        dots_after = " …" if max(begin - 4, 0) + _SHOWN_IDS < max_len else ""
        st.code(
            f"[{dots_before}{' '.join(map(str, shown.tolist()))}{dots_after}]", language=None, wrap_lines=True
        )
        cut = len(ids) - max_len
        st.caption(
            f"{units.plural(begin, 'zero')} in front, then the words' ids."
            if cut <= 0
            else f"The first {units.plural(cut, 'word is', 'words are')} cut off."
        )
        st.caption(
            "0 is padding, 1 the start of a newswire, 2 an unknown word; a word's id is its rank plus 3."
        )


def _pipeline(corpus: Corpus, config: RunConfig) -> None:
    st.subheader("From newswires to replicas", anchor=False)
    train, max_len, batch = len(corpus.rows("train")), config.data.max_len, config.global_batch_size
    replicas, per_replica = config.layout.replicas, config.per_replica_batch_size
    steps = config.steps(train)
    drawings.draw(
        drawings.flow(
            [
                ("Read", "Parquet", f"{train:,} training newswires as word ids"),
                ("Pad and cut", f"int32 ({train:,}, {max_len:,})", "one tensor, held in memory"),
                (
                    "Shuffle",
                    f"seed {config.training.seed}, epoch",
                    "a new order each epoch, the same on any layout",
                ),
                (
                    "Batch",
                    f"int32 ({batch:,}, {max_len:,})",
                    f"{units.plural(steps, 'global batch', 'global batches')} an epoch",
                ),
                ("Prefetch", "4 batches", "made while the model trains"),
                ("Distribute", f"{replicas} × ({per_replica:,}, {max_len:,})", "one shard for each replica"),
            ]
        ),
        key="pipeline",
    )
    st.markdown(
        f"**One global batch of {batch:,} is cut into {units.plural(replicas, 'shard')} of"
        f" {units.plural(per_replica, 'row')}.**"
    )
    drawings.draw(drawings.batch(config, batch), key="batch")
    rest = train % batch
    if rest:
        st.markdown(
            f"**The last batch of an epoch has only {units.plural(rest, 'newswire')}.** It is filled up with"
            " rows of weight 0, so that every replica gets an equal shard and every newswire counts once."
        )
        drawings.draw(drawings.batch(config, rest), key="last_batch")
    _adjusted(config)


def _adjusted(config: RunConfig) -> None:
    wanted, used = config.training.batch_size, config.global_batch_size
    if used != wanted:
        st.info(
            f"The global batch size was changed from {wanted:,} to {used:,}, so that"
            f" {units.plural(config.layout.replicas, 'replica')} share it evenly.",
            icon=":material/info:",
        )


with page(
    "Data", "The newswires, how they become tensors, and how one batch reaches every replica."
) as store:
    forms.choice("data.dataset", "Dataset", _DATASETS, None)
    wanted: Dataset = draft.value("data.dataset")
    state = readiness(store, wanted)
    name = state.use(wanted)
    if wanted == "reuters":
        reuters_missing(store, state)
    if name not in state.is_ready:
        _preparing(store, state, name)
    else:
        corpus = load_corpus(store, name)
        error: ConfigError | None = None
        config = None
        try:
            config = draft.config(data={"dataset": name})
        except ConfigError as refused:
            error = refused
        if corpus.is_synthetic:
            st.info(_SYNTHETIC, icon=":material/info:")
        _facts(corpus)
        _classes(store, corpus)
        _lengths(store, corpus, error)
        _examples(corpus)
        if config is not None:
            _pipeline(corpus, config)
        elif error is not None and not error.field.startswith("data."):
            problem(error.message, error.hint)
