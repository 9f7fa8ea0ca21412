"""Transactions in a log: the last stable offset, markers, and the aborted transactions."""

import struct

import pytest
from crc32c import crc32c

from minibroker.broker.errors import Refused
from minibroker.broker.log import log as log_module
from minibroker.broker.log.outcomes import LastKnownState
from minibroker.broker.log.producers import ProducerStates
from minibroker.broker.log.transaction_index import ABORTED_ENTRY, AbortedEntry
from minibroker.broker.turns import without_pause
from minibroker.protocol.constants import ErrorCode
from minibroker.protocol.records.batch import (
    CONTROL,
    TRANSACTIONAL,
    has_valid_crc,
    iterate_headers,
    read_header,
)
from minibroker.protocol.records.control import EndMarker, encode_end_marker, read_end_marker
from tests.unit.log.transacting import aborted, append, consume, end, transactional
from tests.unit.log.workbench import NOW, Bench, encode, finish

SMALL = {"segment_bytes": 300}


def refusal(action, *args, **more) -> ErrorCode:
    with pytest.raises(Refused) as caught:
        action(*args, **more)
    return caught.value.code


# -- markers


def test_a_marker_has_kafkas_bytes():
    """A control batch of one record: key (0, type), value (0, coordinator epoch)."""
    batch = encode_end_marker(EndMarker(True, 7), 5, 3, NOW)
    header = read_header(batch)
    assert has_valid_crc(batch, header)
    assert header.attributes == TRANSACTIONAL | CONTROL
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (5, 3, -1)
    assert struct.pack(">hh", 0, 1) in batch
    assert struct.pack(">hi", 0, 7) in batch
    assert read_end_marker(batch, header) == EndMarker(True, 7)
    batch = encode_end_marker(EndMarker(False, 8), 5, 3, NOW)
    assert read_end_marker(batch, read_header(batch)) == EndMarker(False, 8)


def test_what_is_no_marker_is_none():
    """Another type of control record, a short one, and a plain batch end no transaction."""
    batch = encode_end_marker(EndMarker(True, 7), 5, 3, NOW)
    header = read_header(batch)
    at = batch.rindex(struct.pack(">hh", 0, 1))
    assert read_end_marker(bytes(batch[:at]) + b"\0\0\0\2" + batch[at + 4 :], header) is None
    assert read_end_marker(batch[:-9], header) is None
    assert read_end_marker(encode(), read_header(encode())) is None


def test_a_marker_rolls_where_the_list_of_aborted_transactions_is_full():
    """It alone adds to the list, so records go on in the segment."""
    bench = Bench(index_bytes_max=2 * ABORTED_ENTRY.size)
    for producer_id in range(3):
        append(bench, producer_id, 0, "a")
    for producer_id in range(2):
        end(bench, producer_id, commit=False)
    append(bench, 3, 0, "b")
    assert [each.base_offset for each in bench.log._segments] == [0]
    assert end(bench, 2, commit=False) == 6
    assert [each.base_offset for each in bench.log._segments] == [0, 6]


# -- what may be appended


def test_a_transaction_begins_only_with_a_verification():
    """The first batch needs one that is valid, the others do not; a marker ends both."""
    bench = Bench()
    batch = memoryview(transactional(1, 0, "a"))
    code = refusal(bench.log.append_as_leader, batch, 0, NOW)
    assert code == ErrorCode.INVALID_TXN_STATE
    append(bench, 1, 0, "a")
    bench.log.append_as_leader(memoryview(transactional(1, 1, "b")), 0, NOW)
    end(bench, 1, commit=True)
    late = memoryview(transactional(1, 2, "c"))
    assert refusal(bench.log.append_as_leader, late, 0, NOW) == ErrorCode.INVALID_TXN_STATE
    assert bench.log.log_end == 3


