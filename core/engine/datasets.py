"""Brings a dataset into the store's folder: Reuters through Keras's own loader, or the synthetic one.

What Keras 3.15.1 does with its cached files, and why its loaders get a copy here
(``keras/src/utils/file_utils.py``, ``get_file``): a download goes straight to its final name, a cached
file with a wrong hash is overwritten, and deleted when the download fails. The loaders accept the name
of a file in Keras's cache folder and no other path, so the copy lies there, under a name of its own.
"""

from __future__ import annotations

import filecmp
import os
import secrets
import shutil
import socket
import ssl
import urllib.error
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import keras
import numpy as np

from core import corpus as corpora
from core.config import Dataset
from core.corpus import INDEX_OFFSET, PADDING, START, UNKNOWN, UNUSED, Corpus
from core.engine import synthetic
from core.errors import DatasetDamaged, DatasetError, DownloadFailed

Progress = Callable[[str, int, int], None]
"""Told the phase in words, the bytes done and the bytes in all (0 when the phase is not counted in bytes)."""

VOCABULARY = 30_982
"""Word ids of Reuters: `keras.datasets.reuters.load_data` turns the greatest id, 30,982, into unknown."""

_SIZES = {"reuters.npz": 2_110_848, "reuters_word_index.json": 550_378}
"""Bytes of the files whose hashes Keras 3.15.1 knows."""
_KERAS_TMP = Path("/tmp/.keras")  # noqa: S108 - Keras's choice
_KERAS_HOME = Path(
    os.environ.get("KERAS_HOME", Path.home() / ".keras" if os.access(Path.home(), os.W_OK) else _KERAS_TMP)
).expanduser()
"""As ``keras/src/backend/config.py`` finds it, when it is imported (Keras 3.15.1)."""
_TIMEOUT_S = 20.0
_POLL_S = 0.2


def prepare(name: Dataset, home: Path, progress: Progress) -> Corpus:
    """Brings a dataset into Parquet where it is not there already, and reads it.

    A Parquet file that cannot be read is made anew. Processes may prepare the same dataset at once.

    Args:
        name: Which dataset.
        home: The store's folder.
        progress: Told how far the work is, in the calling thread.

    Raises:
        DownloadFailed: The files are not in Keras's cache and could not be fetched.
        DatasetDamaged: A file in Keras's cache is damaged and could not be fetched again.
        DatasetError: The files do not hold what they should, or could not be read or written.
    """
    if corpora.path(home, name).exists():
        progress("reading the prepared dataset", 0, 0)
        try:
            return _checked(corpora.load(home, name))
        except DatasetError:
            # What was made from the original can be made again, and the original says more if it cannot.
            progress("the prepared dataset is damaged and is made again", 0, 0)
    if name == "synthetic":
        progress("generating the newswires", 0, 0)
        corpus = synthetic.generate()
    else:
        corpus = _reuters(progress)
    _checked(corpus)
    progress("writing the prepared dataset", 0, 0)
    try:
        corpora.save(corpus, home)
    except OSError as error:
        raise DatasetError(
            f"The prepared dataset cannot be written to {corpora.folder(home)} ({error}).",
            "Free some space or make the folder writable, or choose another with --home.",
        ) from error
    return corpus


def _reuters(progress: Progress) -> Corpus:
    (train, train_labels), (test, test_labels) = _through_keras(
        keras.datasets.reuters.load_data, "reuters.npz", progress
    )
    index: dict[str, int] = _through_keras(
        keras.datasets.reuters.get_word_index, "reuters_word_index.json", progress
    )
    words = [UNUSED] * VOCABULARY
    words[PADDING], words[START], words[UNKNOWN] = "<pad>", "<start>", "<unk>"
    for word, rank in index.items():
        if rank + INDEX_OFFSET < VOCABULARY:
            words[rank + INDEX_OFFSET] = word
    sequences = [*train, *test]
    return Corpus(
        name="reuters",
        title="Reuters newswires",
        tokens=np.concatenate([np.asarray(sequence, np.int32) for sequence in sequences]),
        offsets=np.cumsum([0, *map(len, sequences)], dtype=np.int64),
        labels=np.concatenate([train_labels, test_labels]).astype(np.int32),
        train_size=len(train),
        words=words,
        class_names=keras.datasets.reuters.get_label_names(),
    )


def cache_folders() -> list[Path]:
    """Where Keras 3.15.1 may hold its datasets, the folder that it writes to first.

    ``get_file`` goes to ``/tmp/.keras`` when Keras's home is not writable, and then does not see what that
    holds already.
    """
    homes = [_KERAS_HOME] if os.access(_KERAS_HOME, os.W_OK) else [_KERAS_TMP, _KERAS_HOME]
    return [home / "datasets" for home in homes]


