"""Writers of one etcd whose connections are held and broken at random: every answer is the truth.

Each adds to one counter by compare-and-set, and counts for itself what it was told. At the end the
counter is the sum: nothing was made that was told to have failed, or was not told of, and nothing
was made twice.
"""

import random
from contextlib import AsyncExitStack

import pytest
import trio

from minibroker.broker.metadata import etcd_gateway
from minibroker.broker.metadata.etcd_gateway import Access
from minibroker.broker.metadata.etcd_store import EtcdStore
from minibroker.broker.metadata.store import Compare, Put, StoreUnavailable
from tests.support.etcd import EVERY_ETCD, running_etcd
from tests.support.proxy import open_proxy

pytestmark = pytest.mark.parametrize("program", EVERY_ETCD)
WRITERS = 3


async def add(store, told, stop):
    """Count up as long as there is no end; what is not known is waited for."""
    while not stop.is_set():
        try:
            entry = (await store.get("count")).entries["count"]
            writes = [Put("count", b"%d" % (int(entry.value) + 1))]
            outcome = await store.transact([Compare("count", entry.revision)], writes)
        except StoreUnavailable:
            continue
        told[outcome.succeeded] += 1
        if outcome.succeeded:
            assert outcome.revision > entry.revision


async def torment(proxy, rng, stop):
    """Hold, delay, break and heal one writer's way."""
    while not stop.is_set():
        await trio.sleep(rng.uniform(0.02, 0.2))
        match rng.randrange(5):
            case 0:
                proxy.hold(requests=True)
            case 1:
                proxy.hold(answers=True)
            case 2:
                proxy.delay_s = 0.02
        await trio.sleep(rng.uniform(0.05, 0.6))
        if rng.random() < 0.5:
            proxy.let_new_through()
            await trio.sleep(rng.uniform(0.05, 0.6))
        if rng.random() < 0.3:
            proxy.break_all()
        proxy.heal()


async def count_under_faults(program, place, seed, duration_s):
    rng = random.Random(seed)
    told = {True: 0, False: 0}
    async with AsyncExitStack() as opened:
        [etcd] = opened.enter_context(running_etcd(place, program=program))
        proxies = [await opened.enter_async_context(open_proxy(etcd.port)) for _ in range(WRITERS)]
        stores = [
            EtcdStore(Access([proxy.url]), "test/", str(number), rng)
            for number, proxy in enumerate(proxies)
        ]
        await stores[0].transact([], [Put("count", b"0")])
        stop = trio.Event()
        async with trio.open_nursery() as nursery:
            for proxy, store in zip(proxies, stores, strict=True):
                nursery.start_soon(torment, proxy, random.Random(rng.random()), stop)
                nursery.start_soon(add, store, told, stop)
            await trio.sleep(duration_s)
            stop.set()
        judge = EtcdStore(Access([etcd.url]), "test/", "judge", rng)
        found = (await judge.get("count")).entries["count"].value
        for store in (judge, *stores):
            await store.close()
    return int(found), told


@pytest.fixture(autouse=True)
def fast(monkeypatch):
    """Give up on an answer sooner than a broker would."""
    monkeypatch.setattr(etcd_gateway, "ANSWER_S_MAX", 0.2)


async def test_what_is_told_of_a_write_is_true(program, tmp_path):
    """The sum of what was told is what is there, after two seconds of faults."""
    found, told = await count_under_faults(program, tmp_path, 1, 2)
    assert found == told[True] > 0


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(5))
async def test_what_is_told_of_a_write_is_true_for_long(program, tmp_path, seed):
    """The same for a minute, with other faults."""
    found, told = await count_under_faults(program, tmp_path, seed, 60)
    assert found == told[True] > 0
