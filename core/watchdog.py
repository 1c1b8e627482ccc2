"""Finds jobs whose engine hangs before the first step, such as in a device that does not answer."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from core.errors import ConfigError
from core.records import Job
from core.words import shown

VARIABLE = "MIRRORBOARD_FIRST_STEP_LIMIT_S"
_USUAL_S = 300.0
"""TensorFlow takes seconds for the first graph of 8 replicas, and a minute where XLA compiles it."""


def first_step_limit_s() -> float:
    """Seconds without progress after which a job counts as hanging, from the environment.

    Raises:
        ConfigError: That is no positive number.
    """
    text = os.environ.get(VARIABLE, "")
    try:
        limit_s = float(text or _USUAL_S)
    except ValueError:
        limit_s = 0.0
    if not limit_s > 0:
        raise ConfigError(
            f"{VARIABLE} must be a number of seconds above 0, not {shown(text)}.",
            f"Correct it, or leave it out: then it is {_USUAL_S:,.0f} s.",
        )
    return limit_s


_Told = tuple[str, dict[str, Any], dict[str, Any] | None]


class Watchdog:
    """Remembers since when jobs have told nothing new; by its own clock, whoever sets the machine's.

    Args:
        limit_s: How long one may do so before its first step.
    """

    def __init__(self, limit_s: float) -> None:
        self.limit_s = limit_s
        self._since: dict[str, tuple[_Told, float]] = {}

    def hanging(self, jobs: Iterable[Job], now: float) -> list[Job]:
        """Those of the active jobs that have made no progress for too long.

        An engine that hangs may still beat its heart, so only what it says of its work counts.

        Args:
            jobs: All that are active.
            now: Seconds of a monotonic clock.
        """
        seen: dict[str, tuple[_Told, float]] = {}
        hanging = []
        for job in jobs:
            if job.progress.get("step"):
                continue
            told = (job.phase, job.progress, job.result)
            before, since = self._since.get(job.id, (None, now))
            seen[job.id] = (told, since if before == told else now)
            if now - seen[job.id][1] > self.limit_s:
                hanging.append(job)
        self._since = seen
        return hanging
