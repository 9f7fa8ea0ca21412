"""The commands of `minibroker`: one module of this package for each noun, joined here.

A noun's module has its commands as `app`, or is a single command with the noun's name. Only the
module of the requested noun is imported, and every command imports what it needs when it runs: so
`--help` answers at once, and `topic list` does not import a broker. A test checks that.
"""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import Annotated, Any, Final, cast

import typer

from minibroker.cli.examples import add_examples
from minibroker.cli.terminal import USAGE, Failure

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
    "top": "top",
    "lab": "lab",
    "audit": "audit.commands",
    "bench": "bench.commands",
    "config": "config",
}


# What the help calls a value of a type.
VALUES: Final = {"int": "N", "float": "N", "path": "PATH", "file": "PATH", "directory": "PATH"}

# typer has click's classes in a package of its own from some version on.
USAGE_ERROR: Final = cast("type[Exception]", typer.BadParameter.__mro__[1])


def run(arguments: Sequence[str]) -> None:
    """Run a command and exit, or complete one for a shell. Raises a usage error as `Failure`."""
    try:
        command = typer.main.get_command(app_for(_words_to_complete() or arguments))
        _name_values(command)
        add_examples(command)
        code = command(list(arguments), prog_name="minibroker", standalone_mode=False)
    except typer.Abort:
        raise Failure("nothing was done") from None
    except USAGE_ERROR as error:
        raise _one_line(error) from None
    sys.exit(code)


def _words_to_complete() -> list[str]:
    """Return the words behind `minibroker` that a shell has passed to be completed; none while the
    first of them is typed."""
    if "_MINIBROKER_COMPLETE" not in os.environ:
        return []
    typed = os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS", "")
    words = typed.split(" ")[1:]
    return words if len(words) > 1 else []


def _name_values(command: Any) -> None:
    """Let the help name the values of options in words, not types (`N`, not `<int range>`), and
    leave out arguments of which it has nothing to say but their names."""
    for each in command.params:
        if each.param_type_name == "argument":
            each.hidden = each.hidden or not each.help
            each.display_type = lambda ctx: ""
        elif hasattr(each, "display_type"):  # an older typer shows the words of click
            each.display_type = partial(_in_words, each.display_type)
    for each in getattr(command, "commands", {}).values():
        _name_values(each)


def _in_words(display_type: Callable[[Any], str], ctx: Any) -> str:
    shown = display_type(ctx).strip("<>")
    return (
        shown
        if "|" in shown
        else next((word for part, word in VALUES.items() if part in shown), "TEXT")
    )


def _one_line(error: Exception) -> Failure:
    """Return a usage error with the command whose help has more."""
    context = getattr(error, "ctx", None)
    if type(error).__name__ == "NoArgsIsHelpError" and context is not None:
        print(context.get_help())
        sys.exit(USAGE)
    text = " ".join(error.format_message().split()).removesuffix(".")  # type: ignore[attr-defined]
    more = "" if context is None else f" (see {context.command_path} --help)"
    return Failure(f"{text}{more}", USAGE)


def app_for(arguments: Sequence[str]) -> typer.Typer:
    """Return the command line for these arguments: with the noun that they name, or with all."""
    app = typer.Typer(
        name="minibroker",
        help="A replicated log broker, small enough to read and sound enough to trust.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,  # its tables cut names of options at 80 columns
        context_settings={"help_option_names": ["-h", "--help"]},
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
