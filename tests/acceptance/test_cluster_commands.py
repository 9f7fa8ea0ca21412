"""`minibroker cluster` as a user types it: real brokers, killed and paused on purpose.

What becomes of the records in all this is another file's business; here it is whether the commands
do what they say, and say what happened.
"""

import json
import os
import re
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from minibroker.broker.properties.quotas import (
    FOLLOWER_RATE,
    FOLLOWER_REPLICAS,
    LEADER_REPLICAS,
)
from minibroker.cli.cluster.layout import HOST, Layout
from minibroker.client.blocking import Admin
from tests.support.processes import free_base_port, run_here
from tests.support.typed_cluster import PATIENCE_S, Cluster, Foreground, wait_until

ALIVE = ["running"] * 3


@pytest.fixture
def new(tmp_path: Path) -> Iterator[Cluster]:
    """A directory that is not there yet; what was started in it is gone in the end."""
    cluster = Cluster(tmp_path / "cluster")
    yield cluster
    cluster.kill_all()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three brokers for several tests, each of which leaves all of them running and in sync."""
    cluster = Cluster(tmp_path_factory.mktemp("commands") / "cluster")
    # A session that a busy machine does not end by itself.
    settings = "--set num.partitions=2 --set broker.session.timeout.ms=3000"
    cluster(f"up -n 3 --base-port {free_base_port(3)} {settings} --detach")
    yield cluster
    cluster.kill_all()


def test_up_stays_tells_and_stops(new: Cluster) -> None:
    """`up` says who started and when all are there, who ends and who comes back; SIGINT stops all
    in order and is its normal end. A second `up` needs no options, and finds everything."""
    with Foreground(new.root, "-n", "3", "--base-port", str(free_base_port(3))) as up:
        up.wait_for(r"Cluster started: (127\.0\.0\.1:\d+,?){3}\n")
        for number in (1, 2, 3):
            assert re.search(rf"Broker {number} started: .*broker-{number}\.log", up.text)
        assert new.states == ALIVE
        new.ask("topic create kept -r 3")
        new.ask("produce kept", stdin="one\ntwo\n")
        new("kill 2")
        up.wait_for(r"% WARNING: broker 2 has ended \(see .*broker-2\.log\)")
        assert new.states == ["running", "ended without a clean stop", "running"]
        new("start 2")
        up.wait_for("% broker 2 runs again")
        up.process.send_signal(signal.SIGINT)
        assert up.process.wait(PATIENCE_S) == 0, up.text + new.logs
        assert up.text.endswith("Cluster stopped\n")
    assert new.states == ["stopped"] * 3
    assert not list(new.root.glob("*.pid"))
    new("up -d")
    assert new.ask("consume kept --from-beginning -e") == "one\ntwo\n"
    with Foreground(new.root) as up:
        up.wait_for("Cluster started")
        assert "broker 1 runs already" in up.text
        assert new("down") == "Stopped 3 brokers.\n"
        assert up.process.wait(PATIENCE_S) == 0
        assert "broker 3 was stopped" in up.text


def test_a_second_signal_kills(new: Cluster) -> None:
    """Two signals at once: the exit code of the second, and no broker is left."""
    with Foreground(new.root, "-n", "2", "--base-port", str(free_base_port(2))) as up:
        up.wait_for("Cluster started")
        # Both are there before it can do anything about the first.
        up.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, up.process.pid, os.WSTOPPED)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCONT):
            up.process.send_signal(number)
        assert up.process.wait(PATIENCE_S) in (128 + signal.SIGINT, 128 + signal.SIGTERM)
    assert new.states == ["ended without a clean stop"] * 2


def test_all_killed_at_once_come_back(cluster: Cluster) -> None:
    """After `kill -9` of all brokers `up` on the same directory serves again unaided."""
    cluster.ask("topic create survivors -r 3")
    cluster.ask("produce survivors", stdin="one\ntwo\n")
    assert "WARNING" not in cluster.stderr
    cluster.ask("produce survivors --acks 1")
    assert "WARNING: with acks=1 a record is lost if its leader fails" in cluster.stderr
    assert "nobody can read it while fewer than min.insync.replicas" in cluster.stderr
    assert cluster("kill 1 2 3") == "Killed broker 1.\nKilled broker 2.\nKilled broker 3.\n"
    assert cluster.states == ["ended without a clean stop"] * 3
    # The numbers of processes that are gone, and that by now may be another's, say nothing.
    (cluster.root / "broker-1.pid").write_text(f"{os.getpid()}\n")
    cluster("up --detach")
    assert cluster.ask("consume survivors --from-beginning -e").split() == ["one", "two"]


def test_what_is_wrong_is_shown(cluster: Cluster) -> None:
    """A killed broker leaves the in-sync sets, and the filters, `replica status` and `cluster
    describe` say so; started again, it is in sync again and nothing is shown any more."""
    cluster.ask("topic create shown -r 3")
    head, *lines = cluster.ask("topic describe shown").splitlines()
    assert "\tPartitionCount: 2\tReplicationFactor: 3\t" in head
    shape = r"\tTopic: shown\tPartition: [01]\tLeader: [123]\tReplicas: (\d,?){3}\tIsr: (\d,?){3}\t"
    assert all(re.match(shape, line) for line in lines)
    assert len(lines) == 2
    cluster.ask("produce shown -p 0", stdin="one\ntwo\n")
    cluster("kill 3")
    at_minimum = "topic describe shown --at-min-isr-partitions"
    wait_until("two in sync", lambda: len(cluster.ask(at_minimum).splitlines()) == 2)
    assert len(cluster.ask("topic describe shown --under-replicated-partitions").splitlines()) == 2
    assert cluster.ask("topic describe shown --under-min-isr-partitions") == ""
    assert cluster.ask("topic describe shown --unavailable-partitions") == ""
    described = json.loads(cluster("describe --format json"))
    assert [broker["is_live"] for broker in described["brokers"]] == [True, True, False]
    assert described["controller"] in (1, 2)
    assert described["under_replicated_count"] >= 2
    rows = json.loads(cluster.ask("replica status shown --format json"))
    assert [(row["partition"], row["broker"]) for row in rows] == [
        (partition, broker) for partition in (0, 1) for broker in (1, 2, 3)
    ]
    assert {row["role"] for row in rows if row["broker"] == 3} == {"unreachable"}
    assert sorted(row["role"] for row in rows[:2]) == ["follower", "leader"]
    assert [row["log_end"] for row in rows[:2]] == [2, 2]
    cluster("start 3")
    wait_until("all in sync", lambda: cluster.ask(at_minimum) == "")
    assert [row["in_sync"] for row in replicas(cluster, "shown")] == [True] * 6
    assert cluster("describe").splitlines()[0].count("\tLive: 3 of 3\t") == 1


def replicas(cluster: Cluster, topic: str) -> list[dict]:
    """The rows of `replica status`."""
    return json.loads(cluster.ask(f"replica status {topic} --format json"))


def test_a_paused_broker_loses_its_session_and_returns(cluster: Cluster) -> None:
    """SIGSTOP beyond the session: the others go on without it; SIGCONT: it is one of them again."""
    assert cluster("pause 1") == "Paused broker 1.\n"
    assert cluster.states == ["paused", "running", "running"]

    def live() -> list[bool]:
        return [row["is_live"] for row in json.loads(cluster("describe --format json"))["brokers"]]

    wait_until("1 is dead", lambda: live() == [False, True, True])
    cluster("start 1", code=1)
    assert "broker 1 is paused, and does not answer; to let it go on: " in cluster.stderr
    assert f"minibroker cluster resume 1 --data-dir {cluster.root}" in cluster.stderr
    assert cluster("resume 1") == "Resumed broker 1.\n"
    wait_until("1 is alive", lambda: live() == [True, True, True])


def test_an_option_wins_over_a_variable(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """`cluster describe` asks who is named on the command line: the variables do not overrule it,
    neither of them, and the directory wins if both are typed or none."""
    monkeypatch.setenv("MINIBROKER_CLUSTER_DIR", str(cluster.root))
    monkeypatch.setenv("MINIBROKER_BOOTSTRAP", "127.0.0.1:1")
    assert "Live: 3 of 3" in run_here("cluster", "describe").stdout
    nobody = ("-b", "127.0.0.1:1", "--timeout-s", "0.2")
    assert run_here("cluster", "describe", *nobody).returncode == 1
    there = ("--data-dir", str(cluster.root))
    assert "Live: 3 of 3" in run_here("cluster", "describe", *nobody[:2], *there).stdout


def replicas_of(cluster: Cluster, topic: str) -> list[list[int]]:
    """Of each partition, the preferred leader first."""
    [described] = json.loads(cluster.ask(f"topic describe {topic} --format json"))
    return [partition["replicas"] for partition in described["partitions"]]


def test_partitions_move_between_brokers(cluster: Cluster) -> None:
    """By brokers and by a plan, with more and fewer replicas; the records stay. What is printed
    first leads back."""
    cluster.ask("topic create moved -p 3 -r 2")
    cluster.ask("produce moved", stdin="one\ntwo\n")
    before = replicas_of(cluster, "moved")
    plan = cluster.ask("partition reassign --topic moved --brokers 1,2 --dry-run")
    assert replicas_of(cluster, "moved") == before
    cluster.ask("partition reassign --plan - --verify", 1, stdin=plan)
    said = cluster.ask("partition reassign --topic moved --brokers 1,2")
    assert "Reassigned 3 partitions." in said
    back = re.search(r"the present assignment: (.*)", cluster.stderr)
    assert back is not None
    assert "3 of 3 partitions as planned." in cluster.ask(
        "partition reassign --plan - --verify", stdin=plan
    )
    assert {node for each in replicas_of(cluster, "moved") for node in each} == {1, 2}
    cluster.ask("partition reassign --plan -", stdin=back[1])
    assert replicas_of(cluster, "moved") == before
    for factor in (3, 1):
        cluster.ask(f"topic alter moved --replication-factor {factor}")
        assert {len(each) for each in replicas_of(cluster, "moved")} == {factor}
    read = cluster.ask("consume moved --from-beginning --exit-at-end")
    assert sorted(read.split()) == ["one", "two"]  # of partitions, which have no common order
    assert "Cancelled" in cluster.ask("partition reassign --topic moved --cancel")


def test_a_throttled_move_leaves_no_throttle(cluster: Cluster) -> None:
    """While it copies its topic lists the replicas and its brokers have the rate; then neither."""
    cluster.ask("topic create slow --replica-assignment 1:2")
    cluster.ask("produce slow", stdin="x" * 100_000 + "\n")
    plan = cluster.ask("partition reassign --topic slow --brokers 2,3 --dry-run")
    cluster.ask("partition reassign --plan - --throttle 1000000 --no-wait", stdin=plan)
    assert "% throttled to 1.0 MB a second on each of brokers 1,2,3" in cluster.stderr
    assert throttles_of(cluster, "slow") == ["0:1,0:2", "0:3", "1000000", "1000000", "1000000"]
    planned = [one["replicas"] for one in json.loads(plan)["partitions"]]
    wait_until("the move is done", lambda: replicas_of(cluster, "slow") == planned)
    assert cluster.ask("partition reassign --plan - --verify", stdin=plan).startswith("1 of 1")
    assert throttles_of(cluster, "slow") == ["", "", *["9223372036854775807"] * 3]
    cluster.ask("partition reassign --topic slow --brokers 1,2 --throttle 1000000")
    assert throttles_of(cluster, "slow") == ["", "", *["9223372036854775807"] * 3]


def throttles_of(cluster: Cluster, topic: str) -> list[str]:
    """The throttled replicas of leaders and of followers; the rate of each broker as a follower."""
    with Admin(Layout.load(cluster.root).bootstrap) as admin:
        [own] = admin.describe_configs(topic).values()
        values = {one.name: one.value for one in own}
        rates = [admin.describe_broker_configs(node, FOLLOWER_RATE) for node in (1, 2, 3)]
    return [values[LEADER_REPLICAS], values[FOLLOWER_REPLICAS], *(one.value for [one] in rates)]


@pytest.mark.parametrize(
    ("options", "code", "reason"),
    [
        ("", 2, "give either --topic or --plan"),
        ("--topic t --plan p", 2, "give either --topic or --plan"),
        ("--topic t", 2, "--topic needs --brokers"),
        ("--topic t --brokers 1 --dry-run --cancel", 2, "give at most one of"),
        ("--topic t --brokers 1,,2", 2, "numbers with commas between them"),
        ("--topic t --brokers 99999999999", 2, "numbers with commas between them"),
        ("--topic nosuch --brokers 1", 1, "nosuch"),
        ("--topic stays --partitions 7 --brokers 1", 1, "topic stays has no partition 7"),
        ("--topic stays --brokers 1", 1, "2 replicas need as many brokers; there are 1"),
        ("--topic stays --brokers 1,9", 1, "there is no broker '9'; known are 1, 2, 3"),
        ("--plan /nosuch", 1, "/nosuch cannot be read: No such file"),
        ("--plan /", 1, "/ cannot be read: Is a directory"),
        ("--plan /bin/sh", 1, "/bin/sh is no text"),
        ("--plan -", 1, "the plan is not of the form"),
    ],
)
def test_a_bad_reassignment_changes_nothing(
    cluster: Cluster, options: str, code: int, reason: str
) -> None:
    """It is told what is wrong with it."""
    if not any("stays" in line for line in cluster.ask("topic list").splitlines()):
        cluster.ask("topic create stays -p 1 -r 2")
    before = replicas_of(cluster, "stays")
    cluster.ask(f"partition reassign {options}", code, stdin="nonsense")
    assert reason in " ".join(cluster.stderr.replace("│", " ").split())
    assert replicas_of(cluster, "stays") == before


def test_the_metadata_of_a_running_cluster_is_exported(cluster: Cluster) -> None:
    """`cluster export` says of a cluster that runs what its brokers say of it."""
    cluster.ask("topic create exported --partitions 2")
    exported = json.loads(cluster("export"))
    described = json.loads(cluster("describe --format json"))
    assert exported["cluster_id"] == described["cluster_id"]
    assert exported["controller_id"] == described["controller"]
    assert [(broker["node_id"], broker["admitted_epoch"]) for broker in exported["brokers"]] == [
        (broker["broker"], broker["epoch"]) for broker in described["brokers"]
    ]
    [topic] = [topic for topic in exported["topics"] if topic["name"] == "exported"]
    assert all(sorted(partition["isr"]) == [1, 2, 3] for partition in topic["partitions"])


def test_one_broker_stops_and_starts(cluster: Cluster) -> None:
    """`stop` is a stop in order; what does not run cannot be killed, what runs is not started."""
    assert cluster("stop 2") == "Stopped broker 2.\n"
    assert cluster.states == ["running", "stopped", "running"]
    assert cluster("stop 2") == ""
    assert cluster.stderr == "% broker 2 does not run\n"
    for verb in ("kill", "pause", "resume"):
        cluster(f"{verb} 2", code=1)
        assert cluster.stderr == "% ERROR: broker 2 does not run\n"
    assert cluster("start 2").startswith("Broker 2 started: ")
    assert cluster("start 2") == ""
    assert "broker 2 runs already" in cluster.stderr
    cluster("kill 4", code=2)
    assert "there is no broker 4" in cluster.stderr
    cluster("up -n 5 -d", code=2)
    assert "has 3 brokers, not 5" in cluster.stderr


def test_a_taken_port_is_told_before_anything_is_made(new: Cluster) -> None:
    """Another program listens where a broker is to: the error names it, and nothing is written."""
    base = free_base_port(2)
    with socket.create_server((HOST, base + 1)):
        new(f"up -n 2 --base-port {base} -d", code=1)
    assert f"{HOST}:{base + 1}, where broker 2 is to listen" in new.stderr
    assert not new.root.exists()
    new("status", code=1)
    assert "there is no cluster in" in new.stderr


def test_a_broker_that_cannot_start_is_told(new: Cluster) -> None:
    """The error says what the broker said and where its log is; no other one is left running."""
    new(f"up -n 2 --base-port {free_base_port(2)} -d")
    new("down")
    boot_id = new.root / "broker-2" / "boot-id"
    boot_id.unlink()
    (boot_id / "occupied").mkdir(parents=True)
    new("up -d", code=1)
    error = new.stderr.splitlines()[-1]
    assert re.match(r"% ERROR: broker 2 ended with exit code 1 .*boot-id.*broker-2\.log\)", error)
    assert new.states[0] == "stopped"


def test_a_broker_is_drained_replaced_and_removed(cluster: Cluster) -> None:
    """What it held is on the others, also if it is dead; then the cluster forgets it."""
    for line in cluster.ask("topic list").splitlines():
        cluster.ask(f"topic delete {line.split()[0]}")
    cluster.ask("topic create kept -p 2 -r 2")
    before = replicas_of(cluster, "kept")
    assert '"topic": "kept"' in cluster.ask("broker drain 3 --dry-run")
    assert replicas_of(cluster, "kept") == before
    cluster.ask("broker drain 3")
    assert "broker 3 holds no replica" in cluster.stderr
    assert {node for each in replicas_of(cluster, "kept") for node in each} == {1, 2}
    cluster.ask("broker remove 3 --yes", 1)
    assert "broker 3 holds nothing, but runs; stop it" in cluster.stderr
    cluster.ask("broker replace 2 3")
    assert {node for each in replicas_of(cluster, "kept") for node in each} == {1, 3}
    cluster.ask("broker replace 3 2")
    cluster("stop 2")
    cluster.ask("broker remove 2 --yes")
    assert {node for each in replicas_of(cluster, "kept") for node in each} == {1, 3}
    cluster.ask("broker remove 2 --yes", 1)
    assert "there is no broker 2; known are 1, 3" in cluster.stderr
    cluster("start 2")


@pytest.mark.parametrize(
    ("command", "code", "reason"),
    [
        ("drain 9", 1, "broker 9 is not alive and holds no replica; live are 1, 2, 3"),
        ("drain x", 2, "parse string as an integer"),
        ("drain -1", 2, "No such option"),
        ("replace 1 1", 2, "OLD and NEW are the same broker"),
        ("replace 1 9", 1, "broker 9 is not alive; start it first"),
        ("replace 9 1", 1, "broker 9 is not alive and holds no replica"),
        ("replace 1 2", 1, "full-0 has a replica on broker 1 and on broker 2; use"),
        ("drain 1", 1, "full-0 has 3 replicas, and no other live broker can take that"),
        ("remove 1", 2, "nothing was done: --yes says that you accept this"),
        ("remove 1 --yes", 1, "full-0 has 3 replicas, and no other live broker can take that"),
        ("remove 9 --yes", 1, "there is no broker 9; known are 1, 2, 3"),
    ],
)
def test_a_broker_that_cannot_be_drained_keeps_its_replicas(
    cluster: Cluster, command: str, code: int, reason: str
) -> None:
    """The reason says what to do."""
    if not any("full" in line for line in cluster.ask("topic list").splitlines()):
        cluster.ask("topic create full -p 1 -r 3")
    before = replicas_of(cluster, "full")
    cluster.ask(f"broker {command}", code)
    assert reason in " ".join(cluster.stderr.replace("│", " ").split())
    assert replicas_of(cluster, "full") == before
