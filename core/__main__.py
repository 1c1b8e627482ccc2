"""The command line: the same engine without a browser.

``python -m core devices|train|runs|show|stop|delete|pause|resume|extend|evaluate|export|diagnose``,
``backup|restore|health`` and ``launcher`` take ``--json`` and ``--home``. Exit code 0: the run completed, or
was stopped or paused; 1: it failed or diverged, or its status does not allow what was asked; 2: the
configuration, or the log to diagnose, is invalid; 130: Ctrl-C ended the command itself.
"""

from __future__ import annotations

import os
import signal

from core.errors import INTERRUPTED


def _leave(*_: object) -> None:
    os.write(2, b"Interrupted before anything was begun.\n")
    os._exit(INTERRUPTED)


if __name__ == "__main__":
    # The imports below take a second or two, in which Ctrl-C would end in a traceback.
    signal.signal(signal.SIGINT, _leave)

import json
import shutil
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, get_args

import click

from core import config as settings
from core import corpus, predictions
from core.analysis.imported import read_history
from core.analysis.lint import check_config
from core.analysis.overfitting import diagnose as diagnose_history
from core.analysis.script_lint import check_script, read_script
from core.backup import backup as back_up_store
from core.backup import restore as restore_store
from core.config import parse_config
from core.errors import ConfigError, EngineError, MirrorboardError, RunStateError
from core.exports import Format, Which, code_file, configuration, exported, history_file, order
from core.health import examine
from core.launcher import Launcher
from core.records import Kind, Status
from core.report import overview, report
from core.retention import require_room
from core.store import Store, default_home
from core.terminal import Bar, echo_error, follow
from core.words import plural, shown

_POLL_S = 0.1
_STOP_WAIT_S = 10.0
_LAUNCHER_POLL_S = 1.0


class _Group(click.Group):
    """A group whose commands end with a message and a hint where a `MirrorboardError` is raised."""

    def invoke(self, ctx: click.Context) -> Any:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            click.echo("Interrupted.", err=True)
            ctx.exit(INTERRUPTED)
        except MirrorboardError as error:
            click.echo(f"Error: {error.message}", err=True)
            if error.hint:
                click.echo(f"Hint: {error.hint}", err=True)
            ctx.exit(2 if isinstance(error, ConfigError) else 1)


class _Number(click.ParamType[int | float]):
    """A number; what is none is refused in the words of `core.validation`."""

    def __init__(self, kind: type[int | float]) -> None:
        self.name = "integer" if kind is int else "float"
        self._kind = kind

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | float:  # noqa: ARG002
        try:
            return self._kind(value)
        except ValueError:
            assert param is not None
            wanted = "a whole number" if self._kind is int else "a number"
            raise ConfigError(
                f"{param.opts[-1]} must be {wanted}, not {shown(value)}.", "Correct this option."
            ) from None


class _Choice(click.Choice[str]):
    """One of a few values, refused likewise."""

    def __init__(self, literal: Any) -> None:
        super().__init__(get_args(literal))

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter:
            assert param is not None
            raise ConfigError(
                f"{param.opts[-1]} must be one of {', '.join(self.choices)}, not {shown(value)}.",
                "Choose one of them.",
            ) from None


def _shared(command: Callable[..., None]) -> Callable[..., None]:
    """The options that stand before or after a subcommand's own."""
    command = click.option("--json", "as_json", is_flag=True, help="Print JSON, and nothing else.")(command)
    return click.option(
        "--home",
        type=click.Path(path_type=Path),
        help="Run store.  [default: $MIRRORBOARD_HOME]",
    )(command)


def _home(ctx: click.Context, home: Path | None) -> Path:
    return Path(home or ctx.obj["home"] or default_home()).expanduser().absolute()


def _store(ctx: click.Context, home: Path | None) -> Store:
    return Store(_home(ctx, home))


def _wants_json(ctx: click.Context, as_json: bool) -> bool:
    return as_json or bool(ctx.obj["as_json"])


@click.group(cls=_Group)
@_shared
@click.pass_context
def main(ctx: click.Context, home: Path | None, as_json: bool) -> None:
    """Mirrorboard without a browser: devices, training runs, their records."""
    ctx.obj = {"home": home, "as_json": as_json}


