"""The page Evaluate in a real browser, on a run that was really trained."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from core import corpus, predictions
from core.analysis.evaluation import Evaluation, cell, evaluate, ordered
from core.predictions import Predictions
from core.records import Job, Kind, Status
from core.store import Store
from tests.browser_app import CHROMIUM, PHONE, chromium, dashboard, heading, settled, tab
from tests.conftest import ended

pytestmark = pytest.mark.skipif(not shutil.which(CHROMIUM), reason=f"needs {CHROMIUM}")

TRAINING = {
    "layout": {"strategy": "single", "logical_devices": 1},
    "data": {"dataset": "synthetic", "max_len": 60},
    "training": {"epochs": 3, "batch_size": 128, "learning_rate": 0.01},
}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def trained(browser: Browser, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Store, Job]]:
    """A dashboard with engines, and a run that it has trained."""
    folder = tmp_path_factory.mktemp("evaluate")
    with dashboard(folder / "home", KERAS_HOME=str(folder / "keras")) as address:
        store = Store(folder / "home")
        # The first visit starts the engines.
        with tab(browser) as page:
            page.goto(f"{address}/evaluate")
            heading(page, "Evaluate")
            run = ended(store, store.submit(Kind.TRAIN, TRAINING))
        assert run.status is Status.COMPLETED, run.error
        yield address, store, run
        store.close()


def matrix(page: Page) -> None:
    """Waits for the confusion matrix."""
    page.wait_for_function(
        "document.querySelector('.st-key-confusion_chart .plot')?._fullLayout", timeout=60_000
    )
    settled(page)


def click_cell(page: Page, row: int, column: int) -> None:
    """Clicks the middle of a cell of the heatmap."""
    chart = page.locator(".st-key-confusion_chart .plot")
    chart.scroll_into_view_if_needed()
    x, y = chart.evaluate(
        """(node, [row, column]) => {
          const { xaxis, yaxis } = node._fullLayout;
          const box = node.getBoundingClientRect();
          return [box.left + xaxis._offset + xaxis.l2p(column), box.top + yaxis._offset + yaxis.l2p(row)];
        }""",
        [row, column],
    )
    page.mouse.move(x, y)
    page.mouse.click(x, y)


def test_walk_through_the_confusion_matrix(browser: Browser, trained: tuple[str, Store, Job]) -> None:
    address, store, run = trained
    with tab(browser) as page:
        page.goto(f"{address}/evaluate?run={run.id}")
        heading(page, "Evaluate")
        matrix(page)
        made, found = judged(store, run)
        names = corpus.load(store.home, "synthetic").class_names
        # Nothing chosen yet: the most frequent mistake is open.
        true, answer = most_frequent_mistake(found)
        expect(page.get_by_text(f"of {names[true]} taken for {names[answer]}")).to_be_visible()

        page.evaluate("document.querySelector('.st-key-confusion_chart .plot').dataset.mark = 'same'")
        order = ordered(found.confusion, "support").tolist()
        click_cell(page, 0, 0)
        largest = order[0]
        count = int(found.confusion[largest, largest])
        expect(page.get_by_text(f"{count:,} newswires of {names[largest]} recognised")).to_be_visible()
        expect(page).to_have_url(re.compile(f"cell.true={largest}&cell.answer={largest}"))
        surest = int(cell(found, made.probabilities, made.labels, largest, largest)[0])
        newswire = page.locator(f".st-key-newswire_{surest}")
        share = f"{100 * made.probabilities[surest, largest]:.1f} %"
        expect(newswire.get_by_text(f"Test newswire {surest:,}: {names[largest]} {share}")).to_be_visible()
        words = corpus.load(store.home, "synthetic").text(8982 + surest).split()
        expect(newswire).to_contain_text(" ".join(words[-5:]))

        # A mistake, in percent and in another order: the chart is the same one, redrawn.
        page.locator(".st-key-matrix-values").get_by_text("% of right class").click()
        page.locator(".st-key-matrix-order").get_by_text("Most mistakes first").click()
        settled(page)
        order = ordered(found.confusion, "confusion").tolist()
        page.wait_for_function(
            # The first class may be the same in either order.
            "names => names.every((name, i) =>"
            " document.querySelector('.st-key-confusion_chart .plot').data[0].x[i] === name)",
            arg=[names[i] for i in order],
        )
        row, column = next(
            (row, column)
            for row in range(4)
            for column in range(4)
            if row != column and found.confusion[order[row], order[column]] > 1
        )
        click_cell(page, row, column)
        count = int(found.confusion[order[row], order[column]])
        expect(
            page.get_by_text(f"{count:,} newswires of {names[order[row]]} taken for {names[order[column]]}")
        ).to_be_visible()
        assert page.locator(".st-key-confusion_chart .plot").get_attribute("data-mark") == "same"

        # All 46 by 46 counts in a file.
        page.locator(".st-key-confusion_chart").get_by_title("Save this chart").click()
        with page.expect_download() as download:
            page.get_by_role("button", name="All points (CSV)").click()
        lines = download.value.path().read_text().splitlines()
        assert lines[0] == "trace,Taken for,Right class,value"
        assert len(lines) == 1 + 46 * 46
        told = f"newswires,{names[order[column]]},{names[order[row]]},{count}"
        assert told in lines

        # The words that mattered, in a newswire of the cell.
        page.get_by_text("Words that mattered").first.click()
        expect(page.get_by_text("Integrated gradients (Sundararajan")).to_be_visible(timeout=30_000)
        expect(page.locator(".newswire mark").nth(5)).to_be_visible()


def test_a_typed_newswire_gets_five_classes(browser: Browser, trained: tuple[str, Store, Job]) -> None:
    address, store, run = trained
    data = corpus.load(store.home, "synthetic")
    text = f"Zzyzx, <img src=x onerror=alert(1)> & {data.text(9000)}"
    with tab(browser, PHONE) as page:
        page.goto(f"{address}/evaluate?run={run.id}")
        heading(page, "Evaluate")
        matrix(page)
        page.locator(".st-key-newswire textarea").fill(text)
        page.get_by_role("button", name="Classify").click()
        bars = page.locator(".bars b")
        expect(bars).to_have_count(5, timeout=30_000)
        shares = [float(share.removesuffix(" %")) for share in bars.all_text_contents()]
        assert shares == sorted(shares, reverse=True)
        assert 0 < sum(shares) <= 100.3
        marks = page.locator(".newswire mark")
        expect(marks.first).to_be_visible()
        kept = min(len(text.split()), 60)
        assert 0 < marks.count() <= kept
        assert re.fullmatch(r"[+-]\d+\.\d\d percentage points\.", marks.last.get_attribute("title") or "")
        expect(page.locator(".newswire img")).to_have_count(0)
        # Without a mouse: the cell is chosen by name.
        box = page.locator(".st-key-cell-true input")
        box.fill("synthetic topic 05")
        box.press("Enter")
        expect(page).to_have_url(re.compile("cell.true=4"))
        # Nothing is wider than the phone.
        width = page.evaluate("document.querySelector('[data-testid=stMain]').scrollWidth")
        assert width <= PHONE[0]


def judged(store: Store, run: Job) -> tuple[Predictions, Evaluation]:
    data = corpus.load(store.home, "synthetic")
    file = predictions.predicted(store.checkpoints(run.id), predictions.order(run, "best"))
    made = predictions.read(file, data)
    return made, evaluate(made.probabilities, made.labels, data.split_labels("train"))


def most_frequent_mistake(found: Evaluation) -> Any:
    mistakes = found.confusion.copy()
    for i in range(len(mistakes)):
        mistakes[i, i] = 0
    return divmod(int(mistakes.argmax()), len(mistakes))
