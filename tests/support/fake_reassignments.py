"""An admin client of a cluster that is only a few dictionaries, for commands that move replicas."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from minibroker.client.admin import (
    ClusterDescription,
    LogDirsAlteration,
    LogDirsReport,
    PartitionReassignment,
    ReassignmentsReport,
    TopicPartitionReplica,
)
from minibroker.protocol.constants import ErrorCode
from minibroker.protocol.errors import BrokerError
from minibroker.protocol.messages.config_descriptions import ConfigDescription
from minibroker.protocol.messages.log_dirs import (
    DescribeLogDirsResponse,
    LogSize,
    OtherLogDirectory,
)
from minibroker.protocol.messages.metadata import (
    BrokerMetadata,
    PartitionMetadata,
    TopicMetadata,
)
from minibroker.protocol.types import TopicPartition

Name = tuple[str, int]


class FakeCluster:
    """Brokers that are `live` (with racks) or only `known`. A reassignment is done at once, or,
    with `is_slow`, stays under way until `finish`; that of a partition in `refused` is refused.
    `changes` has every change of settings, in order; `changes_before` those before the last
    reassignment."""

    def __init__(self, replicas: Mapping[Name, Sequence[int]], live: Iterable[int]) -> None:
        self.replicas = {name: tuple(nodes) for name, nodes in replicas.items()}
        self.live: dict[int, str | None] = dict.fromkeys(live)
        self.known = {*self.live, *(node for nodes in replicas.values() for node in nodes)}
        self.moves: dict[Name, PartitionReassignment] = {}
        self.is_slow = False
        self.refused: dict[Name, str] = {}
        self.topic_configs: dict[str, dict[str, str]] = {name: {} for name, _ in replicas}
        self.broker_configs: dict[int, dict[str, str]] = {node: {} for node in self.known}
        self.sizes: dict[int, dict[Name, int]] = {}
        self.log_dirs: dict[tuple[str, int, int], str] = {}  # of replicas that are not in "d"
        self.copies: dict[tuple[str, int, int], str] = {}  # of those that move until `move`
        self.stuck: set[str] = set()  # directories to which no move ends
        self.changes: list[tuple[str, dict[str, str | None]]] = []
        self.changes_before: list[tuple[str, dict[str, str | None]]] = []

    @contextmanager
    def opened(self, *_: object) -> Iterator[Any]:
        """Stand for `opened_admin`."""
        yield self

    # -- topics and brokers

    def list_topics(self) -> list[str]:
        return sorted(self.topic_configs)

    def describe_topics(self, *names: str) -> list[TopicMetadata]:
        self._check_topics(names)
        return [
            TopicMetadata(
                topic,
                partitions=tuple(
                    PartitionMetadata(number, leader_id=nodes[0], replicas=nodes, isr=nodes)
                    for (name, number), nodes in sorted(self.replicas.items())
                    if name == topic
                ),
            )
            for topic in names
        ]

    def describe_cluster(self) -> ClusterDescription:
        brokers = (BrokerMetadata(node, "h", 1, rack) for node, rack in self.live.items())
        return ClusterDescription("c", 1, tuple(brokers))

    def describe_log_dirs(self, names: Iterable[Name]) -> LogDirsReport:
        wanted = [*names]
        answers = {}
        for node in {*self.sizes, *(node for nodes in self.replicas.values() for node in nodes)}:
            logs: dict[str, list[LogSize]] = {"d": []}
            for name in wanted:
                is_told = bool(self.log_dirs) and node in self.replicas.get(name, ())
                if name not in self.sizes.get(node, {}) and not is_told:
                    continue
                size = self.sizes.get(node, {}).get(name, 0)
                path = self.log_dirs.get((*name, node), "d")
                logs.setdefault(path, []).append(LogSize(*name, size))
                if path := self.copies.get((*name, node), ""):
                    copy = LogSize(*name, 0, 7, is_future=True)
                    logs.setdefault(path, []).append(copy)
            others = [
                OtherLogDirectory(path, 0, "", tuple(logs[path])) for path in logs if path != "d"
            ]
            if node in self.sizes or self.log_dirs:
                answers[node] = DescribeLogDirsResponse("d", tuple(logs["d"]), others=tuple(others))
        return LogDirsReport(answers, {})

    def alter_replica_log_dirs(
        self, wanted: Mapping[tuple[str, int, int], str]
    ) -> LogDirsAlteration:
        failed: dict[TopicPartitionReplica, tuple[ErrorCode, str]] = {}
        self.log_dirs.setdefault(("", 0, 0), "d")  # from now on places are told
        for one, path in wanted.items():
            replica = TopicPartitionReplica(*one)
            if path not in ("d", "e", *self.stuck):
                failed[replica] = ErrorCode.LOG_DIR_NOT_FOUND, f"{path} is no log directory"
            elif one[2] not in self.replicas[one[:2]]:
                self.log_dirs[one] = path
                failed[replica] = ErrorCode.REPLICA_NOT_AVAILABLE, "not here yet"
            elif self.log_dirs.get(one, "d") == path:
                self.copies.pop(one, None)
            else:
                self.copies[one] = path
        accepted = [TopicPartitionReplica(*one) for one in wanted if (*one,) not in failed]
        return LogDirsAlteration(tuple(accepted), failed)

    def move(self) -> None:
        """End the moves between log directories."""
        for one, path in self.copies.items():
            if path not in self.stuck:
                self.log_dirs[one] = path
        self.copies.clear()

    # -- reassignments

    def list_partition_reassignments(
        self, names: Iterable[Name] | None = None
    ) -> dict[TopicPartition, PartitionReassignment]:
        wanted = self.moves if names is None else [*names]
        return {TopicPartition(*name): self.moves[name] for name in wanted if name in self.moves}

    def alter_partition_reassignments(
        self, wanted: Mapping[Name, Sequence[int] | None]
    ) -> ReassignmentsReport:
        self.changes_before = [*self.changes]
        failed: dict[TopicPartition, tuple[ErrorCode, str]] = {}
        for name, target in wanted.items():
            if name in self.refused:
                reason = self.refused[name]
                failed[TopicPartition(*name)] = ErrorCode.INVALID_REPLICA_ASSIGNMENT, reason
                continue
            self._start(name, tuple(target or self._original(name)))
            if not self.is_slow or target is None:
                self.finish(name)
        accepted = tuple(TopicPartition(*name) for name in wanted if name not in failed)
        return ReassignmentsReport(accepted, failed)

    def _original(self, name: Name) -> tuple[int, ...]:
        adding: Collection[int] = self.moves[name].adding_replicas if name in self.moves else ()
        return tuple(node for node in self.replicas[name] if node not in adding)

    def _start(self, name: Name, target: tuple[int, ...]) -> None:
        original = self._original(name)
        adding = tuple(node for node in target if node not in original)
        removing = tuple(node for node in original if node not in target)
        self.replicas[name] = (*target, *removing)
        self.moves[name] = PartitionReassignment(self.replicas[name], adding, removing)

    def finish(self, name: Name) -> None:
        """Take away what is to leave."""
        removing = self.moves.pop(name).removing_replicas
        left = tuple(node for node in self.replicas[name] if node not in removing)
        self.replicas[name] = left

    # -- settings

    def describe_configs(self, *names: str) -> dict[str, tuple[ConfigDescription, ...]]:
        self._check_topics(names)
        return {
            topic: tuple(ConfigDescription(*one) for one in self.topic_configs[topic].items())
            for topic in names
        }

    def alter_configs(self, changes: Mapping[str, Mapping[str, str | None]]) -> None:
        self._check_topics(changes)
        for topic, values in changes.items():
            self.changes.append((topic, dict(values)))
            _alter(self.topic_configs[topic], values)

    def alter_broker_configs(
        self, changes: Mapping[int, Mapping[str, str | None]], *, validate_only: bool = False
    ) -> None:
        for node, values in changes.items():
            if node not in self.known:
                known = ", ".join(map(str, sorted(self.known)))
                what = f"broker '{node}': there is no broker '{node}'; known are {known}"
                raise BrokerError(ErrorCode.INVALID_REQUEST, what)
            if not validate_only:
                self.changes.append((str(node), dict(values)))
                _alter(self.broker_configs[node], values)

    def _check_topics(self, names: Iterable[str]) -> None:
        for name in names:
            if name not in self.topic_configs:
                raise BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"no topic {name!r}")


def _alter(own: dict[str, str], values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        own.pop(name, None)
        if value is not None:
            own[name] = value
