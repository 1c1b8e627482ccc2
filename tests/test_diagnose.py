"""``python -m core diagnose`` on what other trainings leave behind."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest
from conftest import command, json_of

FIXTURES = Path(__file__).parent / "fixtures"


@pytest.fixture
def reference(tmp_path):
    """The chapter's run as CSVLogger writes it."""
    rows = json.loads((FIXTURES / "reference_run.json").read_text("utf-8"))["epochs"]
    names = [name for name in rows[0] if name != "epoch"]
    lines = [",".join(["epoch", *names])]
    lines += [",".join(map(str, [place, *(row[name] for name in names)])) for place, row in enumerate(rows)]
    path = tmp_path / "training.csv"
    path.write_text("\n".join(lines), "utf-8")
    return path


def test_the_reference_run(reference):
    found = json_of(command("diagnose", str(reference), "--classes", "46", "--json"))
    assert found["best_epoch"] == 3
    assert found["verdict"] == "overfitting"
    assert found["sentence"].startswith(
        "Validation loss was lowest at epoch 3 (1.523). Since then it rose 75 %"
    )
    assert found["criteria"] == {
        "GL_2": 4,
        "GL_5": 4,
        "GL_20": 5,
        "PQ_0.5 (k=5)": None,
        "PQ_0.5 (k=2)": 8,
        "UP_1 (k=5)": 10,
        "UP_2 (k=5)": None,
        "UP_1 (k=2)": 4,
        "UP_2 (k=2)": 6,
        "patience_2": 5,
        "patience_3": 6,
        "patience_5": 8,
    }
    words = command("diagnose", str(reference)).stdout
    assert found["sentence"] in words
    assert "GL_20           stops after epoch 5" in words
    assert "PQ_0.5 (k=5)    never stops" in words


def test_every_kind_of_log_of_one_training_gives_the_same(tmp_path):
    logs = FIXTURES / "tensorboard"
    csv = json_of(command("diagnose", str(logs / "log.csv"), "--json"))
    folder = json_of(command("diagnose", str(logs), "--json"))
    event_file = json_of(command("diagnose", str(next((logs / "train").iterdir())), "--json"))
    values = {}
    header, *lines = (logs / "log.csv").read_text("utf-8").split()
    for place, name in enumerate(header.split(",")):
        values[name] = [float(line.split(",")[place]) for line in lines]
    (tmp_path / "history.json").write_text(json.dumps(values), "utf-8")
    saved = json_of(command("diagnose", str(tmp_path / "history.json"), "--json"))
    assert csv["best_epoch"] is not None
    for other in (folder, event_file, saved):
        for key in ("best_epoch", "criteria", "verdict", "sentence"):
            assert other[key] == csv[key]


def test_a_loss_that_is_not_finite_stays_json(tmp_path):
    (tmp_path / "log.csv").write_text("epoch,loss,val_loss\n0,1,1\n1,nan,nan\n2,nan,inf\n", "utf-8")
    done = command("diagnose", str(tmp_path / "log.csv"), "--json")
    assert json_of(done)["verdict"] == "diverged"
    assert "NaN" not in done.stdout


class _Harm:
    def __reduce__(self):
        return (print, ("this was run",))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "cannot be read: No such file or directory"),
        (b"", "holds no epoch"),
        (b"city,people\nUlm,126000\n", "holds no loss or val_loss; found: 'city', 'people'"),
        (b"epoch,loss\n0,2.0\n1,oops\n", "line 3: loss is 'oops', not a number"),
        (b'{"loss": [1, 2], "val_loss": [1]}', "different numbers of values"),
        (b"[" * 100_000, "begins like JSON but is not"),
        (b"\x89PNG\r\n\x1a\n\x00\x00", "is not text"),
        (pickle.dumps({"loss": [1.0, _Harm()]}), "is not text"),
    ],
    ids=["missing", "empty", "other columns", "a word", "ragged", "deep", "a picture", "a pickle"],
)
def test_what_cannot_be_read_ends_with_2_and_says_why(tmp_path, content, words):
    path = tmp_path / "log"
    if content is not None:
        path.write_bytes(content)
    done = command("diagnose", str(path), "--json")
    assert (done.returncode, done.stdout) == (2, "")
    assert words in done.stderr
    assert "Hint: " in done.stderr
    assert "Traceback" not in done.stderr
    assert "this was run" not in done.stderr


def test_one_class_is_no_classification(reference):
    done = command("diagnose", str(reference), "--classes", "1")
    assert (done.returncode, done.stdout) == (2, "")
    assert "--classes" in done.stderr
