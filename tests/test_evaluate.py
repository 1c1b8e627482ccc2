"""Evaluations: numbers recomputed by hand and by plain Keras, typed newswires, the page in every state."""

from __future__ import annotations

import json
import subprocess
import sys

import keras
import numpy as np
import pytest
import streamlit
from conftest import command, ended, json_of

from core import corpus as corpora
from core import newswire, predictions
from core.access import ANYBODY, Person, Role
from core.analysis.evaluation import cell, evaluate, ordered, shares
from core.corpus import START, UNKNOWN
from core.dashboard.charts.evaluation import confusion_matrix
from core.engine import datasets, synthetic
from core.errors import ConfigError, DatasetError, DownloadFailed, RunStateError, StoreError, TrainingError
from core.gate import Gate
from core.predictions import Predictions, order, question
from core.records import Kind, Status
from tests.page_app import charts, drawings, texts
from tests.recorded import answered, claim, claimed, evaluated, finished_run, prepared, running_run

# Numbers


def test_a_tiny_case_by_hand():
    probabilities = np.array(
        [[0.7, 0.2, 0.1], [0.6, 0.3, 0.1], [0.1, 0.8, 0.1], [0.4, 0.5, 0.1], [0.5, 0.1, 0.4]], np.float32
    )
    labels = np.array([0, 0, 1, 0, 2], np.int32)
    found = evaluate(probabilities, labels, np.array([1, 1, 0], np.int32))
    assert found.predicted.tolist() == [0, 0, 1, 1, 0]
    assert found.confusion.tolist() == [[2, 1, 0], [0, 1, 0], [1, 0, 0]]
    assert (found.examples, found.accuracy, found.top_5) == (5, 0.6, 1.0)
    # The largest class of training, 1, is the truth of one in five.
    assert (found.majority, found.baseline, found.training_share) == (1, 0.2, pytest.approx(2 / 3))
    zero, one, two = found.scores
    assert (zero.support, zero.predicted) == (3, 3)
    assert (zero.precision, zero.recall, zero.f1) == pytest.approx((2 / 3, 2 / 3, 2 / 3))
    assert (one.precision, one.recall, one.f1) == pytest.approx((1 / 2, 1, 2 / 3))
    assert (two.support, two.predicted, two.precision, two.recall, two.f1) == (1, 0, 0, 0, 0)
    assert found.macro_f1 == pytest.approx((2 / 3 + 2 / 3 + 0) / 3)
    # Confidences .7 .6 .8 .5 .5, right yes yes yes no no: each in a bin of its own but the last two.
    assert found.calibration_error == pytest.approx((0.3 + 0.4 + 0.2 + 0.5 + 0.5) / 5, abs=1e-6)


def test_top_5_counts_as_the_runs_metric_does():
    random = np.random.default_rng(3)
    probabilities = random.dirichlet(np.full(12, 0.3), 200).astype(np.float32)
    probabilities[:40] = np.float32(1 / 12)  # all alike: TensorFlow counts a tie as within
    labels = random.integers(0, 12, 200).astype(np.int32)
    theirs = keras.metrics.sparse_top_k_categorical_accuracy(labels, probabilities, k=5)
    assert evaluate(probabilities, labels, labels).top_5 == pytest.approx(float(np.mean(theirs)))
    assert 0.2 < float(np.mean(theirs)) < 0.95


def test_classes_without_newswires_or_answers_score_zero_and_macro_f1_leaves_the_former_out():
    labels = np.array([0, 1], np.int32)
    found = evaluate(np.eye(4, dtype=np.float32)[[0, 0]], labels, labels)
    assert [score.f1 for score in found.scores] == pytest.approx([2 / 3, 0, 0, 0])
    assert found.macro_f1 == pytest.approx(1 / 3)
    assert np.isnan(shares(found.confusion)[2:]).all()
    assert shares(found.confusion)[:2].tolist() == [[1, 0, 0, 0], [1, 0, 0, 0]]


