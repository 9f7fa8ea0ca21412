"""`minibroker top`: the topics to which most is written, again and again.

A rate is the growth of the partitions' ends between two looks, so markers of transactions count,
too. The first look has no rates.
"""

import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from minibroker.cli import DEFAULT_BOOTSTRAP
from minibroker.cli.terminal import (
    DEFAULT_TIMEOUT_S,
    Bootstrap,
    Interrupted,
    TimeoutS,
    in_columns,
    interruptible,
    note,
    opened_admin,
)

if TYPE_CHECKING:
    from minibroker.client.blocking import Admin

HEADS = ("TOPIC", "PARTITIONS", "NOT-IN-SYNC", "NO-LEADER", "RECORDS", "RECORDS/S")
CLEAR = "\x1b[H\x1b[2J"


class TopicLook(NamedTuple):
    """A topic at one moment; `end` is the sum of the ends of its partitions that have a leader."""

    partition_count: int
    under_replicated_count: int
    offline_count: int
    end: int


def top(
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout_s: TimeoutS = DEFAULT_TIMEOUT_S,
    interval_s: Annotated[
        float, typer.Option("--interval-s", metavar="S", min=0.1, help="Seconds between two looks.")
    ] = 2.0,
    count: Annotated[
        int | None,
        typer.Option(
            "--count", "-n", min=1, help="Number of looks; default: until Ctrl-C.", metavar="N"
        ),
    ] = None,
    rows_max: Annotated[
        int, typer.Option("--rows", min=1, help="Number of topics to show.", metavar="N")
    ] = 20,
) -> None:
    """Show the topics to which most is written, until Ctrl-C.

    On a terminal each look replaces the one before.
    """
    before: dict[str, TopicLook] = {}
    looked_at = 0.0
    looks = 0
    try:
        with interruptible(), opened_admin(bootstrap, timeout_s) as admin:
            while True:
                now = time.monotonic()
                after = _look(admin)
                text = table(before, after, now - looked_at, rows_max)
                print(CLEAR + text if sys.stdout.isatty() else text, flush=True)
                before, looked_at, looks = after, now, looks + 1
                if looks == count:
                    return
                time.sleep(interval_s)
    except Interrupted:
        note(f"{looks} looks")


def _look(admin: "Admin") -> dict[str, TopicLook]:
    """Return all topics that are not internal."""
    names = [name for name in admin.list_topics() if not name.startswith("__")]
    topics = admin.describe_topics(*names) if names else []
    led = [(t.name, one.partition) for t in topics for one in t.partitions if one.leader_id >= 0]
    ends = admin.list_offsets(led) if led else {}
    return {
        topic.name: TopicLook(
            len(topic.partitions),
            sum(len(one.isr) < len(one.replicas) for one in topic.partitions),
            sum(one.leader_id < 0 for one in topic.partitions),
            sum(max(0, found.offset) for name, found in ends.items() if name[0] == topic.name),
        )
        for topic in topics
    }


def table(
    before: Mapping[str, TopicLook], after: Mapping[str, TopicLook], seconds: float, rows_max: int
) -> str:
    """Return the topics with the highest rates, first those that grow most, as a table."""
    rates = {
        name: (look.end - before[name].end) / seconds
        for name, look in after.items()
        if name in before and look.end >= before[name].end  # else it was created again
    }
    busiest = sorted(after, key=lambda name: (-rates.get(name, 0.0), -after[name].end, name))
    rows = [
        (name, *after[name], f"{rates[name]:,.1f}" if name in rates else None)
        for name in busiest[:rows_max]
    ]
    more = len(after) - len(rows)
    return in_columns(HEADS, rows) + (f"... {more:,} more\n" if more else "")