@main.command()
@_shared
@click.pass_context
def devices(ctx: click.Context, home: Path | None, as_json: bool) -> None:
    """List this machine's physical devices."""
    store = _store(ctx, home)
    job = follow(store, lambda: store.submit(Kind.INSPECT, {}))
    if job.status is not Status.COMPLETED:
        echo_error(job)
        raise SystemExit(1)
    found = job.result or {}
    if _wants_json(ctx, as_json):
        _print_json(found)
        return
    for device in found["devices"]:
        memory = f", {device['memory_bytes'] / 2**30:,.1f} GiB" if device["memory_bytes"] else ""
        capability = device["compute_capability"]
        extra = f", compute capability {capability}" if capability else ""
        click.echo(f"{device['type']}:{device['index']}  {device['name']}{memory}{extra}")
    if found["gpu_reason"]:
        click.echo(found["gpu_reason"])
    click.echo(f"TensorFlow {found['tensorflow']}, Keras {found['keras']}, Python {found['python']}")


@main.command()
@click.option("--dataset", type=_Choice(settings.Dataset), default="reuters", show_default=True)
@click.option("--strategy", type=_Choice(settings.Strategy), default="mirrored", show_default=True)
@click.option("--tpu", default="local", show_default=True, help="Name or address, for --strategy tpu.")
@click.option(
    "--logical-devices", type=_Number(int), help="Parts of the device.  [default: 2, or 1 if single]"
)
@click.option("--epochs", type=_Number(int), default=10, show_default=True)
@click.option("--batch-size", type=_Number(int), default=32, show_default=True, help="Global batch size.")
@click.option("--optimizer", type=_Choice(settings.Optimizer), default="nadam", show_default=True)
@click.option("--learning-rate", type=_Number(float), help="[default: Keras's own for the optimizer]")
@click.option(
    "--from-logits", is_flag=True, help="Experiment: the loss takes the softmax's probabilities for logits."
)
@click.option("--seed", type=_Number(int), default=1, show_default=True)
@click.option("--patience", type=_Number(int), help="Stop early after this many epochs without improvement.")
@click.option("--deterministic", is_flag=True, help="Reproducible to the last bit, somewhat slower.")
@click.option(
    "--steps-per-execution",
    type=int,
    help="Steps in one call of the compiled function.  [default: automatic]",
)
@click.option("--intra-op-threads", type=int, help="Threads that share an operation.  [default: automatic]")
@click.option("--inter-op-threads", type=int, help="Operations side by side.  [default: automatic]")
@click.option("--jit-compile", is_flag=True, help="Compile the step with XLA; single device only.")
@_shared
@click.pass_context
def train(
    ctx: click.Context,
    dataset: str,
    strategy: str,
    tpu: str,
    logical_devices: int | None,
    epochs: int,
    batch_size: int,
    optimizer: str,
    learning_rate: float | None,
    from_logits: bool,
    seed: int,
    patience: int | None,
    deterministic: bool,
    steps_per_execution: int | None,
    intra_op_threads: int | None,
    inter_op_threads: int | None,
    jit_compile: bool,
    home: Path | None,
    as_json: bool,
) -> None:
    """Train the chapter's model and record the run."""
    if logical_devices is None:
        logical_devices = 2 if strategy == "mirrored" else 1
    config = parse_config(
        {
            "layout": {"strategy": strategy, "logical_devices": logical_devices, "tpu": tpu},
            "data": {"dataset": dataset},
            "model": {"optimizer": optimizer, "from_logits": from_logits},
            "training": {
                "epochs": epochs,
                "batch_size": batch_size,
                "learning_rate": learning_rate,
                "seed": seed,
                "patience": patience,
                "deterministic": deterministic,
            },
            "execution": {
                "steps_per_execution": steps_per_execution,
                "intra_op_threads": intra_op_threads,
                "inter_op_threads": inter_op_threads,
                "jit_compile": jit_compile,
            },
        }
    )
    store = _store(ctx, home)
    quiet = _wants_json(ctx, as_json)
    if config.global_batch_size != config.training.batch_size:
        click.echo(
            f"Global batch size changed from {config.training.batch_size} to {config.global_batch_size}:"
            f" {config.layout.replicas} replicas share it evenly.",
            err=True,
        )
    for finding in check_config(config):
        click.echo(f"Note: {finding.what} {finding.effect} {finding.remedy}", err=True)
    require_room(store.home, config)
    wanted = config.model_dump(mode="json")
    _train_to_the_end(ctx, store, lambda: store.submit(Kind.TRAIN, wanted), quiet=quiet)


