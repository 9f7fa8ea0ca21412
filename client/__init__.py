"""The clients: Producer, Consumer and Admin for trio.

`minibroker.client.asyncio` has them for asyncio, `minibroker.client.blocking` without a loop.

    from minibroker.client import Producer, Consumer, Admin

Names are loaded when they are first used: the broker needs only `client.net` of this package, and
a program that produces does not pay for the consumer.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from minibroker.client.admin import (
        Admin,
        ClusterDescription,
        ElectionsReport,
        FeaturesReport,
        LogDirsAlteration,
        LogDirsReport,
        NewTopic,
        PartitionReassignment,
        ReassignmentsReport,
        ReplicasReport,
        TopicPartitionReplica,
    )
    from minibroker.client.committed_offsets import ConsumerGroupMetadata, OffsetAndMetadata
    from minibroker.client.consumer.completed_fetch import ConsumerRecord
    from minibroker.client.consumer.consumer import Consumer
    from minibroker.client.consumer.health import ConsumerHealth, PartitionHealth
    from minibroker.client.errors import (
        BufferFull,
        ClientClosed,
        ClientError,
        ClientTimeout,
        CommitFailed,
        ConfigError,
        CorruptRecords,
        DeliveryFailed,
        DeserializationFailed,
        LogTruncated,
        OffsetOutOfRange,
        PositionError,
        ProducerFailed,
        ProducerFenced,
        TransactionAbortable,
        TransactionError,
        TransactionInDoubt,
    )
    from minibroker.client.groups.admin import GroupDescription, GroupsReport
    from minibroker.client.net.list_offsets import OffsetAndTimestamp
    from minibroker.client.option_types import AdminConfig, ConsumerConfig, ProducerConfig
    from minibroker.client.options import Seams
    from minibroker.client.producer.delivery import (
        CloseReport,
        Delivery,
        PendingDelivery,
        RecordDelivered,
    )
    from minibroker.client.producer.producer import Producer
    from minibroker.protocol.errors import BrokerError
    from minibroker.protocol.types import TopicPartition

__all__ = [
    "Admin",
    "AdminConfig",
    "BrokerError",
    "BufferFull",
    "ClientClosed",
    "ClientError",
    "ClientTimeout",
    "CloseReport",
    "ClusterDescription",
    "CommitFailed",
    "ConfigError",
    "Consumer",
    "ConsumerConfig",
    "ConsumerGroupMetadata",
    "ConsumerHealth",
    "ConsumerRecord",
    "CorruptRecords",
    "Delivery",
    "DeliveryFailed",
    "DeserializationFailed",
    "ElectionsReport",
    "FeaturesReport",
    "GroupDescription",
    "GroupsReport",
    "LogDirsAlteration",
    "LogDirsReport",
    "LogTruncated",
    "NewTopic",
    "OffsetAndMetadata",
    "OffsetAndTimestamp",
    "OffsetOutOfRange",
    "PartitionHealth",
    "PartitionReassignment",
    "PendingDelivery",
    "PositionError",
    "Producer",
    "ProducerConfig",
    "ProducerFailed",
    "ProducerFenced",
    "ReassignmentsReport",
    "RecordDelivered",
    "ReplicasReport",
    "Seams",
    "TopicPartition",
    "TopicPartitionReplica",
    "TransactionAbortable",
    "TransactionError",
    "TransactionInDoubt",
]

_HOMES: Final = {
    "minibroker.client.admin": (
        "Admin",
        "ClusterDescription",
        "ElectionsReport",
        "FeaturesReport",
        "LogDirsAlteration",
        "LogDirsReport",
        "NewTopic",
        "PartitionReassignment",
        "ReassignmentsReport",
        "ReplicasReport",
        "TopicPartitionReplica",
    ),
    "minibroker.client.committed_offsets": ("ConsumerGroupMetadata", "OffsetAndMetadata"),
    "minibroker.client.consumer.completed_fetch": ("ConsumerRecord",),
    "minibroker.client.consumer.consumer": ("Consumer",),
    "minibroker.client.consumer.health": ("ConsumerHealth", "PartitionHealth"),
    "minibroker.client.errors": (
        "BufferFull",
        "ClientClosed",
        "ClientError",
        "ClientTimeout",
        "CommitFailed",
        "ConfigError",
        "CorruptRecords",
        "DeliveryFailed",
        "DeserializationFailed",
        "LogTruncated",
        "OffsetOutOfRange",
        "PositionError",
        "ProducerFailed",
        "ProducerFenced",
        "TransactionAbortable",
        "TransactionError",
        "TransactionInDoubt",
    ),
    "minibroker.client.groups.admin": ("GroupDescription", "GroupsReport"),
    "minibroker.client.net.list_offsets": ("OffsetAndTimestamp",),
    "minibroker.client.option_types": ("AdminConfig", "ConsumerConfig", "ProducerConfig"),
    "minibroker.client.options": ("Seams",),
    "minibroker.client.producer.delivery": (
        "CloseReport",
        "Delivery",
        "PendingDelivery",
        "RecordDelivered",
    ),
    "minibroker.client.producer.producer": ("Producer",),
    "minibroker.protocol.errors": ("BrokerError",),
    "minibroker.protocol.types": ("TopicPartition",),
}
_HOME_OF: Final = {name: home for home, names in _HOMES.items() for name in names}
assert sorted(_HOME_OF) == __all__


def __getattr__(name: str) -> Any:
    """Load a name from its module, and keep it here."""
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_HOME_OF[name]), name)
    globals()[name] = value
    return value
