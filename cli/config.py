"""`minibroker config show`: every property, its value, where that came from, what it means."""

import json

import typer

from minibroker.cli.settings import ConfigFile, Settings, given_settings, load_settings
from minibroker.cli.terminal import Format, OutputFormat

app = typer.Typer(help="The broker's settings.", no_args_is_help=True)


@app.callback()
def config() -> None:
    """The broker's settings."""


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
