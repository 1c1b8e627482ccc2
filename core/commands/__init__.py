"""The commands of ``python -m core``, and what all of them do with errors and Ctrl-C."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import click

from core.commands.elsewhere import diagnose, lint
from core.commands.options import shared
from core.commands.results import evaluate, export
from core.commands.runs import delete, pause, runs, show, stop
from core.commands.server import backup, health, launch, restore
from core.commands.training import devices, extend, resume, train
from core.errors import INTERRUPTED, ConfigError, MirrorboardError


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


@click.group(cls=_Group)
@shared
@click.pass_context
def main(ctx: click.Context, home: Path | None, as_json: bool) -> None:
    """Mirrorboard without a browser: devices, training runs, their records."""
    ctx.obj = {"home": home, "as_json": as_json}


for _command in (
    devices,
    train,
    runs,
    show,
    stop,
    delete,
    pause,
    resume,
    extend,
    evaluate,
    export,
    diagnose,
    lint,
    backup,
    restore,
    health,
    launch,
):
    main.add_command(_command)
