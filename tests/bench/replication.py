"""How fast a follower copies: bytes a second of one fetcher, as a thread and as a task.

    python -m tests.bench.replication copy ADDRESS TOPIC --total BYTES --form thread|task

copies partition 0 of a broker's topic into a log of its own until it has TOTAL bytes, as a follower
does (checksums, index, producers' state), and prints bytes per second as JSON. It does not say that
it is a replica, so that the broker needs no assignment for it.
"""

import argparse
import json
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import trio

from minibroker.broker.config import Config, load
from minibroker.broker.disk import RealFiles
from minibroker.broker.log.log import Log
from minibroker.broker.log.outcomes import LogLocation
from minibroker.broker.replication.fetch_plan import FetchLimits
from minibroker.broker.replication.fetch_task import connect_by_task
from minibroker.broker.replication.fetch_thread import connect_by_thread
from minibroker.broker.replication.follower import FollowerOutcome, LeaderAnswer
from minibroker.broker.replication.partition import Partition
from minibroker.broker.replication.replica_fetcher import ReplicaFetcher
from minibroker.broker.replication.roles import LocalBroker
from minibroker.client.net.channel import ChannelOptions
from minibroker.client.net.network import TcpNetwork
from minibroker.protocol.constants import NO_EPOCH, NO_NODE, ApiKey
from minibroker.protocol.messages.control import PartitionState
from minibroker.protocol.messages.metadata import MetadataRequest
from minibroker.protocol.types import Endpoint, TopicPartition
from tests.bench.raw import RawClient
from tests.bench.rounds import Row, by_turns, create_topic, fresh_broker, gigabytes, run_module

TOTAL_BYTES = 500_000_000
COPIED_BYTES = TOTAL_BYTES - 64 * 1024  # `fill` ends with a whole batch below its total
BATCH_SIZES = {64 * 1024: "64 KB", 16 * 1024: "16 KB"}
TOPIC = "bench"
NODE_ID = 2


def copy() -> Iterator[Row]:
    """One follower, one partition, everything in the page cache."""
    for batch_bytes, name in BATCH_SIZES.items():
        with fresh_broker("--set", "log.retention.ms=-1") as broker:  # records are of 1970
            create_topic(broker.address, TOPIC, 1)
            sizes = ["--total", TOTAL_BYTES, "--batch", batch_bytes]
            run_module("raw", "fill", broker.address, TOPIC, *sizes)

            def copied(form: str, address: str = broker.address) -> float:
                arguments = ["copy", address, TOPIC, "--total", COPIED_BYTES, "--form", form]
                return run_module("replication", *arguments)["bytes_per_s"]

            found = by_turns(partial(copied, "thread"), partial(copied, "task"))
        title = f"a follower's copy by a thread, {name} batches"
        thread, task = gigabytes(found.ours), gigabytes(found.theirs)
        yield Row(title, thread, "by a task", task, f"{found.ratio:.2f}")


MEASURES = (copy,)


def leader_of(address: str, topic: str) -> tuple[int, int]:
    """The broker that leads partition 0, and its leader epoch."""
    with RawClient(address) as client:
        [found] = client.call(ApiKey.METADATA, MetadataRequest((topic,))).topics
    return found.partitions[0].leader_id, found.partitions[0].leader_epoch


class Copy:
    """A follower's log and the one fetcher that fills it."""

    def __init__(self, config: Config, directory: Path, address: str, topic: str) -> None:
        name = TopicPartition(topic, 0)
        leader, leader_epoch = leader_of(address, topic)
        files, settings = RealFiles(), config.for_topic()
        files.make_dir(directory / str(name))
        self.log = Log.open(
            LogLocation(files, directory / str(name), name), settings.limits(), now_ms=0
        )
        partition = Partition(LocalBroker(NODE_ID, 30.0, lambda _: None), self.log, settings)
        replicas = (leader, NODE_ID)
        partition.become_follower(
            PartitionState(topic, b"", 0, leader, leader_epoch, 0, replicas, replicas)
        )
        options = ChannelOptions()
        limits = replace(FetchLimits.of(config), node_id=NO_NODE)
        is_thread = config.replica_fetcher == "thread"
        connect = (
            connect_by_thread(options) if is_thread else connect_by_task(TcpNetwork(), options)
        )
        self.broker_epoch = NO_EPOCH
        self._has_written = trio.lowlevel.ParkingLot()
        self._fetcher = ReplicaFetcher(leader, 0, limits, connect)
        host, _, port = address.rpartition(":")
        self._fetcher.endpoint = Endpoint(host, int(port))
        self._fetcher.add(partition, partition.role)

    def apply_answer(
        self, partition: Partition, answer: LeaderAnswer, now: float
    ) -> FollowerOutcome:
        """Append without purgatory and flusher."""
        outcome = partition.follower().handle_answer(self.log, answer, partition.settings, 0)
        self._has_written.unpark_all()
        return outcome

    def fit_to_range(
        self, partition: Partition, leader_range: tuple[int, int], now: float
    ) -> FollowerOutcome:
        """The leader has all that is asked for."""
        raise AssertionError(f"the leader has {leader_range}, this log ends at {self.log.log_end}")

    async def run(self, total: int) -> float:
        """Copy so many bytes; bytes a second."""
        async with trio.open_nursery() as nursery:
            start = time.perf_counter()
            nursery.start_soon(self._fetcher.run, self)
            while self.log.size < total:
                await self._has_written.park()
            duration = time.perf_counter() - start
            nursery.cancel_scope.cancel()
        return self.log.size / duration


def main() -> None:
    """Copy, and print bytes per second as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("action", choices=["copy"])
    parser.add_argument("address")
    parser.add_argument("topic")
    parser.add_argument("--total", type=int, required=True)
    parser.add_argument("--form", choices=["thread", "task"], required=True)
    arguments = parser.parse_args()
    config = load(flags={"node.id": str(NODE_ID), "replica.fetcher": arguments.form}).config
    with TemporaryDirectory(prefix="minibroker-bench-") as directory:
        follower = Copy(config, Path(directory), arguments.address, arguments.topic)
        bytes_per_s = trio.run(follower.run, arguments.total)
        follower.log.abandon()
    print(json.dumps({"bytes_per_s": bytes_per_s}))


if __name__ == "__main__":
    main()
