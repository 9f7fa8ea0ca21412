"""A real cluster with some history that is stopped in order, and what may become of it at rest."""

import random
from pathlib import Path
from typing import TYPE_CHECKING

import trio

from minibroker.audit.summary import Verdict
from minibroker.client import Admin, Consumer, NewTopic, Producer
from tests.support.audited import audit
from tests.support.damage import Replica, cut_tail
from tests.support.processes import running_cluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KEPT, REMADE = "kept", "remade"
PARTITIONS = 2
COUNT = 600
GROUP = "readers"
FOUND = 1


async def produce(address: str, ledger: Path, topic: str) -> None:
    """So many records, in several batches."""
    async with Producer(address, ledger=ledger, linger_ms=1) as producer:
        for number in range(COUNT):
            await producer.send(topic, b"%d" % number, partition=number % PARTITIONS)
            if number % 50 == 0:
                await producer.flush()


async def read(address: str, ledger: Path) -> None:
    """All of a topic, as a group of one that commits."""
    options = {"group_id": GROUP, "auto_offset_reset": "earliest"}
    async with Consumer(address, ledger=ledger, **options) as consumer:
        await consumer.subscribe(KEPT)
        count = 0
        while count < COUNT:
            count += len(await consumer.poll(10))
        await consumer.commit()


async def make_again(admin: Admin) -> None:
    """Delete a topic, and create another of its name."""
    await admin.delete_topics(REMADE)
    await admin.create_topics(NewTopic(REMADE, PARTITIONS))


async def live(root: Path) -> list[Path]:
    """A cluster's life from its start to its end; the ledgers of its clients."""
    ledgers = [root / name for name in ("kept", "before", "after", "shown")]
    with running_cluster(root, 3) as cluster:
        address = cluster.addresses
        async with Admin(address) as admin:
            await admin.create_topics(NewTopic(KEPT, PARTITIONS), NewTopic(REMADE, PARTITIONS))
            await produce(address, ledgers[0], KEPT)
            await produce(address, ledgers[1], REMADE)
            await make_again(admin)
            await produce(address, ledgers[2], REMADE)
            await read(address, ledgers[3])
        for node_id in cluster.layout.node_ids:
            assert await trio.to_thread.run_sync(cluster.stop, node_id) == 0
    return ledgers


def test_a_cluster_at_rest(spark: "SparkSession", tmp_path: Path) -> None:
    """It is plainly clean on all replicas, also with a topic that was deleted and created again.
    With tails that are gone it is not, for the metadata say how far the logs went."""
    root = tmp_path / "cluster"
    root.mkdir()
    ledgers = trio.run(live, root)
    summary, findings = audit(spark, root, tmp_path / "audit", ledgers, is_ledger_complete=True)
    assert findings == []
    assert summary.verdict is Verdict.CLEAN, f"{summary.sentence} {summary.unjudged}"
    assert all(lane.in_isr for each in summary.partitions for lane in each.lanes)
    assert summary.ledger is not None
    assert summary.ledger.acknowledged == 2 * COUNT, "what was told of the deleted topic is gone"
    [other] = summary.unjudged
    assert "of a topic that was deleted, remade" in other.reason

    planted = [
        cut_tail(Replica(root / f"broker-{node}", KEPT, 0), random.Random(1)) for node in (2, 3)
    ]
    checks = ("missing-committed", "hw-beyond-leo")
    summary, findings = audit(spark, root, tmp_path / "audit-of-cut", checks=checks)
    assert summary.exit_code == FOUND, summary.sentence
    assert [(each.check, each.broker, each.offset) for each in findings] == [
        ("missing-committed", each.broker, each.offset) for each in planted
    ]
