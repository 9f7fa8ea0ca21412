"""How the commands of `minibroker group` are told which groups are meant."""

from typing import Annotated

import typer

from minibroker.cli.terminal import Failure, note, one_name

GroupArgument = Annotated[str | None, typer.Argument(metavar="GROUP", show_default=False)]
GroupArguments = Annotated[list[str] | None, typer.Argument(metavar="GROUP", show_default=False)]
GroupOption = Annotated[
    str | None,
    typer.Option("--group", metavar="GROUP", help="The same as GROUP.", show_default=False),
]
GroupOptions = Annotated[
    list[str] | None,
    typer.Option("--group", metavar="GROUP", help="The same as GROUP.", show_default=False),
]


def group_names(arguments: list[str] | None, options: list[str] | None) -> list[str]:
    """All that were named, each once."""
    names = [one_name("group", each, None) for each in [*(arguments or []), *(options or [])]]
    return list(dict.fromkeys(names))


def name_silent(silent: dict[int, str]) -> None:
    """End with exit code 1 if brokers did not say which groups they keep."""
    for node_id, reason in sorted(silent.items()):
        note(f"broker {node_id} does not say which groups it keeps: {reason}")
    if silent:
        raise Failure("there may be more groups than these")
