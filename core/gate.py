"""The run store as one person may use it: every change is held against their role and the limits first."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from core.access import ANYBODY, Action, Limits, Person
from core.analysis.memory import needed
from core.config import DeviceLayout, RunConfig, parse_config
from core.errors import LimitExceeded, RunNotFound
from core.records import Job, Kind, Metric, Scaling, Status
from core.retention import require_room
from core.store import Store
from core.transitions import extended

_one_at_a_time = threading.Lock()
"""Between counting a person's jobs and adding another."""


class Gate(Store):
    """A store that refuses what its person may not do, and queues jobs in their name.

    Pages get no other, so that a control which should not have been there changes nothing either.

    Args:
        store: Whose connections are used.
        person: Who asks.
        limits: What the server allows; None allows everything.

    Raises:
        NotAllowed: Every method that changes something, where the role does not allow it.
        LimitExceeded: Every method that queues something, where it is more than the server allows.
        NoRoom: Those that submit runs, where the disk or the quota cannot hold one.
    """

    def __init__(self, store: Store, person: Person, limits: Limits | None) -> None:  # no second connection
        vars(self).update(vars(store))
        self.owner = person.id
        self.limit_s = None if limits is None else limits.minutes * 60
        self._person = person
        self._limits = limits

    def submit(self, kind: Kind, config: dict[str, Any]) -> str:
        """As `Store.submit`."""
        self._must_be_allowed(Action.START if kind is Kind.TRAIN else Action.WORK)
        with self._room(kind, 1):
            self._check_size(kind, config)
            if kind is Kind.TRAIN:
                require_room(self.home, parse_config(config))
            return super().submit(kind, config)

    def submit_study(self, scaling: Scaling, configs: Iterable[dict[str, Any]]) -> str:
        """As `Store.submit_study`."""
        planned = list(configs)
        self._must_be_allowed(Action.START)
        with self._room(Kind.TRAIN, len(planned)):
            for config in planned:
                self._check_size(Kind.TRAIN, config)
            require_room(self.home, *map(parse_config, planned))
            return super().submit_study(scaling, planned)

    def add_import(
        self, name: str, config: dict[str, Any], metrics: Iterable[Metric], duration_s: float | None
    ) -> str:
        """As `Store.add_import`."""
        self._must_be_allowed(Action.IMPORT)
        return super().add_import(name, config, metrics, duration_s)

    def rename(self, job_id: str, name: str) -> None:
        """As `Store.rename`."""
        self._must_be_allowed(Action.RENAME, [job_id])
        super().rename(job_id, name)

    def tag(self, job_ids: Sequence[str], *, add: Iterable[str] = (), remove: Iterable[str] = ()) -> None:
        """As `Store.tag`."""
        self._must_be_allowed(Action.TAG, self._left(job_ids))
        super().tag(job_ids, add=add, remove=remove)

    def delete(self, job_ids: Sequence[str]) -> list[str]:
        """As `Store.delete`."""
        self._must_be_allowed(Action.DELETE, self._left(job_ids))
        return super().delete(job_ids)

    def request_stop(self, job_id: str) -> Status:
        """As `Store.request_stop`."""
        self._must_be_allowed(Action.STOP, [job_id])
        return super().request_stop(job_id)

    def request_pause(self, job_id: str) -> Status:
        """As `Store.request_pause`."""
        self._must_be_allowed(Action.PAUSE, [job_id])
        return super().request_pause(job_id)

    def resume(self, job_id: str, layout: DeviceLayout | None = None) -> str:
        """As `Store.resume`."""
        (run,) = self._must_be_allowed(Action.RESUME, [job_id])
        with self._room(Kind.TRAIN, 1, run.owner):
            if run.can_resume:  # else the store says why not
                self._check_limits(parse_config(run.config), run=run)
            return super().resume(job_id, layout)

    def extend(self, job_id: str, epochs: int) -> str:
        """As `Store.extend`."""
        (run,) = self._must_be_allowed(Action.EXTEND, [job_id])
        with self._room(Kind.TRAIN, 1, run.owner):
            if run.can_extend:
                self._check_limits(extended(run, epochs), run=run)
            return super().extend(job_id, epochs)

    def _must_be_allowed(self, action: Action, job_ids: Sequence[str] = ()) -> list[Job]:
        """The jobs, of which none is somebody else's where that matters."""
        jobs = [self.job(job_id) for job_id in job_ids]
        refusal = self._person.refusal(action, jobs)
        if refusal is not None:
            raise refusal
        return jobs

    def _left(self, job_ids: Sequence[str]) -> list[str]:
        """Those that nobody has deleted meanwhile; of several runs one that is gone keeps nobody up."""
        left = []
        for job_id in job_ids:
            with suppress(RunNotFound):
                left.append(self.job(job_id).id)
        return left

    @contextmanager
    def _room(self, kind: Kind, new: int, owner: str | None = None) -> Iterator[None]:
        """Nobody else is counted and let in meanwhile; `owner` is whose jobs, where not the person's own."""
        owner = self.owner if owner is None else owner
        with _one_at_a_time:
            if self._limits is not None:
                runs = kind is Kind.TRAIN
                unfinished = [
                    job
                    for job in self.jobs(statuses=[status for status in Status if not status.is_final])
                    if job.owner == owner and (job.kind is Kind.TRAIN) is runs
                ]
                what = "run" if runs else "other job"
                who = "You have" if owner == self.owner else _OTHERS.get(owner, f"{owner} has")
                self._limits.check_queue(len(unfinished), new, what, who)
            yield

    def _check_size(self, kind: Kind, config: dict[str, Any]) -> None:
        if self._limits is None or kind not in _MODELS:
            return
        self._check_limits(
            parse_config(config["run"] if kind is Kind.STEP else config), trains=kind is Kind.TRAIN
        )

    def _check_limits(self, config: RunConfig, *, trains: bool = True, run: Job | None = None) -> None:
        exceeded = None if self._limits is None else over(self._limits, config, trains=trains, run=run)
        if exceeded is not None:
            raise exceeded


_OTHERS = {"": "The command line has", ANYBODY: "Visitors have"}
"""Who has what belongs to no person."""

_MODELS = (Kind.TRAIN, Kind.DESCRIBE, Kind.STEP)
"""Jobs that build a model of the settings they are given."""


def over(
    limits: Limits, config: RunConfig, *, trains: bool = True, run: Job | None = None
) -> LimitExceeded | None:
    """What of a run is more than a server allows, if anything.

    Args:
        limits: Of the server.
        config: The run.
        trains: Whether it is to be trained; what only builds its model has no epochs.
        run: One that is to go on; what it has trained counts.
    """
    try:
        if run is not None:
            limits.check_time(run)
        limits.check_parameters(needed(config).parameters)
        if trains:
            limits.check_epochs(config.training.epochs)
    except LimitExceeded as exceeded:
        return exceeded
    return None
