"""Signing in with a real OpenID Connect provider, and what each role can do, in the browser."""

from __future__ import annotations

import re
import shutil
from contextlib import contextmanager

import pytest
from playwright.sync_api import Error, expect
from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg

from core import corpus, newswire, predictions
from core.access import Person, Role
from core.config import RunConfig
from core.errors import DownloadFailed
from core.exports import exported, order
from core.gate import Gate
from core.records import RUNS, Kind, Scaling, Status
from core.store import Store
from tests.browser_app import CHROMIUM, DESKTOP, PAGES, chromium, dashboard, heading, settled
from tests.conftest import ROOT, wait_for
from tests.controls import ACTIONS
from tests.identity_provider import provider, secrets_file
from tests.recorded import MACHINE, answered, claim, claimed, evaluated, finished_run, prepared, running_run

pytestmark = pytest.mark.skipif(not shutil.which(CHROMIUM), reason=f"needs {CHROMIUM}")

VERIFIED = {"email_verified": True}
PEOPLE = {
    "owner": {"email": "owner@school.edu", **VERIFIED},
    "runner": {"email": "runner@school.edu", **VERIFIED},
    "viewer": {"email": "viewer@home.org", **VERIFIED},
    "pretender": {"email": "owner@school.edu", "email_verified": False},
    "stranger": {"email": "stranger@elsewhere.net", **VERIFIED},
}
SETTINGS = """
[mirrorboard.roles]
owner = ["owner@school.edu"]
runner = ["*@school.edu"]
viewer = ["*@home.org", "sub:pretender"]

[mirrorboard.limits]
runs = 100
"""
OTHER = "other@school.edu"
OFFLINE = DownloadFailed("No way to the internet.", "", "Details")
RUN = RunConfig.model_validate({"data": {"dataset": "synthetic"}}).model_dump(mode="json")
PATHS = ["", *sorted(path.stem for path in (ROOT / "pages").glob("*.py"))]


@pytest.fixture
def site(shared):
    """The dashboard, without what a test before has left undone."""
    for job in shared.store.jobs():
        shared.store.finish(job.id, Status.FAILED, error=OFFLINE)
    return shared


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """A dashboard with sign-in, its store, and a browser."""
    folder = tmp_path_factory.mktemp("site")
    store = Store(folder / "home")
    prepared(store)
    answered(store, Kind.INSPECT, {}, MACHINE)
    failed = claimed(store, Kind.PREPARE, {"dataset": "reuters"})
    store.finish(failed.id, Status.FAILED, error=OFFLINE)
    file = folder / "secrets.toml"
    with provider(PEOPLE) as made:
        file.write_text(secrets_file(made, SETTINGS))
        environment = {"MIRRORBOARD_WATCH": "1", "STREAMLIT_SECRETS_FILES": str(file)}
        with dashboard(folder / "home", **environment) as address, chromium() as browser:
            yield Site(address, store, browser)
    store.close()


class Site:
    def __init__(self, address, store, browser):
        self.address, self.store, self.browser = address, store, browser

    @contextmanager
    def visitor(self, name=None):
        """Somebody with a browser of their own, signed in where a name is given."""
        context = self.browser.new_context(viewport={"width": DESKTOP[0], "height": DESKTOP[1]})
        visitor = Visitor(self, context.new_page())
        if name is not None:
            visitor.sign_in(name)
        yield visitor
        context.close()
        assert visitor.errors == []

    def contents(self):
        with self.store.read() as connection:
            return list(connection.iterdump())


