"""`minibroker group`: which groups there are, how far they are, and setting that.

`describe` (group_describe.py) and `seek` print the columns of Kafka's tool, because people grep
them. Unlike that tool `seek` does what it says unless it is told `--dry-run`. It refuses as long as
the group has members, whose next commit would undo it.
"""

import json
from typing import TYPE_CHECKING, Annotated

import typer

from minibroker.cli import group_describe
from minibroker.cli.group_names import (
    GroupArgument,
    GroupArguments,
    GroupOption,
    GroupOptions,
    group_names,
    name_missing,
)
from minibroker.cli.terminal import (
    DEFAULT_BOOTSTRAP,
    DEFAULT_TIMEOUT_S,
    Bootstrap,
    Failure,
    Format,
    OutputFormat,
    TimeoutS,
    counted,
    in_columns,
    note,
    one_name,
    opened_admin,
    printable,
)

if TYPE_CHECKING:
    from minibroker.client.blocking import Admin

STATES = ("Empty", "PreparingRebalance", "CompletingRebalance", "Stable")

app = typer.Typer(
    help="List, describe and delete consumer groups, and set where they go on.",
    no_args_is_help=True,
)
Scopes = Annotated[
    list[str] | None,
    typer.Option(
        "--topic", metavar="TOPIC[:0,1]", help="This topic, or these partitions; may be repeated."
    ),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Show what would change, and change nothing.")
]


@app.command("list")
def list_groups(
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout_s: TimeoutS = DEFAULT_TIMEOUT_S,
    state: Annotated[
        list[str] | None,
        typer.Option("--state", metavar="STATE", help=f"Only those that are {', '.join(STATES)}."),
    ] = None,
    output: Format = OutputFormat.TEXT,
) -> None:
    """List the groups' names."""
    wanted = [_state(each) for text in state or [] for each in text.split(",")]
    with opened_admin(bootstrap, timeout_s) as admin:
        report = admin.list_groups(*wanted)
    if output is OutputFormat.JSON:
        shown = [
            {"group": each.group_id, "protocol_type": each.protocol_type, "state": each.state}
            for each in report.groups
        ]
        print(json.dumps(shown, indent=2))
    else:
        print("".join(f"{printable(each.group_id)}\n" for each in report.groups), end="")
    name_missing(report)


app.command("describe")(group_describe.describe)


def _state(text: str) -> str:
    """A state however it is written."""
    for state in STATES:
        if text.strip().lower() == state.lower():
            return state
    raise typer.BadParameter(f"--state takes {', '.join(STATES)}, not {text!r}")


@app.command()
def delete(
    group: GroupArguments = None,
    *,
    group_option: GroupOptions = None,
    topics: Scopes = None,
    if_exists: Annotated[
        bool,
        typer.Option("--if-exists", help="A group or an offset that is not there is no error."),
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout_s: TimeoutS = DEFAULT_TIMEOUT_S,
) -> None:
    """Delete groups without members, and what they committed; with --topic only its offsets."""
    from minibroker.cli.group_seek import committed_in, parse_scope
    from minibroker.protocol.constants import ErrorCode
    from minibroker.protocol.errors import BrokerError

    names = group_names(group, group_option)
    if not names:
        raise typer.BadParameter("name a group: GROUP or --group GROUP")
    scopes = [parse_scope(text) for text in topics or []]
    not_found = ErrorCode.GROUP_ID_NOT_FOUND
    failures = 0
    with opened_admin(bootstrap, timeout_s) as admin:
        for name in names:
            try:
                if scopes:
                    partitions = committed_in(scopes, admin.committed_offsets(name))
                    admin.delete_offsets(name, partitions)
                    print(f"Deleted {counted(len(partitions), 'offset')} of group {name}.")
                else:
                    admin.delete_groups(name)
                    print(f"Deleted group {name}.")
            except (BrokerError, Failure) as error:
                is_there = isinstance(error, BrokerError) and error.code is not not_found
                is_fine = if_exists and not is_there
                if not is_fine and len(names) == 1:
                    raise
                failures += not is_fine
                note(str(error) if is_fine else f"ERROR: {error}")
    if failures:
        raise Failure(f"{failures} of {counted(len(names), 'group')} not deleted")


@app.command()
def seek(
    group: GroupArgument = None,
    *,
    group_option: GroupOption = None,
    topics: Scopes = None,
    all_topics: Annotated[
        bool, typer.Option("--all-topics", help="All topics that it committed offsets of.")
    ] = False,
    to_earliest: Annotated[bool, typer.Option("--to-earliest", help="The log's start.")] = False,
    to_latest: Annotated[bool, typer.Option("--to-latest", help="The log's end.")] = False,
    to_offset: Annotated[
        int | None, typer.Option("--to-offset", metavar="N", min=0, help="This offset.")
    ] = None,
    to_datetime: Annotated[
        str | None,
        typer.Option(
            "--to-datetime", metavar="TIME", help="The first record at or after: ISO 8601, or ms."
        ),
    ] = None,
    shift_by: Annotated[
        int | None, typer.Option("--shift-by", metavar="N", help="So many records on, or -N back.")
    ] = None,
    dry_run: DryRun = False,
    execute: Annotated[bool, typer.Option("--execute", help="The default; Kafka's flag.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout_s: TimeoutS = DEFAULT_TIMEOUT_S,
    output: Format = OutputFormat.TEXT,
) -> None:
    """Set where a group without members goes on; a group that there is not is made."""
    from minibroker.cli.group_seek import (
        HEADS,
        parse_scope,
        partitions_in,
        plan,
        scopes_of,
        target_of,
    )

    name = one_name("group", group, group_option)
    target = target_of(
        earliest=to_earliest, latest=to_latest, offset=to_offset, time=to_datetime, shift=shift_by
    )
    if dry_run and execute:
        raise typer.BadParameter("--dry-run and --execute contradict each other")
    if bool(topics) == all_topics:
        raise typer.BadParameter("say of which topics: --topic TOPIC, or --all-topics")
    scopes = [parse_scope(text) for text in topics or []]
    with opened_admin(bootstrap, timeout_s) as admin:
        _refuse_members(admin, name)
        committed = admin.committed_offsets(name)
        partitions = partitions_in(admin, scopes or scopes_of(admin, committed))
        moves = plan(admin, name, target, partitions, committed)
        if not dry_run:
            admin.commit_offsets(name, {move[1:3]: move.new_offset for move in moves})
    if output is OutputFormat.JSON:
        print(json.dumps([move._asdict() for move in moves], indent=2))
    else:
        print(in_columns(HEADS, moves), end="")
    if dry_run:
        note("nothing was changed (--dry-run)")


def _refuse_members(admin: "Admin", name: str) -> None:
    """Raise `Failure` for a group that is read by somebody."""
    from minibroker.protocol.constants import ErrorCode
    from minibroker.protocol.errors import BrokerError

    try:
        [group] = admin.describe_groups(name)
    except BrokerError as error:
        if error.code is not ErrorCode.GROUP_ID_NOT_FOUND:
            raise
        note(f"there is no group {name} yet")
        return
    if group.members:
        clients = {f"{printable(each.client_id)} at {each.client_host}" for each in group.members}
        raise Failure(
            f"group {name} is {group.state}, with {counted(len(group.members), 'member')}"
            f" ({', '.join(sorted(clients))}): stop them first; one that was killed counts until"
            " its session ends (session.timeout.ms)"
        )
