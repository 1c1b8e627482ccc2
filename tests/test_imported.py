"""Logs of trainings from elsewhere: what Keras, pandas, spreadsheets and TensorBoard really write."""

from __future__ import annotations

import json
import shutil
import struct
from pathlib import Path

import pytest

from core.analysis import imported
from core.analysis.event_files import read_event_files
from core.analysis.imported import read_history
from core.analysis.overfitting import diagnose
from core.errors import ConfigError

# Written by keras.callbacks.TensorBoard and CSVLogger in one fit (Keras 3.15.1, TensorFlow 2.21).
TENSORBOARD = Path(__file__).parent / "fixtures" / "tensorboard"
TRAIN = next((TENSORBOARD / "train").iterdir())
VALIDATION = next((TENSORBOARD / "validation").iterdir())

CSV = "epoch,loss,val_loss\n0,2.0,1.5\n1,1.0,1.25\n"
ROWS = [{"epoch": 1, "loss": 2.0, "val_loss": 1.5}, {"epoch": 2, "loss": 1.0, "val_loss": 1.25}]


def refused(source: Path | bytes, name: str = "log.csv") -> str:
    with pytest.raises(ConfigError) as caught:
        read_history(source, name)
    assert caught.value.hint
    return caught.value.message


class TestCsv:
    @pytest.mark.parametrize(
        "data",
        [
            CSV.encode(),
            CSV.encode("utf-8-sig"),
            CSV.encode("utf-16"),
            CSV.replace("\n", "\r\n").encode(),
            CSV.replace(",", ";").encode(),
            CSV.replace(",", ";").replace(".", ",").encode(),
            CSV.replace(",", "\t").encode(),
            CSV.replace("0,2.0", "1,2.0").replace("1,1.0", "2,1.0").encode(),
            (CSV + "\n\n").encode(),
        ],
        ids=[
            "plain",
            "bom",
            "utf-16",
            "crlf",
            "semicolons",
            "decimal commas",
            "tabs",
            "one-based",
            "blank lines",
        ],
    )
    def test_dialects(self, data: bytes) -> None:
        assert read_history(data, "log.csv") == ROWS

    def test_csv_logger(self) -> None:
        rows = read_history(TENSORBOARD / "log.csv")
        assert [row["epoch"] for row in rows] == [1, 2, 3, 4]
        assert rows[3]["loss"] == 1.0064778327941895
        assert rows[3]["val_sparse_categorical_accuracy"] == 0.375

    def test_nan_is_none_and_na_is_left_out(self) -> None:
        rows = read_history(b"epoch,loss,val_loss\n0,nan,NA\n1,inf,2.5\n")
        assert rows == [{"epoch": 1, "loss": None}, {"epoch": 2, "loss": None, "val_loss": 2.5}]

    def test_a_metric_by_class_is_left_out(self) -> None:
        rows = read_history(b'epoch,f1,loss\n0,"""[0.5, 0.25]""",2.0\n')
        assert rows == [{"epoch": 1, "loss": 2.0}]

    def test_a_second_fit_in_one_file_goes_on_counting(self) -> None:
        rows = read_history(b"epoch,loss\n0,3\n1,2\n0,1.5\n1,1\n")
        assert [row["epoch"] for row in rows] == [1, 2, 3, 4]

    def test_other_columns_are_named(self) -> None:
        assert "found: 'city', 'people'" in refused(b"city,people\nUlm,126000\n")

    def test_a_word_among_the_numbers_is_named(self) -> None:
        assert refused(b"epoch,loss\n0,2.0\n1,oops\n") == "log.csv, line 3: loss is 'oops', not a number."

    @pytest.mark.parametrize("data", [b"", b" \n", b"epoch,loss\n"])
    def test_nothing_recorded_yet(self, data: bytes) -> None:
        assert refused(data) == "log.csv holds no epoch."

    def test_a_picture_is_refused(self) -> None:
        assert "is not text" in refused(b"\x89PNG\r\n\x1a\n\x00\x00", "figure.png")

    def test_a_cell_without_end_is_refused(self) -> None:
        assert "line" in refused(b'epoch,loss\n0,"' + b"1" * 200_000)

    def test_limits(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        monkeypatch.setattr(imported, "MAX_EPOCHS", 1)
        assert "has 2 epochs; at most 1" in refused(CSV.encode())
        with (tmp_path / "large.csv").open("wb") as file:
            file.truncate(imported.MAX_BYTES + 1)
        assert "at most 50 MB" in refused(tmp_path / "large.csv", "")

    def test_a_file_that_is_not_there(self, tmp_path: Path) -> None:
        assert "cannot be read: No such file" in refused(tmp_path / "none.csv", "")


class TestJson:
    @pytest.mark.parametrize(
        "value",
        [
            {"loss": [2.0, 1.0], "val_loss": [1.5, 1.25]},
            {"epoch": [0, 1], "loss": [2.0, 1.0], "val_loss": [1.5, 1.25]},
            {"loss": ["2.0", "1.0"], "val_loss": ["1.5", "1.25"]},
            {"loss": {"0": 2.0, "1": 1.0}, "val_loss": {"0": 1.5, "1": 1.25}},
            {"history": {"loss": [2.0, 1.0], "val_loss": [1.5, 1.25]}, "params": {"epochs": 2}},
            [{"loss": 2.0, "val_loss": 1.5}, {"loss": 1.0, "val_loss": 1.25}],
            {"run_id": "a1", "history": ROWS},
        ],
        ids=["History.history", "with epochs", "as text", "pandas", "History", "by epoch", "of this program"],
    )
    def test_shapes(self, value: object) -> None:
        assert read_history(json.dumps(value).encode(), "history.json") == ROWS

    def test_bare_nan_and_infinity_are_none(self) -> None:
        rows = read_history(b'{"loss": [NaN, -Infinity, 1e999, null, 2.0]}')
        assert [row["loss"] for row in rows] == [None, None, None, None, 2.0]

    def test_pandas_rows_keep_their_order_past_nine(self) -> None:
        rows = read_history(json.dumps({"loss": {str(row): float(row) for row in range(12)}}).encode())
        assert [row["loss"] for row in rows] == [float(row) for row in range(12)]

    def test_lists_of_different_lengths_are_refused(self) -> None:
        message = refused(b'{"loss": [3, 2, 1], "val_loss": [3]}', "history.json")
        assert "loss 3, val_loss 1" in message

    @pytest.mark.parametrize(
        ("data", "said"),
        [
            (b'{"loss": [1, 2', "is not"),
            (b"[1, 2]", "neither lists by metric"),
            (b'{"loss": 3}', "'loss' is 3, not a list"),
            (b'{"loss": ["much"]}', "loss is 'much', not a number"),
            (b'{"accuracy": [0.5]}', "found: 'accuracy'"),
            (b"[" * 100_000, "is not"),
            (b"{}", "found: nothing"),
        ],
    )
    def test_other_json_is_refused(self, data: bytes, said: str) -> None:
        assert said in refused(data, "history.json")


class TestEventFiles:
    def test_folder_holds_what_csv_logger_saw(self) -> None:
        rows = read_history(TENSORBOARD)
        assert [row.pop("duration_s") for row in rows] == [1.269, 0.262, 0.212, 0.084]
        assert [row.pop("learning_rate") for row in rows] == pytest.approx([0.1] * 4)
        assert rows == read_history(TENSORBOARD / "log.csv")

    @pytest.mark.parametrize(
        "path", [TRAIN, VALIDATION, TENSORBOARD / "train"], ids=["train", "validation", "split"]
    )
    def test_one_file_brings_its_twin(self, path: Path) -> None:
        assert read_history(path) == read_history(TENSORBOARD)

    def test_contents_are_told_apart_without_folders(self) -> None:
        files = {"a": VALIDATION.read_bytes(), "b": TRAIN.read_bytes()}
        assert read_event_files(files) == read_history(TENSORBOARD)

    def test_training_alone_has_no_validation(self) -> None:
        assert diagnose(read_history(TRAIN.read_bytes(), TRAIN.name)).verdict == "no_validation"

    def test_a_file_cut_short_gives_the_epochs_before(self) -> None:
        data = TRAIN.read_bytes()
        assert len(read_history(data[: len(data) // 2], "events")) == 2

    def test_a_later_fit_replaces_from_its_first_epoch_on(self) -> None:
        data = TRAIN.read_bytes()
        files = {"events.1": data, "events.2": data[: len(data) // 2]}
        assert len(read_event_files(files)) == 2

    def test_damage_is_told(self) -> None:
        data = bytearray(TRAIN.read_bytes())
        at = data.index(b"epoch_loss")
        data[at - 1] = 200  # the length of the tag
        assert "is damaged" in refused(bytes(data), "events")

    def test_values_of_other_writers(self) -> None:
        # simple_value, as TensorFlow 1 and PyTorch write it, NaN among them.
        def record(message: bytes) -> bytes:
            return struct.pack("<Q4x", len(message)) + message + bytes(4)

        def scalar(step: int, value: float) -> bytes:
            item = b"\x0a\x0aepoch_loss\x15" + struct.pack("<f", value)
            summary = b"\x0a" + bytes([len(item)]) + item
            return record(
                b"\x09"
                + struct.pack("<d", 100.0 + step)
                + b"\x10"
                + bytes([step])
                + b"\x2a"
                + bytes([len(summary)])
                + summary
            )

        version = record(b"\x09" + struct.pack("<d", 98.5) + b"\x1a\x0dbrain.Event:2")
        rows = read_history(version + scalar(0, 2.0) + scalar(1, float("nan")), "events")
        assert rows == [
            {"epoch": 1, "loss": 2.0, "duration_s": 1.5},
            {"epoch": 2, "loss": None, "duration_s": 1.0},
        ]

    def test_a_file_without_values_by_epoch(self) -> None:
        assert refused(TRAIN.read_bytes()[:78], "events") == "events holds no values by epoch."

    def test_folders_of_none_or_several_trainings_are_refused(self, tmp_path: Path) -> None:
        assert "holds no event files" in refused(tmp_path, "")
        for run in ("a", "b"):
            shutil.copytree(TENSORBOARD, tmp_path / run)
        assert "of 2 trainings" in refused(tmp_path, "")
        assert read_history(tmp_path / "a") == read_history(TENSORBOARD)
