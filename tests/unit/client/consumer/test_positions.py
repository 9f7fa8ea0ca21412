"""Positions: what is asked for next, what is returned, and what stops a partition."""

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minibroker.client.committed_offsets import OffsetAndMetadata
from minibroker.client.consumer.delivered_positions import DeliveredPositions
from minibroker.client.consumer.health import describe
from minibroker.client.consumer.positions import Positions
from minibroker.client.errors import (
    ClientError,
    CorruptRecords,
    LogTruncated,
    OffsetOutOfRange,
    PositionError,
)
from minibroker.client.options import ConsumerOptions, read_options
from minibroker.protocol.constants import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, ErrorCode
from minibroker.protocol.messages.fetch import PartitionFetch, PartitionFetched
from minibroker.protocol.records.batch import read_header, stamp, write_header
from minibroker.protocol.records.record import encode_batch
from minibroker.protocol.types import TopicPartition

A, B = TopicPartition("t", 0), TopicPartition("t", 1)


def make(*names: TopicPartition, at: int | None = 0, **options: object) -> Positions:
    """Positions of these partitions, all standing at one offset."""
    positions = Positions(read_options(ConsumerOptions, "h:1", options))
    positions.assign(names)
    for name in names:
        if at is not None:
            positions.seek(name, at)
    return positions


def batch(base: int, count: int, control: bool = False) -> bytes:
    """A stored batch whose values are their offsets."""
    made = encode_batch([(0, None, b"%d" % (base + i), ()) for i in range(count)])
    if control:
        made[22] |= 0x20
    stamp(made, base, 0)
    return bytes(made)


def plan(positions: Positions, now: float = 0.0) -> dict[TopicPartition, PartitionFetch]:
    """What is asked of a broker that leads everything."""
    wanted, _ = positions.plan(lambda _: 0, now)
    return {TopicPartition(each.topic, each.partition): each for each in wanted}


def fetched(positions: Positions, name: TopicPartition, *batches: bytes, **more: Any) -> bool:
    """The answer to what would be asked now."""
    asked = plan(positions)[name]
    answer = PartitionFetched(*name, records=b"".join(batches), **more)
    return positions.handle_answer(asked, answer, 0.0)


def offsets(positions: Positions, count: int = 100) -> list[int]:
    """Take, and check that each record is the one of its offset."""
    records = positions.take_records(count)
    assert [record.value for record in records] == [b"%d" % record.offset for record in records]
    return [record.offset for record in records]


def test_the_position_after_a_batch_is_its_last_offset_plus_one() -> None:
    """CCO-01: also where the last records of the batch are gone, or it holds none for us."""
    positions = make(A, check_crcs=False)
    sparse = bytearray(batch(0, 3))
    sparse[23:27] = (9).to_bytes(4, "big")  # last offset delta: 3 to 9 were compacted away
    fetched(positions, A, bytes(sparse), batch(10, 1, control=True))
    assert offsets(positions, 3) == [0, 1, 2]
    assert positions.position(A) == 10
    assert positions.take_records(1) == []
    assert positions.position(A) == 11
    assert plan(positions)[A].fetch_offset == 11


def test_an_answer_that_was_under_way_does_not_hide_damage() -> None:
    """CCO-07: what was asked for behind a batch before it turned out to be damaged is dropped, and
    every poll raises until the application seeks."""
    positions = make(A)
    damaged = bytearray(batch(3, 1))
    damaged[-1] ^= 1
    fetched(positions, A, batch(0, 3), bytes(damaged))
    asked = plan(positions)[A]
    assert asked.fetch_offset == 4
    assert offsets(positions, 3) == [0, 1, 2]
    with pytest.raises(CorruptRecords):
        positions.take_records(1)
    positions.handle_answer(asked, PartitionFetched(*A, records=batch(4, 3)), 0.0)
    with pytest.raises(CorruptRecords, match="t-0 at offset 3"):
        positions.take_records(1)
    assert positions.position(A) == 3


