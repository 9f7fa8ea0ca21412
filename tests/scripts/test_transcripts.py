"""The lab's scenarios, as `minibroker lab` plays them: what they print, and what they must show.

The transcripts in the files are compared whole. What the stories are about is demanded here once
more in words of code, so that no rewrite of the transcripts can lose it.
"""

from pathlib import Path

import pytest

from minibroker.testing.lab.library import load, names
from minibroker.testing.lab.scenario import split
from minibroker.testing.lab.stage import Played, play
from minibroker.testing.lab.story import transcript
from minibroker.testing.lab.transcript import COLUMNS_MAX, Event, ReplicaState, RoleMark
from tests.scripts.__main__ import SCENARIOS, retold

PLAYED = [(name, rule) for name in names() for rule in load(name).rules]


def played(name: str, run_name: str, rule: str) -> Played:
    """One run of a scenario."""
    (run,) = (run for run in load(name).runs if run.name == run_name)
    return play(run, rule)


def after(told: Played, text: str) -> tuple[ReplicaState, ...]:
    """The replicas after the first event with such a text."""
    events = [line for line in told.lines if isinstance(line, Event)]
    return next(event.replicas for event in events if text in event.text)


def ends(replicas: tuple[ReplicaState, ...]) -> list[tuple[int, int]]:
    """LEO and HW of each."""
    return [(replica.log_end, replica.high_watermark) for replica in replicas]


@pytest.mark.parametrize(("name", "rule"), PLAYED)
def test_a_scenario_is_played_as_its_file_tells(name: str, rule: str):
    """Every event, and the state of each replica after it, is what the file says (PAR, FOL, A1)."""
    scenario = load(name)
    assert transcript(scenario, rule) == scenario.transcripts[rule], (
        "python -m tests.scripts shows the difference"
    )
    assert all(len(line) <= COLUMNS_MAX for line in scenario.transcripts[rule].splitlines())


@pytest.mark.parametrize("path", sorted(SCENARIOS.glob("*.txt")), ids=lambda path: path.stem)
def test_a_file_holds_the_transcripts_of_its_rules_only(path: Path):
    """Nothing stands in a file that a rewrite would not write."""
    text = path.read_text(encoding="utf-8")
    assert path.stem in names()
    assert retold(text) == text
    assert list(split(text)[1]) == list(load(path.stem).rules)


def test_two_rounds_make_a_record_committed_everywhere():
    """After the first FETCH both ends are 1 and both HW 0, after the second both HW are 1 (A7)."""
    for run in ("produce-first", "fetch-waits"):
        told = played("hw-two-rounds", run, "epoch")
        assert ends(after(told, "2 gets offset 0, HW 0")) == [(1, 0), (1, 0)]
        assert ends(after(told, "2 fetches from 1, epoch 0")) == [(1, 1), (1, 0)]
        assert ends(after(told, "2 gets no records, HW 1")) == [(1, 1), (1, 1)]


def test_a_cut_at_the_high_watermark_loses_what_epochs_keep():
    """An acknowledged record is gone from both under the old rule, and stays by epochs (K3)."""
    assert "acknowledged: a LOST." in played("hw-loss", "restart", "hw").verdict
    kept = played("hw-loss", "restart", "epoch")
    assert "acknowledged: a on 1,2. The replicas agree." in kept.verdict


def test_replicas_differ_for_ever_without_epochs():
    """Same ends, same HW, other records; by epochs (0,0),(1,1) the old leader cuts to 1 (A11)."""
    differing = played("hw-divergence", "allowed", "hw")
    assert (
        "b on 1, NOT on the leader; c on 2. The replicas DIFFER at offset 1." in differing.verdict
    )
    assert ends(after(differing, "1 gets no records")) == [(2, 2), (2, 2)]
    agreeing = played("hw-divergence", "allowed", "epoch")
    assert "b LOST; c on 1,2. The replicas agree." in agreeing.verdict
    cut = after(agreeing, "1 is told: epoch 0 ends at 1; it cuts its log to 1")
    assert ends(cut)[0] == (1, 1)


def test_a_cut_below_the_own_high_watermark_is_refused():
    """Without unclean election the replica fails, keeps its log and is shown so (A11, 4.8)."""
    told = played("hw-divergence", "refused", "epoch")
    state, _ = after(told, "it refuses: a cut to 1 would lose records committed below 2")
    assert state == ReplicaState(RoleMark.FAILED, 1, 2, 2)


def test_the_last_replica_standing_does_not_lead_without_its_tail():
    """What was acknowledged before the ISR shrank survives the lost tail of its last one (K2)."""
    told = played("last-replica", "alone", "epoch")
    assert [state.mark for state in after(told, "3 returns")][1:] == [RoleMark.OFFLINE] * 2
    assert "acknowledged: a on 1,2,3. The replicas agree." in told.verdict


def test_a_partition_waits_for_the_log_that_may_be_longer():
    """Who may have lost its tail does not lead while another may have it all (4.11, K2)."""
    told = played("hw-divergence", "seen", "epoch")
    waiting = after(told, "nobody leads")
    assert [state.mark for state in waiting] == [RoleMark.DOWN, RoleMark.OFFLINE]
    assert "b on 1,2. The replicas agree." in told.verdict


def test_a_burst_moves_nobody_by_time_and_everybody_by_count():
    """The rule of 4000 messages throws all followers out; by time the ISR stays whole (A4)."""
    isrs = {
        rule: [
            line.replicas[0].isr
            for line in played("isr-by-lag", "burst", rule).lines[1:]
            if isinstance(line, Event)
        ]
        for rule in ("time", "lag-messages")
    }
    assert set(isrs["time"]) == {(1, 2, 3)}
    assert list(dict.fromkeys(isrs["lag-messages"])) == [(1, 2, 3), (1,), (1, 2)]
    assert isrs["lag-messages"][-1] == (1, 2, 3)


def test_who_stands_still_leaves_by_time_only():
    """After the lag time it leaves, and returns once it caught up; by count it stays (A3, A4)."""
    told = played("isr-by-lag", "stall", "time")
    events = [line for line in told.lines if isinstance(line, Event)]
    left = [event.now for event in events if event.replicas[0].isr == (1, 2)]
    assert min(left) > 1 + 10, "not before the lag time has passed"
    assert events[-1].replicas[0].isr == (1, 2, 3)
    by_count = played("isr-by-lag", "stall", "lag-messages")
    assert {e.replicas[0].isr for e in by_count.lines if isinstance(e, Event)} == {(1, 2, 3)}
