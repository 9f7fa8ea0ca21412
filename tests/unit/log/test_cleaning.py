"""Compaction of one log: what stays, what takes the place of the rest, and what stops it."""

from dataclasses import replace

import pytest

from minibroker.broker.log import cleaning
from minibroker.broker.log.cleaning import Interrupted
from minibroker.broker.log.scan import BadBytes
from minibroker.broker.turns import without_pause
from minibroker.protocol.records.batch import InvalidBatch, ProducerStamp, iterate_headers
from minibroker.protocol.records.columns import decode_columns
from minibroker.protocol.records.record import Record, decode_records, encode_batch
from minibroker.testing.disk import Stopped
from tests.unit.log.workbench import NOW, Bench, finish

MEGABYTE = 1 << 20


def bench(**limits) -> Bench:
    return Bench(**{"segment_bytes": 300, "is_compacted": True, **limits})


def put(bench: Bench, *pairs, producer=None, epoch=0, now_ms=NOW) -> int:
    """Append one batch of (key, value) pairs; return its first offset."""
    records = [(now_ms, key.encode(), value and value.encode(), ()) for key, value in pairs]
    stamp = {} if producer is None else {"producer": ProducerStamp(*producer)}
    batch = memoryview(encode_batch(records, **stamp))
    return bench.log.append_as_leader(batch, epoch, now_ms).base_offset


def clean(bench: Bench, now_ms=NOW, map_bytes=MEGABYTE):
    log = bench.log
    return finish(
        log.compaction.clean(log.compaction.find_cleanable(log.log_end, now_ms), map_bytes, now_ms)
    )


def records(bench: Bench) -> list[Record]:
    slices = []
    at = bench.log.log_start
    while at < bench.log.log_end:
        some = bench.log.read(at, 1 << 40, bench.log.log_end)
        slices += some
        for part in some:
            for _, header in iterate_headers(part.read()):
                assert header.base_offset <= at <= header.last_offset
                at = header.next_offset
    found = []
    for part in slices:
        data = part.read()
        for position, header in iterate_headers(data):
            found += decode_records(data[position:], header)
    return found


def pairs(bench: Bench) -> list[tuple[int, bytes, bytes | None]]:
    return [(record.offset, record.key, record.value) for record in records(bench)]


def newest_of(everything):
    newest = {key: offset for offset, key, _ in everything}
    return [row for row in everything if newest[row[1]] == row[0]]


def test_the_last_record_of_each_key_stays_at_its_offset():
    """The last record of each key below the active segment stays, and all in that segment."""
    one = bench()
    for number in range(60):
        put(one, (f"k{number % 7}", f"v{number}"), (f"k{number % 3}", f"w{number}"))
    before = pairs(one)
    active = one.log._segments.active.base_offset
    size = one.log.size
    cleaned = clean(one)
    assert cleaned.end == active
    newest = newest_of([row for row in before if row[0] < active])
    assert pairs(one) == newest + [row for row in before if row[0] >= active]
    assert one.log.size < size * 0.4
    assert one.log.compaction.first_dirty == active


