"""What the demo, the acceptance rounds and the benchmarks look at: lines, leaders, log files.

* `standard_library` is the real input: the lines of Python's own files, each under its file's name.
* `History` asks a cluster again and again who leads each partition and who is in sync, and writes
  down every change with its time.
* `log_digests` reads what the brokers left on their disks.
"""

import hashlib
import sysconfig
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import trio

from minibroker.client import Admin, Consumer, Seams
from minibroker.client.errors import ClientTimeout
from minibroker.protocol.errors import BrokerError

Lines = dict[bytes, list[bytes]]

ASK_EVERY_S = 0.05
STALLED_S_MAX = 30.0


def standard_library(lines_max: int) -> Lines:
    """The lines of real files by file name; whole files, until there are `lines_max`."""
    root = Path(sysconfig.get_paths()["stdlib"])
    lines: Lines = {}
    count = 0
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root)
        if count >= lines_max or not {"site-packages", "dist-packages"}.isdisjoint(name.parts):
            continue
        found = path.read_bytes().split(b"\n")
        lines[name.as_posix().encode()] = found
        count += len(found)
    return lines


def differences(expected: Lines, found: Lines) -> Iterator[str]:
    """Every key whose lines are not exactly the expected ones, in their order."""
    for key in sorted(expected.keys() | found.keys()):
        wanted, got = expected.get(key, []), found.get(key, [])
        if wanted == got:
            continue
        name = key.decode(errors="replace")
        pairs = zip(wanted, got, strict=False)
        first = next((n for n, (a, b) in enumerate(pairs) if a != b), min(len(wanted), len(got)))
        yield f"{name}: {len(wanted)} lines sent, {len(got)} read, the first difference at {first}"


async def read_all(address: str, topic: str, ledger: Path | None = None) -> Lines:
    """Everything that is in the topic, by key, in the order of each partition."""
    found: Lines = defaultdict(list)
    async with Consumer(address, auto_offset_reset="earliest", ledger=ledger) as consumer:
        partitions = await consumer.assign_topics(topic)
        missing = sum((await consumer.end_offsets(*partitions)).values())
        last_progress = trio.current_time()
        while missing > 0 and trio.current_time() - last_progress < STALLED_S_MAX:
            records = await consumer.poll(1.0)
            for record in records:
                found[record.key or b""].append(record.value or b"")
            missing -= len(records)
            last_progress = trio.current_time() if records else last_progress
    return dict(found)


class Change(NamedTuple):
    """From `time` on (seconds since the beginning) a partition stood like this."""

    time: float
    partition: int
    leader: int
    leader_epoch: int
    isr: tuple[int, ...]


class History:
    """The leaders and in-sync sets of one topic, as an onlooker learns of them."""

    def __init__(self, topic: str, seams: Seams | None = None) -> None:
        self.changes: list[Change] = []
        self.latest: dict[int, Change] = {}
        self._topic = topic
        self._seams = seams
        self._began = time.monotonic()
        self._news = trio.lowlevel.ParkingLot()

    async def watch(self, address: str) -> None:
        """Ask until cancelled; a time in which nobody answers is a gap in the history."""
        async with Admin(address, seams=self._seams) as admin:
            while True:
                try:
                    [topic] = await admin.describe_topics(self._topic)
                except (BrokerError, ClientTimeout):
                    topic = None
                if topic is not None:
                    self._note(topic.partitions)
                await trio.sleep(ASK_EVERY_S)

    def _note(self, partitions: Iterable[object]) -> None:
        now = time.monotonic() - self._began
        for found in partitions:
            change = Change(now, found.partition, found.leader_id, found.leader_epoch, found.isr)
            before = self.latest.get(found.partition)
            if before is None or before[2:] != change[2:]:
                self.changes.append(change)
                self.latest[found.partition] = change
        self._news.unpark_all()

    async def wait_for_isr(self, size: int) -> None:
        """Until every partition has a leader and so many replicas in sync."""
        while not self.latest or not all(
            len(change.isr) == size and change.leader >= 0 for change in self.latest.values()
        ):
            await self._news.park()

    async def wait_for_another_leader(self, partition: int, before: int) -> Change:
        """Until somebody else leads the partition."""
        while self.latest[partition].leader in (before, -1):
            await self._news.park()
        return self.latest[partition]


def log_digests(data_dir: Path, topic: str) -> dict[str, str]:
    """A digest of all bytes of each partition's log that a broker has left."""
    return {
        directory.name: _digest(directory)
        for directory in sorted(data_dir.glob(f"{topic}-[0-9]*"))
        if directory.name.removeprefix(f"{topic}-").isdecimal()
    }


def _digest(directory: Path) -> str:
    """The segments end to end: where one is cut from the next is each replica's own affair."""
    digest = hashlib.sha256()
    for path in sorted(directory.glob("*.log")):
        digest.update(path.read_bytes())
    return digest.hexdigest()
