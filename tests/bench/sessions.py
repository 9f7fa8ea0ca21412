"""What a follower's FETCH costs its leader, by how many partitions rest in its fetch session.

    python -m tests.bench.sessions --resting N [--form idle|record]

prints as JSON the seconds of CPU time of one FETCH, from the handler to its answer, without
sockets. In the form `idle` nothing is new: the request waits, and is answered empty. In the form
`record` one partition more gets a record in each round: the waiting request is answered with it,
the next one acknowledges it and is answered with the high watermark.
"""

import argparse
import json
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import trio

from minibroker.broker.disk import RealFiles
from minibroker.broker.replication.fetch_plan import NEWS_MAX
from minibroker.broker.replication.purgatory import Parked
from minibroker.broker.server.handlers import fetch
from minibroker.protocol.messages.fetch import FetchRequest, FetchResponse, PartitionFetch
from minibroker.protocol.types import TopicPartition
from tests.bench.rounds import Row, by_turns, run_module
from tests.unit.node import Node, state_of

RESTING = (100, 1_000, 10_000)
FOLLOWER = 2
ROUNDS_S = 1.0
# Thousands of logs are made there in seconds; without it, on the disk.
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None
BUSY = TopicPartition("busy", 0)


class Following:
    """A leader, and the session of one follower, which copies nothing."""

    def __init__(self, directory: Path, resting_count: int) -> None:
        self._node = Node(RealFiles(), root=directory)
        self._node.live(1, FOLLOWER)
        names = [TopicPartition("t", number) for number in range(resting_count)]
        replicas = (1, FOLLOWER)
        self._node.lead(*(state_of(name, isr=replicas, replicas=replicas) for name in names))
        self._node.lead(state_of(BUSY, isr=replicas, replicas=replicas))
        self._session_id = 0
        self._session_epoch = 0
        wanted = [self._want(name) for name in (BUSY, *names)]
        for start in range(0, len(wanted), NEWS_MAX):
            self._sent(*wanted[start : start + NEWS_MAX], wait_ms_max=0)
        self._sent()

    def _want(self, name: TopicPartition) -> PartitionFetch:
        topic_id = self._node.partition(name).topic_id
        return PartitionFetch(*name, self._node.partition(name).log.log_end, topic_id=topic_id)

    def _ask(self, *wanted: PartitionFetch, wait_ms_max: int) -> FetchResponse | Parked:
        request = FetchRequest(
            replica_id=FOLLOWER,
            wait_ms_max=wait_ms_max,
            session_id=self._session_id,
            session_epoch=self._session_epoch,
            partitions=wanted,
        )
        self._session_epoch += 1
        return fetch.handle(self._node.services, request, trio.current_time())

    def _sent(self, *wanted: PartitionFetch, wait_ms_max: int = 500) -> FetchResponse:
        outcome = self._ask(*wanted, wait_ms_max=wait_ms_max)
        answer = outcome.expire() if isinstance(outcome, Parked) else outcome
        assert not answer.error
        self._session_id = answer.session_id
        return answer

    async def _settled(self, parked: FetchResponse | Parked) -> FetchResponse:
        assert isinstance(parked, Parked)
        return await self._node.purgatory.wait_for_answer(parked)

    async def idle(self) -> None:
        """A FETCH without news waits, and its time passes."""
        assert not (await self._settled(self._ask(wait_ms_max=1))).partitions

    async def record(self) -> None:
        """A FETCH waits for a record, and another one for the high watermark."""
        waiting = self._ask(wait_ms_max=500)
        self._node.append(name=BUSY)
        [fetched] = (await self._settled(waiting)).partitions
        assert fetched.records
        [fetched] = self._sent(self._want(BUSY)).partitions
        assert fetched.high_watermark == self._node.partition(BUSY).log.log_end


async def seconds_of(form: str, resting_count: int) -> float:
    """The CPU time of one round."""
    with TemporaryDirectory(prefix="minibroker-bench-", dir=MEMORY) as directory:
        following = Following(Path(directory), resting_count)
        round_of = following.idle if form == "idle" else following.record
        rounds = 0
        began, cpu_began = time.perf_counter(), time.process_time()
        while time.perf_counter() - began < ROUNDS_S:
            await round_of()
            rounds += 1
        return (time.process_time() - cpu_began) / rounds


def sessions() -> Iterator[Row]:
    """A follower's session in which hardly anything happens, beside one of two partitions."""
    titles = {"idle": "without news", "record": "and a record in one more"}
    for form, title in titles.items():
        for count in RESTING:

            def measured(resting: int, form: str = form) -> float:
                return run_module("sessions", "--resting", resting, "--form", form)["seconds"]

            found = by_turns(partial(measured, count), partial(measured, 1))
            yield Row(
                f"a follower's FETCH, {count:,} partitions at rest {title}",
                f"{found.ours * 1e6:.0f} us",
                "one at rest",
                f"{found.theirs * 1e6:.0f} us",
                f"{found.ratio:.2f}",
                "< 2.00",
                found.ratio < 2,
            )


MEASURES = (sessions,)


def main() -> None:
    """Measure one form and print the seconds as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--resting", type=int, required=True)
    parser.add_argument("--form", choices=["idle", "record"], default="idle")
    given = parser.parse_args()
    print(json.dumps({"seconds": trio.run(seconds_of, given.form, given.resting)}))


if __name__ == "__main__":
    main()
