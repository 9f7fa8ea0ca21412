"""What a broker says of a store that is away: once when it begins, once when it ends."""

import random

import pytest
import trio
import trio.testing

from minibroker.broker.controller.store_retry import StoreRetry
from minibroker.broker.metadata.memory_store import MemoryStore
from minibroker.broker.metadata.store import (
    LeaseLost,
    Put,
    StoreError,
    StoreFull,
    StoreUnavailable,
)
from minibroker.testing.store import StoreLink

BEGINS = "[Broker id=1] The metadata store cannot be used: "
ENDS = "[Broker id=1] The metadata store can be used again, after "


@pytest.fixture
def memory():
    return MemoryStore()


@pytest.fixture
def link(memory):
    return StoreLink(memory, random.Random(1))


@pytest.fixture
def store_retry():
    return StoreRetry(1)


@pytest.fixture
def told(caplog):
    """The first words of what was logged."""
    caplog.set_level("INFO", "minibroker.broker.controller")

    def begins():
        known = (BEGINS, ENDS)
        return [next(one for one in known if text.startswith(one)) for text in caplog.messages]

    return begins


async def test_several_that_ask_say_it_once(store_retry, link, told, nursery, autojump_clock):
    """However many ask, and however often: one line when it begins, one when all have answers."""
    await store_retry.ask(link.get, "")
    assert told() == []
    link.cut()
    for _ in range(3):
        nursery.start_soon(store_retry.ask, link.get, "")
    await trio.sleep(30)
    assert told() == [BEGINS]
    assert store_retry.trouble().endswith("cannot be used: the metadata store does not answer")
    assert store_retry.retries > 30
    link.heal()
    await trio.sleep(5)
    assert told() == [BEGINS, ENDS]
    assert store_retry.trouble() == ""


async def test_a_store_that_only_reads_is_not_back(
    store_retry, memory, told, nursery, autojump_clock
):
    """Who reads has answers all the time; it is over when who writes has one."""
    is_full = True

    async def write():
        if is_full:
            raise StoreUnavailable("no space")
        return await memory.transact([], [Put("key", b"")])

    nursery.start_soon(store_retry.ask, write)
    for _ in range(10):
        await trio.sleep(1)
        await store_retry.ask(memory.get, "")
    assert told() == [BEGINS]
    is_full = False
    await trio.sleep(2)
    assert told() == [BEGINS, ENDS]


async def test_who_asks_no_more_is_not_waited_for(store_retry, link, told, autojump_clock):
    """An asker that is cancelled says nothing; the next answer of anybody ends it. The loss of a
    lease is an answer, too."""
    for call in (link.get, link.renew):
        link.cut()
        with trio.move_on_after(3):
            await store_retry.ask(link.get, "")
        assert told()[-1:] == [BEGINS]
        link.heal()
        try:
            await store_retry.ask(call, "")
        except LeaseLost:
            assert call == link.renew
        assert told()[-2:] == [BEGINS, ENDS]


async def test_who_watches_notices_that_the_store_is_back(
    store_retry, link, memory, told, nursery, autojump_clock
):
    """Also where there are no news; and those that come later are not missed."""
    seen = []

    async def watch():
        seen.append((await store_retry.watch(link, "", 0)).revision)

    link.cut()
    nursery.start_soon(watch)
    await trio.sleep(10)
    link.heal()
    await trio.sleep(5)
    assert (told(), seen) == ([BEGINS, ENDS], [])
    await memory.transact([], [Put("key", b"")])
    await trio.sleep(1)
    assert seen == [1]


async def test_a_start_that_waits_says_so_again(store_retry, link, told, caplog, autojump_clock):
    """Every half minute; a broker that runs says it once."""
    link.cut()
    with trio.move_on_after(100):
        await store_retry.ask(link.get, "")
    assert len(caplog.messages) == 1
    with trio.move_on_after(100):
        await store_retry.ask_at_start(link.get, "")
    waits = "[Broker id=1] The start still waits: the metadata store does not answer"
    assert caplog.messages[1:] == [waits] * 3


async def test_a_start_ends_if_the_disk_of_the_store_is_full(store_retry, autojump_clock):
    """A running broker waits for room; one that starts serves nothing, and says what to do."""
    answers = [StoreFull("the disk is full: make room"), "answer"]

    async def call() -> str:
        answer = answers.pop(0)
        if isinstance(answer, StoreFull):
            raise answer
        return answer

    with pytest.raises(StoreError, match="make room") as caught:
        await store_retry.ask_at_start(call)
    assert not isinstance(caught.value, StoreUnavailable)
    answers.insert(0, StoreFull("the disk is full: make room"))
    assert await store_retry.ask(call) == "answer"
