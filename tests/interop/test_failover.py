"""Three brokers and `kill -9`, under producers and groups of each library.

Nothing is done about it from outside: the same clients find the new leaders and the new coordinator
by themselves. At the end the audit judges what all brokers have on their disks, with the ledgers of
the groups and their producers.
"""

import gc
import random
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Final

import pytest

from minibroker.client import NewTopic, TopicPartition
from minibroker.client.blocking import Admin, Consumer
from tests.interop.clients import LIBRARIES, NEEDS_KCAT, Client, Confluent, Record, Settings
from tests.interop.features import Feature, shows
from tests.interop.replicas import stop_in_order
from tests.interop.working_groups import (
    KINDS,
    PARTITIONS,
    WorkingGroup,
    finish,
    judge,
    wait_for_progress,
    write_ledger,
)
from tests.support.audited import assert_clean
from tests.support.processes import ClusterProcesses, running_cluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COUNT: Final = 60_000
FIRST: Final = 2_000  # records in the log when the leader is killed
SENT_S_MAX: Final = 60.0
HEALED_S_MAX: Final = 60.0
LOOK_EVERY_S: Final = 0.1
OFFSETS_TOPIC: Final = "__consumer_offsets"
CONFIGS: Final = {"retention.ms": "-1", "min.insync.replicas": "2"}
SETTINGS: Final = {
    "group.initial.rebalance.delay.ms": "0",
    "offsets.topic.num.partitions": "1",  # one coordinator for all groups
    "replica.lag.time.max.ms": "3000",
}
ROUNDS: Final = 10
SEEDS: Final = range(3)
# kafka-python leaves sockets that could not be connected to the garbage collector.
pytestmark = [
    pytest.mark.usefixtures("collected_garbage"),
    pytest.mark.filterwarnings(
        r"ignore:unclosed <socket.socket .*laddr=.'0\.0\.0\.0':ResourceWarning"
    ),
]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcesses]:
    """Three brokers for all tests here but those of soak; each leaves all of them running."""
    root = tmp_path_factory.mktemp("failover") / "cluster"
    with running_cluster(root, settings=SETTINGS) as running:
        yield running


@pytest.fixture(scope="module")
def ledgers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory for the ledgers of the groups, their producers and members."""
    return tmp_path_factory.mktemp("ledgers")


@pytest.mark.parametrize("client", LIBRARIES, ids=lambda client: client.name)
@shows(Feature.LEADER)
def test_the_leader_is_killed(cluster: ClusterProcesses, topic: str, client: Client) -> None:
    """Each record is acknowledged in the end, and is in the log once and in order."""
    values = [b"%d" % number for number in range(COUNT)]
    errors: list[BaseException] = []
    with Admin(cluster.addresses) as admin:
        admin.create_topics(NewTopic(topic, 1, 3, CONFIGS))
        [described] = admin.describe_topics(topic)
    leader = described.partitions[0].leader_id

    def write() -> None:
        records = [Record(value) for value in values]
        how = Settings(is_idempotent=True)
        try:
            client.write(cluster.addresses, topic, 0, records, how)
        except BaseException as error:
            errors.append(error)

    writer = Thread(target=write)
    with Consumer(cluster.addresses) as consumer:
        partition = TopicPartition(topic, 0)
        writer.start()
        deadline = time.monotonic() + SENT_S_MAX
        while consumer.end_offsets(partition)[partition] < FIRST:
            assert time.monotonic() < deadline, errors
        cluster.kill(leader)
        is_amid = writer.is_alive()
        writer.join(SENT_S_MAX)
    assert not writer.is_alive()
    cluster.start(leader)
    assert is_amid, "the producer was done before the leader was killed"
    assert not errors
    read = Confluent().read(cluster.addresses, topic, {0: COUNT})[0]
    assert [record.value for record in read] == values
    gc.collect()


@contextmanager
def groups_at_work(
    cluster: ClusterProcesses, admin: Admin, prefix: str
) -> Iterator[list[WorkingGroup]]:
    """One of each kind, on a topic of its own; they end with the block, however that ends."""
    groups: list[WorkingGroup] = []
    try:
        for kind in KINDS:
            name = f"{prefix}-{kind.name}"
            admin.create_topics(NewTopic(name, PARTITIONS, 3, CONFIGS))
            groups.append(WorkingGroup(cluster.addresses, name, kind))
        yield groups
    finally:
        for group in groups:
            group.end()


def coordinator_of(admin: Admin, group: WorkingGroup) -> int:
    """The broker that coordinates it now."""
    return admin.describe_groups(group.name)[0].coordinator_id


def leaders_of(admin: Admin, group: WorkingGroup) -> list[int]:
    """The brokers that lead its topic now."""
    return [one.leader_id for one in admin.describe_topics(group.name)[0].partitions]


def wait_until_in_sync(admin: Admin, groups: Sequence[WorkingGroup]) -> None:
    """Until all replicas of the topics, and of the groups' own, are in sync."""
    deadline = time.monotonic() + HEALED_S_MAX
    while True:
        topics = admin.describe_topics(OFFSETS_TOPIC, *(group.name for group in groups))
        if all(len(one.isr) == 3 for topic in topics for one in topic.partitions):
            return
        assert time.monotonic() < deadline, topics
        time.sleep(LOOK_EVERY_S)


