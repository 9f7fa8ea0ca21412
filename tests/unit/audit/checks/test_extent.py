"""How far a partition is judged: a table of what lies on the disks, and what that proves."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import pytest

from minibroker.audit.checks.extent import judge
from minibroker.audit.checks.log_ends import LogFacts, ReplicaFacts
from minibroker.audit.files.cluster import Assignment, Left
from minibroker.audit.files.inputs import Trace
from minibroker.audit.summary import Unjudged
from tests.unit.audit.checks.logs import GREW, NAME, assignment, log, replica

NOT_GIVEN = "its data directory was not given"
NOT_ASSIGNED = "the metadata do not assign the partition to this broker"
ODD_START = (
    "its log start, 70, lies above the leader's, and neither retention nor the leader has raised it"
)
UNKNOWN = "no high watermark of it is known, and so nothing was judged of its"


NO_WORD = "it is empty, and no high watermark says whether it ever had records"


def unexplained(start: int, end: int, count: int, brokers: str, assigned: int = 3) -> str:
    return (
        f"the records from offset {start} to {end} are on {count} of {assigned} replicas, and the"
        f" metadata do not say whether {brokers} ever had them"
    )


@dataclass(frozen=True)
class Case:
    """`kept` by broker; `unjudged` as (broker, reason, whether it holds the verdict back).

    `above`: so many records lie above the high watermark of a running partition.
    """

    found: Sequence[ReplicaFacts]
    judged_end: int
    kept: Mapping[int, int]
    reference: int = 1
    assigned: Assignment | None = field(default_factory=assignment)
    brokers: Sequence[int] = (1, 2, 3)
    unjudged: Sequence[tuple[int | None, str, bool]] = ()
    above: int = 0


WHOLE = log((0, 40), (5, 100))
OLD_TAIL = log((0, 40), (3, 60))
CASES = {
    "a clean stop": Case(
        [replica(broker, WHOLE, high_watermark=100) for broker in (1, 2, 3)],
        100,
        {1: 100, 2: 100, 3: 100},
    ),
    "killed: no member lacks what was committed, the checkpoints are old": Case(
        [
            replica(1, WHOLE, "killed", high_watermark=0),
            replica(2, log((0, 40), (5, 98)), "killed", high_watermark=20),
            replica(3, log((0, 40), (5, 97)), "killed"),
        ],
        97,
        {1: 100, 2: 98, 3: 97},
    ),
    "killed: a member holds the end of an old epoch, longer than the leader's log": Case(
        [
            replica(1, WHOLE, "killed", high_watermark=0),
            replica(2, log((0, 40), (3, 140)), "killed", high_watermark=0),
            replica(3, WHOLE, "killed", high_watermark=0),
        ],
        40,
        {1: 100, 2: 40, 3: 100},
    ),
    "killed: a member was cut further than the old epoch, whose end the leader knows": Case(
        [
            replica(1, log((0, 40), (3, 50), (5, 100)), "killed"),
            replica(2, log((0, 40), (3, 60)), "killed"),
        ],
        50,
        {1: 100, 2: 50},
        assigned=assignment(isr=(1, 2), replicas=(1, 2)),
    ),
    "a member ends below a high watermark, which is committed all the same": Case(
        [
            replica(1, WHOLE, high_watermark=100),
            replica(2, log((0, 40), (5, 90)), high_watermark=90),
            replica(3, WHOLE, high_watermark=100),
        ],
        100,
        {1: 100, 2: 90, 3: 100},
    ),
    "the leader ends below it: others do not cut so far, and another is compared with": Case(
        [
            replica(1, log((0, 40), (5, 90)), high_watermark=90),
            replica(2, WHOLE, high_watermark=100),
            replica(3, WHOLE, high_watermark=100),
        ],
        100,
        {1: 90, 2: 100, 3: 100},
        2,
    ),
    "a high watermark beyond its own log proves nothing of what lies above that": Case(
        [
            replica(1, WHOLE, high_watermark=9999),
            replica(2, WHOLE, high_watermark=100),
            replica(3, log((0, 40), (5, 90)), high_watermark=80),
        ],
        100,
        {1: 100, 2: 100, 3: 90},
    ),
    "who is not in sync is not waited for": Case(
        [
            replica(1, WHOLE, high_watermark=50),
            replica(2, log((0, 30)), high_watermark=30),
            replica(3, log((0, 40), (3, 60)), high_watermark=40),
        ],
        100,
        {1: 100, 2: 30, 3: 40},
        assigned=assignment(isr=(1,)),
        unjudged=[(None, unexplained(30, 100, 1, "brokers 2, 3"), True)],
    ),
    "but a running cluster knows who is in sync at the moment": Case(
        [
            replica(1, WHOLE, "live", high_watermark=100),
            replica(2, log((0, 30)), high_watermark=30),
        ],
        100,
        {1: 100, 2: 30},
        assigned=assignment(isr=(1,), replicas=(1, 2)),
    ),
    "all stopped in order": Case(
        [replica(broker, WHOLE, high_watermark=100) for broker in (1, 2, 3)],
        100,
        {1: 100, 2: 100, 3: 100},
        assigned=assignment(isr=(1,), left=dict.fromkeys((1, 2, 3), Left(5, 100))),
    ),
    "all stopped in order, and some time before the others one of them": Case(
        [
            replica(1, WHOLE, high_watermark=100),
            replica(2, WHOLE, high_watermark=100),
            replica(3, log((0, 40), (3, 60)), high_watermark=60),
        ],
        100,
        {1: 100, 2: 100, 3: 60},
        assigned=assignment(isr=(1,), left={1: Left(5, 100), 2: Left(5, 100), 3: Left(3, 60)}),
    ),
    "all have lost their tails and high watermarks since they stopped in order": Case(
        [replica(broker, log((0, 40)), high_watermark=0) for broker in (1, 2, 3)],
        100,
        {1: 40, 2: 40, 3: 40},
        assigned=assignment(isr=(1,), left=dict.fromkeys((1, 2, 3), Left(5, 100))),
    ),
    "the leader has, and does not cut the others": Case(
        [
            replica(1, log((0, 30)), "killed"),
            replica(2, WHOLE, high_watermark=0),
            replica(3, WHOLE, high_watermark=0),
        ],
        100,
        {1: 30, 2: 100, 3: 100},
        2,
        assigned=assignment(isr=(1,), left=dict.fromkeys((1, 2, 3), Left(5, 100))),
    ),
    "killed: the leader has lost its end, which its followers have replicated from it": Case(
        [
            replica(1, log((0, 40), (5, 90)), "killed", high_watermark=80),
            replica(2, WHOLE, "killed", high_watermark=80),
            replica(3, log((0, 40), (5, 98)), "killed", high_watermark=80),
        ],
        98,
        {1: 90, 2: 100, 3: 98},
        2,
    ),
    "killed: the leader has lost all of its epoch": Case(
        [
            replica(1, log((0, 40)), "killed", high_watermark=0),
            replica(2, WHOLE, "killed", high_watermark=0),
            replica(3, WHOLE, "killed", high_watermark=0),
        ],
        100,
        {1: 40, 2: 100, 3: 100},
        2,
    ),
    "killed: a follower has more, of an epoch before the leader's": Case(
        [
            replica(1, log((0, 40), (4, 60)), "killed", high_watermark=50),
            replica(2, log((0, 40), (4, 90)), "killed", high_watermark=50),
        ],
        60,
        {1: 60, 2: 60},
        assigned=assignment(isr=(1, 2), replicas=(1, 2)),
    ),
    "a follower with more is damaged, and proves nothing": Case(
        [
            replica(1, log((0, 40), (5, 90)), "killed", high_watermark=80),
            replica(2, replace(WHOLE, is_whole=False), "killed", high_watermark=80),
        ],
        90,
        {1: 90, 2: 90},
        assigned=assignment(isr=(1, 2), replicas=(1, 2)),
    ),
    "a follower has more than it stopped with, which proves nothing": Case(
        [
            replica(1, log((0, 40), (5, 90)), high_watermark=90),
            replica(2, WHOLE, high_watermark=90),
        ],
        90,
        {1: 90, 2: 90},
        assigned=assignment(isr=(1,), replicas=(1, 2), left=dict.fromkeys((1, 2), Left(5, 90))),
        unjudged=[(2, GREW, True)],
    ),
    "killed: a follower alone claims more than an in-sync log has": Case(
        [
            replica(1, WHOLE, "killed", high_watermark=95),
            replica(2, log((0, 40), (5, 96)), "killed", high_watermark=95),
            replica(3, WHOLE, "killed", high_watermark=100),
        ],
        96,
        {1: 100, 2: 96, 3: 100},
    ),
    "killed: the leader claims so, too": Case(
        [
            replica(1, WHOLE, "killed", high_watermark=97),
            replica(2, log((0, 40), (5, 96)), "killed", high_watermark=95),
            replica(3, WHOLE, "killed", high_watermark=100),
        ],
        100,
        {1: 100, 2: 96, 3: 100},
    ),
    "what a running broker left with once is nothing to it now": Case(
        [replica(broker, log((0, 40)), "live", high_watermark=40) for broker in (1, 2)],
        40,
        {1: 40, 2: 40},
        assigned=assignment(isr=(1, 2), replicas=(1, 2), left={2: Left(5, 100)}),
    ),
    "nobody leads: the newest epoch, then the longest, would": Case(
        [
            replica(1, log((0, 40), (3, 120)), "killed", high_watermark=0),
            replica(2, log((0, 40), (4, 80)), "killed", high_watermark=0),
            replica(3, log((0, 40), (4, 90)), "killed", high_watermark=0),
        ],
        40,
        {1: 40, 2: 80, 3: 90},
        3,
        assigned=assignment(leader=-1),
    ),
    "nobody leads: those that may have lost their tails wait for one that has not": Case(
        [replica(1, log((0, 20)), "killed"), replica(2, WHOLE, "killed", high_watermark=60)],
        100,
        {1: 20, 2: 100},
        2,
        assigned=assignment(leader=-1, isr=(1, 2), unsafe=(1,), replicas=(1, 2)),
    ),
    "all may have lost their tails: all count": Case(
        [replica(1, log((0, 20)), "killed"), replica(2, log((0, 30)), "killed")],
        20,
        {1: 20, 2: 30},
        2,
        assigned=assignment(leader=-1, isr=(1, 2), unsafe=(1, 2), replicas=(1, 2)),
    ),
    "the leader is not at hand": Case(
        [replica(2, WHOLE, "killed"), replica(3, log((0, 40), (5, 90)), "killed")],
        90,
        {2: 100, 3: 90},
        2,
        brokers=(2, 3),
        unjudged=[(1, NOT_GIVEN, True)],
    ),
    "who is not in sync is not at hand": Case(
        [replica(1, WHOLE), replica(2, WHOLE)],
        100,
        {1: 100, 2: 100},
        assigned=assignment(isr=(1, 2)),
        brokers=(1, 2),
        unjudged=[(3, NOT_GIVEN, True)],
    ),
    "after a stop in order: two are not at hand, which were in no in-sync set": Case(
        [replica(1, WHOLE, high_watermark=100)],
        100,
        {1: 100},
        assigned=assignment(isr=(1,), left=dict.fromkeys((1, 2, 3), Left(5, 100))),
        brokers=(1,),
        unjudged=[(2, NOT_GIVEN, True), (3, NOT_GIVEN, True)],
    ),
    "the same, and one of them had stopped before the last records came": Case(
        [replica(1, WHOLE, high_watermark=100), replica(2, WHOLE, high_watermark=100)],
        100,
        {1: 100, 2: 100},
        assigned=assignment(isr=(1,), left={1: Left(5, 100), 2: Left(5, 100), 3: Left(3, 60)}),
        brokers=(1, 2),
        unjudged=[(3, NOT_GIVEN, False)],
    ),
    "a directory has the id of another node": Case(
        [replica(1, WHOLE, high_watermark=100), replica(7, WHOLE, high_watermark=100)],
        100,
        {1: 100, 7: 100},
        assigned=assignment(isr=(1,), replicas=(1, 2), left=dict.fromkeys((1, 2), Left(5, 100))),
        brokers=(1, 7),
        unjudged=[(2, NOT_GIVEN, True), (7, NOT_ASSIGNED, False)],
    ),
    "a broker runs, so who is not in sync needs not be there": Case(
        [replica(1, WHOLE, "live", high_watermark=100), replica(2, WHOLE, high_watermark=100)],
        100,
        {1: 100, 2: 100},
        assigned=assignment(isr=(1, 2)),
        brokers=(1, 2),
        unjudged=[(3, NOT_GIVEN, False)],
    ),
    "nobody is at hand": Case(
        [],
        0,
        {},
        assigned=assignment(isr=(1, 2), replicas=(1, 2)),
        brokers=(7,),
        unjudged=[(1, NOT_GIVEN, True), (2, NOT_GIVEN, True)],
    ),
    "brokers that run are judged below the high watermark": Case(
        [
            replica(1, WHOLE, "live", high_watermark=70),
            replica(2, log((0, 40), (5, 95)), "live", high_watermark=65),
            replica(3, log((0, 40), (5, 72)), "killed", high_watermark=0),
        ],
        70,
        {1: 100, 2: 95, 3: 72},
        above=30,
    ),
    "brokers that run and have not checkpointed yet": Case(
        [replica(broker, WHOLE, "live", log_start=20) for broker in (1, 2, 3)],
        0,
        {1: 100, 2: 100, 3: 100},
        unjudged=[(None, f"{UNKNOWN} 80 records", True)],
        above=80,
    ),
    "brokers that run and have checkpointed that nothing is committed yet": Case(
        [replica(broker, WHOLE, "live", high_watermark=0) for broker in (1, 2, 3)],
        0,
        {1: 100, 2: 100, 3: 100},
        above=100,
    ),
    "brokers that run with empty logs": Case(
        [replica(broker, LogFacts.empty(50), "live", log_start=50) for broker in (1, 2, 3)],
        0,
        {1: 50, 2: 50, 3: 50},
    ),
    "killed: nobody has checkpointed yet, and a member has nothing": Case(
        [
            replica(1, WHOLE, "killed"),
            replica(2, WHOLE, "killed"),
            replica(3, LogFacts.empty(), "killed"),
        ],
        0,
        {1: 100, 2: 100, 3: 0},
        unjudged=[(None, f"{UNKNOWN} 100 records", True)],
    ),
    "no metadata: all that are there count": Case(
        [replica(1, OLD_TAIL), replica(2, WHOLE, high_watermark=30), replica(3, log((0, 25)))],
        30,
        {1: 40, 2: 100, 3: 25},
        2,
        assigned=None,
    ),
    "a single replica": Case(
        [replica(1, WHOLE, "killed", high_watermark=7)],
        100,
        {1: 100},
        assigned=assignment(isr=(1,), replicas=(1,)),
        brokers=(1,),
    ),
    "empty logs": Case(
        [replica(broker, LogFacts.empty(50), log_start=50) for broker in (1, 2, 3)],
        50,
        {1: 50, 2: 50, 3: 50},
    ),
    "a leader that kept nothing of an old epoch": Case(
        [replica(1, LogFacts.empty(30), "killed"), replica(2, OLD_TAIL, "killed")],
        30,
        {1: 30, 2: 30},
        assigned=assignment(isr=(1, 2), replicas=(1, 2)),
    ),
    "a leader whose log begins above the other's end": Case(
        [replica(1, log((5, 200), first=150)), replica(2, OLD_TAIL)],
        200,
        {1: 200, 2: 60},
        assigned=assignment(isr=(1,), replicas=(1, 2)),
        unjudged=[(None, unexplained(60, 200, 1, "broker 2", 2), True)],
    ),
    "a lost log below a high watermark": Case(
        [replica(1, WHOLE, high_watermark=100), replica(3, WHOLE, high_watermark=100)],
        100,
        {1: 100, 2: 0, 3: 100},
    ),
    "the leader's log is lost, from which the others had replicated": Case(
        [replica(2, WHOLE, "killed"), replica(3, WHOLE, "killed")],
        100,
        {1: 0, 2: 100, 3: 100},
        2,
    ),
    "the leader's log is lost, and the others have nothing of its epoch": Case(
        [replica(2, WHOLE, "killed"), replica(3, WHOLE, "killed")],
        0,
        {1: 0, 2: 100, 3: 100},
        2,
        assigned=assignment(epoch=6),
        unjudged=[
            (1, "it is in sync and its log is not there; others end at 100", True),
            (None, f"{UNKNOWN} 100 records", True),
        ],
    ),
    "a lost log of one that is not in sync": Case(
        [replica(1, WHOLE)],
        100,
        {1: 100, 2: 0},
        assigned=assignment(isr=(1,), replicas=(1, 2)),
        unjudged=[(None, unexplained(0, 100, 1, "broker 2", 2), True)],
    ),
    "a lost log of one that is not in sync, where not all is judged": Case(
        [replica(1, WHOLE, "killed"), replica(2, log((0, 40), (5, 90)), "killed")],
        90,
        {1: 100, 2: 90, 3: 0},
        assigned=assignment(isr=(1, 2)),
        unjudged=[(None, unexplained(0, 90, 2, "broker 3"), True)],
    ),
    "a log start above the log end": Case(
        [replica(1, WHOLE), replica(2, WHOLE, log_start=700)],
        100,
        {1: 100, 2: 100},
        assigned=assignment(isr=(1, 2), replicas=(1, 2)),
        unjudged=[(2, "its log start, 700, lies above its log end, 100", True)],
    ),
    "a follower's log start that nothing has raised": Case(
        [replica(1, WHOLE, log_start=0), replica(2, WHOLE, log_start=70)],
        100,
        {1: 100, 2: 100},
        assigned=assignment(isr=(1, 2), replicas=(1, 2)),
        unjudged=[(2, ODD_START, True)],
    ),
    "one that retention, and one that the leader has raised": Case(
        [
            replica(1, WHOLE, log_start=70),
            replica(2, WHOLE, log_start=70),
            replica(3, log((5, 100), first=80), log_start=80),
        ],
        100,
        {1: 100, 2: 100, 3: 100},
    ),
    "a file beside the segments tells of more records": Case(
        [
            replace(replica(1, WHOLE, "killed", high_watermark=100), trace=Trace("a file", 130)),
            replace(replica(2, WHOLE, "killed"), trace=Trace("t-0/130.log.deleted", 130)),
            replace(replica(3, WHOLE, "killed"), trace=Trace("a file", 100)),
        ],
        100,
        {1: 100, 2: 100, 3: 100},
        unjudged=[(1, "its log ends at 100, and a file tells of records up to 130", True)],
    ),
    "the logs have an epoch that the metadata do not know": Case(
        [replica(broker, WHOLE, "killed", high_watermark=0) for broker in (1, 2, 3)],
        100,
        {1: 100, 2: 100, 3: 100},
        assigned=assignment(epoch=4),
        unjudged=[
            (
                None,
                "3 logs of it have records of leader epoch 5, and the metadata know none after 4:"
                " they are older than the logs",
                True,
            )
        ],
    ),
    "a leader with damage of its own is compared with another": Case(
        [replica(1, replace(WHOLE, is_whole=False)), replica(2, WHOLE), replica(3, WHOLE)],
        100,
        {1: 100, 2: 100, 3: 100},
        2,
    ),
    "a leader that differs from two others that are the same": Case(
        [
            replica(1, replace(WHOLE, digest=7)),
            *(replica(broker, replace(WHOLE, digest=8)) for broker in (2, 3)),
        ],
        100,
        {1: 100, 2: 100, 3: 100},
        2,
    ),
    "it is not compared with one that is out of sync": Case(
        [replica(1, replace(WHOLE, is_whole=False)), replica(2, WHOLE, "killed")],
        100,
        {1: 100, 2: 100},
        assigned=assignment(isr=(1,), replicas=(1, 2)),
    ),
    "an epoch that nobody led in, by a flipped bit in the last batch": Case(
        [
            replica(1, log((0, 40), (5, 99), (1 << 30, 100))),
            replica(2, WHOLE),
            replica(3, log((0, 40), (5, 99), (1 << 29, 100))),
        ],
        100,
        {1: 100, 2: 100, 3: 100},
        2,
    ),
    "a log that is not assigned": Case(
        [replica(1, WHOLE), replica(9, log((0, 20)))],
        100,
        {1: 100, 9: 20},
        assigned=assignment(isr=(1,), replicas=(1,)),
        brokers=(1, 9),
        unjudged=[(9, NOT_ASSIGNED, False)],
    ),
    "empty, and no file says that it always was": Case(
        [replica(broker, LogFacts.empty(), "killed") for broker in (1, 2, 3)],
        0,
        dict.fromkeys((1, 2, 3), 0),
        unjudged=[(None, NO_WORD, True)],
    ),
    "the same of a partition that never had another leader": Case(
        [replica(broker, LogFacts.empty(), "killed") for broker in (1, 2, 3)],
        0,
        dict.fromkeys((1, 2, 3), 0),
        assigned=assignment(epoch=0),
        unjudged=[(None, NO_WORD, False)],
    ),
    "empty and never led by another, but a file beside the segments tells of records": Case(
        [
            replica(1, LogFacts.empty(), "killed", high_watermark=0),
            replace(replica(2, LogFacts.empty(), "killed"), trace=Trace("a file", 30)),
            replace(replica(3, LogFacts.empty(), "killed"), trace=Trace("another", 20)),
        ],
        0,
        dict.fromkeys((1, 2, 3), 0),
        assigned=assignment(epoch=0),
        unjudged=[(None, "it is empty, and a file of broker 2 tells of records up to 30", True)],
    ),
    "the same without metadata": Case(
        [
            replace(replica(broker, LogFacts.empty(), "killed"), trace=Trace("a file", 30))
            for broker in (1, 2, 3)
        ],
        0,
        dict.fromkeys((1, 2, 3), 0),
        assigned=None,
        unjudged=[(None, "it is empty, and a file of broker 3 tells of records up to 30", True)],
    ),
    "all records removed by retention, of which other files know": Case(
        [
            replace(
                replica(broker, LogFacts.empty(50), high_watermark=50, log_start=50),
                trace=Trace("a file", 50),
            )
            for broker in (1, 2, 3)
        ],
        50,
        dict.fromkeys((1, 2, 3), 50),
    ),
    "in sync is an empty log, and only others have records, that no high watermark judges": Case(
        [
            replica(1, LogFacts.empty(), "killed"),
            *(replica(broker, WHOLE, "killed") for broker in (2, 3)),
        ],
        0,
        {1: 0, 2: 0, 3: 0},
        assigned=assignment(isr=(1,), epoch=6),
        unjudged=[(None, NO_WORD, True)],
    ),
    "no log is there, of a partition that never had another leader": Case(
        [],
        0,
        dict.fromkeys((1, 2, 3), 0),
        assigned=assignment(epoch=0),
        unjudged=[(None, NO_WORD, True)],
    ),
    "empty, as one broker wrote down": Case(
        [
            replica(1, LogFacts.empty(), "killed", high_watermark=0),
            *(replica(broker, LogFacts.empty(), "killed") for broker in (2, 3)),
        ],
        0,
        dict.fromkeys((1, 2, 3), 0),
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_how_far_a_partition_is_judged(case: Case) -> None:
    """No in-sync replica is judged beyond what it must hold, and none below what was committed."""
    assignments = None if case.assigned is None else {NAME: case.assigned}
    states = {each.broker: each.state for each in case.found}
    brokers = {broker: states.get(broker, "killed") for broker in case.brokers}
    rows, unjudged = judge(case.found, assignments, brokers)
    assert {row.broker: row.kept_end for row in rows} == case.kept
    assert {row.judged_end for row in rows} <= {case.judged_end}
    assert [row.broker for row in rows if row.is_reference] == [case.reference][: len(rows)]
    assert [each for each in unjudged if each.topic] == [
        Unjudged(reason, holds_back, *NAME, broker) for broker, reason, holds_back in case.unjudged
    ]
    above = [each for each in unjudged if not each.topic]
    assert [(each.records, each.holds_back) for each in above] == [(case.above, False)][
        : case.above
    ]
