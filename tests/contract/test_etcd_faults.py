"""The etcd store while etcd, or the way to it, is slow, cut off, restarted or compacted.

Between the store and etcd stands a proxy, which holds or breaks what passes. Another store, which
asks etcd directly, sees what has come of it and does what other brokers would do.
"""

import itertools
import random

import httpx
import pytest
import trio

from minibroker.broker.metadata import etcd_gateway, etcd_store
from minibroker.broker.metadata.etcd_gateway import Access
from minibroker.broker.metadata.etcd_store import WATCH_S, EtcdStore
from minibroker.broker.metadata.store import (
    ABSENT,
    Compare,
    Delete,
    Entry,
    LeaseLost,
    Put,
    StoreError,
    StoreUnavailable,
    TransactionOutcome,
)
from tests.contract.patiently import patiently
from tests.support.etcd import EVERY_ETCD, running_etcd
from tests.support.proxy import open_proxy

PATIENCE_S = 20.0
LIVES = itertools.count()


def open_etcd(*urls, writer="1"):
    return EtcdStore(Access(urls), "test/", writer, random.Random(next(LIVES)))


@pytest.fixture(params=EVERY_ETCD)
def etcd(request, tmp_path):
    with running_etcd(tmp_path, program=request.param) as [member]:
        yield member


@pytest.fixture
async def proxy(etcd):
    async with open_proxy(etcd.port) as opened:
        yield opened


@pytest.fixture
async def store(proxy):
    opened = open_etcd(proxy.url)
    with trio.fail_after(PATIENCE_S):
        yield opened
        await opened.close()


@pytest.fixture
async def other(etcd):
    opened = open_etcd(etcd.url, writer="2")
    yield opened
    await opened.close()


@pytest.fixture
def fast(monkeypatch):
    """Give up on an answer sooner than a broker would."""
    monkeypatch.setattr(etcd_gateway, "ANSWER_S_MAX", 0.3)


class Running:
    """A call in the background; `scope` cancels it, `end` is what it gave or raised."""

    def __init__(self, nursery, call, *arguments):
        self.scope = trio.CancelScope()
        self.end = None
        self._is_over = trio.Event()
        nursery.start_soon(self._run, call, arguments)

    async def _run(self, call, arguments):
        with self.scope:
            try:
                self.end = await call(*arguments)
            except (StoreError, LeaseLost) as error:
                self.end = error
        self._is_over.set()

    async def wait(self):
        await self._is_over.wait()
        return self.end


async def until(condition):
    while not condition():  # noqa: ASYNC110 -- of a proxy, which has no event for it
        await trio.sleep(0.005)


@pytest.fixture
async def late(fast, store, proxy, nursery):
    """A transaction of `store` whose first request is held; asked again, it gets through."""
    await store.transact([], [Put("before", b"")])
    proxy.hold(requests=True)
    before = proxy.requests
    running = Running(nursery, store.transact, [Compare("key", ABSENT)], [Put("key", b"late")])
    await until(lambda: proxy.requests > before)
    return running


async def arrive(proxy):
    """Let through what was held, and wait until etcd has seen to it."""
    before = proxy.answers
    proxy.heal()
    await until(lambda: proxy.answers > before)


async def test_an_answer_that_was_lost_on_one_way_is_found_out_on_another(fast, etcd, proxy, other):
    """Where requests arrive and answers do not, the next endpoint tells what was made."""
    store = open_etcd(proxy.url, etcd.url)
    await store.transact([], [Put("key", b"1")])
    proxy.hold(answers=True)
    assert await store.transact([Compare("key", 1)], [Put("key", b"2")]) == TransactionOutcome(
        True, 2
    )
    assert (await other.get("")).entries == {"key": Entry(b"2", 2)}
    assert await store.transact([Compare("key", 1)], [Put("key", b"3")]) == TransactionOutcome(
        False, 2
    )
    await store.close()


