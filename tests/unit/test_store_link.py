"""The faults between a simulated broker and the store that it shares with others."""

import random

import pytest
import trio

from minibroker.broker.metadata.memory_store import MemoryStore
from minibroker.broker.metadata.store import Delete, LeaseLost, Put, StoreUnavailable
from minibroker.testing.store import TIMEOUT_S, StoreLink


@pytest.fixture
def store():
    return MemoryStore()


@pytest.fixture
def link(store):
    return StoreLink(store, random.Random(1))


async def test_a_cut_link_carries_nothing(store, link, autojump_clock):
    """The caller hears after a second that the store does not answer, and nothing was written."""
    link.cut()
    for call in (lambda: link.get(""), lambda: link.transact([], [Put("key", b"")])):
        start = trio.current_time()
        with pytest.raises(StoreUnavailable):
            await call()
        assert trio.current_time() - start >= TIMEOUT_S
    assert (await store.get("")).entries == {}
    link.heal()
    assert (await link.transact([], [Put("key", b"")])).succeeded


async def test_a_request_that_waits_for_a_cut_link_passes_when_it_heals(link, autojump_clock):
    """It is a link that comes back in time."""
    link.cut()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(link.transact, [], [Put("key", b"")])
        await trio.sleep(TIMEOUT_S / 2)
        link.heal()
    assert (await link.get("")).revision == 1


async def test_a_lease_runs_out_behind_a_cut_link(store, link, autojump_clock):
    """Others see its entries go, and the holder hears of it when it is back."""
    lease = await link.grant(2.0)
    await link.transact([], [Put("key", b"", lease.id)])
    link.cut()
    with pytest.raises(StoreUnavailable):
        await link.renew(lease.id)
    assert (await store.watch("", 1)).entries == {}
    link.heal()
    with pytest.raises(LeaseLost):
        await link.renew(lease.id)


async def test_a_held_renewal_comes_too_late(store, link, autojump_clock):
    """It was sent in good time and is done when the link lets it through."""
    lease = await link.grant(2.0)
    link.hold()

    async def renew():
        with pytest.raises(LeaseLost):
            await link.renew(lease.id)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(renew)
        await trio.sleep(10)
        link.heal()


async def test_an_answer_waits_on_a_held_or_cut_link(store, link, autojump_clock):
    """What was written is not said to be unwritten: the caller waits for the answer."""
    for fault in (link.hold, link.cut):
        answered = trio.Event()
        revision = (await store.get("")).revision
        link.delay_s_max = 1.0

        async def write(answered=answered):
            assert (await link.transact([], [Put("key", b"")])).succeeded
            answered.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(write)
            await store.watch("", revision)
            fault()
            await trio.sleep(10)
            assert not answered.is_set()
            link.heal()
        assert answered.is_set()


async def test_a_watch_hears_nothing_through_a_cut_link(store, link, autojump_clock):
    """It has the last state once the link heals."""
    heard = []

    async def watch():
        heard.append((await link.watch("", 0)).revision)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch)
        await trio.sleep(1)
        link.cut()
        await store.transact([], [Put("key", b"")])
        await trio.sleep(10)
        assert heard == []
        link.heal()
    assert heard == [1]


async def test_one_direction_may_be_held_alone(store, link, autojump_clock):
    """A request that waits is not done; one whose answer waits is, and nobody knows."""
    for hold, is_done in ((link.hold_requests, False), (link.hold_answers, True)):
        hold()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(link.transact, [], [Put("key", b"")])
            await trio.sleep(1)
            assert ("key" in (await store.get("")).entries) is is_done
            assert len(nursery.child_tasks) == 1
            link.heal()
        await link.transact([], [Delete("key")])
