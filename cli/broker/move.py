"""`minibroker broker drain`, `replace` and `remove`: all replicas of a broker go to others.

The commands plan reassignments and have the cluster carry them out, as `partition reassign` does.
A topic that is created meanwhile may get replicas on the drained broker: the commands look again
when they are done, and say so.
"""

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from minibroker.cli import DEFAULT_BOOTSTRAP
from minibroker.cli.terminal import (
    DEFAULT_TIMEOUT_S,
    USAGE,
    Bootstrap,
    Failure,
    TimeoutS,
    counted,
    note,
    opened_admin,
)
from minibroker.cli.topic.reassign import (
    DryRun,
    ThrottleOption,
    carry_out,
    racks_of,
    targets_of,
)
from minibroker.cli.topic.reassignment_plan import (
    Assignments,
    PlanError,
    drained_plan,
    plan_json,
    replaced_plan,
)

if TYPE_CHECKING:
    from minibroker.client.blocking import Admin

NodeId = Annotated[int, typer.Argument(metavar="N", min=0, help="The broker's number.")]


def drain(
    node_id: NodeId,
    *,
    dry_run: DryRun = False,
    throttle: ThrottleOption = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout_s: TimeoutS = DEFAULT_TIMEOUT_S,
) -> None:
    """Move all replicas of a broker to the other live brokers.

    The broker may be dead if other replicas are in sync. Nothing moves if one partition cannot.
    """
    with opened_admin(bootstrap, timeout_s) as admin:
        _drain(admin, node_id, throttle, dry_run=dry_run)


def replace(
    old: Annotated[int, typer.Argument(metavar="OLD", min=0, help="Broker that goes.")],
    new: Annotated[int, typer.Argument(metavar="NEW", min=0, help="Broker that comes.")],
    *,
    dry_run: DryRun = False,
    throttle: ThrottleOption = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout_s: TimeoutS = DEFAULT_TIMEOUT_S,
) -> None:
    """Move each replica of broker OLD to broker NEW.

    OLD may be dead if other replicas are in sync. A broker with the same number and an empty data
    directory needs no command: it copies by itself.
    """
    if old == new:
        raise typer.BadParameter("OLD and NEW are the same broker")
    with opened_admin(bootstrap, timeout_s) as admin:
        live = racks_of(admin)
        if new not in live:
            raise Failure(f"broker {new} is not alive; start it first")
        targets = targets_of(admin, *admin.list_topics())
        _check_known(old, live, targets)
        try:
            plan = replaced_plan(targets, old, new)
        except PlanError as error:
            raise Failure(str(error)) from error
        _move(admin, old, plan, throttle, dry_run=dry_run)


def remove(
    node_id: NodeId,
    *,
    dry_run: DryRun = False,
    throttle: ThrottleOption = None,
    is_agreed: Annotated[bool, typer.Option("--yes", "-y", help="No question.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout_s: TimeoutS = DEFAULT_TIMEOUT_S,
) -> None:
    """Drain a broker, and forget it if it is stopped.

    A broker that runs is drained only: stop it then, and repeat the command.
    """
    with opened_admin(bootstrap, timeout_s) as admin:
        if not dry_run:
            _confirm(node_id, is_agreed=is_agreed)
        if any(
            node_id in replicas for replicas in targets_of(admin, *admin.list_topics()).values()
        ):
            _drain(admin, node_id, throttle, dry_run=dry_run)
        if dry_run:
            return
        if node_id in racks_of(admin):
            raise Failure(f"broker {node_id} holds nothing, but runs; stop it, then repeat this")
        admin.unregister_broker(node_id)
    print(f"Removed broker {node_id}.")


def _confirm(node_id: int, *, is_agreed: bool) -> None:
    if is_agreed:
        return
    if not sys.stdin.isatty():
        raise Failure("nothing was done: --yes says that you accept this", USAGE)
    if not typer.confirm(f"Remove broker {node_id} from the cluster?", err=True):
        raise Failure("nothing was done")


def _drain(admin: "Admin", node_id: int, rate: int | None, *, dry_run: bool) -> None:
    racks = racks_of(admin)
    targets = targets_of(admin, *admin.list_topics())
    _check_known(node_id, racks, targets)
    others = [node for node in racks if node != node_id]
    try:
        plan = drained_plan(targets, node_id, others, racks)
    except PlanError as error:
        raise Failure(str(error)) from error
    _move(admin, node_id, plan, rate, dry_run=dry_run)


def _move(
    admin: "Admin", node_id: int, plan: Assignments, rate: int | None, *, dry_run: bool
) -> None:
    """Carry out a plan after which a broker holds no replica, at most at this rate, or print it."""
    if dry_run:
        print(plan_json(plan))
        return
    if plan:
        carry_out(admin, plan, rate)
    left = sum(node_id in replicas for replicas in targets_of(admin, *admin.list_topics()).values())
    if left:
        what = f"broker {node_id} got {counted(left, 'replica')} meanwhile; repeat the command"
        raise Failure(what)
    note(f"broker {node_id} holds no replica")


def _check_known(node_id: int, live: dict[int, str | None], targets: Assignments) -> None:
    if node_id not in live and not any(node_id in replicas for replicas in targets.values()):
        known = ", ".join(map(str, sorted(live)))
        raise Failure(f"broker {node_id} is not alive and holds no replica; live are {known}")
