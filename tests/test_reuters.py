"""Reuters through Keras's own loader: what is in it, and what happens when its files are bad or missing.

Uses the real files from Keras's cache or the network. Downloads are tested against a server of our own
that serves those files, so that the network's state does not matter.
"""

from __future__ import annotations

import json
import os
import shutil
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from core import corpus as corpora
from core.analysis.dataset import class_balance, padding, shards
from core.corpus import START, UNKNOWN, Corpus
from core.engine import datasets, synthetic
from core.errors import DatasetError, DownloadFailed
from core.synthetic_newswires import TEST_COUNTS, TRAIN_COUNTS

ROOT = Path(__file__).parent.parent
FILES = ("reuters.npz", "reuters_word_index.json")


def quiet(phase: str, done: int, total: int) -> None:
    """Progress that nobody watches."""


@pytest.fixture(scope="session")
def reuters_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store's folder with Reuters prepared in it."""
    home = tmp_path_factory.mktemp("reuters")
    try:
        datasets.prepare("reuters", home, quiet)
    except DownloadFailed as error:
        pytest.skip(f"the real Reuters files are needed: {error.message}")
    return home


@pytest.fixture(scope="session")
def reuters(reuters_home: Path) -> Corpus:
    """Reuters as it comes back from Parquet."""
    return corpora.load(reuters_home, "reuters")


@pytest.fixture(scope="session")
def originals(reuters_home: Path) -> dict[str, bytes]:
    """The content of the real files by name."""
    folder = datasets.cache_folders()[0]
    return {name: (folder / name).read_bytes() for name in FILES}


# What is in it


def test_reuters_is_what_the_chapter_says(reuters: Corpus) -> None:
    assert (len(reuters.rows("train")), len(reuters.rows("test"))) == (8_982, 2_246)
    assert len(reuters.class_names) == 46
    assert reuters.class_names[3:5] == ["earn", "acq"]
    assert reuters.title == "Reuters newswires"
    assert not reuters.is_synthetic


def test_every_word_id_fits_the_embedding(reuters: Corpus) -> None:
    assert reuters.vocabulary == 30_982
    assert reuters.tokens.max() == 30_981
    # Keras turns the greatest id, which one newswire holds once, into unknown.
    assert (reuters.tokens == UNKNOWN).sum() == 1


def test_words_are_decoded_with_the_index_offset(reuters: Corpus) -> None:
    assert reuters.words[:7] == ["<pad>", "<start>", "<unk>", "<unused>", "the", "of", "to"]
    assert reuters.text(0).startswith(
        "mcgrath rentcorp said as a result of its december acquisition of space co"
    )
    assert reuters.class_names[reuters.labels[0]] == "earn"
    assert all(reuters.tokens[reuters.offsets[:-1]] == START)
    assert reuters.words.count("<unused>") == 1


def test_class_counts_of_reuters(reuters: Corpus) -> None:
    # The figures that the synthetic newswires copy.
    train = class_balance(reuters.split_labels("train"), 46)
    assert train.counts.tolist() == list(TRAIN_COUNTS)
    assert class_balance(reuters.split_labels("test"), 46).counts.tolist() == list(TEST_COUNTS)
    assert reuters.class_names[train.majority] == "earn"
    assert train.majority_share == pytest.approx(0.352, abs=0.0005)
    assert train.imbalance == 315.9
    assert train.missing == []


def test_share_truncated_at_300(reuters: Corpus) -> None:
    train = padding(reuters.lengths[: reuters.train_size], 300)
    assert train.truncated_share == pytest.approx(0.110, abs=0.0005)
    assert padding(reuters.lengths[reuters.train_size :], 300).truncated_share == pytest.approx(
        0.116, abs=0.0005
    )


@pytest.mark.parametrize("max_len", [1, 7, 300, 3_000])
def test_padded_is_what_keras_makes(reuters: Corpus, max_len: int) -> None:
    sequences = [reuters.sequence(row) for row in reuters.rows("test")]
    expected = keras.utils.pad_sequences(sequences, max_len)
    padded = reuters.padded("test", max_len)
    assert padded.dtype == expected.dtype
    assert np.array_equal(padded, expected)


CUT = """
import json
import tensorflow as tf
[cpu] = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 8)
cut = []
for replicas in (2, 3, 4, 8):
    strategy = tf.distribute.MirroredStrategy([f"/CPU:{i}" for i in range(replicas)])
    for rows in (1, 3, 9, 22, 24):
        batches = strategy.experimental_distribute_dataset(tf.data.Dataset.range(rows).batch(24))
        shards = [shard.numpy().tolist() for b in batches for shard in strategy.experimental_local_results(b)]
        cut.append((rows, replicas, shards))
print(json.dumps(cut))
"""


