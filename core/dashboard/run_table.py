"""All runs in a table: what there is, filtered, chosen, renamed, deleted and taken away as a file."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import pandas as pd
import streamlit as st

from core import retention
from core.access import Action
from core.dashboard import draft, units
from core.dashboard.access import why_not
from core.dashboard.compare import parameters
from core.dashboard.file_buttons import file_buttons
from core.dashboard.messages import plain, told
from core.dashboard.navigation import STEPS
from core.records import RUNS, Job, Kind, Status
from core.store import Store

_LONGEST_NAME = 80
_LONGEST_TAG = 30


def filters(jobs: Sequence[Job]) -> list[Job]:
    """Lets the viewer filter, and returns what is left."""
    tags = sorted({tag for job in jobs for tag in job.tags}, key=str.casefold)
    st.session_state["runs.tags"] = [tag for tag in draft.value("runs.tags") if tag in tags]
    left, right = st.columns([2, 3], vertical_alignment="bottom")
    with left:
        text = st.text_input(
            "Find",
            key="runs.find",
            placeholder="Name, tag, id, strategy or dataset",
            icon=":material/search:",
            persist_state="session",
        )
    with right:
        statuses = st.pills(
            "Status",
            list(Status),
            format_func=str,
            selection_mode="multi",
            key="runs.status",
            persist_state="session",
        )
    if tags:
        st.pills(
            "Tags",
            tags,
            format_func=plain,
            selection_mode="multi",
            key="runs.tags",
            persist_state="session",
        )
    wanted = set(draft.value("runs.tags"))
    words = (text or "").casefold().split()
    return [
        job
        for job in jobs
        if (not statuses or job.status in statuses)
        and wanted <= set(job.tags)
        and all(word in _searched(job) for word in words)
    ]


def _searched(job: Job) -> str:
    config = json.dumps(job.config, ensure_ascii=False)
    return f"{job.title} {job.id} {job.status} {job.owner} {' '.join(job.tags)} {config}".casefold()


def row(job: Job, best: tuple[int, float] | None, kept_bytes: int = 0) -> dict[str, Any]:
    """A run in the table.

    Args:
        job: The run.
        best: Zero-based epoch and value of its lowest validation loss.
        kept_bytes: What its checkpoints take.
    """
    layout = job.config.get("layout", {})
    devices = (job.result or {}).get("devices") or []
    kinds = sorted({device.split(":")[1] for device in devices})
    return {
        "Run": job.title,
        "Status": str(job.status),
        "Tags": job.tags,
        "Started by": job.owner or None,
        "Created": datetime.fromtimestamp(job.created_at, UTC),
        "Strategy": "imported" if job.kind is Kind.IMPORT else layout.get("strategy"),
        "Devices": f"{len(devices)} × {', '.join(kinds)}" if devices else None,
        "Best validation loss": best[1] if best else None,
        "At epoch": best[0] + 1 if best else None,
        "Examples/s": job.progress.get("examples_per_s"),
        "Duration (s)": job.duration_s,
        "Checkpoints (MB)": kept_bytes / 1e6 or None,
    }


def table(store: Store, jobs: Sequence[Job]) -> None:
    """The table; chosen rows become the view "runs"."""
    best = store.best_epochs()
    ids = [job.id for job in jobs]
    chosen = draft.value("runs")
    rows = [row(job, best.get(job.number), retention.folder_bytes(store.checkpoints(job.id))) for job in jobs]
    frame = pd.DataFrame(rows)
    if not any(job.tags for job in jobs):
        frame = frame.drop(columns="Tags")
    if not any(job.owner for job in jobs):
        frame = frame.drop(columns="Started by")
    # Streamlit keeps a selection by position: another list of runs must be another table.
    event = st.dataframe(
        frame,
        key=f"runs_table_{hash(tuple(ids))}",
        on_select="rerun",
        selection_mode="multi-row",
        selection_default={"selection": {"rows": [ids.index(run) for run in chosen if run in ids]}},
        hide_index=True,
        placeholder="–",
        column_config={
            "Run": st.column_config.TextColumn(pinned=True),
            "Tags": st.column_config.ListColumn(),
            "Created": st.column_config.DatetimeColumn(
                f"Created ({units.zone()})", format="D MMM YYYY, HH:mm", timezone=units.zone()
            ),
            "Best validation loss": st.column_config.NumberColumn(format="%.3f"),
            "Examples/s": st.column_config.NumberColumn(format="%.0f"),
            "Duration (s)": st.column_config.NumberColumn(format="%.1f"),
            "Checkpoints (MB)": st.column_config.NumberColumn(format="%.1f"),
        },
    )
    hidden = [run for run in chosen if run not in ids]
    st.session_state["runs"] = hidden + [ids[place] for place in event.selection.rows]


def actions(store: Store, chosen: Sequence[Job]) -> None:
    """What can be done with the chosen runs, and the export of all."""
    with st.container(horizontal=True, key="run_actions"):
        one = chosen[0] if len(chosen) == 1 else None
        if st.button("Open", key="open", icon=":material/show_chart:", disabled=one is None) and one:
            draft.choose_run(one.id)
            st.switch_page(STEPS[-1].script, query_params=draft.address())
        reason = why_not(Action.RENAME, *chosen)
        with st.popover(
            "Rename",
            key="rename",
            icon=":material/edit:",
            disabled=one is None or reason is not None,
            help=reason,
        ):
            if one is not None:
                name_key = f"name_{one.id}"
                st.text_input("Name", one.name, max_chars=_LONGEST_NAME, key=name_key, placeholder=one.id)
                st.button("Save", key="save_name", on_click=_rename, args=(store, one.id, name_key))
        reason = why_not(Action.TAG, *chosen)
        with st.popover(
            "Tags",
            key="tags",
            icon=":material/label:",
            disabled=not chosen or reason is not None,
            help=reason,
        ):
            if chosen:
                _tags(store, chosen)
        reason = why_not(Action.DELETE, *chosen)
        with st.popover(
            "Delete",
            key="delete",
            icon=":material/delete:",
            disabled=not chosen or reason is not None,
            help=reason,
        ):
            _ask_to_delete(store, chosen)
        with st.popover("Export", key="export", icon=":material/download:"):
            _exports(store)


@told
def _rename(store: Store, run_id: str, key: str) -> None:
    store.rename(run_id, " ".join(st.session_state[key].split()))


def _tags(store: Store, chosen: Sequence[Job]) -> None:
    known = sorted({tag for job in store.jobs(kinds=RUNS) for tag in job.tags}, key=str.casefold)
    shared = sorted(set.intersection(*(set(job.tags) for job in chosen)), key=str.casefold)
    ids = [job.id for job in chosen]
    key = f"tags_{'_'.join(ids)}"
    st.multiselect(
        "Tags" if len(chosen) == 1 else "Tags that every chosen run has",
        known,
        shared,
        key=key,
        accept_new_options=True,
        placeholder="Choose, or type a new one",
    )
    st.button("Save", key="save_tags", on_click=_retag, args=(store, ids, shared, key))


@told
def _retag(store: Store, run_ids: list[str], before: list[str], key: str) -> None:
    asked = {" ".join(tag.split())[:_LONGEST_TAG] for tag in st.session_state[key]} - {""}
    store.tag(run_ids, add=asked, remove=set(before) - asked)


def _ask_to_delete(store: Store, chosen: Sequence[Job]) -> None:
    ended = [job for job in chosen if job.status.is_final]
    if len(ended) < len(chosen):
        st.markdown("Runs that have not ended are left alone: stop them first.")
    if ended:
        names = ", ".join(plain(job.title) for job in ended)
        st.markdown(
            f"Delete **{names}** with all measurements, logs, checkpoints and exports? This cannot be undone."
        )
        st.button(
            f"Delete {units.plural(len(ended), 'run')} for good",
            key="delete_for_good",
            type="primary",
            on_click=_delete,
            args=(store, [job.id for job in ended]),
        )


@told
def _delete(store: Store, run_ids: list[str]) -> None:
    deleted = store.delete(run_ids)
    st.session_state["runs"] = [run for run in draft.value("runs") if run not in deleted]
    if draft.chosen_run() in deleted:
        draft.choose_run(None)
    st.toast(f"Deleted {units.plural(len(deleted), 'run')}.", icon=":material/delete:")


def _exports(store: Store) -> None:
    st.caption("All runs, whatever is filtered or chosen.")
    with file_buttons("exports") as files:
        for what, frame in (("runs", runs_frame), ("epochs", epochs_frame)):
            with st.container(horizontal=True):
                for name, write in (("CSV", _csv), ("Parquet", _parquet)):
                    files.button(
                        f"{what.capitalize()}, {name}",
                        _written(store, frame, write),
                        f"{what}.{name.lower()}",
                        key=f"export_{what}_{name}",
                    )


def _written(
    store: Store, frame: Callable[[Store], pd.DataFrame], write: Callable[[pd.DataFrame], bytes]
) -> Callable[[], bytes]:
    # Made when somebody clicks, not whenever the page is drawn.
    return lambda: write(frame(store))


def _csv(frame: pd.DataFrame) -> bytes:
    return frame.to_csv(index=False).encode()


def _parquet(frame: pd.DataFrame) -> bytes:
    buffer = io.BytesIO()
    frame.to_parquet(buffer, index=False)
    return buffer.getvalue()


def runs_frame(store: Store) -> pd.DataFrame:
    """One row a run, with its settings in columns by dotted name; times in UTC."""
    best = store.best_epochs()
    rows = []
    for job in store.jobs(kinds=RUNS):
        epoch, loss = best.get(job.number, (None, None))
        rows.append(
            {
                "run_id": job.id,
                "name": job.name,
                "tags": json.dumps(job.tags, ensure_ascii=False),
                "kind": str(job.kind),
                "status": str(job.status),
                "created_at": datetime.fromtimestamp(job.created_at, UTC),
                "duration_s": job.duration_s,
                "best_epoch": None if epoch is None else epoch + 1,
                "best_val_loss": loss,
                "examples_per_s": job.progress.get("examples_per_s"),
                # A column of a file has one type, a setting may have several: as JSON they are text.
                **{name: json.dumps(value) for name, value in parameters(job).items()},
            }
        )
    return pd.DataFrame(rows)


def epochs_frame(store: Store) -> pd.DataFrame:
    """One row for each value of each epoch of each run; epochs one-based."""
    rows = [
        (job.id, job.name, metric.epoch + 1, metric.split, metric.name, metric.value)
        for job in store.jobs(kinds=RUNS)
        for metric in store.metrics(job, per="epoch")
    ]
    frame = pd.DataFrame(rows, columns=["run_id", "name", "epoch", "split", "metric", "value"])
    # A frame of no rows would know no type.
    return frame.astype({"value": "float64"})
