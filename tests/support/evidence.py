"""What clients of a cluster under faults were told, and whether it is all there in the end.

Producers number their records and write down what was acknowledged at which offset; readers write
down every record that they are shown. `judge` compares what the last reader saw with all of it.
"""

import random
import time
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import trio

from minibroker.client import Consumer, Delivery, Producer, Seams, TopicPartition

TOPIC = "numbers"
PARTITIONS = 3
Records = dict[TopicPartition, dict[int, bytes]]


@dataclass
class Evidence:
    """What the clients were told; `place` is where they write their ledgers, and `seams` how they
    reach the cluster if not as everybody does.

    `longest_wait_s` is the longest that a record waited from `send` to its acknowledgement.
    """

    place: Path
    seams: Seams | None = None
    sent: int = 0
    longest_wait_s: float = 0.0
    acked: Records = field(default_factory=lambda: defaultdict(dict))
    shown: list[Records] = field(default_factory=list)
    ledgers: list[Path] = field(default_factory=list)
    _sent_at: dict[bytes, float] = field(default_factory=dict)
    _latest: dict[TopicPartition, tuple[float, int]] = field(default_factory=dict)
    _news: trio.lowlevel.ParkingLot = field(default_factory=trio.lowlevel.ParkingLot)

    def new_ledger(self) -> Path:
        """For one more client."""
        self.ledgers.append(self.place / f"client-{len(self.ledgers)}.jsonl")
        return self.ledgers[-1]

    def note_send(self, value: bytes) -> None:
        """Called right before a record is handed to the producer."""
        self._sent_at[value] = time.monotonic()

    def take(self, delivery: Delivery) -> None:
        """Called with every batch's fate."""
        assert delivery.error is None, delivery.error
        name = TopicPartition(delivery.topic, delivery.partition)
        now = time.monotonic()
        for record in delivery.records():
            self.longest_wait_s = max(self.longest_wait_s, now - self._sent_at.pop(record.value))
            if record.offset >= 0:  # -1: acknowledged as a repetition, its place is not known
                assert record.offset not in self.acked[name], f"{name} {record.offset} twice"
                self.acked[name][record.offset] = record.value
                self._latest[name] = now, record.offset
        self._news.unpark_all()

    def note_shown(self) -> None:
        """Called when a reader was shown records."""
        self._news.unpark_all()

    async def wait_for_service(self, since: float) -> float:
        """Until each partition has acknowledged a record after `since` (a moment of
        `time.monotonic`), and has shown it to every reader; returns how many seconds that took."""
        names = [TopicPartition(TOPIC, number) for number in range(PARTITIONS)]
        while not all(self._serves(name, since) for name in names):
            await self._news.park()
        return time.monotonic() - since

    async def wait_until_all_acknowledged(self, before: float) -> None:
        """Until nothing waits any more that was sent before this moment."""
        while next(iter(self._sent_at.values()), before) < before:
            await self._news.park()

    def _serves(self, name: TopicPartition, since: float) -> bool:
        acked_at, offset = self._latest.get(name, (0.0, -1))
        return acked_at > since and all(offset in shown[name] for shown in self.shown)


async def produce(
    address: str, number: int, evidence: Evidence, stop: trio.Event, *, pause_s: float = 0.01
) -> None:
    """Send numbered records to all partitions in turn, a few at a time, until told to stop."""
    rng = random.Random(number)
    count = 0
    options = {"on_delivery": evidence.take, "ledger": evidence.new_ledger(), "linger_ms": 2}
    async with Producer(address, seams=evidence.seams, **options) as producer:
        while not stop.is_set():
            for _ in range(rng.randint(1, 50)):
                value = b"%d:%d" % (number, count)
                evidence.note_send(value)
                await producer.send(TOPIC, value, partition=count % PARTITIONS)
                count += 1
            await trio.sleep(pause_s)
        await producer.flush()
    evidence.sent += count


async def read(address: str, evidence: Evidence, drained: trio.Event) -> None:
    """Read from the start; at the end of the log once `drained` is set."""
    shown: Records = defaultdict(dict)
    evidence.shown.append(shown)
    options = {"auto_offset_reset": "earliest", "ledger": evidence.new_ledger()}
    async with Consumer(address, seams=evidence.seams, **options) as consumer:
        names = await consumer.assign_topics(TOPIC)
        while True:
            is_last = drained.is_set()
            records = await consumer.poll(0.5)
            for record in records:
                there = shown[TopicPartition(record.topic, record.partition)]
                assert record.offset == len(there), "offsets go up one by one, none comes twice"
                there[record.offset] = record.value
            evidence.note_shown()
            if is_last and not records:
                ends = await consumer.end_offsets(*names)
                if all(consumer.position(name) == ends[name] for name in names):
                    return


def judge(evidence: Evidence) -> None:
    """Compare what was told with what was shown last, which is all there is."""
    stored = evidence.shown[-1]
    values = [value for there in stored.values() for value in there.values()]
    assert len(values) == evidence.sent
    assert len(set(values)) == len(values), "a record is there twice"
    for name, there in stored.items():
        last: dict[bytes, int] = {}
        for offset in sorted(there):
            producer, _, number = there[offset].partition(b":")
            assert last.get(producer, -1) < int(number), f"{name} {offset} is out of order"
            last[producer] = int(number)
        for offset, value in evidence.acked[name].items():
            assert there.get(offset) == value, f"{name} {offset}: acknowledged, and not there"
        for shown in evidence.shown:
            assert shown[name] == there, f"{name}: a reader was shown something else"
