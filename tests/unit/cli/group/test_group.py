"""What `group` makes of what the brokers say: rows, warnings, and where a seek leads."""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import typer

from minibroker.cli.group import commands
from minibroker.cli.group.seek import Scope, parse_scope
from minibroker.cli.terminal import Failure, OutputFormat
from minibroker.client.admin import ClusterDescription
from minibroker.client.committed_offsets import OffsetAndMetadata
from minibroker.client.groups.admin import (
    GroupDescription,
    GroupMemberDescription,
    GroupsReport,
)
from minibroker.protocol.constants import EARLIEST_TIMESTAMP, LATEST_TIMESTAMP, ErrorCode
from minibroker.protocol.errors import BrokerError
from minibroker.protocol.messages.groups import ListedGroup
from minibroker.protocol.messages.metadata import BrokerMetadata, PartitionMetadata, TopicMetadata
from minibroker.protocol.messages.offsets import PartitionOffset
from minibroker.protocol.types import TopicPartition

# Logs begin at 10 and end at 20. The record at 15 is of time 1000, and nothing is later.
LOG_START, LOG_END, LAST_TIME = 10, 20, 1000
T0, T1, T2 = (TopicPartition("t", number) for number in range(3))
GONE = TopicPartition("gone", 0)
READER = GroupMemberDescription("m-1", None, "cli", "10.0.0.1", ("t",), (T0, T1))
STATIC = GroupMemberDescription("m-2", "two", "cli", "10.0.0.2", ("t",), ())
BUSY = GroupDescription("busy", "Stable", "consumer", "range", 4, 1, (READER, STATIC))
IDLE = GroupDescription("idle", "Empty", "consumer", "", 5, 2, ())


class FakeAdmin:
    """A cluster with topic t, of which nobody leads partition 2, and two groups."""

    def __init__(self) -> None:
        self.committed = {T0: 12, GONE: 3}
        self.leaders = [1, 1, -1]
        self.changes: list[Any] = []
        self.silent: dict[int, str] = {}
        self.leaderless: tuple[TopicPartition, ...] = ()

    def list_groups(self, *states: str) -> GroupsReport:
        listed = (
            ListedGroup("busy", "consumer", "Stable"),
            ListedGroup("idle\x1b[2J", "consumer", "Empty"),
        )
        return GroupsReport(
            tuple(each for each in listed if not states or each.state in states),
            self.silent,
            self.leaderless,
        )

    def describe_groups(self, *names: str) -> list[GroupDescription]:
        known = {"busy": BUSY, "idle": IDLE}
        for name in names:
            self._check(name)
        return [known[name] for name in names]

    def _check(self, name: str) -> None:
        if name not in ("busy", "idle"):
            raise BrokerError(ErrorCode.GROUP_ID_NOT_FOUND, f"group {name!r}: no such")

    def delete_groups(self, *names: str) -> None:
        for name in names:
            self._check(name)
        self.changes += names

    def committed_offsets(self, name: str) -> dict[TopicPartition, OffsetAndMetadata]:
        if name == "new":
            return {}
        return {each: OffsetAndMetadata(offset) for each, offset in sorted(self.committed.items())}

    def commit_offsets(self, name: str, offsets: Mapping[Any, int]) -> None:
        self.changes.append((name, offsets))

    def delete_offsets(self, name: str, partitions: Any) -> None:
        self.changes.append((name, list(partitions)))

    def list_topics(self) -> list[str]:
        return ["t"]

    def describe_topics(self, *names: str) -> list[TopicMetadata]:
        if names != ("t",):
            raise BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"no topic {names[0]!r}")
        partitions = (PartitionMetadata(n, 0, leader) for n, leader in enumerate(self.leaders))
        return [TopicMetadata("t", partitions=tuple(partitions))]

    def describe_cluster(self) -> ClusterDescription:
        return ClusterDescription("c", 1, (BrokerMetadata(1, "one", 9092),))

    def list_offsets(self, names: Any, timestamp: int = LATEST_TIMESTAMP) -> Any:
        at_time = 15 if timestamp <= LAST_TIME else -1
        offset = {LATEST_TIMESTAMP: LOG_END, EARLIEST_TIMESTAMP: LOG_START}.get(timestamp, at_time)
        return {name: PartitionOffset(name[0], name[1], offset=offset) for name in names}


