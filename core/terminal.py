"""Follows a job on a terminal: a progress bar, Ctrl-C, and how it ended."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

import click
from tqdm import tqdm

from core.config import parse_config
from core.errors import INTERRUPTED
from core.launcher import Launcher
from core.records import ACTIVE, Job, Kind, Status
from core.store import Store
from core.words import plural

_POLL_S = 0.1


class Bar:
    """A progress bar on standard error, where that is a terminal; one line a stage elsewhere."""

    def __init__(self, store: Store, *, hidden: bool) -> None:
        self._store = store
        self._hidden = hidden
        self._bar: tqdm[Any] | None = None
        self._told = ""

    def __call__(self, job: Job) -> None:
        """Shows how far a run is."""
        if self._hidden:
            return
        if not sys.stderr.isatty():
            self._tell(job)
            return
        progress = job.progress
        if self._bar is None:
            self._bar = tqdm(bar_format="{desc}", dynamic_ncols=True, leave=False)
        if job.status is Status.QUEUED:
            self._bar.set_description_str(_waiting(self._store, job))
        elif progress:
            self._bar.total = progress["steps"] * progress["epochs"]
            self._bar.n = progress["epoch"] * progress["steps"] + progress["step"]
            self._bar.bar_format = "{desc}: {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} steps{postfix}"
            self._bar.set_description_str(f"epoch {progress['epoch'] + 1}/{progress['epochs']}, {job.phase}")
            self._bar.set_postfix_str(_time_left(progress))
        else:
            self._bar.set_description_str(job.phase or "starting TensorFlow")
        self._bar.refresh()
        if job.status.is_final:
            self._bar.close()

    def _tell(self, job: Job) -> None:
        waiting = job.status is Status.QUEUED and self._store.ahead_of(job)
        text = _waiting(self._store, job) if waiting else job.phase
        done = self._store.epochs_done(job)
        if done and job.status in ACTIVE:
            text = f"{done} of {plural(parse_config(job.config).training.epochs, 'epoch')} done"
        if text and text != self._told:
            self._told = text
            click.echo(text, err=True)


def _time_left(progress: Mapping[str, Any]) -> str:
    """As the engine knows it; in the first epoch at least what the steps will take."""
    if progress["remaining_s"] is not None:
        return f"about {tqdm.format_interval(progress['remaining_s'])} left"
    if progress["step_ms"] is None:
        return ""
    steps = progress["steps"] * (progress["epochs"] - progress["epoch"]) - progress["step"]
    return f"at least {tqdm.format_interval(steps * progress['step_ms'] / 1e3)} left"


def _waiting(store: Store, job: Job) -> str:
    ahead = store.ahead_of(job)
    if not ahead:
        return "starting TensorFlow"
    return f"waiting behind run {ahead[0].id} ({len(ahead)} ahead)"


def follow(store: Store, begin: Callable[[], str], watch: Callable[[Job], None] = lambda _: None) -> Job:
    """Waits for the end of a job. Ctrl-C and SIGTERM stop it; a second Ctrl-C leaves it alone.

    Args:
        store: Where the job is.
        begin: Queues it and returns its id.
        watch: Is shown the job again and again.
    """
    launcher = Launcher(store, keep_warm=False)
    job: Job | None = None
    interrupted = asked = False

    def interrupt(*_: object) -> None:
        nonlocal interrupted
        interrupted = True

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        job = store.job(begin())
        launcher.start()
        while not job.status.is_final:
            if interrupted and not asked:
                asked = True
                store.request_stop(job.id)
                # Only now: a second Ctrl-C that came earlier would leave the run without having stopped it.
                signal.signal(signal.SIGINT, signal.default_int_handler)
                if job.kind is Kind.TRAIN:
                    tqdm.write(f"Stopping run {job.id}. Ctrl-C again leaves it alone.", file=sys.stderr)
            time.sleep(_POLL_S)
            job = store.job(job.id)
            watch(job)
    except KeyboardInterrupt:
        if job is None or job.kind is not Kind.TRAIN:
            raise
        tqdm.write(f"Left run {job.id}. See it with `python -m core show {job.id}`.", file=sys.stderr)
        raise SystemExit(INTERRUPTED) from None
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        launcher.close()
    if interrupted and job.kind is not Kind.TRAIN:
        raise KeyboardInterrupt
    return job


def echo_error(job: Job) -> None:
    """Says on standard error why a job has failed."""
    error = job.error or {"message": f"The job was {job.status}.", "hint": ""}
    click.echo(f"Error: {error['message']}", err=True)
    if error["hint"]:
        click.echo(f"Hint: {error['hint']}", err=True)
