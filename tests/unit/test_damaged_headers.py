"""Each bit of each field of a batch's header, and a sector of zeroes, on the disk of a leader.

A log of three segments is made once. For each case a copy of its disk gets one fault in one batch
(the first, a middle or the last one of a sealed segment; the last one of the log), with an index
that names every batch and one that names none. Then somebody reads: a consumer, a follower, both
from a leader that has sound replicas, or a broker that is started again on that disk.

Each case ends in one of two ways. It is found and named: who reads gets all that lies before the
damage, unchanged, and then an error, or the leader a word in its log, with the offset; what lies
behind the damage can be read after a seek. Or it is harmless: all records are read as they were
written, and `HARMLESS` says why that can be. Nothing hangs, is left out, or is shown twice, and a
position that could be committed is that of what was shown.

`make test` takes all bits of what no checksum covers and some of the others, and has each of them
met by a seventh of all pairs of reader and place; `make soak` takes all.
"""

import contextlib
import copy
import functools
import logging
import random
import re
import struct
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice
from typing import Final, NamedTuple

import pytest

from minibroker.broker.config import load
from minibroker.broker.log.log import Log
from minibroker.broker.log.outcomes import NEW_LOG, LogLocation
from minibroker.broker.replication.fetch_connection import check
from minibroker.broker.replication.follower import Follower, LeaderAnswer, Next
from minibroker.broker.turns import finished
from minibroker.client.consumer.positions import Positions
from minibroker.client.errors import PositionError
from minibroker.client.options import ConsumerOptions, read_options
from minibroker.protocol.messages.fetch import FetchResponse, PartitionFetched
from minibroker.protocol.records.batch import iterate_headers
from minibroker.protocol.records.record import decode_records, encode_batch
from minibroker.testing.disk import SimulatedFiles
from tests.unit.node import ROOT, T0, Node, state_of
from tests.unit.server.fetching import ask, want

LOG = ROOT / str(T0)
EVERYTHING: Final = 1 << 30
RECORDS_IN_BATCH: Final = 3
BATCHES_IN_SEGMENT: Final = 5
BATCH_COUNT: Final = 3 * BATCHES_IN_SEGMENT - 1
END: Final = BATCH_COUNT * RECORDS_IN_BATCH
STEPS_MAX: Final = 60  # of a reader; who needs more hangs
SECTOR_BYTES: Final = 512
VALUE_BYTES: Final = 90

# Field: its bytes in the header.
FIELDS: Final = {
    "base offset": (0, 8),
    "batch length": (8, 12),
    "leader epoch": (12, 16),
    "magic": (16, 17),
    "crc": (17, 21),
    "attributes": (21, 23),
    "last offset delta": (23, 27),
    "base timestamp": (27, 35),
    "max timestamp": (35, 43),
    "producer id": (43, 51),
    "producer epoch": (51, 53),
    "base sequence": (53, 57),
    "record count": (57, 61),
}
CHOSEN_BITS: Final = (5, 2)  # of bytes of even and of odd number; 5 is a control batch's
UNCHECKED: Final = ("base offset", "batch length", "leader epoch", "magic")

# Which batch, and the segment (its base offset) in which it is the so-many-th.
TARGETS: Final = {
    "first": (BATCHES_IN_SEGMENT, BATCHES_IN_SEGMENT * RECORDS_IN_BATCH, 0),
    "middle": (BATCHES_IN_SEGMENT + 2, BATCHES_IN_SEGMENT * RECORDS_IN_BATCH, 2),
    "last": (2 * BATCHES_IN_SEGMENT - 1, BATCHES_IN_SEGMENT * RECORDS_IN_BATCH, 4),
    "newest": (BATCH_COUNT - 1, 2 * BATCHES_IN_SEGMENT * RECORDS_IN_BATCH, 3),
}
# In which batches a leader's term begins, with its epoch.
TERMS: Final = {0: 0, 2: 3, 7: 6, 12: 7}


INTERVALS: Final = (0, 1 << 20)  # of an index: it names every batch but the first, or none


