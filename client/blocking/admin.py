"""The admin client for programs without a trio loop."""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Self, Unpack

from minibroker.client.admin import Admin as TrioAdmin
from minibroker.client.admin import ClusterDescription, ElectionsReport, NewTopic, ReplicasReport
from minibroker.client.blocking.portal import Portal
from minibroker.client.consumer.assigned_partition import OffsetAndMetadata
from minibroker.client.groups.admin import GroupDescription, GroupsReport, Offsets, Partitions
from minibroker.client.option_types import AdminConfig, AdminKeywords
from minibroker.client.options import Seams, Servers
from minibroker.protocol.constants import LATEST_TIMESTAMP
from minibroker.protocol.messages.configs import ConfigDescription
from minibroker.protocol.messages.metadata import TopicMetadata
from minibroker.protocol.messages.offsets import PartitionOffset
from minibroker.protocol.types import TopicPartition


class Admin:
    """As `minibroker.client.Admin`, with plain methods; used with `with`, from any thread."""

    def __init__(
        self,
        bootstrap_servers: Servers | AdminConfig = None,
        *,
        seams: Seams | None = None,
        **options: Unpack[AdminKeywords],
    ) -> None:
        self._admin = TrioAdmin(bootstrap_servers, seams=seams, **options)
        self._portal = Portal("minibroker-admin", self._admin)

    def __enter__(self) -> Self:
        self._portal.open(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._portal.close(error)

    def create_topics(self, *topics: NewTopic | str, validate_only: bool = False) -> None:
        """Create topics; with `validate_only` only check that they could be."""
        create = partial(self._admin.create_topics, validate_only=validate_only)
        self._portal.call(create, *topics)

    def create_partitions(
        self,
        counts: Mapping[str, int],
        *,
        assignments: Mapping[str, Sequence[Sequence[int]]] | None = None,
        validate_only: bool = False,
    ) -> None:
        """Give each topic so many partitions, with those that it has; no records move."""
        create = partial(
            self._admin.create_partitions, assignments=assignments, validate_only=validate_only
        )
        self._portal.call(create, counts)

    def delete_topics(self, *names: str) -> None:
        """Delete topics and all their records."""
        self._portal.call(self._admin.delete_topics, *names)

    def list_topics(self) -> list[str]:
        """The names of all topics, sorted."""
        return self._portal.call(self._admin.list_topics)

    def describe_topics(self, *names: str) -> list[TopicMetadata]:
        """Partitions, leaders and replicas of each topic, in the order asked for."""
        return self._portal.call(self._admin.describe_topics, *names)

    def describe_cluster(self) -> ClusterDescription:
        """The brokers that are alive."""
        return self._portal.call(self._admin.describe_cluster)

    def describe_replicas(self, *topics: str) -> ReplicasReport:
        """How far every replica is, of these topics or of all, as each broker itself says."""
        return self._portal.call(self._admin.describe_replicas, *topics)

    def unregister_broker(self, node_id: int) -> None:
        """Forget a broker that is down and holds no replica, so that no topic is placed on it."""
        self._portal.call(self._admin.unregister_broker, node_id)

    def elect_leaders(self, partitions: Iterable[tuple[str, int]] | None = None) -> ElectionsReport:
        """Elect the preferred leader, the first replica, of these partitions or of all."""
        return self._portal.call(self._admin.elect_leaders, partitions)

    def describe_configs(self, *names: str) -> dict[str, tuple[ConfigDescription, ...]]:
        """Every property of each topic as it is in force."""
        return self._portal.call(self._admin.describe_configs, *names)

    def describe_broker_configs(self, node_id: int, *names: str) -> tuple[ConfigDescription, ...]:
        """Every property of a broker as it is in force, or those that are named."""
        return self._portal.call(self._admin.describe_broker_configs, node_id, *names)

    def alter_configs(
        self,
        changes: Mapping[str, Mapping[str, str | None]],
        *,
        reset_others: bool = False,
        validate_only: bool = False,
    ) -> None:
        """Set properties of topics; None goes back to the default. What is not named stays, or
        goes back to the default with `reset_others`."""
        alter = partial(
            self._admin.alter_configs, reset_others=reset_others, validate_only=validate_only
        )
        self._portal.call(alter, changes)

    def delete_records(self, offsets: Mapping[tuple[str, int], int]) -> dict[TopicPartition, int]:
        """Delete the records of partitions below an offset each; -1: all that are committed."""
        return self._portal.call(self._admin.delete_records, offsets)

    def list_offsets(
        self, partitions: Iterable[tuple[str, int]], timestamp: int = LATEST_TIMESTAMP
    ) -> dict[TopicPartition, PartitionOffset]:
        """The end (-1), the beginning (-2), or the first record at or after a time in ms."""
        return self._portal.call(self._admin.list_offsets, partitions, timestamp)

    def list_groups(self, *states: str) -> GroupsReport:
        """The groups in one of these states (as Kafka spells them), or all that there are."""
        return self._portal.call(self._admin.list_groups, *states)

    def describe_groups(self, *names: str) -> list[GroupDescription]:
        """State and members of each group, in the order asked for."""
        return self._portal.call(self._admin.describe_groups, *names)

    def delete_groups(self, *names: str) -> None:
        """Delete groups that have no members, and all that they committed."""
        self._portal.call(self._admin.delete_groups, *names)

    def committed_offsets(
        self, group: str, partitions: Partitions | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """What a group has committed, of these partitions or of all; what it has not is missing."""
        return self._portal.call(self._admin.committed_offsets, group, partitions)

    def commit_offsets(self, group: str, offsets: Offsets) -> None:
        """Have a group go on at these offsets. It must have no members; a new one is made."""
        self._portal.call(self._admin.commit_offsets, group, offsets)

    def delete_offsets(self, group: str, partitions: Partitions) -> None:
        """Have a group forget these partitions; no member may subscribe to their topics."""
        self._portal.call(self._admin.delete_offsets, group, partitions)