def _train_to_the_end(ctx: click.Context, store: Store, begin: Callable[[], str], *, quiet: bool) -> None:
    """Queues a run, follows it, and says how it ended."""
    job = follow(store, begin, Bar(store, hidden=quiet))
    if quiet:
        _print_json(report(store, job.id))
    else:
        click.echo(f"Run {job.id} {job.status} in {job.duration_s or 0:,.1f} s.")
        click.echo(report(store, job.id)["diagnosis"]["sentence"])
        if job.status is Status.STOPPED:
            click.echo(f"See it with `python -m core show {job.id}`.")
    if job.status not in (Status.COMPLETED, Status.STOPPED, Status.PAUSED):
        echo_error(job)
        ctx.exit(2 if job.error and job.error["field"] else 1)


@main.command()
@_shared
@click.pass_context
def runs(ctx: click.Context, home: Path | None, as_json: bool) -> None:
    """List the runs, newest first."""
    store = _store(ctx, home)
    Launcher(store).bury_dead_engines()
    rows = overview(store)
    if _wants_json(ctx, as_json):
        _print_json(rows)
        return
    if not rows:
        click.echo("No runs yet. Start one with `python -m core train`.")
    for row in rows:
        when = datetime.fromtimestamp(row["created_at"], UTC).astimezone()
        click.echo(
            f"{row['run_id']}  {row['status']:<10}  {row['epochs_done']:>3}"
            f" of {plural(row['epochs'], 'epoch')}"
            f"  {when:%Y-%m-%d %H:%M %Z}"
        )


@main.command()
@click.argument("run_id")
@_shared
@click.pass_context
def show(ctx: click.Context, run_id: str, home: Path | None, as_json: bool) -> None:
    """Show one run."""
    store = _store(ctx, home)
    Launcher(store).bury_dead_engines()
    about = report(store, run_id)
    if _wants_json(ctx, as_json):
        _print_json(about)
        return
    click.echo(f"Run {run_id} {about['status']}, {about['model']['params'] or 0:,} parameters")
    for epoch in about["history"]:
        values = "  ".join(
            f"{name} {'–' if value is None else f'{value:.4f}'}"
            for name, value in epoch.items()
            if name not in ("epoch", "duration_s")
        )
        click.echo(f"epoch {epoch['epoch']:>3}  {epoch['duration_s']:.1f} s  {values}")
    click.echo(about["diagnosis"]["sentence"])


@main.command()
@click.argument("run_id")
@_shared
@click.pass_context
def stop(ctx: click.Context, run_id: str, home: Path | None, as_json: bool) -> None:
    """Stop a run; what it has recorded is kept."""
    store = _store(ctx, home)
    before = store.job(run_id).status
    status = _await_end(store, run_id, store.request_stop(run_id))
    if _wants_json(ctx, as_json):
        _print_json({"run_id": run_id, "status": str(status)})
    elif before.is_final:
        click.echo(f"Run {run_id} had ended already: {status}.")
    else:
        click.echo(f"Run {run_id} {status}.")
    if not status.is_final:
        ctx.exit(1)


def _await_end(store: Store, run_id: str, status: Status) -> Status:
    """Waits for a run that was asked to end."""
    deadline = time.monotonic() + _STOP_WAIT_S
    launcher = Launcher(store)
    while not status.is_final and time.monotonic() < deadline:
        time.sleep(_POLL_S)
        launcher.bury_dead_engines()
        status = store.job(run_id).status
    return status


@main.command()
@click.argument("run_ids", nargs=-1, required=True, metavar="RUN_ID...")
@_shared
@click.pass_context
def delete(ctx: click.Context, run_ids: tuple[str, ...], home: Path | None, as_json: bool) -> None:
    """Delete runs for good, with their checkpoints and all that was made of them."""
    store = _store(ctx, home)
    deleted = store.delete(run_ids)
    if _wants_json(ctx, as_json):
        _print_json({"deleted": deleted})
    else:
        click.echo(f"Deleted {plural(len(deleted), 'run')}.")
    left = [run_id for run_id in run_ids if run_id not in deleted]
    for run_id in left:
        job = store.job(run_id)
        raise RunStateError(f"Run {run_id} is {job.status}, so it was not deleted.", "Stop it first.")


@main.command()
@click.argument("run_id")
@_shared
@click.pass_context
def pause(ctx: click.Context, run_id: str, home: Path | None, as_json: bool) -> None:
    """Pause a running run and free its devices; `resume` goes on with it."""
    store = _store(ctx, home)
    Launcher(store).bury_dead_engines()
    status = _await_end(store, run_id, store.request_pause(run_id))
    if _wants_json(ctx, as_json):
        _print_json({"run_id": run_id, "status": str(status)})
    else:
        click.echo(f"Run {run_id} {status} after epoch {store.job(run_id).checkpoint_epochs}.")
    if not status.is_final:
        ctx.exit(1)


