"""What the answers of the brokers become: the rows of `replica status`, the counts of
`cluster describe`, the partitions that `topic describe` filters."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import typer

from minibroker.broker.findings.partitions import Health, health_of
from minibroker.cli.cluster import commands as cluster
from minibroker.cli.cluster import describe as cluster_describe
from minibroker.cli.terminal import OutputFormat
from minibroker.cli.topic import commands as topic
from minibroker.cli.topic import replica
from minibroker.cli.topic.replica import Row, replica_rows, table
from minibroker.client.admin import ClusterDescription, ReplicasReport
from minibroker.protocol.messages.config_descriptions import ConfigDescription
from minibroker.protocol.messages.metadata import BrokerMetadata, PartitionMetadata, TopicMetadata
from minibroker.protocol.messages.replicas import (
    CompactionDescription,
    DescribeReplicasResponse,
    FollowerDescription,
    ReplicaDescription,
)

ID = bytes(16)
UNTYPED = typer.Context(typer.main.get_command(cluster.app))  # nothing on the command line
REPLICAS = (1, 2, 3)
# Broker 1 leads 0; 1 has lost its leader 3, which is dead; of 2, nobody is left.
PARTITIONS = (
    PartitionMetadata(0, 0, 1, 4, REPLICAS, REPLICAS),
    PartitionMetadata(1, 0, 2, 5, REPLICAS, (2,), (3,)),
    PartitionMetadata(2, 0, -1, 1, (3,), (3,), (3,)),
)
EVENTS = TopicMetadata("events", 0, ID, False, PARTITIONS)


def held(partition: int, role: str, end: int, mark: int, **more: object) -> ReplicaDescription:
    """A replica of `events`."""
    described = ReplicaDescription("events", partition, ID, role, log_end=end, high_watermark=mark)
    for name, value in more.items():
        object.__setattr__(described, name, value)
    return described


ANSWERS = {
    1: DescribeReplicasResponse(
        1,
        11,
        (
            held(0, "leader", 90, 70, leader_epoch=4, isr=(1, 2)),
            held(1, "failed", 20, 15, leader_epoch=5, reason="would cut below 15"),
        ),
    ),
    2: DescribeReplicasResponse(
        2,
        12,
        (
            held(0, "follower", 70, 70, leader_epoch=4),
            held(1, "leader", 18, 18, leader_epoch=5, isr=(2,)),
        ),
    ),
}
REPORT = ReplicasReport(ANSWERS, {3: "not alive"})


class FakeAdmin:
    """Answers as brokers 1 and 2 would, of which 2 is the controller, while 3 is dead."""

    def describe_cluster(self) -> ClusterDescription:
        brokers = (BrokerMetadata(1, "one", 9092), BrokerMetadata(2, "two", 9093))
        return ClusterDescription("a-cluster", 2, brokers)

    def list_topics(self) -> list[str]:
        return ["events"]

    def describe_topics(self, *names: str) -> list[TopicMetadata]:
        return [EVENTS for _ in names]

    def describe_configs(self, *names: str) -> dict[str, tuple[ConfigDescription, ...]]:
        values = {"min.insync.replicas": "2", "flush": "never", "flush.ms": "1000"}
        described = tuple(ConfigDescription(*item) for item in values.items())
        return dict.fromkeys(names, described)

    def describe_replicas(self, *names: str) -> ReplicasReport:
        return REPORT


COMPACTED = ReplicasReport(
    {
        1: DescribeReplicasResponse(
            1, 11, (held(0, "leader", 90, 90, compaction=CompactionDescription(300, 100)),)
        ),
        2: DescribeReplicasResponse(
            2,
            12,
            (
                held(
                    0,
                    "follower",
                    90,
                    90,
                    compaction=CompactionDescription(0, 0, 1500, 4000, 2500),
                ),
                held(
                    1,
                    "follower",
                    9,
                    9,
                    compaction=CompactionDescription(0, 7, 62_400, stopped="the disk is full"),
                ),
            ),
        ),
    },
    {3: "not alive"},
)


class AdminOfCompacted(FakeAdmin):
    """A cluster whose topic is compacted."""

    def describe_configs(self, *names: str) -> dict[str, tuple[ConfigDescription, ...]]:
        policy = ConfigDescription("cleanup.policy", "compact,delete")
        return {name: (*all_, policy) for name, all_ in super().describe_configs(*names).items()}

    def describe_replicas(self, *names: str) -> ReplicasReport:
        assert names == ("events",)
        return COMPACTED


def test_the_compaction_of_each_replica_is_described(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """How much is dirty, when it was compacted, what that freed, and what stopped it; on stderr,
    as stdout has the lines of Kafka's tool."""

    @contextmanager
    def opened(bootstrap: str, timeout_s: float) -> Iterator[FakeAdmin]:
        yield AdminOfCompacted()

    monkeypatch.setattr(topic, "opened_admin", opened)
    topic.describe("events")
    shown = capsys.readouterr()
    assert "compact" not in shown.out.replace("cleanup.policy=compact,delete", "")
    assert shown.err.splitlines()[:3] == [
        "% events-0 on broker 1: 25% dirty, not compacted since the broker's start",
        "% events-0 on broker 2: 0% dirty, compacted 2 s ago: 4000 bytes read, 2500 freed",
        "% events-1 on broker 2: 100% dirty, compaction was stopped 62 s ago: the disk is full",
    ]
    topic.describe("events", output=OutputFormat.JSON)
    [described] = json.loads(capsys.readouterr().out)
    assert described["partitions"][1]["compaction"] == [
        {
            "broker": 2,
            "dirty_share": 1.0,
            "last_run_s": 62.4,
            "bytes_read": 0,
            "bytes_freed": 0,
            "stopped": "the disk is full",
        }
    ]
    assert "compaction" not in described["partitions"][2]


