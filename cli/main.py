"""The command `minibroker`: one file of this package per noun, joined here.

Every command imports what it needs when it runs, so that `--help` answers at once and `topic list`
does not load a broker; a test holds this.
"""

import logging
from importlib.metadata import version
from typing import Annotated

import typer

from minibroker.cli import (
    audit,
    bench,
    cluster,
    config,
    consume,
    group,
    lab,
    log,
    partition,
    produce,
    replica,
    start,
    topic,
)
from minibroker.cli.terminal import failures_as_one_line

app = typer.Typer(
    name="minibroker",
    help="A replicated log broker, small enough to read and sound enough to trust.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("start")(start.start)
app.add_typer(cluster.app, name="cluster")
app.add_typer(topic.app, name="topic")
app.command("produce")(produce.produce)
app.command("consume")(consume.consume)
app.add_typer(group.app, name="group")
app.add_typer(partition.app, name="partition")
app.add_typer(replica.app, name="replica")
app.add_typer(log.app, name="log")
app.add_typer(lab.app, name="lab")
app.add_typer(audit.app, name="audit")
app.add_typer(bench.app, name="bench")
app.add_typer(config.app, name="config")


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"minibroker {version('minibroker')}")
        raise typer.Exit


@app.callback()
def options(
    wanted: Annotated[
        bool,
        typer.Option("--version", callback=_print_version, is_eager=True, help="Say which it is."),
    ] = False,
) -> None:
    """Options before the command; the docstring of `app` is what the help shows."""


def main() -> None:
    """What the `minibroker` script runs."""
    # What a client has to say on the way (`start` gives the broker's lines a form of their own).
    logging.basicConfig(level=logging.WARNING, format="%% %(message)s")
    with failures_as_one_line():
        app()
