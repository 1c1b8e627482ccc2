"""What the log says: each known line with its verdict, and repetitions brought together."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from core.analysis import log_lines
from core.analysis.log_lines import explain, fold
from core.records import LogLine

KNOWN = json.loads((Path(__file__).parent / "fixtures" / "log_lines.json").read_text("utf-8"))


@pytest.mark.parametrize("known", KNOWN, ids=[known["text"][:40] for known in KNOWN])
def test_known_line(known):
    meaning = explain(known["text"])
    assert meaning is not None
    assert meaning.verdict == known["verdict"]
    assert known["words"] in meaning.text


def test_every_explanation_has_its_line():
    unseen = [
        pattern.pattern
        for pattern, _ in log_lines._KNOWN
        if not any(pattern.search(known["text"]) for known in KNOWN)
    ]
    assert not unseen


@pytest.mark.parametrize("text", ["", "Epoch 3 begins", "loss: nan", "a" * 10_000, "(" * 50, "\x00\n"])
def test_unknown_line_stays_as_it_is(text):
    assert explain(text) is None
    (entry,) = fold([line(text)])
    assert entry.line.text == text
    assert entry.explanation is None


def line(text, at=0.0, source="tensorflow"):
    return LogLine(at, "info", source, text)


def test_repeated_lines_are_folded_at_the_first_ones_place():
    reduce = "Reduce to /device:CPU:0 then broadcast to ('/device:CPU:0', '/device:CPU:1')."
    unknown = "2026-11-30 08:15:20.100000: something of 0x7f001 at {}"
    entries = fold(
        [
            line(reduce, at=1.0),
            line(unknown.format("2")),
            line(reduce, at=2.0),
            line(re.sub("20.1", "21.7", unknown.format("2")).replace("0x7f001", "0x7f002")),
            line(unknown.format("3")),
            line(reduce, at=3.0, source="stderr"),
        ]
    )
    assert [entry.count for entry in entries] == [2, 2, 1, 1]
    assert entries[0].line.at == 1.0
    assert entries[2].line.text == unknown.format("3")
