"""`minibroker cluster roll` as a user types it: under load, and where it is not to be."""

import json
import re
import shlex
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from minibroker.cli.cluster.layout import Layout, exclusive
from minibroker.client import Admin, Consumer, NewTopic
from tests.support.evidence import PARTITIONS, TOPIC, Evidence, judge, produce, read
from tests.support.processes import COMMAND, free_base_port, run_here
from tests.support.typed_cluster import PATIENCE_S, Cluster, Foreground
from tests.support.witness import History, log_digests

NODES = (1, 2, 3)
PRODUCERS = 2
MEMBERS = 2
SETTING = "log.segment.bytes=1048576"
STEP = r"Rolled broker (\d): stopped in [\d.]+ s, started in [\d.]+ s, all in sync [\d.]+ s later\."
REST = "to go on with the rest: minibroker cluster (roll .*) --data-dir"


@pytest.fixture
def new(tmp_path: Path) -> Iterator[Cluster]:
    """A directory that is not there yet; what was started in it is gone in the end."""
    cluster = Cluster(tmp_path / "cluster")
    yield cluster
    cluster.kill_all()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Three brokers for several tests, each of which leaves all of them running and in sync."""
    cluster = Cluster(tmp_path_factory.mktemp("roll") / "cluster")
    cluster(f"up -n 3 --base-port {free_base_port(3)} --detach")
    yield cluster
    cluster.kill_all()


class Group:
    """Members of a group, and how often they were shown each record."""

    def __init__(self) -> None:
        self.seen: Counter[bytes] = Counter()
        self.at_work = trio.Event()

    async def take_part(self, address: str, evidence: Evidence, drained: trio.Event) -> None:
        """Be a member until all is read that was sent."""
        options = {"group_id": "rolled", "auto_offset_reset": "earliest"}
        async with Consumer(address, ledger=evidence.new_ledger(), **options) as consumer:
            await consumer.subscribe(TOPIC)
            while not (drained.is_set() and len(self.seen) == evidence.sent):
                for record in await consumer.poll(0.2):
                    self.seen[record.value] += 1
                    self.at_work.set()


async def roll_under_load(cluster: Cluster, evidence: Evidence, rounds: int = 1) -> History:
    """Producers, a reader and a group at work while the cluster is rolled."""
    address = Layout.load(cluster.root).bootstrap
    async with Admin(address) as admin:
        await admin.create_topics(NewTopic(TOPIC, PARTITIONS))
    history, group, stop, drained = History(TOPIC), Group(), trio.Event(), trio.Event()
    async with Admin(address) as admin, trio.open_nursery() as nursery:
        nursery.start_soon(history.watch, address)
        async with trio.open_nursery() as readers:
            readers.start_soon(read, address, evidence, drained)
            for _ in range(MEMBERS):
                readers.start_soon(group.take_part, address, evidence, drained)
            async with trio.open_nursery() as writers:
                for number in range(PRODUCERS):
                    writers.start_soon(produce, address, number, evidence, stop)
                with trio.fail_after(PATIENCE_S):
                    await group.at_work.wait()
                for _ in range(rounds):
                    controller = json.loads(cluster("describe --format json"))["controller"]
                    said = await trio.to_thread.run_sync(cluster, f"roll --set {SETTING}")
                    print(said)
                    restarted = re.findall(STEP, said)
                    assert sorted(restarted) == ["1", "2", "3"]
                    assert restarted[-1] == str(controller), "there should be one change of it"
                    assert "% elected the preferred leader of " in cluster.stderr
                    (topic,) = await admin.describe_topics(TOPIC)
                    assert all(one.leader_id == one.replicas[0] for one in topic.partitions)
                stop.set()
            drained.set()
        await read(address, evidence, drained)
        nursery.cancel_scope.cancel()
    assert group.seen.total() == len(group.seen) == evidence.sent, "the group read one twice"
    return history


async def run_rounds(cluster: Cluster, place: Path, rounds: int = 1) -> None:
    """Roll under load, then judge what was told and what is there."""
    cluster(f"up -n 3 --base-port {free_base_port(3)} --detach")
    evidence = Evidence(place)
    history = await roll_under_load(cluster, evidence, rounds)
    judge(evidence)
    print(f"{evidence.sent:,} records, the longest wait {evidence.longest_wait_s:.2f} s")
    assert min(len(change.isr) for change in history.changes) == len(NODES) - 1
    cluster("down")
    layout = Layout.load(cluster.root)
    assert layout.settings == dict([SETTING.split("=")])
    digests = [log_digests(layout.data_dir(node), TOPIC) for node in NODES]
    assert len(digests[0]) == PARTITIONS
    assert digests[0] == digests[1] == digests[2]


async def test_a_roll_under_load_fails_no_produce(new: Cluster, tmp_path: Path) -> None:
    """While each broker is restarted, with a new setting and the controller last, every acks=all
    produce succeeds; each record is there once and in order, a group goes on and repeats nothing,
    and never are two replicas missing."""
    await run_rounds(new, tmp_path)


@pytest.mark.soak
async def test_twenty_rolls_under_load_fail_no_produce(new: Cluster, tmp_path: Path) -> None:
    """The same again and again."""
    await run_rounds(new, tmp_path, 20)


def refused(cluster: Cluster, *options: str, code: int = 1) -> str:
    """Why no broker was stopped."""
    done = run_here("cluster", "roll", "--data-dir", str(cluster.root), *options)
    assert done.returncode == code, done.stdout + done.stderr
    assert done.stdout == ""
    assert "stopping" not in done.stderr
    return done.stderr


def test_a_roll_that_would_do_harm_does_not_begin(cluster: Cluster) -> None:
    """Where a broker is dead or stands still, another command starts some, or too few replicas
    would be left, none is stopped, and the error says what to type."""
    place = f"--data-dir {cluster.root}"
    assert "there is no broker 4; those in" in refused(cluster, "--broker", "4", code=2)
    with exclusive(Layout.load(cluster.root)):
        assert "another command starts or rolls the brokers in" in refused(cluster)
    cluster.ask("topic create lonely -r 1 -p 1")
    [leader] = re.findall(r"Leader: (\d)", cluster.ask("topic describe lonely"))
    error = refused(cluster, "--broker", leader)
    assert "too few replicas are left for acks=all of 1 partition: lonely-0;" in error
    assert "to roll nonetheless, add --allow-pauses" in error
    cluster.ask("topic delete lonely")
    cluster("pause 2")
    assert f"to let it go on: minibroker cluster resume 2 {place}" in refused(cluster)
    cluster("resume 2")
    cluster("kill 3")
    error = refused(cluster, "--broker", "1")
    assert f"broker 3 does not run; to start: minibroker cluster start 3 {place}" in error
    cluster("start 3")


def test_a_broker_that_does_not_come_back_ends_the_roll(cluster: Cluster) -> None:
    """The others go on; the error says why, how to start it, and how to go on with the rest."""
    controller = json.loads(cluster("describe --format json"))["controller"]
    first, second = (node for node in NODES if node != controller)
    boot_id = Layout.load(cluster.root).data_dir(first) / "boot-id"
    kept = boot_id.read_bytes()
    boot_id.unlink()
    (boot_id / "occupied").mkdir(parents=True)
    assert cluster(f"roll --broker {first} --broker {second}", code=1) == ""
    error = cluster.stderr.splitlines()[-1]
    assert re.search(f"broker {first} ended with exit code 1 while it started: .*boot-id", error)
    assert f"then: minibroker cluster start {first} --data-dir {cluster.root}" in error
    assert cluster.states.count("running") == 2
    (boot_id / "occupied").rmdir()
    boot_id.rmdir()
    boot_id.write_bytes(kept)
    cluster(f"start {first}")
    assert re.findall(REST, error) == [f"roll --broker {second}"]
    assert re.findall(STEP, cluster(f"roll --broker {second}")) == [str(second)]


def test_a_signal_ends_a_roll_with_all_brokers_running(cluster: Cluster) -> None:
    """The broker at hand is started again; what is left to be done is told. Exit code 130."""
    command = [*COMMAND, "cluster", "roll", "--data-dir", str(cluster.root)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as roll:
        assert roll.stderr
        assert roll.stderr.readline().startswith("% Ctrl-C ends it once ")
        assert roll.stderr.readline().startswith("% stopping broker ")
        roll.send_signal(signal.SIGINT)
        errors = roll.stderr.read()
    assert roll.returncode == 128 + signal.SIGINT, errors
    [rest] = re.findall(REST, errors)
    assert len(shlex.split(rest)) == len(["roll", "--broker", "N", "--broker", "M"])
    assert cluster.states == ["running"] * 3


def test_a_cluster_of_one_is_away_meanwhile(new: Cluster) -> None:
    """It is not restarted unless that is allowed; who watches over it does not take it for
    stopped. With `log.format=json` a broker is known to have started, too, and each line that it
    says is an object."""
    options = ("-n", "1", "--base-port", str(free_base_port(1)), "--set", "log.format=json")
    with Foreground(new.root, *options) as up:
        up.wait_for("Cluster started")
        error = refused(new)
        assert "a cluster of one broker answers nobody while it restarts" in error
        assert "Rolled 1 broker in " in new("roll --allow-pauses")
        up.wait_for("broker 1 runs again")
        up.process.send_signal(signal.SIGINT)
        assert up.process.wait(PATIENCE_S) == 0, up.text + new.logs
    lines = (new.root / "broker-1.log").read_text().splitlines()
    said = [json.loads(line)["message"] for line in lines]
    assert said.count("Kafka Server started") == 2
    assert said[-1] == "[KafkaServer id=1] shut down completed"
