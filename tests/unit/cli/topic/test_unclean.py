"""What the command of an unclean election says of each replica, and of the loss."""

from typing import Any

import pytest

from minibroker.cli.terminal import Failure
from minibroker.cli.topic.unclean import (
    Candidate,
    best_of,
    candidates_of,
    elect_uncleanly,
    losses,
    outlook,
    table,
)
from minibroker.client.admin import ElectionsReport, ReplicasReport
from minibroker.protocol.messages.metadata import PartitionMetadata, TopicMetadata
from minibroker.protocol.messages.replicas import DescribeReplicasResponse, ReplicaDescription
from minibroker.protocol.types import TopicPartition

NAME = TopicPartition("t", 0)
DEAD = Candidate(1, False, True, reason="not alive")
SHORT = Candidate(2, True, False, 70, 5, 60, 1_700_000_000_000)
LONG = Candidate(3, True, False, 90, 5, 85, 1_700_000_060_000)
OLD = Candidate(4, True, False, 95, 4, 60)


def described(end: int = -1, epoch: int = -1, reason: str = "") -> DescribeReplicasResponse:
    one = ReplicaDescription("t", 0, b"i" * 16, log_end=end, last_epoch=epoch, reason=reason)
    return DescribeReplicasResponse(replicas=(one,))


@pytest.mark.parametrize(
    ("chosen", "others", "expected"),
    [
        (LONG, [DEAD, SHORT], []),
        (SHORT, [DEAD, LONG], [(70, 90, 3, False)]),
        (LONG, [OLD], [(90, 95, 4, True)]),
        (OLD, [LONG], [(89, 90, 3, True)]),
        (SHORT, [SHORT._replace(broker=5)], []),
    ],
)
def test_the_loss_is_what_other_live_replicas_have(
    chosen: Candidate, others: list[Candidate], expected: list[Any]
) -> None:
    """Of a log of another epoch it is a lower bound."""
    assert losses(chosen, [chosen, *others]) == expected


def test_the_largest_epoch_loses_least_and_then_the_longest_log() -> None:
    """Of equal ones the first; a replica without a log cannot lead."""
    assert best_of([DEAD, SHORT, LONG, OLD]) is LONG
    assert best_of([SHORT, SHORT._replace(broker=5)]) is SHORT
    assert best_of([DEAD]) is None


def test_what_is_said() -> None:
    """A row a replica, and a line for each loss."""
    candidates = [DEAD, SHORT, LONG]
    lines = table(candidates, LONG).splitlines()
    assert lines[0].split()[:3] == ["BROKER", "ALIVE", "IN-SYNC"]
    assert lines[1].endswith("cannot lead: not alive")
    assert lines[2].endswith("2023-11-14T22:13:20+00:00  offsets 70 to 89 of broker 3")
    assert lines[3].endswith("nothing of live replicas (the least)")
    assert outlook(NAME, SHORT, candidates) == [
        "with broker 2 t-0 loses offsets 70 to 89, which broker 3 has",
        "of this the records from offset 70 to 84 were committed",
        "lost is also what only broker 1 has, in sync and not readable now: if it can be started,"
        " nothing needs to be lost",
    ]
    assert outlook(NAME, LONG, [SHORT, LONG]) == [
        "with broker 3 nothing is lost that a live replica has"
    ]


def test_what_is_known_of_a_replica() -> None:
    """Its broker may be dead, may not answer, may not have it, or may hold it damaged."""
    partition = PartitionMetadata(0, replicas=(1, 2, 3, 4), isr=(1,), offline_replicas=(1,))
    answers = {2: described(70, 5), 3: described(reason="damaged"), 4: DescribeReplicasResponse()}
    found = candidates_of(NAME, partition, ReplicasReport(answers, {1: "not alive"}))
    assert found == [
        DEAD,
        Candidate(2, True, False, 70, 5),
        Candidate(3, True, False, reason="damaged"),
        Candidate(4, True, False, reason="the broker does not have it"),
    ]


class FakeAdmin:
    """An admin client of one topic; it remembers what was elected."""

    def __init__(self, leader: int = -1, report: ElectionsReport | None = None) -> None:
        self.partition = PartitionMetadata(0, 0, leader, 4, (1, 2, 3), (1,), (1,))
        self.report = report or ElectionsReport((NAME,), (), {})
        self.answers = {2: described(70, 5), 3: described(90, 5)}
        self.elected: list[int] = []

    def describe_topics(self, name: str) -> list[TopicMetadata]:
        return [TopicMetadata(name, partitions=(self.partition,))]

    def describe_replicas(self, name: str) -> ReplicasReport:
        return ReplicasReport(self.answers, {1: "not alive"})

    def elect_leaders(self, names: Any, *, is_unclean: bool, leader: int) -> ElectionsReport:
        assert (names, is_unclean) == ([NAME], True)
        self.elected.append(leader)
        return self.report


def elect(admin: Any, wanted: int | None = None, number: int = 0, is_agreed: bool = True) -> None:
    elect_uncleanly(admin, TopicPartition("t", number), wanted, is_agreed=is_agreed)


@pytest.mark.parametrize(("wanted", "leader"), [(None, 3), (2, 2)])
def test_the_replica_that_was_shown_is_elected(
    wanted: int | None, leader: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Always by its id: another one could come between the question and the election."""
    admin = FakeAdmin()
    elect(admin, wanted)
    assert admin.elected == [leader]
    assert f"Elected broker {leader} the leader of t-0" in capsys.readouterr().out


def test_a_partition_with_a_leader_is_left_alone(capsys: pytest.CaptureFixture[str]) -> None:
    """That is no error."""
    admin = FakeAdmin(leader=2)
    elect(admin)
    assert "Broker 2 leads t-0: no election is needed" in capsys.readouterr().out
    meanwhile = FakeAdmin(report=ElectionsReport((), (NAME,), {}))
    elect(meanwhile)
    assert "has got a leader meanwhile" in capsys.readouterr().out
    assert admin.elected == []


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"number": 7}, "there is no partition t-7: t has 1"),
        ({"wanted": 9}, "broker 9 has no replica of t-0; its replicas are on 1,2,3"),
        ({"wanted": 1}, "broker 1 cannot lead t-0: not alive"),
        ({"is_agreed": False}, "--yes says that you accept this"),
    ],
)
def test_nothing_is_elected_without_need_or_consent(
    arguments: dict[str, Any], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The one line says why."""
    monkeypatch.setattr("sys.stdin.isatty", lambda: False, raising=False)
    admin = FakeAdmin()
    with pytest.raises(Failure, match=reason):
        elect(admin, **arguments)
    assert admin.elected == []


def test_without_a_live_replica_nobody_can_lead() -> None:
    """The brokers to start are named; and what the controller refuses is told."""
    admin = FakeAdmin()
    admin.answers = {}
    with pytest.raises(Failure, match=r"no live replica of t-0 has a log: start one of .* 1,2,3"):
        elect(admin)
    refused = FakeAdmin(report=ElectionsReport((), (), {NAME: "broker 3 cannot lead"}))
    with pytest.raises(Failure, match="t-0: broker 3 cannot lead"):
        elect(refused)
