"""What the records of a partition of the offsets topic amount to."""

from minibroker.audit.checks.commit_history import CommitHistory, Row
from minibroker.audit.files.commits import Commit, Generation, Member
from minibroker.protocol.types import TopicPartition

MEMBER = Member("m-1", "client", frozenset({TopicPartition("t", 0)}))


def rows(*records: Commit | Generation) -> list[Row]:
    """The rows of records at the offsets from 0 on."""
    history = CommitHistory()
    for at, record in enumerate(records):
        history.add(at, record)
    return [*history.rows()]


def problems(*records: Commit | Generation) -> list[tuple[int, str | None, bool | None]]:
    """Where a problem is, which it is, and whether it is grave."""
    return [(row.at, row.problem, row.is_grave) for row in rows(*records) if row.problem]


def commit(offset: int | None, time_ms: int = -1, partition: int = 0) -> Commit:
    """A commit of group g."""
    return Commit("g", "t", partition, offset, -1 if offset is None else 3, time_ms)


def test_the_last_commit_counts_and_the_way_there_is_told() -> None:
    """How far the group once was, how often it went back and by whom, and deletions."""
    [kept, group] = rows(
        commit(5),
        Generation("g", 4, (MEMBER,)),
        commit(50),
        commit(20),
        commit(30),
        commit(10),
        commit(None),
        commit(40),
    )
    assert kept._asdict() == {
        "at": 7,
        "group": "g",
        "topic": "t",
        "partition": 0,
        "offset": 40,
        "leader_epoch": 3,
        "highest": 50,
        "commits": 6,
        "deletions": 1,
        "went_back": 2,
        "back": "from 30 to 10 (offset 5), by member m-1 of generation 4",
        "by": "by member m-1 of generation 4",
        "dropped": None,
        "problem": None,
        "is_grave": None,
        "before": None,
    }
    assert (group.group, group.topic, group.offset, group.by) == ("g", "", 4, "member m-1")


def test_who_can_have_committed() -> None:
    """By the generation that was stored last before."""
    other = MEMBER._replace(partitions=frozenset())
    said = {
        (): "by a client outside of any generation",
        (Generation("g", 2, (MEMBER,)), Generation("g", None)): (
            "by a client outside of any generation"
        ),
        (Generation("g", 3),): "by a client while generation 3 had no members",
        (Generation("g", 3, (other,)),): "by a member of generation 3",
        (Generation("g", 3, (MEMBER,)),): "by member m-1 of generation 3",
        (Generation("other", 3, (MEMBER,)),): "by a client outside of any generation",
    }
    for before, by in said.items():
        assert next(row for row in rows(*before, commit(1)) if row.topic).by == by


def test_a_commit_that_comes_again_is_a_copy() -> None:
    """Offset and time of an older one, with another between: no coordinator writes that. The same
    twice in a row does no harm, and without times nothing is known."""
    assert problems(commit(40, 7), commit(50, 8), commit(40, 7)) == [
        (2, "40 is a copy of an older commit: it has its time, too", True)
    ]
    assert not problems(commit(40, 7), commit(40, 7))
    assert not problems(commit(40), commit(50), commit(40))
    assert not problems(commit(40, 7), commit(50, 8), commit(40, 9))


def test_commits_that_have_changed_places() -> None:
    """Offset and time fall together, which the clock of one coordinator does not do."""
    [row] = [row for row in rows(commit(50, 9), commit(40, 7)) if row.problem]
    assert (row.at, row.before, row.is_grave) == (1, 0, True)
    assert row.problem == (
        "40 was committed 2 ms before 50, and is stored after it, at offset 0:"
        " they have changed places"
    )
    assert not problems(commit(50, 9), commit(60, 7))


def test_generations_that_no_coordinator_stores() -> None:
    """One that falls, and a group that is deleted with its members. Once it is deleted in order it
    begins again, and a static member's new id is the same generation."""
    assert problems(Generation("g", 7), Generation("g", 5, (MEMBER,)), Generation("g", None)) == [
        (1, "its generation falls from 7 to 5", True),
        (2, "the group is deleted, and generation 5 has members", True),
    ]
    assert problems(Generation("g", -5)) == [(0, "its generation is -5", True)]
    assert not problems(
        Generation("g", 7, (MEMBER,)),
        Generation("g", 7, (MEMBER,)),
        Generation("g", 8),
        Generation("g", None),
        Generation("g", 1),
    )


def test_a_commit_that_is_deleted_under_its_reader() -> None:
    """What a member still has is told; a later commit makes it good."""
    before = [Generation("g", 1, (MEMBER,)), commit(9)]
    assert next(iter(rows(*before, commit(None)))).dropped == 9
    assert next(iter(rows(*before, commit(None), commit(9)))).dropped is None
    assert next(iter(rows(*before, Generation("g", 2), commit(None)))).dropped is None
    assert next(iter(rows(commit(9), commit(None)))).dropped is None


def test_a_negative_offset() -> None:
    """It stands for none, as in Kafka: kafkajs commits -1 and -2."""
    assert problems(commit(-2)) == []


def test_what_cannot_be_read_is_grave_unless_it_was_replaced() -> None:
    """The newest record of a key decides; a key that cannot be read may be anyone's."""
    history = CommitHistory()
    history.add(0, commit(5))
    history.add_unreadable(1, "odd", "g", "t", 0)
    history.add_unreadable(2, "odd", "g", "t", 1)
    history.add(3, commit(6, partition=1))
    history.add_unreadable(4, "odd", None, None, None)
    history.add_unreadable(5, "odd", "g", None, None)
    told = sorted((row.at, row.is_grave, row.problem) for row in history.rows() if row.problem)
    skipped = "; a coordinator skips it, and an older one counts"
    assert told == [
        (1, True, f"the newest commit of group g in t-0 cannot be read: odd{skipped}"),
        (2, False, "the commit of group g in t-1 cannot be read: odd"),
        (4, True, "odd"),
        (5, True, f"the newest generation of group g cannot be read: odd{skipped}"),
    ]
