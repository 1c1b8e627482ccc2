"""Series of any length: they grow at the end, and are thinned to what a screen can show."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from tsdownsample import MinMaxLTTBDownsampler

MOST_POINTS = 1_000
"""Points of a trace that are drawn of the whole, and again of the part that is zoomed into."""
_WINDOW = 15
"""Values in the running mean."""
_FIRST_CAPACITY = 1_024
_LTTB = MinMaxLTTBDownsampler()  # type: ignore[no-untyped-call] # in tsdownsample 0.1.5


class Series:
    """Values by step, each with the mean of the last 15. Appending costs what is appended.

    What `steps`, `values` and `smoothed` have returned stays as it is when the series grows.
    """

    def __init__(self) -> None:
        self._size = 0
        self._steps = np.empty(_FIRST_CAPACITY, np.int64)
        self._values = np.empty(_FIRST_CAPACITY, np.float64)
        self._smoothed = np.empty(_FIRST_CAPACITY, np.float64)

    def __len__(self) -> int:
        return self._size

    @property
    def steps(self) -> NDArray[np.int64]:
        """Global, zero-based; shape (n,)."""
        return self._steps[: self._size]

    @property
    def values(self) -> NDArray[np.float64]:
        """One for each step, NaN where it was not finite; shape (n,)."""
        return self._values[: self._size]

    @property
    def smoothed(self) -> NDArray[np.float64]:
        """The running mean, NaN where the value is; shape (n,)."""
        return self._smoothed[: self._size]

    def extend(self, steps: NDArray[np.int64], values: NDArray[np.float64]) -> None:
        """Appends values; both have shape (m,), and steps do not decrease."""
        begin, end = self._size, self._size + len(values)
        if end > len(self._values):
            capacity = max(end, 2 * len(self._values))
            self._steps, self._values, self._smoothed = (
                np.concatenate([old[:begin], np.empty(capacity - begin, old.dtype)])
                for old in (self._steps, self._values, self._smoothed)
            )
        self._steps[begin:end] = steps
        self._values[begin:end] = values
        before = max(begin - _WINDOW + 1, 0)
        self._smoothed[begin:end] = _running_mean(self._values[before:end])[begin - before :]
        self._size = end


def _running_mean(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Over the last values; one that is not finite leaves a hole in it."""
    finite = np.isfinite(values)
    total = np.cumsum(np.concatenate([[0.0], np.where(finite, values, 0.0)]))
    count = np.cumsum(np.concatenate([[0], finite]))
    end = np.arange(1, len(values) + 1)
    begin = np.maximum(end - _WINDOW, 0)
    return np.where(finite, (total[end] - total[begin]) / np.maximum(count[end] - count[begin], 1), np.nan)


def thinned(values: NDArray[np.float64], most: int) -> NDArray[np.int64]:
    """Places of the values to draw: MinMaxLTTB's, the ends, the lowest, the highest, and the gaps.

    MinMaxLTTB alone (tsdownsample 0.1.5) loses an extreme in one of three noisy series, and takes places
    for what is not finite as they come.

    Args:
        values: Shape (n,); NaN where the line is to break.
        most: At most so many places are returned, 24 or more.

    Returns:
        Ascending places. Of more than ``most // 8`` gaps the longest stay.
    """
    count = len(values)
    if count <= most:
        return np.arange(count)
    missing = np.flatnonzero(np.isnan(values))
    ends = np.array([0, count - 1])
    if not missing.size:
        room = most - len(ends)
        return _united(_LTTB.downsample(values, n_out=room), [values.argmin(), values.argmax()])
    # A gap is the place before it, its first, and the place after it.
    first = missing[np.flatnonzero(np.diff(missing, prepend=-2) > 1)]
    last = missing[np.flatnonzero(np.diff(missing, append=count + 1) > 1)]
    longest = np.argsort(first - last, kind="stable")[: most // 8]
    first, last = first[longest], last[longest]
    gaps = np.concatenate([first, np.maximum(first - 1, 0), np.minimum(last + 1, count - 1)])
    there = np.flatnonzero(~np.isnan(values))
    if not there.size:
        return _united(ends, gaps)
    known = values[there]
    room = most - len(ends) - len(gaps) - 2
    chosen = there if len(there) <= room else there[_LTTB.downsample(known, n_out=room)]
    return _united(ends, gaps, chosen, there[[known.argmin(), known.argmax()]])


def shown(
    steps: NDArray[np.int64] | NDArray[np.float64],
    values: NDArray[np.float64],
    visible: tuple[float, float] | None,
) -> NDArray[np.int64]:
    """Places of the values to draw of a chart that may be zoomed.

    The whole stays beneath what is zoomed into, so that panning and zooming out never meet a void.

    Args:
        steps: Where the values are on the x axis, ascending; shape (n,).
        values: Shape (n,).
        visible: What part of the x axis is on screen; None for all of it.
    """
    whole = thinned(values, MOST_POINTS)
    if visible is None or len(whole) == len(values):
        return whole
    # With a neighbour on each side, to which the line leads out of the picture.
    begin = max(int(np.searchsorted(steps, visible[0])) - 1, 0)
    end = int(np.searchsorted(steps, visible[1], side="right")) + 1
    fine = begin + thinned(values[begin:end], MOST_POINTS)
    return _united(whole[(whole < begin) | (whole >= end)], fine)


def is_thinned(count: int) -> bool:
    """True when a chart of the whole does not draw each of so many values."""
    return count > MOST_POINTS


def _united(*places: object) -> NDArray[np.int64]:
    return np.unique(np.concatenate([np.asarray(some, np.int64) for some in places]))