def test_answers_that_are_no_numbers_count_as_wrong_without_a_crash():
    probabilities = np.array([[np.nan, np.nan], [0.2, 0.8]], np.float32)
    found = evaluate(probabilities, np.array([1, 1], np.int32), np.array([0], np.int32))
    assert (found.accuracy, found.top_5) == (0.5, 0.5)
    assert found.calibration_error == pytest.approx(0.2)


def test_orders_of_the_confusion_matrix():
    confusion = np.array([[5, 0, 0], [1, 6, 3], [0, 4, 2]])
    assert ordered(confusion, "support").tolist() == [1, 2, 0]
    # Mistakes: class 0 one; class 1 eight (1 + 3 of its own, 4 of others); class 2 seven.
    assert ordered(confusion, "confusion").tolist() == [1, 2, 0]
    confusion = np.array([[50, 0, 0], [0, 2, 3], [0, 4, 2]])
    assert ordered(confusion, "support").tolist() == [0, 2, 1]
    assert ordered(confusion, "confusion").tolist() == [1, 2, 0]


def test_a_cell_holds_its_newswires_the_surest_first():
    labels = np.array([0, 0, 0, 1], np.int32)
    probabilities = np.array([[0.4, 0.6], [0.1, 0.9], [0.9, 0.1], [0.3, 0.7]], np.float32)
    found = evaluate(probabilities, labels, labels)
    assert cell(found, probabilities, labels, 0, 1).tolist() == [1, 0]
    assert cell(found, probabilities, labels, 1, 0).tolist() == []


def test_majority_class_of_the_real_reuters(tmp_path):
    try:
        data = datasets.prepare("reuters", tmp_path, lambda *_: None)
    except DownloadFailed as error:
        pytest.skip(f"the real Reuters files are needed: {error.message}")
    labels = data.split_labels("test")
    found = evaluate(np.full((2246, 46), 1 / 46, np.float32), labels, data.split_labels("train"))
    assert data.class_names[found.majority] == "earn"
    assert found.training_share == pytest.approx(0.3517, abs=5e-5)
    assert found.baseline == pytest.approx(813 / 2246)


# Typed newswires


@pytest.fixture(scope="module")
def generated():
    return synthetic.generate()


def test_words_are_cut_as_reuters_was(store):
    data = prepared(store)
    read = newswire.read("Word3, word4\t(WORD5) don't <b>word6</b>\nword7-word8 <unk> nothing", data, 100)
    told = [read.text[word.start : word.end] for word in read.words]
    assert told == [
        "Word3", "word4", "WORD5", "don't", "b", "word6", "b", "word7", "word8", "unk", "nothing",
    ]  # fmt: skip
    known = [data.words.index(f"word{i}") for i in range(3, 9)]
    assert list(read.ids) == [
        START, *known[:3], UNKNOWN, UNKNOWN, known[3], UNKNOWN, *known[4:], UNKNOWN, UNKNOWN,
    ]  # fmt: skip
    assert [word.is_known for word in read.words].count(False) == 5
    assert (read.cut, read.has_start) == (0, True)


def test_a_newswire_read_back_from_its_text_has_its_ids(generated):
    for row in range(0, len(generated.labels), 50):
        read = newswire.read(generated.text(row), generated, 300)
        assert list(read.ids) == generated.sequence(row)[-300:].tolist()


@pytest.mark.parametrize(
    ("words", "cut", "has_start"), [(9, 0, True), (10, 0, False), (11, 1, False), (30, 20, False)]
)
def test_long_newswires_lose_their_beginning(store, words, cut, has_start):
    data = prepared(store)
    text = " ".join(f"word{i}" for i in range(words))
    read = newswire.read(text, data, 10)
    assert (read.cut, read.has_start) == (cut, has_start)
    whole = [START, *(data.words.index(f"word{i}") for i in range(words))]
    assert list(read.ids) == whole[-10:]


@pytest.mark.parametrize(
    ("text", "message"), [("", "no word"), (" \n.,!", "no word"), ("a" * 100_001, "100,001 characters")]
)
def test_what_is_no_newswire_is_refused(store, text, message):
    with pytest.raises(ConfigError, match=message):
        newswire.read(text, prepared(store), 10)


# The file, and what can be asked