@pytest.fixture(autouse=True)
def admin(monkeypatch: pytest.MonkeyPatch) -> FakeAdmin:
    """Every command asks this one."""
    fake = FakeAdmin()

    @contextmanager
    def opened(bootstrap: str, timeout_s: float) -> Iterator[FakeAdmin]:
        yield fake

    monkeypatch.setattr(commands, "opened_admin", opened)
    return fake


def seek(name: str = "idle", *topics: str, **options: Any) -> None:
    """The command; of partitions 0 and 1 unless others are named."""
    commands.seek(name, topics=list(topics or ["t:0,1"]), **options)


def test_offsets_are_described_as_kafka_does(capsys: pytest.CaptureFixture[str]) -> None:
    """A row for each partition that was committed or is assigned; a dash for what is not known."""
    commands.describe(["busy"])
    out, err = capsys.readouterr()
    assert [line.split() for line in out.splitlines()] == [
        [
            "GROUP",
            "TOPIC",
            "PARTITION",
            "CURRENT-OFFSET",
            "LOG-END-OFFSET",
            "LAG",
            "CONSUMER-ID",
            "HOST",
            "CLIENT-ID",
        ],
        ["busy", "gone", "0", "3", "-", "-", "-", "-", "-"],
        ["busy", "t", "0", "12", "20", "8", "m-1", "10.0.0.1", "cli"],
        ["busy", "t", "1", "-", "20", "-", "m-1", "10.0.0.1", "cli"],
    ]
    assert "% group busy is Stable, has 2 members, a lag of 8\n" in err
    assert "% WARNING: gone-0 is gone, or nobody leads it\n" in err


def test_a_lag_that_means_nothing_is_explained(
    admin: FakeAdmin, capsys: pytest.CaptureFixture[str]
) -> None:
    """An offset outside the log is named, with what it leads to."""
    admin.committed = {T0: 9, T1: 21}
    commands.describe(["idle"], output=OutputFormat.JSON)
    out, err = capsys.readouterr()
    assert [(row["current_offset"], row["lag"]) for row in json.loads(out)] == [(9, 11), (21, -1)]
    assert "t-0: the group is at 9, and the log begins at 10: what was between is gone" in err
    assert "t-1: the group is at 21, and the log ends at 20: records were lost" in err


def test_a_group_that_goes_meanwhile_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    """It was listed, and is not there any more; the others are shown all the same. One that was
    named and is not there is an error."""
    commands.describe(state=True)
    out, err = capsys.readouterr()
    assert [line.split()[0] for line in out.splitlines()] == ["GROUP", "busy"]
    assert err == "% group 'idle\\x1b[2J' is gone since it was listed\n"
    with pytest.raises(BrokerError, match="no such"):
        commands.describe(["gone"], state=True)


def test_members_and_state_have_tables_of_their_own(capsys: pytest.CaptureFixture[str]) -> None:
    """Who reads what; and who coordinates, also where that broker has gone since."""
    commands.describe(["busy", "idle"], members=True)
    out, err = capsys.readouterr()
    assert out.splitlines()[1].split() == ["busy", "m-1", "-", "10.0.0.1", "cli", "2", "t(0,1)"]
    assert out.splitlines()[2].split() == ["busy", "m-2", "two", "10.0.0.2", "cli", "0", "-"]
    assert "% group idle is Empty and has no members\n" in err
    commands.describe(["busy"], members=True, output=OutputFormat.JSON)
    assert json.loads(capsys.readouterr().out)[0]["assignment"] == {"t": [0, 1]}
    commands.describe(group_option=["busy", "idle"], state=True)
    head, first, last = capsys.readouterr().out.splitlines()
    assert head.startswith("GROUP  COORDINATOR (ID)  ASSIGNMENT-STRATEGY  STATE")
    assert first.split() == ["busy", "one:9092", "(1)", "range", "Stable", "4", "2"]
    assert last.split() == ["idle", "(2)", "-", "Empty", "5", "0"]


