"""A process that uses a store as it is told: a line comes in, a line goes out.

    python -m tests.contract.store_process STORE NODE_ID

A call that had no answer is repeated: who was stopped in the middle of one finds its time up.
`hold TTL KEY` keeps a lease from then on, and KEY with it; `lost` says whether it is lost by now.
`stop` stops the process between two renewals, until it is continued.
`lock FILE` takes the write lock of a file of the store until `unlock`.
"""

import os
import signal
import sqlite3
import sys
from random import Random

import trio

from minibroker.broker.config import Config
from minibroker.broker.metadata.store import (
    ABSENT,
    Compare,
    Lease,
    LeaseLost,
    MetadataStore,
    Put,
)
from minibroker.cli.broker.stores import open_store
from tests.contract.patiently import patiently


class Worker:
    """What the lines ask for."""

    def __init__(self, store: MetadataStore, nursery: trio.Nursery) -> None:
        self._store = store
        self._nursery = nursery
        self._lease = Lease(0, 0)
        self._revision = 0
        self._is_lost = False
        self._renewing = trio.Lock()
        self._lock = sqlite3.connect(":memory:")

    async def hold(self, ttl_s: str, key: str) -> object:
        self._lease = await self._store.grant(float(ttl_s))
        put = Put(key, b"held", self._lease.id)
        self._revision = (await self._store.transact([], [put])).revision
        self._nursery.start_soon(self._renew)
        return self._revision

    async def _renew(self) -> None:
        try:
            while True:
                async with self._renewing:
                    await patiently(self._store.renew, self._lease.id)
                await trio.sleep(self._lease.ttl_s / 8)
        except LeaseLost:
            self._is_lost = True

    async def stop(self) -> object:
        async with self._renewing:
            os.kill(os.getpid(), signal.SIGSTOP)
        return "continued"

    async def lost(self) -> object:
        return self._is_lost

    async def renew(self) -> object:
        try:
            await patiently(self._store.renew, self._lease.id)
        except LeaseLost:
            return "LeaseLost"
        return "renewed"

    async def put(self, key: str, lease: str) -> object:
        """Write the key upon the revision that `hold` wrote."""
        put = Put(key, b"late", self._lease.id if lease == "leased" else 0)
        try:
            compare = [Compare(key, self._revision)]
            return (await patiently(self._store.transact, compare, [put])).succeeded
        except LeaseLost:
            return "LeaseLost"

    async def race(self, name: str, rounds: str) -> object:
        """Once there is a key `go`, try to be the first to make each round's key."""
        revision = 0
        while "go" not in (snapshot := await self._store.watch("go", revision)).entries:
            revision = snapshot.revision
        won = []
        for number in range(int(rounds)):
            key = f"round/{number}"
            compare = [Compare(key, ABSENT)]
            if (await self._store.transact(compare, [Put(key, name.encode())])).succeeded:
                won.append(number)
        return ",".join(map(str, won))

    async def lock(self, path: str) -> object:
        self._lock = sqlite3.connect(path, isolation_level=None)
        self._lock.execute("BEGIN IMMEDIATE")
        return "locked"

    async def unlock(self) -> object:
        self._lock.execute("ROLLBACK")
        self._lock.close()
        return "unlocked"


async def main(name: str, node_id: str) -> None:
    """Do what the lines say until there are no more."""
    store = await open_store(Config(metadata_store=name, node_id=int(node_id)), Random())
    async with trio.open_nursery() as nursery:
        worker = Worker(store, nursery)
        print("ready", flush=True)
        while line := await trio.to_thread.run_sync(sys.stdin.readline):
            command, *words = line.split()
            print(await getattr(worker, command)(*words), flush=True)
        nursery.cancel_scope.cancel()
    await store.close()


if __name__ == "__main__":
    trio.run(main, *sys.argv[1:])