@pytest.fixture(autouse=True)
def admin(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every command asks the fake."""

    @contextmanager
    def opened(bootstrap: str, timeout_s: float) -> Iterator[FakeAdmin]:
        yield FakeAdmin()

    for module in (replica, cluster_describe, topic):
        monkeypatch.setattr(module, "opened_admin", opened)


def test_each_replica_has_a_row() -> None:
    """What each broker says of its replica, how far it is behind its leader, and that a dead
    broker's replica is there too, with nothing known of it but why."""
    rows = list(replica_rows([EVENTS], REPORT))
    assert rows == [
        Row("events", 0, 1, "leader", 4, 90, 70, 0, True),
        Row("events", 0, 2, "follower", 4, 70, 70, 20, True),
        Row("events", 0, 3, "unreachable", reason="not alive"),
        Row("events", 1, 1, "failed", 5, 20, 15, -2, False, reason="would cut below 15"),
        Row("events", 1, 2, "leader", 5, 18, 18, 0, True),
        Row("events", 1, 3, "unreachable", reason="not alive"),
        Row("events", 2, 3, "unreachable", in_sync=True, reason="not alive"),
    ]


def test_what_the_leader_knows_stands_beside_the_follower() -> None:
    """Its own log end and the remote LEO, which the last fetch named; nothing of one that has not
    fetched in this leader epoch; and the leader with the highest epoch counts."""
    known = (FollowerDescription(2, 70, 1500, 31_250), FollowerDescription(3))
    old = (FollowerDescription(2, 10, 0, 0),)
    answers = {
        1: DescribeReplicasResponse(
            1, 1, (held(0, "leader", 90, 70, leader_epoch=4, followers=known),)
        ),
        2: DescribeReplicasResponse(2, 2, (held(0, "follower", 75, 70),)),
        3: DescribeReplicasResponse(
            3, 3, (held(0, "leader", 50, 40, leader_epoch=3, followers=old),)
        ),
    }
    only = TopicMetadata("events", 0, ID, False, PARTITIONS[:1])
    rows = list(replica_rows([only], ReplicasReport(answers, {})))
    told = [(one.log_end, one.remote_log_end, one.last_fetch_s, one.caught_up_s) for one in rows]
    assert told == [(90, None, None, None), (75, 70, 1.5, 31.25), (50, None, None, None)]
    head, _, follower, _ = table(rows).splitlines()
    known = ["REMOTE-LOG-END", "LAST-FETCH-S", "CAUGHT-UP-S", "LAST-STABLE-OFFSET", "REASON"]
    assert head.split()[-5:] == known
    assert follower.split()[-4:] == ["70", "1.5", "31.25", "-"]


def test_the_leader_with_the_highest_epoch_counts() -> None:
    """A broker that was cut off and believes that it still leads is measured by the new leader."""
    answers = {
        1: DescribeReplicasResponse(1, 1, (held(0, "leader", 50, 40, leader_epoch=3, isr=(1,)),)),
        2: DescribeReplicasResponse(2, 2, (held(0, "leader", 60, 60, leader_epoch=4, isr=(2,)),)),
    }
    report = ReplicasReport(answers, {3: "no answer"})
    only = TopicMetadata("events", 0, ID, False, PARTITIONS[:1])
    found = [(row.broker, row.lag, row.in_sync) for row in replica_rows([only], report)]
    assert found == [(1, 10, False), (2, 0, True), (3, None, False)]


def test_a_replica_that_its_broker_does_not_have_is_missing() -> None:
    """A broker that answers and says nothing of a replica that it shall hold is not unreachable."""
    answers = {**ANSWERS, 3: DescribeReplicasResponse(3, 13)}
    rows = replica_rows([EVENTS], ReplicasReport(answers, {}))
    assert [(row.role, row.log_end) for row in rows if row.broker == 3] == [("missing", None)] * 3


def test_without_a_leader_it_is_said_who_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    """Of a partition that nobody leads `replica status` and `topic describe` name the brokers that
    it waits for: of the in-sync ones, else of all; if none is missing, where to look."""

    def reasons(*missing: int, isr: tuple[int, ...] = REPLICAS) -> list[str]:
        partition = PartitionMetadata(0, 0, -1, 4, REPLICAS, isr, missing)
        answers = {1: DescribeReplicasResponse(1, 1, (held(0, "offline", 50, 40, reason="r"),))}
        alone = TopicMetadata("events", 0, ID, False, (partition,))
        rows = list(replica_rows([alone], ReplicasReport(answers, {2: "", 3: ""})))
        return [row.reason for row in rows]

    assert reasons(2, 3, isr=(1, 3)) == ["r; in sync, but not alive: broker 3", "", ""]
    assert reasons(2, 3, isr=(1,)) == ["r; not alive: broker 2,3", "", ""]
    assert reasons()[0] == "r; all its brokers are alive; the log of the controller says why"
    topic.describe("events")
    warning = "% WARNING: events-2 has no leader (in sync, but not alive: broker 3)"
    assert capsys.readouterr().err.splitlines()[-1] == warning


def test_replicas_are_shown_in_columns(capsys: pytest.CaptureFixture[str]) -> None:
    """Heads, then a line for each, with a dash for what is not known; JSON has the same."""
    replica.status("events")
    head, first, *_, failed, _, _, last = capsys.readouterr().out.splitlines()
    names = ["TOPIC", "PARTITION", "BROKER", "ROLE", "LEADER-EPOCH", "LOG-END", "HIGH-WATERMARK"]
    known = ["REMOTE-LOG-END", "LAST-FETCH-S", "CAUGHT-UP-S", "LAST-STABLE-OFFSET"]
    assert head.split() == [*names, "LAG", "IN-SYNC", *known, "REASON"]
    assert first.split() == ["events", "0", "1", "leader", "4", "90", "70", "0", "yes", *"----"]
    assert failed.split(maxsplit=13) == [
        "events",
        "1",
        "1",
        "failed",
        "5",
        "20",
        "15",
        "-2",
        "no",
        *"----",
        "would cut below 15",
    ]
    assert last.split() == [
        "events",
        "2",
        "3",
        "unreachable",
        *"----",
        "yes",
        *"----",
        "not",
        "alive",
    ]
    assert head.index("LAG") == failed.index("-2")
    replica.status(output=OutputFormat.JSON)
    shown = json.loads(capsys.readouterr().out)
    assert [Row(**row) for row in shown] == list(replica_rows([EVENTS], REPORT))
    assert table([]) == ""


def test_a_cluster_is_described_by_its_brokers(capsys: pytest.CaptureFixture[str]) -> None:
    """Who is alive and since which registration, who is controller, what is wrong; dead brokers
    are there if they shall hold something."""
    cluster_describe.describe(UNTYPED, bootstrap="one:9092", output=OutputFormat.JSON)
    described = json.loads(capsys.readouterr().out)
    counts = {name: value for name, value in described.items() if name.endswith("_count")}
    assert counts == {
        "topic_count": 1,
        "partition_count": 3,
        "under_replicated_count": 1,
        "under_min_isr_count": 1,
        "offline_count": 1,
    }
    assert described["controller"] == 2
    keys = ("broker", "is_live", "is_controller", "epoch", "address", "leader_count")
    assert [tuple(broker[key] for key in keys) for broker in described["brokers"]] == [
        (1, True, False, 11, "one:9092", 1),
        (2, True, True, 12, "two:9093", 1),
        (3, False, False, None, None, 0),
    ]
    cluster_describe.describe(UNTYPED, bootstrap="one:9092")
    head, *brokers = capsys.readouterr().out.splitlines()
    assert head == (
        "Cluster: a-cluster\tController: 2\tLive: 2 of 3\tTopics: 1\tPartitions: 3"
        "\tUnderReplicated: 1\tUnderMinIsr: 1\tOffline: 1"
    )
    assert brokers[0] == (
        "\tBroker: 1\tState: live\tAddress: one:9092\tEpoch: 11\tLeaders: 1\tReplicas: 2\tInSync: 1"
    )
    assert brokers[2] == "\tBroker: 3\tState: dead\tLeaders: 0\tReplicas: 3\tInSync: 2"


def test_a_broker_that_is_not_heard_is_fenced(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is registered, and shown as what it is."""
    brokers = (BrokerMetadata(1, "one", 9092), BrokerMetadata(2, "two", 9093, is_fenced=True))
    cluster = ClusterDescription("a-cluster", 1, brokers)
    monkeypatch.setattr(FakeAdmin, "describe_cluster", lambda _: cluster)
    cluster_describe.describe(UNTYPED, bootstrap="one:9092")
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("\t")[2] for line in lines[1:]] == [
        "State: live",
        "State: fenced",
        "State: dead",
    ]
    cluster_describe.describe(UNTYPED, bootstrap="one:9092", output=OutputFormat.JSON)
    described = json.loads(capsys.readouterr().out)
    assert [broker["is_fenced"] for broker in described["brokers"]] == [False, True, False]


def test_what_no_controller_says_is_marked(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A note and the JSON say that it may be out of date."""
    brokers = (BrokerMetadata(1, "one", 9092),)
    for is_from_controller in (True, False):
        cluster = ClusterDescription("a-cluster", 2, brokers, is_from_controller)
        monkeypatch.setattr(FakeAdmin, "describe_cluster", lambda _, cluster=cluster: cluster)
        cluster_describe.describe(UNTYPED, bootstrap="one:9092", output=OutputFormat.JSON)
        told = capsys.readouterr()
        assert json.loads(told.out)["is_from_controller"] is is_from_controller
        assert ("no controller answers" in told.err) is not is_from_controller


def test_the_directory_names_the_brokers_to_ask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With --data-dir all addresses of that cluster are tried, and its brokers are all shown."""
    asked = []

    @contextmanager
    def opened(bootstrap: str, timeout_s: float) -> Iterator[FakeAdmin]:
        asked.append(bootstrap)
        yield FakeAdmin()

    monkeypatch.setattr(cluster_describe, "opened_admin", opened)
    text = "cluster.brokers=4\ncluster.base.port=7000\n"
    (tmp_path / "cluster.properties").write_text(text)
    cluster_describe.describe(UNTYPED, tmp_path, bootstrap="elsewhere:1")
    assert asked == ["127.0.0.1:7000,127.0.0.1:7001,127.0.0.1:7002,127.0.0.1:7003"]
    assert "Live: 2 of 4" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("isr", "replicas", "min_isr", "health"),
    [
        ((1, 2, 3), (1, 2, 3), 2, Health(False, False, False, False)),
        ((1, 2), (1, 2, 3), 2, Health(True, False, False, True)),
        ((1,), (1, 2, 3), 2, Health(True, False, True, False)),
        ((1,), (1,), 2, Health(False, False, False, True)),
        ((1, 2), (1, 2), 5, Health(False, False, False, True)),
    ],
)
def test_the_minimum_is_never_above_the_replicas(
    isr: tuple[int, ...], replicas: tuple[int, ...], min_isr: int, health: Health
) -> None:
    """Under and at the minimum of in-sync replicas are told by the value that the broker uses."""
    partition = PartitionMetadata(0, 0, 1, 0, replicas, isr)
    assert health_of(partition, {"min.insync.replicas": str(min_isr)}) == health


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        ({}, [0, 1, 2]),
        ({"under_replicated": True}, [1]),
        ({"unavailable": True}, [2]),
        ({"under_min_isr": True}, [1]),
        ({"at_min_isr": True}, [2]),
        ({"under_replicated": True, "unavailable": True}, [1, 2]),
    ],
)
def test_filters_show_what_they_name(
    capsys: pytest.CaptureFixture[str], options: dict[str, bool], shown: list[int]
) -> None:
    """Each filter lets its partitions through, several let each of theirs through."""
    topic.describe("events", **options)
    lines = [line for line in capsys.readouterr().out.splitlines() if "Partition: " in line]
    assert [int(line.split("\t")[2].removeprefix("Partition: ")) for line in lines] == shown


def test_a_topic_is_described_in_kafka_s_shape(capsys: pytest.CaptureFixture[str]) -> None:
    """Leader, replicas and in-sync replicas stand where people grep them; no leader is `none`. An
    acknowledgement is explained with the copies that it stands for."""
    topic.describe("events")
    shown = capsys.readouterr()
    assert "on every in-sync replica, which are at least 2 of 3" in shown.err
    lines = shown.out.splitlines()
    assert "\tReplicationFactor: 3\t" in lines[0]
    assert lines[2] == (
        "\tTopic: events\tPartition: 1\tLeader: 2\tReplicas: 1,2,3\tIsr: 2\tElr: \tLastKnownElr: "
    )
    assert "\tLeader: none\tReplicas: 3\tIsr: 3\t" in lines[3]
