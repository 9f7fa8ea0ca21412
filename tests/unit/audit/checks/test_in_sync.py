"""Which replicas count as in sync, the rows that say so, and what is not judged yet."""

from collections.abc import Mapping
from dataclasses import asdict, replace

import pytest

from minibroker.audit import model
from minibroker.audit.checks.extent import judge
from minibroker.audit.checks.log_ends import LogFacts, ReplicaFacts
from minibroker.audit.files.cluster import Left
from minibroker.audit.files.directories import Replica
from minibroker.audit.summary import Unjudged
from tests.unit.audit.checks.logs import GREW, NAME, assignment, log, replica

WHOLE = log((0, 40), (5, 100))
STOPPED_LATER: Mapping[str, tuple[ReplicaFacts, bool]] = {
    "with all of it": (replica(2, WHOLE), True),
    "with an end of its own, which will be cut": (replica(2, log((0, 40), (3, 140))), False),
    "before the last records came": (replica(2, log((0, 40), (5, 90)), high_watermark=90), False),
    "with all of it, and has lost some since": (
        replica(2, log((0, 40), (5, 90)), high_watermark=100),
        True,
    ),
    "without order": (replica(2, WHOLE, "killed", high_watermark=100), False),
}


@pytest.mark.parametrize(("stopped", "counts"), STOPPED_LATER.values(), ids=STOPPED_LATER)
def test_who_stopped_in_order_counts_as_in_sync(stopped: ReplicaFacts, counts: bool) -> None:
    """A broker leaves the ISR when it stops; what it had then it must still have."""
    assigned = {NAME: assignment(isr=(1,), replicas=(1, 2))}
    rows, _ = judge([replica(1, WHOLE), stopped], assigned, {1: "stopped", 2: stopped.state})
    assert [row.in_isr for row in rows] == [True, counts]
    assert {row.judged_end for row in rows} == {100}


LEFT: Mapping[str, tuple[ReplicaFacts, Left, bool]] = {
    "with all of it": (replica(2, WHOLE), Left(5, 100), True),
    "with all of it, and has lost some since": (replica(2, log((0, 40))), Left(5, 100), True),
    "with all of it, and its files say nothing any more": (
        replica(2, LogFacts.empty(), "killed"),
        Left(5, 100),
        True,
    ),
    "with all of it, in an epoch without records": (replica(2, WHOLE), Left(6, 100), True),
    "before the last records came": (replica(2, log((0, 40), (5, 90))), Left(5, 90), False),
    "before, and its files say more": (replica(2, WHOLE, high_watermark=100), Left(5, 90), True),
    "with an end of its own": (replica(2, log((0, 40), (3, 140))), Left(3, 140), False),
}


@pytest.mark.parametrize(("found", "left", "counts"), LEFT.values(), ids=LEFT)
def test_the_metadata_say_with_what_a_broker_left(
    found: ReplicaFacts, left: Left, counts: bool
) -> None:
    """A log is judged as it was left, whatever its files have become since; and that it is known
    is no doubt, unless the log has grown."""
    assigned = {NAME: assignment(isr=(1,), replicas=(1, 2), left={1: Left(5, 100), 2: left})}
    rows, unjudged = judge([replica(1, WHOLE), found], assigned, {1: "stopped", 2: found.state})
    assert [row.in_isr for row in rows] == [True, counts]
    assert [row.left_end for row in rows] == [100, left.log_end]
    assert {row.judged_end for row in rows} == {100}
    has_grown = found.log.log_end > left.log_end
    assert unjudged == ([Unjudged(GREW, True, *NAME, 2)] if has_grown else [])


def test_who_stopped_is_not_measured_by_a_leader_whose_log_grew_since() -> None:
    """What lies behind the leader's end at its stop is no part of it."""
    assigned = {NAME: assignment(isr=(1,), left=dict.fromkeys((1, 2, 3), Left(5, 100)))}
    grown = replica(1, log((0, 40), (5, 110)))
    rows, unjudged = judge(
        [grown, replica(2, WHOLE), replica(3, WHOLE)], assigned, dict.fromkeys((1, 2, 3), "stopped")
    )
    assert [(row.in_isr, row.judged_end) for row in rows] == [(True, 100)] * 3
    assert [each.broker for each in unjudged] == [1]