@main.command()
@click.argument("run_id")
@click.option("--strategy", type=_Choice(settings.Strategy), help="[default: the run's]")
@click.option("--logical-devices", type=_Number(int), help="[default: the run's, or as for train]")
@_shared
@click.pass_context
def resume(
    ctx: click.Context,
    run_id: str,
    strategy: str | None,
    logical_devices: int | None,
    home: Path | None,
    as_json: bool,
) -> None:
    """Go on with a run that ended early, after its last whole epoch."""
    store = _store(ctx, home)
    Launcher(store).bury_dead_engines()
    if logical_devices is None and strategy is not None:
        logical_devices = 2 if strategy == "mirrored" else 1
    changes = {"strategy": strategy, "logical_devices": logical_devices}
    changes = {name: value for name, value in changes.items() if value is not None}
    layout = None
    if changes:
        before = store.job(run_id).config.get("layout", {})
        layout = parse_config({"layout": {**before, **changes}}).layout
    _train_to_the_end(ctx, store, lambda: store.resume(run_id, layout), quiet=_wants_json(ctx, as_json))


@main.command()
@click.argument("run_id")
@click.option("--epochs", type=_Number(int), required=True, help="How many more.")
@_shared
@click.pass_context
def extend(ctx: click.Context, run_id: str, epochs: int, home: Path | None, as_json: bool) -> None:
    """Train a run that has ended for some epochs more."""
    store = _store(ctx, home)
    _train_to_the_end(ctx, store, lambda: store.extend(run_id, epochs), quiet=_wants_json(ctx, as_json))


@main.command()
@click.argument("run_id")
@click.option("--which", type=_Choice(Which), default="best", show_default=True, help="Of the models.")
@_shared
@click.pass_context
def evaluate(ctx: click.Context, run_id: str, which: Which, home: Path | None, as_json: bool) -> None:
    """Judge a finished run's model on the newswires it was validated on, class by class."""
    # Its scikit-learn takes a second to import, which the other commands need not wait for.
    from core.analysis.evaluation import evaluate as judge  # noqa: PLC0415

    store = _store(ctx, home)
    run = store.job(run_id)
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
    if _wants_json(ctx, as_json):
        _print_json({"run_id": run_id, "which": which, "epoch": asked["epoch"], **found})
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


@main.command()
@click.argument("run_id")
@click.option("--format", "kind", type=_Choice(Format), required=True)
@click.option("--which", type=_Choice(Which), default="best", show_default=True, help="Of the models.")
@click.option("--output", type=click.Path(path_type=Path), help="File or folder.  [default: this folder]")
@_shared
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
    store = _store(ctx, home)
    run = store.job(run_id)
    asked: dict[str, Any] = {"run_id": run_id, "format": kind, "epoch": store.epochs_done(run)}
    if kind in ("csv", "json", "parquet"):
        target = _target(output, f"{run_id}-history.{kind}")
        target.write_bytes(history_file(store, run, kind))
    elif kind in ("py", "ipynb"):
        asked = {"run_id": run_id, "format": kind}
        code = code_file(configuration(run), kind, run_id)
        target = _target(output, f"{run_id}.{kind}")
        target.write_bytes(code)
    else:
        asked = order(run, kind, which)
        made = exported(store.checkpoints(run_id), asked)
        target = _target(output, made.name)
        job = follow(store, lambda: store.submit(Kind.EXPORT, asked))
        if job.status is not Status.COMPLETED:
            echo_error(job)
            ctx.exit(1)
        shutil.move(made, target)
    if _wants_json(ctx, as_json):
        _print_json({**asked, "file": str(target)})
    else:
        of = f" the model of epoch {asked['epoch']} to" if "which" in asked else ""
        click.echo(f"Wrote{of} {target}.")


def _target(output: Path | None, name: str) -> Path:
    target = (output or Path()).absolute()
    if target.is_dir():
        target /= name
    if target.exists() or not target.parent.is_dir():
        raise ConfigError(
            f"{target} exists already." if target.exists() else f"There is no folder {target.parent}.",
            "Name another file with --output.",
        )
    return target


