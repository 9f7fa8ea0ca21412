"""The broker's settings as the command line gives them, for `start` and `config show`."""

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from minibroker.cli.terminal import USAGE, Failure, note, pairs

if TYPE_CHECKING:
    from minibroker.broker.config import Loaded

ConfigFile = Annotated[
    Path | None,
    typer.Option("--config", "-c", metavar="FILE", help="A properties file.", show_default=False),
]
Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        "--override",
        metavar="NAME=VALUE",
        help="A property, over the file and the environment; may be given several times.",
        show_default=False,
    ),
]


def load_settings(file: Path | None, settings: dict[str, str]) -> "Loaded":
    """Join flags, environment, file and defaults, and say what is worth a warning.

    A bad setting is a usage error.
    """
    from minibroker.broker.config import ConfigError, load

    try:
        text = file.read_text(encoding="utf-8") if file else ""
    except (OSError, UnicodeDecodeError) as error:
        raise Failure(f"cannot read the configuration file {file}: {error}", USAGE) from None
    try:
        loaded = load(text, os.environ, settings)
    except ConfigError as error:
        raise Failure(f"{error}; `minibroker config show` lists all", USAGE) from None
    for warning in loaded.warnings:
        note(f"WARNING: {warning}")
    return loaded


def given_settings(settings: list[str] | None) -> dict[str, str]:
    """What `--set` names."""
    return pairs(settings or [], "--set")
