"""What is wrong with a request about a group is told, and the group goes on: one real broker.

First as bytes on the wire, sent by what is no client of ours; then through the clients, for the
words that a person reads. docs/faults.md has the table.
"""

from collections.abc import Awaitable, Callable, Iterator
from typing import Any, NamedTuple

import pytest
import trio

from minibroker.client import (
    Admin,
    BrokerError,
    ClientError,
    CommitFailed,
    Consumer,
    OffsetAndMetadata,
    OffsetOutOfRange,
    Producer,
    TopicPartition,
)
from minibroker.protocol.constants import ACKS_ALL, OFFSETS_TOPIC, ApiKey, ErrorCode
from minibroker.protocol.messages.group_offsets import (
    GroupPartition,
    OffsetCommitRequest,
    OffsetDeleteRequest,
    OffsetFetchRequest,
    PartitionCommit,
)
from minibroker.protocol.messages.groups import (
    DeleteGroupsRequest,
    FindCoordinatorRequest,
    GroupProtocol,
    HeartbeatRequest,
    JoinGroupRequest,
    LeaveGroupRequest,
    LeavingMember,
    MemberAssignment,
    SyncGroupRequest,
)
from minibroker.protocol.messages.produce import PartitionProduce, ProduceRequest
from minibroker.protocol.messages.topics import (
    CreateTopicsRequest,
    DeleteTopicsRequest,
    NewTopic,
)
from minibroker.protocol.records.record import encode_batch
from minibroker.protocol.subscription import Subscription, encode_subscription
from tests.processes import BrokerProcess
from tests.wire import Wire

GROUP = "sound"
TOPIC = "of-a-sound-group"
GONE = "a-topic-that-is-gone"
COMMITTED = 1  # by the group, of the one record that the topic has
READS = encode_subscription(Subscription((TOPIC,)))
PROTOCOLS = (GroupProtocol("range", READS),)
SESSION_MS = 600_000
SOON_S = 10.0
E = ErrorCode


class Member(NamedTuple):
    """Of the group, alone in it; `wire` is its connection."""

    wire: Wire
    member_id: str
    generation: int

    def goes_on(self) -> None:
        """It is still a member, and what it has committed is there."""
        beat = HeartbeatRequest(GROUP, self.generation, self.member_id)
        assert self.wire.call(ApiKey.HEARTBEAT, beat).error == E.NONE
        asked = OffsetFetchRequest(GROUP, (GroupPartition(TOPIC, 0),))
        [told] = self.wire.call(ApiKey.OFFSET_FETCH, asked).partitions
        assert (told.error, told.offset) == (E.NONE, COMMITTED)


def join(wire: Wire, member_id: str = "", **more: Any) -> Any:
    """The answer to a JOIN of the group."""
    asked = {"group_id": GROUP, "session_timeout_ms": SESSION_MS, "protocols": PROTOCOLS, **more}
    request = JoinGroupRequest(rebalance_timeout_ms=1000, member_id=member_id, **asked)
    return wire.call(ApiKey.JOIN_GROUP, request)


def commit(generation: int, member_id: str, *changes: Any, instance: str | None = None) -> Any:
    """A commit of one partition, which `changes` describe."""
    partition = PartitionCommit(*(changes or (TOPIC, 0, COMMITTED)))
    return OffsetCommitRequest(GROUP, generation, member_id, instance, (partition,))


