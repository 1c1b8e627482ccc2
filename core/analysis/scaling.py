"""How a training scales with its replicas: speed-up, efficiency, and the laws of Amdahl and Gustafson.

Both laws know one number, the serial fraction s: the share of one replica's time that does not shrink
when replicas share the work.

* Amdahl (1967), strong scaling, the same global batch: speed-up on n replicas = 1 / (s + (1 - s) / n).
* Gustafson (1988), weak scaling, the same per-replica batch: speed-up = s + (1 - s) n.

Neither has a term for communication, so that of a training lands in s.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from core.records import Scaling

_FEWEST = 2
_SAME = 0.05
"""Difference of two speeds, as a share, that is no more than the timing's noise."""
_LEAST_PRICE = 0.005
"""Share of a step below which its price is called hardly anything."""


@dataclass(frozen=True)
class Timed:
    """What was measured of one run.

    Attributes:
        step_s: Median duration of a training step.
        examples_per_s: Rows of a global batch in that time.
        price: Share of the step that the all-reduce takes; None where it was not measured.
    """

    step_s: float
    examples_per_s: float
    price: float | None = None


@dataclass(frozen=True)
class Scaled:
    """A run's speed against the baseline's.

    Attributes:
        speed_up: Ratio of examples per second.
        ideal: What it would be if every replica added as much as the first.
        efficiency: Speed-up as a share of the ideal.
    """

    speed_up: float
    ideal: float
    efficiency: float


@dataclass(frozen=True)
class Analysis:
    """How a study's runs scale.

    Attributes:
        scaling: Its kind.
        timed: Runs with a step time, by number of replicas, in ascending order.
        scaled: Of the same, their speed against the first's.
        serial_fraction: Of Amdahl's law, or Gustafson's for weak scaling, from 0 to 1; None without two runs.
    """

    scaling: Scaling
    timed: Mapping[int, Timed]
    scaled: Mapping[int, Scaled]
    serial_fraction: float | None

    @property
    def baseline(self) -> int | None:
        """Replicas that the others are measured against: the fewest that were timed."""
        return next(iter(self.timed), None)

    def predicted(self, replicas: float) -> float | None:
        """Speed-up against the baseline that the fitted law gives; None without a fit."""
        if self.serial_fraction is None or self.baseline is None:
            return None
        law = _LAWS[self.scaling]
        return law(self.serial_fraction, replicas) / law(self.serial_fraction, self.baseline)


def median_step_s(executions: Sequence[tuple[int, int, float]]) -> float | None:
    """Median duration of a training step, without the first epoch, which holds TensorFlow's tracing.

    With several steps per execution only whole executions are timed; each counts as often as it has steps.
    The first execution of an epoch is left out: what passes before its end is validation as well.

    Args:
        executions: Zero-based epoch, steps, and time of its end in seconds, in order.

    Returns:
        Seconds; None where nothing can be timed, say because only the first epoch was trained.
    """
    durations: list[float] = []
    for (before, _, began), (epoch, steps, ended) in itertools.pairwise(executions):
        # A clock that was set back gives no duration.
        if epoch == before > 0 and ended > began:
            durations += [(ended - began) / steps] * steps
    return float(np.median(durations)) if durations else None


def price(step_s: float, step_without_s: float) -> float:
    """Share of a step that goes when the all-reduce is left out, from 0 to 1."""
    return max(0.0, 1.0 - step_without_s / step_s)


def analyse(scaling: Scaling, timed: Mapping[int, Timed | None]) -> Analysis:
    """Compares the runs of a study.

    Args:
        scaling: Its kind.
        timed: What was measured, by number of replicas; None of a run that has no step time (yet).
    """
    known = {replicas: run for replicas, run in sorted(timed.items()) if run is not None}
    if not known:
        return Analysis(scaling, {}, {}, None)
    baseline, first = next(iter(known.items()))
    scaled = {}
    for replicas, run in known.items():
        speed_up, ideal = run.examples_per_s / first.examples_per_s, replicas / baseline
        scaled[replicas] = Scaled(speed_up, ideal, speed_up / ideal)
    return Analysis(scaling, known, scaled, _serial_fraction(scaling, baseline, scaled))


