"""The dashboard in a real browser: cold links, a run from start to stop, phones."""

from __future__ import annotations

import re
import shutil
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Browser, Page, WebSocketRoute, expect
from streamlit.proto.BackMsg_pb2 import BackMsg

from core.config import RunConfig
from core.errors import DownloadFailed
from core.records import Kind, LogLine, Metric, Status
from core.store import Store
from tests.browser_app import CHROMIUM, PAGES, PHONE, chromium, dashboard, heading, settled, tab
from tests.conftest import LONG, wait_for
from tests.recorded import MACHINE, answered, claimed, finished_run, prepared, rows_of, running_run

pytestmark = pytest.mark.skipif(not shutil.which(CHROMIUM), reason=f"needs {CHROMIUM}")

WATCH = {"MIRRORBOARD_WATCH": "1"}
OFFLINE = {"HTTPS_PROXY": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9"}
"""A proxy where nobody listens: Reuters cannot be fetched."""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Store]]:
    """A dashboard on a store with a completed and a failed run, which starts no engines."""
    home = tmp_path_factory.mktemp("recorded") / "home"
    store = Store(home)
    prepared(store)
    finished_run(store)
    finished_run(store, epochs=2, status=Status.FAILED)
    with dashboard(home, **WATCH) as address:
        yield address, store
    store.close()


@pytest.fixture(scope="module")
def working(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Store]]:
    """A dashboard that really trains, on a machine that cannot reach Reuters."""
    folder = tmp_path_factory.mktemp("working")
    with dashboard(folder / "home", KERAS_HOME=str(folder / "keras"), **OFFLINE) as address:
        store = Store(folder / "home")
        yield address, store
        for job in store.jobs(kinds=[Kind.TRAIN]):
            store.request_stop(job.id)
        store.close()


def chart(page: Page, key: str, expression: str) -> Any:
    """Something of a chart's node, as plotly.js has it."""
    return page.evaluate(
        f"(key) => {{ const node = document.querySelector(`.st-key-${{key}} .plot`); return {expression}; }}",
        key,
    )


def points(page: Page) -> int:
    """Batches on the loss chart."""
    return int(chart(page, "loss_chart", "node?._fullData?.[0]?.x?.length ?? 0"))


@pytest.mark.parametrize("path", PAGES)
def test_cold_deep_link(browser: Browser, tmp_path: Path, path: str) -> None:
    """The first visit of a fresh server may be to any page; it has the whole frame."""
    with dashboard(tmp_path / "home", **WATCH) as address, tab(browser) as page:
        page.goto(f"{address}/{path}")
        heading(page, PAGES[path])
        links = page.get_by_test_id("stSidebar").get_by_test_id("stPageLink")
        expect(links).to_have_text(
            [re.compile(f"{name}$") for name in ("Start", *list(PAGES.values())[1:])],
            timeout=20_000,
        )


def test_settings_survive_pages_and_reload(browser: Browser, recorded: tuple[str, Store]) -> None:
    address, _ = recorded
    with tab(browser) as page:
        page.goto(f"{address}/model")
        heading(page, "Model")
        field = page.locator(".st-key-model-embedding_size input")
        field.fill("11")
        field.press("Enter")
        expect(page).to_have_url(re.compile("model.embedding_size=11"))
        page.get_by_role("link", name="4. Training").click()
        heading(page, "Training")
        expect(page).to_have_url(re.compile("training.*model.embedding_size=11"))
        page.reload()
        heading(page, "Training")
        page.get_by_role("link", name="3. Model").click()
        heading(page, "Model")
        expect(field).to_have_value("11")
        page.go_back()
        heading(page, "Training")


def test_values_out_of_range_in_the_address(browser: Browser, recorded: tuple[str, Store]) -> None:
    address, _ = recorded
    with tab(browser) as page:
        page.goto(f"{address}/training?training.epochs=-4&training.seed=abc&run=nobody")
        heading(page, "Training")
        expect(page.get_by_text("There is no run 'nobody'")).to_be_visible()
        page.get_by_text("New run").click()
        expect(page.locator(".st-key-training-epochs input")).to_have_value("1")
        expect(page.locator(".st-key-training-seed input")).to_have_value("1")


