"""A dashboard in a process of its own, and Chromium to look at it with."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, ConsoleMessage, Page, expect, sync_playwright

from tests.conftest import ROOT, wait_for

BROWSERS = ("chromium", "google-chrome")
"""Any of these will do; `./run test` installs the first where it finds none."""
CHROMIUM = next(filter(None, map(shutil.which, BROWSERS)), BROWSERS[0])
DESKTOP = (1440, 1000)
PHONE = (390, 844)
PAGES = {
    "": "Mirrorboard",
    "devices": "Devices",
    "data": "Data",
    "model": "Model",
    "training": "Training",
    "one_step": "Inside one step",
    "evaluate": "Evaluate",
    "runs": "Runs",
    "scaling": "Scaling",
    "take_home": "Code to take home",
}
"""The heading of each page, by its path."""


@contextmanager
def dashboard(home: Path, *, logged: str = "", **environment: str) -> Iterator[str]:
    """Starts ``streamlit run`` on a free port and yields its address.

    Args:
        home: Of the store.
        logged: What must stand in the log, with a traceback; by default there must be none.
        environment: More variables of the process.
    """
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log = home.parent / f"dashboard-{port}.log"
    arguments = ["run", "streamlit_app.py", "--server.port", str(port), "--server.headless", "true"]
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "streamlit", *arguments],
            cwd=ROOT,
            env={**os.environ, "MIRRORBOARD_HOME": str(home), **environment},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    address = f"http://127.0.0.1:{port}"
    try:
        wait_for(lambda: _answers(f"{address}/_stcore/health"), 30, "the dashboard")
        yield address
    finally:
        process.terminate()
        process.wait(timeout=20)
    said = log.read_text("utf-8")
    assert (logged in said) if logged else ("Traceback" not in said), said


def _answers(address: str) -> bool:
    try:
        with urllib.request.urlopen(address, timeout=1) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


@contextmanager
def chromium() -> Iterator[Browser]:
    """Chromium, or Chrome, headless."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-dev-shm-usage"]
        )
        yield browser
        browser.close()


@contextmanager
def tab(browser: Browser, size: tuple[int, int] = DESKTOP) -> Iterator[Page]:
    """A tab of a fresh browser profile; errors in its console fail the test."""
    context = browser.new_context(viewport={"width": size[0], "height": size[1]}, timezone_id="Europe/Berlin")
    page = context.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.on("console", lambda message: errors.append(_in_words(message)) if message.type == "error" else None)
    yield page
    context.close()
    # On a deep link Streamlit looks for its server below the page's path first.
    assert not [error for error in errors if "/_stcore/" not in error], errors


def _in_words(message: ConsoleMessage) -> str:
    return f"{message.text} {message.location.get('url')}"


def settled(page: Page) -> None:
    """Waits until the page has been drawn."""
    ready = "[data-testid=stApp][data-test-script-state=notRunning][data-test-connection-state=CONNECTED]"
    page.wait_for_selector(ready, timeout=20_000)


def heading(page: Page, text: str) -> None:
    """The page has this title, and nothing on it has failed."""
    expect(page.get_by_role("heading", name=text, exact=True, level=1)).to_be_visible(timeout=20_000)
    settled(page)
    expect(page.get_by_test_id("stException")).to_have_count(0)
    expect(page.get_by_text("This part of the page failed")).to_have_count(0)
