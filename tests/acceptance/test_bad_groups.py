"""What is wrong with a request about a group is told, and the group goes on: one real broker.

The requests are sent by what is no client of ours. docs/faults.md has the table; what our clients
say to a person is in test_bad_group_clients.py.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import trio

from minibroker.client import (
    Consumer,
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
    GroupProtocol,
    HeartbeatRequest,
    LeaveGroupRequest,
    LeavingMember,
    SyncGroupRequest,
)
from minibroker.protocol.messages.produce import PartitionProduce, ProduceRequest
from minibroker.protocol.messages.topics import (
    CreateTopicsRequest,
    DeleteTopicsRequest,
    NewTopic,
)
from minibroker.protocol.records.record import encode_batch
from minibroker.protocol.subscription import (
    decode_assignment,
)
from tests.support.processes import BrokerProcess
from tests.support.sound_group import TOPIC, Member, join, join_of, sound_group
from tests.support.wire import Wire

GROUP = "sound-beside-wires"
GONE = "a-topic-that-is-gone"
STRATEGY = "cooperative-sticky"  # of our consumers, by default
NOISE = b"\xff\x00 noise"
SOON_S = 10.0
E = ErrorCode


def commit(generation: int, member_id: str, *changes: Any, instance: str | None = None) -> Any:
    """A commit of one partition, which `changes` describe."""
    partition = PartitionCommit(*(changes or (TOPIC, 0, 0)))
    return OffsetCommitRequest(GROUP, generation, member_id, instance, (partition,))


@pytest.fixture(scope="module")
def member(broker: BrokerProcess) -> Iterator[Member]:
    """Who must not notice; for all of this file. The topic that is gone has been there."""
    with sound_group(broker.address, GROUP) as found:
        create = CreateTopicsRequest((NewTopic(GONE, 1),))
        assert found.wire.call(ApiKey.CREATE_TOPICS, create).topics[0].error == E.NONE
        delete = DeleteTopicsRequest((GONE,))
        assert found.wire.call(ApiKey.DELETE_TOPICS, delete).topics[0].error == E.NONE
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
        lambda m: commit(m.generation - 1, m.member_id),
        E.ILLEGAL_GENERATION,
    ),
    "a commit of a generation that comes": (
        ApiKey.OFFSET_COMMIT,
        lambda m: commit(m.generation + 1, m.member_id),
        E.ILLEGAL_GENERATION,
    ),
    "a commit of nobody beside members": (
        ApiKey.OFFSET_COMMIT,
        lambda m: commit(-1, ""),
        E.UNKNOWN_MEMBER_ID,
    ),
    "a commit of an unknown instance": (
        ApiKey.OFFSET_COMMIT,
        lambda m: commit(m.generation, m.member_id, instance="instance"),
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
    "an impossible leader epoch": (
        ApiKey.OFFSET_COMMIT,
        lambda m: commit_by(m, TOPIC, 0, 0, -2),
        E.UNKNOWN_LEADER_EPOCH,
    ),
    "a session too short": (
        ApiKey.JOIN_GROUP,
        lambda m: join_of(GROUP, session_timeout_ms=999),
        E.INVALID_SESSION_TIMEOUT,
    ),
    "a session too long": (
        ApiKey.JOIN_GROUP,
        lambda m: join_of(GROUP, session_timeout_ms=1_800_001),
        E.INVALID_SESSION_TIMEOUT,
    ),
    "no protocol": (
        ApiKey.JOIN_GROUP,
        lambda m: join_of(GROUP, protocols=()),
        E.INCONSISTENT_GROUP_PROTOCOL,
    ),
    "no common protocol": (
        ApiKey.JOIN_GROUP,
        lambda m: join_of(GROUP, protocols=(GroupProtocol("sticky"),)),
        E.INCONSISTENT_GROUP_PROTOCOL,
    ),
    "another kind of group": (
        ApiKey.JOIN_GROUP,
        lambda m: join_of(GROUP, protocol_type="connect"),
        E.INCONSISTENT_GROUP_PROTOCOL,
    ),
    "a join with an id that nobody gave out": (
        ApiKey.JOIN_GROUP,
        lambda m: join_of(GROUP, member_id="who"),
        E.UNKNOWN_MEMBER_ID,
    ),
    "a join into a group that is not there, with an id": (
        ApiKey.JOIN_GROUP,
        lambda m: join_of("none", member_id=m.member_id),
        E.UNKNOWN_MEMBER_ID,
    ),
    "a group without a name": (
        ApiKey.JOIN_GROUP,
        lambda m: join_of(""),
        E.INVALID_GROUP_ID,
    ),
    "a group's name of 32 KB": (
        ApiKey.JOIN_GROUP,
        lambda m: join_of("g" * 32_768),
        E.INVALID_GROUP_ID,
    ),
    "an instance's name of 10 KB": (
        ApiKey.JOIN_GROUP,
        lambda m: join_of(GROUP, instance_id="i" * 10_240),
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


async def test_a_member_that_speaks_noise_is_given_nothing(
    broker: BrokerProcess, member: Member
) -> None:
    """The leader of a group cannot read what such a member wants; the others keep their parts."""

    def join_with_noise() -> bytes:
        with Wire(broker.address) as wire:
            joined = join(wire, "odd", protocols=(GroupProtocol(STRATEGY, NOISE),))
            sync = SyncGroupRequest("odd", joined.generation, joined.member_id)
            return wire.call(ApiKey.SYNC_GROUP, sync).assignment

    options = {"group_id": "odd", "heartbeat_interval_ms": 100, "auto_offset_reset": "earliest"}
    with trio.fail_after(SOON_S):
        async with Consumer(broker.address, **options) as consumer, trio.open_nursery() as nursery:
            await consumer.subscribe(TOPIC)
            assert await consumer.poll()
            nursery.start_soon(consumer.poll)
            assigned = await trio.to_thread.run_sync(join_with_noise)
            assert consumer.assignment == [TopicPartition(TOPIC, 0)]
            nursery.cancel_scope.cancel()
    assert decode_assignment(assigned).partitions == ()