def test_finished_run_is_annotated_and_quiet(browser: Browser, recorded: tuple[str, Store]) -> None:
    address, store = recorded
    run = store.jobs(kinds=[Kind.TRAIN], statuses=[Status.COMPLETED])[0]
    with tab(browser) as page:
        page.goto(f"{address}/training?run={run.id}")
        heading(page, "Training")
        expect(page.get_by_text("the model is memorising")).to_be_visible()
        page.wait_for_function("document.querySelector('.st-key-loss_chart .plot')?._fullLayout")
        notes = chart(page, "loss_chart", "node.layout.annotations.map((note) => note.text)")
        assert notes[:2] == ["GL_2, GL_5", "GL_20"]
        assert "best epoch 3" in notes[2]
        shapes = chart(page, "loss_chart", "node.layout.shapes.map((shape) => [shape.x0, shape.x1])")
        assert sorted(shapes) == [[3, 3], [4, 4], [4, 10], [5, 5]]
        label = page.locator(".st-key-loss_chart figure").get_attribute("aria-label")
        assert label is not None
        assert "After epoch 10: training 0.262, validation 2.670" in label
        page.locator(".st-key-axis").get_by_text("Steps").click()
        page.wait_for_function(
            "document.querySelector('.st-key-loss_chart .plot').layout.xaxis.title.text === 'Training step'"
        )
        assert 3 * 281 in chart(page, "loss_chart", "node.layout.shapes.map((shape) => shape.x0)")


def test_how_a_run_is_looked_at_lives_in_the_address(browser: Browser, recorded: tuple[str, Store]) -> None:
    address, store = recorded
    run = finished_run(store)
    with tab(browser) as page:
        page.goto(f"{address}/training?run={run.id}&axis=step")
        settled(page)
        page.locator(".st-key-axis").get_by_text("Epochs").click()
        expect(page).to_have_url(re.compile(r"^(?!.*axis=)"))
        page.locator(".st-key-axis").get_by_text("Steps").click()
        expect(page).to_have_url(re.compile("axis=step"))
        page.locator(".st-key-stops").get_by_text("UP").click()
        expect(page).to_have_url(re.compile("stops="))
        settled(page)
        page.reload()
        settled(page)
        for name, chosen in (("axis", ["Steps"]), ("stops", ["GL", "UP"])):
            buttons = page.locator(f".st-key-{name} button[data-selected=true]")
            expect(buttons).to_have_text(chosen)


def test_failed_run(browser: Browser, recorded: tuple[str, Store]) -> None:
    address, store = recorded
    run = store.jobs(kinds=[Kind.TRAIN], statuses=[Status.FAILED])[0]
    with tab(browser) as page:
        page.goto(f"{address}/training?run={run.id}")
        heading(page, "Training")
        expect(page.get_by_text("Out of memory.")).to_be_visible()
        expect(page.get_by_text("Use a smaller batch.")).to_be_visible()
        expect(page.get_by_text("Traceback of the engine")).not_to_be_visible()
        page.get_by_text("Details for developers").click()
        expect(page.get_by_text("Traceback of the engine")).to_be_visible()
        wait_for(lambda: points(page) == 2 * 281, 10, "the curve of what was recorded")


def test_recent_run_opens_from_start(browser: Browser, recorded: tuple[str, Store]) -> None:
    address, store = recorded
    newest = store.jobs(kinds=[Kind.TRAIN])[0]
    with tab(browser) as page:
        page.goto(address)
        heading(page, "Mirrorboard")
        box = page.locator(".st-key-recent canvas").first.bounding_box()
        assert box is not None
        page.mouse.click(box["x"] + 60, box["y"] + 52)
        heading(page, "Training")
        expect(page).to_have_url(re.compile(f"run={newest.id}"))


class LateRequests:
    """Stands between the browser and the server, and asks once more for a part of a page that is being left.

    A browser may ask so until it hears of the next page: a timer is due, somebody clicks.
    """

    def __init__(self, page: Page) -> None:
        self._page = page
        self._asked: bytes = b""
        """What the browser last asked of a part of the page."""
        self._waits = False
        self._due = deque[float]()
        page.route_web_socket(re.compile("_stcore/stream"), self._connect)

    def begin(self) -> None:
        """Asks during the second after the next click for what the page asks by itself."""
        self._asked = b""
        wait_for(lambda: not self._page.wait_for_timeout(50) and self._asked, 20, "the page to ask")
        self._waits = True

    def _connect(self, browser: WebSocketRoute) -> None:
        server = browser.connect_to_server()

        def to_server(message: bytes | str) -> None:
            assert isinstance(message, bytes)
            server.send(message)
            part = _part(message)
            if self._waits and part != _part(self._asked):
                self._waits = False
                self._due.extend(time.monotonic() + np.arange(0, 1, 0.05))
            elif part:
                self._asked = message

        def to_browser(message: bytes | str) -> None:
            browser.send(message)
            if self._due and self._due[0] <= time.monotonic():
                self._due.popleft()
                server.send(self._asked)

        browser.on_message(to_server)
        server.on_message(to_browser)


