"""How the commands of `minibroker group` are told which groups are meant."""

from typing import TYPE_CHECKING, Annotated

import typer

from minibroker.cli.terminal import Failure, note, one_name

if TYPE_CHECKING:
    from minibroker.client import GroupsReport

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


def name_missing(report: "GroupsReport") -> None:
    """End with exit code 1 if there may be groups that nobody told of."""
    for node_id, reason in sorted(report.silent.items()):
        note(f"broker {node_id} does not say which groups it keeps: {reason}")
    for partition in report.leaderless:
        note(f"nobody leads {partition}, and so nobody tells of the groups that are kept there")
    if report.silent or report.leaderless:
        raise Failure("there may be more groups than these")