def test_a_list_that_is_not_whole_ends_with_an_error(
    admin: FakeAdmin, capsys: pytest.CaptureFixture[str]
) -> None:
    """The groups that are known are printed; what is in a name does nothing to a terminal."""
    commands.list_groups()
    assert capsys.readouterr().out == "busy\n'idle\\x1b[2J'\n"
    commands.list_groups(state=["stable"], output=OutputFormat.JSON)
    listed = {"group": "busy", "protocol_type": "consumer", "state": "Stable"}
    assert json.loads(capsys.readouterr().out) == [listed]
    admin.silent = {3: "no answer"}
    with pytest.raises(Failure, match="more groups"):
        commands.list_groups()
    out, err = capsys.readouterr()
    assert "busy" in out
    assert "% broker 3 does not say which groups it keeps: no answer\n" in err
    admin.silent, admin.leaderless = {}, (TopicPartition("o", 1),)
    with pytest.raises(Failure, match="more groups"):
        commands.list_groups()
    assert "% nobody leads o-1, and so nobody tells of the groups" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "new", "said"),
    [
        ({"to_earliest": True}, [10, 10], ""),
        ({"to_latest": True}, [20, 20], ""),
        ({"to_offset": 14}, [14, 14], ""),
        ({"to_offset": 3}, [10, 10], "t-0: offset 3 is before the log begins"),
        ({"to_offset": 2**62}, [20, 20], "is behind its end: the group goes to 20"),
        ({"to_datetime": "1000"}, [15, 15], ""),
        ({"to_datetime": "2001-01-01T00:00"}, [20, 20], "t-1 has no record of that time or later"),
        ({"by_duration": "PT1.5S"}, [20, 20], "t-1 has no record of that time or later"),
        ({"by_duration": "P99999D"}, [15, 15], ""),
        ({"shift_by": 3}, [15], "t-1 is left as it is: nothing was committed"),
        ({"shift_by": -3}, [10], "t-0: offset 9 is before the log begins: the group goes to 10"),
    ],
)
def test_a_seek_goes_where_it_is_told_within_the_log(
    admin: FakeAdmin,
    capsys: pytest.CaptureFixture[str],
    options: dict[str, Any],
    new: list[int],
    said: str,
) -> None:
    """Each target; and what cannot be had is said. A dry run shows the same and commits nothing."""
    seek(**options, dry_run=True)
    shown, err = capsys.readouterr()
    assert "% nothing was changed (--dry-run)" in err
    assert not admin.changes
    seek(**options)
    out, err = capsys.readouterr()
    assert out == shown
    assert said in err
    assert admin.changes == [("idle", {("t", n): offset for n, offset in enumerate(new)})]
    head, first, *_ = out.splitlines()
    assert head.split() == ["GROUP", "TOPIC", "PARTITION", "NEW-OFFSET", "OLD-OFFSET"]
    assert first.split() == ["idle", "t", "0", str(new[0]), "12"]


def test_all_topics_are_those_that_were_committed(
    admin: FakeAdmin, capsys: pytest.CaptureFixture[str]
) -> None:
    """With all their partitions; one that is gone is left alone."""
    admin.leaders = [1, 1]
    commands.seek("idle", all_topics=True, to_earliest=True, output=OutputFormat.JSON)
    out, err = capsys.readouterr()
    moves = [tuple(each.values()) for each in json.loads(out)]
    assert moves == [("idle", "t", 0, 10, 12), ("idle", "t", 1, 10, None)]
    assert "% there is no topic gone any more" in err
    commands.seek("new", topics=["t"], to_latest=True)
    assert admin.changes[-1] == ("new", {("t", 0): 20, ("t", 1): 20})
    assert "% there is no group new yet" in capsys.readouterr().err