def _part(message: bytes) -> str:
    """The part of the page that a request is for; empty when it is for a whole page."""
    return BackMsg.FromString(message).rerun_script.fragment_id


def test_requests_to_a_page_that_has_been_left_do_no_harm(browser: Browser, tmp_path: Path) -> None:
    store = Store(tmp_path / "home")
    prepared(store)
    done = finished_run(store)
    running_run(store, epochs=2)
    with dashboard(store.home, **WATCH) as address, tab(browser) as page:
        late = LateRequests(page)
        page.goto(address)
        heading(page, "Mirrorboard")
        late.begin()
        box = page.locator(".st-key-recent canvas").first.bounding_box()
        assert box is not None
        page.mouse.click(box["x"] + 60, box["y"] + 87)
        heading(page, "Training")
        expect(page).to_have_url(re.compile(f"run={done.id}"))
        for name, title in {"Runs": "Runs", "1. Devices": "Devices", "Start": "Mirrorboard"}.items():
            late.begin()
            page.get_by_test_id("stSidebar").get_by_role("link", name=name).click()
            heading(page, title)
            page.wait_for_timeout(500)
            heading(page, title)
    store.close()


def test_recent_runs_follow_a_run_without_flicker_and_open_at_a_click(
    browser: Browser, tmp_path: Path
) -> None:
    store = Store(tmp_path / "home")
    done = finished_run(store)
    job = running_run(store, epochs=2)
    with dashboard(store.home, **WATCH) as address, tab(browser) as page:
        page.goto(address)
        grid = page.locator(".st-key-recent [data-testid=stDataFrame]")
        cells = grid.locator("canvas table")
        expect(cells).to_contain_text("2 of 10", timeout=20_000)
        settled(page)
        grid.evaluate("(node) => { node.dataset.mark = 'kept'; }")
        page.evaluate(
            """() => {
                 window.blank = 0;
                 const look = () => {
                   if (!document.querySelector(".st-key-recent canvas")) window.blank += 1;
                   requestAnimationFrame(look);
                 };
                 look();
               }"""
        )
        row = Metric("epoch", 3 * 281 - 1, 2, "validation", "loss", 1.251, 0.0)
        store.report(job, metrics=[row])
        expect(cells).to_contain_text("3 of 10", timeout=20_000)
        expect(cells).to_contain_text("1.251")
        expect(grid).to_have_attribute("data-mark", "kept")
        assert page.evaluate("window.blank") == 0
        box = grid.locator("canvas").first.bounding_box()
        assert box is not None
        page.mouse.click(box["x"] + 60, box["y"] + 52 + 35)
        expect(page).to_have_url(re.compile(f"training.*run={done.id}"), timeout=20_000)
    store.finish(job.id, Status.STOPPED)
    store.close()


def test_nothing_is_asked_for_while_nothing_runs(browser: Browser, tmp_path: Path) -> None:
    """The sidebar looks every 20 s; a table that polled would be seen within a second or two."""
    store = Store(tmp_path / "home")
    answered(store, Kind.INSPECT, {}, MACHINE)
    prepared(store)
    reuters = claimed(store, Kind.PREPARE, {"dataset": "reuters"})
    store.finish(reuters.id, Status.FAILED, error=DownloadFailed("No network."))
    answered(store, Kind.PREPARE, {"dataset": "synthetic"}, {})
    finished_run(store)
    with dashboard(store.home, **WATCH) as address, tab(browser) as page:
        sent: list[int] = []
        page.on("websocket", lambda socket: socket.on("framesent", lambda _: sent.append(1)))
        page.goto(address)
        heading(page, "Mirrorboard")
        page.wait_for_timeout(1_500)
        before = len(sent)
        page.wait_for_timeout(4_000)
        assert len(sent) - before <= 1
    store.close()