def test_a_bit_that_passes_records_over_is_under_the_checksum() -> None:
    """CCO-07: the bit of control batches is not believed before the checksum is."""
    positions = make(A)
    fetched(positions, A, batch(0, 3, control=True))
    with pytest.raises(CorruptRecords, match="t-0 at offset 0: the checksum does not match"):
        positions.take_records(1)


@pytest.mark.parametrize(
    ("batches", "end", "shown"),
    [
        ([batch(0, 3), batch(4, 3), batch(6, 3)], 9, [0, 1, 2]),  # 3 to 5 rotted
        ([batch(0, 3), batch(1, 3), batch(6, 3)], 9, [0, 1, 2]),
        ([batch(0, 3), batch(3, 3), batch(6, 4)], 9, [0, 1, 2, 3, 4, 5]),
        ([batch(1 << 41, 3), batch(3, 3)], 6, []),
        ([batch(0, 3), batch(7, 2)], 9, [0, 1, 2, 7, 8]),  # compacted
    ],
)
def test_offsets_that_cannot_be_end_an_answer(batches, end, shown) -> None:
    """No checksum covers the offset of a batch: one that goes back, or ends above what the broker
    said is the end, is not shown, nor one behind a gap that is none. It is asked for again; where
    nothing comes before it, the partition stands."""
    positions = make(A)
    fetched(positions, A, *batches, high_watermark=end)
    if not shown:
        with pytest.raises(CorruptRecords, match="seek behind them"):
            positions.take_records(1)
        return
    assert offsets(positions) == shown
    assert positions.take_records(1) == []
    assert plan(positions)[A].fetch_offset == positions.position(A) == shown[-1] + 1


def test_records_below_the_asked_offset_are_dropped() -> None:
    """CCO-01: a broker sends whole batches, an application gets what it asked for."""
    positions = make(A, at=7)
    fetched(positions, A, batch(5, 5))
    assert offsets(positions) == [7, 8, 9]
    assert positions.position(A) == 10


def test_an_incomplete_batch_at_the_end_is_fetched_again() -> None:
    """What a size limit cut off is left for the next request."""
    positions = make(A)
    fetched(positions, A, batch(0, 3), batch(3, 3)[:-1])
    assert plan(positions)[A].fetch_offset == 3
    assert offsets(positions) == [0, 1, 2]
    assert positions.take_records(1) == []


@given(
    sizes=st.lists(st.integers(1, 6), min_size=1, max_size=8),
    counts=st.lists(st.integers(1, 9), min_size=1, max_size=40),
    unused=st.lists(st.integers(0, 5), min_size=1, max_size=5),
)
def test_every_record_comes_once_and_in_order(
    sizes: list[int], counts: list[int], unused: list[int]
) -> None:
    """However it is batched, taken and given back, the application sees 0, 1, 2, ..."""
    positions = make(A)
    seen: list[int] = []
    base = turn = 0
    while len(seen) < max(base, sum(sizes)):
        if base < sum(sizes) and A in plan(positions):
            size = sizes[turn % len(sizes)]
            fetched(positions, A, batch(base, size))
            base += size
        taken = positions.take_records(counts[turn % len(counts)])
        kept = max(len(taken) - unused[turn % len(unused)], min(1, len(taken)))
        positions.give_back(taken[kept:])
        seen += [record.offset for record in taken[:kept]]
        assert positions.position(A) == len(seen)
        turn += 1
    assert seen == list(range(base))


def test_a_seek_drops_what_was_fetched_and_what_is_under_way() -> None:
    """CCO-03: an answer to a request from before the seek does nothing."""
    positions = make(A)
    asked = plan(positions)[A]
    fetched(positions, A, batch(0, 3))
    positions.seek(A, 50)
    positions.handle_answer(asked, PartitionFetched(*A, records=batch(0, 3)), 0.0)
    gone = PartitionFetched(*A, error=ErrorCode.OFFSET_OUT_OF_RANGE)
    positions.handle_answer(asked, gone, 0.0)
    assert positions.take_records(10) == []
    assert (positions.position(A), plan(positions)[A].fetch_offset) == (50, 50)


