"""DELETE_RECORDS at the leader: what is refused, and what an answer waits for."""

import math
from typing import Any

import pytest

from minibroker.broker.log.checkpoints import LOG_STARTS
from minibroker.broker.replication.purgatory import Parked
from minibroker.broker.replication.roles import FollowerFetch
from minibroker.broker.server.handlers import delete_records
from minibroker.protocol.constants import OFFSETS_TOPIC, ErrorCode
from minibroker.protocol.messages.delete_records import (
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    PartitionDeleteRecords,
    PartitionRecordsDeleted,
)
from minibroker.protocol.messages.fetch import FetchResponse
from minibroker.protocol.records.record import encode_batch
from minibroker.protocol.types import TopicPartition
from minibroker.testing.disk import Tail
from tests.unit.node import ROOT, T0, Node, batch_of, state_of
from tests.unit.server.fetching import answer, append, ask, waits, want


def begin_to_delete(node: Node, offset: int, name: TopicPartition = T0, **more: Any) -> Any:
    """The outcome of a request for one partition, before the checkpoint is written."""
    request = DeleteRecordsRequest((PartitionDeleteRecords(*name, offset, **more),), 1_000)
    return delete_records.handle(node.services, request, 0.0)


def delete(node: Node, offset: int, name: TopicPartition = T0, **more: Any) -> Any:
    """The outcome of a request for one partition, once the checkpoint is written."""
    outcome = begin_to_delete(node, offset, name, **more)
    if not isinstance(outcome, Parked):
        return outcome
    write_log_starts(node)
    response = outcome.attempt(0.0)
    return outcome if response is None else response


def write_log_starts(node: Node) -> None:
    """As the task does that writes the checkpoint."""
    raises = node.replicas.log_starts.begin()
    node.replicas.log_starts.end(raises, is_written=node.manager.checkpoint_log_starts())


def answered(outcome: Any) -> PartitionRecordsDeleted:
    assert isinstance(outcome, DeleteRecordsResponse)
    (only,) = outcome.partitions
    return only


def fetched(node: Node, replica_id: int, offset: int, log_start: int) -> None:
    """A follower fetched, and said where its log starts."""
    fetch = FollowerFetch(replica_id, offset, log_start, 1)
    node.replicas.record_fetch(node.partition(), fetch, 0.0)


def replicated(*isr: int) -> Node:
    """Ten records, all committed, led by broker 1; 2 has them too, and 3 if it is in sync."""
    node = Node()
    node.live(1, 2, 3)
    node.lead(state_of(isr=isr or (1, 2, 3), replicas=(1, 2, 3)))
    append(node, *[batch_of() for _ in range(10)])
    fetched(node, 2, 10, 0)
    fetched(node, 3, 9 if isr else 10, 0)
    assert node.partition().high_watermark == 10
    return node


def alone() -> Node:
    """Ten records in one batch, on broker 1 only."""
    node = Node()
    node.lead()
    append(node, batch_of(10))
    return node


def test_a_leader_alone_answers_at_once() -> None:
    """The log starts at the offset, also inside a batch; what is below cannot be read."""
    node = alone()
    assert answered(delete(node, 4)) == PartitionRecordsDeleted("t", 0, low_watermark=4)
    assert node.partition().log.log_start == 4
    assert answer(node, want(3)).error == ErrorCode.OFFSET_OUT_OF_RANGE
    assert answer(node, want(4)).log_start == 4


def test_minus_one_means_all_that_is_committed() -> None:
    """The next record is the first one."""
    node = alone()
    assert answered(delete(node, -1)).low_watermark == 10
    append(node, batch_of())
    assert (node.partition().log.log_start, node.partition().log.log_end) == (10, 11)


def test_what_is_deleted_already_stays_so() -> None:
    """An offset below the log start changes nothing; the answer names the log start."""
    node = alone()
    delete(node, 7)
    assert answered(delete(node, 3)) == PartitionRecordsDeleted("t", 0, low_watermark=7)