def test_shards_are_cut_as_tf_distribute_cuts_them() -> None:
    # In a process of its own: TensorFlow takes one device layout in its life.
    done = subprocess.run(
        [sys.executable, "-c", CUT], capture_output=True, text=True, check=True, timeout=120
    )
    cut = json.loads(done.stdout)
    assert len(cut) == 20
    for rows, replicas, expected in cut:
        assert [list(shard) for shard in shards(rows, replicas)] == expected


# What was prepared


def test_a_second_preparation_reads_the_parquet_file(reuters: Corpus, reuters_home: Path) -> None:
    phases: list[str] = []
    again = datasets.prepare("reuters", reuters_home, lambda phase, done, total: phases.append(phase))
    assert phases == ["reading the prepared dataset"]
    assert np.array_equal(again.tokens, reuters.tokens)


def test_a_damaged_parquet_file_is_made_again(home: Path) -> None:
    datasets.prepare("synthetic", home, quiet)
    file = corpora.path(home, "synthetic")
    whole = file.read_bytes()
    file.write_bytes(whole[: len(whole) // 2])
    assert datasets.prepare("synthetic", home, quiet).train_size == 8_982
    assert file.read_bytes() == whole


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"labels": np.full(11_228, 46, np.int32)}, "labels from 46 to 46, outside 0 to 45"),
        ({"labels": np.full(11_228, -1, np.int32)}, "labels from -1 to -1, outside 0 to 45"),
        ({"words": ["<pad>", "<start>"]}, "word ids from 1 to 30,981, outside 0 to 1"),
        ({"train_size": 11_228}, "11,228 of 11,228 examples are for training"),
    ],
)
def test_impossible_values_are_found(change: dict[str, Any], said: str, home: Path) -> None:
    bad = replace(synthetic.generate(), **change)
    with pytest.raises(DatasetError, match=said):
        datasets._checked(bad)
    # Where such a file was prepared it is made again.
    corpora.save(bad, home)
    assert datasets.prepare("synthetic", home, quiet).labels.max() == 45


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "datasets").write_text("not a folder")
    with pytest.raises(DatasetError, match="cannot be written") as caught:
        datasets.prepare("synthetic", tmp_path, quiet)
    assert str(tmp_path / "datasets") in caught.value.message
    assert caught.value.hint


# What Keras's cache holds, and what the network gives

PREPARE = """
import json, sys
from pathlib import Path
from core.engine import datasets
from core.errors import DatasetError
from keras.src.backend.config import keras_home
phases, out = [], {}
try:
    corpus = datasets.prepare("reuters", Path(sys.argv[1]), lambda *phase: phases.append(phase))
    out["text"] = corpus.text(0)
except DatasetError as error:
    out |= {"error": type(error).__name__, **vars(error)}
print(json.dumps({**out, "phases": phases, "keras_home": keras_home()}))
"""


@dataclass
class Machine:
    """A Keras cache and a network of our own, for preparations in fresh processes."""

    folder: Path
    environment: dict[str, str] = field(
        default_factory=lambda: dict.fromkeys(("http_proxy", "https_proxy"), "http://127.0.0.1:9")
    )

    @property
    def cache(self) -> Path:
        """Keras's folder of datasets."""
        return self.folder / "keras" / "datasets"

    def cached(self) -> dict[str, bytes]:
        """Everything in Keras's folder of datasets."""
        return {file.name: file.read_bytes() for file in self.cache.iterdir()}

    def prepare(self, home: str = "home") -> dict[str, Any]:
        """Prepares Reuters in a process whose standard output must hold nothing but the outcome."""
        self.cache.mkdir(parents=True, exist_ok=True)
        environment = {k: v for k, v in os.environ.items() if k.lower() != "no_proxy"}
        done = subprocess.run(
            [sys.executable, "-c", PREPARE, str(self.folder / home)],
            cwd=ROOT,
            env={**environment, "KERAS_HOME": str(self.cache.parent), **self.environment},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        outcome: dict[str, Any] = json.loads(done.stdout)
        assert outcome["keras_home"] == str(self.cache.parent)
        return outcome


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    """A machine without a network whose Keras cache is empty."""
    return Machine(tmp_path)


@pytest.fixture
def served(originals: dict[str, bytes]) -> dict[str, bytes]:
    """What `server` serves; tests may change it."""
    return dict(originals)


@pytest.fixture
def server(machine: Machine, tmp_path: Path, served: dict[str, bytes]) -> Iterator[Machine]:
    """The machine with a network, on which a proxy answers for Keras's file server, over TLS."""
    if not shutil.which("openssl"):
        pytest.skip("openssl is needed to make a certificate")
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    host = "storage.googleapis.com"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-subj", f"/CN={host}", "-addext", f"subjectAltName=DNS:{host}"),
            *("-out", str(certificate), "-keyout", str(key)),
        ],
        check=True,
        capture_output=True,
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_CONNECT(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.connection = context.wrap_socket(self.connection, server_side=True)
            self.rfile, self.wfile = self.connection.makefile("rb"), self.connection.makefile("wb")
            self.close_connection = False

        def do_GET(self) -> None:
            content = served[Path(self.path).name]
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.send_header("Connection", "close")
            self.end_headers()
            step = len(content) // 5 + 1
            for start in range(0, len(content), step):
                self.wfile.write(content[start : start + step])
                self.wfile.flush()
                time.sleep(0.2)

        def finish(self) -> None:
            super().finish()
            self.connection.close()

        def log_message(self, *arguments: Any) -> None:
            """Says nothing."""

    proxy = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=proxy.serve_forever)
    thread.start()
    machine.environment = {
        "https_proxy": f"http://127.0.0.1:{proxy.server_address[1]}",
        "SSL_CERT_FILE": str(certificate),
    }
    yield machine
    proxy.shutdown()
    thread.join()
    proxy.server_close()


