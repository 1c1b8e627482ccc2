"""What makes a page live: series that grow and are thinned, and a view that reads what is new."""

from __future__ import annotations

import asyncio
import base64
import json
import math
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import streamlit
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from streamlit.testing.v1 import AppTest

from benchmarks.session import Seen, watch
from core import report
from core.dashboard import charts as charts_package
from core.dashboard import pulse
from core.dashboard.charts.series import MOST_POINTS, Series, shown, thinned
from core.dashboard.live import RunView, view
from core.dashboard.pulse import REFRESH_S, SHORTEST_S, Timetable
from core.dashboard.run_panel import PANEL, Drawn, news
from core.records import Job, Kind, LogLine, Metric, Status
from core.store import Store
from tests.browser_app import dashboard
from tests.conftest import wait_for
from tests.page_app import Open, charts, sound
from tests.recorded import claim, finished_run, running_run

LOSS = "Loss: training against validation"


def noise(count: int) -> NDArray[np.float64]:
    return np.random.default_rng(7).normal(2.0, 0.3, count)


def add_steps(store: Store, job: Job, values: NDArray[np.float64], first: int = 0) -> None:
    rows = [Metric("step", first + i, 0, "train", "loss", float(v), 0.0) for i, v in enumerate(values)]
    store.report(job, metrics=rows)


def column(values: Any) -> NDArray[Any]:
    """Numbers of a trace as the browser gets them."""
    return np.frombuffer(base64.b64decode(values["bdata"]), values["dtype"])


# Series


@given(
    values=st.lists(st.floats(-1e6, 1e6) | st.just(math.nan), max_size=80).map(np.array),
    cuts=st.lists(st.integers(0, 80), max_size=5).map(sorted),
)
def test_a_series_grows_in_portions_as_if_at_once(values: NDArray[np.float64], cuts: list[int]) -> None:
    series = Series()
    for portion in np.split(np.arange(len(values)), cuts):
        series.extend(portion, values[portion])
    np.testing.assert_array_equal(series.values, values)
    np.testing.assert_array_equal(series.steps, np.arange(len(values)))
    for at, mean in enumerate(series.smoothed):
        last = values[max(at - 14, 0) : at + 1]
        known = last[np.isfinite(last)]
        wanted = math.nan if math.isnan(values[at]) else known.mean()
        np.testing.assert_allclose(mean, wanted, rtol=1e-9, atol=1e-6)


def test_what_was_handed_out_stays_when_a_series_grows() -> None:
    series = Series()
    series.extend(np.arange(1_000), noise(1_000))
    before = series.values
    copy = before.copy()
    for _ in range(4):
        series.extend(np.arange(1_000), noise(1_000) + 9)
    np.testing.assert_array_equal(before, copy)
    assert len(series) == 5_000


@given(
    values=st.lists(st.floats(-1e6, 1e6) | st.just(math.nan), min_size=1, max_size=400).map(np.array),
    most=st.integers(24, 60),
)
def test_thinning_keeps_ends_extremes_and_gaps(values: NDArray[np.float64], most: int) -> None:
    places = thinned(values, most)
    assert len(places) <= most
    assert (np.diff(places) > 0).all()
    assert (places[0], places[-1]) == (0, len(values) - 1)
    finite = values[np.isfinite(values)]
    kept = values[places]
    if len(finite):
        assert np.nanmax(kept) == finite.max()
        assert np.nanmin(kept) == finite.min()
    gaps = int((np.diff(np.isnan(values).astype(int), prepend=0) == 1).sum())
    if gaps <= most // 8:
        assert int((np.diff(np.isnan(kept).astype(int), prepend=0) == 1).sum()) == gaps


def test_a_peak_and_a_gap_among_a_million_are_drawn() -> None:
    values = noise(1_000_000)
    values[333_333], values[777_777] = 50.0, math.nan
    places = thinned(values, MOST_POINTS)
    assert len(places) <= MOST_POINTS
    assert {333_333, 777_776, 777_777, 777_778} <= set(places.tolist())


