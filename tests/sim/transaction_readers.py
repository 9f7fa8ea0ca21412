"""Those who look at what copiers write: readers of committed records, and one that asks for the
group's offsets."""

from itertools import count

import trio

from minibroker.protocol.constants import ApiKey
from minibroker.protocol.messages.group_offsets import OffsetFetchRequest
from minibroker.protocol.types import TopicPartition
from tests.sim.copiers import GROUP, Stage, offsets_of
from tests.sim.transaction_checkers import Shown
from tests.sim.transaction_logs import read_committed
from tests.sim.transaction_wire import Wire, open_wire

REREAD_S = 1.5
IDLE_S = 0.05


class Reader:
    """Reads the output from the beginning."""

    def __init__(self, stage: Stage, who: str, wire: Wire) -> None:
        self._stage = stage
        self._who = who
        self._wire = wire
        self._positions = dict.fromkeys(stage.output_places, 0)

    async def read_on(self) -> None:
        """Some records of each partition."""
        before = dict(self._positions)
        for place in before:
            shown = await self._read(place)
            self._stage.views.note(self._who, place, before[place], self._positions[place], shown)
        if before == self._positions:
            await trio.sleep(IDLE_S)

    async def _read(self, place: TopicPartition) -> list[Shown]:
        shown, self._positions[place] = await read(self._wire, place, self._positions[place])
        return shown

    @property
    def is_at_end(self) -> bool:
        """Whether it has read all that there will ever be."""
        return self._stage.drained.is_set() and self._positions == self._stage.ends


async def read(wire: Wire, place: TopicPartition, offset: int) -> tuple[list[Shown], int]:
    """Some committed records of a partition from an offset on, and the offset behind them."""
    fetched = await wire.fetch(place, offset)
    if fetched is None:
        return [], offset
    return read_committed(bytes(fetched.records), offset, fetched.aborted_transactions or ())


async def read_to(wire: Wire, place: TopicPartition, end: int) -> list[Shown]:
    """All committed records of a partition below an offset."""
    found: list[Shown] = []
    offset = 0
    while offset < end:
        shown, offset = await read(wire, place, offset)
        found += shown
    return found


async def consume(stage: Stage) -> None:
    """Read on for the whole time; return at the end."""
    who = "reader"
    async with open_wire(stage.world, stage.address, who, who) as wire:
        await wire.cluster.topic(stage.output_places[0].topic)
        reader = Reader(stage, who, wire)
        while not reader.is_at_end:
            await reader.read_on()


async def reread(stage: Stage) -> None:
    """Begin at the start again and again; return at the end."""
    host = "rereader"
    async with open_wire(stage.world, stage.address, host, host) as wire:
        await wire.cluster.topic(stage.output_places[0].topic)
        for turn in count():
            reader = Reader(stage, f"{host}-{turn}", wire)
            end = trio.current_time() + REREAD_S
            while trio.current_time() < end or stage.drained.is_set():
                await reader.read_on()
                if reader.is_at_end:
                    return


async def look_on(stage: Stage) -> None:
    """Ask for the group's offsets, stable or not, until all is drained."""
    who = "onlooker"
    rng = stage.world.rng(f"{who}/turns")
    async with open_wire(stage.world, stage.address, who, who) as wire:
        while not stage.drained.is_set():
            is_stable = rng.random() < 0.5
            floors = dict(stage.offsets.floors)
            request = OffsetFetchRequest(GROUP, require_stable=is_stable)
            answer = await wire.ask_of_group(GROUP, ApiKey.OFFSET_FETCH, request)
            offsets = offsets_of(answer)
            if not offsets:
                wire.look_elsewhere()
            stage.offsets.note_told(who, offsets, floors, is_stable=is_stable)
            await trio.sleep(rng.expovariate(1 / 0.1))
