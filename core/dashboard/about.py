"""What a run is: in a line, and in a table to be opened."""

from __future__ import annotations

import streamlit as st

from core.config import DATASET_NAMES, OPTIMIZER_NAMES, RunConfig, parse_config
from core.dashboard import units
from core.dashboard.messages import plain
from core.records import Job, Kind


def summary(config: RunConfig) -> str:
    """A configuration in one line."""
    experiment = "; from_logits=True (experiment)" if config.model.from_logits else ""
    return (
        f"{DATASET_NAMES[config.data.dataset]} newswires, {units.plural(config.data.max_len, 'word')} each;"
        f" {units.layout(config.layout)};"
        f" {OPTIMIZER_NAMES[config.model.optimizer]}{experiment}"
    )


def about(job: Job) -> None:
    """What a run was asked to do and what the engine made of it, to be opened."""
    if job.kind is Kind.IMPORT:
        classes = job.config["classes"]
        known = f" of a model with {classes:,} classes" if classes else ""
        st.caption(f"Imported from {plain(job.config['file'])}, the log{known} of a training from elsewhere.")
        return
    config = parse_config(job.config)
    result = job.result or {}
    line = summary(config)
    rows = {
        "Epochs asked for": f"{config.training.epochs:,}",
        "Global batch size": f"{config.global_batch_size:,} = {config.layout.replicas} ×"
        f" {config.per_replica_batch_size:,}",
        "Learning rate": f"{config.learning_rate:g}",
        "Loss": f"SparseCategoricalCrossentropy, from_logits={config.model.from_logits}",
        "Seed": f"{config.training.seed}",
    }
    if result:
        rows |= {
            "Parameters": f"{result['params']:,}",
            "Steps per epoch": f"{result['steps_per_epoch']:,} training,"
            f" {result['validation_steps']:,} validation",
            "Replicas on": ", ".join(result["devices"]),
            "Engine": ", ".join(
                f"{name.replace('_', ' ')} {value}" for name, value in result["engine"].items()
            ),
        }
    with st.expander("What this run is", icon=":material/tune:"):
        st.markdown(plain(line[:1].upper() + line[1:]))
        st.table([{"Setting": name, "Value": plain(text)} for name, text in rows.items()], hide_index=True)