def test_tables_and_names_on_a_phone(browser: Browser, recorded: tuple[str, Store]) -> None:
    """A table wider than the screen scrolls and fades at its edge; the date of a run can be read."""
    address, store = recorded
    run = store.jobs(kinds=[Kind.TRAIN], statuses=[Status.COMPLETED])[0]
    store.rename(run.id, "a long name that nobody could read on a telephone")
    try:
        with tab(browser, PHONE) as page:
            page.goto(f"{address}/training?run={run.id}")
            heading(page, "Training")
            chooser = page.get_by_role("combobox", name="Run")
            label = chooser.input_value()
            assert label.startswith("a long name that nobody…, ")
            shown = chooser.evaluate(
                """(node, text) => {
                     const context = document.createElement("canvas").getContext("2d");
                     context.font = getComputedStyle(node).font;
                     return context.measureText(text).width < node.clientWidth;
                   }""",
                label.partition(":")[0] + ":00 CET",
            )
            assert shown, "the date is cut off"
            table = page.locator("[data-testid=stTable] > div").first
            table.scroll_into_view_if_needed()
            assert table.evaluate("(node) => node.scrollWidth > node.clientWidth")
            expect(table).to_have_css("mask-size", "100% 100%")
            table.evaluate("(node) => { node.scrollLeft = 10_000; }")
            expect(table).to_have_css("mask-size", "calc(100% + 48px) 100%")
    finally:
        store.rename(run.id, "")


def test_compare_shows_differences_only_and_lives_in_the_address(
    browser: Browser, recorded: tuple[str, Store]
) -> None:
    address, store = recorded
    config = RunConfig.model_validate({"data": {"dataset": "synthetic"}, "training": {"seed": 5}})
    other = store.submit(Kind.TRAIN, config.model_dump(mode="json"))
    store.request_stop(other)
    done = store.jobs(kinds=[Kind.TRAIN], statuses=[Status.COMPLETED])[0]
    try:
        with tab(browser) as page:
            page.goto(f"{address}/runs?runs.status=%5B%22completed%22%2C%22stopped%22%5D")
            heading(page, "Runs")
            box = page.locator("[data-testid=stDataFrame] canvas").first.bounding_box()
            assert box is not None
            for row, chosen in enumerate((other, done.id)):
                page.mouse.click(box["x"] + 16, box["y"] + 52 + 35 * row)
                expect(page).to_have_url(re.compile(f"runs=.*{chosen}"))
                settled(page)
            table = page.get_by_test_id("stTable").first
            expect(table).to_contain_text("training.seed")
            rows = table.locator("tbody tr").all_inner_texts()
            assert [row.split() for row in rows] == [["training.seed", "5", "1"]]
            expect(page).to_have_url(re.compile(f"runs=.*{other}.*{done.id}"))
            page.locator(".st-key-compare-along").get_by_text("Wall time").click()
            expect(page).to_have_url(re.compile("compare.along=time"))
            page.reload()
            heading(page, "Runs")
            expect(table).to_contain_text("training.seed")
            page.wait_for_function("document.querySelector('.st-key-compare_chart .plot')?._fullLayout")
            names = chart(page, "compare_chart", "node._fullData.map((trace) => trace.name)")
            assert names == [other, done.id]
            assert chart(page, "compare_chart", "[...node._fullData[1].x].at(-1)") == 40
    finally:
        store.delete([other])


def test_import_of_a_csv_log(browser: Browser, recorded: tuple[str, Store]) -> None:
    address, store = recorded
    log = Path(__file__).parent / "fixtures" / "tensorboard" / "log.csv"
    with tab(browser) as page:
        page.goto(f"{address}/runs")
        heading(page, "Runs")
        page.get_by_text("Import a training log").click()
        page.locator(".st-key-import_files input[type=file]").set_input_files(log)
        expect(page.get_by_text("log.csv").first).to_be_visible()
        page.get_by_role("button", name="Import", exact=True).click()
        expect(page.get_by_text("4 epochs. It is chosen below.")).to_be_visible()
        (job,) = store.jobs(kinds=[Kind.IMPORT])
        try:
            page.locator(".st-key-open button").click()
            heading(page, "Training")
            expect(page.get_by_text("Imported from log.csv")).to_be_visible()
            page.wait_for_function("document.querySelector('.st-key-loss_chart .plot')?._fullLayout")
            assert chart(page, "loss_chart", "[...node._fullData[3].x]") == [1, 2, 3, 4]
        finally:
            store.delete([job.id])