@pytest.mark.parametrize(
    ("policy", "sentinel"), [("earliest", EARLIEST_TIMESTAMP), ("latest", LATEST_TIMESTAMP)]
)
def test_out_of_range_resets_by_policy(policy: str, sentinel: int) -> None:
    """CCO-03: what was fetched before is returned first, then the policy decides."""
    positions = make(A, auto_offset_reset=policy)
    fetched(positions, A, batch(0, 2))
    fetched(positions, A, error=ErrorCode.OFFSET_OUT_OF_RANGE)
    assert positions.unresolved(lambda _: 0, 0.0) == {}
    assert offsets(positions) == [0, 1]
    assert positions.take_records(1) == []
    [reset] = positions.unresolved(lambda _: 0, 0.0).values()
    assert reset.timestamp == sentinel
    positions.resolve(A, reset, 40)
    assert plan(positions)[A].fetch_offset == 40


def test_out_of_range_without_a_policy_is_raised_until_a_seek() -> None:
    """CCO-03: `none` leaves the choice to the application, and says where it stands."""
    positions = make(A, auto_offset_reset="none")
    fetched(positions, A, batch(0, 2))
    fetched(positions, A, error=ErrorCode.OFFSET_OUT_OF_RANGE)
    assert offsets(positions) == [0, 1]
    for _ in range(2):
        with pytest.raises(OffsetOutOfRange, match="t-0 at offset 2"):
            positions.take_records(1)
    positions.seek(A, 5)
    assert positions.take_records(1) == []


def test_without_a_policy_a_new_partition_needs_a_seek() -> None:
    """A consumer that may not choose where to begin says so, and is content with a seek."""
    positions = make(A, at=None, auto_offset_reset="none")
    with pytest.raises(OffsetOutOfRange, match="seek"):
        positions.take_records(1)
    positions.seek(A, 3)
    assert plan(positions)[A].fetch_offset == 3


@pytest.mark.parametrize(
    "code",
    [
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ],
)
def test_leadership_errors_have_metadata_renewed_and_are_tried_again(code: ErrorCode) -> None:
    """CCO-04: no error to the user, and no hot loop: a retry comes a little later."""
    positions = make(A)
    assert fetched(positions, A, error=code)
    assert positions.take_records(1) == []
    assert plan(positions) == {}
    retry_at = positions.next_retry(0.0)
    assert 0 < retry_at < 0.1
    assert plan(positions, retry_at)[A].fetch_offset == 0


def test_an_unknown_leader_epoch_is_only_tried_again() -> None:
    """CCO-04: the broker is behind, not the client's metadata."""
    positions = make(A)
    assert not fetched(positions, A, error=ErrorCode.UNKNOWN_LEADER_EPOCH)
    assert positions.next_retry(0.0) < math.inf


def test_a_corrupt_batch_stops_the_partition_until_a_seek() -> None:
    """CCO-07: good records before it are returned, then every poll raises and names the place."""
    positions = make(A, B)
    damaged = bytearray(batch(2, 2))
    damaged[-2] ^= 1
    fetched(positions, A, batch(0, 2), bytes(damaged), batch(4, 2))
    assert offsets(positions) == [0, 1]
    fetched(positions, B, batch(0, 1))
    for _ in range(3):
        with pytest.raises(CorruptRecords, match="t-0 at offset 2") as raised:
            positions.take_records(10)
        assert (raised.value.topic_partition, raised.value.offset) == (A, 2)
    assert A not in plan(positions)
    positions.seek(A, 4)
    fetched(positions, A, batch(4, 2))
    assert sorted(offsets(positions)) == [0, 4, 5]


