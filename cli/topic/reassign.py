"""`minibroker partition reassign`: move the replicas of partitions to other brokers."""

import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from minibroker.cli import DEFAULT_BOOTSTRAP
from minibroker.cli.terminal import (
    DEFAULT_TIMEOUT_S,
    FAILED,
    Bootstrap,
    Failure,
    TimeoutS,
    counted,
    ids_in,
    note,
    opened_admin,
    readable,
)
from minibroker.cli.topic.reassignment_plan import (
    Assignments,
    Name,
    PlanError,
    balanced_plan,
    plan_json,
    read_plan,
    resized_plan,
)

if TYPE_CHECKING:
    from minibroker.client.blocking import Admin

NAMED_MAX = 10  # partitions in a listing of problems
PROGRESS_S = 1.0  # between two looks at what is left


TopicOption = Annotated[
    str | None,
    typer.Option("--topic", metavar="TOPIC", help="Topic to move.", show_default=False),
]
PartitionsOption = Annotated[
    str | None,
    typer.Option(
        "--partitions",
        metavar="N,N,...",
        help="Only these partitions of the topic.",
        show_default=False,
    ),
]
BrokersOption = Annotated[
    str | None,
    typer.Option(
        "--brokers",
        metavar="ID,ID,...",
        help="Brokers over which to spread the replicas.",
        show_default=False,
    ),
]
PlanOption = Annotated[
    Path | None,
    typer.Option(
        "--plan",
        metavar="FILE",
        help="Plan in the JSON of Kafka's tool; -: standard input.",
        show_default=False,
    ),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the plan and change nothing.")]
Verify = Annotated[bool, typer.Option("--verify", help="Only say whether the plan is carried out.")]
Cancel = Annotated[bool, typer.Option("--cancel", help="Cancel the reassignments under way.")]
NoWait = Annotated[
    bool, typer.Option("--no-wait", help="Return once the cluster has accepted the plan.")
]


def reassign(
    *,
    topic: TopicOption = None,
    partitions: PartitionsOption = None,
    brokers: BrokersOption = None,
    plan_file: PlanOption = None,
    dry_run: DryRun = False,
    verify: Verify = False,
    cancel: Cancel = False,
    no_wait: NoWait = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout_s: TimeoutS = DEFAULT_TIMEOUT_S,
) -> None:
    """Move the replicas of partitions to other brokers.

    For example `minibroker partition reassign --topic events --brokers 1,2,4`. The plan keeps what
    is in place and spreads the rest. Replicas are added, copy, and only then do the others leave.
    The command prints the present assignment first, as a plan that leads back. Exit code 1 if a
    partition is refused, or with --verify if the plan is not carried out yet.
    """
    if (plan_file is None) == (topic is None):
        raise typer.BadParameter("give either --topic or --plan")
    if topic is not None and brokers is None and not cancel:
        raise typer.BadParameter("--topic needs --brokers")
    if dry_run + verify + cancel > 1:
        raise typer.BadParameter("give at most one of --dry-run, --verify and --cancel")
    numbers, nodes = ids_in(partitions), ids_in(brokers)
    with opened_admin(bootstrap, timeout_s) as admin:
        if topic is not None:
            present = _present(admin, readable(topic, "the topic's name"), numbers)
            plan = present if nodes is None else _balanced(admin, present, nodes)
        else:
            assert plan_file is not None
            plan = _read(plan_file)
            present = {}
            for name in sorted({name for name, _ in plan}):
                present |= _present(admin, name, None)
            present = {name: present[name] for name in plan if name in present}
        if verify:
            _verify(plan, present, _ongoing(admin, plan))
        elif cancel:
            _cancel(admin, plan)
        elif dry_run:
            print(plan_json(plan))
        else:
            note(f"the present assignment: {plan_json(present)}")
            carry_out(admin, plan, is_waiting=not no_wait)


def carry_out(admin: "Admin", plan: Assignments, *, is_waiting: bool = True) -> None:
    """Begin these reassignments, and print what is left until all are done. Exits with 1 if one is
    refused."""
    report = admin.alter_partition_reassignments(plan)
    for (name, number), (_, reason) in list(report.failed.items())[:NAMED_MAX]:
        note(f"{name}-{number}: {reason}")
    print(f"Reassigning {counted(len(report.accepted), 'partition')}.")
    left = -1
    while is_waiting and (ongoing := _ongoing(admin, report.accepted)):
        if len(ongoing) != left:
            left = len(ongoing)
            done = len(report.accepted) - left
            note(f"{done} of {counted(len(report.accepted), 'partition')} done")
        time.sleep(PROGRESS_S)
    if is_waiting and report.accepted:
        print(f"Reassigned {counted(len(report.accepted), 'partition')}.")
    if report.failed:
        raise typer.Exit(FAILED)


def alter_replication_factor(admin: "Admin", topic: str, factor: int) -> None:
    """Have each partition of a topic as many replicas; the first ones stay, live brokers with few
    replicas of the topic get the others."""
    present = _present(admin, topic, None)
    racks = racks_of(admin)
    try:
        plan = resized_plan(present, racks, factor, racks)
    except PlanError as error:
        raise Failure(str(error)) from error
    carry_out(admin, plan)


def _verify(plan: Assignments, present: Assignments, ongoing: set[Name]) -> None:
    other = [
        (name, "is being reassigned" if name in ongoing else f"is on {_listed(present.get(name))}")
        for name, replicas in sorted(plan.items())
        if name in ongoing or present.get(name) != replicas
    ]
    for (topic, number), what in other[:NAMED_MAX]:
        note(f"{topic}-{number} {what}, planned is {_listed(plan[topic, number])}")
    print(f"{len(plan) - len(other)} of {counted(len(plan), 'partition')} as planned.")
    if other:
        raise typer.Exit(FAILED)


def _cancel(admin: "Admin", plan: Assignments) -> None:
    report = admin.alter_partition_reassignments(dict.fromkeys(sorted(_ongoing(admin, plan))))
    print(f"Cancelled the reassignment of {counted(len(report.accepted), 'partition')}.")
    for (topic, number), (_, reason) in list(report.failed.items())[:NAMED_MAX]:
        note(f"{topic}-{number}: {reason}")
    if report.failed:
        raise typer.Exit(FAILED)


def _ongoing(admin: "Admin", names: Iterable[Name]) -> set[Name]:
    """Return those of the partitions that have a reassignment under way."""
    return {(topic, number) for topic, number in admin.list_partition_reassignments(names)}


def _present(admin: "Admin", topic: str, numbers: list[int] | None) -> Assignments:
    """Return the present replicas of a topic's partitions, of all or of these."""
    [described] = admin.describe_topics(topic)
    found = {(topic, one.partition): tuple(one.replicas) for one in described.partitions}
    if numbers is None:
        return found
    for number in numbers:
        if (topic, number) not in found:
            raise Failure(f"topic {topic} has no partition {number}")
    return {(topic, number): found[topic, number] for number in numbers}


def racks_of(admin: "Admin") -> dict[int, str | None]:
    """Return the rack of each live broker that is not fenced, None without one."""
    brokers = admin.describe_cluster().brokers
    return {broker.node_id: broker.rack for broker in brokers if not broker.is_fenced}


def _balanced(admin: "Admin", present: Assignments, brokers: list[int]) -> Assignments:
    try:
        return balanced_plan(present, brokers, racks_of(admin))
    except PlanError as error:
        raise Failure(str(error)) from error


def _read(path: Path) -> Assignments:
    try:
        text = sys.stdin.read() if str(path) == "-" else path.read_text()
        return read_plan(text)
    except OSError as error:
        raise Failure(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise Failure(f"{path} is no text: {error.reason}") from error
    except PlanError as error:
        raise Failure(f"{path}: {error}") from error


def _listed(replicas: tuple[int, ...] | None) -> str:
    return "no broker" if not replicas else ",".join(map(str, replicas))
