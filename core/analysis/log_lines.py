"""What TensorFlow's own log lines mean, in plain words.

The wording is that of TensorFlow 2.21 and Keras 3.15, with older spellings where people still meet them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from core.records import LogLine

Verdict = Literal["fine", "slower", "wrong"]
"""Whether a line tells of nothing to do, of lost speed, or of a fault."""


@dataclass(frozen=True)
class Explanation:
    """A line in plain words, and what follows from it."""

    verdict: Verdict
    text: str


@dataclass(frozen=True)
class Entry:
    """A line of a log, with every later repetition of it."""

    line: LogLine
    count: int
    explanation: Explanation | None


def _known(pattern: str, verdict: Verdict, text: str) -> tuple[re.Pattern[str], Explanation]:
    return re.compile(pattern), Explanation(verdict, text)


_KNOWN = (
    # Strategies and how they reduce.
    _known(
        r"Using MirroredStrategy with devices \('[^']*', '",
        "fine",
        "Each device named here holds a replica: a copy of the model that gets its share of every batch.",
    ),
    _known(
        r"Using MirroredStrategy with devices \(",
        "fine",
        "Only one device takes part, so there is one replica and nothing to synchronise.",
    ),
    _known(
        r"TF_CONFIG will be ignored",
        "wrong",
        "MirroredStrategy works inside one machine. The other machines named in TF_CONFIG do not take part;"
        " that takes MultiWorkerMirroredStrategy.",
    ),
    _known(
        r"NCCL is not supported when using virtual GPUs",
        "slower",
        "Logical devices of one GPU cannot use NCCL, so gradients are summed on one device and sent back."
        " The numbers are the same. On whole GPUs NCCL is used.",
    ),
    _known(
        r"There are non-GPU devices in .*not using nccl",
        "fine",
        "CPUs take part, and NCCL connects GPUs only. Gradients are summed on one device, as they must be.",
    ),
    _known(
        r"Nccl kernel is not found",
        "slower",
        "This TensorFlow has no NCCL, as on native Windows. Gradients are summed on one device; with several"
        " GPUs hierarchical copy may be faster.",
    ),
    _known(
        r"Some requested devices in .* are not visible to TensorFlow",
        "wrong",
        "The strategy names devices that TensorFlow cannot see. The run may hang or use fewer: check the"
        " visible devices.",
    ),
    _known(
        r"Reduce to .* then broadcast to",
        "fine",
        "One variable's gradient: the replicas' parts are summed on the first device named, and the sum goes"
        " back to all. The line comes once per variable, while the graph is built.",
    ),
    _known(
        r"Collective all_reduce (tensors|IndexedSlices)",
        "fine",
        "The gradients are summed by collective operations between the devices, packed into as few"
        " transfers as possible.",
    ),
    _known(
        r"Under XLA context, MirroredStrategy uses CollectiveAllReduce",
        "fine",
        "XLA brings its own all-reduce; the chosen cross-device ops are not used.",
    ),
    _known(
        r"not packing values due to the unknown or inconsistent shape",
        "slower",
        "A gradient's shape is not known beforehand, so the transfers cannot be packed together.",
    ),
    # The input pipeline.
    _known(
        r"Did not find a shardable source|AUTO-mode, and switching to DATA-based sharding|AutoShardPolicy",
        "slower",
        "The data is not in files that could be shared out, so every worker reads all of it and skips what"
        " is not its own. With one machine nothing is lost.",
    ),
    _known(
        r"GPUs? (is|are) allocated per worker",
        "slower",
        "The data reaches the first GPU only and is copied from there to the others.",
    ),
    _known(
        r"End of sequence|OUT_OF_RANGE",
        "fine",
        "The data of one epoch has been read to its end. Nothing is wrong.",
    ),
    _known(
        r"[Yy]our input ran out of data",
        "wrong",
        "The dataset ended before the epoch did: fewer steps were trained than asked for.",
    ),
    _known(
        r"exceeds \d+% of free system memory",
        "slower",
        "A single tensor takes a large part of the memory that is left. If the machine begins to swap, use"
        " smaller batches or shorter sequences.",
    ),
    # Tracing, XLA, numbers.
    _known(
        r"triggered tf\.function retracing",
        "slower",
        "A graph is built again and again, because a function gets Python values or shapes that change."
        " Each time costs as much as hundreds of steps.",
    ),
    _known(
        r"AutoGraph could not transform",
        "slower",
        "A Python function could not become part of the graph; it runs as it is.",
    ),
    _known(
        r"Gradients do not exist for variables",
        "wrong",
        "The variables named here have no influence on the loss, so they never learn.",
    ),
    _known(
        r"Converting sparse IndexedSlices",
        "slower",
        "An embedding's gradient, which touches few rows, is spread out to the whole table. With a large"
        " vocabulary that takes memory and time.",
    ),
    _known(
        r"XLA service .* initialized for platform",
        "fine",
        "The compiler XLA is ready. It is used only where it is asked for.",
    ),
    _known(
        r"Compiled cluster using XLA", "fine", "XLA has compiled a part of the graph. The wait comes once."
    ),
    _known(
        r"oneDNN custom operations are on",
        "fine",
        "Intel's oneDNN library computes on the CPU. It is faster, and the last digits may differ from other"
        " machines; TF_ENABLE_ONEDNN_OPTS=0 turns it off.",
    ),
    _known(
        r"optimized to use available CPU|This TensorFlow binary is optimized",
        "fine",
        "TensorFlow uses the vector instructions that all processors of this kind have. Nothing to do.",
    ),
    # GPUs at the start.
    _known(
        r"Could not find cuda drivers",
        "fine",
        "There is no NVIDIA driver on this machine, so TensorFlow uses the CPU. If there is a GPU, install"
        " its driver.",
    ),
    _known(
        r"failed call to cuInit|kernel driver does not appear to be running"
        r"|could not retrieve CUDA device count",
        "wrong",
        "CUDA is installed but finds no GPU: the driver is not loaded, or CUDA_VISIBLE_DEVICES hides them."
        " On a machine without a GPU it means nothing.",
    ),
    _known(
        r"Cannot dlopen some GPU libraries|Skipping registering GPU|Could not load dynamic library",
        "wrong",
        "A CUDA library is missing or of another version, so the GPU is not used."
        " `pip install tensorflow[and-cuda]` brings the matching ones.",
    ),
    _known(
        r"Unable to register cu(DNN|FFT|BLAS) factory",
        "fine",
        "A library was offered to TensorFlow twice. It is harmless and known.",
    ),
    _known(r"Could not find TensorRT", "fine", "TensorRT is for serving models; training does not need it."),
    _known(
        r"NUMA node read from SysFS had negative value",
        "fine",
        "The system does not say which processor a GPU is attached to; TensorFlow takes the first.",
    ),
    _known(
        r"Created device .*GPU",
        "fine",
        "A GPU, or one part of a split one, is ready, with the memory that TensorFlow may take of it.",
    ),
    _known(r"Loaded cuDNN version", "fine", "NVIDIA's library for convolutions is loaded and usable."),
    _known(
        r"Loaded runtime CuDNN library: .* but source was compiled with",
        "wrong",
        "The cuDNN that was found is older than the one TensorFlow was built for; convolutions will fail."
        " Update cuDNN.",
    ),
    _known(
        r"Could not create cudnn handle|CUDNN_STATUS_(INTERNAL_ERROR|NOT_INITIALIZED|ALLOC_FAILED)",
        "wrong",
        "cuDNN could not start, most often because another program holds the GPU's memory. Turn memory"
        " growth on, set a limit, or end the other program.",
    ),
    _known(
        r"TF_FORCE_GPU_ALLOW_GROWTH environment variable is set",
        "fine",
        "That environment variable overrules the setting for memory growth.",
    ),
    _known(
        r"Allocator .*ran out of memory|OOM when allocating|RESOURCE_EXHAUSTED",
        "wrong",
        "The device's memory is full. Use a smaller batch, shorter sequences, or a higher memory limit.",
    ),
    _known(
        r"All log messages before absl::InitializeLog",
        "fine",
        "The first lines of native code go to standard error. Nothing to do.",
    ),
)
_CHANGING = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d+|0x[0-9a-f]+|\d{9,}")
"""Times, addresses and microsecond stamps, which make two lines differ that say the same."""


def explain(text: str) -> Explanation | None:
    """What a line means; None for one that is not known."""
    return next((meaning for pattern, meaning in _KNOWN if pattern.search(text)), None)


def fold(lines: Iterable[LogLine]) -> list[Entry]:
    """Explains each line, and brings repetitions together at the place of the first.

    Known lines repeat when they have the same explanation, others when they are equal but for times and
    addresses.
    """
    entries: dict[tuple[str, Explanation | str], Entry] = {}
    for line in lines:
        meaning = explain(line.text)
        key = (line.source, meaning or _CHANGING.sub("", line.text))
        seen = entries.get(key)
        entries[key] = replace(seen, count=seen.count + 1) if seen else Entry(line, 1, meaning)
    return list(entries.values())
