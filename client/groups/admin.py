"""The consumer group requests of `Admin`: list, describe, delete, and committed offsets.

Each group has a coordinator, which any broker can name. It changes with the leader of the group's
partition of `__consumer_offsets`; the new one first loads what the old one wrote. So for every
request the client finds the coordinator and asks it. It repeats both while the broker answers that
it is not the coordinator or is loading, until the client's time-out. All these requests may be sent
twice: a commit writes the same offset again, and a group that is missing after a lost answer has
been deleted.

A refusal is raised as a `BrokerError` that names the group and says what to do. Of a request about
several groups or partitions the first refusal is raised; the others are done.
"""

import contextlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

import trio

from minibroker.client.committed_offsets import OffsetAndMetadata
from minibroker.client.errors import ClientTimeout, error_code, named
from minibroker.client.net.cluster import Cluster
from minibroker.protocol.constants import INT64_MAX, NO_NODE, ApiKey, ErrorCode
from minibroker.protocol.errors import BrokerError, ProtocolError
from minibroker.protocol.messages import Request
from minibroker.protocol.messages.consumer_groups import ConsumerGroupDescribeRequest
from minibroker.protocol.messages.group_offsets import (
    GroupPartition,
    OffsetCommitRequest,
    OffsetCommitResponse,
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetFetchRequest,
    PartitionCommit,
)
from minibroker.protocol.messages.groups import (
    GROUP_KEY,
    DeleteGroupsRequest,
    DescribeGroupsRequest,
    FindCoordinatorRequest,
    ListedGroup,
    ListGroupsRequest,
    ListGroupsResponse,
    MemberDescription,
)
from minibroker.protocol.messages.metadata import MetadataResponse
from minibroker.protocol.subscription import decode_assignment, decode_subscription
from minibroker.protocol.types import TopicPartition

# How long a broker has to list its groups. One that does not answer is reported.
LIST_TIMEOUT_S: Final = 3.0
PAUSE_S: Final = 0.05
CONSUMERS: Final = "consumer"  # the protocol type whose members' bytes can be decoded here

# Passing errors: the group moves to another coordinator, or is being loaded.
PASSING: Final = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.REQUEST_TIMED_OUT,
    }
)
WHAT_TO_DO: Final[Mapping[ErrorCode, str]] = {
    ErrorCode.GROUP_ID_NOT_FOUND: "there is no such group",
    ErrorCode.NON_EMPTY_GROUP: "it has members: stop its consumers first",
    ErrorCode.UNKNOWN_MEMBER_ID: "it has members: stop its consumers first",
    ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC: "a member subscribes to the topic: stop its consumers"
    " first",
    ErrorCode.INVALID_GROUP_ID: "a group needs another name",
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: "there is no such partition",
    ErrorCode.OFFSET_METADATA_TOO_LARGE: "the text beside the offset is too long"
    " (offset.metadata.max.bytes)",
}


Partitions: TypeAlias = Iterable[tuple[str, int]]
Offsets: TypeAlias = Mapping[tuple[str, int], int | OffsetAndMetadata]

Response = TypeVar("Response")
Listed = TypeVar("Listed", bound="_Listed")


class _Listed(Protocol):
    @property
    def error(self) -> int: ...


class GroupsReport(NamedTuple):
    """The groups of the brokers that answered, by name, and the errors of the others.

    `leaderless` are the partitions of the offsets topic without a leader: their groups are in no
    broker's answer.
    """

    groups: tuple[ListedGroup, ...]
    silent: dict[int, str]
    leaderless: tuple[TopicPartition, ...] = ()


class GroupMemberDescription(NamedTuple):
    """A member of a group. `topics` and `assignment` are empty if they cannot be decoded.

    `instance_id` is a static member's name; `client_host` is the address that it connects from.
    `pattern` is what a member of the consumer protocol subscribes to beside its topics.
    """

    member_id: str
    instance_id: str | None
    client_id: str
    client_host: str
    topics: tuple[str, ...]
    assignment: tuple[TopicPartition, ...]
    pattern: str | None = None


class GroupDescription(NamedTuple):
    """A group, as its coordinator, the broker `coordinator_id`, describes it.

    `state` is Empty, PreparingRebalance, CompletingRebalance or Stable, with the consumer protocol
    (KIP-848) Empty, Assigning, Reconciling or Stable; `protocol` is the assignor, `generation` that
    of a classic group or the epoch of a consumer group.
    """

    group_id: str
    state: str
    protocol_type: str
    protocol: str
    generation: int
    coordinator_id: int
    members: tuple[GroupMemberDescription, ...]


class CoordinatorAnswer(NamedTuple, Generic[Response]):
    """A coordinator's answer. `is_repeated`: an earlier answer was lost, and may have been the
    same."""

    message: Response
    node_id: int
    is_repeated: bool


