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

if TYPE_CHECKING:
    from minibroker.client.blocking import Admin

REASONS_MAX = 5  # how many partitions that keep their leader are named

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
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout_s: TimeoutS = DEFAULT_TIMEOUT_S,
) -> None:
    """Elect the preferred leader of each partition: its first replica.

    A leader is replaced once the preferred replica has everything that it acknowledged. Exit code 1
    if a preferred replica is not alive or not in sync; its partition keeps its leader.
    """
    if partitions and topic is None:
        raise typer.BadParameter("--partition needs --topic")
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