@pytest.fixture(scope="module")
def member(broker: BrokerProcess) -> Iterator[Member]:
    """A group with one member that has committed; for all of this file."""
    with Wire(broker.address) as wire:
        for topic in (TOPIC, GONE):
            create = CreateTopicsRequest((NewTopic(topic, 1),))
            assert wire.call(ApiKey.CREATE_TOPICS, create).topics[0].error == E.NONE
        assert wire.call(ApiKey.DELETE_TOPICS, DeleteTopicsRequest((GONE,))).topics[0].error == 0
        batch = encode_batch([(1, None, b"value", [])])
        produce = ProduceRequest(ACKS_ALL, 1000, (PartitionProduce(TOPIC, 0, batch),))
        assert wire.call(ApiKey.PRODUCE, produce).partitions[0].error == E.NONE
        assert wire.call(ApiKey.FIND_COORDINATOR, FindCoordinatorRequest(GROUP)).error == E.NONE
        while (told := join(wire)).error == E.COORDINATOR_LOAD_IN_PROGRESS:
            continue
        assert told.error == E.MEMBER_ID_REQUIRED
        joined = join(wire, told.member_id)
        assert joined.error == E.NONE
        found = Member(wire, joined.member_id, joined.generation)
        part = (MemberAssignment(found.member_id, b""),)
        sync = SyncGroupRequest(GROUP, found.generation, found.member_id, assignments=part)
        assert wire.call(ApiKey.SYNC_GROUP, sync).error == E.NONE
        request = commit(found.generation, found.member_id)
        assert wire.call(ApiKey.OFFSET_COMMIT, request).partitions[0].error == E.NONE
        yield found


def first_error(answer: Any) -> int:
    """Of the whole answer, or of the one thing that was asked for."""
    if error := getattr(answer, "error", 0):
        return error
    parts = (getattr(answer, name, ()) for name in ("partitions", "members", "groups", "topics"))
    return next((part[0].error for part in parts if part), 0)


def commit_by(member: Member, *changes: Any) -> Any:
    """A commit of the member itself."""
    return commit(member.generation, member.member_id, *changes)


def join_of(**changes: Any) -> JoinGroupRequest:
    """A first JOIN in which something is wrong."""
    asked = {"group_id": GROUP, "session_timeout_ms": SESSION_MS, "protocols": PROTOCOLS}
    return JoinGroupRequest(rebalance_timeout_ms=1000, **(asked | changes))


