"""Processes that copy records in transactions: the wire and nothing else.

A copier reads committed records of its input partitions, writes one record for each to the output,
the newest one of each input partition to a compacted topic, and the input's offsets to its group,
all in one transaction, which it commits, or aborts by chance. It speaks the first protocol or the
second (KIP-890). As a careful client it asks again after a lost answer. In the first protocol such
a request may still arrive, and would count for the next transaction; so before that one the copier
has its epoch raised (KIP-360), as Kafka's clients do.

All processes of a slot have one transactional id. The next one begins when the one before has left,
has crashed, or stands still; or while that one goes on, and finds itself fenced.
"""

from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from random import Random
from typing import Any, Final, NamedTuple

import trio

from minibroker.broker.transactions.transaction import NO_PRODUCER, Producer
from minibroker.protocol.constants import ACKS_ALL, ApiKey, ErrorCode
from minibroker.protocol.errors import RETRIABLE
from minibroker.protocol.messages.group_offsets import (
    GroupPartition,
    OffsetFetchRequest,
    OffsetFetchResponse,
    PartitionCommit,
)
from minibroker.protocol.messages.produce import PartitionProduce, ProduceRequest
from minibroker.protocol.messages.producer_id import InitProducerIdRequest
from minibroker.protocol.messages.transactions import (
    FIRST_PROTOCOL,
    SECOND_PROTOCOL,
    AddOffsetsToTxnRequest,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    EndTxnRequest,
    EndTxnResponse,
    TransactionPartitions,
    TxnOffsetCommitRequest,
)
from minibroker.protocol.records.batch import (
    TRANSACTIONAL,
    ProducerStamp,
    read_header,
    write_header,
)
from minibroker.protocol.records.record import encode_batch
from minibroker.protocol.types import TopicPartition
from minibroker.testing.cluster import SimulatedWorld
from tests.sim.checkers import Violation
from tests.sim.processes import Process
from tests.sim.transaction_checkers import (
    Attempt,
    Attempts,
    CommittedOffsets,
    Outcome,
    Sessions,
    Shown,
    Source,
    Views,
    Written,
    check_fenced,
)
from tests.sim.transaction_logs import read_committed
from tests.sim.transaction_wire import Wire, open_wire
from tests.sim.workload import TOPIC

OUTPUT: Final = "copies"
TABLE: Final = "newest"
GROUP: Final = "copiers"
HOSTS: Final = 3  # of a slot, on which its processes run in turn
PAUSE_S: Final = 0.05
RECORDS_MAX: Final = 20  # of a transaction
LEFT_MS: Final = 500  # the time-out of a transaction that is left
FENCED: Final = frozenset({ErrorCode.INVALID_PRODUCER_EPOCH, ErrorCode.PRODUCER_FENCED})
# By protocol. In the second one the epoch says which transaction a request is of (`end_error`).
ABORTABLE: Final = {
    FIRST_PROTOCOL: frozenset({ErrorCode.TRANSACTION_ABORTABLE, ErrorCode.INVALID_TXN_STATE}),
    SECOND_PROTOCOL: frozenset({ErrorCode.TRANSACTION_ABORTABLE}),
}
FATES: Final = ("leave", "crash", "crash", "pause", "replace", "replace paused", "replace paused")


class Fenced(Exception):
    """Another process has the transactional id, or its transaction was late."""


class Restart(Exception):
    """The transaction cannot be committed: the process begins a new session."""


class Fates(NamedTuple):
    """What the processes of a seed are like. Times are milliseconds, or seconds on average."""

    slots: int
    versions: tuple[int, ...]
    timeout_ms: int
    life_s: float
    aborts: float
    dawdles: float
    records_max: int


def draw_fates(rng: Random, inputs: int) -> Fates:
    """For all processes of a seed, which have so many input partitions."""
    return Fates(
        slots=min(inputs, rng.choice((1, 2, 2))),
        versions=rng.choice(
            ((FIRST_PROTOCOL,), (SECOND_PROTOCOL,), (FIRST_PROTOCOL, SECOND_PROTOCOL))
        ),
        timeout_ms=rng.choice((800, 800, 2_000, 10_000)),
        life_s=rng.choice((0.5, 1.0, 2.0)),
        aborts=rng.choice((0.1, 0.4)),
        dawdles=rng.choice((0.1, 0.3)),
        records_max=rng.choice((1, 5, RECORDS_MAX)),
    )


