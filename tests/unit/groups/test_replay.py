"""Reading the offsets topic back: what cannot be read, and how long it takes."""

import itertools
import logging
from dataclasses import replace

import pytest
import trio
import trio.testing

from minibroker.broker.coordination import replay
from minibroker.broker.groups.records import (
    CommittedOffset,
    OffsetKey,
    encode_key,
    encode_value,
)
from minibroker.broker.turns import AT_ONCE
from minibroker.protocol.constants import OFFSETS_TOPIC, ErrorCode
from minibroker.protocol.messages.groups import HeartbeatRequest
from minibroker.protocol.records.batch import InvalidBatch
from minibroker.protocol.records.record import encode_batch
from minibroker.protocol.types import TopicPartition
from minibroker.testing.cluster import in_worker
from tests.unit.groups.keeping import TWO, Keeper, error_of, keeping, state_of_offsets, turn
from tests.unit.log.workbench import finish
from tests.unit.node import ROOT

LOG = ROOT / f"{OFFSETS_TOPIC}-0" / f"{0:020}.log"


async def test_what_cannot_be_read_is_skipped_and_told_once(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """A record of a newer version, or garbage, costs one line and nothing of the others."""
    keeper = Keeper()
    records = [(0, b"\0\x09what", b"?", ()), (0, None, b"no key", ())]
    keeper.offsets.append_as_leader(memoryview(encode_batch(records)), -1, 0.0, 1_000)
    caplog.set_level(logging.WARNING)
    async with keeping(keeper):
        assert await keeper.commit(4) == ErrorCode.NONE
        assert keeper.fetch().offset == 4
    assert len([line for line in caplog.messages if "is skipped" in line]) == 2


async def test_a_value_of_a_newer_version_is_not_passed_over(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """The offset before it would be told, though a newer broker has committed a later one. Other
    requests come in vain, and the operator reads once what to do."""
    keeper = Keeper()
    async with keeping(keeper):
        assert await keeper.commit(4) == ErrorCode.NONE
        key = encode_key(OffsetKey("g", "t", 0))
        newer = b"\0\4" + encode_value(CommittedOffset(5))[2:] + b"new"
        batch = encode_batch([(0, b"\0\x63", b"?", ()), (0, key, newer, ())])
        keeper.offsets.append_as_leader(memoryview(batch), -1, 0.0, 1_000)
        keeper.apply(state_of_offsets(epochs=(1, 1), leader=2, isr=TWO, replicas=TWO))
        await turn()
        keeper.apply(state_of_offsets(epochs=(2, 2)))
        for _ in range(3):
            await trio.sleep(5)
            assert error_of(keeper) == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    [line] = [line for line in caplog.messages if "cannot be replayed" in line]
    assert "the record at offset 2 has a value of version 4" in line
    assert "start it with the version of minibroker that wrote" in line


async def test_damaged_bytes_are_not_passed_over(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """Where a checksum is wrong nobody knows what was committed there: nothing is told, rather than
    an offset that went back, and the operator hears of it once."""
    keeper = Keeper()
    async with keeping(keeper):
        for offset in range(3):
            await keeper.commit(offset)
        keeper.files.flip(LOG, keeper.offsets.log.size // 2)
        keeper.apply(state_of_offsets(epochs=(1, 1), leader=2, isr=TWO, replicas=TWO))
        await turn()
        keeper.groups._shards.clear()  # as a broker that has just started
        keeper.apply(state_of_offsets(epochs=(2, 2)))
        await trio.sleep(5)
        assert error_of(keeper) == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        beat = HeartbeatRequest("g", 1, "m")  # a load without an end keeps nobody
        assert keeper.ask(beat).error == ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert len([line for line in caplog.messages if "cannot be replayed" in line]) == 1


async def test_a_load_without_a_descriptor_goes_on_later(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """A segment that cannot be opened for now is read at the next request, and told once."""
    keeper = Keeper()
    log = keeper.offsets.log
    log.limits = replace(log.limits, segment_bytes=200)
    async with keeping(keeper):
        for offset in range(8):
            await keeper.commit(offset)
        keeper.apply(state_of_offsets(epochs=(1, 1), leader=2, isr=TWO, replicas=TWO))
        await turn()
        keeper.groups._shards.clear()  # as a broker that has just started
        assert keeper.manager._sealed_files.give_back(100)
        keeper.files.descriptors_max = 0
        keeper.apply(state_of_offsets(epochs=(2, 2)))
        for _ in range(3):
            await trio.sleep(5)
            assert error_of(keeper) == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        keeper.files.descriptors_max = None
        for _ in range(20):
            error_of(keeper)
            await trio.sleep(1)
        assert keeper.fetch().offset == 7
    lines = [line for line in caplog.messages if "cannot be replayed" in line]
    assert len(lines) == 1
    assert "ulimit -n" in lines[0]


@pytest.mark.parametrize("at", [7, 2, 11], ids=["offset by one", "offset far", "length"])
def test_a_rotted_header_ends_a_chunk(at: int) -> None:
    """No checksum covers offset and length of a batch. What was committed there is not left out:
    nothing is replayed beyond a batch before the bad one, and then it is an error."""
    keeper = Keeper()
    log = keeper.offsets.log
    for number in range(5):
        batch = encode_batch([(0, encode_key(OffsetKey("g", "t", number)), None, ())])
        keeper.offsets.append_as_leader(memoryview(batch), -1, 0.0, 1_000)
    size = log.size // 5
    keeper.files.flip(LOG, 2 * size + at, 1)
    replayed, told = 0, ""
    while replayed < 5 and not told:
        try:
            replayed = next(replay.read_chunks(log, replayed, 5)).next_offset
        except InvalidBatch as invalid:
            told = str(invalid)
    assert replayed <= 2
    assert "offset" in told


async def test_a_long_log_does_not_hold_the_loop_up(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """A replay lets others run after each chunk, which is a few hundred records at most."""
    keeper = Keeper()
    for number in range(100):
        batch = encode_batch([(0, encode_key(OffsetKey("g", "t", number)), None, ())] * 50)
        keeper.offsets.append_as_leader(memoryview(batch), -1, 0.0, 1_000)
    chunk = next(replay.read_chunks(keeper.offsets.log, 0, 2**31))
    assert 0 < len(chunk.records) < 1000
    turns = 0
    async with trio.open_nursery() as nursery:
        nursery.start_soon(keeper.groups.run, in_worker)
        while error_of(keeper) == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
            turns += 1
            await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
    assert turns >= 5000 / len(chunk.records)


def offsets_batch(first: int, count: int, offset: int) -> memoryview:
    """A batch that commits one offset for each of these partitions of t."""
    value = encode_value(CommittedOffset(offset))
    keys = [encode_key(OffsetKey("g", "t", number)) for number in range(first, first + count)]
    return memoryview(encode_batch([(0, key, value, ()) for key in keys]))


async def test_a_large_batch_is_replayed_in_parts(autojump_clock: trio.testing.MockClock) -> None:
    """One commit for many partitions is one batch. Its replay lets others run in between, and
    leaves nothing out."""
    keeper = Keeper()
    async with keeping(keeper):
        shard = keeper.shard
        await keeper.commit(1, "before")
        for round_ in range(2):
            keeper.offsets.append_as_leader(offsets_batch(0, 1800, round_), -1, 0.0, 1_000)
        keeper.offsets.append_as_leader(offsets_batch(1800, 1, 7), -1, 0.0, 1_000)
        ends = [shard.replayed_end]
        while shard.catch_up(trio.current_time()):
            ends.append(shard.replayed_end)
        ends.append(shard.replayed_end)
    assert ends[-1] == keeper.offsets.log.log_end == 3602
    steps = [after - before for before, after in itertools.pairwise(ends)]
    assert 0 < min(steps) <= max(steps) <= AT_ONCE
    told = shard.table.offsets("g")
    assert [told[TopicPartition("t", number)].offset for number in range(1800)] == [1] * 1800
    assert told[TopicPartition("t", 1800)].offset == 7


async def test_what_was_read_ahead_of_a_cut_is_not_replayed(
    autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    """A batch that was read, but not replayed yet, when an unclean election cut it off: the one in
    its place counts."""
    count = AT_ONCE * 3 // 5
    rest = AT_ONCE - count + 10  # both together take more than one step
    keeper = Keeper()
    async with keeping(keeper):
        first = encode_batch([(0, encode_key(OffsetKey("g", "t", 0)), None, ())] * count)
        keeper.offsets.append_as_leader(memoryview(first), -1, 0.0, 1_000)
        keeper.offsets.append_as_leader(offsets_batch(0, rest, 8), -1, 0.0, 1_000)
        shard = keeper.shard
        assert shard.catch_up(0.0)
        assert shard.replayed_end == count, "the second batch was read, too"
        keeper.apply(state_of_offsets(epochs=(1, 1), leader=2, isr=TWO, replicas=TWO))
        keeper.offsets.log.truncate_to(count, 0)
        keeper.apply(state_of_offsets(epochs=(2, 2)))
        keeper.offsets.append_as_leader(offsets_batch(count, rest, 9), -1, 0.0, 1_000)
        await turn()
    assert {item.offset for item in keeper.shard.table.offsets("g").values()} == {9}
    assert "starting again" not in caplog.text


async def test_a_compacted_log_is_replayed_to_the_same_offsets(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """After a compaction a new coordinator knows the same offsets, from as many records as there
    are groups."""
    keeper = Keeper()
    log = keeper.offsets.log
    log.limits = replace(log.limits, segment_bytes=400, is_compacted=True)
    async with keeping(keeper):
        for offset in range(40):
            await keeper.commit(offset, f"g{offset % 3}")
        before = {name: keeper.fetch(name) for name in ("g0", "g1", "g2")}
        found = log.compaction.find_cleanable(keeper.offsets.high_watermark, 1_000_000)
        assert finish(log.compaction.clean(found, 1 << 20, 1_000_000)).bytes_left < log.size
        count, at = 0, 0
        while at < log.log_end:
            for chunk in replay.read_chunks(log, at, log.log_end):
                at, count = chunk.next_offset, count + len(chunk.records)
        assert count < 20
        keeper.apply(state_of_offsets(epochs=(1, 1), leader=2, isr=TWO, replicas=TWO))
        await turn()
        keeper.groups._shards.clear()  # as a broker that has just started
        keeper.apply(state_of_offsets(epochs=(2, 2)))
        await trio.sleep(5)
        assert {name: keeper.fetch(name) for name in ("g0", "g1", "g2")} == before


def test_a_topic_of_an_older_version_is_compacted_too() -> None:
    """The settings of the offsets topic hold without its own: none is deleted, and it is compacted.
    Settings of its own win."""
    keeper = Keeper()
    settings = keeper.offsets.settings
    assert settings.is_compacted
    assert settings.limits().retention_ms == -1
    assert settings.segment_bytes == 100 * 1024 * 1024
