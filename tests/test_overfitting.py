"""The stopping criteria and verdicts, on the printed figures of the reference run and on made histories."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.analysis import verdict
from core.analysis.criteria import (
    Thresholds,
    generalization_loss,
    patience_stop,
    progress_quotient,
    stop_epochs,
    training_progress,
    what_would_have_happened,
)
from core.analysis.overfitting import diagnose
from core.analysis.verdict import Verdict, double_softmax_floor

Row = dict[str, float | int | None]

REFERENCE: list[Row] = json.loads((Path(__file__).parent / "fixtures" / "reference_run.json").read_text())[
    "epochs"
]
MEMORISING = (
    "Validation loss was lowest at epoch 3 (1.523). Since then it rose 75 % while training loss fell 79 %:"
    " the model is memorising."
)


def history(loss: list[Any], val_loss: list[Any] | None = None, **others: list[Any]) -> list[Row]:
    """Rows from a list of values for each metric."""
    columns = {"loss": loss, **others}
    if val_loss is not None:
        columns["val_loss"] = val_loss
    return [
        {"epoch": place, **dict(zip(columns, values, strict=True))}
        for place, values in enumerate(zip(*columns.values(), strict=True), start=1)
    ]


def falling(epochs: int, start: float = 2.0, rate: float = 0.8) -> list[float]:
    return [start * rate**epoch for epoch in range(epochs)]


class TestReferenceRun:
    def test_criteria_fire_where_the_book_says(self) -> None:
        assert stop_epochs(REFERENCE, Thresholds()) == {
            "GL_2": 4,
            "GL_5": 4,
            "GL_20": 5,
            "PQ_0.5 (k=5)": None,
            "PQ_0.5 (k=2)": 8,
            "UP_1 (k=5)": 10,
            "UP_2 (k=5)": None,
            "UP_1 (k=2)": 4,
            "UP_2 (k=2)": 6,
            "patience_2": 5,
            "patience_3": 6,
            "patience_5": 8,
        }

    def test_thresholds_can_be_edited(self) -> None:
        mine = Thresholds((8.0, 9.0), (0.1,), (3,), (3,), (1,))
        assert stop_epochs(REFERENCE, mine) == {
            "GL_8": 4,
            "GL_9": 5,
            "PQ_0.1 (k=3)": 9,
            "UP_3 (k=3)": None,
            "patience_1": 4,
        }

    def test_diagnosis(self) -> None:
        diagnosis = diagnose(REFERENCE, num_classes=46)
        assert diagnosis.best_epoch == 3
        assert diagnosis.best_val_loss == 1.5232
        assert diagnosis.overfit_from == 4
        assert diagnosis.verdict is Verdict.OVERFITTING
        assert diagnosis.sentence.startswith(MEMORISING)
        assert diagnosis.overconfident
        assert "hardly moved (0.633 → 0.608)" in diagnosis.sentence
        assert diagnosis.gap[0] == pytest.approx(1.7517 - 2.027)
        assert diagnosis.gap[-1] == pytest.approx(2.67 - 0.2617)
        assert diagnosis.generalization_loss[:3] == (0.0, 0.0, 0.0)
        assert diagnosis.generalization_loss[-1] == pytest.approx(75.289, abs=1e-3)

    def test_price_of_not_stopping(self) -> None:
        diagnosis = diagnose(REFERENCE)
        assert diagnosis.after_best_s == 28.0
        assert diagnosis.val_loss_change == pytest.approx(0.75289, abs=1e-5)

    def test_what_would_have_happened(self) -> None:
        rows = {row.rule: row for row in what_would_have_happened(REFERENCE, Thresholds())}
        stopped = rows["patience_2"]
        assert (stopped.epoch, stopped.val_loss, stopped.val_accuracy) == (5, 1.8791, 0.6158)
        assert (stopped.epochs_saved, stopped.saved_s) == (5, 20.0)
        never = rows["PQ_0.5 (k=5)"]
        assert (never.epoch, never.val_loss, never.epochs_saved, never.saved_s) == (None, 2.67, 0, 0.0)

    def test_savings_are_unknown_without_durations(self) -> None:
        bare = [{name: value for name, value in row.items() if name != "duration_s"} for row in REFERENCE]
        assert what_would_have_happened(bare, Thresholds())[0].saved_s is None
        assert diagnose(bare).after_best_s is None

    def test_json_holds_no_surprises(self) -> None:
        text = json.dumps(diagnose(REFERENCE).to_json(), allow_nan=False)
        values = json.loads(text)
        assert values["verdict"] == "overfitting"
        assert values["criteria"]["GL_20"] == 5
        assert len(values["gap"]) == 10

    @pytest.mark.parametrize(
        ("epochs", "verdict", "best"),
        [
            (1, "too_early", 1),
            (2, "too_early", 2),
            (3, "improving", 3),
            (4, "improving", 3),
            (5, "overfitting", 3),
        ],
    )
    def test_live(self, epochs: int, verdict: str, best: int) -> None:
        diagnosis = diagnose(REFERENCE[:epochs], num_classes=46)
        assert (diagnosis.verdict, diagnosis.best_epoch) == (verdict, best)

    def test_the_overconfidence_sentence_stays_once_said(self) -> None:
        assert all(diagnose(REFERENCE[:epochs]).overconfident for epochs in range(5, 11))


class TestCriteria:
    def test_progress_by_hand(self) -> None:
        # Strips (2, 1): 1000 · (3 / (2 · 1) − 1) = 500; (1, 3): 1000 · (4 / 2 − 1) = 1000.
        assert training_progress([2.0, 1.0, 3.0], 2) == [None, 500.0, 1000.0]

    def test_quotient_is_looked_at_where_strips_end(self) -> None:
        # GL = 0, 50, 100, 200 %; P_2 = 500 at both ends of strips.
        quotient = progress_quotient([1.0, 1.5, 2.0, 3.0], [2.0, 1.0, 2.0, 1.0], 2)
        assert quotient == [None, 0.1, None, 0.4]

    def test_training_at_rest_makes_the_quotient_infinite(self) -> None:
        rows = history([0.1] * 4, [1.0, 1.1, 1.2, 1.3])
        assert progress_quotient([1.0, 1.1], [0.1, 0.1], 2) == [None, math.inf]
        assert stop_epochs(rows, Thresholds())["PQ_0.5 (k=2)"] == 2
        assert diagnose(rows).to_json()["criteria"]["PQ_0.5 (k=2)"] == 2

    def test_no_ratio_to_losses_of_zero_or_less(self) -> None:
        assert generalization_loss([1.0, 0.0, 1.0]) == [0.0, None, None]

    def test_a_gap_breaks_strips_and_nothing_else(self) -> None:
        assert training_progress([2.0, None, 1.0, 1.0], 2) == [None, None, None, 0.0]
        assert generalization_loss([2.0, None, 3.0]) == [0.0, None, 50.0]

    def test_patience_passes_over_epochs_without_validation(self) -> None:
        rows: list[Row] = [{"val_loss": 1.0}, {}, {"val_loss": 1.1}, {}, {"val_loss": 1.2}]
        assert patience_stop(rows, 2) == 4

    def test_patience_counts_nan_as_no_improvement(self) -> None:
        rows: list[Row] = [{"val_loss": 1.0}, {"val_loss": None}, {"val_loss": None}, {"val_loss": 0.5}]
        assert patience_stop(rows, 2) == 2

    def test_after_a_first_nan_nothing_improves(self) -> None:
        rows: list[Row] = [{"val_loss": None}, {"val_loss": 2.0}, {"val_loss": 1.0}]
        assert patience_stop(rows, 2) == 2

    def test_epochs_keep_their_numbers(self) -> None:
        resumed = [{**row, "epoch": int(row["epoch"] or 0) + 20} for row in REFERENCE]
        assert diagnose(resumed).best_epoch == 23
        assert stop_epochs(resumed, Thresholds())["GL_20"] == 25


class TestVerdicts:
    def test_overconfident_when_accuracy_is_kept(self) -> None:
        rows = history(
            falling(6),
            [1.0, 0.8, 0.9, 1.0, 1.1, 1.2],
            accuracy=[0.9] * 6,
            val_accuracy=[0.7, 0.75] + [0.755] * 4,
        )
        diagnosis = diagnose(rows)
        assert diagnosis.verdict is Verdict.OVERCONFIDENT
        assert diagnosis.overfit_from == 3
        assert "hardly moved (0.750 → 0.755)" in diagnosis.sentence

    def test_overconfidence_when_accuracy_rises(self) -> None:
        rows = history(
            falling(6), [1.0, 0.8, 0.9, 1.0, 1.1, 1.2], val_accuracy=[0.6, 0.65, 0.7, 0.7, 0.71, 0.72]
        )
        assert "even rose (0.650 → 0.720)" in diagnose(rows).sentence

    def test_overfitting_of_accuracy_is_no_overconfidence(self) -> None:
        rows = history(
            falling(6), [1.0, 0.8, 0.9, 1.0, 1.1, 1.2], val_accuracy=[0.6, 0.7, 0.68, 0.66, 0.64, 0.6]
        )
        diagnosis = diagnose(rows)
        assert diagnosis.verdict is Verdict.OVERFITTING
        assert not diagnosis.overconfident
        assert diagnosis.sentence.endswith("the model is memorising.")

    @pytest.mark.parametrize(
        ("errors", "words"),
        [
            ([0.3, 0.09, 0.1, 0.15, 0.2, 0.24], "off by 24 points; at epoch 2 it was 9."),
            ([0.3, 0.0, 0.1, 0.15, 0.2, 0.01], "off by 1 point; at epoch 2 it was 0."),
        ],
    )
    def test_overconfidence_in_points_where_calibration_is_known(
        self, errors: list[float], words: str
    ) -> None:
        rows = history(
            falling(6),
            [1.0, 0.8, 0.9, 1.0, 1.1, 1.2],
            val_accuracy=[0.7, 0.75] + [0.755] * 4,
            val_expected_calibration_error=errors,
        )
        diagnosis = diagnose(rows)
        assert diagnosis.verdict is Verdict.OVERCONFIDENT
        assert diagnosis.sentence.endswith(f"more and more certainty. Its confidence is {words}")

    def test_no_overconfidence_where_calibration_has_not_become_worse(self) -> None:
        rows = history(
            falling(6),
            [1.0, 0.8, 0.9, 1.0, 1.1, 1.2],
            val_accuracy=[0.7, 0.75] + [0.755] * 4,
            val_expected_calibration_error=[0.3, 0.09, 0.1, 0.12, 0.1, 0.095],
        )
        diagnosis = diagnose(rows)
        assert diagnosis.verdict is Verdict.OVERFITTING
        assert not diagnosis.overconfident
        assert diagnosis.sentence.endswith("the model is memorising.")

    def test_calibration_that_is_unknown_at_the_best_epoch_is_not_spoken_of(self) -> None:
        rows = history(
            falling(6),
            [1.0, 0.8, 0.9, 1.0, 1.1, 1.2],
            val_accuracy=[0.7, 0.75] + [0.755] * 4,
            val_expected_calibration_error=[None, None, 0.1, 0.12, 0.1, 0.2],
        )
        diagnosis = diagnose(rows)
        assert diagnosis.overconfident
        assert "points" not in diagnosis.sentence

    @pytest.mark.parametrize("last", [0.7, 0.9])
    def test_one_worse_epoch_is_no_overfitting(self, last: float) -> None:
        assert diagnose(history(falling(4), [1.0, 0.8, 0.6, last])).verdict is Verdict.IMPROVING

    def test_underfitting(self) -> None:
        loss = [3.80, 3.75, 3.72, 3.71, 3.70, 3.70, 3.69]
        diagnosis = diagnose(history(loss, [value + 0.02 for value in loss]))
        assert diagnosis.verdict is Verdict.UNDERFITTING
        assert "fell only 3 % in 7 epochs, to 3.69" in diagnosis.sentence

    def test_a_good_model_at_rest_does_not_underfit(self) -> None:
        loss = [0.3, 0.28, 0.271, 0.27, 0.27, 0.2699]
        rows = history(loss, [value + 0.01 for value in loss], accuracy=[0.92] * 6)
        assert diagnose(rows).verdict is Verdict.PLATEAU

    @pytest.mark.parametrize(
        ("loss", "since"), [([2.0, None, None], 2), ([None], 1), ([1.0, 0.5, math.nan], 3)]
    )
    def test_not_a_number(self, loss: list[float | None], since: int) -> None:
        diagnosis = diagnose(history(loss, loss))
        assert diagnosis.verdict is Verdict.DIVERGED
        assert f"since epoch {since}:" in diagnosis.sentence

    def test_validation_alone_not_a_number(self) -> None:
        diagnosis = diagnose(history([2.0, 1.0, 0.5], [2.0, 1.0, math.inf]))
        assert diagnosis.verdict is Verdict.DIVERGED
        assert "validation data" in diagnosis.sentence
        assert diagnosis.best_epoch == 2

    def test_one_invalid_epoch_in_between_is_no_divergence(self) -> None:
        assert diagnose(history([2.0, None, 1.0, 0.8], [2.0, 1.5, 1.2, 1.0])).verdict is Verdict.IMPROVING

    @pytest.mark.parametrize(
        "loss", [[1.0, 0.9, 2.0, 10.0, 100.0], [3.8, 0.4, 0.4, 3.9], [1.0, 0.8, 50.0, 50.0]]
    )
    def test_explosion(self, loss: list[float]) -> None:
        assert diagnose(history(loss, loss)).verdict is Verdict.DIVERGED

    def test_double_softmax_floor(self) -> None:
        assert double_softmax_floor(46) == pytest.approx(2.865, abs=5e-4)

    def test_rest_at_the_double_softmax_floor(self) -> None:
        loss = [3.2, 2.95, 2.88, 2.87, 2.868, 2.867]
        rows = history(loss, [value + 0.05 for value in loss])
        diagnosis = diagnose(rows, num_classes=46)
        assert diagnosis.verdict is Verdict.DOUBLE_SOFTMAX
        assert "2.865" in diagnosis.sentence
        assert diagnose(rows).verdict is not Verdict.DOUBLE_SOFTMAX

    def test_double_softmax_shows_in_a_loss_too_high_for_the_accuracy(self) -> None:
        # Sure of every answer, right 70 % of the time: the floor and 0.3.
        loss = [3.4, 3.2, 3.17, 3.168, 3.166]
        accuracy = [0.5, 0.65, 0.69, 0.7, 0.7]
        rows = history(loss, loss, accuracy=accuracy, val_accuracy=accuracy)
        assert diagnose(rows, num_classes=46).verdict is Verdict.DOUBLE_SOFTMAX

    def test_a_binary_model_near_that_height_is_not_suspected(self) -> None:
        loss = [0.5, 0.34, 0.325, 0.32, 0.318]
        rows = history(loss, loss, accuracy=[0.8, 0.86, 0.865, 0.87, 0.87])
        assert diagnose(rows, num_classes=2).verdict is not Verdict.DOUBLE_SOFTMAX

    def test_no_validation(self) -> None:
        diagnosis = diagnose(history(falling(5)))
        assert (diagnosis.verdict, diagnosis.best_epoch) == (Verdict.NO_VALIDATION, None)
        assert diagnosis.gap == (None,) * 5

    def test_validation_every_other_epoch(self) -> None:
        rows = history(falling(12), [1.0, 0.8, 0.9, 1.0, 1.1, 1.2, *[None] * 6])
        for row, val_loss in zip(
            rows, [None, 1.0, None, 0.8, None, 0.9, None, 1.0, None, 1.1, None, 1.2], strict=True
        ):
            if val_loss is None:
                del row["val_loss"]
            else:
                row["val_loss"] = val_loss
        diagnosis = diagnose(rows)
        assert (diagnosis.verdict, diagnosis.best_epoch) == (Verdict.OVERFITTING, 4)

    def test_losses_below_zero(self) -> None:
        diagnosis = diagnose(history([-1.0, -2.0, -3.0], [-1.0, -2.0, -1.5]))
        assert (diagnosis.verdict, diagnosis.best_epoch) == (Verdict.UNDEFINED, 2)
        assert diagnosis.val_loss_change is None

    @pytest.mark.parametrize("sigma", [0.01, 0.03, 0.1])
    @pytest.mark.parametrize("epochs", [3, 5, 10, 30])
    def test_noise_is_hardly_ever_called_overfitting(self, sigma: float, epochs: int) -> None:
        chance = random.Random(epochs)

        def noise() -> list[float]:
            return [2.0 * (1.0 + chance.gauss(0.0, sigma)) for _ in range(epochs)]

        verdicts = [diagnose(history(noise(), noise())).verdict for _ in range(300)]
        claims = sum(verdict in (Verdict.OVERFITTING, Verdict.OVERCONFIDENT) for verdict in verdicts)
        assert claims <= 0.02 * len(verdicts)
        if sigma >= 0.03 and epochs >= 10:
            assert verdicts.count(Verdict.NOISY) > 0.85 * len(verdicts)

    def test_a_level_validation_loss_is_rarely_called_overfitting(self) -> None:
        chance = random.Random(7)
        verdicts = [
            diagnose(history(falling(20), [2.0 * (1.0 + chance.gauss(0.0, 0.03)) for _ in range(20)])).verdict
            for _ in range(300)
        ]
        assert verdicts.count(Verdict.OVERFITTING) <= 0.03 * len(verdicts)

    def test_overfitting_shows_through_noise(self) -> None:
        chance = random.Random(7)
        for _ in range(200):
            noisy = [
                {**row, "val_loss": float(row["val_loss"] or 0.0) * (1.0 + chance.gauss(0.0, 0.03))}
                for row in REFERENCE
            ]
            assert diagnose(noisy).overfit_from is not None


positive = st.floats(min_value=1e-3, max_value=1e3)
pairs = st.lists(st.tuples(positive, positive), min_size=1, max_size=30)
anything = st.one_of(st.none(), st.floats(allow_nan=True, allow_infinity=True), st.integers(-3, 3))


class TestProperties:
    @given(pairs, st.floats(min_value=1e-3, max_value=1e3), st.integers(1, 6))
    def test_scale_does_not_matter(self, losses: list[tuple[float, float]], scale: float, k: int) -> None:
        train, val = [a for a, _ in losses], [b for _, b in losses]
        larger_train, larger_val = [scale * a for a in train], [scale * b for b in val]
        assert generalization_loss(larger_val) == pytest.approx(generalization_loss(val), rel=1e-6, abs=1e-9)
        # Where training rests the quotient divides by rounding errors, so look at losses that move.
        if all(p is None or p > 1e-6 for p in training_progress(train, k)):
            quotients = zip(
                progress_quotient(val, train, k), progress_quotient(larger_val, larger_train, k), strict=True
            )
            for before, after in quotients:
                assert (before is None) == (after is None)
                assert before is None or after == pytest.approx(before, rel=1e-4, abs=1e-9)

    @given(
        st.lists(positive, min_size=1, max_size=40, unique=True), st.lists(positive, min_size=40, max_size=40)
    )
    def test_a_falling_validation_loss_never_fires(self, val: list[float], train: list[float]) -> None:
        rows = history(train[: len(val)], sorted(val, reverse=True))
        assert set(stop_epochs(rows, Thresholds()).values()) == {None}
        diagnosis = diagnose(rows)
        assert diagnosis.best_epoch == len(val)
        assert diagnosis.overfit_from is None

    @given(
        st.lists(
            st.dictionaries(
                st.sampled_from(["epoch", "loss", "val_loss", "duration_s", "accuracy", "val_accuracy"]),
                anything,
            ),
            max_size=12,
        ),
        st.one_of(st.none(), st.integers(1, 1000)),
    )
    def test_any_history_is_answered(self, rows: list[Row], classes: int | None) -> None:
        diagnosis = diagnose(rows, num_classes=classes)
        assert diagnosis.sentence
        json.dumps(diagnosis.to_json(), allow_nan=False)
        what_would_have_happened(rows, Thresholds())

    def test_an_empty_history_is_answered(self) -> None:
        diagnosis = diagnose([])
        assert (diagnosis.verdict, diagnosis.best_epoch, diagnosis.gap) == (Verdict.TOO_EARLY, None, ())
        assert what_would_have_happened([], Thresholds()) == []


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1.54, "1.540"),
        (0.5, "0.5000"),
        (12.0, "12.00"),
        (999.96, "1000"),
        (1234.5, "1,234"),
        (0.00012, "0.0001200"),
    ],
)
def test_losses_are_written_with_four_digits(value, text):
    assert verdict._number(value) == text


def test_a_steep_turn_is_called_overfitting_after_three_rising_epochs():
    """Real losses of a run on two replicas; the bend at the minimum looks like scatter."""
    val = [1.6476, 1.5399, 1.5599, 1.7012, 1.9634]
    train = [1.9942, 1.4532, 1.1586, 0.8441, 0.5873]
    accuracy = [0.5761, 0.6064, 0.6215, 0.6380, 0.6390]
    history = [
        {"epoch": n, "loss": a, "val_loss": b, "val_sparse_categorical_accuracy": c}
        for n, (a, b, c) in enumerate(zip(train, val, accuracy, strict=True), start=1)
    ]
    found = diagnose(history)
    assert found.best_epoch == 2
    assert found.verdict in (Verdict.OVERFITTING, Verdict.OVERCONFIDENT)
    assert found.sentence.startswith("Validation loss was lowest at epoch 2 (1.540). Since then it rose 28 %")
    assert "Validation accuracy even rose (0.606 → 0.639)" in found.sentence


def test_a_useless_model_is_not_advised_to_train_on():
    history = [{"epoch": n, "loss": 200.0 - n, "val_loss": 101.0 - n} for n in range(1, 4)]
    found = diagnose(history, num_classes=46)
    assert found.verdict is Verdict.UNDERFITTING
    assert "worse than guessing among 46 classes (3.829): lower the learning rate" in found.sentence


def test_one_class_has_no_double_softmax():
    history = [{"loss": 0.0}, {"loss": 0.0}, {"val_loss": None, "loss": 0.0, "accuracy": 0.0}, {}]
    assert diagnose(history, num_classes=1).sentence
