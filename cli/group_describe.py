"""`minibroker group describe`: how far groups are, who is in them, who keeps them.

The columns are those of Kafka's tool; what is wrong with an offset is said beside, on stderr.
"""

import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from minibroker.cli.group_names import GroupArguments, GroupOptions, group_names, name_missing
from minibroker.cli.terminal import (
    DEFAULT_BOOTSTRAP,
    DEFAULT_TIMEOUT_S,
    Bootstrap,
    Format,
    OutputFormat,
    TimeoutS,
    counted,
    in_columns,
    note,
    opened_admin,
    printable,
)

if TYPE_CHECKING:
    from minibroker.client import GroupDescription, GroupsReport
    from minibroker.client.blocking import Admin


def describe(
    group: GroupArguments = None,
    *,
    group_option: GroupOptions = None,
    all_groups: Annotated[
        bool, typer.Option("--all-groups", help="The default, if no group is named.")
    ] = False,
    members: Annotated[
        bool, typer.Option("--members", help="Who is in it, and reads which partitions.")
    ] = False,
    state: Annotated[
        bool, typer.Option("--state", help="Its coordinator, assignor and state.")
    ] = False,
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
    with opened_admin(bootstrap, timeout_s) as admin:
        report = None if named else admin.list_groups()
        described = (
            admin.describe_groups(*named) if report is None else _describe_all(admin, report)
        )
        show = _show_members if members else _show_state if state else _show_offsets
        show(admin, described, output)
    if report is not None:
        name_missing(report)


def _describe_all(admin: "Admin", report: "GroupsReport") -> "list[GroupDescription]":
    """All that are still there since they were listed."""
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
    admin: "Admin", described: "Sequence[GroupDescription]", output: OutputFormat
) -> None:
    from minibroker.cli.group_lag import HEADS, Row, extents_of, rows_of, warnings_of

    rows: list[Row] = []
    for group in described:
        committed = admin.committed_offsets(group.group_id)
        assigned = {name for member in group.members for name in member.assignment}
        extents = extents_of(admin, assigned | committed.keys())
        found = list(rows_of(group, committed, extents))
        rows += found
        lag = sum(row.lag or 0 for row in found)
        count = counted(len(group.members), "member")
        note(f"group {printable(group.group_id)} is {group.state}, has {count}, a lag of {lag:,}")
        for warning in warnings_of(committed, extents):
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
    """`t(0,1), u(3)`, as Kafka's tool has it."""
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