class Visitor:
    """Somebody at a page, who can also send what the page would not."""

    def __init__(self, site, page):
        self.site, self.page, self.errors, self.tried = site, page, [], set()
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.route_web_socket(re.compile("_stcore/stream"), self._listen)

    def _listen(self, socket):
        self.elements, self.alerts, self.asked, self.finished = {}, [], None, 0
        self.server = server = socket.connect_to_server()

        def from_page(message):
            sent = BackMsg.FromString(message)
            if sent.HasField("rerun_script") and not sent.rerun_script.fragment_id:
                self.asked = sent
            server.send(message)

        def from_server(message):
            told = ForwardMsg.FromString(message)
            self.finished += told.HasField("script_finished")
            element = told.delta.new_element
            self.alerts.append(element.alert.body)
            for kind in ("button", "download_button", "text_input", "multiselect"):
                if element.HasField(kind):
                    control = getattr(element, kind)
                    self.elements[control.id.rpartition("-")[2]] = control
            socket.send(message)

        socket.on_message(from_page)
        server.on_message(from_server)

    def forge_click(self, key):
        """Sends what a browser would if the control were on, and waits until it was dealt with."""
        message = BackMsg()
        message.CopyFrom(self.asked)
        widgets = message.rerun_script.widget_states.widgets
        widgets.add(id=self.elements[key].id, trigger_value=True)
        for name, element in self.elements.items():
            if name.startswith("name_"):
                widgets.add(id=element.id, string_value="forged")
            elif name.startswith("tags_"):
                widgets.add(id=element.id).string_array_value.data.append("forged")
        # The browser knows nothing of this run: beginning in the middle of one of its own, it would take the
        # one's elements for leftovers of the other.
        settled(self.page)
        self.alerts, done = [], self.finished
        self.server.send(message.SerializeToString())
        wait_for(
            lambda: self.page.wait_for_timeout(20) or self.finished > done, 60, f"{key} to be dealt with"
        )

    def sign_in(self, name):
        self.page.goto(self.site.address)
        self.page.get_by_role("button", name="Sign in").click()
        self.page.get_by_role("link", name=name, exact=True).click()
        settled(self.page)

    def open(self, path, **query):
        query = {"data__dataset": "synthetic", **query}
        words = "&".join(f"{name.replace('__', '.')}={value}" for name, value in query.items())
        self.page.goto(f"{self.site.address}/{path}?{words}")
        # Not until nothing runs: a page that draws itself anew may never come to rest on a busy machine.
        title = self.page.get_by_role("heading", name=PAGES[path], exact=True, level=1)
        expect(title).to_be_visible(timeout=20_000)

    def unfold(self, label):
        """Opens an expander that is not open."""
        box = self.page.get_by_test_id("stExpander").filter(has_text=label)
        if box.get_by_test_id("stExpanderDetails").first.get_attribute("inert") is not None:
            box.get_by_text(label, exact=True).click()

    def control(self, key):
        return self.page.locator(f".st-key-{key} button").first

    def is_refused(self, key, forged=None):
        """The control is off and says why, and sending its click all the same changes nothing.

        Args:
            key: Of the control.
            forged: Of the one whose click is sent; by default the same, to which Streamlit does not listen.
        """
        self.tried |= {key, forged or key}
        control = self.control(key)
        expect(control).to_be_disabled(timeout=20_000)
        reason = self.page.get_by_role("tooltip").get_by_text(re.compile("may not"))

        def says_why():
            self.page.mouse.move(0, 0)
            control.scroll_into_view_if_needed()
            try:
                control.hover(force=True)  # what is off takes no pointer, its surroundings do
            except Error:
                return False  # a page that is being drawn has moved it away
            self.page.wait_for_timeout(300)
            return reason.is_visible()

        wait_for(says_why, 30, f"the reason why {key} is off")
        self.page.mouse.move(0, 0)
        before = self.site.contents()
        self.forge_click(forged or key)
        if forged is not None:
            # On the page itself it may stand in a popover that is closed.
            assert any("may not" in text for text in self.alerts), self.alerts
        assert self.site.contents() == before, key

    def changes(self, key, happened, *, inside=None):
        """A click on the control does what it says."""
        self.tried |= {key, inside or key}
        expect(self.control(key)).to_be_enabled(timeout=20_000)
        self.control(key).click()
        if inside is not None:
            self.page.locator(f".st-key-{inside} button").click()
        wait_for(lambda: self.page.wait_for_timeout(50) or happened(), 60, f"{key} to have its effect")


