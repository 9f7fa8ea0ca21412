"""Producer states: rows PID-01 to PID-14 that concern the log's memory, and algorithm A14."""

import logging
import random

import pytest
from crc32c import crc32c

from minibroker.broker.errors import Refused
from minibroker.broker.log.producers import AppendedBatch, ProducerStates, SnapshotError
from minibroker.protocol.constants import SEQUENCE_MAX, ErrorCode
from minibroker.protocol.records.batch import BatchHeader

DAY_MS = 86_400_000
NOW = 1_700_000_000_000


def batch(sequence, count=1, *, epoch=0, offset=0, producer_id=1, attributes=0):
    """The header of a batch of `count` records."""
    return BatchHeader(
        base_offset=offset,
        batch_length=100,
        leader_epoch=0,
        magic=2,
        crc=0,
        attributes=attributes,
        last_offset_delta=count - 1,
        base_timestamp=5,
        max_timestamp=1000 + offset,
        producer_id=producer_id,
        producer_epoch=epoch,
        base_sequence=sequence,
        record_count=count,
    )


def states_after(*headers: BatchHeader, now_ms: int = NOW) -> ProducerStates:
    states = ProducerStates(DAY_MS)
    for header in headers:
        assert states.check(header) is None
        states.update(header, now_ms)
    return states


def refusal(states: ProducerStates, header: BatchHeader) -> ErrorCode:
    before = states.dump()
    with pytest.raises(Refused) as caught:
        states.check(header)
    assert states.dump() == before, "a refusal changes nothing"
    assert caught.value.message
    return caught.value.code