BAD: dict[str, tuple[ApiKey, Callable[[Member], Any], ErrorCode]] = {
    "a heartbeat of an unknown member": (
        ApiKey.HEARTBEAT,
        lambda m: HeartbeatRequest(GROUP, m.generation, "who"),
        E.UNKNOWN_MEMBER_ID,
    ),
    "a heartbeat of an old generation": (
        ApiKey.HEARTBEAT,
        lambda m: HeartbeatRequest(GROUP, m.generation - 1, m.member_id),
        E.ILLEGAL_GENERATION,
    ),
    "a heartbeat for an unknown group": (
        ApiKey.HEARTBEAT,
        lambda m: HeartbeatRequest("none", m.generation, m.member_id),
        E.UNKNOWN_MEMBER_ID,
    ),
    "a heartbeat as an unknown instance": (
        ApiKey.HEARTBEAT,
        lambda m: HeartbeatRequest(GROUP, m.generation, m.member_id, "instance"),
        E.UNKNOWN_MEMBER_ID,
    ),
    "a sync of an unknown member": (
        ApiKey.SYNC_GROUP,
        lambda m: SyncGroupRequest(GROUP, m.generation, "who"),
        E.UNKNOWN_MEMBER_ID,
    ),
    "a sync of an old generation": (
        ApiKey.SYNC_GROUP,
        lambda m: SyncGroupRequest(GROUP, m.generation - 1, m.member_id),
        E.ILLEGAL_GENERATION,
    ),
    "an unknown member that leaves": (
        ApiKey.LEAVE_GROUP,
        lambda m: LeaveGroupRequest(GROUP, (LeavingMember("who"),)),
        E.UNKNOWN_MEMBER_ID,
    ),
    "an unknown instance that leaves": (
        ApiKey.LEAVE_GROUP,
        lambda m: LeaveGroupRequest(GROUP, (LeavingMember("", "instance"),)),
        E.UNKNOWN_MEMBER_ID,
    ),
    "a commit of an unknown member": (
        ApiKey.OFFSET_COMMIT,
        lambda m: commit(m.generation, "who"),
        E.UNKNOWN_MEMBER_ID,
    ),
    "a commit of an old generation": (
        ApiKey.OFFSET_COMMIT,
        lambda m: commit(m.generation - 1, m.member_id, TOPIC, 0, 0),
        E.ILLEGAL_GENERATION,
    ),
    "a commit of a generation that comes": (
        ApiKey.OFFSET_COMMIT,
        lambda m: commit(m.generation + 1, m.member_id, TOPIC, 0, 0),
        E.ILLEGAL_GENERATION,
    ),
    "a commit of nobody beside members": (
        ApiKey.OFFSET_COMMIT,
        lambda m: commit(-1, "", TOPIC, 0, 0),
        E.UNKNOWN_MEMBER_ID,
    ),
    "a commit of an unknown instance": (
        ApiKey.OFFSET_COMMIT,
        lambda m: commit(m.generation, m.member_id, TOPIC, 0, 0, instance="instance"),
        E.UNKNOWN_MEMBER_ID,
    ),
    "a commit for a topic that is gone": (
        ApiKey.OFFSET_COMMIT,
        lambda m: commit_by(m, GONE, 0, 0),
        E.UNKNOWN_TOPIC_OR_PARTITION,
    ),
    "a commit for a partition that is not there": (
        ApiKey.OFFSET_COMMIT,
        lambda m: commit_by(m, TOPIC, 1, 0),
        E.UNKNOWN_TOPIC_OR_PARTITION,
    ),
    "a commit for a partition below zero": (
        ApiKey.OFFSET_COMMIT,
        lambda m: commit_by(m, TOPIC, -1, 0),
        E.UNKNOWN_TOPIC_OR_PARTITION,
    ),
    "metadata too long": (
        ApiKey.OFFSET_COMMIT,
        lambda m: commit_by(m, TOPIC, 0, 0, -1, "x" * 4097),
        E.OFFSET_METADATA_TOO_LARGE,
    ),
    "a negative offset": (
        ApiKey.OFFSET_COMMIT,
        lambda m: commit_by(m, TOPIC, 0, -1),
        E.OFFSET_OUT_OF_RANGE,
    ),
    "an impossible leader epoch": (
        ApiKey.OFFSET_COMMIT,
        lambda m: commit_by(m, TOPIC, 0, 0, -2),
        E.UNKNOWN_LEADER_EPOCH,
    ),
    "a session too short": (
        ApiKey.JOIN_GROUP,
        lambda m: join_of(session_timeout_ms=999),
        E.INVALID_SESSION_TIMEOUT,
    ),
    "a session too long": (
        ApiKey.JOIN_GROUP,
        lambda m: join_of(session_timeout_ms=1_800_001),
        E.INVALID_SESSION_TIMEOUT,
    ),
    "no protocol": (
        ApiKey.JOIN_GROUP,
        lambda m: join_of(protocols=()),
        E.INCONSISTENT_GROUP_PROTOCOL,
    ),
    "no common protocol": (
        ApiKey.JOIN_GROUP,
        lambda m: join_of(protocols=(GroupProtocol("sticky", READS),)),
        E.INCONSISTENT_GROUP_PROTOCOL,
    ),
    "another kind of group": (
        ApiKey.JOIN_GROUP,
        lambda m: join_of(protocol_type="connect"),
        E.INCONSISTENT_GROUP_PROTOCOL,
    ),
    "a join with an id that nobody gave out": (
        ApiKey.JOIN_GROUP,
        lambda m: join_of(member_id="who"),
        E.UNKNOWN_MEMBER_ID,
    ),
    "a join into a group that is not there, with an id": (
        ApiKey.JOIN_GROUP,
        lambda m: join_of(group_id="none", member_id=m.member_id),
        E.UNKNOWN_MEMBER_ID,
    ),
    "a group without a name": (
        ApiKey.JOIN_GROUP,
        lambda m: join_of(group_id=""),
        E.INVALID_GROUP_ID,
    ),
    "a group's name of 32 KB": (
        ApiKey.JOIN_GROUP,
        lambda m: join_of(group_id="g" * 32_768),
        E.INVALID_GROUP_ID,
    ),
    "an instance's name of 10 KB": (
        ApiKey.JOIN_GROUP,
        lambda m: join_of(instance_id="i" * 10_240),
        E.INVALID_REQUEST,
    ),
    "deleting a group with members": (
        ApiKey.DELETE_GROUPS,
        lambda m: DeleteGroupsRequest((GROUP,)),
        E.NON_EMPTY_GROUP,
    ),
    "deleting a group that is not there": (
        ApiKey.DELETE_GROUPS,
        lambda m: DeleteGroupsRequest(("none",)),
        E.GROUP_ID_NOT_FOUND,
    ),
    "forgetting what a member reads": (
        ApiKey.OFFSET_DELETE,
        lambda m: OffsetDeleteRequest(GROUP, (GroupPartition(TOPIC, 0),)),
        E.GROUP_SUBSCRIBED_TO_TOPIC,
    ),
    "a record for the offsets topic": (
        ApiKey.PRODUCE,
        lambda m: ProduceRequest(
            ACKS_ALL,
            1000,
            (PartitionProduce(OFFSETS_TOPIC, 0, encode_batch([(1, b"k", b"v", [])])),),
        ),
        E.INVALID_TOPIC_EXCEPTION,
    ),
    "deleting the offsets topic": (
        ApiKey.DELETE_TOPICS,
        lambda m: DeleteTopicsRequest((OFFSETS_TOPIC,)),
        E.INVALID_TOPIC_EXCEPTION,
    ),
    "another form of the offsets topic": (
        ApiKey.CREATE_TOPICS,
        lambda m: CreateTopicsRequest((NewTopic(OFFSETS_TOPIC, 7),)),
        E.INVALID_TOPIC_EXCEPTION,
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_request_is_refused_and_the_group_goes_on(
    broker: BrokerProcess, member: Member, name: str
) -> None:
    """GRP-05 to GRP-07, GRP-12: the code says what is wrong; nobody loses a membership or an offset
    by it."""
    api_key, request, expected = BAD[name]
    with Wire(broker.address) as wire:
        assert E(first_error(wire.call(api_key, request(member)))) == expected
    member.goes_on()


def test_a_name_of_10_kb_is_a_name(broker: BrokerProcess) -> None:
    """Such a group commits, is found again, and can be deleted."""
    name = "n" * 10_240
    partition = PartitionCommit(TOPIC, 0, 1)
    with Wire(broker.address) as wire:
        made = wire.call(ApiKey.OFFSET_COMMIT, OffsetCommitRequest(name, partitions=(partition,)))
        assert made.partitions[0].error == E.NONE
        assert wire.call(ApiKey.OFFSET_FETCH, OffsetFetchRequest(name)).partitions[0].offset == 1
        deleted = wire.call(ApiKey.DELETE_GROUPS, DeleteGroupsRequest((name,)))
        assert deleted.groups[0].error == E.NONE


# -- what people read


async def polled(address: str, **options: Any) -> None:
    """Subscribe and poll, as a member of a group with these options."""
    given = {"group_id": "said", "session_timeout_ms": 6000} | options
    async with Consumer(address, **given) as consumer:
        await consumer.subscribe(TOPIC)
        await consumer.poll()


async def committed(address: str, partition: int, offset: OffsetAndMetadata) -> None:
    """Commit this, as a consumer that is assigned by hand."""
    async with Consumer(address, group_id="said", enable_auto_commit=False) as consumer:
        await consumer.assign_topics(TOPIC)
        await consumer.commit({TopicPartition(TOPIC, partition): offset})


async def committed_beside_members(address: str) -> None:
    """Commit by hand for a group that has a member."""
    async with Consumer(address, group_id=GROUP, enable_auto_commit=False) as consumer:
        await consumer.assign_topics(TOPIC)
        await consumer.commit({TopicPartition(TOPIC, 0): OffsetAndMetadata(0)})


async def read_beyond_the_end(address: str) -> None:
    """Read on where a group has committed more than there is."""
    options = {"enable_auto_commit": False, "auto_offset_reset": "none"}
    async with Consumer(address, group_id="beyond", **options) as consumer:
        await consumer.assign_topics(TOPIC)
        await consumer.commit({TopicPartition(TOPIC, 0): OffsetAndMetadata(1000)})
    async with Consumer(address, group_id="beyond", **options) as consumer:
        await consumer.assign_topics(TOPIC)
        await consumer.poll()


async def in_no_group(address: str) -> None:
    """Subscribe without a group id."""
    async with Consumer(address, group_id="") as consumer:
        await consumer.subscribe(TOPIC)


async def written(address: str) -> None:
    """Send a record to the offsets topic."""
    async with Producer(address) as producer:
        await producer.send_and_wait(OFFSETS_TOPIC, b"value", partition=0)


async def deleted(address: str) -> None:
    """Delete the offsets topic."""
    async with Admin(address) as admin:
        await admin.delete_topics(OFFSETS_TOPIC)


SAID: dict[str, tuple[Callable[[str], Awaitable[None]], type[Exception], str]] = {
    "a session too short": (
        lambda address: polled(address, session_timeout_ms=500, heartbeat_interval_ms=100),
        BrokerError,
        "INVALID_SESSION_TIMEOUT.*session.timeout.ms",
    ),
    "no common protocol": (
        lambda address: polled(address, group_id=GROUP),
        BrokerError,
        "INCONSISTENT_GROUP_PROTOCOL.*partition.assignment.strategy",
    ),
    "a group's name of 32 KB": (
        lambda address: polled(address, group_id="g" * 32_768),
        BrokerError,
        "INVALID_GROUP_ID.*'g{60}\\.\\.\\.'",
    ),
    "an instance's name of 10 KB": (
        lambda address: polled(address, group_instance_id="i" * 10_240),
        BrokerError,
        "INVALID_REQUEST.*group.instance.id",
    ),
    "no group": (in_no_group, ClientError, "give it a group_id"),
    "a commit for a partition that is not there": (
        lambda address: committed(address, 9, OffsetAndMetadata(0)),
        BrokerError,
        f"UNKNOWN_TOPIC_OR_PARTITION: the commit of {TOPIC}-9",
    ),
    "metadata too long": (
        lambda address: committed(address, 0, OffsetAndMetadata(0, "x" * 4097)),
        BrokerError,
        f"OFFSET_METADATA_TOO_LARGE: the commit of {TOPIC}-0",
    ),
    "a negative offset": (
        lambda address: committed(address, 0, OffsetAndMetadata(-1)),
        ValueError,
        "an offset is 0 to",
    ),
    "a commit of nobody beside members": (
        committed_beside_members,
        CommitFailed,
        f"{GROUP}.*UNKNOWN_MEMBER_ID",
    ),
    "a commit beyond the log's end": (
        read_beyond_the_end,
        OffsetOutOfRange,
        f"{TOPIC}-0 at offset 1000",
    ),
    "a record for the offsets topic": (written, BrokerError, "INVALID_TOPIC.*use the group apis"),
    "deleting the offsets topic": (deleted, BrokerError, "INVALID_TOPIC.*delete groups instead"),
}


@pytest.mark.parametrize("name", SAID)
async def test_a_client_says_what_is_wrong(
    broker: BrokerProcess, member: Member, name: str
) -> None:
    """The application gets one exception, which names the thing and what to do about it, and gets
    it soon."""
    call, kind, words = SAID[name]
    with trio.fail_after(SOON_S), pytest.raises(kind, match=words) as raised:
        await call(broker.address)
    print(raised.value)
    assert len(str(raised.value)) < 400
    member.goes_on()