def named(store, kind, before):
    """Jobs of this kind that were not there before."""
    return [job for job in store.jobs(kinds=[kind]) if job.id not in before]


class Walk:
    """Tries every action as one person: it is done, or refused with the reason and without effect."""

    def __init__(self, site, visitor, role, person):
        self.store, self.visitor, self.role, self.person = site.store, visitor, role, person

    def may(self, owner):
        return self.role is Role.OWNER or (self.role is Role.RUNNER and owner == self.person)

    def asks_for(self, key, kind):
        """A control that queues a job of this kind, in the person's name."""
        if not self.may(self.person):
            self.visitor.is_refused(key)
            return
        before = {job.id for job in self.store.jobs()}
        self.visitor.changes(key, lambda: named(self.store, kind, before))
        for job in named(self.store, kind, before):
            assert job.owner == self.person
            self.store.finish(job.id, Status.FAILED, error=OFFLINE)

    def changes(self, owner, key, happened, *, forged=None):
        if self.may(owner):
            self.visitor.changes(key, happened, inside=forged)
        else:
            self.visitor.is_refused(key, forged)

    def run_of(self, owner, make):
        return make(Gate(self.store, Person(owner, Role.OWNER), None))

    def starts(self):
        open_page = self.visitor.open
        open_page("")
        self.asks_for("retry_reuters", Kind.PREPARE)
        open_page("")
        self.asks_for("lesson", Kind.TRAIN)
        open_page("data", data__dataset="reuters")
        self.asks_for("retry_reuters", Kind.PREPARE)
        open_page("devices")
        self.asks_for("inspect", Kind.INSPECT)
        self.asks_for("check", Kind.CHECK)
        open_page("training")
        self.visitor.unfold("New run")
        self.asks_for("start", Kind.TRAIN)
        open_page("one_step")
        self.asks_for("take_step", Kind.STEP)
        open_page("scaling")
        self.visitor.unfold("New study")
        self.asks_for("start_study", Kind.TRAIN)

    def describes(self):
        """A model nobody has asked about is described for those who may set an engine to work."""
        if not self.may(self.person):
            self.visitor.open("model")  # the one model that everybody sees is asked for by nobody
            expect(self.visitor.page.get_by_text("Keras is building the model.")).to_be_visible()
        before = self.store.jobs(kinds=[Kind.DESCRIBE])
        size = 100 + list(Role).index(self.role)
        self.visitor.open("model", model__embedding_size=size)
        if self.may(self.person):
            expect(self.visitor.page.get_by_text("Keras is building the model.")).to_be_visible()
            assert len(self.store.jobs(kinds=[Kind.DESCRIBE])) == len(before) + 1
        else:
            expect(self.visitor.page.get_by_text("Viewers may not set an engine to work.")).to_be_visible()
            assert self.store.jobs(kinds=[Kind.DESCRIBE]) == before
        # It could not be built, nor could the one that viewers see.
        for job in self.store.jobs(kinds=[Kind.DESCRIBE]):
            self.store.finish(job.id, Status.FAILED, error=OFFLINE)
        self.visitor.open("model", model__embedding_size=size)
        self.asks_for("describe_again", Kind.DESCRIBE)

    def imports(self):
        self.visitor.open("runs")
        self.visitor.unfold("Import a training log")
        if not self.may(self.person):
            self.visitor.is_refused("import_now")
            expect(self.visitor.page.locator(".st-key-import_files input[type=file]")).to_be_disabled()
            self.visitor.tried.add("import_files")
            return
        log = {"name": "log.csv", "mimeType": "text/csv", "buffer": b"epoch,loss,val_loss\n0,2,2\n1,1,2\n"}
        self.visitor.page.locator(".st-key-import_files input[type=file]").set_input_files(log)
        expect(self.visitor.page.get_by_test_id("stFileChipName")).to_be_visible()
        self.visitor.tried.add("import_files")
        before = {job.id for job in self.store.jobs()}
        self.visitor.changes("import_now", lambda: named(self.store, Kind.IMPORT, before))
        assert named(self.store, Kind.IMPORT, before)[0].owner == self.person

    def ends(self, owner):
        run = self.run_of(owner, lambda store: running_run(store, epochs=2))
        status = lambda: self.store.job(run.id).status  # noqa: E731
        self.visitor.open("training", run=run.id)
        self.changes(owner, "pause", lambda: status() is Status.PAUSING)
        self.changes(owner, "stop", lambda: status() is Status.STOPPING)
        self.store.finish(run.id, Status.FAILED)

    def goes_on(self, owner):
        run = self.run_of(owner, lambda store: finished_run(store, epochs=2, status=Status.STOPPED))
        status = lambda: self.store.job(run.id).status  # noqa: E731
        self.visitor.open("training", run=run.id)
        self.changes(owner, "resume", lambda: status() is Status.QUEUED)
        self.leaves_the_queue(owner, run)
        self.visitor.open("training", run=run.id, layout__logical_devices=4)
        self.changes(owner, "resume_elsewhere", lambda: status() is Status.QUEUED)
        if self.may(owner):
            assert self.store.job(run.id).config["layout"]["logical_devices"] == 4
        self.leaves_the_queue(owner, run)
        self.visitor.open("training", run=run.id)
        self.changes(owner, "extend", lambda: status() is Status.QUEUED, forged="extend_now")
        self.leaves_the_queue(owner, run)

    def leaves_the_queue(self, owner, run):
        if not self.may(owner):
            assert self.store.job(run.id).status is Status.STOPPED
            return
        expect(self.visitor.control("stop")).to_contain_text("Leave the queue", timeout=20_000)
        self.visitor.changes("stop", lambda: self.store.job(run.id).status is Status.STOPPED)

    def exports(self):
        """Reading what a run has come to is for everybody, an engine's work for runners."""
        run = self.run_of(OTHER, lambda store: finished_run(store, epochs=2))
        self.visitor.open("training", run=run.id)
        page = self.visitor.page
        settled(page)  # a button that is clicked while it is drawn anew downloads nothing
        self.visitor.unfold("Take it away")
        for kind in ("csv", "json", "parquet", "py", "ipynb"):
            with page.expect_download() as free:
                self.visitor.control(f"export_{kind}").click()
            assert free.value.path().stat().st_size > 0, kind
        for kind, which in (
            ("tensorboard", "last"),
            *((kind, which) for kind in ("keras", "savedmodel") for which in ("best", "last")),
        ):
            key = f"export_{kind}_{which}"
            if self.may(self.person):
                self.takes_away(run, kind, which, key)
            else:
                self.visitor.unfold("Take it away")
                self.visitor.is_refused(key)

    def takes_away(self, run, kind, which, key):
        """An engine makes the file, in the person's name."""
        page = self.visitor.page
        self.visitor.tried.add(key)
        file = exported(self.store.checkpoints(run.id), order(run, kind, which))
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(key.encode())
        with page.expect_download() as made:
            self.visitor.control(key).click()
            job = wait_for(
                lambda: page.wait_for_timeout(50) or claim(self.store, [Kind.EXPORT], "e"), 20, "the export"
            )
            self.store.finish(job.id, Status.COMPLETED, result={"file": str(file)})
        assert made.value.path().read_bytes() == key.encode()
        assert job.owner == self.person

    def evaluates(self):
        """A model that nobody has evaluated yet is evaluated for those who may set an engine to work."""
        run = self.run_of(OTHER, lambda store: finished_run(store, epochs=2))
        before = {job.id for job in self.store.jobs()}
        self.visitor.open("evaluate", run=run.id)
        asked = predictions.order(run, "best")
        if not self.may(self.person):
            expect(self.visitor.page.get_by_text("Nobody has asked the model")).to_be_visible()
            assert named(self.store, Kind.EVALUATE, before) == []
            self.fails(Kind.EVALUATE, asked)
        else:
            jobs = wait_for(
                lambda: self.visitor.page.wait_for_timeout(50) or named(self.store, Kind.EVALUATE, before),
                60,
                "the evaluation to be asked for",
            )
            assert jobs[0].owner == self.person
            self.store.finish(jobs[0].id, Status.FAILED, error=OFFLINE)
        self.visitor.open("evaluate", run=run.id)
        self.asks_for(f"evaluate_again_{run.id}", Kind.EVALUATE)

        data = corpus.load(self.store.home, "synthetic")
        evaluated(self.store, run, data)
        self.visitor.open("evaluate", run=run.id)
        words = self.visitor.page.locator("[class*=st-key-words_]").first
        row = int(re.search(r"st-key-words_(\d+)", words.get_attribute("class"))[1])
        read = newswire.read(data.text(data.rows("test")[row]), data, run.config["data"]["max_len"])
        self.fails(Kind.CLASSIFY, predictions.question(asked, read.ids))
        words.get_by_text("Words that mattered").click()
        self.asks_for(f"words_of_{row}_again", Kind.CLASSIFY)
        self.visitor.open("evaluate", run=run.id)
        field = self.visitor.page.get_by_role("textbox", name="Newswire")
        field.fill(f"word1 word2 word{3 + list(Role).index(self.role)}")
        self.asks_for("classify", Kind.CLASSIFY)

    def fails(self, kind, asked):
        self.store.finish(claimed(self.store, kind, asked).id, Status.FAILED, error=OFFLINE)

    def edits(self, owner):
        run = self.run_of(owner, finished_run)
        now = lambda: self.store.job(run.id)  # noqa: E731
        self.visitor.open("runs", runs=f'["{run.id}"]')
        page = self.visitor.page
        for key, inside, happened in (
            ("rename", "save_name", lambda: now().name == "renamed"),
            ("tags", "save_tags", lambda: now().tags == ["new"]),
        ):
            if self.may(owner):
                self.visitor.tried |= {key, inside}
                expect(self.visitor.control(key)).to_be_enabled()
                self.visitor.control(key).click()
                field = page.get_by_role("textbox", name="Name", exact=True).last
                if key == "tags":
                    field = page.get_by_role("combobox", name="Tags")
                field.fill("renamed" if key == "rename" else "new")
                page.keyboard.press("Enter")
                page.keyboard.press("Tab")  # what was offered no longer covers the button
                page.locator(f".st-key-{inside} button").click()
                wait_for(lambda: page.wait_for_timeout(50) or happened(), 60, key)  # noqa: B023
                page.keyboard.press("Escape")
            else:
                self.visitor.is_refused(key, inside)
        gone = lambda: not [job for job in self.store.jobs(kinds=RUNS) if job.id == run.id]  # noqa: E731
        self.changes(owner, "delete", gone, forged="delete_for_good")

    def stops_a_study(self, owner):
        study = self.run_of(owner, lambda store: store.submit_study(Scaling.STRONG, [RUN]))
        self.visitor.open("scaling", study=study)
        ended = lambda: all(job.status is Status.STOPPED for job in self.store.study(study))  # noqa: E731
        self.changes(owner, "stop_study", ended)
        for job in self.store.study(study):
            self.store.request_stop(job.id)


