"""What each operation of a metadata store takes: memory, SQLite and etcd side by side.

All of them on this machine, SQLite and etcd with their fsyncs, as brokers use them. A figure is the
median over many calls, one at a time.
"""

import random
import statistics
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import trio

from minibroker.broker.config import Config
from minibroker.broker.metadata.store import Compare, MetadataStore, Put
from minibroker.cli.broker.stores import open_store
from tests.bench.rounds import Row, milliseconds
from tests.support.etcd import running_etcd

CALLS: Final = 200
ENTRIES: Final = 100  # that a read returns, as of a cluster with that many partitions
MANY: Final = 5_000  # of a broker that dies with so many partitions
MANY_CALLS: Final = 5
VALUE: Final = b"v" * 200
LEASE_S: Final = 30.0

Durations = dict[str, float]  # ms, by operation


def stores() -> Iterator[Row]:
    """One row for each operation: etcd's time, and those of SQLite and memory."""
    with (
        TemporaryDirectory(prefix="minibroker-bench-") as directory,
        running_etcd(Path(directory), is_durable=True) as [etcd],
    ):
        names = ("memory:", f"sqlite:{directory}/metadata.db", f"etcd:{etcd.url}")
        memory, sqlite, ours = (trio.run(_durations, name) for name in names)
    for operation, duration in ours.items():
        yield Row(
            f"metadata store: {operation}, in etcd",
            milliseconds(duration),
            "in SQLite; in memory",
            f"{milliseconds(sqlite[operation])}; {milliseconds(memory[operation])}",
            f"{duration / sqlite[operation]:.1f}",
        )


async def _durations(name: str) -> Durations:
    async with _opened(name) as store:
        await store.transact([], [Put(f"entry/{number}", VALUE) for number in range(ENTRIES)])
        lease = await store.grant(LEASE_S)
        revision = (await store.transact([], [Put("key", VALUE)])).revision

        async def write() -> None:
            nonlocal revision
            outcome = await store.transact([Compare("key", revision)], [Put("key", VALUE)])
            assert outcome.succeeded
            revision = outcome.revision

        async def write_many() -> None:
            puts = [Put(f"many/{number}", VALUE) for number in range(MANY)]
            assert (await store.transact([], puts)).succeeded

        async def compare() -> None:
            assert (await store.transact([Compare("key", revision)], [])).succeeded

        found = {
            "a write that compares": await _median(write),
            f"a write of {MANY:,} entries at once": await _median(write_many, MANY_CALLS),
            "a comparison alone": await _median(compare),
            f"a read of {ENTRIES} entries": await _median(lambda: store.get("entry/")),
            "the renewal of a lease": await _median(lambda: store.renew(lease.id)),
            "from a write to who watches": await _delay_of_a_watch(store),
        }
        await store.revoke(lease.id)
    return found


@asynccontextmanager
async def _opened(name: str) -> AsyncIterator[MetadataStore]:
    store = await open_store(Config(metadata_store=name), random.Random(1))
    try:
        yield store
    finally:
        await store.close()


async def _median(call: Callable[[], Awaitable[object]], calls: int = CALLS) -> float:
    durations = []
    for _ in range(calls):
        began = time.perf_counter()
        await call()
        durations.append(time.perf_counter() - began)
    return 1000 * statistics.median(durations)


async def _delay_of_a_watch(store: MetadataStore) -> float:
    """From the moment at which a write is asked for."""
    durations = []
    for _ in range(CALLS // 10):
        after = (await store.get("")).revision
        async with trio.open_nursery() as nursery:
            told = trio.Event()

            async def watch(after: int = after, told: trio.Event = told) -> None:
                await store.watch("key", after)
                told.set()

            nursery.start_soon(watch)
            await trio.sleep(0.03)  # until it waits
            began = time.perf_counter()
            await store.transact([], [Put("key", VALUE)])
            await told.wait()
            durations.append(time.perf_counter() - began)
    return 1000 * statistics.median(durations)


MEASURES = (stores,)
