"""Members of groups, run in a process of their own, doing one thing and printing how fast it was.

    python -m tests.bench.group_clients commit ADDRESS TOPIC --seconds N
    python -m tests.bench.group_clients join ADDRESS TOPIC --group NAME --count N

`commit`: one member commits all its partitions again and again, each commit sent when the one
before was answered; and, as its yardstick, one producer sends records with acks=all in the same
manner, for as long. `join`: so many consumers of a new group, which have asked its coordinator what
it has committed, all subscribe at once, each to have its one partition.
"""

import argparse
import itertools
import json
import time
from collections.abc import Awaitable, Callable

import trio

from minibroker.client import Consumer, Producer, TopicPartition
from minibroker.client.committed_offsets import OffsetAndMetadata

JOINED_S_MAX = 100.0
POLL_S = 0.1
VALUE = bytes(100)


async def rate_of(step: Callable[[int], Awaitable[object]], duration_s: float) -> float:
    """Steps a second, one after the other; the first is not counted."""
    await step(0)
    began = time.perf_counter()
    for number in itertools.count(1):
        await step(number)
        if (took := time.perf_counter() - began) >= duration_s:
            return number / took
    raise AssertionError


async def commit(given: argparse.Namespace) -> dict[str, float]:
    """Commits a second, and acks=all records a second."""
    options = {"group_id": given.group, "enable_auto_commit": False}
    async with Consumer(given.address, **options) as consumer:
        await consumer.subscribe(given.topic)
        while not consumer.assignment:
            await consumer.poll(POLL_S)
        names = consumer.assignment

        async def commit_once(number: int) -> None:
            await consumer.commit({name: OffsetAndMetadata(number) for name in names})

        commits = await rate_of(commit_once, given.seconds)
    async with Producer(given.address, acks="all", linger_ms=0) as producer:

        async def send_once(number: int) -> None:
            await producer.send_and_wait(given.topic, VALUE, partition=0)

        return {"commits_per_s": commits, "sends_per_s": await rate_of(send_once, given.seconds)}


async def join(given: argparse.Namespace) -> dict[str, float]:
    """Seconds until all are members, and the group is stable: each has its part, which is one."""
    consumers = [Consumer(given.address, group_id=given.group) for _ in range(given.count)]
    done = trio.Event()

    async def belong(consumer: Consumer, *, task_status: trio.TaskStatus[None]) -> None:
        async with consumer:
            await consumer.committed(TopicPartition(given.topic, 0))
            task_status.started()
            await begin.wait()
            await consumer.subscribe(given.topic, on_assigned=look)
            while True:
                await consumer.poll()

    async def look(_: object) -> None:
        if all(len(consumer.assignment) == 1 for consumer in consumers):
            done.set()

    begin = trio.Event()
    with trio.fail_after(JOINED_S_MAX):
        async with trio.open_nursery() as nursery:
            for consumer in consumers:
                await nursery.start(belong, consumer)
            began, cpu_began = time.perf_counter(), time.process_time()
            begin.set()
            await done.wait()
            took, cpu_s = time.perf_counter() - began, time.process_time() - cpu_began
            generations = max(consumer.health().generation for consumer in consumers)
            nursery.cancel_scope.cancel()
    return {"seconds": took, "cpu_s": cpu_s, "generations": generations}


def main() -> None:
    """Run one of the two and print its figures as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=["commit", "join"])
    parser.add_argument("address")
    parser.add_argument("topic")
    parser.add_argument("--group", default="bench")
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--count", type=int, default=100)
    given = parser.parse_args()
    print(json.dumps(trio.run({"commit": commit, "join": join}[given.name], given)))


if __name__ == "__main__":
    main()