@pytest.mark.parametrize("offset", [-2, 10, 11])
def test_nothing_above_the_high_watermark_is_deleted(offset: int) -> None:
    """What is not committed is OFFSET_OUT_OF_RANGE, and so is no offset."""
    node = Node()
    node.live(1, 2)
    node.lead(state_of(isr=(1, 2), replicas=(1, 2)))
    append(node, batch_of(10))
    fetched(node, 2, 9, 0)
    assert answered(delete(node, offset)).error == ErrorCode.OFFSET_OUT_OF_RANGE
    assert node.partition().log.log_start == 0


def test_who_cannot_delete_says_why() -> None:
    """Groups' offsets, unknown partitions, another topic of the name, a follower."""
    node = alone()
    offsets = TopicPartition(OFFSETS_TOPIC, 0)
    assert answered(delete(node, 1, offsets)).error == ErrorCode.INVALID_TOPIC_EXCEPTION
    unknown = answered(delete(node, 1, TopicPartition("u", 0)))
    assert unknown.error == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    other = answered(delete(node, 1, topic_id=b"o" * 16))
    assert other.error == ErrorCode.INCONSISTENT_TOPIC_ID
    node.apply(state_of(epochs=(1, 1), leader=2, isr=(2,), replicas=(1, 2)))
    assert answered(delete(node, 1)).error == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert node.partition().log.log_start == 0


@pytest.mark.parametrize(("policy", "error"), [("compact", 44), ("compact,delete", 0)])
def test_a_compacted_topic_keeps_its_records(policy: str, error: int) -> None:
    """Unless old ones are deleted there, too."""
    node = Node()
    node.lead(overrides={"cleanup.policy": policy})
    append(node, memoryview(encode_batch([(node.wall_time_ms, b"k", b"v", ())] * 10)))
    assert answered(delete(node, 5)).error == error


def test_a_new_leader_that_does_not_know_what_is_committed_says_so() -> None:
    """Its high watermark may be below what its predecessor had committed."""
    node = Node()
    node.live(1, 2)
    node.lead(state_of(isr=(1, 2), replicas=(1, 2)))
    append(node, batch_of(10))
    fetched(node, 2, 4, 0)
    node.apply(state_of(epochs=(2, 2), isr=(1, 2), replicas=(1, 2)))
    for offset in (-1, 5):
        assert answered(delete(node, offset)).error == ErrorCode.OFFSET_NOT_AVAILABLE
    assert node.partition().log.log_start == 0


def test_a_leader_that_may_have_been_replaced_calls_no_offset_out_of_range() -> None:
    """The next leader may have committed more. It may be elected before a broker that has
    registered again is told of it, too."""
    node = alone()
    node.controller.is_session_over = True
    assert answered(delete(node, 11)).error == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert answered(delete(node, 9)).low_watermark == 9
    node.controller.is_session_over = False
    assert answered(delete(node, 11)).error == ErrorCode.OFFSET_OUT_OF_RANGE
    node.broker_epoch += 1
    assert answered(delete(node, 11)).error == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert answered(delete(node, 10)).low_watermark == 10


def test_every_replica_that_may_lead_is_waited_for() -> None:
    """Those in sync, and those that live; not one that is down and out of sync."""
    node = replicated(1, 2)
    waiting = delete(node, 6)
    assert isinstance(waiting, Parked)
    assert node.partition().log.log_start == 6
    assert waiting.attempt(0.1) is None
    fetched(node, 2, 10, 6)
    assert waiting.attempt(0.2) is None
    node.live(1, 2)
    assert answered(waiting.attempt(0.3)).low_watermark == 6
    waiting = delete(replicated(), 6)
    assert answered(waiting.expire()).error == ErrorCode.REQUEST_TIMED_OUT
    assert answered(waiting.expire()).low_watermark == 0


def test_a_member_of_the_in_sync_set_is_waited_for_even_if_it_is_down() -> None:
    """It may return and lead before the controller takes it out."""
    node = replicated()
    node.live(1, 2)
    waiting = delete(node, 6)
    fetched(node, 2, 10, 6)
    assert waiting.attempt(0.1) is None
    node.apply(state_of(epochs=(0, 1), isr=(1, 2), replicas=(1, 2, 3)))
    assert answered(waiting.attempt(0.2)).low_watermark == 6


