"""What the commands share: their options, the types of these, the store they name, and JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import click

from core.errors import ConfigError
from core.launcher import Launcher
from core.store import Store, default_home
from core.words import shown


class Number(click.ParamType[int | float]):
    """A number; what is none is refused in the words of `core.validation`."""

    def __init__(self, kind: type[int | float]) -> None:
        self.name = "integer" if kind is int else "float"
        self._kind = kind

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int | float:  # noqa: ARG002
        """As click asks for it.

        Raises:
            ConfigError: It is no such number.
        """
        try:
            return self._kind(value)
        except ValueError:
            assert param is not None
            wanted = "a whole number" if self._kind is int else "a number"
            raise ConfigError(
                f"{param.opts[-1]} must be {wanted}, not {shown(value)}.", "Correct this option."
            ) from None


class Choice(click.Choice[str]):
    """One of a few values, refused likewise."""

    def __init__(self, literal: Any) -> None:
        super().__init__(get_args(literal))

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        """As click asks for it.

        Raises:
            ConfigError: It is none of them.
        """
        try:
            return super().convert(value, param, ctx)
        except click.BadParameter:
            assert param is not None
            raise ConfigError(
                f"{param.opts[-1]} must be one of {', '.join(self.choices)}, not {shown(value)}.",
                "Choose one of them.",
            ) from None


def shared(command: Callable[..., None]) -> Callable[..., None]:
    """The options that stand before or after a subcommand's own."""
    command = click.option("--json", "as_json", is_flag=True, help="Print JSON, and nothing else.")(command)
    return click.option(
        "--home",
        type=click.Path(path_type=Path),
        help="Run store.  [default: $MIRRORBOARD_HOME]",
    )(command)


def home_folder(ctx: click.Context, home: Path | None) -> Path:
    """The store's folder: as named after the subcommand, before it, or in the environment."""
    return Path(home or ctx.obj["home"] or default_home()).expanduser().absolute()


def open_store(ctx: click.Context, home: Path | None) -> Store:
    """The store in that folder."""
    return Store(home_folder(ctx, home))


def settled_store(ctx: click.Context, home: Path | None) -> Store:
    """The store, and in it no run that counts as going on though its engine is gone."""
    store = open_store(ctx, home)
    Launcher(store).bury_dead_engines()
    return store


def wants_json(ctx: click.Context, as_json: bool) -> bool:
    """Whether ``--json`` was given after the subcommand or before it."""
    return as_json or bool(ctx.obj["as_json"])


def print_json(value: Any) -> None:
    """One JSON value on standard output."""
    click.echo(json.dumps(value, allow_nan=False, indent=2))
