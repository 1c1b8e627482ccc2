"""Commands for who looks after a server: back up, restore and watch the store, and start its engines."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

import click

from core.backup import backup as back_up_store
from core.backup import restore as restore_store
from core.commands.options import home_folder, open_store, print_json, shared, wants_json
from core.errors import ConfigError, EngineError, InvalidDatabase
from core.health import examine
from core.launcher import Launcher
from core.records import Kind
from core.words import plural

_POLL_S = 1.0


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@shared
@click.pass_context
def backup(ctx: click.Context, file: Path, home: Path | None, as_json: bool) -> None:
    """Copy the run store into FILE while everything goes on.

    It holds all runs with what they have recorded, but not their checkpoints, so elsewhere they cannot be
    resumed. Prepared datasets are left out: they can be made again.
    """
    runs = back_up_store(home_folder(ctx, home), file)
    if wants_json(ctx, as_json):
        print_json({"file": str(file.absolute()), "size_bytes": file.stat().st_size, "runs": runs})
    else:
        click.echo(f"{plural(runs, 'run is', 'runs are')} in {file}, {file.stat().st_size / 1e6:,.1f} MB.")


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@shared
@click.pass_context
def restore(ctx: click.Context, file: Path, home: Path | None, as_json: bool) -> None:
    """Put the backup FILE in the place of the run store, which is kept aside.

    Nobody may use the store meanwhile. Runs that were going on when the backup was made count as lost;
    those that were queued are still queued, and start with the next dashboard.
    """
    where = home_folder(ctx, home)
    try:
        done = restore_store(where, file)
    except InvalidDatabase as error:
        raise ConfigError(error.message, error.hint) from error
    if wants_json(ctx, as_json):
        kept = None if done.kept is None else str(done.kept)
        print_json({"home": str(where), "runs": done.runs, "lost": done.lost, "kept": kept})
        return
    click.echo(f"{plural(done.runs, 'run is', 'runs are')} in {where}.")
    for run_id in done.lost:
        click.echo(f"Run {run_id} was going on when the backup was made; it counts as lost.")
    if done.kept:
        click.echo(f"The store that was there before is in {done.kept}.")


@click.command()
@shared
@click.pass_context
def health(ctx: click.Context, home: Path | None, as_json: bool) -> None:
    """Say whether the store is usable and its jobs are being done. Exit code 1: not so."""
    about = examine(home_folder(ctx, home))
    if wants_json(ctx, as_json):
        print_json(about)
    else:
        click.echo("\n".join(about["problems"]) or f"The store in {about['home']} is well.")
    if not about["healthy"]:
        ctx.exit(1)


@click.command(name="launcher")
@shared
@click.pass_context
def launch(ctx: click.Context, home: Path | None, as_json: bool) -> None:  # noqa: ARG001
    """Start engines for the store's jobs, without a dashboard, until SIGTERM or Ctrl-C.

    For a server whose dashboards, started with MIRRORBOARD_WATCH=1, come and go beside it. A run that is
    going on when this ends goes on.
    """
    store = open_store(ctx, home)
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    launcher = Launcher(store)
    launcher.start()
    store.submit(Kind.INSPECT, {})
    while launcher.is_running and not ended.wait(_POLL_S):
        pass
    launcher.close()
    if not ended.is_set():
        raise EngineError("The launcher ended by itself.", "The lines above say why; start it again.")
