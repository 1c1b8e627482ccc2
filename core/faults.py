"""What ended a job before its time, in words: what happened, what is kept, and what to do."""

from __future__ import annotations

import re
import signal

from core.config import parse_config
from core.errors import EngineError, OutOfMemory, TrainingError
from core.records import Job, Kind

_OUT_OF_MEMORY = re.compile(
    r"OOM when allocating|MemoryError|bad_alloc|(cannot|failed to) allocate memory|LLVM ERROR: out of memory"
    r"|failed to map segment from shared object(?!: (Operation|Permission))"
    r"|can't start new thread|pthread_create(\(\))? failed",
    re.IGNORECASE,
)
"""What TensorFlow 2.21, its LLVM, NumPy, C++ and glibc say when memory, a thread's stack too, runs out."""


def exit_in_words(code: int) -> str:
    """What an exit code says, such as ``killed: signal 9, often out of memory``."""
    if code >= 0:
        return f"exit code {code}"
    words: dict[int, str] = {
        signal.SIGKILL: "killed: signal 9, often out of memory",
        signal.SIGSEGV: "crashed: signal 11, a fault in native code",
        signal.SIGILL: "killed: signal 4, this processor lacks instructions that TensorFlow needs",
        signal.SIGABRT: "aborted: signal 6, native code gave up",
        signal.SIGBUS: "crashed: signal 7, often a full disk or shared memory",
        signal.SIGTERM: "terminated: signal 15",
    }
    return words.get(-code, f"killed: signal {-code}")


def died(job: Job, code: int, last_words: str) -> EngineError:
    """The engine process ended with an exit code before the job did; `last_words` end its log."""
    how = f"The engine process ended before the job did ({exit_in_words(code)})."
    if _OUT_OF_MEMORY.search(last_words):
        return _no_memory(job, f"The engine ran out of memory. {how}")
    advice = " When out of memory, use a smaller model or batch." if code == -signal.SIGKILL else ""
    return EngineError(how, f"What was recorded is kept. {_again(job)}{advice}")


def disappeared(job: Job) -> EngineError:
    """The engine process is gone, and no launcher knows how."""
    return EngineError(
        "The engine process disappeared, and nobody was there to see its exit code.",
        f"What was recorded is kept. The machine may have been restarted. {_again(job)}",
    )


def could_not_start(job: Job, code: int, last_words: str) -> EngineError:
    """The engine process that a job waits for ended before it was ready; `last_words` end its log."""
    how = f"The engine process could not start ({exit_in_words(code)})."
    if _OUT_OF_MEMORY.search(last_words):
        return _no_memory(job, f"The engine ran out of memory. {how}")
    return EngineError(
        how,
        "Check that TensorFlow is installed: python -c 'import tensorflow'.",
    )


def hung(job: Job, limit_s: float) -> EngineError:
    """The engine did not get to its first step."""
    where = f" It was at: {job.phase}." if job.phase else ""
    return EngineError(
        f"The engine made no progress for {limit_s:,.0f} s before its first step, so it was ended.{where}",
        f"{_again(job)} Choose fewer devices or another strategy if it hangs again;"
        " MIRRORBOARD_FIRST_STEP_LIMIT_S gives it more time.",
    )


def raised(job: Job, error: BaseException) -> EngineError | TrainingError:
    """An exception of TensorFlow, Keras or Python ended the job."""
    first = (str(error).strip().splitlines() or [""])[0][:300]
    text = f"{type(error).__name__}: {first}"
    if _OUT_OF_MEMORY.search(text) or type(error).__name__ == "ResourceExhaustedError":
        return _no_memory(job, f"The engine ran out of memory. {text}")
    return TrainingError(
        text, "The details hold TensorFlow's full message; a smaller batch or another layout may help."
    )


def diverged(job: Job, what: str) -> TrainingError:
    """The loss of a run is no finite number any more; `what` says since when."""
    rate = parse_config(job.config).learning_rate
    kept = "No epoch before that ended well."
    if job.checkpoint_epochs:
        kept = f"The model of epoch {job.checkpoint_epochs:,}, from before, is kept and can be exported."
    return TrainingError(
        f"{what}: the training diverged.",
        f"Start a new run with a learning rate below {rate:g}, a tenth of it say. {kept}",
    )


def _no_memory(job: Job, message: str) -> OutOfMemory:
    return OutOfMemory(
        message,
        "Use a smaller model, a smaller batch or fewer replicas, or end other programs. What was recorded is"
        f" kept. {_again(job)}",
    )


def _again(job: Job) -> str:
    if job.kind is Kind.TRAIN and job.checkpoint_epochs:
        return f"Resume it: it goes on after epoch {job.checkpoint_epochs:,}."
    return "Start again."