@pytest.mark.parametrize(
    ("name", "person", "role"),
    [
        ("viewer", "viewer@home.org", Role.VIEWER),
        ("runner", "runner@school.edu", Role.RUNNER),
        ("owner", "owner@school.edu", Role.OWNER),
    ],
)
def test_every_action_is_done_or_refused_as_the_role_has_it(site, name, person, role):
    with site.visitor(name) as visitor:
        walk = Walk(site, visitor, role, person)
        for step in (walk.starts, walk.describes, walk.imports, walk.exports, walk.evaluates):
            step()
        for owner in (person, OTHER) if role is Role.RUNNER else (OTHER,):
            for step in (walk.ends, walk.goes_on, walk.edits, walk.stops_a_study):
                step(owner)
        inside = {"extend_epochs", r"name_\w+", r"tags_\w+"}  # what a button beside them sends
        assert {
            pattern for pattern in ACTIONS if not any(re.fullmatch(pattern, key) for key in visitor.tried)
        } == inside


def test_nobody_sees_anything_before_signing_in_or_after_signing_out(site):
    run = finished_run(site.store, epochs=2)
    site.store.rename(run.id, "secret name")
    with site.visitor() as visitor:
        page = visitor.page
        for path in PATHS:
            page.goto(f"{site.address}/{path}?run={run.id}")
            expect(page.get_by_role("button", name="Sign in")).to_be_visible(timeout=20_000)
            settled(page)
            assert not [name for name in visitor.elements if not name.startswith("sign_in")]
            assert "secret name" not in page.content()
        visitor.sign_in("viewer")
        visitor.open("training", run=run.id)
        expect(page.get_by_text("viewer@home.org")).to_be_visible()
        expect(page.get_by_text("Run secret name")).to_be_visible()
        page.get_by_role("button", name="Sign out").click()
        expect(page.get_by_role("button", name="Sign in")).to_be_visible(timeout=20_000)
        page.goto(f"{site.address}/training?run={run.id}")
        expect(page.get_by_role("button", name="Sign in")).to_be_visible(timeout=20_000)