def test_offsets_come_from_a_file(
    admin: FakeAdmin, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """What --export prints can be read again; of a file of several groups one is taken."""
    seek(to_earliest=True, dry_run=True, export=True)
    exported = capsys.readouterr().out
    assert exported == "t,0,10\nt,1,10\n"
    file = tmp_path / "offsets.csv"
    for text, offsets in (
        (exported, [10, 10]),
        ('"t",0,11\n\n "t" , 1 ,12\n', [11, 12]),
        ("other,t,0,1\nidle,t,1,13\nidle,t,0,14\n", [14, 13]),
    ):
        file.write_text(text)
        commands.seek("idle", from_file=file)
        assert admin.changes[-1] == ("idle", {("t", n): at for n, at in enumerate(offsets)})


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "has no offsets of group idle"),
        ("other,t,0,1\n", "has no offsets of group idle"),
        ("t,0,1\nt,0,2\n", "line 2: t-0 is there twice"),
        ("t,0\n", "line 1: 't,0' is not TOPIC,PARTITION,OFFSET"),
        ("t,0,-1\n", "is not TOPIC"),
        ("t,x,1\n", "is not TOPIC"),
        (",0,1\n", "is not TOPIC"),
        ("a,b,t,0,1\n", "is not TOPIC"),
        ("t,0," + "9" * 5000, "is not TOPIC"),
        ("t,7,1\n", "t has 3 partitions.*there is no 7"),
        ("\udcff", "is not UTF-8"),
    ],
)
def test_a_file_of_another_form_changes_nothing(
    admin: FakeAdmin, tmp_path: Path, text: str, why: str
) -> None:
    """The line is named."""
    file = tmp_path / "offsets.csv"
    file.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(Failure, match=why):
        commands.seek("idle", from_file=file)
    with pytest.raises(FileNotFoundError):
        commands.seek("idle", from_file=tmp_path / "nowhere")
    with pytest.raises(typer.BadParameter, match="leave out --topic"):
        commands.seek("idle", from_file=file, all_topics=True)
    assert not admin.changes


@pytest.mark.parametrize("text", ["", "P", "PT", "P1DT", "1h", "PT1H2", "PT-1H", "P1M", "pt1h"])
def test_other_durations_are_refused(admin: FakeAdmin, text: str) -> None:
    """What is no duration of ISO 8601 is a usage error, not the end of the log."""
    with pytest.raises(typer.BadParameter, match="is no duration"):
        seek(by_duration=text)
    assert not admin.changes


def test_one_target_is_named(admin: FakeAdmin) -> None:
    """Two of them, or none, are a usage error."""
    for options in ({}, {"to_offset": 0, "shift_by": 0}, {"by_duration": "P1D", "to_latest": True}):
        with pytest.raises(typer.BadParameter, match="say where to"):
            seek(**options)
    assert not admin.changes


@pytest.mark.parametrize(
    ("name", "topics", "options", "why"),
    [
        ("busy", ["t"], {"to_latest": True}, r"busy is Stable, with 2 members \(cli at 10.0.0.1,"),
        ("idle", ["t:1,3"], {"to_latest": True}, "t has 3 partitions.*there is no 3"),
        ("idle", ["t"], {"to_latest": True}, "nobody leads t-2 now"),
        ("idle", ["t:1"], {"shift_by": 1}, "has committed nothing there"),
        ("idle", ["x"], {"to_latest": True}, "no topic 'x'"),
    ],
)
def test_a_seek_that_cannot_be_done_changes_nothing(
    admin: FakeAdmin, name: str, topics: list[str], options: dict[str, Any], why: str
) -> None:
    """Members, partitions that there are not, nobody to ask, nothing to count from."""
    with pytest.raises((Failure, BrokerError), match=why):
        seek(name, *topics, **options)
    assert not admin.changes
    with pytest.raises(Failure, match="committed nothing"):
        commands.seek("new", all_topics=True, to_latest=True)


def test_scopes_name_partitions() -> None:
    """`T` is all of them; what is no number is a usage error."""
    assert parse_scope("t") == Scope("t", None)
    assert parse_scope("t:3,0,3") == Scope("t", (0, 3))
    for text in ("", ":0", "t:", "t:0,", "t:-1", "t:1-2", "t:99999999999", "\udcff"):
        with pytest.raises(typer.BadParameter):
            parse_scope(text)


def test_deletions_go_on_after_one_that_is_refused(
    admin: FakeAdmin, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each is told of; with --if-exists one that is missing is none to fail for."""
    with pytest.raises(Failure, match="1 of 3 groups not deleted"):
        commands.delete(["busy", "x", "idle"])
    out, err = capsys.readouterr()
    assert out == "Deleted group busy.\nDeleted group idle.\n"
    assert err == "% ERROR: GROUP_ID_NOT_FOUND: group 'x': no such\n"
    commands.delete(["x", "busy"], if_exists=True)
    with pytest.raises(BrokerError, match="'x'"):
        commands.delete(["x"])
    admin.changes.clear()
    commands.delete(["idle"], topics=["t"])
    assert admin.changes == [("idle", [T0])]
    with pytest.raises(Failure, match="committed nothing there"):
        commands.delete(["idle"], topics=["t:1"])
