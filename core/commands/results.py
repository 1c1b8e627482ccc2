"""Commands about what a run came to: its model judged, and its model, history and code as files."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from core import corpus, predictions
from core.commands.options import Choice, print_json, settled_store, shared, wants_json
from core.config import parse_config
from core.errors import ConfigError
from core.exports import Format, Which, code_file, configuration, exported, history_file, order, whole_epochs
from core.records import Kind, Status
from core.terminal import echo_error, follow
from core.whole_files import replacing
from core.words import plural


@click.command()
@click.argument("run_id")
@click.option("--which", type=Choice(Which), default="best", show_default=True, help="Of the models.")
@shared
@click.pass_context
def evaluate(ctx: click.Context, run_id: str, which: Which, home: Path | None, as_json: bool) -> None:
    """Judge a finished run's model on the newswires it was validated on, class by class."""
    # Its scikit-learn takes a second to import, which the other commands need not wait for.
    from core.analysis.evaluation import evaluate as judge  # noqa: PLC0415

    store = settled_store(ctx, home)
    run = store.run(run_id)
    asked = predictions.order(run, which)
    file = predictions.predicted(store.checkpoints(run_id), asked)
    if not file.exists():
        job = follow(store, lambda: store.submit(Kind.EVALUATE, asked))
        if job.status is not Status.COMPLETED:
            echo_error(job)
            ctx.exit(1)
    data = corpus.load(store.home, parse_config(run.config).data.dataset)
    made = predictions.read(file, data)
    found = judge(made.probabilities, made.labels, data.split_labels("train")).to_json(data.class_names)
    if wants_json(ctx, as_json):
        print_json({"run_id": run_id, "which": which, "epoch": asked["epoch"], **found})
        return
    click.echo(f"Run {run_id}, {which} epoch {asked['epoch']}, on {plural(found['examples'], 'newswire')}")
    for label, value in (
        ("accuracy", found["accuracy"]),
        ("top-5 accuracy", found["top_5_accuracy"]),
        (f"always {found['majority_class']}", found["majority_accuracy"]),
        ("five largest classes", found["majority_top_5_accuracy"]),
        ("macro F1", found["macro_f1"]),
        ("calibration error (ECE)", found["expected_calibration_error"]),
    ):
        click.echo(f"{label:<24}  {'–' if value is None else f'{100 * value:5.1f} %'}")
    click.echo(f"{'class':<24}  support  precision  recall     F1")
    for row in sorted(found["classes"], key=lambda row: -row["support"]):
        click.echo(
            f"{row['class']:>2} {row['name']:<21}  {row['support']:>7,}  {100 * row['precision']:>7.1f} %"
            f"  {100 * row['recall']:>4.1f} %  {100 * row['f1']:>4.1f} %"
        )


@click.command()
@click.argument("run_id")
@click.option("--format", "kind", type=Choice(Format), required=True)
@click.option("--which", type=Choice(Which), default="best", show_default=True, help="Of the models.")
@click.option("--output", type=click.Path(path_type=Path), help="File or folder.  [default: this folder]")
@shared
@click.pass_context
def export(
    ctx: click.Context,
    run_id: str,
    kind: Format,
    which: Which,
    output: Path | None,
    home: Path | None,
    as_json: bool,
) -> None:
    """Write a run's model, history, TensorBoard event files, or its code in plain Keras, to a file."""
    store = settled_store(ctx, home)
    run = store.run(run_id)
    asked: dict[str, Any] = {"run_id": run_id, "format": kind}
    if kind in ("csv", "json", "parquet"):
        asked["epoch"] = whole_epochs(store, run)
        target = _target(output, f"{run_id}-history.{kind}")
        history = history_file(store, run, kind)
        _write(target, lambda aside: aside.write_bytes(history))
    elif kind in ("py", "ipynb"):
        code = code_file(configuration(run), kind, run_id)
        target = _target(output, f"{run_id}.{kind}")
        _write(target, lambda aside: aside.write_bytes(code))
    else:
        if kind == "tensorboard":
            whole_epochs(store, run)  # or no engine need be started
        asked = order(run, kind, which)
        made = exported(store.checkpoints(run_id), asked)
        target = _target(output, made.name)
        job = follow(store, lambda: store.submit(Kind.EXPORT, asked))
        if job.status is not Status.COMPLETED:
            echo_error(job)
            ctx.exit(1)
        try:
            _write(target, lambda aside: shutil.move(made, aside))
        finally:
            made.unlink(missing_ok=True)  # it is quickly made again, and would take room for ever
    if wants_json(ctx, as_json):
        print_json({**asked, "file": str(target)})
    else:
        of = f" the model of epoch {asked['epoch']} to" if "which" in asked else ""
        click.echo(f"Wrote{of} {target}.")


def _target(output: Path | None, name: str) -> Path:
    """Where the file goes. It is tried here, so that no engine works for a place that takes none."""
    target = (output or Path()).absolute()
    with _told(target):
        if target.is_dir():
            target /= name
        if target.exists() or not target.parent.is_dir():
            raise ConfigError(
                f"{target} exists already." if target.exists() else f"There is no folder {target.parent}.",
                "Name another file with --output.",
            )
        _write(target, Path.touch)
        target.unlink()
    return target


def _write(target: Path, write: Callable[[Path], object]) -> None:
    with _told(target), replacing(target) as aside:
        write(aside)


@contextmanager
def _told(target: Path) -> Iterator[None]:
    """Says it in words where a file cannot be written."""
    try:
        yield
    except OSError as error:
        raise ConfigError(
            f"{target} cannot be written ({error.strerror or error}).", "Name another file with --output."
        ) from error
