"""Topics and their settings, and where logs begin and end.

    async with Admin("127.0.0.1:9092") as admin:
        await admin.create_topics(NewTopic("events", 4))

A call is about one or several topics and is done when the broker says so for all of them; the
first refusal is raised as a `BrokerError` whose text names the topic. A broker that is lost or
silent while it works on a request may have done it; asked again, it would refuse what is there
already. So only what is harmless to repeat is tried again; else a `ClientError` says so.
"""

from collections.abc import Iterable, Mapping
from contextlib import AsyncExitStack
from types import TracebackType
from typing import Any, NamedTuple, Protocol, Self

import trio

from minibroker.client.cluster import Cluster, open_cluster
from minibroker.client.errors import ClientClosed, ClientError, ClientTimeout, error_code
from minibroker.client.offsets import list_offsets
from minibroker.client.options import (
    AdminOptions,
    Seams,
    Servers,
    default_seams,
    read_options,
)
from minibroker.protocol.constants import LATEST_TIMESTAMP, ApiKey, ErrorCode
from minibroker.protocol.errors import BrokerError
from minibroker.protocol.messages.configs import (
    AlterConfigsRequest,
    ConfigChange,
    ConfigDescription,
    DescribeConfigsRequest,
    TopicConfigChanges,
)
from minibroker.protocol.messages.metadata import (
    BrokerMetadata,
    MetadataRequest,
    MetadataResponse,
    TopicMetadata,
)
from minibroker.protocol.messages.offsets import PartitionOffset
from minibroker.protocol.messages.topics import (
    DEFAULT_COUNT,
    ConfigEntry,
    CreateTopicsRequest,
    DeleteTopicsRequest,
)
from minibroker.protocol.messages.topics import NewTopic as NewTopicMessage
from minibroker.protocol.types import TopicPartition

PAUSE_S = 0.05


class NewTopic(NamedTuple):
    """A topic to create; -1 takes the broker's default, `configs` are properties as text."""

    name: str
    partition_count: int = DEFAULT_COUNT
    replication_factor: int = DEFAULT_COUNT
    configs: Mapping[str, str] = {}


class ClusterDescription(NamedTuple):
    """Who is there; `controller_id` is -1 while there is none."""

    cluster_id: str
    controller_id: int
    brokers: tuple[BrokerMetadata, ...]


class _Outcome(Protocol):
    """What all answers about a topic have."""

    @property
    def name(self) -> str: ...
    @property
    def error(self) -> int: ...
    @property
    def error_message(self) -> str | None: ...


