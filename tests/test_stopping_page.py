"""The training page's account of stopping: lines, thresholds, what would have happened, its price."""

from __future__ import annotations

from core.records import Metric
from core.store import Store
from tests.page_app import Open, charts, sound, texts
from tests.recorded import STEPS, finished_run, rows_of, running_run

GL = "Generalization loss GL: percent above the lowest so far"
LOSS = "Loss: training against validation"


def test_what_would_have_happened_on_the_reference(show: Open, store: Store) -> None:
    app = show("pages/training.py", run=finished_run(store).id)
    table = app.table[0].value.set_index("Stop rule")
    assert table["Stops after epoch"].to_dict() == {
        "GL_2": "4",
        "GL_5": "4",
        "GL_20": "5",
        "PQ_0.5 (k=5)": "never",
        "PQ_0.5 (k=2)": "8",
        "UP_1 (k=5)": "10",
        "UP_2 (k=5)": "never",
        "UP_1 (k=2)": "4",
        "UP_2 (k=2)": "6",
        "patience_2": "5",
        "patience_3": "6",
        "patience_5": "8",
    }
    assert table.loc["GL_20"].tolist()[1:] == ["1.879", "61.6 %", "5", "20 s"]
    assert table.loc["PQ_0.5 (k=5)"].tolist()[1:] == ["2.670", "60.8 %", "0", "0.0 s"]
    assert "**7 epochs and 28 s** after the best epoch; validation loss changed by **+75 %**" in texts(app)


def test_a_run_that_goes_on_improving_has_paid_nothing(show: Open, store: Store) -> None:
    app = show("pages/training.py", run=running_run(store, epochs=3).id)
    assert set(app.table[0].value["Stops after epoch"]) == {"never"}
    assert "The last epoch is the best one so far: no rule would have stopped before it." in texts(app)


def test_rules_that_fire_in_a_bump_would_have_cost_the_best_epoch(show: Open, store: Store) -> None:
    job = running_run(store, epochs=5)
    row = Metric("epoch", 6 * STEPS - 1, 5, "validation", "loss", 1.4, 0.0)
    store.report(job, metrics=[*(row for row in rows_of(5) if row.name != "loss"), row])
    app = show("pages/training.py", run=job.id)
    assert app.table[0].value.set_index("Stop rule").loc["GL_2", "Epochs saved"] == "2"
    assert "The last epoch is the best one so far: stopping earlier would have cost it." in texts(app)


def test_lines_are_chosen_and_coinciding_ones_share_a_label(show: Open, store: Store) -> None:
    app = show("pages/training.py", run=finished_run(store).id, stops='["UP", "patience"]')
    notes = [note["text"] for note in charts(app)[LOSS]["figure"]["layout"]["annotations"]]
    assert notes[:-1] == ["UP_1 (k=2)", "patience_2", "UP_2 (k=2), patience_3", "patience_5", "UP_1 (k=5)"]
    app.pills(key="stops").set_value([]).run()
    assert len(charts(sound(app))[LOSS]["figure"]["layout"]["annotations"]) == 1


def test_thresholds_are_the_viewers(show: Open, store: Store) -> None:
    app = show("pages/training.py", run=finished_run(store).id, stop__gl="50")
    shown = charts(app)
    assert "the thresholds are 50 %" in shown[GL]["label"]
    assert shown[LOSS]["figure"]["layout"]["annotations"][0]["text"] == "GL_50"
    assert app.table[0].value["Stop rule"].tolist()[0] == "GL_50"
    app.text_input(key="stop.gl").set_value("five").run()
    assert "'five' is not among them. Write up to 5 numbers from 0 to 1,000,000" in texts(app)
    assert "the thresholds are 2, 5, 20 %" in charts(sound(app))[GL]["label"]
