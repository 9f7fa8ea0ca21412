"""A group with one member, which must not notice what others do wrong; on the wire, as it is.

The member is no client of ours: it sends what it is told, and a test may hold any of its requests
to the answer.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from minibroker.protocol.constants import ACKS_ALL, ApiKey, ErrorCode
from minibroker.protocol.messages.group_offsets import (
    GroupPartition,
    OffsetCommitRequest,
    OffsetFetchRequest,
    PartitionCommit,
)
from minibroker.protocol.messages.groups import (
    FindCoordinatorRequest,
    GroupProtocol,
    HeartbeatRequest,
    JoinGroupRequest,
    MemberAssignment,
    SyncGroupRequest,
)
from minibroker.protocol.messages.produce import PartitionProduce, ProduceRequest
from minibroker.protocol.messages.topics import CreateTopicsRequest, NewTopic
from minibroker.protocol.records.record import encode_batch
from minibroker.protocol.subscription import Subscription, encode_subscription
from tests.support.wire import Wire

TOPIC = "of-sound-groups"  # with one partition and one record
COMMITTED = 1  # by the member
PROTOCOLS = (GroupProtocol("range", encode_subscription(Subscription((TOPIC,)))),)
SESSION_MS = 600_000


class Member(NamedTuple):
    """Alone in its group; `wire` is its connection."""

    wire: Wire
    group_id: str
    member_id: str
    generation: int

    def goes_on(self) -> None:
        """It is still a member, and what it has committed is there."""
        beat = HeartbeatRequest(self.group_id, self.generation, self.member_id)
        assert self.wire.call(ApiKey.HEARTBEAT, beat).error == ErrorCode.NONE
        asked = OffsetFetchRequest(self.group_id, (GroupPartition(TOPIC, 0),))
        [told] = self.wire.call(ApiKey.OFFSET_FETCH, asked).partitions
        assert (told.error, told.offset) == (ErrorCode.NONE, COMMITTED)


def join_of(group_id: str, member_id: str = "", **changes: Any) -> JoinGroupRequest:
    """A JOIN that is right, but for the changes."""
    asked = {
        "group_id": group_id,
        "member_id": member_id,
        "session_timeout_ms": SESSION_MS,
        "rebalance_timeout_ms": 1000,
        "protocols": PROTOCOLS,
    }
    return JoinGroupRequest(**(asked | changes))


def join(wire: Wire, group_id: str, **changes: Any) -> Any:
    """The answer to who joins in both steps."""
    while True:
        told = wire.call(ApiKey.JOIN_GROUP, join_of(group_id, **changes))
        if told.error == ErrorCode.MEMBER_ID_REQUIRED:
            break
        assert told.error == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    joined = wire.call(ApiKey.JOIN_GROUP, join_of(group_id, told.member_id, **changes))
    assert joined.error == ErrorCode.NONE
    return joined


def make_topic(wire: Wire) -> None:
    """That of all sound groups, with its record, unless it is there."""
    create = CreateTopicsRequest((NewTopic(TOPIC, 1),))
    if wire.call(ApiKey.CREATE_TOPICS, create).topics[0].error == ErrorCode.NONE:
        batch = encode_batch([(1, None, b"value", [])])
        produce = ProduceRequest(ACKS_ALL, 1000, (PartitionProduce(TOPIC, 0, batch),))
        assert wire.call(ApiKey.PRODUCE, produce).partitions[0].error == ErrorCode.NONE


@contextmanager
def sound_group(address: str, group_id: str) -> Iterator[Member]:
    """Of one broker; the member has its assignment and has committed."""
    with Wire(address) as wire:
        make_topic(wire)
        found = wire.call(ApiKey.FIND_COORDINATOR, FindCoordinatorRequest(group_id))
        assert found.error == ErrorCode.NONE
        joined = join(wire, group_id)
        member = Member(wire, group_id, joined.member_id, joined.generation)
        part = (MemberAssignment(member.member_id),)
        sync = SyncGroupRequest(group_id, member.generation, member.member_id, assignments=part)
        assert wire.call(ApiKey.SYNC_GROUP, sync).error == ErrorCode.NONE
        partition = PartitionCommit(TOPIC, 0, COMMITTED)
        commit = OffsetCommitRequest(
            group_id, member.generation, member.member_id, None, (partition,)
        )
        assert wire.call(ApiKey.OFFSET_COMMIT, commit).partitions[0].error == ErrorCode.NONE
        yield member