@main.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--classes", type=click.IntRange(min=2), help="Classes of the model, to recognise a double softmax."
)
@_shared
@click.pass_context
def diagnose(ctx: click.Context, file: Path, classes: int | None, home: Path | None, as_json: bool) -> None:  # noqa: ARG001
    """Say when a training from elsewhere was best, and whether it overfits.

    FILE is a log of keras.callbacks.CSVLogger, a history.json, or an event file or the folder of
    keras.callbacks.TensorBoard. Exit code 2: it cannot be read.
    """
    found = diagnose_history(read_history(file), num_classes=classes)
    if _wants_json(ctx, as_json):
        _print_json(found.to_json())
        return
    click.echo(found.sentence)
    for rule, epoch in found.criteria.items():
        click.echo(f"{rule:<14}  {'never stops' if epoch is None else f'stops after epoch {epoch}'}")


@main.command()
@click.argument("file", type=click.Path(path_type=Path))
@_shared
@click.pass_context
def lint(ctx: click.Context, file: Path, home: Path | None, as_json: bool) -> None:  # noqa: ARG001
    """Look through a training script for the classic mistakes of distributed training.

    FILE is read, never run. Exit code 0: none found; 1: some; 2: it cannot be read.
    """
    found = check_script(read_script(file))
    if _wants_json(ctx, as_json):
        _print_json([finding.to_json() for finding in found])
    else:
        for finding in found:
            click.echo(f"{file}:{finding.line}: {finding.rule}: {finding.what}")
            click.echo(f"  {finding.why} {finding.effect}\n  {finding.remedy}")
        if not found:
            click.echo("None of the classic mistakes found.")
    ctx.exit(1 if found else 0)


@main.command()
@click.argument("file", type=click.Path(path_type=Path))
@_shared
@click.pass_context
def backup(ctx: click.Context, file: Path, home: Path | None, as_json: bool) -> None:
    """Copy the run store into FILE while everything goes on.

    It holds all runs with what they have recorded, but not their checkpoints, so elsewhere they cannot be
    resumed. Prepared datasets are left out: they can be made again.
    """
    runs = back_up_store(_home(ctx, home), file)
    if _wants_json(ctx, as_json):
        _print_json({"file": str(file.absolute()), "size_bytes": file.stat().st_size, "runs": runs})
    else:
        click.echo(f"{plural(runs, 'run is', 'runs are')} in {file}, {file.stat().st_size / 1e6:,.1f} MB.")


@main.command()
@click.argument("file", type=click.Path(path_type=Path))
@_shared
@click.pass_context
def restore(ctx: click.Context, file: Path, home: Path | None, as_json: bool) -> None:
    """Put the backup FILE in the place of the run store, which is kept aside.

    Nobody may use the store meanwhile. Runs that were going on when the backup was made count as lost;
    those that were queued are still queued, and start with the next dashboard.
    """
    where = _home(ctx, home)
    done = restore_store(where, file)
    if _wants_json(ctx, as_json):
        kept = None if done.kept is None else str(done.kept)
        _print_json({"home": str(where), "runs": done.runs, "lost": done.lost, "kept": kept})
        return
    click.echo(f"{plural(done.runs, 'run is', 'runs are')} in {where}.")
    for run_id in done.lost:
        click.echo(f"Run {run_id} was going on when the backup was made; it counts as lost.")
    if done.kept:
        click.echo(f"The store that was there before is in {done.kept}.")


@main.command()
@_shared
@click.pass_context
def health(ctx: click.Context, home: Path | None, as_json: bool) -> None:
    """Say whether the store is usable and its jobs are being done. Exit code 1: not so."""
    about = examine(_home(ctx, home))
    if _wants_json(ctx, as_json):
        _print_json(about)
    else:
        click.echo("\n".join(about["problems"]) or f"The store in {about['home']} is well.")
    if not about["healthy"]:
        ctx.exit(1)


@main.command(name="launcher")
@_shared
@click.pass_context
def launch(ctx: click.Context, home: Path | None, as_json: bool) -> None:  # noqa: ARG001
    """Start engines for the store's jobs, without a dashboard, until SIGTERM or Ctrl-C.

    For a server whose dashboards, started with MIRRORBOARD_WATCH=1, come and go beside it. A run that is
    going on when this ends goes on.
    """
    store = _store(ctx, home)
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    launcher = Launcher(store)
    launcher.start()
    store.submit(Kind.INSPECT, {})
    while launcher.is_running and not ended.wait(_LAUNCHER_POLL_S):
        pass
    launcher.close()
    if not ended.is_set():
        raise EngineError("The launcher ended by itself.", "The lines above say why; start it again.")


def _print_json(value: Any) -> None:
    click.echo(json.dumps(value, allow_nan=False, indent=2))


if __name__ == "__main__":
    main(prog_name="python -m core")
