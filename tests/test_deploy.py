"""Mirrorboard as a service: the units' own commands, behind a real nginx with the site of deploy/."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tomllib
import urllib.error
import urllib.request
from http.client import HTTPSConnection
from pathlib import Path

import psutil
import pytest
from conftest import LONG, ROOT, command, json_of, wait_for
from playwright.sync_api import expect, sync_playwright
from websockets.exceptions import WebSocketException
from websockets.sync.client import connect

from core.__main__ import main
from core.analysis.imported import MAX_BYTES
from core.health import examine
from core.processes import is_alive
from core.records import Kind, Status
from core.store import Store
from tests.browser_app import CHROMIUM, DESKTOP, heading
from tests.recorded import finished_run
from tests.test_browser import points

DEPLOY = ROOT / "deploy"
BIN = Path(sys.executable).parent
HOST = "mirrorboard.example.org"
NGINX = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")
CONFIG = tomllib.loads((ROOT / ".streamlit" / "config.toml").read_text("utf-8"))
LIMIT = CONFIG["server"]["maxUploadSize"] * 2**20

needs_nginx = pytest.mark.skipif(not NGINX, reason="needs nginx: apt-get install nginx-light")
needs_chromium = pytest.mark.skipif(not shutil.which(CHROMIUM), reason=f"needs {CHROMIUM}")


def settings(unit):
    """A unit's settings: each name with its values in order."""
    found = {}
    for line in (DEPLOY / unit).read_text("utf-8").splitlines():
        name, equals, value = line.partition("=")
        if equals and not line.startswith("#"):
            found.setdefault(name, []).append(value)
    return found


class Service:
    """Does with a unit what systemd does: its command, its environment, its way to stop."""

    def __init__(self, unit, home, port=0):
        self.unit = settings(unit)
        self.home, self.port = home, port
        self.log = home.parent / f"{unit}.log"
        self.start()

    def start(self):
        started = self.unit["ExecStart"][0].replace("8501", str(self.port))
        program, *arguments = shlex.split(started.replace("/etc/mirrorboard", str(DEPLOY)))
        environment = dict(value.split("=", 1) for value in self.unit["Environment"])
        environment = {
            name: value.replace("/var/lib/mirrorboard", str(self.home)) for name, value in environment.items()
        }
        executable = str(BIN / Path(program).name)
        user_home = self.home.parent / "user"
        user_home.mkdir(exist_ok=True)
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                [executable, *arguments],
                cwd=ROOT,
                env={**os.environ, "HOME": str(user_home), **environment},
                stdout=output,
                stderr=subprocess.STDOUT,
            )

    def stop(self):
        """KillMode=control-group: SIGTERM to every process of the unit at once."""
        assert self.unit.get("KillMode", ["control-group"]) == ["control-group"]
        processes = [
            psutil.Process(self.process.pid),
            *psutil.Process(self.process.pid).children(recursive=True),
        ]
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.terminate()
        self.process.wait(timeout=float(self.unit["TimeoutStopSec"][0]))
        _, left = psutil.wait_procs(processes, timeout=float(self.unit["TimeoutStopSec"][0]))
        for process in left:
            process.kill()
        assert left == []
        assert "Traceback" not in self.log.read_text("utf-8"), self.log.read_text("utf-8")


@contextlib.contextmanager
def engines(home):
    """The engines' service while the block runs."""
    service = Service("mirrorboard-engines.service", home)
    try:
        yield service
    finally:
        service.stop()


class Hosted:
    """Both services and nginx on one store."""

    def __init__(self, folder, ports):
        self.certificate = folder / "cert.pem"
        self.home = folder / "home"
        self.http, self.https, self.dashboard_port = ports
        self.engines = Service("mirrorboard-engines.service", self.home)
        self.dashboard = Service("mirrorboard.service", self.home, self.dashboard_port)
        self.address = f"https://{HOST}:{self.https}"
        wait_for(lambda: answers(self.dashboard_port), 30, "the dashboard")
        wait_for((self.home / "mirrorboard.sqlite3").exists, 30, "the store")
        self.store = Store(self.home)


def answers(port):
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/_stcore/health", timeout=1) as answer:
            return answer.read() == b"ok"
    except OSError:
        return False


def free_ports(number):
    probes = [socket.socket() for _ in range(number)]
    for probe in probes:
        probe.bind(("127.0.0.1", 0))
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports


