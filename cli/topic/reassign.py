"""`minibroker partition reassign`: move the replicas of partitions to other brokers."""

import sys
import time
from collections.abc import Collection, Iterable, Sequence
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
    NO_LOG_DIRS,
    Assignments,
    LogDirs,
    Name,
    PlanError,
    balanced_plan,
    plan_json,
    read_log_dirs,
    read_plan,
    resized_plan,
)
from minibroker.protocol.constants import INT64_MAX

if TYPE_CHECKING:
    from minibroker.cli.topic.reassignment_progress import Sight
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
ThrottleOption = Annotated[
    int | None,
    typer.Option(
        "--throttle",
        metavar="BYTES",
        min=1,
        max=INT64_MAX,
        help="Limit of bytes a second for what each broker copies and sends.",
        show_default=False,
    ),
]
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
    throttle: ThrottleOption = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout_s: TimeoutS = DEFAULT_TIMEOUT_S,
) -> None:
    """Move the replicas of partitions to other brokers.

    For example `minibroker partition reassign --topic events --brokers 1,2,4`. The plan keeps what
    is in place and spreads the rest. Replicas are added, copy, and only then do the others leave.
    The command prints the present assignment first, as a plan that leads back. A throttle ends with
    the move if the command waits for it, or else with --verify or --cancel. Exit code 1 if a
    partition is refused, or with --verify if the plan is not carried out yet.
    """
    if (plan_file is None) == (topic is None):
        raise typer.BadParameter("give either --topic or --plan")
    if topic is not None and brokers is None and not cancel:
        raise typer.BadParameter("--topic needs --brokers")
    if plan_file is not None and (partitions is not None or brokers is not None):
        raise typer.BadParameter("--brokers and --partitions are for --topic: a plan names both")
    if dry_run + verify + cancel > 1:
        raise typer.BadParameter("give at most one of --dry-run, --verify and --cancel")
    if throttle is not None and (verify or cancel):
        raise typer.BadParameter("--throttle is for a move, not for --verify or --cancel")
    numbers, nodes = ids_in(partitions), ids_in(brokers)
    with opened_admin(bootstrap, timeout_s) as admin:
        if topic is not None:
            present = _present(admin, readable(topic, "the topic's name"), numbers)
            plan = present if nodes is None else _balanced(admin, present, nodes)
            log_dirs: LogDirs = {}
        else:
            assert plan_file is not None
            plan, log_dirs = _read(plan_file)
            present = {}
            for name in sorted({name for name, _ in plan}):
                present |= _present(admin, name, None)
            present = {name: present[name] for name in plan if name in present}
        if not (verify or cancel):
            _check_brokers(admin, nodes or {node for one in plan.values() for node in one})
        if verify:
            _verify(admin, plan, present, log_dirs)
        elif cancel:
            _cancel(admin, plan, log_dirs)
        elif dry_run:
            print(plan_json(plan, log_dirs))
        else:
            note(f"the present assignment: {plan_json(present)}")
            carry_out(admin, plan, throttle, log_dirs=log_dirs, is_waiting=not no_wait)


def carry_out(
    admin: "Admin",
    plan: Assignments,
    rate: int | None = None,
    *,
    log_dirs: LogDirs = NO_LOG_DIRS,
    is_waiting: bool = True,
) -> None:
    """Begin these reassignments, throttled to `rate` bytes a second if it is given, and print what
    is left until all are done; then their throttle ends. `log_dirs` are the log directories in
    which replicas are to be. Exits with 1 if a reassignment or a move is refused."""
    from minibroker.cli.topic.log_dirs import ask_for_moves, finish_moves

    not_moved = ask_for_moves(admin, log_dirs)  # first: new replicas are made there
    if rate is not None:
        _throttle(admin, plan, rate)
    report = admin.alter_partition_reassignments(plan)
    for (topic, number), (_, reason) in list(report.failed.items())[:NAMED_MAX]:
        note(f"{topic}-{number}: {reason}")
    print(f"Reassigning {counted(len(report.accepted), 'partition')}.")
    if is_waiting and report.accepted:
        _wait(admin, report.accepted)
        print(f"Reassigned {counted(len(report.accepted), 'partition')}.")
    if is_waiting:
        accepted = {(topic, number) for topic, number in report.accepted}
        wanted = {
            one: path
            for one, path in log_dirs.items()
            if one[:2] in accepted and one not in not_moved
        }
        not_moved |= finish_moves(admin, wanted)
    if is_waiting or not report.accepted:
        _end_throttle(admin, plan)
    if report.failed or not_moved:
        raise typer.Exit(FAILED)


def _wait(admin: "Admin", names: Collection[Name]) -> None:
    """Wait until none of the partitions has a reassignment under way; print what is left."""
    from minibroker.cli.topic.reassignment_progress import Progress

    progress = Progress(len(names))
    while (seen := look(admin, names)).ongoing:
        if line := progress.line(time.monotonic(), seen):
            note(line)
        time.sleep(PROGRESS_S)