class Fault(NamedTuple):
    """Bytes of a batch from `start` on that are XORed with `bits`, or a sector of zeroes there."""

    name: str
    field: str
    start: int
    bits: bytes = b""


def faults(*, is_whole: bool) -> Iterator[Fault]:
    """All of them, or those that `make test` takes."""
    for field, (start, end) in FIELDS.items():
        for at in range(start, end):
            for bit in range(8):
                is_chosen = at in (start, end - 1) and bit == CHOSEN_BITS[at % 2]
                if is_whole or field in UNCHECKED or is_chosen:
                    yield Fault(f"{field}, byte {at} bit {bit}", field, at, bytes([1 << bit]))
    yield Fault("a sector of zeroes", "a sector of zeroes", 0)


class Written(NamedTuple):
    """A log as it was written: its disk after a stop and after a kill, each record's offset and
    value, and the size of a batch."""

    stopped: SimulatedFiles
    killed: SimulatedFiles
    records: list[tuple[int, bytes]]
    size: int


def started(files: SimulatedFiles, *isr: int) -> Node:
    """A broker on that disk, which leads with these in-sync replicas."""
    node = Node(files)
    node.live(1, 2, 3)
    if isr:
        lead(node, 7, *isr)
    return node


def lead(node: Node, epoch: int, *isr: int) -> None:
    node.lead(state_of(epochs=(epoch, epoch), isr=isr, replicas=(1, 2, 3)))


def written(index_interval: int) -> Written:
    files = SimulatedFiles(random.Random(1))
    probe = encode_batch([(1_000, None, bytes(VALUE_BYTES), ())] * RECORDS_IN_BATCH)
    node = Node(
        files,
        log_index_interval_bytes=str(index_interval),
        log_segment_bytes=str(BATCHES_IN_SEGMENT * len(probe)),
    )
    node.live(1, 2, 3)
    records = []
    for number in range(BATCH_COUNT):
        if number in TERMS:
            lead(node, TERMS[number], 1)
        first = number * RECORDS_IN_BATCH
        values = [b"%0*d" % (VALUE_BYTES, first + at) for at in range(RECORDS_IN_BATCH)]
        batch = encode_batch([(1_000 + number, None, value, ()) for value in values])
        node.partition().append_as_leader(memoryview(batch), 1, 0.0, 1_000)
        records += enumerate(values, first)
    node.manager.record_high_watermarks({T0: END})
    node.manager.checkpoint_high_watermarks()
    killed = copy.deepcopy(files)
    killed.kill()
    node.manager.close({T0: END})
    return Written(files, killed, records, len(probe))


@functools.cache
def log_with(index_interval: int) -> Written:
    """Made once: cases work on copies of its disks."""
    return written(index_interval)


def plant(files: SimulatedFiles, fault: Fault, target: str, size: int) -> None:
    """Do the harm."""
    _, base_offset, place = TARGETS[target]
    path = LOG / f"{base_offset:020}.log"
    data = files.read_bytes(path)
    begin = place * size + fault.start
    if fault.bits:
        new = bytes(old ^ mask for old, mask in zip(data[begin:], fault.bits, strict=False))
    else:
        new = bytes(min(SECTOR_BYTES, len(data) - begin))
    for at, (old, byte) in enumerate(zip(data[begin:], new, strict=False), begin):
        for bit in range(8):
            if (old ^ byte) >> bit & 1:
                files.flip(path, at, bit)


# -- who reads


class Read(NamedTuple):
    """What somebody read before it stood still, and where and why it did ("" at the end)."""

    records: list[tuple[int, bytes]]
    position: int
    error: str = ""


