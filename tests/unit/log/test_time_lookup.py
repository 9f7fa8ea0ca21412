"""A look-up by time goes in short steps, unpacks one batch, and survives changes of the log."""

import pytest

from minibroker.broker.log import time_lookup
from minibroker.broker.log.cached_reads import AHEAD_BYTES_MIN, ReadAhead
from minibroker.broker.log.scan import BadBytes
from minibroker.broker.turns import without_pause
from minibroker.protocol.records.batch import read_header, stamp, write_header
from minibroker.protocol.records.record import encode_batch
from minibroker.protocol.types import StaleSlice
from tests.unit.log.workbench import NOW, Bench, finish, stored

MEGABYTE = 1 << 20


def followed(bench: Bench, *records: list[tuple], compression: int = 0, **fields: int) -> None:
    """Append batches as a leader stored them, with other fields in their headers."""
    for batch_records in records:
        batch = encode_batch(batch_records, compression=compression)
        write_header(batch, read_header(batch)._replace(**fields))
        stamp(batch, bench.log.log_end, 0)
        bench.follow(batch)


def run(bench: Bench, timestamp_ms: int):
    """The result of a look-up, and its steps: None for a pause, else what a worker did."""
    steps: list[object] = []
    found = finish(bench.log.find_time(timestamp_ms, bench.log.log_end), steps)
    return found, steps


def resumed(steps, step):
    """The rest of a computation that has yielded a step already."""
    while True:
        try:
            step = steps.send((yield step))
        except StopIteration as end:
            return end.value


@pytest.mark.parametrize("compression", range(5))
def test_one_batch_is_unpacked(compression):
    """The headers say which; those before it and behind it are not read."""
    bench = Bench()
    for number in range(9):
        followed(bench, [(NOW + number, None, b"v", ())] * 3, compression=compression)
    found, steps = run(bench, NOW + 4)
    assert found == (NOW + 4, 12, 0)
    assert len(steps) == 1
    assert steps[0] is not None


def test_headers_are_read_in_turns():
    """Between two entries of a time index there may be any number of batches."""
    bench = Bench(index_interval_bytes=1 << 30)
    count = 5 * time_lookup.HEADERS_AT_ONCE
    for number in range(count):
        bench.append(time_ms=NOW + number)
    found, steps = run(bench, NOW + count - 1)
    assert found == (NOW + count - 1, count - 1, 0)
    assert steps[:-1] == [None] * 4
    assert run(bench, NOW + count) == (None, [])


