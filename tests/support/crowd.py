"""Clients that are there while a cluster is broken under them: many connections, many groups.

    python -m tests.support.crowd BOOTSTRAP --connections N --groups N

Each group has one member, a `Consumer` that reads one of the topics `crowd-0` to `crowd-9`, to each
of which a record is sent every two seconds. The rest of the N connections of this process are idle
ones, spread over the brokers; one that ends is made anew at another broker.

It prints a line of JSON each second: `connections`, those of the process; `read_up_to`, a time (s
since 1970): each member has read a record that was sent then or later; `missing`, the idle
connections that are not there; and `lost`, those that ended.
"""

import argparse
import json
import logging
import os
import resource
import subprocess
import sys
import threading
import time
from itertools import cycle
from typing import Final, NamedTuple

import trio

from minibroker.client import Consumer, NewTopic, Producer
from minibroker.client.net.channel import ChannelOptions, connect_channel
from minibroker.client.net.network import TcpNetwork
from minibroker.client.net.servers import parse_servers
from minibroker.protocol.types import Endpoint

TOPICS: Final = [f"crowd-{number}" for number in range(10)]
OFFSETS_PARTITIONS: Final = 4  # of `__consumer_offsets`
PARTITIONS: Final = len(TOPICS) + OFFSETS_PARTITIONS
SEND_EVERY_S: Final = 2.0
REPORT_EVERY_S: Final = 1.0
FETCH_WAIT_MS: Final = 10_000
AT_ONCE: Final = 20  # members that join, connections that are made
AGAIN_S: Final = 0.5
OPTIONS: Final = ChannelOptions("crowd")


class CrowdSize(NamedTuple):
    """How many connections and groups; none of both is no crowd."""

    connections: int = 0
    groups: int = 0


class Crowd:
    """The process, as the one that started it sees it."""

    def __init__(self, address: str, size: CrowdSize) -> None:
        self.size = size
        self._lines: list[str] = []
        options = ["--connections", str(size.connections), "--groups", str(size.groups)]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.support.crowd", address, *options],
            stdout=subprocess.PIPE,
            text=True,
        )
        self._drain = threading.Thread(target=self._read_output, daemon=True)
        self._drain.start()

    def _read_output(self) -> None:
        assert self._process.stdout
        with self._process.stdout as output:
            for line in output:
                self._lines.append(line)

    def until_whole(self, patience_s: float) -> None:
        """Return once all idle connections are there, and each group has read a record that was
        sent after this call; an `AssertionError` if that does not come to be."""
        deadline, began = time.monotonic() + patience_s, time.time()
        while True:
            assert self._process.poll() is None, "the crowd has ended"
            if self._lines:
                found = json.loads(self._lines[-1])
                has_read = not self.size.groups or found["read_up_to"] >= began
                if has_read and not found["missing"]:
                    return
            assert time.monotonic() < deadline, self._lines[-1:]
            time.sleep(REPORT_EVERY_S / 5)

    def end(self) -> None:
        """`kill -9`, if it still runs."""
        self._process.kill()
        self._process.wait()
        self._drain.join()


class _Members:
    """What runs in the process."""

    def __init__(self, address: str, size: CrowdSize) -> None:
        self._address = address
        self._size = size
        self._newest = dict.fromkeys(range(size.groups), 0.0)  # when the newest record was sent
        self._joining = trio.CapacityLimiter(AT_ONCE)
        self._missing = size.connections  # until the groups are there
        self._lost = 0

    async def run(self) -> None:
        """Until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._report)
            if self._size.groups:
                nursery.start_soon(self._send)
            async with trio.open_nursery() as joins:
                for number in self._newest:
                    joins.start_soon(nursery.start, self._read, number)
            endpoints = cycle(parse_servers(self._address))
            self._missing = max(0, self._size.connections - _connections())
            for _ in range(self._missing):
                nursery.start_soon(self._rest, endpoints)

    async def _read(self, number: int, task_status: trio.TaskStatus[None]) -> None:
        """Be the only member of a group."""
        options = {"fetch_max_wait_ms": FETCH_WAIT_MS, "request_timeout_ms": 3 * FETCH_WAIT_MS}
        async with Consumer(self._address, group_id=f"crowd-{number}", **options) as consumer:
            async with self._joining:
                await consumer.subscribe(TOPICS[number % len(TOPICS)])
                while not consumer.assignment:
                    await consumer.poll(AGAIN_S)
            task_status.started()
            while True:
                for record in await consumer.poll():
                    self._newest[number] = float(record.value or 0)

    async def _send(self) -> None:
        async with Producer(self._address) as producer:
            while True:
                for topic in TOPICS:
                    await producer.send(topic, str(time.time()).encode())
                await trio.sleep(SEND_EVERY_S)

    async def _rest(self, endpoints: "cycle[Endpoint]") -> None:
        """Hold a connection, to one broker or another."""
        while True:
            try:
                channel = await connect_channel(TcpNetwork(), next(endpoints), OPTIONS)
            except OSError:
                await trio.sleep(AGAIN_S)
                continue
            self._missing -= 1
            await channel.run()
            self._missing += 1
            self._lost += 1

    async def _report(self) -> None:
        while True:
            await trio.sleep(REPORT_EVERY_S)
            read_up_to = min(self._newest.values(), default=0.0)
            report = {
                "connections": _connections(),
                "read_up_to": read_up_to,
                "missing": self._missing,
                "lost": self._lost,
            }
            print(json.dumps(report), flush=True)


def _connections() -> int:
    """Sockets of this process; the loop has two of its own."""
    count = 0
    for number in os.listdir("/proc/self/fd"):
        try:
            count += os.readlink(f"/proc/self/fd/{number}").startswith("socket:")
        except FileNotFoundError:
            continue  # that of the folder
    return count


def new_topics(replicas: int) -> list[NewTopic]:
    """The topics that the groups read."""
    return [NewTopic(name, 1, replicas) for name in TOPICS]


def main() -> None:
    """Be there until a signal."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("address")
    parser.add_argument("--connections", type=int, default=0)
    parser.add_argument("--groups", type=int, default=0)
    given = parser.parse_args()
    logging.disable(logging.WARNING)  # that a broker is away, by each client
    _, limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    trio.run(_Members(given.address, CrowdSize(given.connections, given.groups)).run)


if __name__ == "__main__":
    main()