def consume(node: Node, offset: int = 0) -> Read:
    """Read as a consumer does, until the end or an error."""
    positions = Positions(read_options(ConsumerOptions, "h:1", {}))
    positions.assign([T0])
    positions.seek(T0, offset)
    records: list[tuple[int, bytes]] = []
    for step in range(STEPS_MAX):
        try:
            records += [
                (each.offset, bytes(each.value or b"")) for each in positions.take_records(10)
            ]
        except PositionError as error:
            return Read(records, positions.position(T0) or 0, str(error))
        at = positions.position(T0)
        assert at is not None
        if at >= END:
            return Read(records, at)
        wanted, bytes_max = positions.plan(lambda _: node.partition().leader_epoch, float(step))
        if wanted:
            steps = ask(node, *wanted, bytes_max=bytes_max, now=float(step), wait_ms_max=0)
            outcome = finished(steps)
            assert isinstance(outcome, FetchResponse)
            (answer,) = outcome.partitions
            positions.handle_answer(wanted[0], joined(answer), float(step))
    return Read(records, at, "" if not node.partition().is_leader else "HANGS")


def joined(answer: PartitionFetched) -> PartitionFetched:
    """As it arrives: its records are bytes."""
    data = b"".join(bytes(part.read()) for part in answer.records)
    return replace(answer, records=data)


def follow(node: Node) -> Read:
    """Copy as a follower does, until all is there or the leader is of no use."""
    limits = load(flags={}).config.for_topic()
    place = LogLocation(SimulatedFiles(random.Random(2)), LOG, T0)
    log = Log.open(place, limits.limits(), NEW_LOG, now_ms=1_000)
    state = state_of(epochs=(7, 7), isr=(1,), replicas=(1, 2, 3))
    role = Follower(state, 0)
    reason = ""
    for step in range(STEPS_MAX):
        if log.log_end >= END or not node.partition().is_leader:
            break
        request = want(log.log_end, last_fetched_epoch=role.last_fetched_epoch(log))
        outcome = finished(ask(node, request, replica_id=2, now=float(step), wait_ms_max=0))
        assert isinstance(outcome, FetchResponse)
        fetched = check(FetchResponse(0, 0, tuple(joined(each) for each in outcome.partitions)))
        answer = LeaderAnswer(log.log_end, fetched.response.partitions[0], fetched.batches[0])
        before = log.log_end
        outcome = role.handle_answer(log, answer, limits, 1_000)
        reason = outcome.reason
        if outcome.next is Next.STOP:
            break
        assert outcome.next is Next.BACK_OFF or log.log_end > before, "it asks for ever"
    return Read(stored(log), log.log_end, reason if log.log_end < END else "")


@contextlib.contextmanager
def capturing(name: str) -> Iterator[list[str]]:
    """What is said on a logger."""
    told: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: told.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger(name)
    logger.addHandler(handler)
    try:
        yield told
    finally:
        logger.removeHandler(handler)


def stored(log: Log) -> list[tuple[int, bytes]]:
    """All records of a log."""
    data = b"".join(bytes(part.read()) for part in log.read(log.log_start, EVERYTHING, log.log_end))
    return [
        (record.offset, bytes(record.value or b""))
        for position, header in iterate_headers(data)
        for record in decode_records(memoryview(data)[position:][: header.size], header)
    ]


# -- what becomes of it


def first_of(target: str) -> int:
    """The first offset of the batch."""
    return TARGETS[target][0] * RECORDS_IN_BATCH


def judge(read: Read, written: Written, target: str, named: str) -> None:
    """All was read as it was written, or all up to the batch, and its offset was named."""
    assert read.records == written.records[: len(read.records)], "others than were written"
    assert read.position == len(read.records), "a position that is not that of what was read"
    if len(read.records) == END:
        return
    assert read.error != "HANGS"
    assert read.position <= first_of(target), "behind the damage"
    offsets = re.findall(r"t-0 (?:at|has bad bytes at) offset (\d+)", named)
    assert [int(offset) for offset in offsets[-1:]] == [first_of(target)]


def meet_consumer(files: SimulatedFiles, fault: Fault, target: str, written: Written) -> str:
    """A consumer of a leader that is alone."""
    node = started(files, 1)
    plant(files, fault, target, written.size)
    read = consume(node)
    judge(read, written, target, read.error)
    if not read.error:
        return "harmless"
    behind = min(END, first_of(target) + 2 * RECORDS_IN_BATCH)
    assert consume(node, behind).records == written.records[behind:]
    return "named"