def test_zoom_brings_finer_points_and_survives_a_refresh(
    browser: Browser, recorded: tuple[str, Store]
) -> None:
    address, store = recorded
    job = running_run(store, epochs=3)
    losses = np.random.default_rng(3).normal(2.0, 0.3, 20_000)

    def train(first: int, count: int) -> None:
        rows = [
            Metric("step", step, 3, "train", "loss", losses[step], 0.0)
            for step in range(first, first + count)
        ]
        store.report(job, metrics=rows)

    def inside() -> int:
        """Batches drawn of those that are visible."""
        return int(
            chart(
                page,
                "loss_chart",
                """(() => {
                     const [start, end] = node._fullLayout.xaxis.range;
                     return [...node._fullData[0].x].filter((x) => x >= start && x <= end).length;
                   })()""",
            )
        )

    end = "node._fullData[0].x.at(-1)"
    visible = "node._fullLayout.xaxis.range.slice()"
    train(3 * 281, 19_000)
    try:
        with tab(browser) as page:
            page.goto(f"{address}/training?run={job.id}")
            heading(page, "Training")
            wait_for(lambda: points(page) > 900, 20, "the thinned curve")
            # The axis is one of ten epochs; what is beyond is there, too.
            _zoom_hide_and_point(page)
            zoomed = chart(page, "loss_chart", visible)
            steps = int((zoomed[1] - zoomed[0]) * 281)
            wait_for(lambda: abs(inside() - steps) < 3, 10, "every batch of the visible part")
            drawn, last = inside(), chart(page, "loss_chart", end)
            train(3 * 281 + 19_000, 100)
            wait_for(lambda: chart(page, "loss_chart", end) > last, 20, "the curve to grow")
            assert chart(page, "loss_chart", visible) == zoomed
            assert inside() == drawn
            assert chart(page, "loss_chart", "node.dataset.mark") == "kept"
            assert chart(page, "loss_chart", "node._fullData[1].visible") == "legendonly"
            # A loss in the figure's own range must not end the zoom either.
            epoch = [
                Metric("epoch", 4 * 281 - 1, 3, split, "loss", 9.0, 0.0) for split in ("train", "validation")
            ]
            store.report(job, metrics=epoch)
            wait_for(lambda: chart(page, "loss_chart", "node._fullData[3].x.length") == 4, 20, "the epoch")
            assert chart(page, "loss_chart", visible) == zoomed

            box = page.locator(".st-key-loss_chart .nsewdrag").first.bounding_box()
            assert box is not None
            page.mouse.dblclick(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
            wait_for(lambda: points(page) <= 1_000, 10, "the whole curve, thinned")
            assert chart(page, "loss_chart", visible) == pytest.approx([0, 10.2])
            assert chart(page, "loss_chart", "node._fullData[1].visible") == "legendonly"
    finally:
        store.finish(job.id, Status.STOPPED)
        store.delete([job.id])


def test_a_file_can_be_fetched_late_however_busy_the_dashboard_is(
    browser: Browser, recorded: tuple[str, Store]
) -> None:
    """Streamlit alone would have thrown it away after the second run of anybody's script."""
    address, store = recorded
    run = finished_run(store)
    with tab(browser) as page, tab(browser) as other:
        page.goto(f"{address}/training?run={run.id}")
        heading(page, "Training")
        page.get_by_text("Take it away").click()
        with page.expect_download(timeout=60_000) as taken:
            page.locator(".st-key-export_csv button").first.click()
        text = taken.value.path().read_text("utf-8")
        for name in ("Data", "Model", "Runs"):
            other.goto(f"{address}/{name.lower()}")
            heading(other, name)
            settled(other)
        again = page.request.get(taken.value.url)
        assert (again.status, again.text()) == (200, text)
    store.delete([run.id])


def test_every_part_follows_the_epochs(browser: Browser, recorded: tuple[str, Store]) -> None:
    address, store = recorded
    job = running_run(store, epochs=3)
    try:
        with tab(browser) as page:
            page.goto(f"{address}/training?run={job.id}")
            heading(page, "Training")
            rule = page.locator(".st-key-run_stopping tr", has_text="GL_2").first
            expect(rule).to_contain_text("never")
            expect(page.locator(".st-key-run_stopping")).to_contain_text("no rule would have stopped")
            page.get_by_text("Log (1 line)").wait_for()
            store.report(job, metrics=rows_of(3))
            expect(rule).to_contain_text("4")
            expect(page.locator(".st-key-run_stopping")).to_contain_text("The price of not stopping: 1 epoch")
            expect(page.locator(".st-key-run_figures")).to_contain_text("1.523")
            marks = "(node.layout.annotations ?? []).map((mark) => mark.text).join()"
            for key in ("loss_chart", "gl_chart"):
                wait_for(lambda key=key: "GL_2" in chart(page, key, marks), 20, f"the stop line in {key}")
            store.report(job, logs=[LogLine(0.0, "info", "tensorflow", "One more line.")])
            page.get_by_text("Log (2 lines)").wait_for()
    finally:
        store.finish(job.id, Status.STOPPED)
        store.delete([job.id])


def test_a_chart_is_saved_as_image_drawing_and_data(
    browser: Browser, recorded: tuple[str, Store], tmp_path: Path
) -> None:
    address, store = recorded
    job = running_run(store, epochs=10)
    store.finish(job.id, Status.STOPPED)
    try:
        with tab(browser, PHONE) as page:
            page.goto(f"{address}/training?run={job.id}")
            heading(page, "Training")
            wait_for(lambda: points(page) > 900, 20, "the thinned curve")
            saved = {}
            for place, kind in enumerate(("png", "svg", "csv")):
                # By keyboard, on a phone.
                page.locator(".st-key-loss_chart summary").focus()
                page.keyboard.press("Enter")
                expect(page.locator(".st-key-loss_chart .save button").first).to_be_visible()
                with page.expect_download() as download:
                    for _ in range(place + 1):
                        page.keyboard.press("Tab")
                    page.keyboard.press("Enter")
                assert download.value.suggested_filename == f"{job.id}-loss.{kind}"
                saved[kind] = tmp_path / kind
                download.value.save_as(saved[kind])
                expect(page.locator(".st-key-loss_chart .save button").first).to_be_hidden()
            assert saved["png"].read_bytes().startswith(b"\x89PNG")
            drawing = saved["svg"].read_text("utf-8")
            assert "Loss: training against validation" in drawing
            assert "var(--" not in drawing
            header, *rows = saved["csv"].read_text("utf-8").splitlines()
            assert header == "trace,Epoch,Cross-entropy loss (nats)"
            batches = [row for row in rows if row.startswith("each batch,")]
            assert len(batches) == 10 * 281
            assert rows[-1] == "validation,10,2.67"
            # A chart that draws all its points has them in the browser already.
            page.locator(".st-key-gap_chart summary").click()
            with page.expect_download() as download:
                page.locator(".st-key-gap_chart").get_by_role("button", name="CSV").click()
            assert download.value.suggested_filename == f"{job.id}-generalization-gap.csv"
            download.value.save_as(tmp_path / "gap")
            assert len((tmp_path / "gap").read_text("utf-8").splitlines()) == 11
    finally:
        store.delete([job.id])


@pytest.mark.parametrize("path", PAGES)
def test_phone_has_no_horizontal_scrolling(browser: Browser, recorded: tuple[str, Store], path: str) -> None:
    address, store = recorded
    run = store.jobs(kinds=[Kind.TRAIN], statuses=[Status.COMPLETED])[0]
    with tab(browser, PHONE) as page:
        page.goto(f"{address}/{path}?run={run.id}")
        heading(page, PAGES[path])
        page.wait_for_timeout(500)
        too_wide = page.evaluate(
            """() => [document.documentElement, ...document.querySelectorAll("[data-testid=stMain]")]
                 .map((element) => element.scrollWidth - element.clientWidth)"""
        )
        assert max(too_wide) <= 0


def test_lesson_from_start_to_stop(browser: Browser, working: tuple[str, Store]) -> None:
    """Without a network: the lesson trains on synthetic newswires, named so, and everything is live."""
    address, store = working
    with tab(browser) as page:
        page.goto(address)
        heading(page, "Mirrorboard")
        expect(page.get_by_text("No network: the Reuters newswires could not be fetched")).to_be_visible(
            timeout=60_000
        )
        expect(page.get_by_role("button", name="Try Reuters again")).to_be_visible()
        start = page.get_by_role("button", name="Start the lesson")
        expect(start).to_be_enabled(timeout=30_000)
        expect(page.get_by_text("on synthetic newswires")).to_be_visible()
        start.click()
        expect(page).to_have_url(re.compile("/training.*run="), timeout=10_000)
        run_id = store.jobs(kinds=[Kind.TRAIN])[0].id

        wait_for(lambda: points(page) > 30, 60, "the first steps on the chart")
        expect(page.get_by_test_id("stMetric").filter(has_text="Throughput")).to_contain_text("newswires/s")
        _zoom_hide_and_point(page)
        _survives_refreshes(page)

        page.reload()
        heading_now = page.get_by_text(f"Run {run_id}").first
        expect(heading_now).to_be_visible(timeout=20_000)
        wait_for(lambda: points(page) > 30, 20, "the whole curve after a reload")
        chart(page, "loss_chart", "node.dataset.mark = 'again'")
        assert chart(page, "loss_chart", "Math.round(node._fullData[0].x[0] * 281)") == 1

        assert _stop(page) < 1_000
        wait_for(lambda: store.job(run_id).status is Status.STOPPED, 5, "the run to stop")
        expect(page.get_by_text("stopped").first).to_be_visible(timeout=5_000)
        settled(page)
        assert points(page) > 30
        assert chart(page, "loss_chart", "node.dataset.mark") == "again"


def _stop(page: Page) -> float:
    """Presses Stop and returns the milliseconds from the click to the answer on the screen."""
    page.evaluate(
        """() => {
             let pressed;
             addEventListener("click", () => { pressed = performance.now(); }, { capture: true, once: true });
             const answered = () => {
               const head = document.querySelector(".st-key-run_head")?.innerText ?? "";
               if (pressed && /stopping|stopped/i.test(head)) {
                 window.answered_ms = performance.now() - pressed;
               } else requestAnimationFrame(answered);
             };
             answered();
           }"""
    )
    page.locator(".st-key-stop button").click()
    return float(page.wait_for_function("window.answered_ms").json_value())


def _zoom_hide_and_point(page: Page) -> None:
    """Marks the chart's node, zooms with the mouse, hides a trace by its legend, and points at a batch."""
    chart(page, "loss_chart", "(node.dataset.mark = 'kept', node.scrollIntoView())")
    plot = page.locator(".st-key-loss_chart .nsewdrag").first
    box = plot.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 1, box["y"] + 10)
    page.mouse.down()
    page.mouse.move(box["x"] + 150, box["y"] + box["height"] - 20, steps=4)
    page.mouse.up()
    page.locator(".st-key-loss_chart .legendtoggle").nth(1).click()
    wait_for(
        lambda: chart(page, "loss_chart", "node._fullData[1].visible") == "legendonly", 5, "the trace to hide"
    )
    # A batch in the middle of what is left.
    x, y = chart(
        page,
        "loss_chart",
        """(() => {
             const { xaxis, yaxis } = node._fullLayout, { x, y } = node._fullData[0];
             const box = node.querySelector(".nsewdrag").getBoundingClientRect();
             const inside = (i) => x[i] > xaxis.range[0] && x[i] < xaxis.range[1]
               && y[i] > yaxis.range[0] && y[i] < yaxis.range[1];
             const i = [...x.keys()].find(inside);
             return [box.x + xaxis.l2p(x[i]), box.y + yaxis.l2p(y[i])];
           })()""",
    )
    page.mouse.move(x, y, steps=3)
    expect(page.locator(".st-key-loss_chart .hovertext")).to_be_visible()