def test_what_is_zoomed_into_comes_finer_and_the_rest_stays() -> None:
    values = noise(100_000)
    steps = np.arange(100_000)
    whole = shown(steps, values, None)
    places = shown(steps, values, (50_000, 50_500))
    # Every point of the part, with a neighbour on each side.
    assert set(range(49_999, 50_502)) <= set(places.tolist())
    outside = whole[(whole < 49_999) | (whole > 50_501)]
    assert set(outside.tolist()) <= set(places.tolist())
    assert len(places) <= 2 * MOST_POINTS
    assert len(shown(steps, values, (2e5, 3e5))) <= len(whole) + 2


# The view


def test_a_refresh_reads_only_what_is_new(store: Store) -> None:
    job = running_run(store, epochs=1)
    shown_run = RunView(store, job.id)
    asked: list[str] = []
    shown_run.refresh()
    seen = store.step_values(job)[-1][0]
    with store.read() as connection:
        connection.set_trace_callback(asked.append)
    try:
        add_steps(store, job, noise(3), first=281)
        shown_run._read_at = 0.0
        shown_run.refresh()
    finally:
        with store.read() as connection:
            connection.set_trace_callback(None)
    selects = [sql for sql in asked if "FROM metrics" in sql and "per = 'step'" in sql]
    assert selects, asked
    assert f"id > {seen} " in selects[0]
    assert len(shown_run._steps["loss"]) == 284


def test_the_version_changes_with_what_is_shown_and_not_with_a_heartbeat(store: Store) -> None:
    job = running_run(store, epochs=1)
    shown_run = RunView(store, job.id)

    def version() -> int:
        shown_run._read_at = 0.0
        shown_run.refresh()
        return shown_run.versions

    before = version()
    store.report(job)
    assert version() == before
    changes: list[dict[str, Any]] = [
        {"phase": "validating"},
        {"progress": {**job.progress, "step": 7}},
        {"metrics": [Metric("step", 281, 1, "train", "loss", 1.0, 0.0)]},
        {"logs": [LogLine(0.0, "info", "tensorflow", "A line.")]},
    ]
    for change in changes:
        store.report(job, **change)
        after = version()
        assert after != before, change
        before = after
    store.finish(job.id, Status.COMPLETED)
    assert version() != before


def test_a_chart_that_nothing_was_added_to_is_made_once(store: Store) -> None:
    job = running_run(store, epochs=2)
    shown_run = view(store, job.id)
    gap, loss = shown_run.gap("epoch", {}), shown_run.loss("epoch", {})
    add_steps(store, job, noise(1), first=2 * 281)
    shown_run._read_at = 0.0
    shown_run.refresh()
    assert shown_run.gap("epoch", {}) is gap
    again = shown_run.loss("epoch", {})
    assert again is not loss
    assert shown_run.loss("epoch", {}) is again


def test_the_log_keeps_its_newest_lines(store: Store) -> None:
    job = running_run(store, epochs=1)
    shown_run = view(store, job.id)
    store.report(job, logs=[LogLine(float(i), "info", "stderr", f"line {i}") for i in range(500)])
    shown_run._read_at = 0.0
    shown_run.refresh()
    assert [line.text for line in shown_run.log] == [f"line {i}" for i in range(300, 500)]


def test_a_log_grows_while_others_go_through_it(store: Store) -> None:
    job = running_run(store, epochs=1)
    shown_run = view(store, job.id)
    going_through = iter(shown_run.log)
    store.report(job, logs=[LogLine(0.0, "info", "stderr", "one more")])
    shown_run._read_at = 0.0
    shown_run.refresh()
    assert [line.text for line in going_through] == ["Using MirroredStrategy with devices"]
    assert shown_run.log[-1].text == "one more"


# What the charts are of