def meet_follower(files: SimulatedFiles, fault: Fault, target: str, written: Written) -> str:
    """A follower of a leader that is alone in sync."""
    node = started(files, 1)
    plant(files, fault, target, written.size)
    with capturing("minibroker.broker.replication.replica_table") as told:
        read = follow(node)
    judge(read, written, target, "\n".join(told))
    return "named" if read.error else "harmless"


def meet_replicas(files: SimulatedFiles, fault: Fault, target: str, written: Written) -> str:
    """A follower of a leader that is one of three in sync: it is given up, if anything is found."""
    node = started(files, 1, 2, 3)
    plant(files, fault, target, written.size)
    read = follow(node)
    assert read.records == written.records[: len(read.records)]
    log = node.partition().log
    if log.damage is None:
        assert len(read.records) == END
        return "harmless"
    assert (log.damage.offset, node.damage_count) == (first_of(target), 1)
    assert not node.partition().is_leader
    node.lead(state_of(epochs=(8, 8), leader=2, isr=(2, 3), replicas=(1, 2, 3)))
    assert (log.log_end, log.damage) == (first_of(target), None)  # and copies from there
    assert stored(log) == written.records[: first_of(target)]
    return "named"


def meet_restart(files: SimulatedFiles, fault: Fault, target: str, written: Written) -> str:
    """A broker that starts on that disk, and then a consumer of what it took for sound."""
    plant(files, fault, target, written.size)
    node = started(files)
    log = node.manager.get(T0)
    assert log is not None
    if log.damage is not None:
        assert log.damage.offset == log.log_end == first_of(target)
        assert stored(log) == written.records[: log.log_end]
        return "named"
    if log.epochs.newest_epoch > TERMS[max(TERMS)]:
        return "named"  # the leader of an epoch that is higher than all is not believed
    lead(node, 7, 1)
    read = consume(node)
    judge(read, written, target, read.error)
    return "named" if read.error else "harmless"


MEETINGS: Final = {
    "consumer": meet_consumer,
    "follower": meet_follower,
    "replicas": meet_replicas,
    "restart": meet_restart,
    "restart after a kill": meet_restart,
}


# (who reads, which batch, which field): why a fault of it may end well. All others are named.
HARMLESS: Final = {
    ("restart after a kill", "middle", "leader epoch"): "a term's first batch, and an epoch between"
    " those of its neighbours: records and offsets are what they were, and nothing tells it from a"
    " term that wrote little; it counts only for who asks where that epoch ended",
}
# Of how many faults one each place and reader meets in `make test`: other ones each, because the
# number is prime to that of the places.
SPARED: Final = 7

CASES: Final = [
    (who, target, interval) for who in MEETINGS for target in TARGETS for interval in INTERVALS
]


def play(who: str, target: str, interval: int, chosen: Iterable[Fault]) -> None:
    """Have somebody meet these faults, each on a disk of its own."""
    written = log_with(interval)
    valid = written.killed if "kill" in who else written.stopped
    for fault in chosen:
        try:
            end = MEETINGS[who](copy.deepcopy(valid), fault, target, written)
        except (AssertionError, struct.error) as error:
            raise AssertionError(f"{fault.name} of the {target} batch, {who}: {error}") from error
        is_so = end == "named" or (who, target, fault.field) in HARMLESS
        assert is_so, f"{fault.name} of the {target} batch was not found by: {who}"


@pytest.mark.parametrize(("who", "target", "interval"), CASES)
def test_a_fault_is_named_or_harmless(who: str, target: str, interval: int) -> None:
    """A seventh of the faults for each, so that each fault is met by five of them, or six."""
    number = CASES.index((who, target, interval))
    play(who, target, interval, islice(faults(is_whole=False), number % SPARED, None, SPARED))


@pytest.mark.soak
@pytest.mark.parametrize(("who", "target", "interval"), CASES)
def test_every_fault_is_named_or_harmless(who: str, target: str, interval: int) -> None:
    """All of them."""
    play(who, target, interval, faults(is_whole=True))