@pytest.mark.parametrize("check_crcs", [True, False])
def test_what_a_producer_sent_is_told_from_damage(check_crcs: bool) -> None:
    """The checksum tells. An application can seek behind the batch, whose end the text names."""
    for is_damaged, said in ((False, "seek to offset 5 to go on"), (True, "bytes are damaged")):
        positions = make(A, check_crcs=check_crcs)
        bad = bytearray(batch(2, 3))
        bad[61:] = b"\xff" * (len(bad) - 61)
        write_header(bad, read_header(bad))
        if is_damaged:
            bad[-1] ^= 1
        fetched(positions, A, batch(0, 2), bytes(bad), batch(5, 2))
        assert offsets(positions) == [0, 1]
        with pytest.raises(CorruptRecords, match=f"t-0 at offset 2: .*{said}"):
            positions.take_records(10)
        positions.seek(A, 5)
        fetched(positions, A, batch(5, 2))
        assert offsets(positions) == [5, 6]


def test_bytes_that_are_no_batch_stop_the_partition() -> None:
    """CCO-07: neither garbage nor a lying length is skipped, nor asked for again and again."""
    lying = bytearray(batch(0, 1))
    lying[8:12] = (7).to_bytes(4, "big")
    for garbage in (b"garbage", bytes(lying)):
        positions = make(A)
        fetched(positions, A, garbage)
        with pytest.raises(CorruptRecords):
            positions.take_records(1)


def test_given_back_records_come_before_the_error() -> None:
    """CCO-07: what iteration had not handed out when the damage was found is not lost."""
    positions = make(A)
    damaged = bytearray(batch(3, 1))
    damaged[-2] ^= 1
    fetched(positions, A, batch(0, 3), bytes(damaged))
    taken = positions.take_records(10)
    positions.give_back(taken[1:])
    assert positions.position(A) == 1
    assert offsets(positions) == [1, 2]
    with pytest.raises(CorruptRecords, match="offset 3"):
        positions.take_records(1)


@pytest.mark.parametrize(("cut", "kept"), [(2, []), (4, [3])])
@pytest.mark.parametrize("policy", ["latest", "none"])
def test_records_of_a_log_that_was_cut_are_not_given_back(
    policy: str, cut: int, kept: list[int]
) -> None:
    """What was taken and not used goes back as far as the log still has it."""
    positions = make(A, auto_offset_reset=policy)
    fetched(positions, A, batch(0, 5), high_watermark=5)
    taken = positions.take_records(5)
    fetched(positions, A, diverging_epoch=0, diverging_end=cut)
    positions.give_back(taken[3:])
    if policy == "latest":
        fetched(positions, A, batch(cut, 5 - cut), high_watermark=5)
        assert offsets(positions) == [*kept, *range(cut, 5)]
    else:
        assert not kept or offsets(positions) == kept
        with pytest.raises(LogTruncated):
            positions.take_records(1)


def test_polls_that_fail_again_and_again_hold_no_more_memory() -> None:
    """As where a record cannot be deserialized, and each poll gives it back."""
    positions = make(A, B)
    for name in (A, B):
        fetched(positions, name, batch(0, 5), batch(5, 5))
    for _ in range(50):
        positions.give_back(positions.take_records(7))
    assert len(positions._turns) <= 3
    assert offsets(positions) == [*range(10), *range(10)]


def test_a_refusal_that_will_not_pass_is_raised() -> None:
    """An error that no retry heals reaches the application, also one of a newer broker."""
    for code in (ErrorCode.INVALID_REQUEST, 12345):
        positions = make(A)
        fetched(positions, A, error=code)
        with pytest.raises(PositionError, match="t-0 at offset 0"):
            positions.take_records(1)


def test_prefetch_is_bounded() -> None:
    """At most two answers wait for each partition, and fetch.max.bytes in all."""
    positions = make(A)
    fetched(positions, A, batch(0, 2))
    fetched(positions, A, batch(2, 2))
    assert plan(positions) == {}
    positions.is_changed = False
    assert offsets(positions, 2) == [0, 1]
    positions.take_records(1)
    assert positions.is_changed
    assert plan(positions)[A].fetch_offset == 4
    size = len(batch(0, 2))
    small = make(A, B, fetch_max_bytes=size)
    fetched(small, A, batch(0, 2))
    assert small.queued_bytes == size
    assert plan(small) == {}