def test_another_leader_ends_the_wait() -> None:
    """The asker has to ask that one."""
    node = replicated()
    waiting = delete(node, 6)
    node.apply(state_of(epochs=(1, 1), leader=2, isr=(2, 3), replicas=(1, 2, 3)))
    assert answered(waiting.attempt(0.1)).error == ErrorCode.NOT_LEADER_OR_FOLLOWER


async def test_a_follower_s_word_wakes_the_request(autojump_clock: Any) -> None:
    """It need not wait for the deadline."""
    node = replicated(1, 2)
    node.live(1, 2)
    waiting = delete(node, 6)
    asked = ask(node, want(10, log_start=0), replica_id=2, session_epoch=0, wait_ms_max=0)
    assert isinstance(asked, FetchResponse)
    watched = node.purgatory.statistics()
    fetched(node, 2, 10, 6)
    assert answered(await node.purgatory.wait_for_answer(waiting)).error == 0
    assert node.purgatory.statistics() == watched


def test_followers_hear_of_it_at_once() -> None:
    """A waiting fetch of a follower is answered, in a session and without; a consumer's is not."""
    node = replicated()
    told = ask(node, want(10, log_start=0), replica_id=2, session_epoch=0, wait_ms_max=0)
    assert isinstance(told, FetchResponse)
    session = {"replica_id": 2, "session_id": told.session_id}
    waiting = waits(node, session_epoch=1, **session)
    alone = waits(node, want(10, log_start=0), replica_id=3)
    consumer = waits(node, want(10))
    delete(node, 6)
    for parked in (waiting, alone):
        done = parked.attempt(0.5)
        assert done is not None
        assert done.partitions[0].log_start == 6
    assert consumer.attempt(0.5) is None


def test_who_has_deleted_records_joins_the_in_sync_set() -> None:
    """A3.6: a replica that is at the end but starts below may bring records back, and may not."""
    node = replicated(1, 2)
    delete(node, 6)
    fetched(node, 3, 10, 5)
    assert node.isr_proposals.next_batch_nowait() == []
    fetched(node, 3, 10, 6)
    (proposal,) = node.isr_proposals.next_batch_nowait()
    assert proposal.pending.proposed == (1, 2, 3)


def test_a_crash_brings_nothing_back() -> None:
    """The log start is durable when the request is answered."""
    node = alone()
    delete(node, 4)
    node.files.power_off(Tail.LOST)
    assert b"\nt 0 4\n" in node.files.read_bytes(ROOT / LOG_STARTS)


def test_an_answer_waits_for_a_checkpoint_that_begins_after_it() -> None:
    """However long the disk takes: the deadline is for the followers. A write that has begun before
    may lack the log start."""
    other = TopicPartition("t", 1)
    node = Node()
    node.lead(state_of(), state_of(other))
    append(node, batch_of(10))
    append(node, batch_of(10), name=other)
    first = begin_to_delete(node, 4)
    assert first.attempt(0.0) is None
    assert first.deadline() == math.inf
    log_starts = node.replicas.log_starts
    raises = log_starts.begin()
    second = begin_to_delete(node, 5, other)
    log_starts.end(raises, is_written=True)
    assert answered(first.attempt(0.1)).low_watermark == 4
    assert second.attempt(0.1) is None
    write_log_starts(node)
    assert answered(second.attempt(0.2)).low_watermark == 5


def test_a_full_disk_is_told() -> None:
    """A log start that is not durable is not acknowledged."""
    node = alone()
    node.files.space_bytes = 0
    assert answered(delete(node, 4)).error == ErrorCode.KAFKA_STORAGE_ERROR
    assert answered(delete(node, 4)).error == ErrorCode.KAFKA_STORAGE_ERROR
    node.files.space_bytes = None
    assert answered(delete(node, 4)).low_watermark == 4
