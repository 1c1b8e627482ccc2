"""A run's checkpoints: all it takes to go on after its last whole epoch, on any layout.

Keras's BackupAndRestore deletes its backup when a fit ends gracefully, and its ModelCheckpoint forgets the
best value over a restart (Keras 3.15). Here every run has a folder of its own. A file is written aside,
named by its SHA-256 and renamed into place, so it is whole or it is not there; damage that comes later is
noticed when it is read. Two generations are kept, and the weights of the best epoch of each.

Values are NumPy arrays in the order of the model's and the optimizer's variables, read from one replica:
the others hold the same.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from core.errors import TrainingError

_log = logging.getLogger("mirrorboard")

Arrays = list[NDArray[Any]]
_What = Literal["state", "best"]

_GENERATIONS = 2
_NAME = re.compile(r"(?P<what>state|best)-(?P<epoch>\d+)\.(?P<sha256>[0-9a-f]{64})\.npz")
_ABOUT = "about"


@dataclass(frozen=True)
class Patience:
    """What Keras's EarlyStopping has seen so far. Epochs count from zero."""

    best: float | None
    best_epoch: int
    wait: int


@dataclass(frozen=True)
class State:
    """A run after a whole epoch.

    Attributes:
        epochs: How many epochs are behind it.
        model: The model's variables, those of its random generators among them.
        optimizer: The optimizer's variables: step, learning rate, moments, schedule.
        best_epoch: One-based epoch of the lowest validation loss, None when none was finite.
        best_val_loss: That loss.
        patience: Of the early stopping, where there is one.
        damaged: Epochs of later checkpoints that could not be read.
    """

    epochs: int
    model: Arrays
    optimizer: Arrays
    best_epoch: int | None
    best_val_loss: float | None
    patience: Patience | None
    damaged: tuple[int, ...] = ()


class Checkpoints:
    """The files of one run's checkpoints.

    Args:
        folder: Where they are; made when the first is written.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def write(self, state: State, best: tuple[int, Arrays] | None, stored_epochs: int) -> None:
        """Adds a generation, and removes what is too old.

        Args:
            state: The run.
            best: One-based epoch and model variables, when the best epoch has changed.
            stored_epochs: Epochs of the newest generation that the run store knows of, 0 for none. Were the
                engine to die now, the run would go on from there, so that one is kept however old it is.

        Raises:
            OSError: The disk does not take it; what was there before still is.
        """
        self._folder.mkdir(parents=True, exist_ok=True)
        if best is not None:
            self._add("best", best[0], {"model": best[1]}, {})
        about = {
            "best_epoch": state.best_epoch,
            "best_val_loss": state.best_val_loss,
            "patience": None if state.patience is None else asdict(state.patience),
        }
        self._add("state", state.epochs, {"model": state.model, "optimizer": state.optimizer}, about)
        for what in ("state", "best"):
            files = self._files(what)
            known = next((file for file in files if _epoch(file) <= stored_epochs), None)
            for old in files[_GENERATIONS:]:
                if old != known:
                    old.unlink()

    def newest(self, most: int) -> State | None:
        """The newest generation that is whole; later ones, and damaged ones, are removed.

        Where none is whole, later ones stay: they may be of a store that somebody goes back to.

        Args:
            most: The newest that counts: what the run has recorded. 0 begins anew.

        Returns:
            The state; None when none was asked for.

        Raises:
            TrainingError: There was one, but none can be read.
        """
        for aside in self._folder.glob("*.part"):
            aside.unlink()
        damaged: list[int] = []
        for file in self._files("state"):
            if _epoch(file) > most:
                continue
            found = _read(file)
            if found is not None:
                self._drop_after(most)
                arrays, about = found
                patience = about["patience"]
                return State(
                    epochs=_epoch(file),
                    model=arrays["model"],
                    optimizer=arrays["optimizer"],
                    best_epoch=about["best_epoch"],
                    best_val_loss=about["best_val_loss"],
                    patience=None if patience is None else Patience(**patience),
                    damaged=tuple(damaged),
                )
            damaged.append(_epoch(file))
            _log.warning("The checkpoint of epoch %d is damaged; going back to the one before.", damaged[-1])
            file.unlink()
        if most:
            raise TrainingError(
                "None of the run's checkpoints can be read.",
                "They were damaged or deleted on the disk, or are newer than what was restored from a backup."
                " Start a new run with the same settings.",
            )
        self._drop_after(0)
        return None

    @property
    def newest_epoch(self) -> int:
        """Epochs behind the newest generation, whole or not; 0 without one."""
        return max(map(_epoch, self._files("state")), default=0)

    def _drop_after(self, epoch: int) -> None:
        for file in [*self._files("state"), *self._files("best")]:
            if _epoch(file) > epoch:
                file.unlink()

    def model(self, what: Literal["best", "last"], epoch: int) -> Arrays:
        """The model's variables after an epoch.

        Args:
            what: Whether it is the best or the last.
            epoch: Its one-based number.

        Raises:
            TrainingError: The file is not there any more, or damaged.
        """
        files = self._files("best" if what == "best" else "state")
        file = next((file for file in files if _epoch(file) == epoch), None)
        found = None if file is None else _read(file)
        if found is None:
            raise TrainingError(
                f"The {what} model, of epoch {epoch}, cannot be read.",
                "Its checkpoint is damaged or was deleted; try the other of best and last.",
            )
        return found[0]["model"]

    def _add(self, what: _What, epoch: int, arrays: dict[str, Arrays], about: dict[str, Any]) -> None:
        aside = self._folder / f"{what}-{epoch:05d}.part"
        named = {f"{name}.{i:04d}": array for name, group in arrays.items() for i, array in enumerate(group)}
        text = np.frombuffer(json.dumps(about).encode(), np.uint8)
        try:
            with aside.open("w+b") as file:
                np.savez(file, allow_pickle=False, **{_ABOUT: text}, **named)
                file.flush()
                os.fsync(file.fileno())
                file.seek(0)
                digest = hashlib.file_digest(file, "sha256").hexdigest()
            aside.replace(self._folder / f"{what}-{epoch:05d}.{digest}.npz")
        except OSError:
            aside.unlink(missing_ok=True)
            raise
        _sync(self._folder)

    def _files(self, what: _What) -> list[Path]:
        """Whole files of one kind, the newest first."""
        found = [file for file in self._folder.glob(f"{what}-*.npz") if _NAME.fullmatch(file.name)]
        return sorted(found, key=_epoch, reverse=True)


def _epoch(file: Path) -> int:
    match = _NAME.fullmatch(file.name)
    assert match is not None
    return int(match["epoch"])


def _read(file: Path) -> tuple[dict[str, Arrays], dict[str, Any]] | None:
    """What a file holds; None when its content is not what its name says."""
    match = _NAME.fullmatch(file.name)
    assert match is not None
    try:
        with file.open("rb") as content:
            if hashlib.file_digest(content, "sha256").hexdigest() != match["sha256"]:
                return None
            content.seek(0)
            with np.load(content, allow_pickle=False) as stored:
                about: dict[str, Any] = json.loads(stored[_ABOUT].tobytes())
                arrays: dict[str, Arrays] = {}
                for name in sorted(stored.files):
                    if name != _ABOUT:
                        arrays.setdefault(name.split(".")[0], []).append(stored[name])
    except OSError:
        return None
    return arrays, about


def _sync(folder: Path) -> None:
    """Makes a rename last over a power failure; Windows has no such call for folders."""
    if os.name == "posix":
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