@pytest.mark.parametrize(("axis", "unit"), [("epoch", 1), ("step", 281)])
def test_a_run_that_is_ended_in_mid_epoch_shows_how_it_ended(
    store: Store, axis: charts_package.Axis, unit: int
) -> None:
    job = running_run(store, epochs=3)
    add_steps(store, job, noise(150), first=3 * 281)
    store.finish(job.id, Status.DIVERGED)
    for chart in (view(store, job.id).loss, view(store, job.id).gap):
        begin, end = json.loads(chart(axis, {}))["figure"]["layout"]["xaxis"]["range"]
        assert (begin, end) == (0, pytest.approx(4 * unit * 1.02)), chart


def test_epochs_from_elsewhere_are_drawn_where_they_are(store: Store) -> None:
    epochs = [{"epoch": 20 + i, "loss": 2.0 - 0.1 * i, "val_loss": 2.0 + 0.1 * i} for i in range(10)]
    run_id = report.add_import(store, epochs, file="later.csv")
    figure = json.loads(view(store, run_id).loss("epoch", {}))["figure"]
    assert figure["layout"]["xaxis"]["range"] == [19, pytest.approx(29.2)]
    drawn = [list(column(trace["x"])) for trace in figure["data"] if trace["x"]]
    assert drawn == [list(range(20, 30))] * 2
    best = next(note for note in figure["layout"]["annotations"] if "best epoch" in note["text"])
    assert (best["x"], best["xanchor"]) == (20, "left")


def test_no_more_epochs_are_recommended_to_a_run_that_has_diverged(store: Store) -> None:
    job = running_run(store, epochs=3)
    shown_run = view(store, job.id)
    assert "lowest at epoch 3" not in shown_run.diagnosis.sentence
    store.finish(job.id, Status.DIVERGED)
    shown_run.refresh()
    told = "The training diverged in epoch 4. Validation loss was lowest at epoch 3 (1.523)."
    assert shown_run.diagnosis.sentence == told
    assert report.report(store, job.id)["diagnosis"]["verdict"] == "diverged"
    assert told in shown_run.loss("epoch", {}).decode()


# The pulse


def test_looks_are_spread_evenly_and_slow_down_as_viewers_grow() -> None:
    timetable = Timetable()
    first = [timetable.wait_s(now=100.0) for _ in range(100)]
    assert first[0] == SHORTEST_S
    assert np.diff(first) == pytest.approx(REFRESH_S)
    # A hundred viewers come around in two seconds; each waits for its turn, never longer.
    due = sorted(100.0 + wait_s for wait_s in first)
    again = [timetable.wait_s(now=now) for now in due]
    assert again == pytest.approx([100 * REFRESH_S] * 100)
    # When most have gone, the others look every second again.
    assert timetable.wait_s(now=due[-1] + 100 * REFRESH_S) == SHORTEST_S
    assert timetable.wait_s(now=1e3, least_s=0.2) == pytest.approx(0.2)


def test_looks_that_take_long_are_further_apart() -> None:
    timetable = Timetable()
    for _ in range(200):  # so many that their mean is known
        timetable.wait_s(100.0, took_s=0.05)
    timetable.wait_s(100.0)  # a whole page, which says nothing about looks
    assert np.diff([timetable.wait_s(100.0, took_s=0.05) for _ in range(50)]) == pytest.approx(0.05, rel=1e-3)
    for _ in range(200):  # a machine that slept keeps nobody waiting for hours
        timetable.wait_s(100.0, took_s=9_999.0)
    apart = timetable.wait_s(100.0) - timetable.wait_s(100.0)
    assert -apart == pytest.approx(SHORTEST_S, rel=1e-3)
    assert timetable.wait_s(1e4) == SHORTEST_S


LIVE_PAGE = """
import streamlit as st
from core.dashboard.pulse import follow

def news():
    st.session_state["looks"] += 1
    return []

st.session_state.setdefault("page", "Runs")
st.session_state.setdefault("looks", 0)
follow(news)
"""


