"""`minibroker group`: list, describe, delete and seek consumer groups.

`describe` and `seek` print the columns of Kafka's tool, because people grep them; problems with an
offset go to stderr. Unlike that tool `seek` changes the offsets unless `--dry-run` is given. It
refuses while the group has members, whose next commit would undo the change.
"""

import json
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from minibroker.cli import DEFAULT_BOOTSTRAP
from minibroker.cli.explain import GROUP, Explain, explain
from minibroker.cli.terminal import (
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
    from minibroker.cli.group.seek import Move, Scope, Target
    from minibroker.client import GroupDescription, GroupsReport
    from minibroker.client.blocking import Admin

STATES = ("Empty", "PreparingRebalance", "CompletingRebalance", "Stable")

app = typer.Typer(
    help="List, describe, delete and seek consumer groups.",
    no_args_is_help=True,
)
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


Scopes = Annotated[
    list[str] | None,
    typer.Option(
        "--topic", metavar="TOPIC[:0,1]", help="Topic, or partitions of it; may be repeated."
    ),
]
AllTopics = Annotated[
    bool,
    typer.Option("--all-topics", help="All topics that the group has committed offsets for."),
]
Time = Annotated[
    str | None,
    typer.Option(
        "--to-datetime",
        metavar="TIME",
        help="First record at or after this time: ISO 8601, or ms.",
    ),
]
Shift = Annotated[
    int | None,
    typer.Option("--shift-by", metavar="N", help="N records forward, or back with -N."),
]
Duration = Annotated[
    str | None,
    typer.Option(
        "--by-duration",
        metavar="PnDTnHnMnS",
        help="First record at or after so long ago, for example PT90M.",
        show_default=False,
    ),
]
OffsetsFile = Annotated[
    Path | None,
    typer.Option(
        "--from-file",
        metavar="FILE",
        help="Offsets in lines TOPIC,PARTITION,OFFSET, as --export prints them.",
        show_default=False,
    ),
]
Export = Annotated[
    bool, typer.Option("--export", help="Print the new offsets in lines for --from-file.")
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="No change, only a list of what would change.")
]