def test_a_marker_makes_a_verification_invalid():
    """What the coordinator said before its marker was written is worth nothing after it."""
    bench = Bench()
    verification = bench.log.verifications.begin(1, 0)
    end(bench, 1, commit=False)
    batch = memoryview(transactional(1, 0, "a"))
    code = refusal(bench.log.append_as_leader, batch, 0, NOW, verification)
    assert code == ErrorCode.INVALID_TXN_STATE
    later = bench.log.verifications.begin(1, 0)
    other_epoch = memoryview(transactional(1, 0, "a", epoch=1))
    code = refusal(bench.log.append_as_leader, other_epoch, 0, NOW, later)
    assert code == ErrorCode.INVALID_TXN_STATE
    bench.log.append_as_leader(batch, 0, NOW, later)


def test_a_repeated_batch_of_an_ended_transaction_is_a_duplicate():
    """It needs no verification: it is answered with the offsets that it has."""
    bench = Bench()
    append(bench, 1, 0, "a")
    end(bench, 1, commit=True)
    again = bench.log.append_as_leader(memoryview(transactional(1, 0, "a")), 0, NOW)
    assert again.is_duplicate
    assert again.base_offset == 0


def test_a_plain_batch_in_a_transaction_is_refused():
    """As in Kafka: INVALID_TXN_STATE."""
    bench = Bench()
    append(bench, 1, 0, "a")
    assert refusal(bench.append, producer=(1, 0, 1)) == ErrorCode.INVALID_TXN_STATE
    newer = (1, 2**15 - 1, 0)  # of a stranger: it would fence the marker
    assert refusal(bench.append, producer=newer) == ErrorCode.INVALID_TXN_STATE
    end(bench, 1, commit=True)
    bench.append(producer=(1, 0, 1))


def test_clients_write_no_control_batches():
    """Nor transactional ones without a producer."""
    bench = Bench()
    marker = encode_end_marker(EndMarker(True, 0), 1, 0, NOW)
    code = refusal(bench.log.append_as_leader, memoryview(marker), 0, NOW)
    assert code == ErrorCode.INVALID_RECORD
    batch = memoryview(transactional(-1, -1, "a", epoch=-1))
    assert refusal(bench.log.append_as_leader, batch, 0, NOW) == ErrorCode.INVALID_RECORD


def test_markers_of_old_epochs_are_refused():
    """Of the producer: INVALID_PRODUCER_EPOCH; of the coordinator: its own error."""
    bench = Bench()
    append(bench, 1, 0, "a", epoch=3)
    code = refusal(end, bench, 1, commit=True, epoch=2)
    assert code == ErrorCode.INVALID_PRODUCER_EPOCH
    end(bench, 1, commit=True, epoch=3, coordinator=5)
    code = refusal(end, bench, 1, commit=True, epoch=3, coordinator=4)
    assert code == ErrorCode.TRANSACTION_COORDINATOR_FENCED
    end(bench, 1, commit=True, epoch=3, coordinator=5)


def test_a_marker_of_a_newer_epoch_fences():
    """Batches of the epochs before are refused, and the sequence begins at 0 again."""
    bench = Bench()
    append(bench, 1, 0, "a", epoch=3)
    end(bench, 1, commit=False, epoch=4)
    code = refusal(append, bench, 1, 1, "b", epoch=3)
    assert code == ErrorCode.INVALID_PRODUCER_EPOCH
    append(bench, 1, 0, "c", epoch=4)


def test_a_repeated_marker_of_the_second_protocol_ends_no_later_transaction():
    """Its epoch is that of the next transaction: while one is open it is refused."""
    bench = Bench()
    append(bench, 1, 0, "a", epoch=3)
    end(bench, 1, commit=True, epoch=4, is_next=True)
    end(bench, 1, commit=True, epoch=4, is_next=True)
    append(bench, 1, 0, "b", epoch=4)
    code = refusal(end, bench, 1, commit=True, epoch=4, is_next=True)
    assert code == ErrorCode.INVALID_PRODUCER_EPOCH


def test_a_producer_with_an_open_transaction_does_not_expire():
    """Its marker must end the transaction."""
    bench = Bench(producer_expiration_ms=10)
    append(bench, 1, 0, "a")
    append(bench, 2, 0, "b")
    end(bench, 2, commit=True)
    bench.log.expire_producers(NOW + 10)
    assert [each for each, _ in bench.log.producers.entries()] == [1]