async def list_groups(
    cluster: Cluster, metadata: MetadataResponse, states: Sequence[str]
) -> GroupsReport:
    """Ask all brokers for groups in one of these states, or in any.

    `metadata` are those of the offsets topic; the cluster's are at least as new.
    """
    found: dict[str, ListedGroup] = {}

    def keep(answer: ListGroupsResponse) -> None:
        found.update({group.group_id: group for group in answer.groups})

    request = ListGroupsRequest(tuple(states))
    silent = await ask_all(cluster, metadata, ApiKey.LIST_GROUPS, request, keep)
    groups = tuple(found[name] for name in sorted(found))
    return GroupsReport(groups, silent, leaderless_of(metadata))


def leaderless_of(metadata: MetadataResponse) -> tuple[TopicPartition, ...]:
    """Return the partitions without a leader."""
    return tuple(
        TopicPartition(topic.name, each.partition)
        for topic in metadata.topics
        for each in topic.partitions
        if each.leader_id == NO_NODE
    )


async def ask_all(
    cluster: Cluster,
    metadata: MetadataResponse,
    api_key: ApiKey,
    request: Request[Listed],
    keep: Callable[[Listed], None],
) -> dict[int, str]:
    """Ask all brokers what they coordinate, and keep each answer. Return the errors of those that
    did not answer."""
    silent: dict[int, str] = {}

    async def ask(node_id: int) -> None:
        silent[node_id] = f"no answer within {LIST_TIMEOUT_S:g} s"
        with trio.move_on_after(LIST_TIMEOUT_S):
            while True:
                try:
                    channel = await cluster.channel(node_id)
                    answer = await channel.call(api_key, request)
                except (OSError, BrokerError) as error:
                    silent[node_id] = str(error)
                    return
                if not answer.error:
                    keep(answer)
                    del silent[node_id]
                    return
                silent[node_id] = error_code(answer.error).name
                if answer.error not in PASSING:
                    return
                await trio.sleep(PAUSE_S)

    async with trio.open_nursery() as nursery:
        for broker in metadata.brokers:
            nursery.start_soon(ask, broker.node_id)
    return silent


async def describe_groups(cluster: Cluster, names: Sequence[str]) -> list[GroupDescription]:
    """Describe groups, in order. Raises `BrokerError` for one that does not exist."""
    described: dict[str, GroupDescription] = {}
    for name in names:
        described[name] = await _describe(cluster, name)
    return [described[name] for name in names]


async def _describe(cluster: Cluster, name: str) -> GroupDescription:
    request = DescribeGroupsRequest((name,))
    answer = await ask_coordinator(
        cluster, name, ApiKey.DESCRIBE_GROUPS, request, lambda message: message.groups[0].error
    )
    group = answer.message.groups[0]
    _raise_refusal(name, group.error)
    if group.state == "Dead":
        return await _describe_consumer_group(cluster, name)
    return GroupDescription(
        name,
        group.state,
        group.protocol_type,
        group.protocol,
        group.generation,
        answer.node_id,
        tuple(_member(member, group.protocol_type == CONSUMERS) for member in group.members),
    )


async def _describe_consumer_group(cluster: Cluster, name: str) -> GroupDescription:
    """Describe a group of the consumer protocol, which is Dead as a classic one."""
    request = ConsumerGroupDescribeRequest((name,))
    api_key = ApiKey.CONSUMER_GROUP_DESCRIBE
    answer = await ask_coordinator(
        cluster, name, api_key, request, lambda message: message.groups[0].error
    )
    group = answer.message.groups[0]
    _raise_refusal(name, group.error)
    members = tuple(
        GroupMemberDescription(
            member.member_id,
            member.instance_id,
            member.client_id,
            member.client_host,
            member.topics,
            tuple(
                TopicPartition(each.topic, number)
                for each in member.assignment
                for number in each.partitions
            ),
            member.pattern,
        )
        for member in group.members
    )
    return GroupDescription(
        name, group.state, CONSUMERS, group.assignor, group.epoch, answer.node_id, members
    )


def _member(member: MemberDescription, is_consumer: bool) -> GroupMemberDescription:
    """Describe a member; what another program wrote is decoded as far as possible."""
    topics: tuple[str, ...] = ()
    assignment: tuple[TopicPartition, ...] = ()
    if is_consumer:
        with contextlib.suppress(ProtocolError):
            topics = decode_subscription(member.metadata).topics
            assignment = decode_assignment(member.assignment).partitions
    return GroupMemberDescription(
        member.member_id,
        member.instance_id,
        member.client_id,
        member.client_host,
        topics,
        assignment,
    )


async def delete_groups(cluster: Cluster, names: Sequence[str]) -> None:
    """Delete groups, with all their committed offsets."""
    for name in names:
        answer = await ask_coordinator(
            cluster,
            name,
            ApiKey.DELETE_GROUPS,
            DeleteGroupsRequest((name,)),
            lambda message: message.groups[0].error,
        )
        error = answer.message.groups[0].error
        if not (answer.is_repeated and error == ErrorCode.GROUP_ID_NOT_FOUND):
            _raise_refusal(name, error)


