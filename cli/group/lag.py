"""The lag of a group in each partition, as `group describe` shows it.

There is a row for every partition that the group has committed an offset for or that a member is
assigned. The end is what a consumer can read up to (the high watermark), as in Kafka's tool. None
means unknown: never committed, a topic that no longer exists, a partition without a leader.
"""

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, NamedTuple

from minibroker.broker.findings.groups import OffsetRange, warning_of
from minibroker.protocol.constants import EARLIEST_TIMESTAMP, ErrorCode
from minibroker.protocol.errors import BrokerError
from minibroker.protocol.types import TopicPartition

if TYPE_CHECKING:
    from minibroker.cli.group.unreadable import Place
    from minibroker.client import GroupDescription, OffsetAndMetadata
    from minibroker.client.blocking import Admin
    from minibroker.client.groups.admin import GroupMemberDescription

NOTHING: Final[Mapping["Place", str]] = MappingProxyType({})
HEADS = (
    "GROUP",
    "TOPIC",
    "PARTITION",
    "CURRENT-OFFSET",
    "LOG-END-OFFSET",
    "LAG",
    "CONSUMER-ID",
    "HOST",
    "CLIENT-ID",
)


class Row(NamedTuple):
    """One partition of one group; its fields are the names in JSON, and `HEADS` those in text."""

    group: str
    topic: str
    partition: int
    current_offset: int | None = None
    log_end_offset: int | None = None
    lag: int | None = None
    consumer_id: str | None = None
    host: str | None = None
    client_id: str | None = None


def rows_of(
    group: "GroupDescription",
    committed: "Mapping[TopicPartition, OffsetAndMetadata]",
    ranges: Mapping[TopicPartition, OffsetRange],
) -> Iterator[Row]:
    """Yield the rows, by topic and partition."""
    members: dict[TopicPartition, GroupMemberDescription] = {
        name: member for member in group.members for name in member.assignment
    }
    for name in sorted({*committed, *members}):
        row = Row(group.group_id, *name)
        if name in committed:
            row = row._replace(current_offset=committed[name].offset)
        if name in ranges:
            row = row._replace(log_end_offset=ranges[name].end)
        if name in committed and name in ranges:
            row = row._replace(lag=ranges[name].end - committed[name].offset)
        if (member := members.get(name)) is not None:
            row = row._replace(
                consumer_id=member.member_id, host=member.client_host, client_id=member.client_id
            )
        yield row


def warnings_of(
    committed: "Mapping[TopicPartition, OffsetAndMetadata]",
    ranges: Mapping[TopicPartition, OffsetRange],
    unreadable: "Mapping[Place, str]" = NOTHING,
) -> Iterator[str]:
    """Yield a warning for each wrong offset, and each at which nothing can be read."""
    for name, (offset, *_) in sorted(committed.items()):
        if found := warning_of(name, offset, ranges.get(name), unreadable.get((name, offset), "")):
            yield found[1]


def places_behind(
    committed: Mapping[TopicPartition, int], ranges: Mapping[TopicPartition, OffsetRange]
) -> "Iterator[Place]":
    """Yield the committed offsets at which there is a record."""
    for name, offset in committed.items():
        if name in ranges and ranges[name].log_start <= offset < ranges[name].end:
            yield name, offset


def offset_ranges(
    admin: "Admin", names: Iterable[TopicPartition]
) -> dict[TopicPartition, OffsetRange]:
    """Return the ranges of these partitions; those that are missing or leaderless are left out."""
    led = set()
    for topic in {name.topic for name in names}:
        try:
            [found] = admin.describe_topics(topic)
        except BrokerError as error:
            if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise
        else:
            led |= {
                TopicPartition(topic, each.partition)
                for each in found.partitions
                if each.leader_id >= 0
            }
    wanted = [name for name in names if name in led]
    starts = admin.list_offsets(wanted, EARLIEST_TIMESTAMP)
    ends = admin.list_offsets(wanted)
    return {name: OffsetRange(starts[name].offset, ends[name].offset) for name in wanted}