@pytest.mark.parametrize(("start", "is_odd"), [(None, False), (0, True)])
def test_a_log_start_is_compared_with_one_that_is_known(start: int | None, is_odd: bool) -> None:
    """If the leader's file of log starts cannot be read, the follower's is not the odd one."""
    found = [replica(1, WHOLE), replica(2, WHOLE, log_start=70)]
    found[0] = replace(found[0], log_start=start)
    assigned = {NAME: assignment(isr=(1, 2), replicas=(1, 2))}
    _, unjudged = judge(found, assigned, {1: "stopped", 2: "stopped"})
    assert [each.broker for each in unjudged] == [2] * is_odd


def test_who_stopped_before_is_not_measured_by_a_log_that_was_damaged_since() -> None:
    """The last to stop knew 150 to be committed: one that stopped at 100 had left before, also if
    of the last one's log no more than that is left."""
    found = [replica(1, WHOLE, high_watermark=150), replica(2, WHOLE, high_watermark=100)]
    assigned = {NAME: assignment(isr=(1,), replicas=(1, 2))}
    rows, _ = judge(found, assigned, {1: "stopped", 2: "stopped"})
    assert [row.in_isr for row in rows] == [True, False]


def test_who_is_not_assigned_does_not_count_as_in_sync() -> None:
    """A directory whose node id is another one stands for no replica."""
    left = dict.fromkeys((1, 2), Left(5, 100))
    assigned = {NAME: assignment(isr=(1,), replicas=(1, 2), left=left)}
    found = [replica(broker, WHOLE, high_watermark=100) for broker in (1, 7)]
    rows, _ = judge(found, assigned, {1: "stopped", 7: "stopped"})
    assert [row.in_isr for row in rows] == [True, False]


def test_a_log_that_cannot_be_read_is_not_one_that_is_lost() -> None:
    """It neither shortens what the others are judged by, nor is it said to lack anything."""
    found = [replica(broker, WHOLE, "killed", high_watermark=100) for broker in (1, 2)]
    states = dict.fromkeys((1, 2, 3), "killed")
    rows, unjudged = judge(found, {NAME: assignment()}, states, {Replica(3, *NAME)})
    assert [(row.broker, row.judged_end) for row in rows] == [(1, 100), (2, 100)]
    assert unjudged == [], "it was said where it was found"


def test_a_partition_that_the_metadata_lack_holds_the_verdict_back() -> None:
    """They know its topic, or know no topic of the name: nothing says which replicas it has."""
    found = [replace(replica(broker, WHOLE), partition=7) for broker in (1, 2)]
    _, unjudged = judge(found, {}, {1: "stopped", 2: "stopped"})
    reason = "the metadata do not have this partition: they may be older than its logs"
    assert unjudged == [Unjudged(reason, True, "t", 7)]
    _, unjudged = judge(found, None, {1: "stopped", 2: "stopped"})
    assert unjudged == []


WITHOUT_LOG = (None, None, None, 0)
NO_ENDS = (None, None)


def test_rows_are_those_of_the_table() -> None:
    """A row has the table's columns in their order, and null where nothing is known."""
    stopped = replica(1, WHOLE, high_watermark=100, log_start=3, recovery_point=90)
    stray = replace(replica(4, LogFacts.empty()), topic="unknown")
    compacted = replace(assignment(isr=(1, 2), unsafe=(2,), replicas=(1, 2)), is_compacted=True)
    rows, _ = judge([stopped, stray], {NAME: compacted}, {1: "stopped", 2: "killed"})
    assert all(list(asdict(row)) == model.REPLICAS.names for row in rows)
    ids = [("stopped", 1, "t"), ("killed", 2, "t"), ("stopped", 4, "unknown")]
    assert [(row.state, row.broker, row.topic) for row in rows] == ids
    assert [row.may_be_cleaned for row in rows] == [True, True, False]
    assert [tuple(asdict(row).values())[2:-5] for row in rows] == [
        (0, True, True, True, True, 3, 0, 100, 5, 100, 90, 100, 100, *NO_ENDS, 100),
        (0, False, False, False, True, None, None, 0, *WITHOUT_LOG, 100, *NO_ENDS, 100),
        (0, None, None, True, False, None, None, 0, *WITHOUT_LOG, 0, *NO_ENDS, 0),
    ]


def test_what_lies_above_the_high_watermarks_of_running_brokers_is_counted() -> None:
    """One sentence for the whole cluster: it is nothing wrong, and must not be taken for judged."""
    partitions = [
        replace(replica(broker, facts, "live", high_watermark=90), partition=partition)
        for partition, facts in enumerate((WHOLE, WHOLE, log((0, 90))))
        for broker in (1, 2)
    ]
    _, unjudged = judge(partitions, None, {1: "live", 2: "live"})
    reason = "above the high watermarks of 2 partitions, whose brokers run"
    assert unjudged == [Unjudged(reason, False, records=20)]
