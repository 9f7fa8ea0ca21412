"""The settings that a group of the consumer protocol may have of its own, in place of the brokers'.

They are Kafka's (resource type GROUP), stored in the metadata store, and known to every broker by
its image of the cluster.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from minibroker.broker.config_property import INT_MAX


class GroupSettings(NamedTuple):
    """The settings in force for a group."""

    session_timeout_ms: int
    heartbeat_interval_ms: int


class GroupProperty(NamedTuple):
    """A setting of a group: its field, the brokers' setting in its place, and what it does."""

    field: str
    broker_attribute: str
    sentence: str


GROUP_PROPERTIES: Final[Mapping[str, GroupProperty]] = {
    "consumer.session.timeout.ms": GroupProperty(
        "session_timeout_ms",
        "group_consumer_session_timeout_ms",
        "How long a member may be silent.",
    ),
    "consumer.heartbeat.interval.ms": GroupProperty(
        "heartbeat_interval_ms",
        "group_consumer_heartbeat_interval_ms",
        "How often a member is to send a heartbeat.",
    ),
}


def milliseconds(text: str) -> int | None:
    """Return the number in a setting's text; None if it is none that a setting may have."""
    number = int(text) if text.isascii() and text.isdecimal() and len(text) < 11 else 0
    return number if 0 < number <= INT_MAX else None