class Moment:
    """Something that happens again and again."""

    def __init__(self) -> None:
        self._next = trio.Event()

    def come(self) -> None:
        """It happens."""
        self._next.set()
        self._next = trio.Event()

    async def wait(self) -> None:
        """Until it happens the next time."""
        await self._next.wait()


@dataclass
class Stage:
    """What all processes share; `stop` ends their fates, `drained` ends them. `ends` are where the
    output ends, once all is drained. `ending` comes when a process asks to end a transaction,
    `ended` when it is told that this is done."""

    world: SimulatedWorld
    address: str
    inputs: int
    outputs: int
    fates: Fates
    note: Callable[[str], None]  # for the trace
    attempts: Attempts = field(default_factory=Attempts)
    sessions: Sessions = field(default_factory=Sessions)
    stop: trio.Event = field(default_factory=trio.Event)
    drained: trio.Event = field(default_factory=trio.Event)
    ending: Moment = field(default_factory=Moment)
    ended: Moment = field(default_factory=Moment)
    ends: dict[TopicPartition, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.offsets = CommittedOffsets(self.attempts)
        self.views = Views(self.attempts)

    def inputs_of(self, slot: int) -> tuple[TopicPartition, ...]:
        """The input partitions of a slot."""
        numbers = range(slot, self.inputs, self.fates.slots)
        return tuple(TopicPartition(TOPIC, number) for number in numbers)

    @property
    def output_places(self) -> tuple[TopicPartition, ...]:
        """The partitions of the output."""
        return tuple(TopicPartition(OUTPUT, number) for number in range(self.outputs))

    def is_copied(self, ends: dict[TopicPartition, int]) -> bool:
        """Whether all of the input is copied, as the processes know."""
        return all(self.offsets.floors.get(place, 0) == end for place, end in ends.items())


class Copier(Process):
    """One process, from its start to its end."""

    def __init__(
        self, stage: Stage, name: str, number: int, inputs: Sequence[TopicPartition]
    ) -> None:
        super().__init__(stage.world, f"{name}.{number}", f"{name}{'abc'[number % HOSTS]}")
        self._id = name  # the transactional id
        self._stage = stage
        self._inputs = inputs
        self._rng = stage.world.rng(f"{self.who}/fate")
        self._version = self._rng.choice(stage.fates.versions)
        self._timeout_ms = stage.fates.timeout_ms
        self._numbers = count()
        self._producer = NO_PRODUCER
        self._sequences: Counter[TopicPartition] = Counter()
        self._positions: dict[TopicPartition, int] = {}
        self._is_in_doubt = False  # a request may still arrive

    def crash(self) -> None:
        """`kill -9`."""
        self._stage.note(f"{self.who} crashes")
        super().crash()

    async def pause(self, duration_s: float) -> None:
        """SIGSTOP for a while."""
        self._stage.note(f"{self.who} stands still")
        await super().pause(duration_s)
        self._stage.note(f"{self.who} goes on")

    async def run(self) -> None:
        """Copy until told to leave, or fenced."""
        await self._play(self._copy_all)

    async def leave_open(self) -> None:
        """Begin a transaction that is late soon, and end without an end of it."""
        self._timeout_ms = LEFT_MS
        await self._play(self._write_one)

    async def _play(self, play: Callable[[Wire], Awaitable[None]]) -> None:
        stage = self._stage
        with self._living():
            async with open_wire(stage.world, stage.address, self.who, self._host) as wire:
                for topic in (TOPIC, OUTPUT, TABLE):
                    await wire.cluster.topic(topic)
                with suppress(Fenced):
                    await self._begin_session(wire, NO_PRODUCER)
                    await play(wire)
        stage.note(f"{self.who} ends")

    async def _copy_all(self, wire: Wire) -> None:
        while not self.leaving.is_set():
            place = self._rng.choice(self._inputs)
            offsets = await self._read(wire, place)
            if not offsets:
                await trio.sleep(self._rng.uniform(0.01, PAUSE_S))
                continue
            try:
                await self._copy(wire, place, offsets)
            except Restart as restart:
                self._stage.note(f"{self.who} begins again: {restart}")
                await self._begin_session(wire, NO_PRODUCER)

    async def _write_one(self, wire: Wire) -> None:
        attempt = self._begin()
        place = self._stage.output_places[0]
        with suppress(Restart):
            await self._add_partitions(wire, [place])
            await self._write(wire, attempt, place, [Source(-1, 0)])

    # -- reading

    async def _read(self, wire: Wire, place: TopicPartition) -> list[int]:
        """The offsets of the next records."""
        position = self._positions[place]
        fetched = await wire.fetch(place, position, is_large=self._stage.stop.is_set())
        if fetched is None:
            return []
        aborted = fetched.aborted_transactions or ()
        shown, _ = read_committed(bytes(fetched.records), position, aborted)
        most = self._rng.randint(1, self._stage.fates.records_max)
        if self._stage.stop.is_set():  # copy the rest soon
            most = RECORDS_MAX
        return [record.offset for record in shown[:most]]

    async def _committed(self, wire: Wire) -> dict[TopicPartition, int]:
        """The group's offsets, once they are stable."""
        partitions = tuple(GroupPartition(*place) for place in self._inputs)
        request = OffsetFetchRequest(GROUP, partitions, require_stable=True)
        while self._inputs:
            floors = dict(self._stage.offsets.floors)
            answer = await wire.ask_of_group(GROUP, ApiKey.OFFSET_FETCH, request)
            offsets = offsets_of(answer)
            if len(offsets) == len(partitions):
                self._stage.offsets.note_told(self.who, offsets, floors, is_stable=True)
                return {place: max(offset, 0) for place, offset in offsets.items()}
            await self._wait(wire)
        return {}

    async def _wait(self, wire: Wire) -> None:
        """Before the next try."""
        wire.look_elsewhere()
        await trio.sleep(self._rng.uniform(0.01, PAUSE_S))

    # -- sessions and transactions

    async def _begin_session(self, wire: Wire, expected: Producer) -> None:
        """Get the next epoch, which fences the processes before, and the positions."""
        request = InitProducerIdRequest(self._id, *expected, self._timeout_ms)
        while True:
            answer = await wire.ask_of_id(self._id, ApiKey.INIT_PRODUCER_ID, request)
            if answer is not None and answer.error == ErrorCode.NONE:
                break
            if answer is not None and answer.error in FENCED:
                raise Fenced
            if answer is not None and answer.error not in RETRIABLE:
                raise Violation(f"{self.who} gets no epoch: {answer}")
            await self._wait(wire)
        self._take_epoch(Producer(answer.producer_id, answer.producer_epoch))
        self._positions = await self._committed(wire)

    def _take_epoch(self, producer: Producer) -> None:
        self._producer = producer
        self._stage.note(f"{self.who} has epoch {producer.epoch} of producer {producer[0]}")
        self._stage.sessions.begin(self._id, *producer, self.who)
        self._sequences.clear()
        self._is_in_doubt = False

    def _begin(self) -> Attempt:
        return self._stage.attempts.begin(f"{self.who}/{next(self._numbers)}")

    async def _copy(self, wire: Wire, place: TopicPartition, offsets: Sequence[int]) -> None:
        """One transaction. Raises `Restart` or `Fenced`."""
        stage, rng = self._stage, self._rng
        attempt = self._begin()
        is_commit = rng.random() >= stage.fates.aborts or stage.stop.is_set()
        outputs: dict[TopicPartition, list[Source]] = defaultdict(list)
        for offset in offsets:
            number = (place.partition + offset) % stage.outputs
            outputs[TopicPartition(OUTPUT, number)].append(Source(place.partition, offset))
        table = TopicPartition(TABLE, 0)
        await self._add_partitions(wire, [*outputs, table])
        writes: list[tuple[TopicPartition, Sequence[Source]]] = []
        for output, sources in outputs.items():
            some = rng.randint(0, len(sources))  # in two batches, if both have records
            writes += [(output, batch) for batch in (sources[:some], sources[some:]) if batch]
        pauses = iter(self._draw_pauses(len(writes) + 1))
        for output, batch in writes:
            await self._write(wire, attempt, output, batch)
            await trio.sleep(next(pauses))
        newest = Written(attempt.name, Source(place.partition, offsets[-1])).encode()
        key = b"%d" % place.partition
        base_offset = await self._produce(wire, table, [(key, newest)])
        attempt.keyed[key] = Shown(base_offset, newest, key)
        await trio.sleep(next(pauses))
        if is_commit or rng.random() < 0.5:
            await self._add_offset(wire, attempt, place, offsets[-1] + 1)
        await self._end(wire, attempt, is_commit=is_commit)

    def _draw_pauses(self, writes: int) -> list[float]:
        """How long to wait after each write of a transaction: after one of them in some."""
        rng, fates = self._rng, self._stage.fates
        pauses = [0.0] * writes
        if rng.random() < fates.dawdles and not self._stage.stop.is_set():
            pause_s = rng.uniform(0.2, 1.3) * min(fates.timeout_ms, 1_000) / 1_000
            pauses[rng.randrange(writes)] = pause_s
        return pauses

    async def _write(
        self, wire: Wire, attempt: Attempt, place: TopicPartition, sources: Sequence[Source]
    ) -> None:
        values = [Written(attempt.name, source).encode() for source in sources]
        attempt.records.update((place, value) for value in values)
        await self._produce(wire, place, [(None, value) for value in values])

    async def _produce(
        self, wire: Wire, place: TopicPartition, records: Sequence[tuple[bytes | None, bytes]]
    ) -> int:
        """Write one batch; return its offset."""
        stamp = ProducerStamp(*self._producer, self._sequences[place])
        now_ms = self._stage.world.wall_ms()
        batch = encode_batch([(now_ms, *record, ()) for record in records], producer=stamp)
        write_header(batch, read_header(batch)._replace(attributes=TRANSACTIONAL))
        request = ProduceRequest(
            ACKS_ALL,
            2_000,
            (PartitionProduce(*place, memoryview(batch)),),
            self._id,
            self._version,
        )
        answer = await self._insist(
            wire,
            f"PRODUCE to {place}",
            lambda: wire.ask_leader(place, ApiKey.PRODUCE, request),
            lambda answer: answer.partitions[0].error,
        )
        self._sequences[place] += len(records)
        offset: int = answer.partitions[0].base_offset
        return offset

    async def _add_partitions(self, wire: Wire, places: Sequence[TopicPartition]) -> None:
        """In the second protocol PRODUCE does that."""
        if self._version >= SECOND_PROTOCOL:
            return
        added = TransactionPartitions(self._id, *self._producer, tuple(places))
        request = AddPartitionsToTxnRequest((added,), self._version)
        await self._insist(
            wire,
            "ADD_PARTITIONS_TO_TXN",
            lambda: wire.ask_of_id(self._id, ApiKey.ADD_PARTITIONS_TO_TXN, request),
            first_error,
        )

    async def _add_offset(
        self, wire: Wire, attempt: Attempt, place: TopicPartition, offset: int
    ) -> None:
        if self._version < SECOND_PROTOCOL:
            add = AddOffsetsToTxnRequest(self._id, *self._producer, GROUP)
            await self._insist(
                wire,
                "ADD_OFFSETS_TO_TXN",
                lambda: wire.ask_of_id(self._id, ApiKey.ADD_OFFSETS_TO_TXN, add),
                lambda answer: answer.error,
            )
        attempt.offsets[place] = offset
        request = TxnOffsetCommitRequest(
            self._id,
            GROUP,
            *self._producer,
            partitions=(PartitionCommit(*place, offset),),
            transaction_version=self._version,
        )
        await self._insist(
            wire,
            "TXN_OFFSET_COMMIT",
            lambda: wire.ask_of_group(GROUP, ApiKey.TXN_OFFSET_COMMIT, request),
            lambda answer: answer.partitions[0].error,
        )

    async def _end(self, wire: Wire, attempt: Attempt, *, is_commit: bool) -> None:
        request = EndTxnRequest(self._id, *self._producer, is_commit, self._version)
        word = "commit" if is_commit else "abort"
        self._stage.note(f"{attempt.name} is to {word}")
        if is_commit:
            attempt.outcome = Outcome.IN_DOUBT
        self._stage.ending.come()
        answer = await self._insist(
            wire,
            f"END_TXN to {word}",
            lambda: wire.ask_of_id(self._id, ApiKey.END_TXN, request),
            partial(end_error, attempt, self._version),
        )
        self._stage.note(f"{attempt.name} did {word}")
        self._stage.ended.come()
        if is_commit:
            attempt.outcome = Outcome.COMMITTED
            self._stage.offsets.note_committed(attempt)
            self._positions |= attempt.offsets
        if self._version >= SECOND_PROTOCOL:
            self._take_epoch(Producer(answer.producer_id, answer.producer_epoch))
        elif self._is_in_doubt:
            await self._begin_session(wire, self._producer)

    async def _insist(
        self,
        wire: Wire,
        what: str,
        ask: Callable[[], Awaitable[Any]],
        error_of: Callable[[Any], int],
    ) -> Any:
        """Ask until it is accepted; return the answer. Raises `Restart`, `Fenced`, and `Violation`
        for an answer that may not be."""
        what = f"{what} of {self.who} in epoch {self._producer.epoch}"
        while True:
            was_fenced = self._stage.sessions.is_fenced(self._id, *self._producer)
            answer = await ask()
            error = ErrorCode.NETWORK_EXCEPTION if answer is None else error_of(answer)
            if error == ErrorCode.NONE:
                check_fenced(what, was_fenced=was_fenced)
                return answer
            if error in FENCED:
                raise Fenced
            if error in ABORTABLE[self._version]:
                raise Restart(f"{what}: {ErrorCode(error).name}")
            if error not in RETRIABLE:
                raise Violation(f"{what} is refused: {answer}")
            if error == ErrorCode.CONCURRENT_TRANSACTIONS:
                await trio.sleep(self._rng.uniform(0.01, PAUSE_S))
            else:
                self._is_in_doubt = True
                await self._wait(wire)


def end_error(attempt: Attempt, version: int, answer: EndTxnResponse) -> int:
    """The error of an END_TXN answer. In the second protocol a commit may be too late for a
    transaction that the coordinator has aborted, which the attempt is told."""
    is_commit = attempt.outcome is Outcome.IN_DOUBT
    is_too_late = is_commit and answer.error == ErrorCode.INVALID_TXN_STATE
    if version < SECOND_PROTOCOL or not is_too_late:
        return answer.error
    attempt.outcome = Outcome.REFUSED
    return ErrorCode.TRANSACTION_ABORTABLE


def first_error(answer: AddPartitionsToTxnResponse) -> int:
    """The first error of an answer that says why something was refused; NONE without one."""
    partitions = [each for one in answer.transactions for each in one.partitions]
    errors = [answer.error, *(each.error for each in partitions)]
    silent = (ErrorCode.NONE, ErrorCode.OPERATION_NOT_ATTEMPTED)
    return next((error for error in errors if error not in silent), ErrorCode.NONE)


def offsets_of(answer: OffsetFetchResponse | None) -> dict[TopicPartition, int]:
    """The offsets of an OFFSET_FETCH answer that have no error."""
    if answer is None or answer.error:
        return {}
    return {
        TopicPartition(each.topic, each.partition): each.offset
        for each in answer.partitions
        if not each.error
    }


async def play_slot(stage: Stage, slot: int) -> None:
    """The processes of a slot, until all is drained."""
    rng = stage.world.rng(f"slot-{slot}")
    processes: list[Copier] = []
    async with trio.open_nursery() as nursery:
        await trio.sleep(rng.uniform(0, 0.5))
        for number in count():
            process = Copier(stage, f"copier-{slot}", number, stage.inputs_of(slot))
            processes.append(process)
            nursery.start_soon(process.run)
            if await is_last(stage, process, rng, nursery):
                break
            await trio.sleep(rng.expovariate(1 / 0.2))
        for process in processes:
            process.leaving.set()


async def is_last(stage: Stage, process: Copier, rng: Random, nursery: trio.Nursery) -> bool:
    """What becomes of a process: whether it was the last one when all was drained. The next one may
    begin while it goes on."""
    while True:
        until = trio.current_time() + rng.expovariate(1 / stage.fates.life_s)
        while trio.current_time() < until or stage.stop.is_set():
            if process.ended.is_set() or stage.drained.is_set():
                return stage.drained.is_set()
            await trio.sleep(PAUSE_S)
        fate = rng.choice(FATES)
        stage.note(f"{process.who}: {fate}")
        if fate == "leave":
            process.leaving.set()
        elif fate == "crash":
            process.crash()
        elif fate == "pause":
            await process.pause(rng.expovariate(1 / 0.3))
            continue
        elif fate == "replace paused":
            nursery.start_soon(process.pause, rng.expovariate(1 / 1.0))
            return False
        if fate == "replace":
            return False
        await process.ended.wait()
        return False