class Admin:
    """See the head of this module. Any task may call it. All calls raise `ClientTimeout` too."""

    def __init__(
        self, bootstrap_servers: Servers = None, *, seams: Seams | None = None, **options: object
    ) -> None:
        self._options = read_options(AdminOptions, bootstrap_servers, options)
        self._seams = seams
        self._stack = AsyncExitStack()
        self._cluster: Cluster | None = None

    async def __aenter__(self) -> Self:
        opened = open_cluster(self._options, self._seams or default_seams())
        self._cluster = await self._stack.enter_async_context(opened)
        return self

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
        """Create topics; with `validate_only` only check that they could be."""
        named = [NewTopic(topic) if isinstance(topic, str) else topic for topic in topics]
        messages = tuple(
            NewTopicMessage(
                topic.name,
                topic.partition_count,
                topic.replication_factor,
                tuple(ConfigEntry(*item) for item in topic.configs.items()),
            )
            for topic in named
        )
        request = CreateTopicsRequest(messages, self._options.request_timeout_ms, validate_only)
        response = await self._call(ApiKey.CREATE_TOPICS, request, is_repeatable=False)
        _raise_refusal(response.topics)

    async def delete_topics(self, *names: str) -> None:
        """Delete topics and all their records."""
        request = DeleteTopicsRequest(names, self._options.request_timeout_ms)
        response = await self._call(ApiKey.DELETE_TOPICS, request, is_repeatable=False)
        _raise_refusal(response.topics)

    async def list_topics(self) -> list[str]:
        """The names of all topics, sorted."""
        return sorted(topic.name for topic in (await self._metadata(None)).topics)

    async def describe_topics(self, *names: str) -> list[TopicMetadata]:
        """Partitions, leaders and replicas of each topic, in the order asked for."""
        found = {topic.name: topic for topic in (await self._metadata(names)).topics}
        for name in names:
            error = error_code(found[name].error) if name in found else None
            if error is None or error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                raise BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"no topic {name!r}")
            if error not in (ErrorCode.NONE, ErrorCode.LEADER_NOT_AVAILABLE):
                raise BrokerError(error, f"topic {name!r}")
        return [found[name] for name in names]

    async def describe_cluster(self) -> ClusterDescription:
        """The brokers that are alive."""
        answer = await self._metadata(())
        return ClusterDescription(answer.cluster_id, answer.controller_id, answer.brokers)

    # -- settings

    async def describe_configs(self, *names: str) -> dict[str, tuple[ConfigDescription, ...]]:
        """Every property of each topic as it is in force."""
        request = DescribeConfigsRequest(names)
        response = await self._call(ApiKey.DESCRIBE_CONFIGS, request)
        _raise_refusal(response.topics)
        return {topic.name: topic.configs for topic in response.topics}

    async def alter_configs(
        self,
        changes: Mapping[str, Mapping[str, str | None]],
        *,
        validate_only: bool = False,
    ) -> None:
        """Set properties of topics; None goes back to the default, what is not named stays."""
        messages = tuple(
            TopicConfigChanges(name, tuple(ConfigChange(*item) for item in settings.items()))
            for name, settings in changes.items()
        )
        request = AlterConfigsRequest(messages, validate_only)
        response = await self._call(ApiKey.ALTER_CONFIGS, request)
        _raise_refusal(response.topics)

    # -- offsets

    async def list_offsets(
        self, partitions: Iterable[tuple[str, int]], timestamp: int = LATEST_TIMESTAMP
    ) -> dict[TopicPartition, PartitionOffset]:
        """The end (-1), the beginning (-2), or the first record at or after a time in ms.

        In the last case an `offset` of -1 says that no record is as late.
        """
        cluster = self._open_cluster()
        names = [TopicPartition(*name) for name in partitions]
        for topic in dict.fromkeys(name.topic for name in names):
            metadata = await cluster.topic(topic)
            for name in names:
                if name.topic == topic and not 0 <= name.partition < len(metadata.partitions):
                    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                    raise BrokerError(code, f"{topic!r} has no partition {name.partition}")
        return await list_offsets(cluster, dict.fromkeys(names, timestamp))

    # -- inside

    def _open_cluster(self) -> Cluster:
        if self._cluster is None:
            raise ClientClosed("this admin client is closed, or was not opened with `async with`")
        return self._cluster

    async def _metadata(self, topics: tuple[str, ...] | None) -> MetadataResponse:
        request = MetadataRequest(topics, allow_auto_topic_creation=False)
        answer = await self._call(ApiKey.METADATA, request)
        assert isinstance(answer, MetadataResponse)
        return answer

    async def _call(self, api_key: ApiKey, message: object, *, is_repeatable: bool = True) -> Any:
        """Ask any broker, and another one if that is lost and asking twice does no harm."""
        cluster = self._open_cluster()
        last: Exception | None = None
        with trio.move_on_after(self._options.patience_ms / 1000):
            while True:
                channel = await cluster.any_channel()
                last = ClientTimeout(f"{channel.endpoint} is silent")
                try:
                    return await channel.call(api_key, message)
                except OSError as error:
                    last = error
                    if not is_repeatable:
                        break
                    await trio.sleep(PAUSE_S)
        if last is not None and not is_repeatable:
            text = f"{api_key.name}: whether it was done is not known: {last}"
            raise ClientError(text) from last
        raise ClientTimeout(f"{api_key.name}: {cluster.timeout(last)}")


def _raise_refusal(results: Iterable[_Outcome]) -> None:
    for result in results:
        error = error_code(result.error)
        if error != ErrorCode.NONE:
            reason = f": {result.error_message}" if result.error_message else ""
            raise BrokerError(error, f"topic {result.name!r}{reason}")