def test_offline_without_files(machine: Machine) -> None:
    outcome = machine.prepare()
    assert outcome["error"] == "DownloadFailed"
    assert outcome["message"] == "No network: the Reuters newswires could not be fetched."
    assert outcome["hint"] == "Connect to the internet and try again, or choose the synthetic dataset."
    assert "URL fetch failure" in outcome["details"]
    assert "refused" in outcome["details"]
    assert str(machine.cache) in outcome["details"]
    assert machine.cached() == {}
    assert not (machine.folder / "home").exists()


def test_offline_with_a_damaged_file(machine: Machine) -> None:
    machine.cache.mkdir(parents=True)
    (machine.cache / "reuters.npz").write_bytes(b"half a download")
    outcome = machine.prepare()
    assert outcome["error"] == "DatasetDamaged"
    assert outcome["message"] == "No network, and reuters.npz in Keras's cache is damaged."
    assert f"{machine.cache / 'reuters.npz'} was left as it is." in outcome["details"]
    assert "synthetic" in outcome["hint"]
    assert machine.cached() == {"reuters.npz": b"half a download"}


def test_offline_with_good_files(machine: Machine, originals: dict[str, bytes]) -> None:
    machine.cache.mkdir(parents=True)
    for name, content in originals.items():
        (machine.cache / name).write_bytes(content)
    before = {name: (machine.cache / name).stat() for name in FILES}
    outcome = machine.prepare()
    assert outcome["text"].startswith("mcgrath rentcorp said")
    assert machine.cached() == originals
    for name in FILES:
        now = (machine.cache / name).stat()
        assert (now.st_ino, now.st_mtime_ns) == (before[name].st_ino, before[name].st_mtime_ns)


def test_a_download_is_followed_and_fills_the_cache(server: Machine, originals: dict[str, bytes]) -> None:
    outcome = server.prepare()
    assert outcome["text"].startswith("mcgrath rentcorp said")
    assert server.cached() == originals
    done = [bytes_ for phase, bytes_, _ in outcome["phases"] if phase == "downloading reuters.npz"]
    assert done == sorted(done)
    assert len(set(done)) >= 3
    totals = {phase: total for phase, _, total in outcome["phases"] if phase.startswith("downloading")}
    assert totals == {f"downloading {name}": len(content) for name, content in originals.items()}


def test_a_wrong_answer_is_no_dataset(server: Machine, served: dict[str, bytes]) -> None:
    served["reuters.npz"] = b"<html>Please sign in to this network</html>"
    outcome = server.prepare()
    assert outcome["error"] == "DownloadFailed"
    assert outcome["message"].startswith("What was fetched is incomplete or altered: ")
    assert "hash does not match" in outcome["details"]
    assert server.cached() == {}


def test_two_processes_at_once_replace_a_damaged_file(server: Machine, originals: dict[str, bytes]) -> None:
    server.cache.mkdir(parents=True)
    (server.cache / "reuters.npz").write_bytes(b"half a download")
    with ThreadPoolExecutor(2) as pool:
        outcomes = list(pool.map(server.prepare, ["home", "home"]))
    assert [outcome["text"][:7] for outcome in outcomes] == ["mcgrath"] * 2
    cached = server.cached()
    assert {name: cached.pop(name) for name in FILES} == originals
    assert all(name.endswith(".damaged") for name in cached)
    assert b"half a download" in cached.values()
    assert [file.name for file in corpora.folder(server.folder / "home").iterdir()] == ["reuters.parquet"]
