"""`minibroker config show`: every property with its value, source and meaning.
`minibroker config check`: all problems of the settings, without starting anything."""

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from minibroker.cli.settings import (
    ConfigFile,
    Settings,
    given_settings,
    joined_settings,
    load_settings,
)
from minibroker.cli.terminal import USAGE, Format, OutputFormat, note

if TYPE_CHECKING:
    from minibroker.broker.config import Config

app = typer.Typer(help="Show and check a broker's settings.", no_args_is_help=True)


@app.callback()
def config() -> None:
    """Show and check a broker's settings."""


@app.command()
def show(
    file: ConfigFile = None,
    settings: Settings = None,
    output: Format = OutputFormat.TEXT,
) -> None:
    """Print every property as a broker started with the same options would take it.

    The text is itself a properties file.
    """
    from minibroker.broker.properties import PROPERTIES

    loaded = load_settings(file, given_settings(settings))
    rows = [
        {
            "name": row.name,
            "value": row.format(loaded.config.value_of(row)),
            "source": loaded.sources[row.name],
            "default": row.format(row.default),
            "unit": row.unit,
            "range": row.range,
            "topic_name": row.topic_name,
            "meaning": row.sentence,
        }
        for row in PROPERTIES.values()
    ]
    if output is OutputFormat.JSON:
        print(json.dumps(rows, indent=2))
        return
    for row in rows:
        unit = f" {row['unit']}" if row["unit"] else ""
        print(f"# {row['meaning']}")
        print(f"# {row['source']}; {row['range']}{unit}")
        print(f"{row['name']}={row['value']}\n")


@app.command()
def check(
    file: Annotated[
        Path | None,
        typer.Argument(
            metavar="FILE",
            help="File, as for `minibroker start --config`; default: environment and --set alone.",
            show_default=False,
        ),
    ] = None,
    settings: Settings = None,
) -> None:
    """Say all that is wrong with a broker's settings, one problem a line; start nothing.

    The environment and --set are looked at with the file, as `minibroker start` joins them.
    """
    from minibroker.broker.config import ConfigError

    try:
        loaded = joined_settings(file, given_settings(settings))
        problems = _missing_files(loaded.config)
    except ConfigError as error:
        problems = list(error.problems)
    else:
        for warning in loaded.warnings:
            note(f"WARNING: {warning}")
    for problem in problems:
        print(problem)
    if problems:
        raise typer.Exit(USAGE)
    print("A broker can be started with these settings.")


def _missing_files(config: "Config") -> list[str]:
    """Return the files that properties name and that cannot be read here."""
    from minibroker.broker.config_property import Kind
    from minibroker.broker.properties import PROPERTIES

    named = [
        (row.name, Path(str(value)))
        for row in PROPERTIES.values()
        if row.kind is Kind.FILE and (value := config.value_of(row)) is not None
    ]
    return [
        f"{name} = {str(path)!r} is no file that can be read here"
        for name, path in named
        if not (path.is_file() and os.access(path, os.R_OK))
    ]