def test_a_page_that_has_been_left_looks_for_no_news(monkeypatch: pytest.MonkeyPatch) -> None:
    def timer(key: str, data: dict[str, Any], on_due_change: Callable[[], None]) -> None:
        streamlit.button("It is due", key, on_click=on_due_change)

    monkeypatch.setattr(pulse, "_ask", timer)
    app = sound(AppTest.from_string(LIVE_PAGE).run())
    sound(app.button("pulse_timer").click().run())
    assert app.session_state["looks"] == 1
    app.session_state["page"] = "Training"
    sound(app.button("pulse_timer").click().run())
    assert app.session_state["looks"] == 1


def test_only_so_many_runs_are_kept(store: Store) -> None:
    runs = [finished_run(store, epochs=1).id for _ in range(17)]
    kept = [view(store, run) for run in runs[:16]]
    assert [view(store, run) for run in runs[:16]] == kept
    view(store, runs[16])
    assert view(store, runs[15]) is kept[15]
    assert view(store, runs[0]) is not kept[0]


def test_only_what_has_changed_is_drawn_anew(store: Store) -> None:
    job = running_run(store, epochs=1)
    shown_run = view(store, job.id)
    drawn = Drawn(shown_run.versions)

    def look() -> list[str]:
        shown_run._read_at = 0.0
        shown_run.refresh()
        found = news(shown_run, drawn)
        if PANEL in found:  # which is drawn
            drawn.versions = shown_run.versions
        return found

    assert look() == []
    store.report(job)
    assert look() == []
    add_steps(store, job, noise(1), first=281)
    assert look() == ["progress", "batches", "machine"]
    assert look() == []
    store.report(job, metrics=[Metric("epoch", 561, 1, "train", "loss", 1.0, 0.0)])
    assert look() == ["progress", "batches", "machine", "figures", "strips", "saved"]
    store.report(job, logs=[LogLine(0.0, "info", "tensorflow", "A line.")])
    assert look() == ["log"]
    store.request_stop(job.id)
    assert look() == [PANEL]
    waiting = view(store, store.submit(Kind.TRAIN, job.config))
    seen = Drawn(waiting.versions)
    # Its place in the queue depends on other runs.
    assert news(waiting, seen) == ["progress"]


def test_the_warning_of_silence_goes_when_the_engine_is_heard_again(store: Store) -> None:
    job = running_run(store, epochs=1)
    shown_run = view(store, job.id)
    drawn = Drawn(shown_run.versions)
    assert news(shown_run, drawn) == []
    shown_run._heard_at -= 60
    assert news(shown_run, drawn) == ["progress"]
    store.report(job)
    shown_run._read_at = 0.0
    shown_run.refresh()
    assert news(shown_run, drawn) == ["progress"]
    assert news(shown_run, drawn) == []


def test_a_run_that_is_about_to_begin_is_looked_at_more_often(store: Store) -> None:
    behind = view(store, store.submit(Kind.TRAIN, {}))
    elsewhere = store.path.rename(store.home / "elsewhere")
    assert behind.is_starting  # asked outside of any boundary, so it must not ask the store
    elsewhere.rename(store.path)
    behind._heard_at -= 60.0  # no engine has come
    assert not behind.is_starting
    first = view(store, behind.job.id)
    engine_id = "engine"
    claimed_run = claim(store, [Kind.TRAIN], engine_id)
    assert claimed_run is not None
    waiting = view(store, store.submit(Kind.TRAIN, {}))
    assert not waiting.is_starting
    first._heard_at, first._read_at = time.monotonic(), 0.0
    first.refresh()
    assert first.is_starting
    add_steps(store, claimed_run, noise(1), first=0)
    first._read_at = 0.0
    first.refresh()
    assert not first.is_starting


