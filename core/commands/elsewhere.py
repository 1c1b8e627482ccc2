"""Commands about what comes from elsewhere: the log of a training, a script or notebook of one's own."""

from __future__ import annotations

from pathlib import Path

import click

from core.analysis.imported import read_history
from core.analysis.overfitting import diagnose as diagnose_history
from core.analysis.script_lint import check_script
from core.analysis.script_syntax import read_script
from core.commands.options import print_json, shared, wants_json


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--classes", type=click.IntRange(min=2), help="Classes of the model, to recognise a double softmax."
)
@shared
@click.pass_context
def diagnose(ctx: click.Context, file: Path, classes: int | None, home: Path | None, as_json: bool) -> None:  # noqa: ARG001
    """Say when a training from elsewhere was best, and whether it overfits.

    FILE is a log of keras.callbacks.CSVLogger, a history.json, or an event file or the folder of
    keras.callbacks.TensorBoard. Exit code 2: it cannot be read.
    """
    found = diagnose_history(read_history(file), num_classes=classes)
    if wants_json(ctx, as_json):
        print_json(found.to_json())
        return
    click.echo(found.sentence)
    for rule, epoch in found.criteria.items():
        click.echo(f"{rule:<14}  {'never stops' if epoch is None else f'stops after epoch {epoch}'}")


@click.command()
@click.argument("file", type=click.Path(path_type=Path))
@shared
@click.pass_context
def lint(ctx: click.Context, file: Path, home: Path | None, as_json: bool) -> None:  # noqa: ARG001
    """Look through a training script or notebook for the classic mistakes of distributed training.

    FILE is read, never run. Exit code 0: none found; 1: some; 2: it cannot be read.
    """
    found = check_script(read_script(file))
    if wants_json(ctx, as_json):
        print_json([finding.to_json() for finding in found])
    else:
        for finding in found:
            cell = "" if finding.cell is None else f"cell {finding.cell}:"
            click.echo(f"{file}:{cell}{finding.line}: {finding.rule}: {finding.what}")
            click.echo(f"  {finding.why} {finding.effect}\n  {finding.remedy}")
        if not found:
            click.echo("None of the classic mistakes found.")
    ctx.exit(1 if found else 0)
