"""Producer ids: blocks of 1000, the next one in time, none twice (PID-17)."""

from itertools import pairwise

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from minibroker.broker.controller.producer_ids import (
    ID_MAX,
    ProducerIds,
    ProducerIdsExhausted,
    claim_block,
    next_block,
)
from minibroker.broker.metadata.memory_store import MemoryStore
from minibroker.broker.metadata.store import Snapshot


def test_without_a_block_there_is_no_id():
    """Before the first block there is no id, and the block is asked for once."""
    ids = ProducerIds()
    assert ids.next_id() is None
    assert [ids.ask(), ids.ask()] == [True, False]


def test_the_next_block_is_asked_for_when_nine_tenths_are_used():
    """With 90 % of a block used the next is asked for, once, before the block runs out."""
    ids = ProducerIds()
    ids.add(range(1000))
    asked = [(ids.next_id(), ids.ask()) for _ in range(1000)]
    assert [producer_id for producer_id, is_asked in asked if is_asked] == [899]
    assert ids.next_id() is None
    ids.add(range(1000, 2000))
    assert ids.next_id() == 1000
    assert ids.ask() is False


@given(st.lists(st.booleans(), max_size=400), st.integers(0, 2000))
def test_ids_grow_and_none_comes_twice(moves, gap):
    """Whatever the order of taking and of blocks arriving, ids only grow."""
    ids, taken, first = ProducerIds(), [], 0
    is_asked = False
    for arrives in moves:
        if arrives and is_asked:
            ids.add(next_block(first))
            first += 1000 + gap
            is_asked = False
        for _ in range(130):
            producer_id = ids.next_id()
            if producer_id is not None:
                taken.append(producer_id)
            is_asked = ids.ask() or is_asked
    assert all(a < b for a, b in pairwise(taken))


def test_a_counter_near_its_end_is_fatal():
    """Near 2^63, and for a counter that makes no sense, there is an error instead of an id."""
    assert next_block(5) == range(5, 1005)
    for counter in (ID_MAX - 999, ID_MAX, -1):
        with pytest.raises(ProducerIdsExhausted):
            next_block(counter)


class BothReadFirst(MemoryStore):
    """A memory store whose first two readers have both read before either goes on."""

    def __init__(self) -> None:
        super().__init__()
        self.reads = 0
        self._both_have_read = trio.Event()

    async def get(self, prefix: str) -> Snapshot:
        snapshot = await super().get(prefix)
        self.reads += 1
        if self.reads == 2:
            self._both_have_read.set()
        await self._both_have_read.wait()
        return snapshot


async def test_two_claims_at_the_same_moment_get_two_blocks(autojump_clock):
    """Both have read the same counter: the second write is refused, and that claim begins again."""
    store = BothReadFirst()
    blocks = []

    async def claim() -> None:
        blocks.append(await claim_block(store))

    with trio.fail_after(10):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(claim)
            nursery.start_soon(claim)
    assert sorted(block.start for block in blocks) == [0, 1000]
    assert store.reads == 3