@pytest.mark.parametrize("how", ["held", "broken"])
async def test_an_answer_that_was_lost_is_found_out(fast, store, other, proxy, nursery, how):
    """The writer learns that its write was made and at which revision, though others have written
    over it since; and it is not made a second time."""
    await store.transact([], [Put("count", b"1")])
    proxy.hold(answers=True)
    running = Running(nursery, store.transact, [Compare("count", 1)], [Put("count", b"2")])
    assert (await other.watch("", 1)).entries["count"] == Entry(b"2", 2)
    assert (await other.transact([Compare("count", 2)], [Put("count", b"3")])).succeeded
    if how == "held":
        before = proxy.requests
        await until(lambda: proxy.requests > before)
    assert running.end is None
    if how == "broken":
        proxy.break_all()
    proxy.heal()
    assert await running.wait() == TransactionOutcome(True, 2)
    assert (await other.get("count")).entries["count"] == Entry(b"3", 3)


async def test_a_request_that_was_late_is_not_made_once_it_was_refused(late, other, proxy):
    """What was told to have failed stays so, even if its comparisons come to hold again."""
    await other.transact([], [Put("key", b"theirs")])
    proxy.let_new_through()
    assert not (await late.wait()).succeeded
    await other.transact([], [Delete("key")])
    await arrive(proxy)
    assert list((await other.get("")).entries) == ["before"]


async def test_a_request_that_was_late_is_not_made_beside_its_repetition(late, other, proxy):
    """Of all the requests for one transaction one is made."""
    proxy.let_new_through()
    outcome = await late.wait()
    assert (await other.get("key")).entries["key"] == Entry(b"late", outcome.revision)
    await other.transact([], [Delete("key")])
    await arrive(proxy)
    assert list((await other.get("")).entries) == ["before"]


async def test_a_cancelled_request_is_not_made_after_a_later_one(late, store, other, proxy):
    """The writes of a store are made in their order, or not at all."""
    late.scope.cancel()
    proxy.let_new_through()
    assert (await store.transact([], [Put("later", b"")])).succeeded
    await arrive(proxy)
    assert list((await other.get("")).entries) == ["before", "later"]


async def test_a_former_life_writes_nothing_more(late, etcd, proxy):
    """What a broker has left on the way is not made after the first write of its next life."""
    late.scope.cancel()
    reborn = open_etcd(etcd.url)
    assert (await reborn.transact([], [Put("later", b"")])).succeeded
    await arrive(proxy)
    assert list((await reborn.get("")).entries) == ["before", "later"]
    await reborn.close()


async def test_two_that_write_under_one_name_are_told(late, etcd, proxy):
    """Where a second process has the same name, a lost answer cannot be found out: an error."""
    twin = open_etcd(etcd.url)
    await twin.transact([], [Put("twin", b"")])
    await twin.close()
    proxy.let_new_through()
    assert "another process writes to etcd as test/writers/1" in str(await late.wait())


async def test_an_etcd_that_is_away_is_unavailable_and_comes_back(etcd):
    """Every call says so within a second or two, nothing is written, and then all goes on."""
    store = open_etcd(etcd.url)
    lease = await store.grant(30)
    await store.transact([], [Put("key", b"1", lease.id)])
    etcd.kill()
    calls = [
        (store.get, ""),
        (store.transact, [], [Put("key", b"2")]),
        (store.transact, [Compare("key", 1)], []),
        (store.watch, "", 1),
        (store.grant, 30),
        (store.renew, lease.id),
        (store.revoke, lease.id),
    ]
    for call, *arguments in calls:
        with trio.fail_after(2), pytest.raises(StoreUnavailable):
            await call(*arguments)
    etcd.start()
    etcd.wait_until_ready()
    assert (await patiently(store.get, "")).entries == {"key": Entry(b"1", 1)}
    await store.renew(lease.id)
    await store.close()


async def test_an_etcd_that_does_not_answer_is_unavailable(fast, store, proxy):
    """A way on which everything is lost is noticed by time."""
    await store.transact([], [Put("key", b"1")])
    proxy.hold(requests=True, answers=True)
    for call, argument in ((store.get, ""), (store.grant, 30), (store.renew, 1)):
        with trio.fail_after(2), pytest.raises(StoreUnavailable):
            await call(argument)
    proxy.heal()
    assert (await store.get("")).revision == 1