def test_sequences_follow_each_other():
    """PID-01: 0 first, then last + 1; anything else is OUT_OF_ORDER and changes nothing."""
    states = states_after(batch(0, 5), batch(5, 3, offset=5))
    assert states.check(batch(8, 2)) is None
    for sequence in (9, 7, 100, 1):
        assert refusal(states, batch(sequence, 4)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_a_batch_without_a_producer_is_not_judged():
    """Plain batches pass and leave nothing behind."""
    states = ProducerStates(DAY_MS)
    header = batch(-1, 3, epoch=-1, producer_id=-1, offset=4)
    assert states.check(header) is None
    states.update(header, NOW)
    assert len(states) == 0
    assert states.map_end_offset == 7


def test_the_last_five_batches_are_recognised():
    """PID-02: any of them sent again, in any order, gives its first offsets and time."""
    sent = [batch(n * 3, 3, offset=100 + n * 3) for n in range(5)]
    states = states_after(*sent)
    for index in (4, 0, 2, 3, 1, 0):
        again = sent[index]._replace(base_offset=0, max_timestamp=9)
        first = 100 + index * 3
        found = states.check(again)
        assert found == AppendedBatch(index * 3, index * 3 + 2, first, first + 2, 1000 + first)


def test_the_sixth_batch_back_is_out_of_order():
    """A14.5: a late repetition of an older batch is refused, never written again."""
    states = states_after(*(batch(n, offset=n) for n in range(6)))
    assert refusal(states, batch(0)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert states.check(batch(1)) is not None


def test_a_repetition_has_exactly_the_same_sequences():
    """A14.1: the same first sequence with another count is no duplicate."""
    states = states_after(batch(0, 5))
    assert refusal(states, batch(0, 4)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert refusal(states, batch(0, 6)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_an_old_epoch_is_fenced():
    """PID-06: a lower epoch from a client is INVALID_PRODUCER_EPOCH, whatever its sequence."""
    states = states_after(batch(0, epoch=3))
    for sequence in (0, 1, 7):
        assert refusal(states, batch(sequence, epoch=2)) == ErrorCode.INVALID_PRODUCER_EPOCH


def test_an_old_epoch_from_the_leader_is_accepted(caplog):
    """PID-06: the same from replication is taken over, with a warning."""
    states = states_after(batch(0, epoch=3))
    with caplog.at_level(logging.WARNING):
        states.update_from_replica(batch(9, epoch=2, offset=1), NOW)
    assert "goes back from epoch 3 to 2" in caplog.text
    assert states.check(batch(10, epoch=2)) is None


def test_a_new_epoch_starts_at_zero():
    """PID-07: it must start at 0; then the old batches are dropped and the old epoch fenced."""
    states = states_after(batch(0, 2, epoch=1))
    assert refusal(states, batch(2, epoch=2)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    header = batch(0, 2, epoch=2, offset=2)
    assert states.check(header) is None, "the same sequences as in epoch 1 are no duplicate"
    states.update(header, NOW)
    entry = states.get(1)
    assert entry is not None
    assert [found.first_offset for found in entry.batches] == [2]
    assert refusal(states, batch(2, epoch=1)) == ErrorCode.INVALID_PRODUCER_EPOCH
    assert states.check(batch(2, epoch=2)) is None


@pytest.mark.parametrize("sequence", [0, 1, SEQUENCE_MAX])
def test_an_unknown_producer_begins_anywhere(sequence: int):
    """PID-09: in any epoch; from there on the numbers must follow, and a new epoch begins at 0."""
    states = ProducerStates(DAY_MS)
    first = batch(sequence, epoch=5)
    assert states.check(first) is None
    states.update(first, NOW)
    assert states.check(first) is not None
    assert refusal(states, batch(7, epoch=5)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert refusal(states, batch(1, epoch=6)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert states.check(batch(0, epoch=6)) is None


def test_a_known_producer_without_batches_expects_zero():
    """A14.4: after nothing but a control marker, 0 comes next, and else OUT_OF_ORDER."""
    states = ProducerStates(DAY_MS)
    states.update_from_replica(batch(-1, epoch=4, attributes=0x30), NOW)
    assert refusal(states, batch(1, epoch=4)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert states.check(batch(0, epoch=4)) is None
    entry = states.get(1)
    assert entry is not None
    assert entry.batches == [], "a marker is no batch that could be sent again"


def test_a_follower_takes_over_what_the_leader_wrote():
    """PID-10: gaps and repeats are accepted from the leader, the last sequence counts."""
    states = states_after(batch(0, 3))
    states.update_from_replica(batch(50, 10, offset=3), NOW)
    states.update_from_replica(batch(50, 10, offset=13), NOW)
    assert states.check(batch(60)) is None
    assert states.map_end_offset == 23


def test_sequences_wrap_to_zero():
    """A14: after 2147483647 comes 0, inside a batch and between two."""
    states = ProducerStates(DAY_MS)
    states.update_from_replica(batch(SEQUENCE_MAX - 3, 3), NOW)
    assert states.check(batch(SEQUENCE_MAX)) is None
    across = batch(SEQUENCE_MAX, 4, offset=3)
    states.update(across, NOW)
    assert states.check(across) == AppendedBatch(SEQUENCE_MAX, 2, 3, 6, 1003)
    assert states.check(batch(3)) is None
    assert refusal(states, batch(4)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    exactly = ProducerStates(DAY_MS)
    exactly.update_from_replica(batch(SEQUENCE_MAX, 1), NOW)
    assert exactly.check(batch(0)) is None
    assert refusal(exactly, batch(1)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_expiry_counts_from_the_last_append():
    """PID-12: an entry expires by the wall time of its last append, not by record timestamps."""
    states = states_after(batch(0), now_ms=NOW)
    states.update(batch(1, offset=1), NOW + 500)
    last_ms = NOW + 500
    assert states.expire(last_ms + DAY_MS - 1) == 0
    assert refusal(states, batch(3)) == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    assert states.expire(last_ms + DAY_MS) == 1
    assert len(states) == 0
    assert states.check(batch(3)) is None


def test_an_append_forgets_no_producer():
    """PID-12: an idle producer is known until the timer removes it, as in Kafka. The wall clock
    may have jumped, and a repeated batch would be stored again."""
    states = states_after(batch(0, 2), batch(2, 2, offset=2))
    states.update(batch(4, 2, offset=4), NOW + 5 * DAY_MS)
    assert states.check(batch(0, 2)) == AppendedBatch(0, 1, 0, 1, 1000)


def test_a_clock_that_steps_back_expires_nobody():
    """PID-12: a last append in the future is recent."""
    states = states_after(batch(0))
    assert states.expire(NOW - 10 * DAY_MS) == 0
    assert states.check(batch(1)) is None


def random_states(seed: int, producers: range = range(20)) -> ProducerStates:
    rng = random.Random(seed)
    states = ProducerStates(DAY_MS)
    offset = 0
    for producer_id in producers:
        epoch = rng.randrange(5)
        for sequence in range(rng.randint(0, 9)):
            header = batch(sequence, epoch=epoch, offset=offset, producer_id=producer_id)
            states.update(header, NOW + offset)
            offset += 1
    states.update_from_replica(batch(-1, producer_id=99, attributes=0x30, offset=offset), NOW)
    return states


def test_a_snapshot_gives_the_same_state():
    """PID-13: what was dumped is loaded, with all five batches, and equal states dump equal."""
    states = random_states(3)
    data = states.dump()
    again = ProducerStates(DAY_MS)
    again.load(data)
    assert again.dump() == data
    assert again.map_end_offset == states.map_end_offset
    assert len(again) == len(states)
    for producer_id in (*range(20), 99):
        before, after = states.get(producer_id), again.get(producer_id)
        assert (before is None) == (after is None)
        if before is not None and after is not None:
            assert (before.epoch, before.batches) == (after.epoch, after.batches)
            assert before.last_append_ms == after.last_append_ms


def test_equal_states_are_equal_bytes():
    """PID-13: the order in which producers came does not show in a snapshot."""
    one, other = ProducerStates(DAY_MS), ProducerStates(DAY_MS)
    for producer_id in (1, 2, 3):
        one.update(batch(0, producer_id=producer_id), NOW)
    for producer_id in (2, 1, 3):
        other.update(batch(0, producer_id=producer_id), NOW)
    assert one.dump() == other.dump()


def test_what_expired_while_the_broker_was_down_is_loaded_and_goes():
    """PID-12: the timer removes it, as in a broker that runs."""
    states = states_after(batch(0), now_ms=NOW)
    states.update(batch(0, producer_id=2), NOW + 10)
    again = ProducerStates(DAY_MS)
    again.load(states.dump())
    assert again.expire(NOW + DAY_MS) == 1
    assert again.get(1) is None
    assert again.get(2) is not None


def test_a_damaged_snapshot_is_refused():
    """PID-14: any cut and any flipped bit raises, and changes nothing."""
    data = random_states(4, range(3)).dump()
    target = states_after(batch(0, producer_id=77))
    before = target.dump()
    damaged = [data[:size] for size in range(len(data))] + [data + b"\0", bytes(len(data))]
    for position in range(len(data)):
        flipped = bytearray(data)
        flipped[position] ^= 4
        damaged.append(bytes(flipped))
    for bad in damaged:
        with pytest.raises(SnapshotError):
            target.load(bad)
    assert target.dump() == before


def test_a_snapshot_with_more_than_it_names_is_refused():
    """PID-14: bytes behind the last entry are damage, even under a good checksum."""
    data = bytearray(random_states(4).dump() + b"more")
    data[2:6] = crc32c(data[6:]).to_bytes(4, "big")
    with pytest.raises(SnapshotError, match="behind"):
        ProducerStates(DAY_MS).load(bytes(data))


def test_clearing_starts_a_replay():
    """A14: before a rebuild everything is forgotten, and the state follows from an offset."""
    states = states_after(batch(0))
    states.clear(40)
    assert len(states) == 0
    assert states.map_end_offset == 40


def test_a_replay_gives_the_state_of_the_append():
    """PID-13: recovery from the log's batches reaches what the leader had."""
    rng = random.Random(11)
    headers, next_sequence = [], {}
    for offset in range(200):
        producer_id = rng.randrange(4)
        sequence = next_sequence.get(producer_id, 0)
        next_sequence[producer_id] = sequence + 1
        headers.append(batch(sequence, offset=offset, producer_id=producer_id))
    leader, recovered = states_after(*headers), ProducerStates(DAY_MS)
    for header in headers:
        recovered.update_from_replica(header, NOW)
    assert recovered.dump() == leader.dump()