def _through_keras(loader: Callable[..., Any], filename: str, progress: Progress) -> Any:
    """Calls one of Keras's loaders on a copy of its cached file, which Keras checks or fetches.

    A file that was fetched is put into Keras's cache; a damaged one is kept beside it.
    """
    folders = cache_folders()
    cached = next((f / filename for f in folders if (f / filename).exists()), None)
    copy = folders[0] / f".{secrets.token_hex(4)}-{filename}"
    try:
        copy.parent.mkdir(parents=True, exist_ok=True)
        if cached:
            shutil.copyfile(cached, copy)
        loading = _watched(loader, copy, progress)
        failure = loading.exception()
        if failure is None:
            _install(copy, folders[0] / filename)
            return loading.result()
    except OSError as error:
        raise DatasetError(
            f"Keras's cache cannot be used for {filename} ({error}).",
            "Make its folder readable and writable, or set KERAS_HOME to one that is.",
        ) from error
    finally:
        with suppress(OSError):
            copy.unlink()
    reason, advice = _why(failure)
    details = f"{str(failure).replace(': None -- ', ': ')}\n"
    if cached:
        raise DatasetDamaged(
            f"{reason}, and {filename} in Keras's cache is damaged.",
            f"{advice}, or choose the synthetic dataset.",
            details + f"{cached} was left as it is. An undamaged file may be put in its place.",
        ) from failure
    raise DownloadFailed(
        f"{reason}: the Reuters newswires could not be fetched.",
        f"{advice}, or choose the synthetic dataset.",
        details + f"A file from elsewhere may be put into {folders[0]}.",
    ) from failure


def _why(failure: BaseException) -> tuple[str, str]:
    """Why a download failed, and what to do.

    Keras 3.15 raises Exception in the place of urllib's error, and ValueError where the hash is wrong.
    """
    cause = failure.__context__ or failure
    if isinstance(cause, urllib.error.HTTPError):
        return f"The server answered {cause.code} {cause.reason}", "Try again later"
    if isinstance(cause, urllib.error.URLError) and isinstance(cause.reason, ssl.SSLError):
        return "The server's certificate was refused", "Check the network's proxy and the clock"
    if isinstance(failure, ValueError) or isinstance(cause, urllib.error.ContentTooShortError):
        return "What was fetched is incomplete or altered", "Try again"
    if isinstance(cause, TimeoutError) or isinstance(getattr(cause, "reason", None), TimeoutError):
        return "The network did not answer", "Connect to the internet and try again"
    return "No network", "Connect to the internet and try again"


def _watched(loader: Callable[..., Any], copy: Path, progress: Progress) -> Future[Any]:
    """Runs a loader in a thread of its own and reports how its file grows meanwhile.

    Returns:
        The loader's outcome, which is there.
    """
    filename = copy.name.partition("-")[2]
    before = _state(copy)
    with (
        _socket_timeout(),
        ThreadPoolExecutor(1, initializer=keras.utils.disable_interactive_logging) as pool,
    ):
        loading = pool.submit(loader, path=copy.name)
        while True:
            now = _state(copy)
            if now is None or (now != before and now[0] < _SIZES[filename]):
                progress(f"downloading {filename}", now[0] if now else 0, _SIZES[filename])
            else:
                progress(f"reading {filename}", 0, 0)
            if wait([loading], timeout=_POLL_S).done:
                return loading


def _state(file: Path) -> tuple[int, int] | None:
    """Bytes and time of change of a file, None when there is none."""
    try:
        stat = file.stat()
    except FileNotFoundError:
        return None
    return stat.st_size, stat.st_mtime_ns


@contextmanager
def _socket_timeout() -> Iterator[None]:
    """Lets a network that does not answer fail: Keras sets no timeout, and Python has none by default."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(_TIMEOUT_S)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)


def _install(copy: Path, target: Path) -> None:
    """Puts a file that Keras has fetched into its cache; does nothing when the cached one was good."""
    if target.exists():
        if filecmp.cmp(copy, target, shallow=False):
            return
        # A name of its own, so that no process puts another's file in place of the damaged one.
        target.rename(target.with_name(f"{target.name}.{secrets.token_hex(4)}.damaged"))
    copy.replace(target)


def _checked(corpus: Corpus) -> Corpus:
    """The corpus, if its ids and labels are ones that a model with its vocabulary and classes can take.

    An Embedding layer on a CPU raises on an id beyond it, on a GPU it silently returns zeros; the loss does
    likewise with labels (TensorFlow 2.21).

    Raises:
        DatasetError: They are not.
    """
    if not 0 < corpus.train_size < len(corpus.labels):
        raise DatasetError(
            f"{corpus.title}: {corpus.train_size:,} of {len(corpus.labels):,} examples are for training.",
            "Prepare the dataset again; training and validation both need some.",
        )
    for what, values, count in (
        ("word ids", corpus.tokens, corpus.vocabulary),
        ("labels", corpus.labels, len(corpus.class_names)),
    ):
        low, high = int(values.min()), int(values.max())
        if low < 0 or high >= count:
            raise DatasetError(
                f"{corpus.title} hold {what} from {low:,} to {high:,}, outside 0 to {count - 1:,}.",
                "Prepare the dataset again, from undamaged files.",
            )
    return corpus
