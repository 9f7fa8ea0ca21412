"""The commands of `minibroker`: one module of this package for each noun, joined here.

A noun's module has its commands as `app`, or is a single command with the noun's name. Only the
module of the requested noun is imported, and every command imports what it needs when it runs: so
`--help` answers at once, and `topic list` does not import a broker. A test checks that.
"""

from collections.abc import Mapping, Sequence
from importlib import import_module
from typing import Annotated, Final

import typer

# In the order of the help; the modules are those of `minibroker.cli`.
MODULES: Final[Mapping[str, str]] = {
    "start": "broker.start",
    "cluster": "cluster.commands",
    "topic": "topic.commands",
    "produce": "data.produce",
    "consume": "data.consume",
    "group": "group.commands",
    "transaction": "transaction",
    "partition": "topic.partition",
    "replica": "topic.replica",
    "leader": "topic.leader",
    "broker": "broker.commands",
    "metadata": "metadata",
    "log": "log.commands",
    "health": "broker.health",
    "doctor": "doctor.commands",
    "lab": "lab",
    "audit": "audit.commands",
    "bench": "bench.commands",
    "config": "config",
}


def app_for(arguments: Sequence[str]) -> typer.Typer:
    """Return the command line for these arguments: with the noun that they name, or with all."""
    app = typer.Typer(
        name="minibroker",
        help="A replicated log broker, small enough to read and sound enough to trust.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    app.callback()(options)
    named = arguments[0] if arguments else ""
    for noun in [named] if named in MODULES else MODULES:
        module = import_module(f"minibroker.cli.{MODULES[noun]}")
        if hasattr(module, "app"):
            app.add_typer(module.app, name=noun)
        else:
            app.command(noun)(getattr(module, noun))
    return app


def _print_version(wanted: bool) -> None:
    from minibroker import __version__

    if wanted:
        print(f"minibroker {__version__}")
        raise typer.Exit


def options(
    wanted: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Define the options before the command; the help shows the docstring of `app` instead."""