def test_predictions_come_back_as_they_were(store):
    data = prepared(store)
    run = finished_run(store)
    made = evaluated(store, run, data)
    file = predictions.predicted(store.checkpoints(run.id), order(run, "best"))
    found = predictions.read(file, data)
    assert found.probabilities.dtype == np.float32
    np.testing.assert_array_equal(found.probabilities, made.probabilities)
    np.testing.assert_array_equal(found.labels, made.labels)
    assert list(file.parent.iterdir()) == [file]
    predictions.write(Predictions(made.labels[::-1], made.probabilities), file)
    with pytest.raises(DatasetError, match="have changed"):
        predictions.read(file, data)
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(StoreError, match="cannot be read"):
        predictions.read(file, data)
    store.delete([run.id])
    assert not file.exists()


def test_which_model_is_asked(store):
    run = finished_run(store)
    assert order(run, "best")["epoch"] == 3
    assert order(run, "last")["epoch"] == 10
    # The same epoch trained again after a rewind is another model.
    before = predictions.predicted(store.home, order(run, "last"))
    store.rewind(run, 10)
    assert predictions.predicted(store.home, order(store.job(run.id), "last")) != before
    never = finished_run(store)
    store.report(never, checkpoint={"epochs": 10, "best_epoch": None, "best_val_loss": None})
    with pytest.raises(RunStateError, match="never was a finite number"):
        order(store.job(never.id), "best")
    with pytest.raises(RunStateError, match="is running"):
        order(running_run(store, epochs=2), "last")
    imported = store.add_import("elsewhere", {"file": "log.csv", "classes": None}, [], None)
    with pytest.raises(RunStateError, match="was imported"):
        order(store.job(imported), "best")
    job_id = store.submit(Kind.TRAIN, {})
    store.request_stop(job_id)
    with pytest.raises(RunStateError, match="no model to evaluate"):
        order(store.job(job_id), "best")


# A real run against plain Keras

_PLAIN = """
import json, sys
import keras, numpy as np, tensorflow as tf
path, rows, target = sys.argv[1:]
rows, target = np.load(rows), int(target)
model = keras.models.load_model(path)
predicted = model.predict(rows, verbose=0)
x = rows[:1]
embedding = model.layers[1]
end, start = embedding(x), embedding(np.zeros_like(x))
total = 0.0
steps = 400
for k in range(steps):
    point = start + (k + 0.5) / steps * (end - start)
    with tf.GradientTape() as tape:
        tape.watch(point)
        value = point
        for layer in model.layers[2:]:
            value = layer(value)
        value = value[0, target]
    total = total + tape.gradient(value, point)
attributions = tf.reduce_sum((end - start) * total / steps, axis=-1)[0]
empty = model.predict(np.zeros_like(x), verbose=0)[0, target]
np.save(sys.argv[2] + ".out.npy", predicted)
print(json.dumps({"attributions": np.asarray(attributions).tolist(), "empty": float(empty)}))
"""