def test_who_got_data_is_asked_for_last() -> None:
    """FET-11: a backlogged partition starves nobody, also in a full request."""
    positions = make(A, B)
    assert list(plan(positions)) == [A, B]
    fetched(positions, A, batch(0, 1))
    assert list(plan(positions)) == [B, A]


def test_a_paused_partition_keeps_its_place() -> None:
    """Paused means neither returned nor fetched; what was fetched before comes after it."""
    positions = make(A, B)
    fetched(positions, A, batch(0, 2))
    fetched(positions, B, batch(0, 1))
    positions.pause(A)
    assert [record.partition for record in positions.take_records(10)] == [1]
    assert list(plan(positions)) == [B]
    positions.resume(A)
    assert offsets(positions) == [0, 1]


def test_a_paused_partition_is_not_idle() -> None:
    """Nothing is asked of it, so nothing is late; also not right after the pause."""

    def idle_s() -> float | None:
        return describe(None, positions, delivered, 9.0).partitions[A].idle_s

    positions = make(A)
    delivered: DeliveredPositions[bytes, bytes] = DeliveredPositions(positions)
    fetched(positions, A, batch(0, 2))
    positions.take_records(1, now=5.0)
    positions.resume(A)
    assert idle_s() == 4.0
    positions.pause(A)
    assert idle_s() is None
    positions.resume(A)
    assert idle_s() is None
    positions.take_records(1, now=8.0)
    assert idle_s() == 1.0


def test_assignment_keeps_the_position_of_what_stays() -> None:
    """Partitions that stay go on, those that go are forgotten, even what was fetched of them."""
    positions = make(A, B)
    fetched(positions, A, batch(0, 2))
    fetched(positions, B, batch(0, 2))
    positions.take_records(1)
    positions.assign([A])
    assert offsets(positions) == [1]
    with pytest.raises(ClientError, match="t-1 is not assigned"):
        positions.position(B)


def test_a_chunk_does_not_keep_a_large_answer_in_memory() -> None:
    """A partition's few bytes are copied out of an answer that holds much of others."""
    positions = make(A)
    frame = batch(0, 1) + bytes(1000)
    asked = plan(positions)[A]
    view = memoryview(frame)[: len(batch(0, 1))]
    positions.handle_answer(asked, PartitionFetched(*A, records=view), 0.0)
    (fetch,) = positions._partitions[A].fetches
    assert fetch._data.obj is not frame
    assert offsets(positions) == [0]


def test_a_partition_begins_where_its_own_assignment_found_it() -> None:
    """The answer to a question of before it was let go, and given back, is of no use: another
    member may have read and committed more meanwhile."""
    positions = make(A, at=None, group_id="g")
    [before] = positions.awaiting_committed()
    positions.assign(())
    positions.assign((A,))
    positions.start_at(before, OffsetAndMetadata(5))
    assert positions.position(A) is None
    [now] = positions.awaiting_committed()
    positions.start_at(now, OffsetAndMetadata(9))
    assert (positions.position(A), positions.awaiting_committed()) == (9, [])


OLD, NEW = b"o" * 16, b"n" * 16


@pytest.mark.parametrize("at", [0, 3])
def test_an_answer_about_a_deleted_topic_is_dropped(at: int) -> None:
    """RM-11: the topic was made anew meanwhile, and what is asked for next is at the same offset
    as before: records of the old topic are not taken for the new one's."""
    positions = make(A, at=at)
    positions.update_topic_id("t", OLD)
    asked = plan(positions)[A]
    assert asked.topic_id == OLD
    positions.update_topic_id("t", NEW)
    assert plan(positions)[A] == replace(asked, topic_id=NEW, fetch_offset=0)
    positions.handle_answer(
        asked, PartitionFetched(*A, records=batch(at, 5), high_watermark=at + 5), 0.0
    )
    assert (positions.take_records(10), positions.high_watermark(A)) == ([], -1)
    assert plan(positions)[A].fetch_offset == 0


