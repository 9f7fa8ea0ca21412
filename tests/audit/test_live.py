"""The audit of a cluster that runs, and takes records meanwhile."""

import time
from pathlib import Path
from typing import TYPE_CHECKING

import trio

from minibroker.audit.files.directories import LIVE
from minibroker.audit.summary import Verdict
from minibroker.client import Admin, NewTopic, Producer
from tests.support.audited import audit
from tests.support.processes import running_cluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TOPIC = "growing"
PARTITIONS = 2
SETTINGS = {"replica.high.watermark.checkpoint.interval.ms": "200"}
CHECKS = ("gap", "epoch-checkpoint", "divergence", "missing-committed", "lost-write", "unseen")
CHECKPOINTED_S_MAX = 60.0
CHECKPOINT = "broker-*/replication-offset-checkpoint"


async def produce(address: str, ledger: Path) -> None:
    """Without an end."""
    async with Producer(address, ledger=ledger, linger_ms=2) as producer:
        number = 0
        while True:
            await producer.send(TOPIC, b"%d" % number, partition=number % PARTITIONS)
            number += 1
            if number % 50 == 0:
                await trio.sleep(0.05)


def wait_for_checkpoints(root: Path) -> None:
    """Until each broker has written of each partition that something is committed."""
    known: list[str] = []
    give_up = time.monotonic() + CHECKPOINTED_S_MAX
    while len(known) < 3 * PARTITIONS:
        assert time.monotonic() < give_up, f"after {CHECKPOINTED_S_MAX} s only {known} are known"
        time.sleep(0.05)
        lines = "".join(path.read_text() for path in root.glob(CHECKPOINT)).splitlines()
        known = [line for line in lines if line.startswith(f"{TOPIC} ") and not line.endswith(" 0")]


async def test_a_running_cluster_is_judged_below_its_high_watermarks(
    spark: "SparkSession", tmp_path: Path
) -> None:
    """Nobody is accused of what is under way: what was committed is judged, the rest is told."""
    with running_cluster(tmp_path, 3, SETTINGS) as cluster:
        async with Admin(cluster.addresses) as admin:
            await admin.create_topics(NewTopic(TOPIC, PARTITIONS))
        async with trio.open_nursery() as nursery:
            ledger = tmp_path / "ledger"
            nursery.start_soon(produce, cluster.addresses, ledger)
            await trio.to_thread.run_sync(wait_for_checkpoints, tmp_path)
            summary, findings = await trio.to_thread.run_sync(
                audit, spark, tmp_path, tmp_path / "audit", [ledger], CHECKS
            )
            nursery.cancel_scope.cancel()
    assert findings == []
    assert {broker.state for broker in summary.brokers} == {LIVE}
    assert all(partition.judged > 0 for partition in summary.partitions)
    assert summary.verdict is Verdict.COULD_NOT_CHECK, summary.sentence
    [above] = [each for each in summary.unjudged if not each.holds_back]
    assert above.reason.startswith("above the high watermarks of")
    assert summary.ledger is not None
    assert 0 < summary.ledger.judged == summary.ledger.present < summary.ledger.acknowledged