# -- the last stable offset


def test_the_last_stable_offset_waits_for_the_committed_marker():
    """It stays at the first offset until the high watermark is above the marker."""
    bench = Bench()
    bench.append()
    append(bench, 1, 0, "a")
    append(bench, 2, 0, "b")
    bench.append()
    log = bench.log
    assert [log.last_stable_offset(mark) for mark in (0, 1, 2, 4)] == [0, 1, 1, 1]
    marker = end(bench, 1, commit=True)
    assert log.last_stable_offset(marker) == 1
    assert log.last_stable_offset(marker + 1) == 2
    marker = end(bench, 2, commit=False)
    assert log.last_stable_offset(marker) == 2
    assert log.last_stable_offset(marker + 1) == marker + 1


def test_the_last_stable_offset_is_not_below_the_log_start():
    """DELETE_RECORDS may delete records of an open transaction."""
    bench = Bench()
    append(bench, 1, 0, "a")
    bench.append(3)
    bench.log.raise_start(3)
    assert bench.log.last_stable_offset(4) == 3


@pytest.mark.parametrize("reopen", ["clean", "killed"])
def test_a_restart_remembers_transactions(reopen):
    """Open ones, those whose markers are not committed, and the epochs of coordinators."""
    bench = Bench(**SMALL)
    append(bench, 1, 0, "a")
    append(bench, 2, 0, "b")
    append(bench, 3, 0, "c")
    end(bench, 1, commit=True, coordinator=9)
    marker = end(bench, 3, commit=False, coordinator=9)
    getattr(bench, f"reopen_{reopen}")()
    log = bench.log
    assert log.last_stable_offset(3) == 0
    assert log.last_stable_offset(4) == 1
    assert log.last_stable_offset(marker + 1) == 1
    assert refusal(end, bench, 1, commit=True, coordinator=8)
    assert aborted(bench, 0, 1) == []
    assert [entry.producer_id for entry in aborted(bench, 2, 3)] == [3]
    bench.log.append_as_leader(memoryview(transactional(2, 1, "d")), 0, NOW)


def test_snapshots_of_before_are_read():
    """Version 1 has no transactions."""
    states = ProducerStates(1)
    body = struct.pack(">qhqB", 7, 3, NOW, 1) + struct.pack(">iiqqq", 0, 1, 5, 6, 9)
    rest = struct.pack(">qI", 7, 1) + body
    states.load(struct.pack(">HI", 1, crc32c(rest)) + rest)
    entry = states.get(7)
    assert (entry.epoch, entry.last_sequence, entry.transaction_start) == (3, 1, -1)
    assert not states.unstable
    again = ProducerStates(1)
    again.load(states.dump())
    assert again.dump() == states.dump()


def test_truncation_opens_a_transaction_again():
    """The marker goes, and with it the entry of the aborted transaction."""
    bench = Bench(**SMALL)
    append(bench, 1, 0, "a")
    marker = end(bench, 1, commit=False)
    bench.append(3)
    assert bench.log.last_stable_offset(marker + 1) == marker + 1
    assert aborted(bench, 0, 1)
    bench.log.truncate_to(marker, NOW)
    assert bench.log.last_stable_offset(marker) == 0
    end(bench, 1, commit=True)
    assert aborted(bench, 0, 1) == []
    bench.log.truncate_to(0, NOW)
    assert not bench.log.producers.unstable


def test_a_follower_derives_the_same_from_the_bytes():
    """It has the leader's last stable offset and aborted transactions at once."""
    leader, follower = Bench(**SMALL), Bench(**SMALL)
    append(leader, 1, 0, "a")
    append(leader, 2, 0, "b")
    end(leader, 1, commit=False, coordinator=4)
    leader.append(2)
    data = b"".join([part.read() for part in leader.log.read(0, 1 << 40, leader.log.log_end)])
    follower.follow(*[data[at : at + header.size] for at, header in iterate_headers(data)])
    end_offset = leader.log.log_end
    assert follower.log.producers.dump() == leader.log.producers.dump()
    assert follower.log.last_stable_offset(end_offset) == 1
    assert aborted(follower, 0, end_offset) == aborted(leader, 0, end_offset)


