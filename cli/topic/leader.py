"""`minibroker leader`: manage the leaders of partitions."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from minibroker.cli import DEFAULT_BOOTSTRAP
from minibroker.cli.terminal import (
    DEFAULT_TIMEOUT_S,
    FAILED,
    Bootstrap,
    TimeoutS,
    counted,
    note,
    opened_admin,
    readable,
)
from minibroker.cli.topic.unclean import elect_uncleanly
from minibroker.protocol.types import TopicPartition

if TYPE_CHECKING:
    from minibroker.client.blocking import Admin

REASONS_MAX = 5  # how many partitions that keep their leader are named

Unclean = Annotated[
    bool,
    typer.Option(
        "--unclean", help="For one partition without a leader: elect a replica that lacks records."
    ),
]
NewLeader = Annotated[
    int | None,
    typer.Option(
        "--leader",
        metavar="BROKER",
        min=0,
        help="With --unclean: elect the replica on this broker.",
        show_default=False,
    ),
]

app = typer.Typer(help="Manage the leaders of partitions.", no_args_is_help=True)


@app.callback()
def leader() -> None:
    """Manage the leaders of partitions."""


@app.command()
def elect(
    *,
    topic: Annotated[
        str | None,
        typer.Option(
            "--topic", metavar="TOPIC", help="Only partitions of this topic.", show_default=False
        ),
    ] = None,
    partitions: Annotated[
        list[int] | None,
        typer.Option(
            "--partition",
            metavar="N",
            min=0,
            help="Only this partition of the topic; may be repeated.",
        ),
    ] = None,
    unclean: Unclean = False,
    leader: NewLeader = None,
    is_agreed: Annotated[bool, typer.Option("--yes", "-y", help="No question.")] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout_s: TimeoutS = DEFAULT_TIMEOUT_S,
) -> None:
    """Elect the preferred leader of each partition: its first replica.

    A leader is replaced once the preferred replica has everything that it acknowledged. Exit code 1
    if a preferred replica is not alive or not in sync; its partition keeps its leader.

    With --unclean one partition that has no leader gets one that is not in sync. The command shows
    first what each replica has and what is lost with each choice, and asks. Without --leader it
    takes the replica with which the least is lost.
    """
    if partitions and topic is None:
        raise typer.BadParameter("--partition needs --topic")
    if leader is not None and not unclean:
        raise typer.BadParameter("--leader needs --unclean")
    if unclean:
        if topic is None or not partitions or len(partitions) != 1:
            raise typer.BadParameter("--unclean needs --topic and one --partition")
        with opened_admin(bootstrap, timeout_s) as admin:
            name = TopicPartition(readable(topic, "the topic's name"), partitions[0])
            elect_uncleanly(admin, name, leader, is_agreed=is_agreed)
        return
    with opened_admin(bootstrap, timeout_s) as admin:
        report = admin.elect_leaders(_named(admin, topic, partitions or ()))
    print(f"Elected the preferred leader of {counted(len(report.elected), 'partition')}.")
    for name, reason in list(report.failed.items())[:REASONS_MAX]:
        note(f"{name}: {reason}")
    if len(report.failed) > REASONS_MAX:
        note(f"and {len(report.failed) - REASONS_MAX} more")
    if report.failed:
        raise typer.Exit(FAILED)


def _named(
    admin: "Admin", topic: str | None, partitions: Sequence[int]
) -> list[tuple[str, int]] | None:
    """Return the partitions that the options select; None: all."""
    if topic is None:
        return None
    readable(topic, "the topic's name")
    if partitions:
        return [(topic, number) for number in dict.fromkeys(partitions)]
    [described] = admin.describe_topics(topic)
    return [(topic, each.partition) for each in described.partitions]