def test_a_page_with_nothing_new_is_sent_nothing(store: Store) -> None:
    job = running_run(store, epochs=2)
    seen, over = Seen(), threading.Event()
    with dashboard(store.home, MIRRORBOARD_WATCH="1") as address:
        viewer = threading.Thread(
            target=lambda: asyncio.run(watch(address.removeprefix("http://"), job.id, seen, over.is_set))
        )
        viewer.start()
        try:
            # The second look is after all of the page has come.
            wait_for(lambda: len(seen.before_look) >= 2, 30, "the second look for news")
            figures = len(seen.figures)
            wait_for(lambda: len(seen.before_look) >= 4, 30, "two more")
            assert len(seen.figures) == figures
            # The beginning and the end of a run of the script, and when to look again.
            assert max(np.diff(seen.before_look[1:4])) < 8
            add_steps(store, job, noise(1), first=2 * 281)
            wait_for(lambda: seen.figures[-1][1] == 2 * 281, 30, "the new step on the chart")
            store.finish(job.id, Status.COMPLETED)
            wait_for(lambda: not seen.is_live, 30, "the last look")
        finally:
            over.set()
            viewer.join()


# The page


def timers(app: AppTest) -> int:
    return sum(element.proto.component_name == "mirrorboard_pulse" for element in app.get("bidi_component"))


def test_a_run_that_is_over_is_not_looked_at_again(show: Open, store: Store) -> None:
    job = running_run(store, epochs=2)
    assert timers(show("pages/training.py", run=job.id)) == 1
    store.finish(job.id, Status.COMPLETED)
    assert timers(show("pages/training.py", run=job.id)) == 0


def zoom(app: Any, key: str, start: float, end: float, revision: str) -> None:
    app.session_state[key] = {"zoom": {"start": start, "end": end, "revision": revision}}


def test_a_zoomed_chart_is_sent_finer_until_another_axis_is_chosen(show: Open, store: Store) -> None:
    job = running_run(store, epochs=2)
    add_steps(store, job, noise(20_000), first=2 * 281)
    store.finish(job.id, Status.COMPLETED)
    app = show("pages/training.py", run=job.id)

    def batches() -> NDArray[Any]:
        return column(charts(sound(app))[LOSS]["figure"]["data"][0]["x"])

    assert charts(app)[LOSS]["thinned"]
    assert charts(app)["Generalization gap: validation loss minus training loss"]["thinned"] is False
    whole = batches()
    assert len(whole) <= MOST_POINTS
    zoom(app, "loss_chart", 10, 11, f"{job.id} epoch")
    app.run()
    finer = batches()
    inside = (finer >= 10) & (finer <= 11)
    assert inside.sum() == 282
    assert set(whole[(whole < 9.9) | (whole > 11.1)]) <= set(finer)
    app.button_group(key="axis").set_value("step").run()
    assert len(batches()) <= MOST_POINTS
    for nonsense in (None, {"zoom": "x"}, {"zoom": {"start": 5, "end": 5, "revision": ""}}):
        app.session_state["loss_chart"] = nonsense or {}
        app.run()
        assert len(batches()) <= MOST_POINTS


def test_all_points_are_sent_when_somebody_saves_them(show: Open, store: Store) -> None:
    job = running_run(store, epochs=2)
    values = noise(5_000)
    add_steps(store, job, values, first=2 * 281)
    store.finish(job.id, Status.COMPLETED)
    app = show("pages/training.py", run=job.id)
    assert "csv" not in charts(app)[LOSS]
    app.session_state["loss_chart"] = {"csv": 123}
    app.run()
    sent = charts(sound(app))[LOSS]
    assert sent["asked"] == 123
    assert sent["file"] == f"{job.id}-loss"
    assert len(column(sent["figure"]["data"][0]["y"])) <= MOST_POINTS
    np.testing.assert_array_equal(column(sent["csv"]["figure"]["data"][0]["y"])[2 * 281 :], values)


def test_files_are_named_for_the_run_and_the_chart(show: Open, store: Store) -> None:
    job = finished_run(store)
    app = show("pages/training.py", run=job.id)
    assert {content["file"] for content in charts(app).values()} == {
        f"{job.id}-{chart}" for chart in ("loss", "accuracy", "generalization-loss", "generalization-gap")
    }
    json.dumps(charts(app), allow_nan=False)
