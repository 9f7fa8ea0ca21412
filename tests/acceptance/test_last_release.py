"""Brokers of the last release beside those of today: a cluster is rolled there and back under load.

Producers, a group and a program that writes in transactions go on meanwhile: nothing acknowledged
is lost, no record is there twice, and each committed transaction is there as a whole.
"""

from collections import Counter
from pathlib import Path

import pytest
import trio

from minibroker.client import Admin, Consumer, NewTopic, Producer
from tests.support.evidence import PARTITIONS, TOPIC, Evidence, judge, produce, read
from tests.support.last_release import last_release
from tests.support.processes import ClusterProcesses, running_cluster
from tests.support.witness import History, log_digests, read_all

PAIRS = "pairs"
PATIENCE_S = 240.0


class Group:
    """A group of one, and how often it was shown each record."""

    def __init__(self) -> None:
        self.seen: Counter[bytes] = Counter()

    async def take_part(self, address: str, evidence: Evidence, drained: trio.Event) -> None:
        """Be the member until all is read that was sent."""
        options = {"group_id": "rolled", "auto_offset_reset": "earliest"}
        async with Consumer(address, ledger=evidence.new_ledger(), **options) as consumer:
            await consumer.subscribe(TOPIC)
            while not (drained.is_set() and len(self.seen) == evidence.sent):
                for record in await consumer.poll(0.2):
                    self.seen[record.value] += 1


async def write_pairs(address: str, committed: list[bytes], stop: trio.Event) -> None:
    """Commit transactions of a record in each of two partitions, until told to stop."""
    count = 0
    async with Producer(address, transactional_id="pairs-1") as producer:
        while not stop.is_set():
            value = b"%d" % count
            async with producer.transaction():
                for partition in range(2):
                    await producer.send(PAIRS, value, partition=partition, key=b"%d" % partition)
            committed.append(value)
            count += 1
            await trio.sleep(0.1)


async def steady(address: str, evidence: Evidence, stop: trio.Event) -> None:
    """Produce little: the brokers' starts need the processors."""
    await produce(address, 0, evidence, stop, pause_s=0.1)


async def roll(cluster: ClusterProcesses, history: History, tree: Path | None) -> None:
    """Restart each broker with another tree's package (None: this one's), one after another."""
    for node_id in cluster.layout.node_ids:
        await history.wait_for_isr(len(cluster.layout.node_ids))
        assert await trio.to_thread.run_sync(cluster.stop, node_id) == 0
        cluster.trees[node_id] = tree
        await trio.to_thread.run_sync(cluster.start, node_id)
        print(f"broker {node_id} runs {'this version' if tree is None else 'the last release'}")
    await history.wait_for_isr(len(cluster.layout.node_ids))


async def roll_there_and_back(place: Path, count: int, rounds: int) -> None:
    """From the last release to this version and back, under load; then judge what is there."""
    tree = last_release(place / "release")
    evidence, group, pairs = Evidence(place), Group(), list[bytes]()
    with running_cluster(place / "cluster", count, trees=dict.fromkeys(range(9), tree)) as cluster:
        address = cluster.addresses
        async with Admin(address) as admin:
            await admin.create_topics(NewTopic(TOPIC, PARTITIONS), NewTopic(PAIRS, 2))
        history, stop, drained = History(TOPIC), trio.Event(), trio.Event()
        with trio.fail_after(PATIENCE_S * rounds):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(history.watch, address)
                async with trio.open_nursery() as readers:
                    readers.start_soon(group.take_part, address, evidence, drained)
                    async with trio.open_nursery() as writers:
                        writers.start_soon(steady, address, evidence, stop)
                        writers.start_soon(write_pairs, address, pairs, stop)
                        for _ in range(rounds):
                            await roll(cluster, history, None)
                            before = len(pairs)
                            await roll(cluster, history, tree)
                            assert len(pairs) > before, "transactions go on"
                        stop.set()
                    drained.set()
                await read(address, evidence, drained)
                nursery.cancel_scope.cancel()
        found = await read_all(address, PAIRS)
        nodes = cluster.layout.node_ids
        assert [cluster.stop(node) for node in nodes] == [0] * count
        digests = [log_digests(cluster.layout.data_dir(node), TOPIC) for node in nodes]
    judge(evidence)
    print(
        f"{evidence.sent:,} records, {len(pairs):,} transactions,"
        f" the longest wait {evidence.longest_wait_s:.2f} s"
    )
    assert len(digests[0]) == PARTITIONS
    assert all(digest == digests[0] for digest in digests)
    assert group.seen.total() == len(group.seen) == evidence.sent, "the group read one twice"
    assert pairs
    assert found == {b"0": pairs, b"1": pairs}


@pytest.mark.soak
async def test_a_roll_there_and_back_loses_nothing(tmp_path: Path) -> None:
    """Two brokers: each pair of versions serves for a while, with either as the leader."""
    await roll_there_and_back(tmp_path, 2, 1)


@pytest.mark.soak
async def test_three_rolls_there_and_back_lose_nothing(tmp_path: Path) -> None:
    """Three brokers, of which two acknowledge each record."""
    await roll_there_and_back(tmp_path, 3, 3)