def kill_and_start(
    cluster: ClusterProcesses, admin: Admin, groups: Sequence[WorkingGroup], victim: int
) -> None:
    """The groups go on without it before it comes back."""
    cluster.kill(victim)
    wait_for_progress(admin, groups)
    cluster.start(victim)
    wait_until_in_sync(admin, groups)


@pytest.fixture(scope="module")
def worked(cluster: ClusterProcesses, ledgers: Path) -> dict[str, WorkingGroup]:
    """A group of each kind, after the coordinator of all was killed and then another broker, which
    led partitions of all; by the names of kinds."""
    with Admin(cluster.addresses) as admin, groups_at_work(cluster, admin, "work") as groups:
        wait_for_progress(admin, groups)
        wait_until_in_sync(admin, groups)
        coordinator = coordinator_of(admin, groups[0])
        kill_and_start(cluster, admin, groups, coordinator)
        now = coordinator_of(admin, groups[0])
        leaders = set.intersection(*(set(leaders_of(admin, group)) for group in groups))
        kill_and_start(cluster, admin, groups, min(leaders - {now}))
        finish(admin, groups)
    for group in groups:
        write_ledger(ledgers / group.name, group.told())
    gc.collect()
    return {group.kind.name: group for group in groups}


@pytest.mark.parametrize(
    "client", [*(client.name for client in LIBRARIES), pytest.param("kcat", marks=NEEDS_KCAT)]
)
@shows(Feature.COORDINATOR)
def test_the_coordinator_and_a_leader_are_killed(
    worked: dict[str, WorkingGroup], client: str
) -> None:
    """The group reads and commits on, without going back behind a commit; each record that was
    acknowledged is there once and was read."""
    judge(worked[client])


def test_the_audit_finds_nothing(
    cluster: ClusterProcesses,
    ledgers: Path,
    worked: dict[str, WorkingGroup],
    tmp_path: Path,
    spark: "SparkSession",
) -> None:
    """After all of the above: what the clients were told is on every replica."""
    stop_in_order(cluster)
    assert_clean(spark, cluster.layout.root, tmp_path / "audit", sorted(ledgers.iterdir()))


@pytest.mark.soak
@pytest.mark.parametrize("seed", SEEDS)
def test_any_broker_is_killed_in_many_rounds(
    tmp_path: Path, spark: "SparkSession", seed: int
) -> None:
    """By chance the coordinator, a leader, or two brokers at once, at any time."""
    rng = random.Random(seed)
    ledgers = tmp_path / "ledgers"
    ledgers.mkdir()
    with running_cluster(tmp_path / "cluster", settings=SETTINGS) as cluster:
        with (
            Admin(cluster.addresses) as admin,
            groups_at_work(cluster, admin, f"soak-{seed}") as groups,
        ):
            wait_for_progress(admin, groups)
            for _ in range(ROUNDS):
                wait_until_in_sync(admin, groups)
                time.sleep(rng.random())
                victims = [coordinator_of(admin, groups[0])]
                if rng.random() < 0.5:
                    victims = rng.sample(cluster.layout.node_ids, rng.randint(1, 2))
                print(f"seed {seed}: kill -9 of {victims}")
                if len(victims) == 1:
                    kill_and_start(cluster, admin, groups, victims[0])
                    continue
                cluster.kill(*victims)
                time.sleep(2 * rng.random())
                cluster.start(*victims)
                wait_for_progress(admin, groups)
            finish(admin, groups)
        for group in groups:
            judge(group)
            write_ledger(ledgers / group.name, group.told())
        stop_in_order(cluster)
    assert_clean(spark, tmp_path / "cluster", tmp_path / "audit", sorted(ledgers.iterdir()))
    gc.collect()