def _survives_refreshes(page: Page) -> None:
    zoomed = chart(page, "loss_chart", "node._fullLayout.xaxis.range.slice()")
    assert zoomed[1] < 5
    seen = points(page)
    # A chart that blinks would be seen empty in one of the frames.
    page.evaluate(
        """() => {
             window.blank = 0; window.frames_seen = 0;
             const look = () => {
               window.frames_seen += 1;
               if (!document.querySelector(".st-key-loss_chart .plot .nsewdrag")) window.blank += 1;
               requestAnimationFrame(look);
             };
             look();
           }"""
    )
    wait_for(lambda: points(page) > seen, 20, "the curve to grow")
    again = points(page)
    wait_for(lambda: points(page) > again, 20, "the curve to grow once more")
    assert chart(page, "loss_chart", "node.dataset.mark") == "kept"
    assert chart(page, "loss_chart", "node._fullLayout.xaxis.range.slice()") == zoomed
    assert chart(page, "loss_chart", "node._fullData[1].visible") == "legendonly"
    expect(page.locator(".st-key-loss_chart .hovertext")).to_be_visible()
    assert page.evaluate("window.blank") == 0
    assert page.evaluate("window.frames_seen") > 5


def test_run_outlives_the_dashboard(browser: Browser, tmp_path: Path) -> None:
    store = Store(tmp_path / "home")
    run_id = store.submit(Kind.TRAIN, LONG)
    environment = {"KERAS_HOME": str(tmp_path / "keras"), **OFFLINE}
    try:
        with dashboard(store.home, **environment) as address, tab(browser) as page:
            page.goto(f"{address}/training?run={run_id}")
            wait_for(lambda: points(page) > 10, 60, "the first steps on the chart")
        before = store.job(run_id)
        assert before.status is Status.RUNNING
        seen = store.last_metric_id(before)
        wait_for(lambda: store.last_metric_id(before) > seen, 20, "steps while no dashboard is there")
        with dashboard(store.home, **environment) as address, tab(browser) as page:
            page.goto(f"{address}/training?run={run_id}")
            wait_for(lambda: points(page) > 10, 20, "the whole curve in the next dashboard")
            assert store.job(run_id).pid == before.pid
            expect(page.locator(".st-key-stop button")).to_be_enabled()
    finally:
        store.request_stop(run_id)
        wait_for(lambda: store.job(run_id).status.is_final, 10, "the run to stop")
        store.close()