async def committed_offsets(
    cluster: Cluster, name: str, partitions: Partitions | None
) -> dict[TopicPartition, OffsetAndMetadata]:
    """Return a group's committed offsets, of these partitions or of all, by partition."""
    wanted = None if partitions is None else tuple(GroupPartition(*each) for each in partitions)
    answer = await ask_coordinator(
        cluster,
        name,
        ApiKey.OFFSET_FETCH,
        OffsetFetchRequest(name, wanted),
        lambda message: message.error,
    )
    _raise_refusal(name, answer.message.error)
    found = {}
    for each in sorted(answer.message.partitions, key=lambda each: (each.topic, each.partition)):
        partition = TopicPartition(each.topic, each.partition)
        _raise_refusal(name, each.error, partition)
        if each.offset >= 0:
            found[partition] = OffsetAndMetadata(
                each.offset, each.metadata or "", each.leader_epoch
            )
    return found


async def commit_offsets(cluster: Cluster, name: str, offsets: Offsets) -> None:
    """Set the committed offsets of a group without members; create the group if need be."""
    commits = []
    for (topic, number), offset in offsets.items():
        committed = OffsetAndMetadata(offset) if isinstance(offset, int) else offset
        if not 0 <= committed.offset <= INT64_MAX:
            raise ValueError(f"an offset is 0 to {INT64_MAX}, not {committed.offset}")
        commits.append(
            PartitionCommit(
                topic, number, committed.offset, committed.leader_epoch, committed.metadata
            )
        )
    request = OffsetCommitRequest(name, partitions=tuple(commits))
    answer = await ask_coordinator(cluster, name, ApiKey.OFFSET_COMMIT, request, _first_error)
    for each in answer.message.partitions:
        _raise_refusal(name, each.error, TopicPartition(each.topic, each.partition))


async def delete_offsets(cluster: Cluster, name: str, partitions: Partitions) -> None:
    """Delete a group's committed offsets of these partitions."""
    request = OffsetDeleteRequest(name, tuple(GroupPartition(*each) for each in partitions))
    answer = await ask_coordinator(
        cluster,
        name,
        ApiKey.OFFSET_DELETE,
        request,
        lambda message: message.error or _first_error(message),
    )
    _raise_refusal(name, answer.message.error)
    for each in answer.message.partitions:
        _raise_refusal(name, each.error, TopicPartition(each.topic, each.partition))


def _first_error(message: OffsetCommitResponse | OffsetDeleteResponse) -> int:
    """Return a passing error, if a partition has one; else any error."""
    errors = [each.error for each in message.partitions if each.error]
    return next((error for error in errors if error in PASSING), errors[0] if errors else 0)


async def ask_coordinator(
    cluster: Cluster,
    name: str,
    api_key: ApiKey,
    request: Request[Response],
    error_of: Callable[[Response], int],
    *,
    key_type: int = GROUP_KEY,
    passing: Collection[int] = PASSING,
) -> CoordinatorAnswer[Response]:
    """Ask the coordinator of a group, or of a transactional id. Raises `BrokerError`,
    `ClientTimeout`. `passing` are the errors after which the same is asked again."""
    last: Exception | None = None
    is_repeated = False
    with trio.move_on_after(cluster.options.call_timeout_ms / 1000):
        while True:
            found = await cluster.ask(
                ApiKey.FIND_COORDINATOR, FindCoordinatorRequest(name, key_type)
            )
            error = found.error
            if not error:
                try:
                    channel = await cluster.channel(found.node_id)
                    reply = channel.start(api_key, request)
                    last = ClientTimeout(f"{channel.endpoint} is silent")
                    before, is_repeated = is_repeated, True
                    message = await reply.wait()
                    is_repeated = before
                    error = error_of(message)
                    if error not in passing:
                        return CoordinatorAnswer(message, found.node_id, is_repeated)
                except OSError as lost:
                    last = lost
                    await cluster.refreshed()
                    continue
            elif error not in PASSING:
                _raise_refusal(name, error, reason=found.error_message)
            last = _refusal(name, error, reason=found.error_message)
            await trio.sleep(PAUSE_S)
    raise ClientTimeout(f"{api_key.name} of {named(name)}: {cluster.timeout(last)}")


def _raise_refusal(
    name: str, number: int, partition: TopicPartition | None = None, reason: str | None = None
) -> None:
    if number:
        raise _refusal(name, number, partition, reason)


def _refusal(
    name: str, number: int, partition: TopicPartition | None = None, reason: str | None = None
) -> BrokerError:
    error = error_code(number)
    what = f"{named(name)}, {partition}" if partition is not None else named(name)
    why = reason or WHAT_TO_DO.get(error)
    return BrokerError(error, f"{what}: {why}" if why else what)