def test_a_real_run_against_plain_keras(home, store, launcher, tmp_path):
    """The figures, the probabilities and the words' contributions, from the exported model alone."""
    values = {
        "layout": {"strategy": "single", "logical_devices": 1},
        "data": {"dataset": "synthetic", "max_len": 40},
        "model": {"dropout": 0.2},
        # So fast that the best epoch is not the last.
        "training": {"epochs": 4, "batch_size": 256, "learning_rate": 0.03},
    }
    run = ended(store, store.submit(Kind.TRAIN, values))
    assert run.status is Status.COMPLETED, run.error
    best = run.checkpoint["best_epoch"]
    assert best < 4
    told = json_of(command("evaluate", run.id, "--json", home=home))
    assert (told["epoch"], told["examples"], told["majority_class"]) == (best, 2246, "synthetic topic 04")
    assert told["majority_accuracy"] == pytest.approx(813 / 2246)
    # What the run itself measured after that epoch.
    measured = {
        row.name: row.value
        for row in store.metrics(run, per="epoch")
        if row.epoch == best - 1 and row.split == "validation"
    }
    assert told["accuracy"] == pytest.approx(measured["sparse_categorical_accuracy"], abs=1e-6)
    assert told["top_5_accuracy"] == pytest.approx(measured["sparse_top_k_categorical_accuracy"], abs=1e-6)
    assert told["expected_calibration_error"] == pytest.approx(
        measured["expected_calibration_error"], abs=1e-5
    )

    data = corpora.load(home, "synthetic")
    x, labels = data.padded("test", 40), data.split_labels("test")
    found = predictions.read(predictions.predicted(store.checkpoints(run.id), order(run, "best")), data)
    ids = data.sequence(data.rows("test")[0])[-40:].tolist()
    asked = question(order(run, "best"), ids)
    answer = ended(store, store.submit(Kind.CLASSIFY, asked))
    assert answer.status is Status.COMPLETED, answer.error

    model = json_of(
        command("export", run.id, "--format", "keras", "--output", str(tmp_path), "--json", home=home)
    )["file"]
    np.save(tmp_path / "x.npy", x)
    target = answer.result["class"]
    done = subprocess.run(
        [sys.executable, "-c", _PLAIN, model, str(tmp_path / "x.npy"), str(target)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    plain = np.load(tmp_path / "x.npy.out.npy")
    np.testing.assert_allclose(found.probabilities, plain, atol=1e-6)
    # Scores of each class, counted one by one.
    taken = plain.argmax(axis=1)
    for row in told["classes"]:
        i = row["class"]
        hits = sum(1 for a, b in zip(labels, taken, strict=True) if a == b == i)
        assert row["support"] == (labels == i).sum()
        assert row["predicted"] == (taken == i).sum()
        assert row["recall"] == pytest.approx(hits / max((labels == i).sum(), 1))
        assert row["precision"] == pytest.approx(hits / max((taken == i).sum(), 1))
    assert told["macro_f1"] == pytest.approx(np.mean([row["f1"] for row in told["classes"]]))

    np.testing.assert_allclose(answer.result["probabilities"], plain[0], atol=1e-6)
    recomputed = json.loads(done.stdout.splitlines()[-1])
    mine = np.array(answer.result["attributions"])
    np.testing.assert_allclose(mine, recomputed["attributions"][40 - len(ids) :], atol=2e-3)
    assert answer.result["empty"] == pytest.approx(recomputed["empty"], abs=1e-6)
    # Completeness: the words make the whole difference from an empty newswire.
    difference = plain[0, target] - recomputed["empty"]
    assert abs(difference) > 0.05
    assert mine.sum() == pytest.approx(difference, abs=5e-3)
    assert np.abs(mine).max() > 0.01


def test_a_deterministic_runs_model_is_asked_in_the_precision_it_was_trained_in(store, run_job):
    values = {
        "layout": {"strategy": "single", "logical_devices": 1},
        "data": {"dataset": "synthetic", "max_len": 40},
        "training": {"epochs": 1, "batch_size": 512, "deterministic": True},
    }
    run = run_job(Kind.TRAIN, values)
    assert run.status is Status.COMPLETED, run.error
    answer = run_job(Kind.CLASSIFY, question(order(run, "last"), [1, 5, 9, 14]))
    assert answer.status is Status.COMPLETED, answer.error
    probabilities = np.array(answer.result["probabilities"])
    assert (probabilities != probabilities.astype(np.float32)).any()
    assert run_job(Kind.EVALUATE, order(run, "last")).status is Status.COMPLETED


def test_a_run_whose_checkpoint_is_gone_fails_with_words(store, run_job):
    run = finished_run(store)
    job = run_job(Kind.EVALUATE, order(run, "best"))
    assert job.status is Status.FAILED
    assert "best model, of epoch 3, cannot be read" in job.error["message"]


def test_command_line_tells_a_table_and_refuses(home, store):
    data = prepared(store)
    run = finished_run(store)
    evaluated(store, run, data)
    done = command("evaluate", run.id, home=home)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == f"Run {run.id}, best epoch 3, on 60 newswires"
    assert any(line.startswith("always earn") for line in lines)
    assert len([line for line in lines if line.endswith("%")]) == 6 + 5
    refused = command("evaluate", running_run(store, epochs=1).id, home=home)
    assert (refused.returncode, "is running" in refused.stderr) == (1, True)


# The page


def page(show, **query):
    return show("pages/evaluate.py", **query)


def test_page_without_runs_says_what_to_do(show):
    app = page(show)
    assert "No run has been trained yet" in texts(app)
    assert "Start a run on the page Training" in [link.proto.label for link in app.get("page_link")]


def test_page_without_a_chosen_run_asks_for_one(show, store):
    finished_run(store)
    assert "Choose a run" in texts(page(show))


def test_page_of_a_deleted_run_offers_the_others(show, store):
    finished_run(store)
    app = page(show, run="gone0000")
    assert "There is no run 'gone0000'" in texts(app)
    assert len(app.selectbox(key="chooser").options) == 1


@pytest.mark.parametrize("state", ["running", "imported", "stopped"])
def test_page_of_a_run_without_a_model_says_why(show, store, state):
    if state == "running":
        run_id, words = running_run(store, epochs=2).id, "once it has ended"
    elif state == "imported":
        run_id = store.add_import("elsewhere", {"file": "log.csv", "classes": None}, [], None)
        words = "was imported"
    else:
        run_id, words = store.submit(Kind.TRAIN, {}), "no model to evaluate"
        store.request_stop(run_id)
    assert words in texts(page(show, run=run_id))
    assert not store.jobs(kinds=[Kind.EVALUATE])


def test_page_asks_an_engine_once_and_shows_its_stage(show, store):
    prepared(store)
    run = finished_run(store)
    page(show, run=run.id)
    app = page(show, run=run.id)
    (job,) = store.jobs(kinds=[Kind.EVALUATE])
    assert job.config == order(run, "best")
    assert f"Evaluating run {run.id}: waiting" in app.get("progress")[-1].proto.text
    claim(store, [Kind.EVALUATE], "none")
    store.report(job, phase="predicting", progress={"done": 512, "of": 2246})
    app = page(show, run=run.id)
    assert "predicting, 512 of 2,246 newswires" in app.get("progress")[-1].proto.text
    store.finish(job.id, Status.FAILED, error=TrainingError("The checkpoint is damaged.", "Try the other."))
    app = page(show, run=run.id)
    assert "The checkpoint is damaged." in texts(app)
    app.button(key=f"evaluate_again_{run.id}").click().run()
    assert len(store.jobs(kinds=[Kind.EVALUATE])) == 2


def test_page_of_an_evaluated_run(show, store):
    data = prepared(store)
    run = finished_run(store)
    made = evaluated(store, run, data)
    found = evaluate(made.probabilities, made.labels, data.split_labels("train"))
    app = page(show, run=run.id)
    assert not store.jobs(kinds=[Kind.EVALUATE])
    metrics = {metric.label: metric.value for metric in app.metric}
    assert metrics["Accuracy"] == f"{100 * found.accuracy:.1f} %"
    assert metrics["Macro F1"] == f"{100 * found.macro_f1:.1f} %"
    assert metrics["Majority class"] == "20.0 %"
    table = app.dataframe[0].value
    assert set(table["Topic"]) == set(data.class_names)
    assert table.set_index("Topic")["f1"]["acq"] == pytest.approx(100 * found.scores[1].f1)
    drawn = charts(app)
    (matrix,) = (drawn[title] for title in drawn if title.startswith("Confusion matrix"))
    assert matrix["clickable"]
    assert any(title.startswith("Reliability diagram") for title in drawn)
    assert len(matrix["figure"]["data"][0]["x"]) == 5
    # The most frequent mistake is open, and other cells are two selectboxes away.
    mistakes = found.confusion - np.diag(found.confusion.diagonal())
    true, answer = divmod(int(mistakes.argmax()), 5)
    assert (app.selectbox(key="cell.true").value, app.selectbox(key="cell.answer").value) == (true, answer)
    app.selectbox(key="cell.true").set_value(2).run()
    app.selectbox(key="cell.answer").set_value(2).run()
    count = int(found.confusion[2, 2])
    assert f"**{count} newswires of crude recognised**" in texts(app)
    row = int(cell(found, made.probabilities, made.labels, 2, 2)[0])
    assert f"Test newswire {row}: crude **{100 * made.probabilities[row, 2]:.1f} %**" in texts(app)


def test_a_long_newswire_of_a_cell_says_what_is_cut(show, store):
    data = prepared(store)
    run = finished_run(store)
    made = evaluated(store, run, data)
    row = int(np.argmax(data.lengths[240:]))
    assert data.lengths[240 + row] > 301
    answer = int(made.probabilities[row].argmax())
    app = page(show, run=run.id, cell__true=str(int(made.labels[row])), cell__answer=str(answer))
    cut = data.lengths[240 + row] - 1 - 300
    assert f"the first {cut:,} are cut off" in texts(app)
    words = data.text(240 + row).split()
    assert f":gray[… ~~{' '.join(words[cut - 12 : cut])}~~] {' '.join(words[cut:])}" in texts(app)


def test_two_models_beside_each_other(show, store):
    data = prepared(store)
    runs = [finished_run(store), finished_run(store)]
    first, second = (evaluated(store, run, data, seed=seed) for seed, run in enumerate(runs))
    app = page(show, run=runs[0].id, compare=runs[1].id)
    figures = [
        evaluate(made.probabilities, made.labels, data.split_labels("train")) for made in (first, second)
    ]
    rows = app.table[0].value.set_index("Figure")
    titles = [f"{run.id}, best epoch 3" for run in runs]
    assert rows.loc["Accuracy", titles[1]] == f"{100 * figures[1].accuracy:.1f} %"
    assert (
        rows.loc["Accuracy", "Difference"]
        == f"{100 * (figures[1].accuracy - figures[0].accuracy):+.1f} points"
    )
    table = app.dataframe[0].value.set_index("Topic")
    expected = 100 * (figures[1].scores[0].f1 - figures[0].scores[0].f1)
    assert table["difference"]["earn"] == pytest.approx(expected)
    # Two runs may have the same name, and it is text whatever stands in it.
    for run in runs:
        store.rename(run.id, "*same*")
    app = page(show, run=runs[0].id, compare=runs[1].id)
    told = [column.replace("\\", "") for column in app.table[0].value.columns]
    assert told[1:3] == [f"*same* ({run.id}), best epoch 3" for run in runs]
    assert "*same*" not in list(app.table[0].value.columns)[1]
    for run in runs:
        store.rename(run.id, "")
    # The same run's other model can be the second one.
    evaluated(store, runs[0], data, which="last", seed=5)
    app = page(show, run=runs[0].id, compare=runs[0].id)
    assert list(app.table[0].value.columns)[1:3] == [titles[0], f"{runs[0].id}, last epoch 10"]
    # A choice can be changed, and taken back.
    app.selectbox(key="compare_chooser").set_value(runs[1].id).run()
    assert list(app.table[0].value.columns)[1:3] == titles
    app.selectbox(key="compare_chooser").set_value(None).run()
    assert app.session_state["compare"] == ""


def test_only_runs_with_a_model_are_offered_to_compare_with(show, store):
    data = prepared(store)
    run = finished_run(store)
    evaluated(store, run, data)
    stopped = store.submit(Kind.TRAIN, run.config)
    store.request_stop(stopped)
    app = page(show, run=run.id, compare=stopped)
    assert app.selectbox(key="compare_chooser").options == ["This run, its last epoch"]
    assert not app.error
    assert "Accuracy" in [metric.label for metric in app.metric]
    assert page(show, run=stopped).selectbox(key="compare_chooser").options == []


@pytest.mark.parametrize("wrong", ["no best epoch", "failed", "damaged", "asked"])
def test_whatever_is_wrong_with_the_second_model_the_first_stays(show, store, wrong):
    data = prepared(store)
    run, other = finished_run(store), finished_run(store)
    evaluated(store, run, data)
    words = ""
    if wrong == "no best epoch":
        store.report(other, checkpoint={"epochs": 2, "best_epoch": None, "best_val_loss": None})
        words = "has no best model"
    elif wrong == "failed":
        job = claimed(store, Kind.EVALUATE, order(other, "best"))
        store.finish(job.id, Status.FAILED, error=TrainingError("The checkpoint is gone.", "Try the other."))
        words = "The checkpoint is gone."
    elif wrong == "damaged":
        file = predictions.predicted(store.checkpoints(other.id), order(other, "best"))
        file.parent.mkdir(parents=True)
        file.write_bytes(b"nothing")
        words = "cannot be read"
    app = page(show, run=run.id, compare=other.id)
    assert words in texts(app)
    assert "Accuracy" in [metric.label for metric in app.metric]
    assert app.selectbox(key="compare_chooser").value == other.id


def recorded_answer(ids):
    return {
        "probabilities": [0.05, 0.6, 0.2, 0.1, 0.05],
        "class": 1,
        "attributions": [0.01, *([0.2, -0.1] * len(ids))[: len(ids) - 1]],
        "empty": 0.1,
    }


def test_a_typed_newswire(show, store):
    data = prepared(store)
    run = finished_run(store)
    evaluated(store, run, data)
    text = "word1 <script>alert(1)</script> *word2*"
    ids = list(newswire.read(text, data, 300).ids)
    answered(store, Kind.CLASSIFY, question(order(run, "best"), ids), recorded_answer(ids))
    app = page(show, run=run.id)
    app.text_area(key="newswire").set_value(text)
    app.button(key="classify").click().run()
    drawn = drawings(app)
    assert "<b>60.0 %</b>" in drawn.replace("\\u003c", "<").replace("\\u003e", ">")
    assert "<script" not in drawn
    assert "&lt;<mark" in drawn.replace("\\u003c", "<").replace("\\u003e", ">")
    assert "+20.00 percentage points" in drawn
    said = texts(app)
    assert "6 words. 4 words are not in the model's vocabulary" in said
    assert "Blue words speak for acq, orange ones against it" in said
    assert "Integrated gradients" in said
    for bad, words in (("  ..!", "There is no word"), ("x" * 100_001, "100,001 characters")):
        app.text_area(key="newswire").set_value(bad)
        app.button(key="classify").click().run()
        assert words in texts(app)


def test_a_long_typed_newswire_says_which_words_are_cut(show, store):
    data = prepared(store)
    run = finished_run(store)
    evaluated(store, run, data)
    text = " ".join(["word1", "word2"] * 200)
    ids = list(newswire.read(text, data, 300).ids)
    answer = {**recorded_answer(ids), "attributions": [0.001] * 300}
    answered(store, Kind.CLASSIFY, question(order(run, "best"), ids), answer)
    app = page(show, run=run.id)
    app.text_area(key="newswire").set_value(text)
    app.button(key="classify").click().run()
    assert "the first 100 words are cut off, from “word1” to “word2”." in texts(app)
    drawn = drawings(app)
    assert "The first 100 words are cut off" in drawn
    assert drawn.count("percentage points.") == 300


@pytest.mark.parametrize(
    "query", [{"cell__true": "99"}, {"which": "nonsense"}, {"compare": "gone"}, {"matrix__order": "7"}]
)
def test_nonsense_in_the_address(show, store, query):
    data = prepared(store)
    run = finished_run(store)
    evaluated(store, run, data)
    app = page(show, run=run.id, **query)
    assert "newswires of" in texts(app)


def test_a_question_that_failed_can_be_asked_again(show, store):
    data = prepared(store)
    run = finished_run(store)
    evaluated(store, run, data)
    asked = question(order(run, "best"), newswire.read("word1", data, 300).ids)
    job_id = store.submit(Kind.CLASSIFY, asked)
    store.finish(job_id, Status.FAILED, error=TrainingError("The answer is not a number.", "Try the last."))
    app = page(show, run=run.id)
    app.text_area(key="newswire").set_value("word1")
    app.button(key="classify").click().run()
    assert "The answer is not a number." in texts(app)
    app.button(key=f"typed_{run.id}_best_again").click().run()
    assert [job.status for job in store.jobs(kinds=[Kind.CLASSIFY])] == [Status.QUEUED, Status.FAILED]
    assert "The model is being asked" in texts(app)


def test_the_training_page_leads_here(show, store):
    run = finished_run(store)
    app = show("pages/training.py", run=run.id)
    assert "Evaluate this run's model" in [link.proto.label for link in app.get("page_link")]


def test_the_first_twelve_classes_of_46_fit_a_phone():
    random = np.random.default_rng(2)
    confusion = random.integers(0, 9, (46, 46))
    names = [f"topic {i}" for i in range(46)]
    order_ = ordered(confusion, "support")[:12]
    drawn = json.loads(
        confusion_matrix("run", names, confusion=confusion, shares=None, order=order_, chosen=(45, 45))
    )
    figure = drawn["figure"]
    assert figure["data"][0]["x"] == figure["data"][0]["y"] == [names[i] for i in order_]
    assert figure["data"][0]["text"][0] == [str(n) if n else "" for n in confusion[order_[0], order_]]
    assert ("shapes" in figure["layout"]) == (45 in order_)
    mistakes = confusion.sum() - confusion.trace()
    assert f"{confusion.sum():,} newswires, {mistakes:,} of them wrong" in drawn["label"]


@pytest.fixture
def hosted(show, monkeypatch):
    """Opens the page of a hosted dashboard that nobody signs in to."""
    monkeypatch.setenv("MIRRORBOARD_HOSTED", "1")
    yield lambda **query: page(show, **query)
    streamlit.set_option("client.showErrorDetails", "type")


def test_viewers_see_what_others_have_evaluated_and_ask_nothing(hosted, store):
    data = prepared(store)
    run = finished_run(store)
    app = hosted(run=run.id)
    assert "Nobody has asked the model about this yet. Viewers may not set an engine to work." in texts(app)
    evaluated(store, run, data)
    app = hosted(run=run.id)
    assert any(title.startswith("Confusion matrix") for title in charts(app))
    assert app.button(key="classify").disabled
    shown = next(toggle for toggle in app.toggle if toggle.label == "Words that mattered")
    shown.set_value(True).run()
    assert "Nobody has asked the model about this yet." in texts(app)
    assert "Try a newswire" in [header.value for header in app.subheader]
    assert not store.jobs(kinds=[Kind.EVALUATE, Kind.CLASSIFY])


def test_a_full_queue_is_told_and_the_page_goes_on(hosted, store, monkeypatch):
    monkeypatch.setenv("MIRRORBOARD_ROLE", "owner")
    data = prepared(store)
    run = finished_run(store)
    evaluated(store, run, data)
    for _ in range(3):
        Gate(store, Person(ANYBODY, Role.OWNER), None).submit(Kind.CHECK, {})
    app = hosted(run=run.id)
    next(toggle for toggle in app.toggle if toggle.label == "Words that mattered").set_value(True).run()
    assert "You have 3 other jobs queued" in texts(app)
    assert "Try a newswire" in [header.value for header in app.subheader]
    assert not store.jobs(kinds=[Kind.CLASSIFY])


@pytest.mark.parametrize("status", [Status.FAILED, Status.LOST, Status.STOPPED])
def test_what_did_not_come_to_an_end_is_asked_again_only_on_request(show, store, status):
    prepared(store)
    run = finished_run(store)
    job = claimed(store, Kind.EVALUATE, order(run, "best"))
    store.finish(job.id, status)
    app = page(show, run=run.id)
    assert f"The model could not be asked: the job was {status}." in texts(app)
    assert len(store.jobs(kinds=[Kind.EVALUATE])) == 1
    app.button(key=f"evaluate_again_{run.id}").click().run()
    assert len(store.jobs(kinds=[Kind.EVALUATE])) == 2


def test_predictions_that_were_deleted_are_made_again(show, store):
    data = prepared(store)
    run = finished_run(store)
    answered(store, Kind.EVALUATE, order(run, "best"), {"rows": len(data.rows("test"))})
    page(show, run=run.id)
    assert [job.status for job in store.jobs(kinds=[Kind.EVALUATE])] == [Status.QUEUED, Status.COMPLETED]
