"""A scaling study: the same training on several numbers of replicas, and what its runs came to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from core.analysis.scaling import Analysis, Timed, analyse, median_step_s, price, verdict
from core.config import MAX_LOGICAL_DEVICES, DeviceLayout, RunConfig, parse_config
from core.errors import ConfigError, RunNotFound
from core.records import Job, Scaling, Status
from core.store import Store
from core.words import shown

MOST_REPLICAS = MAX_LOGICAL_DEVICES


def possible_replicas(layout: DeviceLayout) -> list[int]:
    """How many replicas the visible devices can hold: whole ones, or all split into equally many parts.

    Args:
        layout: Whose visible devices; empty for a TPU, which always uses all its cores.
    """
    if layout.strategy == "tpu":
        return []
    physical = len(layout.visible_devices)
    return [n for n in range(1, MOST_REPLICAS + 1) if n <= physical or n % physical == 0]


def configs(config: RunConfig, scaling: Scaling, replicas: Sequence[int]) -> list[RunConfig]:
    """The runs of a study, the fewest replicas first.

    One replica trains without a strategy, as a single device does.

    Args:
        config: What all have in common; its batch size is that of one replica in weak scaling.
        scaling: What stays the same.
        replicas: How many, each of `possible_replicas`.

    Raises:
        ConfigError: A number of replicas is not possible, or a run's settings are out of range.
    """
    possible = possible_replicas(config.layout)
    if not possible:
        raise ConfigError(
            "A TPU always uses all its cores, so its replicas cannot be varied.",
            "Choose a single device or MirroredStrategy.",
            "layout.strategy",
        )
    wrong = sorted(set(replicas) - set(possible))
    if wrong or not replicas:
        raise ConfigError(
            f"{wrong[0]} replicas cannot be spread evenly over the devices"
            f" {list(config.layout.visible_devices)}."
            if wrong
            else "No number of replicas was chosen.",
            f"Choose among {', '.join(map(str, possible))}.",
            "scaling.replicas",
        )
    return [_with_replicas(config, scaling, n) for n in sorted(set(replicas))]


def _with_replicas(config: RunConfig, scaling: Scaling, replicas: int) -> RunConfig:
    values = config.model_dump(mode="json")
    physical = values["layout"]["visible_devices"][:replicas]
    values["layout"] |= {
        "strategy": "single" if replicas == 1 else "mirrored",
        "visible_devices": physical,
        "logical_devices": replicas // len(physical),
    }
    if scaling is Scaling.WEAK:
        values["training"]["batch_size"] *= replicas
    return parse_config(values)


def comparable(jobs: Sequence[Job]) -> list[Job]:
    """The runs of a study that have its layouts; one that was resumed on another says nothing of scaling."""
    return [job for job in jobs if not job.layout_changed]


def shares_devices(jobs: Sequence[Job]) -> bool:
    """True when replicas of some run are logical devices of one physical device."""
    return any(parse_config(job.config).layout.logical_devices > 1 for job in jobs)


def timed(store: Store, job: Job) -> Timed | None:
    """What a run's recorded steps say of its speed; None where they say nothing (yet)."""
    step_s = median_step_s(store.executions(job))
    if step_s is None:
        return None
    config = parse_config(job.config)
    measured = (job.result or {}).get("all_reduce")
    share = price(measured["step_s"], measured["step_without_s"]) if measured else None
    # One replica has nothing to reduce.
    return Timed(step_s, config.global_batch_size / step_s, 0.0 if config.layout.replicas == 1 else share)


def report(store: Store, study_id: str) -> dict[str, Any]:
    """A study as one JSON object: its runs, how they scale, and the verdict.

    Runs that were resumed on another layout are ``left_out``, by id.

    Raises:
        RunNotFound: It has no run, or never was.
    """
    jobs = store.study(study_id)
    if not jobs:
        raise RunNotFound(
            f"There is no study {shown(study_id)} in {store.path}.", "The page Scaling lists those there are."
        )
    compared = comparable(jobs)
    runs = {parse_config(job.config).layout.replicas: job for job in compared}
    scaling = jobs[0].scaling
    assert scaling is not None
    analysis = analyse(scaling, {replicas: timed(store, job) for replicas, job in runs.items()})
    return {
        "study": study_id,
        "scaling": str(scaling),
        "runs": [_row(analysis, replicas, job) for replicas, job in sorted(runs.items())],
        "left_out": [job.id for job in jobs if job.layout_changed],
        "serial_fraction": analysis.serial_fraction,
        "verdict": verdict(analysis),
        "shared_device": shares_devices(compared),
    }


def _row(analysis: Analysis, replicas: int, job: Job) -> dict[str, Any]:
    run, scaled = analysis.timed.get(replicas), analysis.scaled.get(replicas)
    return {
        "run_id": job.id,
        "status": str(job.status),
        "replicas": replicas,
        "global_batch_size": parse_config(job.config).global_batch_size,
        "step_s": run and run.step_s,
        "examples_per_s": run and run.examples_per_s,
        "speed_up": scaled and scaled.speed_up,
        "efficiency": scaled and scaled.efficiency,
        "all_reduce": run and run.price,
    }


def stop(store: Store, study_id: str) -> None:
    """Asks every run of a study to stop, the waiting ones first, so that none begins meanwhile."""
    for job in sorted(store.study(study_id), key=lambda job: job.status is not Status.QUEUED):
        store.request_stop(job.id)