def amdahl(serial_fraction: float, replicas: float) -> float:
    """Speed-up of a fixed amount of work over one replica."""
    return 1.0 / (serial_fraction + (1.0 - serial_fraction) / replicas)


def gustafson(serial_fraction: float, replicas: float) -> float:
    """Speed-up over one replica of work that grows with the replicas."""
    return serial_fraction + (1.0 - serial_fraction) * replicas


_LAWS = {Scaling.STRONG: amdahl, Scaling.WEAK: gustafson}


def _serial_fraction(scaling: Scaling, baseline: int, scaled: Mapping[int, Scaled]) -> float | None:
    """The least-squares serial fraction within 0 to 1.

    Both laws, divided by themselves at the baseline b, are linear in s once the fraction is multiplied out,
    so the minimum has a closed form, and cutting it at the bounds gives the bounded one.
    """
    if len(scaled) < _FEWEST:
        return None
    n = np.array(list(scaled), np.float64)
    speed_up = np.array([run.speed_up for run in scaled.values()], np.float64)
    if scaling is Scaling.STRONG:
        # time(n)/time(b) (s + (1 - s)/b) = s + (1 - s)/n
        time = 1.0 / speed_up
        x, y = time * (1.0 - 1.0 / baseline) - (1.0 - 1.0 / n), 1.0 / n - time / baseline
    else:
        # speed-up (s + (1 - s) b) = s + (1 - s) n
        x, y = speed_up * (1.0 - baseline) - (1.0 - n), n - speed_up * baseline
    square = float(x @ x)
    return float(np.clip(x @ y / square, 0.0, 1.0)) if square > 0 else None


def verdict(analysis: Analysis) -> str:
    """What the study says, in a few sentences."""
    baseline = analysis.baseline
    if baseline is None:
        return (
            "No run has a step time yet: the first epoch, which holds TensorFlow's tracing, is not counted."
        )
    one = f"on {baseline}" if baseline > 1 else "on one replica"
    if len(analysis.timed) < _FEWEST:
        return f"Only the run {one} has a step time so far; a speed-up takes two."
    most = max(analysis.timed)
    run = analysis.scaled[most]
    if run.speed_up > 1 + _SAME:
        gain = f"the training runs {run.speed_up:.2f} times as fast as {one}"
    elif run.speed_up < 1 - _SAME:
        gain = f"the training is slower than {one}, at {run.speed_up:.2f} times its speed"
    else:
        gain = f"the training is no faster than {one} ({run.speed_up:.2f} times its speed)"
    ideal = f"ideal would be {run.ideal:g} times, so the efficiency is {100 * run.efficiency:.0f} %"
    sentences = [f"On {most} replicas {gain}; {ideal}.", _of_the_law(analysis), _of_the_price(analysis)]
    return " ".join(sentence for sentence in sentences if sentence)


def _of_the_law(analysis: Analysis) -> str:
    s = analysis.serial_fraction
    if s is None:
        return ""
    strong = analysis.scaling is Scaling.STRONG
    name = "Amdahl's law" if strong else "Gustafson's law"
    if math.isclose(s, 1.0):
        return f"{name} ends at a serial fraction of 100 %: it has no term for the cost of synchronising."
    fitted = f"{name} fits with a serial fraction of {100 * s:.1f} %"
    if not strong:
        return f"{fitted}: each added replica brings {1 - s:.2f} of one."
    if math.isclose(s, 0.0, abs_tol=1e-3):
        return f"{fitted}: no limit is in sight."
    return f"{fitted}: however many replicas, no more than {1 / s:.1f} times the speed of one."


def _of_the_price(analysis: Analysis) -> str:
    priced = {n: run.price for n, run in analysis.timed.items() if n > 1 and run.price is not None}
    if not priced:
        return ""
    most = max(priced)
    if priced[most] < _LEAST_PRICE:
        return f"All-reduce takes hardly any of a step on {most} replicas."
    return f"All-reduce takes {100 * priced[most]:.0f} % of a step on {most} replicas."
