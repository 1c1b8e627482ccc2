"""Reads what Keras wrote into TensorBoard's event files, without TensorFlow.

TensorFlow 2.21 does not bring the tensorboard package any more, and that package (2.21) imports TensorFlow
to read a file wherever it is installed; so the few fields needed are decoded here. An event file is a row of
TFRecords: length as a little-endian uint64, checksum of it, message, checksum of that. A message is an
``Event`` in the wire format of protocol buffers, as event.proto, summary.proto and tensor.proto of TensorFlow
define it. Checksums are not verified.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePath

from core.errors import ConfigError

_EPOCH, _EVALUATION = "epoch_", "evaluation_"
"""What Keras's tags begin with: of both splits at the end of an epoch, and of validation alone."""

_FLOAT = 1
"""``DT_FLOAT``, to which ``tf.summary.scalar`` casts every value."""

_VARINT, _FIXED_64, _BYTES, _FIXED_32 = 0, 1, 2, 5
_LONGEST_VARINT = 10


@dataclass(frozen=True)
class _Scalar:
    at: float
    """Clock time, in seconds since 1970."""
    step: int
    tag: str
    value: float


def is_event_file(data: bytes) -> bool:
    """Whether these bytes begin as an event file does, with a record that names its version."""
    return b"brain.Event:" in data[:64]


def read_event_files(files: Mapping[str, bytes]) -> list[dict[str, float | int | None]]:
    """The epochs that ``keras.callbacks.TensorBoard`` wrote into the event files of one training.

    Args:
        files: Contents by path or name. A file is the validation's when its folder is called
            ``validation`` or when it holds evaluation tags. Where several files of a split tell of the same
            epochs, the last by name, which holds the time, counts from its first epoch on.

    Returns:
        One dict an epoch, in order: ``epoch`` (one-based), ``duration_s`` by the clock times in the files of
        the training split, and Keras's metric names; None where a value is not finite.

    Raises:
        ConfigError: A file is damaged, or there are no values by epoch.
    """
    splits: dict[str, dict[int, dict[str, float]]] = {"": {}, "val_": {}}
    for name in sorted(files, key=lambda name: PurePath(name).name):
        began_at, scalars = _read(files[name], name)
        evaluated = any(scalar.tag.startswith(_EVALUATION) for scalar in scalars)
        prefix = "val_" if evaluated or PurePath(name).parent.name == "validation" else ""
        scalars = [scalar for scalar in scalars if scalar.tag.startswith(_EPOCH)]
        epochs = splits[prefix]
        first = min((scalar.step for scalar in scalars), default=math.inf)
        for step in [step for step in epochs if step >= first]:
            del epochs[step]
        for scalar in scalars:
            values = epochs.setdefault(scalar.step, {})
            values[prefix + scalar.tag.removeprefix(_EPOCH)] = scalar.value
            if scalar.tag == "epoch_loss" and not prefix:
                values["duration_s"] = round(scalar.at - began_at, 3)
                began_at = scalar.at
    train, validation = splits[""], splits["val_"]
    if not train and not validation:
        raise ConfigError(
            f"{next(iter(files), 'Nothing')} holds no values by epoch.",
            "Expected are tags such as epoch_loss, which keras.callbacks.TensorBoard writes.",
        )
    rows: list[dict[str, float | int | None]] = []
    for step in sorted(train.keys() | validation.keys()):
        row: dict[str, float | int | None] = {"epoch": step + 1}
        for metric, value in (train.get(step, {}) | validation.get(step, {})).items():
            row[metric] = value if math.isfinite(value) else None
        rows.append(row)
    return rows


def _read(data: bytes, name: str) -> tuple[float, list[_Scalar]]:
    """When a file was begun, and the scalars in it that are of use here."""
    began_at = 0.0
    scalars: list[_Scalar] = []
    try:
        for number, record in enumerate(_records(data)):
            if number == 0:
                began_at, _, _ = _event(record)
            # Most of a large file are values by batch and histograms: do not decode those.
            if _EPOCH.encode() in record or _EVALUATION.encode() in record:
                at, step, summaries = _event(record)
                scalars += [
                    _Scalar(at, step, tag, value) for summary in summaries for tag, value in _scalars(summary)
                ]
    except (ValueError, IndexError, struct.error) as error:
        raise ConfigError(
            f"The event file {name} is damaged ({error}).", "Copy it again from where it was written."
        ) from None
    return began_at, scalars


def _records(data: bytes) -> Iterator[bytes]:
    at = 0
    while at + 12 <= len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        begin, end = at + 12, at + 12 + length
        if end + 4 > len(data):
            return  # the writer is at work on this record, or was killed over it
        yield data[begin:end]
        at = end + 4


def _event(message: bytes) -> tuple[float, int, list[bytes]]:
    """Clock time, step and summaries of an ``Event``."""
    at, step, summaries = 0.0, 0, []
    for field, value in _fields(message):
        match field, value:
            case 1, bytes():
                (at,) = struct.unpack("<d", value)
            case 2, int():
                step = value
            case 5, bytes():
                summaries.append(value)
    return at, step, summaries


def _scalars(summary: bytes) -> Iterator[tuple[str, float]]:
    """Tag and value of each scalar in a ``Summary``; other kinds of value are passed over."""
    for field, item in _fields(summary):
        if field != 1 or not isinstance(item, bytes):
            continue
        tag, packed = "", b""
        for inner, value in _fields(item):
            match inner, value:
                case 1, bytes():
                    tag = value.decode("utf-8")
                case 2, bytes():  # simple_value, of TensorFlow 1 and other writers
                    packed = value
                case 8, bytes():
                    packed = _float_tensor(value)
        if len(packed) == 4:  # noqa: PLR2004
            yield tag, struct.unpack("<f", packed)[0]


def _float_tensor(tensor: bytes) -> bytes:
    """The bytes of a ``TensorProto`` of 32-bit floats; empty for another type."""
    kind, content = 0, b""
    for field, value in _fields(tensor):
        match field, value:
            case 1, int():
                kind = value
            case ((4 | 5), bytes()):  # tensor_content or float_val
                content = value
    return content if kind == _FLOAT else b""


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Number and raw value of each field of a protocol buffer's message."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        kind = key & 7
        if kind == _VARINT:
            number, at = _varint(message, at)
            yield key >> 3, number
            continue
        if kind == _BYTES:
            size, at = _varint(message, at)
        elif kind in (_FIXED_64, _FIXED_32):
            size = 8 if kind == _FIXED_64 else 4
        else:
            raise ValueError(f"wire type {kind}")
        if at + size > len(message):
            raise ValueError("a field reaches beyond its message")
        yield key >> 3, message[at : at + size]
        at += size


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """A number of seven bits a byte, the lowest first, and where it ends."""
    number = 0
    for place in range(_LONGEST_VARINT):
        byte = message[at + place]
        number |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:  # noqa: PLR2004
            return number, at + place + 1
    raise ValueError("a number of more than ten bytes")
