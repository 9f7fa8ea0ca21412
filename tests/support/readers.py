"""Members of a group that read a topic to its end, and what they have read together.

They commit what they have worked on after each poll, so without a crash every record comes to just
one of them, once, however often brokers fail and partitions change hands meanwhile.
"""

from collections import defaultdict
from pathlib import Path

import trio

from minibroker.client import Consumer
from tests.support.witness import Lines

POLL_S = 0.5


class Readers:
    """What a group has read of one topic."""

    def __init__(self, topic: str, group_id: str) -> None:
        self._topic = topic
        self._group_id = group_id
        self._found: dict[tuple[int, int], tuple[bytes, bytes]] = {}  # by partition and offset
        self._progress = trio.lowlevel.ParkingLot()
        self._ends = False
        self.record_count = 0

    async def read(self, address: str, ledger: Path) -> None:
        """Be a member until `stop`."""
        options = {"enable_auto_commit": False, "auto_offset_reset": "earliest"}
        async with Consumer(address, group_id=self._group_id, ledger=ledger, **options) as consumer:
            await consumer.subscribe(self._topic)
            while not self._ends:
                for record in await consumer.poll(POLL_S):
                    place = record.partition, record.offset
                    self._found[place] = record.key or b"", record.value or b""
                    self.record_count += 1
                await consumer.commit()
                self._progress.unpark_all()

    @property
    def read_again(self) -> int:
        """How many records came more than once."""
        return self.record_count - len(self._found)

    async def wait_for(self, count: int) -> None:
        """Until so many different records were read."""
        while len(self._found) < count:
            await self._progress.park()

    def stop(self) -> None:
        """Let every member leave after its next poll."""
        self._ends = True

    def lines(self) -> Lines:
        """All values by key, in the order of each partition."""
        found: Lines = defaultdict(list)
        for _, (key, value) in sorted(self._found.items()):
            found[key].append(value)
        return dict(found)
