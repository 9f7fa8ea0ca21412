"""Topics and their settings, brokers and leaders, where logs begin and end, and consumer groups
(groups/admin.py).

    async with Admin("127.0.0.1:9092") as admin:
        await admin.create_topics(NewTopic("events", 4))

A call names one or several topics. It returns when the broker has answered for all of them; the
first refusal is raised as a `BrokerError` whose text names the topic.

Requests that change something go to the controller. A controller that is lost during a request may
have carried it out; the next controller, asked again, then refuses it. So after a lost answer these
errors count as success: TOPIC_ALREADY_EXISTS if the topic has the requested partitions and
replicas, INVALID_PARTITIONS if it has the requested number of partitions, and
UNKNOWN_TOPIC_OR_PARTITION for a deletion. (Properties are not compared: another client is unlikely
to create the same topic in that second.)
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from operator import itemgetter
from types import TracebackType
from typing import Any, Final, NamedTuple, Self, TypeVar, Unpack

import trio

from minibroker.client import transactions_admin
from minibroker.client.committed_offsets import OffsetAndMetadata
from minibroker.client.errors import ClientClosed, ClientTimeout, error_code
from minibroker.client.groups import admin as groups_admin
from minibroker.client.groups.admin import GroupDescription, GroupsReport, Offsets, Partitions
from minibroker.client.net.cluster import Cluster, check_trio, open_cluster
from minibroker.client.net.controller import (
    RequestOutcome,
    Result,
    TopicResults,
    ask_controller,
    ask_controller_for_metadata,
    ask_controller_once,
)
from minibroker.client.net.delete_records import delete_records
from minibroker.client.net.list_offsets import list_offsets
from minibroker.client.option_types import AdminConfig, AdminKeywords
from minibroker.client.options import (
    AdminOptions,
    Seams,
    Servers,
    default_seams,
    read_options,
)
from minibroker.client.transactions_admin import TransactionDescription, TransactionsReport
from minibroker.protocol.constants import (
    LATEST_TIMESTAMP,
    NO_NODE,
    OFFSETS_TOPIC,
    TRANSACTIONS_TOPIC,
    ApiKey,
    ConfigResourceType,
    ErrorCode,
)
from minibroker.protocol.errors import BrokerError
from minibroker.protocol.messages import Request
from minibroker.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from minibroker.protocol.messages.brokers import UnregisterBrokerRequest
from minibroker.protocol.messages.config_descriptions import ConfigDescription
from minibroker.protocol.messages.configs import (
    AlterConfigsRequest,
    ConfigChange,
    ConfigResource,
    DescribeConfigsRequest,
    TopicConfigChanges,
)
from minibroker.protocol.messages.features import FeatureUpdate, UpdateFeaturesRequest
from minibroker.protocol.messages.leaders import PREFERRED, UNCLEAN, ElectLeadersRequest
from minibroker.protocol.messages.log_dirs import (
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    WantedLogDirectory,
)
from minibroker.protocol.messages.metadata import (
    BrokerMetadata,
    MetadataRequest,
    MetadataResponse,
    TopicMetadata,
)
from minibroker.protocol.messages.offsets import PartitionOffset
from minibroker.protocol.messages.reassignments import (
    AlterPartitionReassignmentsRequest,
    ListPartitionReassignmentsRequest,
)
from minibroker.protocol.messages.reassignments import PartitionReassignment as WantedReassignment
from minibroker.protocol.messages.replicas import (
    DescribeReplicasRequest,
    DescribeReplicasResponse,
)
from minibroker.protocol.messages.topics import (
    DEFAULT_COUNT,
    ConfigEntry,
    CreatePartitionsRequest,
    CreateTopicsRequest,
    DeleteTopicsRequest,
    NewPartitions,
    ReplicaAssignment,
)
from minibroker.protocol.messages.topics import NewTopic as NewTopicMessage
from minibroker.protocol.types import TopicPartition

# How long a broker has to describe its replicas or logs, the controller to describe the cluster,
# and how often the metadata are looked at until they have caught up with the controller.
REPLICAS_TIMEOUT_S: Final = 3.0
CONTROLLER_TIMEOUT_S: Final = 3.0
PAUSE_S: Final = 0.05

T = TypeVar("T")
Response = TypeVar("Response")


class NewTopic(NamedTuple):
    """A topic to create; -1 takes the broker's default, `configs` are properties as text.

    With `replica_assignments` both counts are -1: the brokers of each partition from 0 on, the
    preferred leader first.
    """

    name: str
    num_partitions: int = DEFAULT_COUNT
    replication_factor: int = DEFAULT_COUNT
    configs: Mapping[str, str] = {}
    replica_assignments: Mapping[int, Sequence[int]] = {}


class ClusterDescription(NamedTuple):
    """The cluster's id, its controller (-1 while there is none), and the live brokers.

    `is_from_controller`: the controller knows it so. If not, no controller answered, and another
    broker knows it so, which may be out of date.
    """

    cluster_id: str
    controller_id: int
    brokers: tuple[BrokerMetadata, ...]
    is_from_controller: bool = True


class ReplicasReport(NamedTuple):
    """What each broker reports about its replicas, by node id.

    `silent` has the brokers that are alive or hold replicas and did not answer, each with the
    reason.
    """

    answers: dict[int, DescribeReplicasResponse]
    silent: dict[int, str]


class LogDirsReport(NamedTuple):
    """What each live broker reports about its data directory and the logs there, by node id.

    `silent` has the live brokers that did not answer, each with the reason.
    """

    answers: dict[int, DescribeLogDirsResponse]
    silent: dict[int, str]


class TopicPartitionReplica(NamedTuple):
    """The replica of a partition on a broker."""

    topic: str
    partition: int
    node_id: int


class LogDirsAlteration(NamedTuple):
    """The result of a request for moves between log directories: the replicas whose move was
    `accepted` and goes on by itself; `failed` has the error and the reason for each other one."""

    accepted: tuple[TopicPartitionReplica, ...]
    failed: dict[TopicPartitionReplica, tuple[ErrorCode, str]]


class FeaturesReport(NamedTuple):
    """What each live broker reports about feature levels, by node id: `feature_level` is the
    finalized one, `feature_level_min` and `feature_level_max` are what the broker supports.

    `silent` has the live brokers that did not answer, each with the reason.
    """

    answers: dict[int, ApiVersionsResponse]
    silent: dict[int, str]


class ElectionsReport(NamedTuple):
    """The result of an election.

    `elected` are the partitions that have a new leader, `not_needed` the named ones where the
    preferred replica, or for an unclean election any replica, led before; `failed` has the reason
    for each other partition.
    """

    elected: tuple[TopicPartition, ...]
    not_needed: tuple[TopicPartition, ...]
    failed: dict[TopicPartition, str]


class ReassignmentsReport(NamedTuple):
    """The result of a request for reassignments: the partitions whose reassignment was `accepted`
    and goes on by itself; `failed` has the error and the reason for each other partition."""

    accepted: tuple[TopicPartition, ...]
    failed: dict[TopicPartition, tuple[ErrorCode, str]]


class PartitionReassignment(NamedTuple):
    """A reassignment under way: the present `replicas`, with those that it is adding and those that
    it is removing. While it waits for its turn, it has added none."""

    replicas: tuple[int, ...]
    adding_replicas: tuple[int, ...]
    removing_replicas: tuple[int, ...]


class Admin:
    """Creates topics, changes settings, and looks at the cluster and its groups.

        async with Admin("127.0.0.1:9092") as admin:
            await admin.create_topics(NewTopic("orders", num_partitions=4))

    Any task may call it. Each call can also raise `ClientTimeout`. docs/admin.md has every option,
    method and error.
    """

    def __init__(
        self,
        bootstrap_servers: Servers | AdminConfig = None,
        *,
        seams: Seams | None = None,
        **options: Unpack[AdminKeywords],
    ) -> None:
        self._options = read_options(AdminOptions, bootstrap_servers, options)
        self._seams = seams
        self._stack = AsyncExitStack()
        self._cluster: Cluster | None = None

    async def run(self, *, task_status: trio.TaskStatus[Any] = trio.TASK_STATUS_IGNORED) -> None:
        """Open the client until cancelled: `admin = await nursery.start(Admin(...).run)`."""
        async with self:
            task_status.started(self)
            await trio.sleep_forever()

    @trio.lowlevel.enable_ki_protection
    async def __aenter__(self) -> Self:
        check_trio()
        opened = open_cluster(self._options, self._seams or default_seams())
        self._cluster = await self._stack.enter_async_context(opened)
        return self

    @trio.lowlevel.enable_ki_protection
    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        self._cluster = None
        return await self._stack.__aexit__(kind, error, traceback)

    # -- topics

    async def create_topics(self, *topics: NewTopic | str, validate_only: bool = False) -> None:
        """Create topics. With `validate_only` only check whether the cluster could create them."""
        for topic in topics:
            if not isinstance(topic, NewTopic | str):
                raise TypeError(f"create_topics takes NewTopic or str one by one, not {topic!r}")
        named = [NewTopic(topic) if isinstance(topic, str) else topic for topic in topics]
        messages = tuple(
            NewTopicMessage(
                topic.name,
                topic.num_partitions,
                topic.replication_factor,
                tuple(ConfigEntry(*item) for item in topic.configs.items()),
                tuple(
                    ReplicaAssignment(number, tuple(brokers))
                    for number, brokers in topic.replica_assignments.items()
                ),
            )
            for topic in named
        )
        timeout_ms = self._answer_within_ms

        def request(asked: tuple[NewTopicMessage, ...]) -> CreateTopicsRequest:
            return CreateTopicsRequest(asked, timeout_ms, validate_only)

        outcomes = await self._ask_controller(ApiKey.CREATE_TOPICS, messages, request)
        for topic, (result, is_repeated) in zip(named, outcomes, strict=True):
            is_there = error_code(result.error) == ErrorCode.TOPIC_ALREADY_EXISTS
            if not (is_there and is_repeated and not validate_only and await self._is_as(topic)):
                _raise_refusal([result])

    @property
    def _answer_within_ms(self) -> int:
        """The timeout (ms) sent to the controller: shorter than the call's, so that its error
        arrives in time."""
        return min(self._options.request_timeout_ms, self._options.call_timeout_ms) * 9 // 10

    async def _is_as(self, topic: NewTopic) -> bool:
        """Whether an existing topic has the requested counts."""
        with trio.move_on_after(self._options.call_timeout_ms / 1000):
            while True:
                found = (await self._metadata((topic.name,))).topics[0].partitions
                if found and topic.replica_assignments:
                    replicas = {each.partition: [*each.replicas] for each in found}
                    return replicas == {
                        number: [*brokers] for number, brokers in topic.replica_assignments.items()
                    }
                if found:
                    counts = (len(found), len(found[0].replicas))
                    wanted = (topic.num_partitions, topic.replication_factor)
                    return all(
                        asked in (count, DEFAULT_COUNT)
                        for count, asked in zip(counts, wanted, strict=True)
                    )
                await trio.sleep(PAUSE_S)  # the broker that was asked has not heard of it yet
        return False

    async def create_partitions(
        self,
        counts: Mapping[str, int],
        *,
        assignments: Mapping[str, Sequence[Sequence[int]]] | None = None,
        validate_only: bool = False,
    ) -> None:
        """Add partitions to topics until each has the given number of them. No records move.

        `assignments` lists for each new partition of a topic its brokers, the preferred leader
        first. Producers and consumer groups use the new partitions once they have refreshed their
        metadata (metadata.max.age.ms). From then on a key may go to another partition.
        """
        chosen = assignments or {}
        messages = tuple(
            NewPartitions(
                name,
                count,
                tuple(map(tuple, chosen[name])) if name in chosen else None,
            )
            for name, count in counts.items()
        )
        timeout_ms = self._answer_within_ms

        def request(asked: tuple[NewPartitions, ...]) -> CreatePartitionsRequest:
            return CreatePartitionsRequest(asked, timeout_ms, validate_only)

        outcomes = await self._ask_controller(ApiKey.CREATE_PARTITIONS, messages, request)
        for wanted, (result, is_repeated) in zip(messages, outcomes, strict=True):
            is_there = error_code(result.error) == ErrorCode.INVALID_PARTITIONS
            new = NewTopic(wanted.name, wanted.count)
            if not (is_there and is_repeated and not validate_only and await self._is_as(new)):
                _raise_refusal([result])
        if not validate_only and self._open_cluster().statistics().topic_count:
            with suppress(ClientTimeout):  # for the calls that follow: they look at all partitions
                await self._open_cluster().refreshed()

    async def delete_topics(self, *names: str) -> None:
        """Delete topics and all their records."""
        _check_names(names)
        timeout_ms = self._answer_within_ms
        outcomes = await self._ask_controller(
            ApiKey.DELETE_TOPICS, names, lambda asked: DeleteTopicsRequest(asked, timeout_ms)
        )
        for result, is_repeated in outcomes:
            is_gone = error_code(result.error) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            if not (is_gone and is_repeated):
                _raise_refusal([result])

    async def list_topics(self) -> list[str]:
        """Return the names of all topics, sorted."""
        return sorted(topic.name for topic in (await self._metadata(None)).topics)

    async def describe_topics(self, *names: str) -> list[TopicMetadata]:
        """Return the partitions of each topic with leaders and replicas, in the given order."""
        _check_names(names)
        found = {topic.name: topic for topic in (await self._metadata(names)).topics}
        for name in names:
            error = error_code(found[name].error) if name in found else None
            if error is None or error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"no topic {name!r}")
            if error not in (ErrorCode.NONE, ErrorCode.LEADER_NOT_AVAILABLE):
                raise BrokerError(error, f"topic {name!r}")
        return [found[name] for name in names]

    async def describe_cluster(self) -> ClusterDescription:
        """Return the cluster's id, controller and live brokers, as the controller knows them. If no
        controller answers within a few seconds, as any broker knows them."""
        within_s = min(CONTROLLER_TIMEOUT_S, self._options.call_timeout_ms / 2000)
        answer = await ask_controller_for_metadata(self._open_cluster(), within_s)
        is_from_controller = answer is not None
        answer = answer or await self._metadata(())
        described = answer.cluster_id, answer.controller_id, answer.brokers
        return ClusterDescription(*described, is_from_controller)

    async def describe_replicas(self, *topics: str) -> ReplicasReport:
        """Return the state of each replica of these topics, or of all, as its broker reports it."""
        names = topics or None
        metadata = await self._metadata(names)
        report = ReplicasReport({}, {})
        alive = {broker.node_id for broker in metadata.brokers}
        for topic in metadata.topics:
            for partition in topic.partitions:
                for node_id in partition.replicas:
                    if node_id not in alive:
                        report.silent[node_id] = "not alive"
        request = DescribeReplicasRequest(names)
        await self._ask_each(ApiKey.DESCRIBE_REPLICAS, dict.fromkeys(alive, request), *report)
        return report

    async def describe_log_dirs(
        self, partitions: Iterable[tuple[str, int]] | None = None
    ) -> LogDirsReport:
        """Return the bytes of the logs of these partitions, or of all, on each live broker, and the
        space of its disk. A broker leaves out the partitions of which it has no log."""
        names = None if partitions is None else tuple(TopicPartition(*one) for one in partitions)
        alive = {broker.node_id for broker in (await self._metadata(())).brokers}
        report = LogDirsReport({}, {})
        request = DescribeLogDirsRequest(names)
        await self._ask_each(ApiKey.DESCRIBE_LOG_DIRS, dict.fromkeys(alive, request), *report)
        return report

    async def alter_replica_log_dirs(
        self, directories: Mapping[tuple[str, int, int], str]
    ) -> LogDirsAlteration:
        """Move replicas (topic, partition, broker) to other log directories of their brokers.

        A directory is named as in the broker's `log.dirs`. The call returns once the moves have
        begun; `describe_log_dirs` shows how far they are (`is_future`). One to the directory in
        which the replica is ends its move. For a replica that its broker does not have yet the
        error is REPLICA_NOT_AVAILABLE: it will be made in that directory. A broker that does not
        answer has NETWORK_EXCEPTION for all of its replicas.
        """
        wanted: dict[int, list[WantedLogDirectory]] = {}
        for (topic, partition, node_id), path in directories.items():
            wanted.setdefault(node_id, []).append(WantedLogDirectory(topic, partition, path))
        requests = {
            node_id: AlterReplicaLogDirsRequest(tuple(some)) for node_id, some in wanted.items()
        }
        answers: dict[int, AlterReplicaLogDirsResponse] = {}
        silent: dict[int, str] = {}
        await self._ask_each(ApiKey.ALTER_REPLICA_LOG_DIRS, requests, answers, silent)
        accepted: list[TopicPartitionReplica] = []
        failed: dict[TopicPartitionReplica, tuple[ErrorCode, str]] = {}
        for node_id, response in answers.items():
            for one in response.partitions:
                replica = TopicPartitionReplica(one.topic, one.partition, node_id)
                error = error_code(one.error)
                if error == ErrorCode.NONE:
                    accepted.append(replica)
                else:
                    failed[replica] = error, one.error_message or error.name
        for node_id, reason in silent.items():
            for asked in requests[node_id].partitions:
                replica = TopicPartitionReplica(asked.topic, asked.partition, node_id)
                failed[replica] = ErrorCode.NETWORK_EXCEPTION, reason
        return LogDirsAlteration(tuple(accepted), failed)

    async def _ask_each(
        self,
        api_key: ApiKey,
        requests: Mapping[int, Request[Response]],
        answers: dict[int, Response],
        silent: dict[int, str],
    ) -> None:
        """Ask brokers, by node id, at the same time; add what each answers, or why it does not."""

        async def ask(node_id: int, request: Request[Response]) -> None:
            silent[node_id] = f"no answer within {REPLICAS_TIMEOUT_S:g} s"
            with trio.move_on_after(REPLICAS_TIMEOUT_S):
                try:
                    channel = await self._open_cluster().channel(node_id)
                    answer = await channel.call(api_key, request)
                except (OSError, BrokerError) as error:
                    silent[node_id] = str(error)
                else:
                    answers[node_id] = answer
                    del silent[node_id]

        await self._open_cluster().refreshed()
        async with trio.open_nursery() as nursery:
            for node_id, request in sorted(requests.items(), key=itemgetter(0)):
                nursery.start_soon(ask, node_id, request)

    # -- brokers and leaders

    async def unregister_broker(self, node_id: int) -> None:
        """Remove a broker that is down and holds no replica, so that no topic is placed on it."""
        answer = await ask_controller_once(
            self._open_cluster(), ApiKey.UNREGISTER_BROKER, UnregisterBrokerRequest(node_id)
        )
        error = error_code(answer.response.error)
        is_gone = error == ErrorCode.BROKER_ID_NOT_REGISTERED
        if error != ErrorCode.NONE and not (is_gone and answer.is_repeated):
            raise BrokerError(error, answer.response.error_message or "")

    async def describe_features(self) -> FeaturesReport:
        """Return the finalized level of "minibroker.version", as each live broker knows it, and the
        levels that the broker supports."""
        alive = {broker.node_id for broker in (await self._metadata(())).brokers}
        report = FeaturesReport({}, {})
        requests = dict.fromkeys(alive, ApiVersionsRequest())
        await self._ask_each(ApiKey.API_VERSIONS, requests, *report)
        return report

    async def update_features(
        self, levels: Mapping[str, int], *, validate_only: bool = False
    ) -> None:
        """Finalize higher levels of features, all of them or none.

        A level of "minibroker.version" must be supported by all brokers. It is never lowered: then
        there is no way back to a version of minibroker that does not support it.
        """
        updates = tuple(FeatureUpdate(name, level) for name, level in levels.items())
        request = UpdateFeaturesRequest(updates, self._answer_within_ms, validate_only)
        answer = await ask_controller_once(self._open_cluster(), ApiKey.UPDATE_FEATURES, request)
        _raise_error(answer.response.error, answer.response.error_message)

    async def elect_leaders(
        self,
        partitions: Iterable[tuple[str, int]] | None = None,
        *,
        is_unclean: bool = False,
        leader: int = NO_NODE,
    ) -> ElectionsReport:
        """Elect the preferred leader (the first replica) of these partitions, or of all.

        A leader is replaced once the preferred replica has all records that it acknowledged. With
        `is_unclean` a partition without a leader gets one that is not in sync: the replica
        `leader`, or the one with the longest log. What that replica does not have is lost.
        """
        names = None if partitions is None else tuple(TopicPartition(*one) for one in partitions)
        kind = UNCLEAN if is_unclean else PREFERRED
        request = ElectLeadersRequest(names, self._answer_within_ms, kind, leader)
        answer = await ask_controller_once(self._open_cluster(), ApiKey.ELECT_LEADERS, request)
        response = answer.response
        _raise_error(response.error, response.error_message)
        elected, not_needed, failed = [], [], {}
        for one in response.partitions:
            name = TopicPartition(one.topic, one.partition)
            if one.error == ErrorCode.NONE:
                elected.append(name)
            elif one.error == ErrorCode.ELECTION_NOT_NEEDED:
                not_needed.append(name)
            else:
                failed[name] = one.error_message or error_code(one.error).name
        return ElectionsReport(tuple(elected), tuple(not_needed), failed)

    # -- reassignments

    async def alter_partition_reassignments(
        self,
        reassignments: Mapping[tuple[str, int], Sequence[int] | None],
        *,
        allow_replication_factor_change: bool = True,
    ) -> ReassignmentsReport:
        """Move partitions to other brokers; with None cancel the reassignment under way.

        The brokers of a partition are in order of preference. The call returns once the cluster has
        recorded what must be done; `list_partition_reassignments` shows what is left. A request
        that is repeated after a lost answer changes nothing more, but to cancel again fails with
        NO_REASSIGNMENT_IN_PROGRESS, which then counts as success.
        """
        request = AlterPartitionReassignmentsRequest(
            tuple(
                WantedReassignment(*name, None if brokers is None else tuple(brokers))
                for name, brokers in reassignments.items()
            ),
            self._answer_within_ms,
            allow_replication_factor_change,
        )
        answer = await ask_controller_once(
            self._open_cluster(), ApiKey.ALTER_PARTITION_REASSIGNMENTS, request
        )
        response = answer.response
        _raise_error(response.error, response.error_message)
        accepted: list[TopicPartition] = []
        failed: dict[TopicPartition, tuple[ErrorCode, str]] = {}
        for one in response.partitions:
            name, error = TopicPartition(one.topic, one.partition), error_code(one.error)
            is_over = error == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS and answer.is_repeated
            if error == ErrorCode.NONE or is_over:
                accepted.append(name)
            else:
                failed[name] = (error, one.error_message or error.name)
        return ReassignmentsReport(tuple(accepted), failed)

    async def list_partition_reassignments(
        self, partitions: Iterable[tuple[str, int]] | None = None
    ) -> dict[TopicPartition, PartitionReassignment]:
        """Return the reassignments under way, of these partitions or of all."""
        names = None if partitions is None else tuple(TopicPartition(*one) for one in partitions)
        request = ListPartitionReassignmentsRequest(names, self._answer_within_ms)
        answer = await ask_controller_once(
            self._open_cluster(), ApiKey.LIST_PARTITION_REASSIGNMENTS, request
        )
        _raise_error(answer.response.error, answer.response.error_message)
        return {
            TopicPartition(one.topic, one.partition): PartitionReassignment(
                one.replicas, one.adding, one.removing
            )
            for one in answer.response.partitions
        }

    # -- settings

    async def describe_configs(self, *names: str) -> dict[str, tuple[ConfigDescription, ...]]:
        """Return every property of each topic with the value in force."""
        request = DescribeConfigsRequest(names)
        response = await self._ask(ApiKey.DESCRIBE_CONFIGS, request)
        _raise_refusal(response.topics)
        return {topic.name: topic.configs for topic in response.topics}

    async def describe_broker_configs(
        self, node_id: int, *names: str
    ) -> tuple[ConfigDescription, ...]:
        """Return the named properties of a broker, or all, with the values in force."""
        asked = ConfigResource(ConfigResourceType.BROKER, str(node_id), names or None)
        request = DescribeConfigsRequest(resources=(asked,))
        cluster = self._open_cluster()
        last: OSError | None = None
        with trio.move_on_after(self._options.call_timeout_ms / 1000):
            while True:
                await cluster.refreshed()
                try:
                    channel = await cluster.channel(node_id)
                    response = await channel.call(ApiKey.DESCRIBE_CONFIGS, request)
                except OSError as error:
                    last = error
                    continue
                [found] = response.resources
                if found.error:
                    raise BrokerError(error_code(found.error), found.error_message or "")
                return found.configs
        raise ClientTimeout(f"the settings of broker {node_id}: {cluster.timeout(last)}")

    async def alter_configs(
        self,
        changes: Mapping[str, Mapping[str, str | None]],
        *,
        reset_others: bool = False,
        validate_only: bool = False,
    ) -> None:
        """Set properties of topics; None restores the default. Properties that are not named keep
        their values, or get their defaults with `reset_others`."""
        messages = tuple(
            TopicConfigChanges(name, tuple(ConfigChange(*item) for item in settings.items()))
            for name, settings in changes.items()
        )

        def request(asked: tuple[TopicConfigChanges, ...]) -> AlterConfigsRequest:
            return AlterConfigsRequest(asked, validate_only, reset_others)

        outcomes = await self._ask_controller(ApiKey.ALTER_CONFIGS, messages, request)
        _raise_refusal(outcome.result for outcome in outcomes)

    async def alter_broker_configs(
        self, changes: Mapping[int, Mapping[str, str | None]], *, validate_only: bool = False
    ) -> None:
        """Set properties of brokers, by node id; None restores what the broker's file says. Only
        the rates of replication and of moves between log directories can be changed."""
        kind = ConfigResourceType.BROKER
        messages = tuple(
            TopicConfigChanges(
                str(node_id), tuple(ConfigChange(*item) for item in settings.items()), kind
            )
            for node_id, settings in changes.items()
        )

        def request(asked: tuple[TopicConfigChanges, ...]) -> AlterConfigsRequest:
            return AlterConfigsRequest(asked, validate_only)

        outcomes = await self._ask_controller(ApiKey.ALTER_CONFIGS, messages, request)
        _raise_refusal((outcome.result for outcome in outcomes), "broker")

    # -- offsets

    async def delete_records(
        self, offsets: Mapping[tuple[str, int], int]
    ) -> dict[TopicPartition, int]:
        """Delete the records of partitions below the given offsets; -1: all committed records.

        Return the offset at which each partition begins now, on every replica that may lead.
        Raises `BrokerError` (OFFSET_OUT_OF_RANGE for an offset that is not committed).
        """
        wanted = {TopicPartition(*name): offset for name, offset in offsets.items()}
        await self._check_partitions(wanted)
        return await delete_records(self._open_cluster(), wanted)

    async def list_offsets(
        self, partitions: Iterable[tuple[str, int]], timestamp: int = LATEST_TIMESTAMP
    ) -> dict[TopicPartition, PartitionOffset]:
        """Return each partition's end (`timestamp` -1), its beginning (-2), or its first record
        with that timestamp (ms) or a later one; then an `offset` of -1 means: no such record.
        """
        names = [TopicPartition(*name) for name in partitions]
        await self._check_partitions(names)
        return await list_offsets(self._open_cluster(), dict.fromkeys(names, timestamp))

    async def _check_partitions(self, names: Collection[TopicPartition]) -> None:
        """Raise `BrokerError` for a partition that does not exist."""
        cluster = self._open_cluster()
        for topic in dict.fromkeys(name.topic for name in names):
            metadata = await cluster.topic(topic)
            for name in names:
                if name.topic == topic and not 0 <= name.partition < len(metadata.partitions):
                    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                    raise BrokerError(code, f"{topic!r} has no partition {name.partition}")

    # -- groups

    async def list_groups(self, *states: str) -> GroupsReport:
        """Return the groups in one of these states (as Kafka spells them), or all groups."""
        metadata = await self._metadata((OFFSETS_TOPIC,))
        await self._open_cluster().refreshed()
        return await groups_admin.list_groups(self._open_cluster(), metadata, states)

    async def describe_groups(self, *names: str) -> list[GroupDescription]:
        """Return the state and the members of each group, in the given order."""
        return await groups_admin.describe_groups(self._open_cluster(), names)

    async def delete_groups(self, *names: str) -> None:
        """Delete groups that have no members, with their committed offsets."""
        await groups_admin.delete_groups(self._open_cluster(), names)

    async def committed_offsets(
        self, group: str, partitions: Partitions | None = None
    ) -> dict[TopicPartition, OffsetAndMetadata]:
        """Return the committed offsets of a group, for these partitions or for all.

        Partitions without a committed offset are missing from the result; for a group that does not
        exist it is empty.
        """
        return await groups_admin.committed_offsets(self._open_cluster(), group, partitions)

    async def commit_offsets(self, group: str, offsets: Offsets) -> None:
        """Commit offsets for a group without members. Creates the group if it does not exist."""
        await groups_admin.commit_offsets(self._open_cluster(), group, offsets)

    async def delete_offsets(self, group: str, partitions: Partitions) -> None:
        """Delete a group's committed offsets. No member may be subscribed to their topics."""
        await groups_admin.delete_offsets(self._open_cluster(), group, partitions)

    # -- transactions

    async def list_transactions(self, *states: str) -> TransactionsReport:
        """Return the transactional ids in one of these states (as Kafka spells them), or all."""
        metadata = await self._metadata((TRANSACTIONS_TOPIC,))
        await self._open_cluster().refreshed()
        return await transactions_admin.list_transactions(self._open_cluster(), metadata, states)

    async def describe_transactions(self, *ids: str) -> list[TransactionDescription]:
        """Return the state and the partitions of each transactional id, in the given order."""
        return await transactions_admin.describe_transactions(self._open_cluster(), ids)

    async def abort_transaction(self, transactional_id: str) -> None:
        """Abort the open transaction of an id, and fence its producer. Return once it is over."""
        await transactions_admin.abort_transaction(self._open_cluster(), transactional_id)

    # -- inside

    def _open_cluster(self) -> Cluster:
        if self._cluster is None:
            raise ClientClosed("this admin client is closed, or was not opened with `async with`")
        return self._cluster

    async def _metadata(self, topics: tuple[str, ...] | None) -> MetadataResponse:
        request = MetadataRequest(topics, allow_auto_topic_creation=False)
        return await self._ask(ApiKey.METADATA, request)

    async def _ask(self, api_key: ApiKey, message: Request[Response]) -> Response:
        """Send a request that any broker can answer, and return the response."""
        cluster = self._open_cluster()
        with trio.move_on_after(self._options.call_timeout_ms / 1000):
            return await cluster.ask(api_key, message)
        raise ClientTimeout(f"{api_key.name}: {cluster.timeout()}")

    async def _ask_controller(
        self,
        api_key: ApiKey,
        topics: tuple[T, ...],
        make: Callable[[tuple[T, ...]], Request[TopicResults]],
    ) -> list[RequestOutcome]:
        return await ask_controller(self._open_cluster(), api_key, topics, make)


def _raise_error(code: int, message: str | None) -> None:
    """Raise `BrokerError` if a request was refused as a whole."""
    error = error_code(code)
    if error != ErrorCode.NONE:
        raise BrokerError(error, message or "")


def _check_names(names: Iterable[object]) -> None:
    for name in names:
        if not isinstance(name, str):
            raise TypeError(f"topics are given one by one, as a str each, not {name!r}")


def _raise_refusal(results: Iterable[Result], kind: str = "topic") -> None:
    for result in results:
        error = error_code(result.error)
        if error != ErrorCode.NONE:
            reason = f": {result.error_message}" if result.error_message else ""
            raise BrokerError(error, f"{kind} {result.name!r}{reason}")