def test_records_of_a_deleted_topic_that_wait_are_dropped() -> None:
    """RM-11: fetched, and none returned yet: the next ones are the first of the new topic."""
    positions = make(A)
    positions.update_topic_id("t", OLD)
    fetched(positions, A, batch(0, 5))
    positions.update_topic_id("t", NEW)
    assert positions.take_records(10) == []
    assert plan(positions)[A].fetch_offset == 0


def test_an_error_of_a_deleted_topic_stops_nothing() -> None:
    """RM-11: neither one from before the topic was made anew, nor one that comes after."""
    positions = make(A)
    positions.update_topic_id("t", OLD)
    asked = plan(positions)[A]
    damaged = PartitionFetched(*A, error=ErrorCode.CORRUPT_MESSAGE)
    positions.handle_answer(asked, damaged, 0.0)
    positions.update_topic_id("t", NEW)
    positions.handle_answer(asked, damaged, 0.0)
    assert positions.take_records(1) == []
    assert plan(positions)[A].fetch_offset == 0


def test_what_was_committed_of_a_deleted_topic_is_not_gone_on_from() -> None:
    """RM-11: asked before the topic was made anew, answered after; it is asked again."""
    positions = make(A, at=None, group_id="g")
    positions.update_topic_id("t", OLD)
    [before] = positions.awaiting_committed()
    positions.pause(A)
    positions.update_topic_id("t", NEW)
    positions.start_at(before, OffsetAndMetadata(500))
    [now] = positions.awaiting_committed()
    assert (positions.position(A), now.is_paused) == (None, True)


def test_a_topic_that_is_let_go_is_forgotten() -> None:
    """One that is read again begins where the application says, whichever it is by then."""
    positions = make(A)
    positions.update_topic_id("t", OLD)
    positions.assign([])
    positions.assign([A])
    positions.seek(A, 3)
    positions.update_topic_id("t", NEW)
    assert positions.position(A) == 3


def test_an_answer_from_before_a_seek_to_the_end_is_dropped() -> None:
    """Where the end was before the application sought it the second time is not where it is now."""
    positions = make(A)
    positions.seek_to(A, LATEST_TIMESTAMP)
    [before] = positions.unresolved(lambda _: 0, 0.0).values()
    positions.seek(A, 0)
    positions.seek_to(A, LATEST_TIMESTAMP)
    positions.resolve(A, before, 40)
    assert positions.position(A) is None
    [now] = positions.unresolved(lambda _: 0, 0.0).values()
    positions.resolve(A, now, 50)
    assert positions.position(A) == 50


def test_an_answer_from_before_a_new_assignment_is_dropped() -> None:
    """A partition that was let go and assigned again begins at the end as it is then."""
    positions = make(A, at=None)
    [before] = positions.unresolved(lambda _: 0, 0.0).values()
    positions.assign(())
    positions.assign((A,))
    positions.resolve(A, before, 40)
    assert positions.position(A) is None


def test_a_refusal_from_before_a_seek_stops_nothing() -> None:
    """The broker would not tell the earliest offset; the application wants another one now."""
    positions = make(A)
    positions.seek_to(A, EARLIEST_TIMESTAMP)
    [before] = positions.unresolved(lambda _: 0, 0.0).values()
    positions.seek_to(A, LATEST_TIMESTAMP)
    positions.fail(A, before, ErrorCode.INVALID_REQUEST)
    assert positions.take_records(1) == []
    assert A in positions.unresolved(lambda _: 0, 0.0)


def test_where_the_logs_part_counts_for_what_was_read_only() -> None:
    """An answer says that the leader has lost what was read. A seek to the same offset meanwhile
    goes on there, and not below."""
    positions = make(A)
    fetched(positions, A, batch(0, 5))
    assert offsets(positions) == [0, 1, 2, 3, 4]
    asked = plan(positions)[A]
    assert (asked.fetch_offset, asked.last_fetched_epoch) == (5, 0)
    positions.seek(A, 5)
    parted = PartitionFetched(*A, diverging_epoch=0, diverging_end=2)
    positions.handle_answer(asked, parted, 0.0)
    assert positions.position(A) == 5