def site(folder, http, https, dashboard):
    """The site of deploy/ with this machine's ports and files, and what an nginx around it needs."""
    password = subprocess.run(
        ["openssl", "passwd", "-apr1", "secret"], capture_output=True, text=True, check=True
    ).stdout
    (folder / "htpasswd").write_text(f"teacher:{password}")
    made = ["-keyout", folder / "key.pem", "-out", folder / "cert.pem", "-subj", f"/CN={HOST}"]
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", *made],
        capture_output=True,
        check=True,
    )
    text = (DEPLOY / "nginx.conf").read_text("utf-8")
    for shipped, here in (
        ("listen 80;", f"listen 127.0.0.1:{http};"),
        ("listen 443 ssl;", f"listen 127.0.0.1:{https} ssl;"),
        ("/etc/ssl/mirrorboard/fullchain.pem", str(folder / "cert.pem")),
        ("/etc/ssl/mirrorboard/privkey.pem", str(folder / "key.pem")),
        ("/etc/nginx/mirrorboard.htpasswd", str(folder / "htpasswd")),
        ("127.0.0.1:8501", f"127.0.0.1:{dashboard}"),
    ):
        assert shipped in text
        text = text.replace(shipped, here)
    temporary = "".join(
        f"{name}_temp_path {folder}/{name};\n"
        for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    (folder / "nginx.conf").write_text(
        f"{'user root;' if os.geteuid() == 0 else ''} daemon off; worker_processes 1; pid {folder}/pid;\n"
        f"events {{}}\nhttp {{\naccess_log off;\n{temporary}{text}\n}}\n"
    )
    return ["-c", str(folder / "nginx.conf"), "-e", str(folder / "error.log")]


@pytest.fixture(scope="module")
def hosted(tmp_path_factory):
    if not NGINX:
        pytest.skip("needs nginx: apt-get install nginx-light")
    folder = tmp_path_factory.mktemp("hosted")
    ports = free_ports(3)
    arguments = site(folder, *ports)
    checked = subprocess.run([NGINX, "-t", *arguments], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr
    assert "warn" not in checked.stderr
    proxy = subprocess.Popen([NGINX, *arguments])
    both = Hosted(folder, ports)
    yield both
    for job in both.store.jobs(kinds=[Kind.TRAIN]):
        both.store.request_stop(job.id)
    both.store.close()
    both.dashboard.stop()
    if both.engines.process.poll() is None:
        both.engines.stop()
    proxy.terminate()
    proxy.wait(timeout=20)
    # Nothing was written outside the store's folder.
    assert list((folder / "user").rglob("*")) == []


@pytest.fixture
def page(hosted):
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM,
            args=[
                "--no-sandbox",
                "--disable-dev-shm-usage",
                "--no-proxy-server",
                f"--host-resolver-rules=MAP {HOST} 127.0.0.1",
            ],
        )
        context = browser.new_context(
            viewport={"width": DESKTOP[0], "height": DESKTOP[1]},
            http_credentials={"username": "teacher", "password": "secret"},
            ignore_https_errors=True,
        )
        page = context.new_page()
        errors = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        yield page
        browser.close()
        assert errors == []


def request(hosted, method, path, user=None, body=None, **headers):
    """Status and text of a request through nginx, made without a browser."""
    if user:
        headers["Authorization"] = f"Basic {base64.b64encode(user.encode()).decode()}"
    context = ssl.create_default_context(cafile=hosted.certificate)
    context.check_hostname = False  # it is asked by its number
    connection = HTTPSConnection("127.0.0.1", hosted.https, context=context, timeout=30)
    with contextlib.closing(connection):
        connection.request(method, path, body, {"Host": f"{HOST}:{hosted.https}", **headers})
        answer = connection.getresponse()
        return answer.status, answer.read().decode()


def test_systemd_accepts_the_units(tmp_path):
    verifier = shutil.which("systemd-analyze")
    if not verifier:
        pytest.skip("needs systemd-analyze: apt-get install systemd")
    for unit in DEPLOY.glob("*.service"):
        text = unit.read_text("utf-8").replace("/opt/mirrorboard/.venv/bin", str(BIN))
        (tmp_path / unit.name).write_text(text.replace("/opt/mirrorboard", str(ROOT)))
    units = sorted(str(path) for path in tmp_path.iterdir())
    done = subprocess.run([verifier, "verify", *units], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_commands_that_the_notes_give_are_there():
    notes = "".join((ROOT / name).read_text("utf-8") for name in ("README.md", "deploy/README.md"))
    lines = set(re.findall(r"\.venv/bin/python -c '(.+)'", notes))
    assert lines
    for line in lines:
        subprocess.run([sys.executable, "-c", line], cwd=ROOT, check=True)
    named = set(re.findall(r"python -m core (?:--home \S+ )?([a-z]+)", notes))
    assert {"train", "backup", "health"} <= named <= set(main.commands)


def test_limits_and_times_agree_in_all_files():
    text = (DEPLOY / "nginx.conf").read_text("utf-8")
    assert int(re.search(r"client_max_body_size (\d+)m;", text)[1]) * 2**20 == LIMIT
    assert LIMIT >= MAX_BYTES
    times = [int(seconds) for seconds in re.findall(r"proxy_(?:read|send)_timeout (\d+)s;", text)]
    assert len(times) == 2
    assert min(times) > 2 * CONFIG["server"]["websocketPingInterval"]
    for unit in ("mirrorboard.service", "mirrorboard-engines.service"):
        found = settings(unit)
        assert found["User"] == ["mirrorboard"]
        assert found["ProtectSystem"] == ["strict"]
        assert found["ReadWritePaths"] == ["/var/lib/mirrorboard"]
        assert "MIRRORBOARD_HOME=/var/lib/mirrorboard" in found["Environment"]
    assert f"--server.allowedHosts={HOST}" in settings("mirrorboard.service")["ExecStart"][0]


@needs_nginx
def test_the_proxy_asks_for_a_password_except_for_the_health_check(hosted):
    assert request(hosted, "GET", "/")[0] == 401
    assert request(hosted, "GET", "/", user="teacher:wrong")[0] == 401
    assert request(hosted, "GET", "/_stcore/metrics")[0] == 401
    status, body = request(hosted, "GET", "/", user="teacher:secret")
    assert status == 200
    assert "<title>" in body
    assert request(hosted, "GET", "/_stcore/health") == (200, "ok")
    moved = urllib.request.Request(f"http://127.0.0.1:{hosted.http}/runs", headers={"Host": HOST})
    opener = urllib.request.build_opener(NoRedirect)
    with pytest.raises(urllib.error.HTTPError) as answer:
        opener.open(moved, timeout=10)
    answer.value.close()
    assert (answer.value.code, answer.value.headers["Location"]) == (301, f"https://{HOST}/runs")


class NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_):
        return None


@needs_nginx
@pytest.mark.parametrize(
    ("host", "origin", "accepted"),
    [
        (HOST, f"https://{HOST}", True),
        (HOST, "https://elsewhere.example.net", False),
        ("elsewhere.example.net", "https://elsewhere.example.net", False),
        ("127.0.0.1", "http://127.0.0.1", False),
    ],
)
def test_pages_of_other_sites_cannot_open_the_websocket(hosted, host, origin, accepted):
    try:
        with connect(
            f"ws://{host}/_stcore/stream",
            address=("127.0.0.1", hosted.dashboard_port),
            origin=origin,
            subprotocols=["streamlit"],
            proxy=None,
        ):
            opened = True
    except WebSocketException:
        opened = False
    assert opened == accepted


@needs_nginx
def test_an_upload_needs_the_token_of_the_page(hosted):
    address = f"http://127.0.0.1:{hosted.dashboard_port}/_stcore/upload_file/nobody/file"
    upload = urllib.request.Request(address, data=b"x", method="PUT")
    with pytest.raises(urllib.error.HTTPError) as answer:
        urllib.request.urlopen(upload, timeout=10)
    with answer.value:
        assert answer.value.code == 403
        assert b"XSRF" in answer.value.read()


@needs_nginx
@needs_chromium
def test_uploads_up_to_the_limit_pass_and_larger_ones_are_answered(hosted, page, tmp_path):
    page.goto(f"{hosted.address}/runs")
    heading(page, "Runs")
    page.get_by_text("Import a training log").click()
    field = page.locator(".st-key-import_files input[type=file]")

    over = tmp_path / "over.json"
    over.write_bytes(b" " * (LIMIT + 1))
    field.set_input_files(over)
    uploader = page.locator(".st-key-import_files")
    expect(uploader.get_by_text(re.compile("must be 50.*or smaller"))).to_be_visible()
    page.reload()
    heading(page, "Runs")
    page.get_by_text("Import a training log").click()

    history = json.dumps({"loss": [2.0, 1.5, 1.2], "val_loss": [2.1, 1.8, 1.9]})
    under = tmp_path / "under.json"
    under.write_text(history + " " * (49_999_000 - len(history)))
    with page.expect_request(lambda request: request.method == "PUT") as put:
        field.set_input_files(under)
    assert put.value.response().status == 204
    page.get_by_role("button", name="Import", exact=True).click()
    expect(page.get_by_text(re.compile(r"under.json is run \w+: 3 epochs"))).to_be_visible(timeout=30_000)

    # What does not come from the page meets the proxy's limit, which is the same.
    token = next(c["value"] for c in page.context.cookies() if c["name"] == "_streamlit_xsrf")
    cookie = {"Cookie": f"_streamlit_xsrf={token}", "X-Xsrftoken": token}
    place = put.value.url.removeprefix(hosted.address)
    status, text = request(hosted, "PUT", place, user="teacher:secret", body=b" " * (LIMIT + 1), **cookie)
    assert (status, "413 Request Entity Too Large" in text) == (413, True)


@needs_nginx
@needs_chromium
def test_a_run_is_live_through_the_proxy_and_outlives_the_dashboards_service(hosted, page):
    run_id = hosted.store.submit(Kind.TRAIN, LONG)
    page.goto(f"{hosted.address}/training?run={run_id}")
    heading(page, "Training")
    seen = wait_for(lambda: points(page), 90, "the first batches on the chart")
    seen = wait_for(lambda: (now := points(page)) > seen and now, 60, "the chart to grow")
    pid = hosted.store.job(run_id).pid

    hosted.dashboard.stop()
    hosted.dashboard.start()
    wait_for(lambda: answers(hosted.dashboard_port), 30, "the dashboard")
    job = hosted.store.job(run_id)
    assert (job.status, job.pid) == (Status.RUNNING, pid)
    wait_for(lambda: points(page) > seen, 90, "the chart to grow on the page that was open")
    assert json_of(command("health", "--json", home=hosted.home))["running"] == run_id

    # The last test of this file that needs engines: stopping their service ends the run with all its rows.
    queued = hosted.store.submit(Kind.TRAIN, LONG)
    epochs = hosted.store.epochs_done(job)
    engines = hosted.store.engines()
    hosted.engines.stop()
    assert hosted.store.job(run_id).status is Status.STOPPED
    assert hosted.store.epochs_done(job) >= epochs
    assert hosted.store.job(queued).status is Status.QUEUED
    assert not any(is_alive(engine.pid, engine.pid_started_at, engine.boot_id) for engine in engines)
    about = command("health", "--json", home=hosted.home)
    assert about.returncode == 1
    assert json.loads(about.stdout)["problems"] == [
        "No launcher lives: queued jobs do not start until a dashboard or launcher does."
    ]


def test_health_says_what_is_wrong_and_that_nothing_is(home):
    missing = command("health", home=home)
    assert (missing.returncode, missing.stdout) == (1, f"There is no run store in {home}.\n")
    assert not home.exists()

    with contextlib.closing(Store(home)) as store, engines(home):
        wait_for(lambda: any(job.status is Status.COMPLETED for job in store.jobs()), 60, "the first answer")
        about = examine(home)
        assert (about["healthy"], about["problems"], about["launcher"]) == (True, [], True)
        assert about["free_bytes"] > 0
        assert command("health", home=home).stdout == f"The store in {home} is well.\n"

        job = store.job(store.submit(Kind.TRAIN, LONG))
        wait_for(lambda: store.job(job.id).status is Status.RUNNING, 60, "the run")
        pid = store.job(job.id).pid
        os.kill(pid, signal.SIGSTOP)
        try:
            problems = wait_for(lambda: examine(home, patience_s=2)["problems"], 20, "silence to be noticed")
            assert examine(home)["healthy"]
        finally:
            os.kill(pid, signal.SIGCONT)
        assert problems == [f"The run {job.id} has not been heard of for 2 s."]


def test_a_run_that_was_resumed_has_not_waited_since_it_was_made(home, store):
    run = finished_run(store, epochs=2, status=Status.FAILED)
    with store.write() as connection:
        connection.execute("UPDATE jobs SET created_at = 0, finished_at = 1")
    store.resume(run.id)
    assert examine(home)["problems"] == [
        "No launcher lives: queued jobs do not start until a dashboard or launcher does."
    ]


def test_health_notices_a_queue_that_stands_still_and_a_damaged_store(home, store):
    first, _ = store.submit(Kind.TRAIN, LONG), store.submit(Kind.TRAIN, LONG)
    about = examine(home, patience_s=-1)
    assert about["queued"] == 2
    assert about["problems"][1:] == [f"The run {first} has waited for 0 s though its turn has come."]
    store.close()
    (home / "mirrorboard.sqlite3").write_bytes(b"nothing of use" * 100)
    (problem,) = examine(home)["problems"]
    assert "damaged" in problem
