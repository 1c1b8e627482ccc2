"""Commands that train: the devices there are, and a run begun, gone on with, or made longer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import click

from core import config as settings
from core.analysis.lint import check_config
from core.commands.options import Choice, Number, open_store, print_json, settled_store, shared, wants_json
from core.config import parse_config
from core.records import Kind, Status
from core.report import report
from core.retention import require_room
from core.store import Store
from core.terminal import Bar, echo_error, follow


@click.command()
@shared
@click.pass_context
def devices(ctx: click.Context, home: Path | None, as_json: bool) -> None:
    """List this machine's physical devices."""
    store = open_store(ctx, home)
    job = follow(store, lambda: store.submit(Kind.INSPECT, {}))
    if job.status is not Status.COMPLETED:
        echo_error(job)
        raise SystemExit(1)
    found = job.result or {}
    if wants_json(ctx, as_json):
        print_json(found)
        return
    for device in found["devices"]:
        memory = f", {device['memory_bytes'] / 2**30:,.1f} GiB" if device["memory_bytes"] else ""
        capability = device["compute_capability"]
        extra = f", compute capability {capability}" if capability else ""
        click.echo(f"{device['type']}:{device['index']}  {device['name']}{memory}{extra}")
    if found["gpu_reason"]:
        click.echo(found["gpu_reason"])
    click.echo(f"TensorFlow {found['tensorflow']}, Keras {found['keras']}, Python {found['python']}")


@click.command()
@click.option("--dataset", type=Choice(settings.Dataset), default="reuters", show_default=True)
@click.option("--strategy", type=Choice(settings.Strategy), default="mirrored", show_default=True)
@click.option("--tpu", default="local", show_default=True, help="Name or address, for --strategy tpu.")
@click.option(
    "--logical-devices", type=Number(int), help="Parts of the device.  [default: 2, or 1 if single]"
)
@click.option("--epochs", type=Number(int), default=10, show_default=True)
@click.option("--batch-size", type=Number(int), default=32, show_default=True, help="Global batch size.")
@click.option("--optimizer", type=Choice(settings.Optimizer), default="nadam", show_default=True)
@click.option("--learning-rate", type=Number(float), help="[default: Keras's own for the optimizer]")
@click.option(
    "--from-logits", is_flag=True, help="Experiment: the loss takes the softmax's probabilities for logits."
)
@click.option("--seed", type=Number(int), default=1, show_default=True)
@click.option("--patience", type=Number(int), help="Stop early after this many epochs without improvement.")
@click.option("--deterministic", is_flag=True, help="Reproducible to the last bit, somewhat slower.")
@click.option(
    "--steps-per-execution",
    type=Number(int),
    help="Steps in one call of the compiled function.  [default: automatic]",
)
@click.option(
    "--intra-op-threads", type=Number(int), help="Threads that share an operation.  [default: automatic]"
)
@click.option("--inter-op-threads", type=Number(int), help="Operations side by side.  [default: automatic]")
@click.option("--jit-compile", is_flag=True, help="Compile the step with XLA; single device only.")
@shared
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
        logical_devices = _usual_parts(strategy)
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
    store = open_store(ctx, home)
    quiet = wants_json(ctx, as_json)
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


@click.command()
@click.argument("run_id")
@click.option("--strategy", type=Choice(settings.Strategy), help="[default: the run's]")
@click.option("--logical-devices", type=Number(int), help="[default: the run's, or as for train]")
@shared
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
    store = settled_store(ctx, home)
    run = store.run(run_id)
    if logical_devices is None and strategy is not None:
        logical_devices = _usual_parts(strategy)
    changes = {"strategy": strategy, "logical_devices": logical_devices}
    changes = {name: value for name, value in changes.items() if value is not None}
    layout = None
    if changes:
        before = run.config.get("layout", {})
        layout = parse_config({"layout": {**before, **changes}}).layout
    _train_to_the_end(ctx, store, lambda: store.resume(run_id, layout), quiet=wants_json(ctx, as_json))


@click.command()
@click.argument("run_id")
@click.option("--epochs", type=Number(int), required=True, help="How many more.")
@shared
@click.pass_context
def extend(ctx: click.Context, run_id: str, epochs: int, home: Path | None, as_json: bool) -> None:
    """Train a run that has ended for some epochs more."""
    store = settled_store(ctx, home)
    store.run(run_id)  # or it is told that it is none
    _train_to_the_end(ctx, store, lambda: store.extend(run_id, epochs), quiet=wants_json(ctx, as_json))


def _usual_parts(strategy: str) -> int:
    """Logical devices where none are asked for: with a strategy for several, two show what it does."""
    return 2 if strategy == "mirrored" else 1


def _train_to_the_end(ctx: click.Context, store: Store, begin: Callable[[], str], *, quiet: bool) -> None:
    """Queues a run, follows it, and says how it ended."""
    job = follow(store, begin, Bar(store, hidden=quiet))
    if quiet:
        print_json(report(store, job.id))
    else:
        click.echo(f"Run {job.id} {job.status} in {job.duration_s or 0:,.1f} s.")
        click.echo(report(store, job.id)["diagnosis"]["sentence"])
        if job.status is Status.STOPPED:
            click.echo(f"See it with `python -m core show {job.id}`.")
    if job.status not in (Status.COMPLETED, Status.STOPPED, Status.PAUSED):
        echo_error(job)
        ctx.exit(2 if job.error and job.error["field"] else 1)
