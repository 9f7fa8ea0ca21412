"""LIST_OFFSETS and OFFSETS_FOR_LEADER_EPOCH through their handlers (row FET-13, R9)."""

from minibroker.broker.server.handlers import offsets
from minibroker.broker.turns import without_pause
from minibroker.protocol.constants import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, ErrorCode
from minibroker.protocol.messages.offsets import (
    ListOffsetsRequest,
    OffsetsForLeaderEpochRequest,
    PartitionEpoch,
    PartitionEpochEnd,
    PartitionListOffsets,
    PartitionOffset,
)
from tests.unit.node import Node, batch_of, state_of

INCONSISTENT = ErrorCode.INCONSISTENT_TOPIC_ID


def list_offset(
    node: Node, timestamp: int, *, leader_epoch: int = -1, replica_id: int = -1, now: float = 0.0
) -> PartitionOffset:
    asked = PartitionListOffsets("t", 0, timestamp, leader_epoch)
    request = ListOffsetsRequest(replica_id, (asked,))
    return offsets.list_offsets(node.services, request, now).partitions[0]


def epoch_end(node: Node, epoch: int, leader_epoch: int = -1) -> PartitionEpochEnd:
    request = OffsetsForLeaderEpochRequest(-1, (PartitionEpoch("t", 0, epoch, leader_epoch),))
    turns = offsets.offsets_for_leader_epoch(node.services, request, 0.0)
    return without_pause(turns).partitions[0]


def append(node: Node, count: int, time_ms: int = 1_000) -> None:
    node.partition().append_as_leader(batch_of(count, time_ms=time_ms), 1, 0.0, 1_000)


def test_latest_and_earliest() -> None:
    """FET-13: latest is the high watermark for consumers, the log end for followers."""
    node = Node()
    node.lead(state_of(epochs=(3, 0), isr=(1, 2), replicas=(1, 2)))
    append(node, 5)
    node.followed(2, 2)
    assert list_offset(node, LATEST_TIMESTAMP) == PartitionOffset("t", 0, 0, -1, 2, 3)
    assert list_offset(node, LATEST_TIMESTAMP, replica_id=2).offset == 5
    assert list_offset(node, EARLIEST_TIMESTAMP) == PartitionOffset("t", 0, 0, -1, 0, 3)


def test_who_was_left_by_its_followers_tells_no_consumer_its_end() -> None:
    """As in a fetch: a leader whose session may have ended, and of which no follower in sync has
    asked anything for longer than a session and a follower's wait, may have been replaced, and the
    log may have gone on at another."""
    node = Node()
    node.lead(state_of(isr=(1, 2), replicas=(1, 2)))
    append(node, 5)
    node.followed(2, 5)
    config = node.services.config
    left_at = (config.broker_session_timeout_ms + config.replica_fetch_wait_max_ms) / 1000 + 0.1
    assert list_offset(node, LATEST_TIMESTAMP, now=left_at).offset == 5
    node.broker_epoch += 1  # it registered again, and was not told of its roles yet
    assert list_offset(node, LATEST_TIMESTAMP, now=left_at).error
    node.lead(state_of(isr=(1, 2), replicas=(1, 2)))
    assert list_offset(node, LATEST_TIMESTAMP, now=left_at).offset == 5
    node.controller.is_session_over = True
    assert list_offset(node, LATEST_TIMESTAMP, now=left_at - 0.2).offset == 5
    for timestamp in (LATEST_TIMESTAMP, EARLIEST_TIMESTAMP, 0):
        error = list_offset(node, timestamp, now=left_at).error
        assert error == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert list_offset(node, LATEST_TIMESTAMP, now=left_at, replica_id=2).offset == 5


def test_another_topic_of_the_same_name_is_not_meant() -> None:
    """RM-11: who has learnt of a topic that was made anew is told nothing about the deleted one."""
    node = Node()
    node.lead()
    append(node, 5)
    for topic_id, error in ((b"", 0), (node.partition().topic_id, 0), (b"n" * 16, INCONSISTENT)):
        asked = PartitionListOffsets("t", 0, LATEST_TIMESTAMP, topic_id=topic_id)
        [found] = offsets.list_offsets(
            node.services, ListOffsetsRequest(partitions=(asked,)), 0.0
        ).partitions
        assert (found.error, found.offset) == (error, -1 if error else 5)


def test_by_time() -> None:
    """The first record of a time or later, below the high watermark; -1 where there is none."""
    node = Node()
    node.lead()
    for time_ms in (1_000, 2_000, 3_000):
        append(node, 2, time_ms)
    assert list_offset(node, 1_500) == PartitionOffset("t", 0, 0, 2_000, 2, 0)
    assert list_offset(node, 3_001) == PartitionOffset("t", 0)
    assert list_offset(node, -3).error == ErrorCode.INVALID_REQUEST


async def test_a_new_leader_does_not_send_consumers_back() -> None:
    """R9: as long as the high watermark is below the term's start, latest is not available."""
    node = Node()
    node.lead(state_of(isr=(1, 2), replicas=(1, 2)))
    append(node, 5)
    node.lead(state_of(epochs=(1, 1), isr=(1, 2), replicas=(1, 2)))
    assert list_offset(node, LATEST_TIMESTAMP).error == ErrorCode.OFFSET_NOT_AVAILABLE
    assert list_offset(node, 9_999).error == ErrorCode.OFFSET_NOT_AVAILABLE
    assert list_offset(node, EARLIEST_TIMESTAMP).offset == 0
    node.followed(2, 5)
    assert list_offset(node, LATEST_TIMESTAMP).offset == 5


def test_epochs_of_the_asker_are_checked() -> None:
    """FET-05 holds here too."""
    node = Node()
    node.lead(state_of(epochs=(3, 0)))
    fenced, unknown = ErrorCode.FENCED_LEADER_EPOCH, ErrorCode.UNKNOWN_LEADER_EPOCH
    assert list_offset(node, LATEST_TIMESTAMP, leader_epoch=2).error == fenced
    assert list_offset(node, LATEST_TIMESTAMP, leader_epoch=4).error == unknown
    assert epoch_end(node, 3, leader_epoch=2).error == fenced
    assert epoch_end(node, 3, leader_epoch=4).error == unknown
    assert list_offset(Node(), LATEST_TIMESTAMP).error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert epoch_end(Node(), 3).error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_where_an_epoch_ended() -> None:
    """EPO-01 to EPO-05 through the request: end of the largest epoch not above the asked one."""
    node = Node()
    node.lead(state_of(epochs=(2, 0)))
    append(node, 3)
    node.lead(state_of(epochs=(4, 1)))
    append(node, 2)
    assert epoch_end(node, 2) == PartitionEpochEnd("t", 0, 0, 2, 3)
    assert epoch_end(node, 3) == PartitionEpochEnd("t", 0, 0, 2, 3)
    assert epoch_end(node, 4) == PartitionEpochEnd("t", 0, 0, 4, 5)
    assert epoch_end(node, 5) == PartitionEpochEnd("t", 0, 0, -1, -1)