# -- the aborted transactions


def test_a_read_gets_the_aborted_transactions_that_overlap():
    """Those whose records are before, within or after, but not those that end or begin elsewhere;
    the look-up ends where no later one can overlap."""
    bench = Bench()
    append(bench, 1, 0, "a")  # 0
    end(bench, 1, commit=False)  # 1
    append(bench, 2, 0, "b")  # 2
    append(bench, 3, 0, "c")  # 3
    end(bench, 2, commit=False)  # 4
    append(bench, 4, 0, "d")  # 5
    end(bench, 3, commit=False)  # 6
    end(bench, 4, commit=False)  # 7
    assert aborted(bench, 0, 1) == [AbortedEntry(1, 0, 1, 2)]
    assert aborted(bench, 2, 4) == [AbortedEntry(2, 2, 4, 3), AbortedEntry(3, 3, 6, 5)]
    assert aborted(bench, 5, 6) == [AbortedEntry(3, 3, 6, 5), AbortedEntry(4, 5, 7, 8)]
    assert aborted(bench, 8, 9) == []
    assert consume(bench, 0, 8) == ([], 8)


def test_the_file_has_kafkas_layout():
    """34 bytes an entry, and no file for a segment without aborted transactions."""
    bench = Bench(**SMALL)
    append(bench, 1, 0, "a")
    end(bench, 1, commit=False)
    bench.append(10)
    bench.append(10)
    assert bench.names(".txnindex") == ["00000000000000000000.txnindex"]
    data = bench.files.read_bytes(bench.path(0, ".txnindex"))
    assert data == struct.pack(">hqqqq", 0, 1, 0, 1, 2)


def test_many_aborted_transactions_are_sent_with_fewer_records(monkeypatch):
    """A read ends at a marker then, and goes on from there."""
    monkeypatch.setattr(log_module, "ABORTED_MAX", 3)
    bench = Bench()
    for producer_id in range(10):
        append(bench, producer_id, 0, "a")
        end(bench, producer_id, commit=False)
    bench.append()
    slices, entries = bench.log.read_committed(0, 1 << 40, bench.log.log_end)
    assert [entry.producer_id for entry in entries] == [0, 1, 2, 3]
    headers = [header for part in slices for _, header in iterate_headers(part.read())]
    assert headers[-1].last_offset == 7
    assert [offset for offset, _ in consume(bench, 0, bench.log.log_end)[0]] == [20]


def test_power_cut_keeps_the_lists_below_the_recovery_point():
    """The flush that moves the recovery point syncs them."""
    bench = Bench(**SMALL)
    append(bench, 1, 0, "a")
    end(bench, 1, commit=False)
    for _ in range(6):
        bench.append(10)
    bench.flush()
    log_end = bench.log.log_end
    bench.files.power_off()
    bench.open(LastKnownState(recovery_point=log_end))
    assert [entry.producer_id for entry in aborted(bench, 0, 1)] == [1]


def test_retention_keeps_open_transactions():
    """The state does not go with the segment of its first batch."""
    bench = Bench(**SMALL, retention_bytes=0)
    append(bench, 1, 0, "a")
    for _ in range(6):
        bench.append(10)
    without_pause(bench.log.apply_retention(bench.log.log_end, NOW))
    assert bench.log.log_start > 0
    assert bench.log.last_stable_offset(bench.log.log_end) == bench.log.log_start
    bench.reopen_killed(log_start=bench.log.log_start)
    end(bench, 1, commit=False)
    assert bench.log.last_stable_offset(bench.log.log_end) == bench.log.log_end


# -- compaction


def clean(bench: Bench, high_watermark: int, now_ms: int = NOW, map_bytes: int = 1 << 20) -> None:
    compaction = bench.log.compaction
    stable = bench.log.last_stable_offset(high_watermark)
    finish(compaction.clean(compaction.find_cleanable(stable, now_ms), map_bytes, now_ms))