def test_a_compacted_log_has_no_gaps_and_is_the_same_after_a_restart():
    """A compacted log opens to the same batches and epochs after a clean stop and after a kill."""
    one = bench()
    for number in range(80):
        put(one, ("k", f"v{number}"), epoch=number // 20)
    clean(one)
    kept, headers = pairs(one), one.headers()
    for reopen in (one.reopen_clean, one.reopen_killed):
        reopen()
        assert pairs(one) == kept
        assert one.headers() == headers
        assert [entry.epoch for entry in one.log.epochs.entries] == [0, 1, 2, 3]
        assert [entry.offset for entry in one.log.epochs.entries] == [0, 20, 40, 60]


def test_what_is_compacted_twice_is_compacted_whole():
    """A second compaction finds the keys of the first one, and joins fillers and segments."""
    one = bench()
    for number in range(60):
        put(one, (f"k{number % 4}", f"v{number}"))
    clean(one)
    for number in range(60, 120):
        put(one, (f"k{number % 5}", f"v{number}"))
    before = pairs(one)
    active = one.log._segments.active.base_offset
    clean(one)
    newest = newest_of([row for row in before if row[0] < active])
    assert pairs(one) == newest + [row for row in before if row[0] >= active]
    for _ in range(4):  # segments are merged
        one.log.compaction.first_dirty = 0
        clean(one)
    assert pairs(one) == newest + [row for row in before if row[0] >= active]
    fillers = [header for header in one.headers() if not header.record_count]
    assert len(fillers) <= len(newest) + 1, "fillers that follow each other are joined"


def test_a_tombstone_stays_until_its_horizon():
    """A tombstone stays, with its time, for delete.retention.ms after the first compaction."""
    one = bench(delete_retention_ms=1000)
    put(one, ("a", "1"), ("b", "1"))
    put(one, ("a", None))
    for number in range(20):
        put(one, ("c", f"{number}"))
    clean(one)
    assert [row[1:] for row in pairs(one)][:2] == [(b"b", b"1"), (b"a", None)]
    assert records(one)[1].timestamp == NOW
    one.log.compaction.first_dirty = 0
    clean(one, now_ms=NOW + 999)
    assert (2, b"a", None) in pairs(one)
    one.log.compaction.first_dirty = 0
    clean(one, now_ms=NOW + 1000)
    assert b"a" not in {row[1] for row in pairs(one)}


def test_a_producers_last_batch_stays_empty():
    """The last batch of a producer stays without records, and a restart finds its sequence."""
    one = bench()
    put(one, ("k", "v"), ("k", "w"), producer=(7, 0, 0))
    put(one, ("k", "x"), producer=(7, 0, 2))
    for number in range(30):
        put(one, ("k", f"{number}"))
    clean(one)
    kept = [header for header in one.headers() if header.producer_id == 7]
    assert [(header.record_count, header.last_sequence) for header in kept] == [(0, 2)]
    for path in one.files.list(one.log.directory):
        if path.endswith(".snapshot"):
            one.files.remove(one.log.directory / path)
    one.reopen_killed()
    assert one.log.producers.get(7).last_sequence == 2


def test_keys_that_do_not_fit_take_several_passes():
    """A small map takes several passes, which lose no newest record; one more completes it."""
    one = bench()
    for number in range(100):
        put(one, (f"key-{number % 10}", f"v{number}"))
    before = pairs(one)
    active = one.log._segments.active.base_offset
    ends = []
    while one.log.compaction.first_dirty < active:
        ends.append(clean(one, map_bytes=210 * 3).end)
    assert len(ends) > 10
    assert ends == sorted(set(ends))
    kept = pairs(one)
    newest = newest_of(before)
    assert {*newest} <= {*kept}
    one.log.compaction.first_dirty = 0
    clean(one)
    assert pairs(one) == newest_of([r for r in before if r[0] < active]) + [
        row for row in before if row[0] >= active
    ]


def test_young_and_uncommitted_records_and_the_active_segment_are_left_alone():
    """Compaction ends before the active segment, the high watermark and records too young."""
    one = bench(compaction_lag_min_ms=1000)
    for number in range(40):
        put(one, ("k", f"{number}"), now_ms=NOW + number)
    log = one.log
    bases = [segment.base_offset for segment in log._segments]
    assert log.compaction.find_cleanable(log.log_end, NOW + 1000).dirty_size == 0
    assert log.compaction.find_cleanable(log.log_end, NOW + 5000).end == bases[-1]
    assert log.compaction.find_cleanable(bases[2] - 1, NOW + 5000).end == bases[1]
    middle = log.compaction.find_cleanable(log.log_end, NOW + 1000 + bases[2] - 1)
    assert middle.end == bases[2]


def test_a_log_is_due_by_its_dirty_share_or_its_age():
    """A log is due by min.cleanable.dirty.ratio, or by max.compaction.lag.ms."""
    one = bench(cleanable_dirty_ratio_min=0.5, compaction_lag_max_ms=5000)
    for number in range(40):
        put(one, (f"{number}", "x"))
    clean(one)
    log = one.log
    assert not log.compaction.find_cleanable(log.log_end, NOW).is_due(log.limits)
    for number in range(40, 50):
        put(one, (f"{number}", "x"))
    assert not log.compaction.find_cleanable(log.log_end, NOW).is_due(log.limits)
    assert log.compaction.find_cleanable(log.log_end, NOW + 5001).is_due(log.limits)
    for number in range(100):
        put(one, (f"{number}", "x"))
    found = log.compaction.find_cleanable(log.log_end, NOW)
    assert found.dirty_share > 0.5
    assert found.is_due(log.limits)


def test_what_a_slow_reader_has_stays_readable_over_two_compactions():
    """A replaced segment keeps its bytes for file.delete.delay.ms, also if the next compaction
    replaces another one of the same name."""
    one = bench()
    for number in range(60):
        put(one, (f"k{number % 4}", f"v{number}"))
    slices = [(part, part.read()) for part in one.log.read(0, 1 << 40, one.log.log_end)]
    for turn in range(3):
        for number in range(30):
            put(one, (f"k{number % 4}", f"{turn}.{number}"))
        clean(one)
        slices += [(part, part.read()) for part in one.log.read(0, 1 << 40, one.log.log_end)]
    one.location.sealed_files.give_back(1000)
    assert [part.read() for part, _ in slices] == [data for _, data in slices]
    without_pause(one.log.remove_deleted_files(NOW + 100_000))
    assert not [name for name in one.files.list(one.log.directory) if "deleted" in name]


def test_only_batches_of_which_something_stays_are_decoded(monkeypatch):
    """Of the dirty part, the others are not needed: their keys have been read."""
    one = bench()
    for number in range(200):
        put(one, (f"k{number % 4}", f"v{number}"), (f"l{number % 5}", "x"))
    decoded = []
    monkeypatch.setattr(
        cleaning, "decode_columns", lambda *args: decoded.append(1) or decode_columns(*args)
    )
    clean(one)
    assert 2 <= len(decoded) <= 5


def test_a_batch_with_a_wrong_checksum_stops_it_though_nothing_of_it_stays():
    """It is not decoded, but what is damaged must not be taken for superseded."""
    one = bench()
    for number in range(60):
        put(one, ("k", f"v{number}"))
    path = one.log._segments[0].path
    found = one.log.compaction.find_cleanable(one.log.log_end, NOW)
    steps = one.log.compaction.clean(found, MEGABYTE, NOW)
    step, before = next(steps), pairs(one)
    while not one.files.exists(path.with_name(path.name + ".cleaned")):
        step = steps.send(step())
    one.files.flip(path, 70)
    with pytest.raises(BadBytes, match="checksum"):
        step()
    one.files.flip(path, 70)
    steps.close()
    assert pairs(one) == before


def test_records_without_keys_go():
    """From before the topic was compacted; also where the rest of their batch stays."""
    one = bench()
    for _ in range(3):
        records = [(NOW, key, b"v", ()) for key in (None, b"a", None)]
        one.log.append_as_leader(memoryview(encode_batch(records)), 0, NOW)
    one.append(2)
    for number in range(12):
        put(one, ("b", f"{number}"))
    end = clean(one).end
    kept = [row for row in pairs(one) if row[0] < end]
    assert kept == [(7, b"a", b"v"), (end - 1, b"b", b"%d" % (end - 12))]


def test_a_batch_with_too_many_records_is_not_decoded(monkeypatch):
    """From before its topic was compacted: its objects could take gigabytes. The log stays."""
    one = bench(segment_bytes=1 << 20)
    put(one, *((f"k{number}", "v") for number in range(6)))
    one.log.limits = replace(one.log.limits, segment_bytes=300)
    for number in range(10):
        put(one, ("k", f"{number}"))
    monkeypatch.setattr(cleaning, "COMPACTED_RECORDS_MAX", 5)
    before = pairs(one)
    with pytest.raises(InvalidBatch, match="has 6 records; 5 can be compacted"):
        clean(one)
    assert pairs(one) == before


def test_what_is_written_after_a_truncation_is_dirty():
    """Its tombstone would otherwise go before the older records of its key."""
    one = bench()
    for number in range(60):
        put(one, (f"k{number % 4}", f"v{number}"))
    clean(one)
    known_at_truncation = []
    one.before_truncation = lambda _: known_at_truncation.append(one.log.compaction.first_dirty)
    one.log.truncate_to(20, NOW)
    assert one.log.log_end <= 20
    assert known_at_truncation == [one.log.log_end], "so that the checkpoint can be lowered first"


@pytest.mark.parametrize("change", ["truncate", "cut", "close", "delete", "retention", "policy"])
def test_a_change_of_the_log_interrupts(change: str):
    """A log that changed while it is compacted interrupts that, and leaves no copy behind."""
    one = bench()
    for number in range(60):
        put(one, ("k", f"v{number}"))
    steps = one.log.compaction.clean(
        one.log.compaction.find_cleanable(one.log.log_end, NOW), MEGABYTE, NOW
    )
    step = next(steps)
    taken = 0
    while True:
        taken += 1
        if taken == 12:
            match change:
                case "truncate":
                    one.log.truncate_to(5, NOW)
                case "cut":  # behind what is copied; keys of what is gone were read
                    one.log.truncate_to(one.log.log_end - 1, NOW)
                case "policy":
                    one.log.limits = replace(one.log.limits, is_compacted=False)
                case "close":
                    one.log.close()
                case "delete":
                    one.log.move_to(one.log.directory.with_name("t-0.x-delete"))
                case "retention":
                    one.log.raise_start(one.log.log_end)
                    without_pause(one.log.apply_retention(one.log.log_end, NOW))
        try:
            value = step() if step else None
        except OSError as error:
            with pytest.raises(Interrupted):
                steps.throw(error)
            break
        try:
            step = steps.send(value)
        except Interrupted:
            break
    assert taken == 12
    if change not in ("close", "delete"):
        assert not [name for name in one.files.list(one.log.directory) if "cleaned" in name]


def steps_until_a_copy_begins(one: Bench, number: int = 1):
    """A compaction, paused where the copy of the group of that number has begun; and its step."""
    found = one.log.compaction.find_cleanable(one.log.log_end, NOW)
    steps = one.log.compaction.clean(found, MEGABYTE, NOW)
    step, copies = next(steps), set()
    while len(copies) < number:
        step = steps.send(step())
        copies.update(one.names(".cleaned"))
    return steps, step


def finish_from(steps, step):
    """Its result."""
    while True:
        try:
            step = steps.send(step())
        except StopIteration as end:
            return end.value


def test_a_policy_that_goes_and_comes_back_loses_no_newest_record():
    """What was copied meanwhile stays copied; after that nothing goes, until it is back."""
    one = bench()
    for number in range(60):
        put(one, (f"k{number % 4}", f"v{number}"))
    before = pairs(one)
    active = one.log._segments.active.base_offset
    steps, step = steps_until_a_copy_begins(one, 3)
    one.log.limits = replace(one.log.limits, is_compacted=False, retention_ms=1 << 40)
    with pytest.raises(Interrupted):
        finish_from(steps, step)
    meanwhile = pairs(one)
    assert not one.names("cleaned")
    assert [row for row in before if row[0] < active][-10:] == [
        row for row in meanwhile if row[0] < active
    ][-10:]
    assert one.log.compaction.first_dirty == 0
    one.append(1)  # without a key, which is legitimate now
    one.log.limits = replace(one.log.limits, is_compacted=True)
    end = clean(one).end
    newest = newest_of([row for row in before if row[0] < end])
    assert [row for row in pairs(one) if row[0] < end] == newest


def test_records_that_are_deleted_meanwhile_stay_deleted():
    """DELETE_RECORDS may raise the start into a segment that is copied: that does not stop it."""
    one = bench()
    for number in range(60):
        put(one, (f"k{number % 40}", f"v{number}"))
    before = pairs(one)
    active = one.log._segments.active.base_offset
    steps, step = steps_until_a_copy_begins(one)
    one.log.raise_start(2)
    finish_from(steps, step)
    assert one.log.log_start == 2
    kept = [row for row in pairs(one) if row[0] >= 2]
    newest = newest_of([row for row in before if row[0] < active])
    assert kept == [row for row in newest if row[0] >= 2] + before[active:]
    one.reopen_clean()
    assert [row for row in pairs(one) if row[0] >= 2] == kept


def test_keys_of_a_megabyte_are_compacted():
    """They are told apart though the map does not keep them."""
    one = bench(segment_bytes=3_000_000, batch_bytes_max=2_000_000)
    long = "x" * 1_000_000
    for number in range(12):
        put(one, (long + "ab"[number % 2], f"{number}"))
    before = pairs(one)
    active = one.log._segments.active.base_offset
    assert clean(one, map_bytes=2_000).end == active
    newest = newest_of(before[:active])
    assert len(newest) == 2
    assert pairs(one) == newest + before[active:]


def test_a_batch_that_is_damaged_stops_it_and_nothing_is_lost():
    """A damaged batch ends the compaction; the log stays as it is."""
    one = bench()
    for number in range(60):
        put(one, ("k", f"v{number}"))
    path = one.log._segments[2].path
    one.files.flip(path, 70)
    size = one.log.size
    with pytest.raises(BadBytes):
        clean(one)
    assert one.log.size == size
    assert not [name for name in one.files.list(one.log.directory) if "cleaned" in name]


def test_a_swap_that_a_crash_cut_short_is_finished():
    """A crash before any step leaves a log with each newest record, which can be compacted."""
    one = bench()
    for number in range(60):
        put(one, (f"k{number % 4}", f"v{number}"))
    before = pairs(one)
    newest = newest_of(before)
    for count in range(1, 400):
        again = bench()
        for number in range(60):
            put(again, (f"k{number % 4}", f"v{number}"))
        again.files.stop_at(count)
        try:
            clean(again)
        except Stopped:
            pass
        else:
            break
        again.reopen_killed()
        kept = pairs(again)
        assert {*newest} <= {*kept} <= {*before}, count
        assert [row[0] for row in kept] == sorted(row[0] for row in kept)
        assert again.log.damage is None
        again.log.compaction.first_dirty = 0
        clean(again)
        assert {*newest} <= {*pairs(again)}
    else:
        pytest.fail("it never came to its end")
    assert count > 30


@pytest.mark.parametrize("end", [0, 1, 7, 30, 31])
def test_a_follower_that_ends_inside_a_filler_goes_on_there(end: int):
    """A leader compacts what a follower lacks, too: its filler may begin before the follower's
    end. The follower then holds the same records, and has no gap."""
    leader = bench()
    follower = bench()
    for number in range(40):
        put(leader, ("k", f"v{number}"), epoch=number // 25)
    copied = [part.read() for part in leader.log.read(0, 1 << 40, leader.log.log_end)]
    copied += [part.read() for part in leader.log.read(20, 1 << 40, leader.log.log_end)]
    whole = [(at, data) for data in copied for at, data in batches_in(data)]
    follower.follow(*(data for at, data in sorted(dict(whole).items()) if at < end))
    assert follower.log.log_end == end
    for _ in range(6):
        leader.log.compaction.first_dirty = 0
        clean(leader)
    assert leader.headers()[0].last_offset > 7
    while follower.log.log_end < leader.log.log_end:
        for part in leader.log.read(follower.log.log_end, 1 << 40, leader.log.log_end):
            follower.follow(bytes(part.read()))
    assert pairs(follower)[-1] == pairs(leader)[-1]
    assert [one.offset for one in follower.log.epochs.entries] == [0, 25]
    kept = pairs(follower)
    follower.reopen_killed()
    assert pairs(follower) == kept


def batches_in(data: bytes):
    for position, header in iterate_headers(data):
        yield header.base_offset, bytes(data[position : position + header.size])


def test_what_is_not_cached_is_read_in_workers():
    """Also the index, and the header where the dirty part begins, in the middle of a segment."""
    one = bench(segment_bytes=30_000)
    for number in range(120):
        put(one, (f"k{number}", "v" * 1000))
    without_pause(one.log.apply_retention(0, NOW))  # it frees the indexes
    one.files.evict()
    one.files.read_s = 1.0
    one.log.compaction.first_dirty = 20
    found = one.log.compaction.find_cleanable(one.log.log_end, NOW)
    steps, sent, seconds = one.log.compaction.clean(found, MEGABYTE, NOW), None, 0.0
    while True:
        try:
            step = steps.send(sent)
        except StopIteration:
            break
        sent = None
        if step is not None:
            sent, more = one.files.run_in_worker(step)
            seconds += more
    assert seconds > 0
    assert one.files.stalled_s == 0
