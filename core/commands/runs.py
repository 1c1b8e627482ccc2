"""Commands about runs that there are: list and show them, stop, pause and delete them."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path

import click

from core.commands.options import open_store, print_json, settled_store, shared, wants_json
from core.errors import RunStateError
from core.launcher import Launcher
from core.records import Status
from core.report import overview, report
from core.store import Store
from core.words import plural

_POLL_S = 0.1
_STOP_WAIT_S = 10.0


@click.command()
@shared
@click.pass_context
def runs(ctx: click.Context, home: Path | None, as_json: bool) -> None:
    """List the runs, newest first."""
    store = settled_store(ctx, home)
    rows = overview(store)
    if wants_json(ctx, as_json):
        print_json(rows)
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


@click.command()
@click.argument("run_id")
@shared
@click.pass_context
def show(ctx: click.Context, run_id: str, home: Path | None, as_json: bool) -> None:
    """Show one run."""
    store = settled_store(ctx, home)
    about = report(store, run_id)
    if wants_json(ctx, as_json):
        print_json(about)
        return
    params = about["model"]["params"]
    click.echo(f"Run {run_id} {about['status']}" + (f", {params:,} parameters" if params else ""))
    for epoch in about["history"]:
        values = "  ".join(
            f"{name} {'–' if value is None else f'{value:.4f}'}"
            for name, value in epoch.items()
            if name not in ("epoch", "duration_s")
        )
        took = epoch.get("duration_s")  # unknown of an import, or where an engine died between two rows
        click.echo(f"epoch {epoch['epoch']:>3}  {'–' if took is None else f'{took:.1f} s'}  {values}")
    click.echo(about["diagnosis"]["sentence"])


@click.command()
@click.argument("run_id")
@shared
@click.pass_context
def stop(ctx: click.Context, run_id: str, home: Path | None, as_json: bool) -> None:
    """Stop a run; what it has recorded is kept."""
    store = open_store(ctx, home)
    before = store.run(run_id).status
    status = _await_end(store, run_id, store.request_stop(run_id))
    if wants_json(ctx, as_json):
        print_json({"run_id": run_id, "status": str(status)})
    elif before.is_final:
        click.echo(f"Run {run_id} had ended already: {status}.")
    else:
        click.echo(f"Run {run_id} {status}.")
    if not status.is_final:
        ctx.exit(1)


@click.command()
@click.argument("run_id")
@shared
@click.pass_context
def pause(ctx: click.Context, run_id: str, home: Path | None, as_json: bool) -> None:
    """Pause a running run and free its devices; `resume` goes on with it."""
    store = settled_store(ctx, home)
    store.run(run_id)  # or it is told that it is none
    status = _await_end(store, run_id, store.request_pause(run_id))
    if wants_json(ctx, as_json):
        print_json({"run_id": run_id, "status": str(status)})
    else:
        click.echo(f"Run {run_id} {status} after epoch {store.job(run_id).checkpoint_epochs}.")
    if not status.is_final:
        ctx.exit(1)


@click.command()
@click.argument("run_ids", nargs=-1, required=True, metavar="RUN_ID...")
@shared
@click.pass_context
def delete(ctx: click.Context, run_ids: tuple[str, ...], home: Path | None, as_json: bool) -> None:
    """Delete runs for good, with their checkpoints and all that was made of them."""
    store = open_store(ctx, home)  # the way out where a row is damaged, so it reads none
    deleted = store.delete(run_ids)
    if wants_json(ctx, as_json):
        print_json({"deleted": deleted})
    else:
        click.echo(f"Deleted {plural(len(deleted), 'run')}.")
    left = [run_id for run_id in run_ids if run_id not in deleted]
    for run_id in left:
        job = store.run(run_id)
        raise RunStateError(f"Run {run_id} is {job.status}, so it was not deleted.", "Stop it first.")


def _await_end(store: Store, run_id: str, status: Status) -> Status:
    """Waits for a run that was asked to end."""
    deadline = time.monotonic() + _STOP_WAIT_S
    launcher = Launcher(store)
    while not status.is_final and time.monotonic() < deadline:
        time.sleep(_POLL_S)
        launcher.bury_dead_engines()
        status = store.job(run_id).status
    return status
