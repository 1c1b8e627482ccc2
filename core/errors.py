"""The error tree. Every error says what was wrong, with the values, and what to do about it.

::

    MirrorboardError
    ├── ConfigError          a run's configuration cannot work; ``field`` names the setting
    │   ├── UnknownDevice    the layout asks for a device that this machine does not have
    │   └── LimitExceeded    a hosted dashboard allows less
    ├── NotAllowed           the person's role does not allow what was asked
    ├── StoreError           the run store cannot be opened, read or written
    │   ├── DiskFull         its disk has no room
    │   └── InvalidDatabase  a file to copy is damaged, newer than this code, or none of Mirrorboard's
    ├── NoRoom               the disk or the quota cannot hold a run
    ├── RunNotFound          no run has this id
    ├── RunStateError        the run's status does not allow what was asked of it
    ├── DatasetError         a dataset could not be prepared
    │   ├── DownloadFailed   its files are not cached and could not be fetched
    │   └── DatasetDamaged   its cached file is damaged and could not be fetched again
    ├── EngineError          an engine process failed or disappeared
    │   └── OutOfMemory      there was not enough memory for it
    └── TrainingError        TensorFlow or Keras refused or broke off the training
"""

from __future__ import annotations

INTERRUPTED = 130
"""Exit code of a command that Ctrl-C has ended."""


class MirrorboardError(Exception):
    """Base of all errors that are meant for people.

    Attributes:
        message: What was wrong, with the values.
        hint: What to do about it; may be empty.
        details: More for those who want to look into it; may be empty.
    """

    def __init__(self, message: str, hint: str = "", details: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.details = details

    def __str__(self) -> str:
        return f"{self.message} {self.hint}".strip()


class ConfigError(MirrorboardError):
    """A run's configuration cannot work.

    Attributes:
        field: Dotted name of the setting at fault, such as ``training.batch_size``; empty when
            several settings together are.
    """

    def __init__(self, message: str, hint: str = "", field: str = "") -> None:
        super().__init__(message, hint)
        self.field = field


class UnknownDevice(ConfigError):
    """The layout asks for a device that this machine does not have."""


class LimitExceeded(ConfigError):
    """It is more than a hosted dashboard allows: epochs, parameters, time, or runs at a time."""


class NotAllowed(MirrorboardError):
    """The person's role does not allow what was asked."""


class StoreError(MirrorboardError):
    """The run store cannot be opened, read or written."""


class DiskFull(StoreError):
    """The run store's disk has no room."""


class InvalidDatabase(StoreError):
    """A file to copy is damaged, newer than this code, or none of Mirrorboard's."""


class NoRoom(MirrorboardError):
    """The disk or the quota cannot hold a run, or the values of an import."""


class RunNotFound(MirrorboardError):
    """No run has this id."""


class RunStateError(MirrorboardError):
    """The run's status does not allow what was asked of it, such as to resume a run that goes on."""


class DatasetError(MirrorboardError):
    """A dataset could not be prepared."""


class DownloadFailed(DatasetError):
    """The dataset's files are not cached and could not be fetched."""


class DatasetDamaged(DatasetError):
    """The dataset's cached file is damaged and could not be fetched again."""


class EngineError(MirrorboardError):
    """An engine process failed or disappeared."""


class OutOfMemory(EngineError):
    """There was not enough memory for what an engine was to do."""


class TrainingError(MirrorboardError):
    """TensorFlow or Keras refused or broke off the training."""