async def test_a_slow_etcd_is_only_slow(store, other, proxy, nursery):
    """Delays below the patience for an answer change nothing but the time."""
    proxy.delay_s = 0.05
    lease = await store.grant(30)
    assert (await store.transact([], [Put("key", b"1", lease.id)])).revision == 1
    await store.renew(lease.id)
    watching = Running(nursery, store.watch, "", 1)
    await other.transact([], [Put("key", b"2")])
    assert (await watching.wait()).entries == {"key": Entry(b"2", 2)}
    await store.revoke(lease.id)


async def test_a_watch_misses_nothing_while_it_is_cut_off(fast, store, other, proxy, nursery):
    """What has happened meanwhile is there when the way is open again."""
    await store.transact([], [Put("key", b"1")])
    watching = Running(nursery, patiently, store.watch, "", 1)
    await until(lambda: proxy.answers > 2)
    proxy.hold(requests=True, answers=True)
    proxy.break_all()
    await other.transact([], [Put("key", b"2")])
    await trio.sleep(0.5)
    assert watching.end is None
    proxy.heal()
    assert (await watching.wait()).entries == {"key": Entry(b"2", 2)}


async def test_a_watch_that_has_died_without_a_word_is_noticed(
    store, other, proxy, nursery, monkeypatch
):
    """No stream is trusted for longer than `WATCH_S`."""
    monkeypatch.setattr(etcd_store, "WATCH_S", 0.5)
    await store.transact([], [Put("key", b"1")])
    watching = Running(nursery, patiently, store.watch, "", 1)
    before = proxy.answers
    await until(lambda: proxy.answers > before + 1)
    proxy.hold(answers=True)
    proxy.let_new_through()
    await other.transact([], [Put("key", b"2")])
    with trio.fail_after(WATCH_S + 2):
        assert (await watching.wait()).entries == {"key": Entry(b"2", 2)}


async def test_a_watch_misses_nothing_when_etcd_starts_again(store, other, etcd, nursery):
    """It is told of what others write after the restart."""
    await store.transact([], [Put("key", b"1")])
    watching = Running(nursery, patiently, store.watch, "", 1)
    await trio.sleep(0.1)
    etcd.restart()
    await patiently(other.transact, [], [Put("key", b"2")])
    assert (await watching.wait()).entries == {"key": Entry(b"2", 2)}


async def test_a_watch_goes_on_over_a_compaction(store, other, etcd):
    """Where what has happened was thrown away, the state is read again."""
    for number in range(5):
        await other.transact([], [Put("key", b"%d" % number)])
    async with httpx.AsyncClient() as client:
        compacted = await client.post(f"{etcd.url}/v3/kv/compaction", json={"revision": "5"})
    assert compacted.status_code == httpx.codes.OK
    with trio.fail_after(WATCH_S / 2):
        await store._wait_for_news("", 1)  # as if it had happened since the state was read
    assert (await store.watch("", 1)).entries == {"key": Entry(b"4", 5)}


async def test_a_lease_lives_while_it_is_renewed_and_then_ends(store, other):
    """Not before its time has passed since the last renewal, and not long after."""
    lease = await store.grant(2)
    await store.transact([], [Put("leased", b"", lease.id), Put("stays", b"")])
    await trio.sleep(1.2)
    renewed_at = trio.current_time()
    await store.renew(lease.id)
    assert list((await other.watch("", 1)).entries) == ["stays"]
    assert 2 <= trio.current_time() - renewed_at <= 5
    with pytest.raises(LeaseLost):
        await store.renew(lease.id)


async def test_a_lease_outlives_etcd_s_restart(store, other, etcd):
    """Its entries stay, and its holder goes on renewing it."""
    lease = await store.grant(2)
    await store.transact([], [Put("leased", b"", lease.id)])
    etcd.restart()
    await patiently(store.renew, lease.id)
    assert list((await other.get("")).entries) == ["leased"]