def compacted(**limits) -> Bench:
    return Bench(**{**SMALL, "is_compacted": True, "delete_retention_ms": 1000, **limits})


def put_many(bench: Bench, count: int = 12) -> None:
    """Fill segments."""
    for number in range(count):
        append(bench, 99, number, f"fill{number}")
    end(bench, 99, commit=True)


def markers(bench: Bench, producer_id: int) -> list[int]:
    return [h.base_offset for h in bench.headers() if h.is_control and h.producer_id == producer_id]


def test_compaction_removes_the_records_of_aborted_transactions():
    """An aborted record does not take the place of the committed one of its key before."""
    bench = compacted()
    append(bench, 1, 0, "k")
    end(bench, 1, commit=True)
    append(bench, 2, 0, "k", "other")
    end(bench, 2, commit=False)
    append(bench, 2, 2, "x")
    end(bench, 2, commit=True)
    put_many(bench)
    end_offset = bench.log.log_end
    before = consume(bench, 0, end_offset)
    assert [key for _, key in before[0][:2]] == [b"k", b"x"]
    clean(bench, end_offset)
    assert consume(bench, 0, end_offset) == before
    assert 2 not in [header.base_offset for header in bench.headers() if header.record_count]


def test_what_is_copied_has_no_records_of_aborted_transactions():
    """Not above the keys that were read either: the copy of a segment has no list of them."""
    bench = compacted(segment_bytes=600)
    append(bench, 1, 0, "k")
    append(bench, 1, 1, "j")
    end(bench, 1, commit=True)
    append(bench, 2, 0, "other")
    end(bench, 2, commit=False)
    put_many(bench)
    end_offset = bench.log.log_end
    clean(bench, end_offset, map_bytes=1)
    assert bench.log.compaction.first_dirty < 3
    assert bench.names(".txnindex") == []
    assert b"other" not in [key for _, key in consume(bench, 0, end_offset)[0]]


def test_compaction_reads_nothing_above_the_last_stable_offset():
    """Not even what is committed there."""
    bench = compacted()
    append(bench, 1, 0, "k")
    put_many(bench)
    stable = bench.log.last_stable_offset(bench.log.log_end)
    assert stable == 0
    assert bench.log.compaction.find_cleanable(stable, NOW).dirty_size == 0


def test_markers_stay_for_the_time_of_tombstones_after_their_records():
    """The compaction that first finds no batch of the transaction sets the time."""
    bench = compacted()
    append(bench, 1, 0, "k")
    marker = end(bench, 1, commit=False)
    append(bench, 1, 1, "later")
    end(bench, 1, commit=True)
    put_many(bench)
    clean(bench, bench.log.log_end)
    put_many_more(bench)
    assert markers(bench, 1)[0] == marker
    clean(bench, bench.log.log_end, NOW + 5000)
    assert markers(bench, 1)[0] == marker
    put_many_more(bench)
    clean(bench, bench.log.log_end, NOW + 5999)
    assert markers(bench, 1)[0] == marker
    put_many_more(bench)
    clean(bench, bench.log.log_end, NOW + 6000)
    assert marker not in markers(bench, 1)
    bench.reopen_killed()
    assert bench.log.last_stable_offset(bench.log.log_end) == bench.log.log_end


def put_many_more(bench: Bench) -> None:
    """Fill segments with records that compaction keeps."""
    start = bench.log.log_end
    entry = bench.log.producers.get(99)
    for number in range(8):
        append(bench, 99, entry.last_sequence + 1, f"more{start + number}")
    end(bench, 99, commit=True)


def test_a_producer_of_which_only_a_marker_is_known_keeps_it():
    """Its epoch fences the producers before."""
    bench = compacted(delete_retention_ms=0)
    append(bench, 1, 0, "k")
    marker = end(bench, 1, commit=False, epoch=1)
    put_many(bench)
    for later in range(4):
        clean(bench, bench.log.log_end, NOW + later)
        put_many_more(bench)
    assert markers(bench, 1) == [marker]
    bench.reopen_killed()
    assert refusal(append, bench, 1, 1, "z") == ErrorCode.INVALID_PRODUCER_EPOCH