def look(admin: "Admin", names: Iterable[Name]) -> "Sight":
    """Return which of the partitions have a reassignment under way, and the sizes of their logs as
    far as brokers tell them in time."""
    from minibroker.cli.topic.reassignment_progress import Sight
    from minibroker.client.errors import ClientError
    from minibroker.protocol.errors import BrokerError
    from minibroker.protocol.messages.log_dirs import present_logs

    found = admin.list_partition_reassignments(names)
    ongoing = {(name.topic, name.partition): one for name, one in found.items()}
    if not ongoing:
        return Sight({}, {}, {})
    try:
        topics = admin.describe_topics(*sorted({topic for topic, _ in ongoing}))
        report = admin.describe_log_dirs(ongoing)
    except (BrokerError, ClientError):  # a topic was deleted, or nobody answers now
        return Sight(ongoing, {}, {})
    leaders = {
        (topic.name, one.partition): one.leader_id
        for topic in topics
        for one in topic.partitions
        if one.leader_id >= 0
    }
    sizes = {
        node: {(log.topic, log.partition): log.size for log in present_logs(answer)}
        for node, answer in report.answers.items()
    }
    return Sight(ongoing, leaders, sizes)


def _throttle(admin: "Admin", plan: Assignments, rate: int) -> None:
    """Limit the copies of a plan to `rate` bytes a second on each broker."""
    from minibroker.audit.summary import in_bytes
    from minibroker.cli.topic.throttle import ThrottleError, moves_of, throttle_changes

    described = admin.describe_topics(*sorted({topic for topic, _ in plan}))
    replicas = {
        (each.name, one.partition): one.replicas for each in described for one in each.partitions
    }
    ongoing = admin.list_partition_reassignments()
    adding = {(topic, number): one.adding_replicas for (topic, number), one in ongoing.items()}
    moves = moves_of(plan, replicas, adding)
    if not moves:
        note("no partition gets another replica, so there is nothing to throttle")
        return
    try:
        changes = throttle_changes(moves, _lists_of(admin, {topic for topic, _ in moves}), rate)
    except ThrottleError as error:
        raise Failure(str(error)) from error
    admin.alter_configs(changes.topics)
    admin.alter_broker_configs(changes.brokers)
    note(
        f"throttled to {in_bytes(rate)} a second on each of brokers {_listed([*changes.brokers])}:"
        " the throttle ends with the move if this command waits for it, else with --verify"
    )


def _end_throttle(admin: "Admin", names: Collection[Name]) -> None:
    """End the throttle of these partitions, unless one of them still moves."""
    from minibroker.cli.topic.throttle import removal_changes

    topics = admin.list_topics()
    own = _lists_of(admin, {topic for topic, _ in names}.intersection(topics))
    if not removal_changes(names, own).topics:
        return
    if ongoing := _ongoing(admin, names):
        verb = "moves" if len(ongoing) == 1 else "move"
        note(f"{counted(len(ongoing), 'partition')} still {verb}, so the throttle stays")
        return
    # The rates first: the lists are what says which brokers have them.
    changes = removal_changes(names, _lists_of(admin, topics))
    if changes.brokers:
        admin.alter_broker_configs(changes.brokers)
    admin.alter_configs(changes.topics)
    note("the throttle has ended")


def _lists_of(admin: "Admin", topics: Iterable[str]) -> dict[str, dict[str, str]]:
    """Return the lists of throttled replicas of these topics, by property."""
    from minibroker.cli.topic.throttle import LISTS

    return {
        topic: {one.name: one.value for one in configs if one.name in LISTS}
        for topic, configs in admin.describe_configs(*sorted(topics)).items()
    }


def alter_replication_factor(
    admin: "Admin", topic: str, factor: int, rate: int | None = None
) -> None:
    """Have each partition of a topic as many replicas; the first ones stay, live brokers with few
    replicas of the topic get the others. `rate` limits the copies, in bytes a second."""
    present = _present(admin, topic, None)
    racks = racks_of(admin)
    try:
        plan = resized_plan(present, racks, factor, racks)
    except PlanError as error:
        raise Failure(str(error)) from error
    carry_out(admin, plan, rate)


def _verify(admin: "Admin", plan: Assignments, present: Assignments, log_dirs: LogDirs) -> None:
    from minibroker.cli.topic.log_dirs import misplaced

    ongoing = _ongoing(admin, plan)
    other = [
        (name, "is being reassigned" if name in ongoing else f"is on {_listed(present.get(name))}")
        for name, replicas in sorted(plan.items())
        if name in ongoing or present.get(name) != replicas
    ]
    for (topic, number), what in other[:NAMED_MAX]:
        note(f"{topic}-{number} {what}, planned is {_listed(plan[topic, number])}")
    elsewhere = misplaced(admin, log_dirs)
    for (topic, number, node), what in [*elsewhere.items()][:NAMED_MAX]:
        note(f"{topic}-{number} on broker {node} {what}")
    print(f"{len(plan) - len(other)} of {counted(len(plan), 'partition')} as planned.")
    _end_throttle(admin, plan)
    if other or elsewhere:
        raise typer.Exit(FAILED)


