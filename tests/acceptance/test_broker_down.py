"""A cluster with a broker down works: README's walk as a user types it, with a broker killed first,
and leaders that come back."""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from minibroker.cli.cluster.layout import Layout
from tests.support.processes import free_base_port, run_here
from tests.support.typed_cluster import Cluster, wait_until

ROOT = Path(__file__).resolve().parents[2]
CANNOT = (
    "new topics cannot be created: replication factor 3 and min.insync.replicas 2 need 2 live"
    " brokers; 1 of 3 live"
)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """Three brokers."""
    cluster = Cluster(tmp_path / "cluster")
    cluster(f"up -n 3 --base-port {free_base_port(3)} --detach")
    yield cluster
    cluster.kill_all()


def findings(cluster: Cluster) -> list[str]:
    """What the doctor says of a cluster with a problem."""
    bootstrap = Layout.load(cluster.root).bootstrap
    done = run_here("doctor", "--format", "json", "-b", bootstrap)
    assert done.returncode == 1, done.stdout + done.stderr
    return [finding["what"] for finding in json.loads(done.stdout)["findings"]]


def leaders(cluster: Cluster, topic: str) -> Counter[int]:
    """How many partitions of a topic each broker leads."""
    [described] = json.loads(cluster.ask(f"topic describe {topic} --format json"))
    return Counter(partition["leader"] for partition in described["partitions"])


def readme_walk() -> list[str]:
    """What README has a user type in another terminal, but for the addresses, which are others
    here."""
    text = (ROOT / "README.md").read_text()
    _, _, rest = text.partition("In another terminal:\n\n")
    lines = [line.strip() for line in rest.partition("\n\n")[0].split("\n")]
    assert lines[0].startswith("export MINIBROKER_BOOTSTRAP=")
    return lines[1:]


def test_the_walk_of_the_readme(cluster: Cluster) -> None:
    """Each line of README in its order, as a shell runs it: the first group begins while a broker
    is down; all are back in the end, and the doctor finds nothing."""
    layout = Layout.load(cluster.root)
    environment = os.environ | {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "MINIBROKER_BOOTSTRAP": layout.bootstrap,
        "MINIBROKER_CLUSTER_DIR": str(cluster.root),
    }
    said = {}
    for line in readme_walk():
        done = subprocess.run(
            ["sh", "-c", line],
            env=environment,
            capture_output=True,
            text=True,
            timeout=90,
            check=False,
        )
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}{cluster.logs}"
        said[" ".join(line.split()[:3])] = done.stdout
    assert said["minibroker consume words"].splitlines() == ["1", "2", "3"]
    assert "readers" in said["minibroker group describe"]
    assert cluster.states == ["running"] * 3


@pytest.mark.soak
def test_the_walk_with_a_broker_killed_first(cluster: Cluster) -> None:
    """With a broker down topics are created, also by a first record, a first group works, and the
    doctor finds no fault in that; with two down it says what cannot be created and why. A broker is
    not forgotten while it lives or holds replicas. After both were started each broker leads its
    third again, without a command."""
    cluster.ask("topic create even --partitions 9")
    assert leaders(cluster, "even") == {1: 3, 2: 3, 3: 3}
    cluster("kill 1")
    wait_until("others lead", lambda: not leaders(cluster, "even").keys() & {1, -1})
    cluster.ask("topic create words --partitions 4")
    cluster.ask("produce words --key-delimiter :", stdin="a:1\nb:2\na:3\n")
    group = "consume words --group readers --from-beginning --exit-at-end -f %k%s\\n"
    assert sorted(cluster.ask(group).splitlines()) == ["a1", "a3", "b2"]
    assert "readers" in cluster.ask("group describe readers")
    assert "Replicas: 2,3,1\tIsr: 2,3\t" in cluster.ask("topic describe words")
    cluster.ask("produce first", stdin="made by its first record\n")
    assert "new topics can be created" in findings(cluster)
    cluster.ask("broker forget 1", code=1)
    assert "broker 1 holds " in cluster.stderr
    cluster.ask("broker forget 2", code=1)
    assert "broker 2 is alive; stop it first" in cluster.stderr
    cluster.ask("broker forget 7", code=1)
    assert "there is no broker 7; known are 1, 2, 3" in cluster.stderr
    cluster("kill 2")
    wait_until("the doctor says so", lambda: CANNOT in findings(cluster))
    cluster("start 1 2")
    assert leaders(cluster, "even") == {3: 9}
    wait_until("leaders", lambda: leaders(cluster, "even") == {1: 3, 2: 3, 3: 3})
    cluster.ask("leader elect")
    told = cluster.ask("leader elect --topic even --partition 0")
    assert told == "Elected the preferred leader of 0 partitions.\n"
