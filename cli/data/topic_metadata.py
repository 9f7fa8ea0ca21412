"""A topic's metadata, which commands request before they read or write anything.

Such a command fails within seconds if no broker answers, and names a partition that is missing or
offline. A client alone would wait silently, since the partition may still appear.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from minibroker.cli.terminal import Failure, counted, note

if TYPE_CHECKING:
    from minibroker.protocol.messages.metadata import TopicMetadata


def find_topic(
    topic: str, partition: int | None, options: Mapping[str, str], timeout_option: str
) -> "TopicMetadata | None":
    """Return the topic, or None if it does not exist yet.

    `timeout_option` is the name of the option that limits how long to try.
    Raises `Failure` if it has no such partition, and what `Admin` raises.
    """
    from minibroker.client.blocking import Admin
    from minibroker.protocol.constants import ErrorCode
    from minibroker.protocol.errors import BrokerError

    servers = {"bootstrap.servers": options["bootstrap.servers"]}
    with Admin(servers | {"default.api.timeout.ms": options[timeout_option]}) as admin:
        try:
            [found] = admin.describe_topics(topic)
        except BrokerError as error:
            if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise
            return None
    count = len(found.partitions)
    if partition is not None and partition >= count:
        has = counted(count, "partition")
        raise Failure(f"topic {topic} has {has}, numbered from 0: there is no {partition}")
    return found


def offline_partitions(found: "TopicMetadata | None", partition: int | None, fate: str) -> set[int]:
    """Return the wanted partitions without a leader, and print a warning with `fate` for each."""
    partitions = found.partitions if found is not None else ()
    numbers = {
        each.partition
        for each in partitions
        if each.leader_id < 0 and partition in (None, each.partition)
    }
    for number in sorted(numbers):
        note(f"WARNING: partition {number} is offline (it has no leader) and {fate}")
    return numbers
