"""Five programs with a bug each, written from docs/testing.md alone: the checks find each bug, and
are content with the same program without it.

They stand here as examples, too: each test breaks what the program is to survive.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from threading import Thread

import pytest

from minibroker.testing import History, KafkaCluster, PromiseBroken
from minibroker.testing.kit.waiting import Look, wait_for
from tests.kit.planted.batcher import Batcher
from tests.kit.planted.shop import Shop
from tests.kit.planted.worker import Worker

WITHIN_S = 60
READER = Path(__file__).with_name("reader.py")
HAS_BUG = pytest.mark.parametrize("has_bug", [True, False], ids=["planted", "mended"])


def verdict(has_bug: bool) -> AbstractContextManager[object]:
    """What a check must say."""
    return pytest.raises(PromiseBroken) if has_bug else nullcontext()


def fill(cluster: KafkaCluster, topic: str, history: History, count: int) -> None:
    """Orders, in turn to each partition."""
    with cluster.producer(history=history) as producer, cluster.consumer() as consumer:
        partitions = len(consumer.partitions_for_topic(topic))
        for number in range(count):
            producer.send(topic, b"order %d" % number, partition=number % partitions)


def read_all(cluster: KafkaCluster, topic: str, history: History) -> None:
    """Tell the history all that is in a topic."""
    for record in cluster.read_all(topic):
        history.polled(record.value, record.topic, record.partition, record.offset)


def started(target: Callable[..., None], *arguments: object) -> Thread:
    """A thread that calls this."""
    thread = Thread(target=target, args=arguments, daemon=True)
    thread.start()
    return thread


def wait_until_fetches_end(cluster: KafkaCluster, topic: str, *followers: int) -> None:
    """Until the latest fetch of each follower for this topic has its response."""

    def look() -> Look[bool]:
        for follower in followers:
            fetches = [
                each
                for each in cluster.requests(client_id=f"fetcher-of-broker-{follower}")
                if each.api == "FETCH" and (topic, 0) in each.partitions
            ]
            if not fetches or fetches[-1].errors is None:
                return Look(None, f"a fetch of broker {follower} waits")
        return Look(True, "")

    wait_for("the fetches of the followers to end", look, WITHIN_S)


class PowerCut(Exception):
    """The end of a program at a bad moment."""


@HAS_BUG
def test_a_commit_before_processing(kafka_broker: KafkaCluster, has_bug: bool) -> None:
    """The worker ends between the two, and its successor goes on."""
    topic, history = kafka_broker.topic(), History()
    fill(kafka_broker, topic, history, 10)

    def cut(value: bytes | None) -> None:
        if value == b"order 4":
            raise PowerCut

    bootstrap = kafka_broker.bootstrap
    with pytest.raises(PowerCut):
        Worker(bootstrap, topic, history, cut, commits_first=has_bug).run()
    Worker(bootstrap, topic, history, commits_first=has_bug).run()
    kafka_broker.wait_for_commit(f"{topic}-workers", topic, 10)
    with verdict(has_bug):
        history.check_at_least_once()
    with verdict(has_bug):
        history.check_commit_after_processing()


@HAS_BUG
def test_a_retry_without_idempotence(kafka_broker: KafkaCluster, has_bug: bool) -> None:
    """The order is stored, and the acknowledgement is lost."""
    topic, history = kafka_broker.topic(), History()
    shop = Shop(kafka_broker.bootstrap, topic, history, retries_itself=has_bug)
    shop.order(b"order 0")
    with kafka_broker.drop_response("PRODUCE", topic=topic):
        shop.order(b"order 1")
    read_all(kafka_broker, topic, history)
    history.check_nothing_is_lost()
    with verdict(has_bug):
        history.check_stored_once()


@HAS_BUG
def test_acks_1_across_a_failover(kafka_cluster: KafkaCluster, has_bug: bool) -> None:
    """The leader dies while it is cut from its followers, which know nothing of the latest."""
    topic, history = kafka_cluster.topic(), History()
    acks = 1 if has_bug else "all"
    with kafka_cluster.producer(history=history, acks=acks, request_timeout_ms=2000) as producer:
        producer.send(topic, b"parcel 0").result(WITHIN_S)
        leader = kafka_cluster.leader(topic)
        one, other = (number for number in kafka_cluster.node_ids if number != leader)
        with kafka_cluster.cut(leader, one), kafka_cluster.cut(leader, other):
            # A fetch of each follower waits at the leader, and its response arrives after the cut.
            # The first parcel uses up both.
            sending = [producer.send(topic, b"parcel 1")]
            wait_until_fetches_end(kafka_cluster, topic, one, other)
            sending += [producer.send(topic, b"parcel %d" % number) for number in range(2, 6)]
            if has_bug:
                for each in sending:
                    each.result(WITHIN_S)
            assert all(each.done() for each in sending) == has_bug
            kafka_cluster.kill(leader)
        kafka_cluster.wait_for_leader(topic)
        for each in sending:
            each.result(WITHIN_S)
    read_all(kafka_cluster, topic, history)
    with verdict(has_bug):
        history.check_nothing_is_lost()


@HAS_BUG
def test_a_rebalance_that_forgets(kafka_broker: KafkaCluster, has_bug: bool) -> None:
    """A second member comes and takes two of four partitions."""
    topic, history = kafka_broker.topic(partitions=4), History()
    group = f"{topic}-batchers"
    fill(kafka_broker, topic, history, 20)
    bootstrap = kafka_broker.bootstrap
    one, two = (Batcher(bootstrap, topic, group, history, forgets=has_bug) for _ in range(2))
    one.start()
    deadline = time.monotonic() + WITHIN_S
    while one.count() < 20:
        assert time.monotonic() < deadline, one.batches
        time.sleep(0.05)
    two.start()
    kafka_broker.wait_for_group(group, members=2)
    for member in (two, one):
        member.leave.set()
        member.join(WITHIN_S)
        assert not member.is_alive()
        assert member.error is None
    with verdict(has_bug):
        history.check_at_least_once()
    with verdict(has_bug):
        history.check_commit_after_processing()


@pytest.mark.parametrize("version", ["same", "before", "good"])
def test_offsets_in_a_file(kafka_broker: KafkaCluster, tmp_path: Path, version: str) -> None:
    """The program crashes twice, early and late in a record, and the broker is restarted."""
    topic, history = kafka_broker.topic(), History()
    values = [f"order {number}" for number in range(10)]
    with kafka_broker.producer() as producer:
        for value in values:
            history.sent(value)
            producer.send(topic, value.encode()).result(WITHIN_S)
            history.acknowledged(value)

    def run(crash_at: str, moment: str) -> int:
        place = kafka_broker.bootstrap, topic, str(tmp_path / "state")
        ended = subprocess.run(
            [sys.executable, str(READER), *place, version, values[-1], crash_at, moment],
            stdout=subprocess.PIPE,
            text=True,
            timeout=WITHIN_S,
            check=False,
        )
        for line in ended.stdout.splitlines():
            what, *arguments = json.loads(line)
            getattr(history, what)(*arguments)
        return ended.returncode

    assert run("order 4", "early") == 9
    kafka_broker.restart()
    assert run("order 6", "late") == 9
    assert run("none", "") == 0
    history.check_nothing_is_lost()
    with verdict(version != "good"):
        history.check_exactly_once()