def test_scaling_study_from_the_button_to_the_verdict(browser: Browser, working: tuple[str, Store]) -> None:
    """Really trains on one and on two replicas, and really measures the all-reduce between them."""
    address, store = working
    with tab(browser) as page:
        page.goto(
            f"{address}/scaling?scaling.replicas=%5B1%2C2%5D&training.epochs=2&training.batch_size=512"
            "&data.dataset=synthetic&data.max_len=40&model.filters.0=8"
        )
        heading(page, "Scaling")
        start = page.get_by_role("button", name="Start 2 runs")
        expect(start).to_be_enabled(timeout=60_000)
        start.click()
        expect(page.get_by_text("0 of 2 runs ended")).to_be_visible(timeout=20_000)
        (jobs,) = store.studies(limit=2)
        expect(page).to_have_url(re.compile(f"study={jobs[0].study}"), timeout=20_000)
        expect(page.get_by_text("2 of 2 runs ended")).to_be_visible(timeout=220_000)
        expect(
            page.get_by_text(re.compile("On 2 replicas the training .* ideal would be 2 times"))
        ).to_be_visible()
        expect(page.get_by_text("All-reduce takes")).to_be_visible()
        expect(page.get_by_text("no speed-up is expected")).to_be_visible()
        page.wait_for_function("document.querySelector('.st-key-study_losses_chart .plot')?._fullLayout")
        shown = chart(
            page, "study_losses_chart", "node._fullData.map((trace) => [trace.name, trace.x.length])"
        )
        assert shown == [["1 replica", 2], ["2 replicas", 2]]
        assert chart(page, "speed_up_chart", "[...node._fullData.at(-1).x]") == [1, 2]
        rows = page.get_by_test_id("stTable").locator("tbody tr")
        expect(rows).to_have_text([re.compile("completed.*0.0 %"), re.compile("completed.*[0-9] %")])
        single, mirrored = (job.result or {} for job in store.study(jobs[0].study or ""))
        assert single["all_reduce"] is None  # it has nothing to reduce
        assert mirrored["all_reduce"]["steps"] > 0


def test_layout_check_runs_in_a_fresh_engine(browser: Browser, working: tuple[str, Store]) -> None:
    address, _ = working
    with tab(browser) as page:
        page.goto(f"{address}/devices?layout.logical_devices=3")
        heading(page, "Devices")
        expect(page.get_by_text("1 physical CPU, 3 logical CPUs, 3 replicas in sync").first).to_be_visible()
        page.get_by_role("button", name="Check this layout").click()
        expect(page.get_by_text("It works: 1 physical CPU, 3 logical CPUs")).to_be_visible(timeout=60_000)
        expect(page.get_by_text("Using MirroredStrategy with devices")).to_be_visible()


def test_model_follows_the_form(browser: Browser, working: tuple[str, Store]) -> None:
    """A warm engine answers; 5 s would not be enough for one that imports TensorFlow on a busy machine."""
    address, _ = working
    with tab(browser) as page:
        page.goto(f"{address}/model")
        heading(page, "Model")
        expect(page.get_by_text("332,856").first).to_be_visible(timeout=30_000)
        field = page.locator(".st-key-model-filters-0 input")
        field.fill("48")
        field.press("Enter")
        expect(page.get_by_text("(None, 296, 48)")).to_be_visible(timeout=5_000)