def _cancel(admin: "Admin", plan: Assignments, log_dirs: LogDirs) -> None:
    from minibroker.cli.topic.log_dirs import cancel_moves

    cancel_moves(admin, log_dirs)
    report = admin.alter_partition_reassignments(dict.fromkeys(sorted(_ongoing(admin, plan))))
    print(f"Cancelled the reassignment of {counted(len(report.accepted), 'partition')}.")
    _end_throttle(admin, plan)
    for (topic, number), (_, reason) in list(report.failed.items())[:NAMED_MAX]:
        note(f"{topic}-{number}: {reason}")
    if report.failed:
        raise typer.Exit(FAILED)


def _ongoing(admin: "Admin", names: Iterable[Name]) -> set[Name]:
    """Return those of the partitions that have a reassignment under way."""
    return {(topic, number) for topic, number in admin.list_partition_reassignments(names)}


def _present(admin: "Admin", topic: str, numbers: list[int] | None) -> Assignments:
    """Return the replicas of a topic's partitions, of all or of these."""
    found = targets_of(admin, topic)
    if numbers is None:
        return found
    for number in numbers:
        if (topic, number) not in found:
            raise Failure(f"topic {topic} has no partition {number}")
    return {(topic, number): found[topic, number] for number in numbers}


def targets_of(admin: "Admin", *topics: str) -> Assignments:
    """Return the replicas of all partitions of these topics, as they will be after reassignments
    under way."""
    targets = {
        (topic.name, one.partition): tuple(one.replicas)
        for topic in admin.describe_topics(*topics)
        for one in topic.partitions
    }
    for (topic, number), ongoing in admin.list_partition_reassignments().items():
        if (topic, number) in targets:
            staying = (node for node in ongoing.replicas if node not in ongoing.removing_replicas)
            targets[topic, number] = tuple(dict.fromkeys((*staying, *ongoing.adding_replicas)))
    return targets


def racks_of(admin: "Admin") -> dict[int, str | None]:
    """Return the rack of each live broker that is not fenced, None without one."""
    brokers = admin.describe_cluster().brokers
    return {broker.node_id: broker.rack for broker in brokers if not broker.is_fenced}


def _check_brokers(admin: "Admin", nodes: Iterable[int]) -> None:
    """Warn of brokers that are not live. Raises `Failure` for one that is not known."""
    from minibroker.protocol.constants import ErrorCode
    from minibroker.protocol.errors import BrokerError

    away = sorted({*nodes}.difference(racks_of(admin)))
    for node in away:
        try:
            # No change at all, refused if the broker is unknown. No answer lists the dead ones.
            admin.alter_broker_configs({node: {}}, validate_only=True)
        except BrokerError as error:
            if error.code is not ErrorCode.INVALID_REQUEST:
                raise
            raise Failure(error.reason.removeprefix(f"broker '{node}': ")) from error
    for node in away:
        note(f"WARNING: broker {node} is not alive, or fenced: what moves to it waits for it")


def _balanced(admin: "Admin", present: Assignments, brokers: list[int]) -> Assignments:
    try:
        return balanced_plan(present, brokers, racks_of(admin), sizes_of(admin, present))
    except PlanError as error:
        raise Failure(str(error)) from error


def sizes_of(admin: "Admin", names: Collection[Name]) -> dict[Name, int]:
    """Return the bytes of the largest replica of each partition, as far as brokers tell."""
    from minibroker.protocol.messages.log_dirs import present_logs

    sizes: dict[Name, int] = {}
    for answer in admin.describe_log_dirs(names).answers.values():
        for log in present_logs(answer):
            name = log.topic, log.partition
            sizes[name] = max(log.size, sizes.get(name, 0))
    if len(sizes) < len(names):
        missing = counted(len(names) - len(sizes), "partition")
        note(f"the size of {missing} is not known, because no broker that has it answers")
    return sizes


def _read(path: Path) -> tuple[Assignments, LogDirs]:
    try:
        text = sys.stdin.read() if str(path) == "-" else path.read_text()
        return read_plan(text), read_log_dirs(text)
    except OSError as error:
        raise Failure(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise Failure(f"{path} is no text: {error.reason}") from error
    except PlanError as error:
        raise Failure(f"{path}: {error}") from error


def _listed(replicas: Sequence[int] | None) -> str:
    return "no broker" if not replicas else ",".join(map(str, replicas))