@pytest.mark.parametrize("compression", [0, 4])
def test_records_are_walked_in_turns_up_to_the_first_match(compression):
    """A batch of many records takes as many turns as lie before the match."""
    bench = Bench(batch_bytes_max=MEGABYTE)
    at_once = time_lookup.RECORDS_AT_ONCE
    followed(
        bench,
        [(NOW + number, None, b"value", ()) for number in range(4 * at_once)],
        compression=compression,
    )
    for offset in (0, 1, at_once - 1, at_once, 4 * at_once - 1):
        found, steps = run(bench, NOW + offset)
        assert found == (NOW + offset, offset, 0)
        assert steps[1:] == [None] * (offset // at_once)


def test_the_append_time_is_in_the_header():
    """Nothing is unpacked: all records of a batch have one time."""
    bench = Bench(timestamp_type="LogAppendTime")
    for number in range(3):
        bench.append(3, now_ms=NOW + 10 * number, time_ms=5)
    assert run(bench, NOW + 1) == ((NOW + 10, 3, 0), [])
    bench.log.raise_start(5)
    assert run(bench, NOW + 1) == ((NOW + 10, 5, 0), [])


def test_a_header_that_claims_a_later_time_is_passed_over():
    """No record is as late as its batch's header says: the next one is found."""
    bench = Bench()
    followed(bench, [(NOW, None, b"v", ())] * 3, max_timestamp=NOW + 100)
    followed(bench, [(NOW + 50, None, b"v", ())])
    assert run(bench, NOW + 50)[0] == (NOW + 50, 3, 0)
    assert run(bench, NOW + 60)[0] is None


@pytest.mark.parametrize("body", [b"", b"\xff" * 40, b"\x0e" + bytes(5), b"\x02\x00" * 20])
def test_a_batch_that_cannot_be_read_counts_as_a_whole(body):
    """Its offset, and the time of its header."""
    bench = Bench()
    bench.append(time_ms=NOW)
    batch = bytearray(stored(1, time_ms=NOW + 5)[:61] + body)
    write_header(batch, read_header(batch)._replace(batch_length=len(batch) - 12))
    stamp(batch, 1, 0)
    bench.follow(batch)
    assert run(bench, NOW + 1)[0] == (NOW + 5, 1, 0)


def test_a_bomb_counts_as_a_whole(monkeypatch):
    """What unpacks to more than a consumer accepts is not unpacked here, either."""
    monkeypatch.setattr(time_lookup, "UNPACKED_BYTES_MAX", MEGABYTE)
    for size, expected in ((MEGABYTE - 100, NOW + 3), (MEGABYTE, NOW + 9)):
        bench = Bench()
        records = [(NOW, None, bytes(size), ()), (NOW + 3, None, b"v", ())]
        followed(bench, records, compression=4, max_timestamp=NOW + 9)
        assert run(bench, NOW + 1)[0].timestamp == expected


def test_records_below_the_log_start_do_not_count():
    """Also if the log start has passed them during the look-up."""
    bench = Bench()
    followed(bench, [(NOW + number, None, b"v", ()) for number in range(6)])
    look_up = bench.log.find_time(NOW, 6)
    unpack = next(look_up)
    bench.log.raise_start(4)
    with pytest.raises(StopIteration) as end:
        look_up.send(unpack())
    assert end.value.value == (NOW + 4, 4, 0)
    assert run(bench, NOW)[0] == (NOW + 4, 4, 0)


def test_the_end_that_was_asked_for_is_kept():
    """Records that come in during the look-up are beyond the end; the look-up does not see them."""
    bench = Bench()
    followed(bench, [(NOW, None, b"v", ())], [(NOW + 5, None, b"v", ())])
    assert finish(bench.log.find_time(NOW + 1, 1)) is None
    assert finish(bench.log.find_time(NOW + 1, 2)) == (NOW + 5, 1, 0)


@pytest.mark.parametrize("turns", [1, 2, 3])
@pytest.mark.parametrize("change", ["truncate", "close"])
def test_a_log_that_is_cut_or_closed_meanwhile(turns, change):
    """Whenever it happens, the look-up ends; it never reads bytes that are others now."""
    bench = Bench(index_interval_bytes=1 << 30)
    count = 3 * time_lookup.HEADERS_AT_ONCE
    for number in range(count):
        bench.append(time_ms=NOW + number)
    look_up = bench.log.find_time(NOW + count - 1, count)
    step = None
    for _ in range(turns):
        step = next(look_up)
    if change == "truncate":
        bench.log.truncate_to(1, NOW)
    else:
        bench.log.abandon()
    if step is not None:
        with pytest.raises(StaleSlice):
            step()
        with pytest.raises(StaleSlice):
            look_up.throw(StaleSlice("the log was cut"))
        return
    with pytest.raises(StaleSlice):
        finish(look_up)


def test_segments_that_retention_deletes_are_still_read():
    """Their files stay for a while, so a look-up that has begun ends as it would have."""
    bench = Bench(segment_bytes=200, index_interval_bytes=0, retention_bytes=1)
    for number in range(9):
        bench.append(time_ms=NOW + number)
    assert len(bench.bases()) > 2
    look_up = bench.log.find_time(NOW + 1, 9)
    step = next(look_up)
    without_pause(bench.log.apply_retention(9, NOW))
    assert finish(resumed(look_up, step)) == (NOW + 8, 8, 0)
    assert bench.log.log_start == 8


def cold(index_interval_bytes: int = 1 << 30, segment_bytes: int = 1 << 30) -> Bench:
    """A log of large batches, none of which is in the page cache."""
    bench = Bench(index_interval_bytes=index_interval_bytes, segment_bytes=segment_bytes)
    for number in range(60):
        bench.append(time_ms=NOW + number, value=b"v" * 10_000)
    bench.files.evict()
    bench.files.read_s = 1.0
    return bench


def in_worker(bench: Bench, steps):
    """The result, and how many reads ahead it took. The disk is read in workers only."""
    count, sent = 0, None
    while True:
        try:
            step = steps.send(sent)
        except StopIteration as end:
            assert bench.files.stalled_s == 0
            return end.value, count
        count += isinstance(step, ReadAhead)
        sent = None if step is None else bench.files.run_in_worker(step)[0]


def test_headers_that_are_not_cached_are_read_in_a_worker():
    """A stretch at a time, from where the look-up is; the second time they are cached."""
    bench = cold()
    found, count = in_worker(bench, bench.log.find_time(NOW + 59, 60))
    assert found == (NOW + 59, 59, 0)
    assert 60 * 10_000 // AHEAD_BYTES_MIN <= count < 10
    assert in_worker(bench, bench.log.find_time(NOW + 59, 60)) == (found, 0)


def test_both_indexes_are_read_in_a_worker():
    """Before they say where the look-up begins."""
    bench = cold(index_interval_bytes=20_000, segment_bytes=300_000)
    without_pause(bench.log.apply_retention(0, NOW))
    found, count = in_worker(bench, bench.log.find_time(NOW + 27, 60))
    assert found == (NOW + 27, 27, 0)
    assert count == 3


def test_damage_is_found_where_it_is_after_a_read_ahead():
    """The batch behind the one that was read last tells that this one is damaged. The first read
    ahead ends between the two."""
    warm, bench = cold(), cold()
    assert sum(len(part.read()) for part in warm.log.read(0, 1 << 30, 60)) == warm.log.size
    for one in (warm, bench):
        one.files.flip(one.path(0), 13 * one.log.size // 60 + 26, 1)  # its last offset delta
    outcomes = []
    for one in (warm, bench):
        with pytest.raises(BadBytes) as caught:
            in_worker(one, one.log.find_time(NOW + 59, 60))
        outcomes.append((caught.value.offset, caught.value.position, caught.value.reason))
    assert outcomes[0] == outcomes[1]
    assert outcomes[0][0] == 13


@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize("is_before", [False, True])
@pytest.mark.parametrize("change", ["truncate", "close", "append"])
def test_a_log_that_changes_during_a_read_ahead(change, is_before, number):
    """What was read of a log that is cut or closed is stale; an append does no harm."""
    bench = cold()
    steps = bench.log.find_time(NOW + 59, 60)
    step = next(steps)
    for _ in range(number):
        step = steps.send(step())
    changes = {
        "truncate": lambda: bench.log.truncate_to(30, NOW),
        "close": bench.log.abandon,
        "append": lambda: bench.append(time_ms=NOW + 99),
    }
    if is_before:
        changes[change]()
    was_read = step()
    if not is_before:
        changes[change]()
    if change == "append":
        assert without_pause(sent_first(steps, was_read)) == (NOW + 59, 59, 0)
        return
    with pytest.raises(StaleSlice):
        steps.send(was_read)


def sent_first(steps, sent):
    """The rest of a computation whose last step returned `sent`."""
    try:
        step = steps.send(sent)
    except StopIteration as end:
        return end.value
    return (yield from resumed(steps, step))