@app.command("list")
def list_groups(
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout_s: TimeoutS = DEFAULT_TIMEOUT_S,
    state: Annotated[
        list[str] | None,
        typer.Option(
            "--state",
            metavar="STATE",
            help=f"Only groups in one of these states: {', '.join(STATES)}.",
        ),
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
    report_missing(report)


def _state(text: str) -> str:
    """Return the state with this name, in any case."""
    for state in STATES:
        if text.strip().lower() == state.lower():
            return state
    raise typer.BadParameter(f"--state takes {', '.join(STATES)}, not {text!r}")


def group_names(arguments: list[str] | None, options: list[str] | None) -> list[str]:
    """Return all given group names, each once."""
    names = [one_name("group", each, None) for each in [*(arguments or []), *(options or [])]]
    return list(dict.fromkeys(names))


def report_missing(report: "GroupsReport") -> None:
    """Raise `Failure` (exit code 1) if there may be groups that no broker reported."""
    for node_id, reason in sorted(report.silent.items()):
        note(f"broker {node_id} does not say which groups it keeps: {reason}")
    for partition in report.leaderless:
        note(f"nobody leads {partition}, and so nobody tells of the groups that are kept there")
    if report.silent or report.leaderless:
        raise Failure("there may be more groups than these")


@app.command()
def describe(
    group: GroupArguments = None,
    *,
    group_option: GroupOptions = None,
    all_groups: Annotated[
        bool, typer.Option("--all-groups", help="All groups; the default if none is named.")
    ] = False,
    members: Annotated[
        bool, typer.Option("--members", help="Members, and the partitions that each reads.")
    ] = False,
    state: Annotated[
        bool, typer.Option("--state", help="Coordinator, assignor and state.")
    ] = False,
    explains: Explain = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout_s: TimeoutS = DEFAULT_TIMEOUT_S,
    output: Format = OutputFormat.TEXT,
) -> None:
    """Show offsets, lag and who reads each partition; of all groups if none is named."""
    named = group_names(group, group_option)
    if named and all_groups:
        raise typer.BadParameter("--all-groups and a group's name: give one of them")
    if members and state:
        raise typer.BadParameter("--members and --state: give one of them")
    if explains and (members or state):
        raise typer.BadParameter("--explain is about offsets: leave out --members and --state")
    with opened_admin(bootstrap, timeout_s) as admin:
        report = None if named else admin.list_groups()
        described = (
            admin.describe_groups(*named) if report is None else _describe_all(admin, report)
        )
        if members or state:
            (_show_members if members else _show_state)(admin, described, output)
        else:
            _show_offsets(admin, described, output, bootstrap, timeout_s)
    if explains:
        explain(GROUP)
    if report is not None:
        report_missing(report)


def _describe_all(admin: "Admin", report: "GroupsReport") -> "list[GroupDescription]":
    """Return the listed groups that still exist."""
    from minibroker.protocol.constants import ErrorCode
    from minibroker.protocol.errors import BrokerError

    described: list[GroupDescription] = []
    for name in (each.group_id for each in report.groups):
        try:
            described += admin.describe_groups(name)
        except BrokerError as error:
            if error.code != ErrorCode.GROUP_ID_NOT_FOUND:
                raise
            note(f"group {printable(name)} is gone since it was listed")
    return described


def _show_offsets(
    admin: "Admin",
    described: "Sequence[GroupDescription]",
    output: OutputFormat,
    bootstrap: str,
    timeout_s: float,
) -> None:
    from minibroker.cli.group.lag import (
        HEADS,
        Row,
        offset_ranges,
        places_behind,
        rows_of,
        warnings_of,
    )
    from minibroker.cli.group.unreadable import unreadable_places

    rows: list[Row] = []
    for group in described:
        committed = admin.committed_offsets(group.group_id)
        assigned = {name for member in group.members for name in member.assignment}
        ranges = offset_ranges(admin, assigned | committed.keys())
        found = list(rows_of(group, committed, ranges))
        rows += found
        lag = sum(row.lag or 0 for row in found)
        count = counted(len(group.members), "member")
        note(f"group {printable(group.group_id)} is {group.state}, has {count}, a lag of {lag:,}")
        offsets = {name: each.offset for name, each in committed.items()}
        places = places_behind(offsets, ranges)
        unreadable = unreadable_places(bootstrap, places, timeout_s)
        for warning in warnings_of(committed, ranges, unreadable):
            note(f"WARNING: {warning}")
    _print_rows(HEADS, rows, [row._asdict() for row in rows], output)


def _show_members(
    admin: "Admin", described: "Iterable[GroupDescription]", output: OutputFormat
) -> None:
    rows: list[dict[str, Any]] = []
    for group in described:
        if not group.members:
            note(f"group {printable(group.group_id)} is {group.state} and has no members")
        for member in group.members:
            by_topic: dict[str, list[int]] = {}
            for topic, number in sorted(member.assignment):
                by_topic.setdefault(topic, []).append(number)
            rows.append(
                {
                    "group": group.group_id,
                    "consumer_id": member.member_id,
                    "group_instance_id": member.instance_id,
                    "host": member.client_host,
                    "client_id": member.client_id,
                    "partition_count": len(member.assignment),
                    "assignment": by_topic,
                }
            )
    heads = ("GROUP", "CONSUMER-ID", "GROUP-INSTANCE-ID", "HOST", "CLIENT-ID", "#PARTITIONS")
    cells = [(each | {"assignment": _scopes(each["assignment"])}).values() for each in rows]
    _print_rows((*heads, "ASSIGNMENT"), cells, rows, output)


def _scopes(by_topic: dict[str, list[int]]) -> str | None:
    """Return `t(0,1), u(3)`, as Kafka's tool prints it."""
    parts = [f"{topic}({','.join(map(str, numbers))})" for topic, numbers in by_topic.items()]
    return ", ".join(parts) or None


def _show_state(
    admin: "Admin", described: "Iterable[GroupDescription]", output: OutputFormat
) -> None:
    addresses = {each.node_id: each for each in admin.describe_cluster().brokers}
    rows: list[dict[str, Any]] = []
    for group in described:
        broker = addresses.get(group.coordinator_id)
        where = f"{broker.host}:{broker.port} " if broker is not None else ""
        rows.append(
            {
                "group": group.group_id,
                "coordinator": f"{where}({group.coordinator_id})",
                "assignment_strategy": group.protocol or None,
                "state": group.state,
                "generation": group.generation,
                "member_count": len(group.members),
            }
        )
    heads = ("GROUP", "COORDINATOR (ID)", "ASSIGNMENT-STRATEGY", "STATE", "GENERATION", "#MEMBERS")
    _print_rows(heads, [row.values() for row in rows], rows, output)


def _print_rows(
    heads: Sequence[str],
    cells: Iterable[Iterable[object]],
    objects: Sequence[dict[str, Any]],
    output: OutputFormat,
) -> None:
    if output is OutputFormat.JSON:
        print(json.dumps(objects, indent=2))
    else:
        print(in_columns(heads, cells), end="")


@app.command()
def delete(
    group: GroupArguments = None,
    *,
    group_option: GroupOptions = None,
    topics: Scopes = None,
    if_exists: Annotated[
        bool,
        typer.Option("--if-exists", help="No error for a group or an offset that does not exist."),
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout_s: TimeoutS = DEFAULT_TIMEOUT_S,
) -> None:
    """Delete groups without members and their offsets; with --topic only offsets of that topic."""
    from minibroker.cli.group.seek import committed_in, parse_scope
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
    all_topics: AllTopics = False,
    to_earliest: Annotated[bool, typer.Option("--to-earliest", help="The log's start.")] = False,
    to_latest: Annotated[bool, typer.Option("--to-latest", help="The log's end.")] = False,
    to_offset: Annotated[
        int | None, typer.Option("--to-offset", metavar="N", min=0, help="This offset.")
    ] = None,
    to_datetime: Time = None,
    by_duration: Duration = None,
    shift_by: Shift = None,
    from_file: OffsetsFile = None,
    dry_run: DryRun = False,
    execute: Annotated[bool, typer.Option("--execute", help="The default; Kafka's flag.")] = False,
    export: Export = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout_s: TimeoutS = DEFAULT_TIMEOUT_S,
    output: Format = OutputFormat.TEXT,
) -> None:
    """Set the committed offsets of a group without members.

    Creates the group if it does not exist.
    """
    from minibroker.cli.group.seek import GivenTarget, parse_scope, scopes_in, target_of

    name = one_name("group", group, group_option)
    if dry_run and execute:
        raise typer.BadParameter("--dry-run and --execute contradict each other")
    if from_file is not None and (topics or all_topics):
        raise typer.BadParameter("--from-file names the topics: leave out --topic and --all-topics")
    given = (to_earliest, to_latest, to_offset, to_datetime, shift_by, by_duration, from_file)
    target = target_of(GivenTarget(*given), name, time.time_ns() // 1_000_000)
    if from_file is None and bool(topics) == all_topics:
        raise typer.BadParameter("say of which topics: --topic TOPIC, or --all-topics")
    scopes = [parse_scope(text) for text in topics or []] or scopes_in(target.offsets)
    with opened_admin(bootstrap, timeout_s) as admin:
        moves = _moves(admin, name, target, scopes)
        if not dry_run:
            admin.commit_offsets(name, {move[1:3]: move.new_offset for move in moves})
    _print_moves(moves, output, export=export)
    if dry_run:
        note("nothing was changed (--dry-run)")


def _moves(admin: "Admin", group: str, target: "Target", scopes: "Sequence[Scope]") -> "list[Move]":
    """Return what a seek changes. Raises `Failure`."""
    from minibroker.cli.group.seek import partitions_in, plan, scopes_of

    _refuse_members(admin, group)
    committed = admin.committed_offsets(group)
    partitions = partitions_in(admin, scopes or scopes_of(admin, committed))
    return plan(admin, group, target, partitions, committed)


def _print_moves(moves: "Sequence[Move]", output: OutputFormat, *, export: bool) -> None:
    from minibroker.cli.group.seek import HEADS

    if export:
        print("".join(f"{one.topic},{one.partition},{one.new_offset}\n" for one in moves), end="")
    elif output is OutputFormat.JSON:
        print(json.dumps([move._asdict() for move in moves], indent=2))
    else:
        print(in_columns(HEADS, moves), end="")


def _refuse_members(admin: "Admin", name: str) -> None:
    """Raise `Failure` for a group that has members."""
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