def test_a_cookie_that_somebody_has_written_lets_nobody_in(site):
    with site.visitor("viewer") as visitor:
        cookie = next(one for one in visitor.page.context.cookies() if one["name"] == "_streamlit_user")
        middle = len(cookie["value"]) // 2
        changed = "A" if cookie["value"][middle] != "A" else "B"
        cookie["value"] = cookie["value"][:middle] + changed + cookie["value"][middle + 1 :]
        visitor.page.context.add_cookies([cookie])
        visitor.page.goto(f"{site.address}/runs")
        expect(visitor.page.get_by_role("button", name="Sign in")).to_be_visible(timeout=20_000)


def test_whom_no_role_names_gets_in_nowhere_and_learns_by_what_name_they_are_known(site):
    with site.visitor("stranger") as visitor:
        for path in PATHS:
            visitor.page.goto(f"{site.address}/{path}")
            heading(visitor.page, "No access")
            expect(visitor.page.get_by_text("stranger@elsewhere.net")).to_be_visible()
            assert set(visitor.elements) == {"sign_out"}


def test_an_address_that_the_provider_does_not_vouch_for_gives_nobodys_role(site):
    with site.visitor("pretender") as visitor:
        visitor.open("runs")
        expect(visitor.page.get_by_text("sub:pretender")).to_be_visible()
        expect(visitor.page.get_by_text("Signed in as viewer")).to_be_visible()


def test_a_dashboard_that_others_can_reach_is_read_only_without_sign_in(site, tmp_path):
    home = tmp_path / "home"
    store = Store(home)
    prepared(store)
    run = running_run(store, epochs=2)
    environment = {"MIRRORBOARD_WATCH": "1", "STREAMLIT_SERVER_ADDRESS": "0.0.0.0"}
    with (
        dashboard(home, **environment) as address,
        Site(address, store, site.browser).visitor() as visitor,
    ):
        visitor.open("training", run=run.id)
        expect(visitor.page.get_by_text("Read-only.")).to_be_visible()
        expect(visitor.page.get_by_text("MIRRORBOARD_ROLE=owner")).to_be_visible()
        visitor.is_refused("stop")
        visitor.is_refused("pause")
    environment["MIRRORBOARD_ROLE"] = "owner"
    with (
        dashboard(home, **environment) as address,
        Site(address, store, site.browser).visitor() as visitor,
    ):
        visitor.open("training", run=run.id)
        expect(visitor.page.get_by_text("Read-only.")).to_have_count(0)
        visitor.changes("stop", lambda: store.job(run.id).status is Status.STOPPING)
    store.close()
