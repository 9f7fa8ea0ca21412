"""A cluster with a broker down works: README's walk as a user types it, with a broker killed first,
and leaders that come back."""

import json
from collections import Counter
from collections.abc import Iterator

import pytest

from tests.processes import free_base_port
from tests.typed_cluster import Cluster, wait_until

CANNOT = "replication factor 3 and min.insync.replicas 2 need 2 live brokers; 1 of 3 live"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three brokers, of which each test leaves all running."""
    cluster = Cluster(tmp_path_factory.mktemp("down") / "cluster")
    cluster(f"up -n 3 --base-port {free_base_port(3)} --detach")
    yield cluster
    cluster.kill_all()


def findings(cluster: Cluster, code: int) -> list[str]:
    """What the doctor says."""
    told = json.loads(cluster.ask("doctor --format json", code))
    return [finding["what"] for finding in told["findings"]]


def leaders(cluster: Cluster, topic: str) -> Counter[int]:
    """How many partitions of a topic each broker leads."""
    [described] = json.loads(cluster.ask(f"topic describe {topic} --format json"))
    return Counter(partition["leader"] for partition in described["partitions"])


def test_the_walk_with_a_broker_killed_first(cluster: Cluster) -> None:
    """Topics are created, a first group works, and the doctor finds no fault in that; with two
    brokers down it says what cannot be created and why."""
    cluster("kill 1")
    cluster.ask("topic create words --partitions 4")
    cluster.ask("produce words --key-delimiter :", stdin="a:1\nb:2\na:3\n")
    read = cluster.ask("consume words --from-beginning --exit-at-end -f %k%s\\n")
    assert sorted(read.splitlines()) == ["a1", "a3", "b2"]
    read = cluster.ask("consume words --group readers --from-beginning --exit-at-end -f %s\\n")
    assert sorted(read.splitlines()) == ["1", "2", "3"]
    assert "readers" in cluster.ask("group describe readers")
    assert "Replicas: 2,3,1\tIsr: 2,3\t" in cluster.ask("topic describe words")
    cluster.ask("produce first", stdin="made by its first record\n")
    assert "new topics can be created" in findings(cluster, 1)
    cluster("kill 2")
    wait_until(
        "the doctor says so",
        lambda: f"new topics cannot be created: {CANNOT}" in findings(cluster, 1),
    )
    cluster.ask("topic create more", code=1)
    assert CANNOT in cluster.stderr
    cluster("start 1 2")


def test_a_broker_is_forgotten(cluster: Cluster) -> None:
    """Not while it lives, nor while it holds replicas; each refusal says why."""
    cluster.ask("broker forget 1", code=1)
    assert "broker 1 is alive; stop it first" in cluster.stderr
    cluster.ask("broker forget 7", code=1)
    assert "there is no broker 7; known are 1, 2, 3" in cluster.stderr
    cluster.ask("topic create held --partitions 1 --replication-factor 3")
    cluster("stop 3")
    cluster.ask("broker forget 3", code=1)
    assert "broker 3 holds " in cluster.stderr
    cluster("start 3")


def test_leaders_come_back(cluster: Cluster) -> None:
    """After two of three brokers were killed and started, each leads a third, without a command;
    then a command finds nothing to do."""
    cluster.ask("topic create even --partitions 9")
    assert leaders(cluster, "even") == {1: 3, 2: 3, 3: 3}
    cluster("kill 1 2")
    cluster("start 1 2")
    assert leaders(cluster, "even")[3] == 9
    wait_until("leaders", lambda: leaders(cluster, "even") == {1: 3, 2: 3, 3: 3})
    cluster.ask("leader elect")
    assert cluster.ask("leader elect --topic even --partition 0") == (
        "Elected the preferred leader of 0 partitions.\n"
    )
