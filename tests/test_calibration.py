"""Expected calibration error and reliability diagrams, against values worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.analysis.calibration import expected_calibration_error, reliability, top_label


def test_by_hand() -> None:
    # Bin (0.5, 1]: four answers, mean confidence 0.75, two of them right: |0.5 − 0.75|.
    # Bin (0, 0.5]: one answer, confidence 0.4, right: |1 − 0.4|. ECE = 4/5 · 0.25 + 1/5 · 0.6 = 0.32.
    bars = reliability([0.6, 0.7, 0.8, 0.9, 0.4], [True, True, False, False, True], bins=2)
    assert [(bar.lower, bar.upper, bar.count) for bar in bars] == [(0.0, 0.5, 1), (0.5, 1.0, 4)]
    assert [bar.accuracy for bar in bars] == [1.0, 0.5]
    assert [bar.confidence for bar in bars] == pytest.approx([0.4, 0.75])
    assert expected_calibration_error(bars) == pytest.approx(0.32)


@pytest.mark.parametrize(
    ("confidence", "place"), [(0.0, 0), (0.1, 0), (0.3, 2), (0.7, 6), (0.70001, 7), (1.0, 9)]
)
def test_a_bin_holds_its_upper_edge(confidence: float, place: int) -> None:
    counts = [bar.count for bar in reliability([confidence], [True], bins=10)]
    assert counts.index(1) == place


def test_sure_and_right_is_zero_sure_and_wrong_is_one() -> None:
    assert expected_calibration_error(reliability([1.0, 1.0], [True, True])) == 0.0
    assert expected_calibration_error(reliability([1.0, 1.0], [False, False])) == 1.0


def test_empty_bins_have_no_values() -> None:
    bars = reliability([0.95], [True])
    assert len(bars) == 15
    assert bars[0].accuracy is None
    assert bars[0].confidence is None


def test_no_predictions_and_nan_give_no_error() -> None:
    assert expected_calibration_error(reliability([], [])) is None
    bars = reliability([math.nan, 0.5], [True, True], bins=2)
    assert sum(bar.count for bar in bars) == 1


def test_top_label() -> None:
    confidence, correct = top_label([[0.1, 0.7, 0.2], [0.5, 0.3, 0.2]], [1, 2])
    assert confidence.tolist() == [0.7, 0.5]
    assert correct.tolist() == [True, False]


def test_single_precision_beyond_one_is_tolerated() -> None:
    bars = reliability(np.array([1.0000001], dtype=np.float32), [True], bins=4)
    assert bars[-1].count == 1


def test_logits_are_refused() -> None:
    with pytest.raises(ValueError, match="not logits"):
        reliability([4.2, -1.0], [True, False])


def test_shapes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match=r"\(2,\).*\(1,\)"):
        reliability([0.5, 0.6], [True])
    with pytest.raises(ValueError, match=r"\(2,\)"):
        top_label([0.5, 0.5], [1])
    with pytest.raises(ValueError, match="0 bins"):
        reliability([0.5], [True], bins=0)


@given(st.lists(st.tuples(st.floats(0.0, 1.0), st.booleans()), min_size=1, max_size=50), st.integers(1, 20))
def test_every_prediction_is_in_one_bin_and_the_error_is_a_share(
    answers: list[tuple[float, bool]], bins: int
) -> None:
    bars = reliability([p for p, _ in answers], [right for _, right in answers], bins)
    assert sum(bar.count for bar in bars) == len(answers)
    error = expected_calibration_error(bars)
    assert error is not None
    assert 0.0 <= error <= 1.0 + 1e-12
