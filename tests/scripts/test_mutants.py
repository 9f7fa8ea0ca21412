"""The mutants of the simulation: each does what its name says, in as short a scenario as can be.

That the simulation finds them is its own test; here is shown that there is something to find.
"""

import pytest

from minibroker.broker.replication.replicas import Replicas
from minibroker.protocol.records.batch import ProducerStamp
from minibroker.protocol.records.record import encode_batch
from minibroker.testing.lab.machine import WALL_MS
from minibroker.testing.lab.scenario import parse
from minibroker.testing.lab.stage import Stage
from minibroker.testing.lab.strategies import RULES, Rule
from minibroker.testing.lab.transcript import Event
from minibroker.testing.mutants import MUTANTS

HEAD = "# T\nbrokers 1 2 3\nrules epoch\nunclean-return seen\nwith replica.lag.time.max.ms=1000\n"
# 2 has not acknowledged a when it stalls.
SHRINK = "copy 2\ncopy 3\nproduce 1 a\ncopy 3\nwait 2s fetching 3\ncheck 1\n"
# All have a, but 2 has not learnt that it is committed when it leads, and 1 returns without it.
GROWTH = (
    "produce 1 a\nfetch 2\nfetch 3\nask 2\nask 3\n"
    "crash 1 power tail lost\nexpire 1\nstart 1\nask 1\n"
)


def events(replicas_type: type[Replicas], steps: str) -> list[Event]:
    """What happens to brokers of that kind."""
    told = Stage(parse(f"{HEAD}run a\n{steps}").runs[0], Rule(replicas_type)).play()
    return [line for line in told.lines if isinstance(line, Event)]


def texts(replicas_type: type[Replicas], steps: str) -> list[str]:
    """The same, as text only."""
    return [event.text for event in events(replicas_type, steps)]


def test_an_ack_does_not_wait_for_followers():
    """`ack-before-high-watermark` acknowledges what only the leader has (A16)."""
    assert "1 acknowledges a" not in texts(Replicas, "produce 1 a\n")
    assert "1 acknowledges a" in texts(MUTANTS["ack-before-high-watermark"], "produce 1 a\n")


def test_a_shrink_counts_before_it_is_confirmed():
    """`count-unconfirmed-shrink` raises HW while the controller knows of nothing (A4)."""
    for replicas_type, expected in ((Replicas, 0), (MUTANTS["count-unconfirmed-shrink"], 1)):
        (asked,) = (e for e in events(replicas_type, SHRINK) if "asks for ISR 1,3" in e.text)
        assert asked.replicas[0].high_watermark == expected


def test_a_follower_joins_before_the_start_of_the_term():
    """`grow-without-epoch-start` takes in who lacks what the last leader committed (A3.5)."""
    assert "2 asks for ISR 2,3,1" not in texts(Replicas, GROWTH)
    assert "2 asks for ISR 2,3,1" in texts(MUTANTS["grow-without-epoch-start"], GROWTH)


@pytest.mark.parametrize(
    ("replicas_type", "remembered"), [(Replicas, 1), (MUTANTS["forget-producers"], 0)]
)
def test_a_new_leader_forgets_producers(replicas_type: type[Replicas], remembered: int):
    """`forget-producers` knows none of those whose batches it copied (A14, PID)."""
    stage = Stage(parse(f"{HEAD}run a\ncrash 1 process\nexpire 1\n").runs[0], Rule(replicas_type))
    stage.begin()
    records = [(WALL_MS, None, b"x", ())]
    batch = memoryview(encode_batch(records, producer=ProducerStamp(7, 0, 0)))
    stage.process(2).partition.log.append_as_leader(batch, 0, WALL_MS)
    stage.play_steps()
    assert stage.process(2).partition.is_leader
    assert len(stage.process(2).partition.log.producers) == remembered


@pytest.mark.parametrize(
    ("replicas_type", "is_refused"), [(Replicas, True), (MUTANTS["obey-stale-controller"], False)]
)
def test_a_replaced_controller_is_obeyed(replicas_type: type[Replicas], is_refused: bool):
    """`obey-stale-controller` takes orders of any epoch (RM-01)."""
    stage = Stage(parse(f"{HEAD}run a\nfetch 2\n").runs[0], Rule(replicas_type))
    stage.begin()
    assert stage.process(1).replicas.is_stale_controller(-1) is is_refused


@pytest.mark.parametrize(
    ("replicas_type", "isr"), [(Replicas, (1, 2)), (MUTANTS["ignore-partition-epoch"], (1, 2, 3))]
)
def test_a_push_within_a_term_is_ignored(replicas_type: type[Replicas], isr: tuple[int, ...]):
    """`ignore-partition-epoch` does not hear that a follower has died (A18, RM-03)."""
    last = events(replicas_type, "crash 3 process\nexpire 3\n")[-1]
    assert last.replicas[0].isr == isr


def test_the_cut_at_the_high_watermark_is_a_rule_of_the_lab():
    """`cut-at-high-watermark` is shown in its own scenarios, hw-loss and hw-divergence (A11)."""
    assert MUTANTS["cut-at-high-watermark"] is RULES["hw"]({}).replicas_type
