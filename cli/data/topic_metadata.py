"""The metadata of topics, which commands request before they read or write anything.

Such a command fails within seconds if no broker answers, and names a partition that is missing or
offline. A client alone would wait silently, since the partition may still appear.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING

from minibroker.cli.terminal import Failure, counted, note
from minibroker.protocol.types import TopicPartition

if TYPE_CHECKING:
    from minibroker.client.blocking import Admin
    from minibroker.protocol.messages.metadata import TopicMetadata

TIMESTAMP_TYPE = "message.timestamp.type"


def find_topic(
    topic: str, partition: int | None, options: Mapping[str, str], timeout_option: str
) -> "TopicMetadata | None":
    """Return the topic, or None if it does not exist yet.

    `timeout_option` is the name of the option that limits how long to try.
    Raises `Failure` if it has no such partition, and what `Admin` raises.
    """
    from minibroker.protocol.constants import ErrorCode
    from minibroker.protocol.errors import BrokerError

    with admin_of(options, timeout_option) as admin:
        try:
            [found] = admin.describe_topics(topic)
        except BrokerError as error:
            if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise
            return None
    check_partition(found, partition)
    return found


def admin_of(options: Mapping[str, str], timeout_option: str) -> "Admin":
    """Return an admin client for the brokers and the time limit of another client's options."""
    from minibroker.client.blocking import Admin

    servers = {"bootstrap.servers": options["bootstrap.servers"]}
    return Admin(servers | {"default.api.timeout.ms": options[timeout_option]})


def check_partition(found: "TopicMetadata", partition: int | None) -> None:
    """Raise `Failure` if the topic has no such partition."""
    count = len(found.partitions)
    if partition is not None and partition >= count:
        has = counted(count, "partition")
        raise Failure(f"topic {found.name} has {has}, numbered from 0: there is no {partition}")


def matching_topics(admin: "Admin", names: Collection[str], pattern: re.Pattern[str]) -> list[str]:
    """Return these names, and those of the topics that match. An internal topic does not.

    Raises `Failure` if there is none.
    """
    matching = {one for one in admin.list_topics() if pattern.match(one) and one[:2] != "__"}
    if not matching:
        raise Failure(f"no topic matches {pattern.pattern!r}; `minibroker topic list` shows them")
    return sorted(matching.union(names))


def append_time_topics(admin: "Admin", names: Collection[str]) -> list[str]:
    """Return which of the topics give a record the time at which it was appended."""
    return [
        topic
        for topic, configs in admin.describe_configs(*names).items()
        if any(one.name == TIMESTAMP_TYPE and one.value == "LogAppendTime" for one in configs)
    ]


def offline_partitions(
    topics: "Iterable[TopicMetadata]", partition: int | None, fate: str
) -> set[TopicPartition]:
    """Return the wanted partitions without a leader, and print a warning with `fate` for each."""
    found = {
        TopicPartition(topic.name, each.partition)
        for topic in topics
        for each in topic.partitions
        if each.leader_id < 0 and partition in (None, each.partition)
    }
    for one in sorted(found):
        note(f"WARNING: partition {one} is offline (it has no leader) and {fate}")
    return found
