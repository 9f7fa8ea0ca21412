"""The lab's scenarios, as `minibroker lab` plays them: what they print, and what they must show.

The transcripts in the files are compared whole. What the scenarios are about is demanded here once
more in words of code, so that no rewrite of the transcripts can lose it.
"""

from itertools import groupby
from pathlib import Path

import pytest

from minibroker.testing.lab.library import load, names
from minibroker.testing.lab.report import transcript
from minibroker.testing.lab.scenario import parse, split
from minibroker.testing.lab.stage import play
from minibroker.testing.lab.strategies import RULES
from minibroker.testing.lab.transcript import COLUMNS_MAX, FollowerView, ReplicaState, RoleMark
from tests.scripts.__main__ import SCENARIOS, retold
from tests.scripts.playing import after, ends, events, isrs, played

PLAYED = [(name, rule) for name in names() for rule in load(name).rules]


@pytest.mark.parametrize(("name", "rule"), PLAYED)
def test_a_scenario_is_played_as_its_file_tells(name: str, rule: str):
    """Every event, and the state of each replica after it, is what the file says (PAR, FOL, A1)."""
    scenario = load(name)
    assert transcript(scenario, rule) == scenario.transcripts[rule], (
        "python -m tests.scripts shows the difference"
    )
    assert all(len(line) <= COLUMNS_MAX for line in scenario.transcripts[rule].splitlines())


@pytest.mark.parametrize(
    ("name", "rule"), [(name, rule) for name, rule in PLAYED if rule != load(name).rules[0]]
)
def test_another_rule_prints_something_else(name: str, rule: str):
    """A rule that changes nothing would show nothing: at least one run differs from ours."""
    runs = [run for run in load(name).runs if rule in run.rules]
    ours = load(name).rules[0]
    assert any(play(run, rule) != play(run, ours) for run in runs if ours in run.rules)


def test_every_rule_is_told_in_a_scenario():
    """What no scenario names would be compared with nothing."""
    assert {rule for _, rule in PLAYED} == set(RULES)


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


def test_of_two_messages_the_second_is_lost():
    """LEO 2 and 2, HW 2 and 1: the follower cuts to 1, leads, and the old leader follows it (K3).
    What the leader knew of it was 2."""
    told = played("hw-loss", "two-messages", "hw")
    before = after(told, "1 acknowledges m2")
    assert ends(before) == [(2, 2), (2, 1)]
    assert [view.log_end for view in before[0].followers] == [2]
    assert ends(after(told, "controller: 2 leads, epoch 1")) == [(0, 0), (1, 1)]
    assert ends(after(told, "1 is told OFFSET_OUT_OF_RANGE; it cuts its log to 1"))[0] == (1, 1)
    assert "acknowledged: m1 on 1,2; m2 LOST." in told.verdict
    kept = played("hw-loss", "two-messages", "epoch")
    assert "acknowledged: m1 on 1,2; m2 on 1,2. The replicas agree." in kept.verdict


def test_the_leader_s_mark_follows_what_it_knows():
    """The HW is the smallest of the leader's LEO and the remote LEOs in sync, not of the LEOs (A2);
    a remote LEO is the offset of the last FETCH (PAR-03), unknown in a new epoch (PAR-17)."""
    told = played("hw-two-rounds", "produce-first", "epoch")
    leader, follower = after(told, "2 gets offset 0, HW 0")
    assert (leader.high_watermark, follower.log_end) == (0, 1)
    assert [view.log_end for view in leader.followers] == [0]
    leader, _ = after(told, "2 fetches from 1, epoch 0")
    assert (leader.high_watermark, [view.log_end for view in leader.followers]) == (1, [1])
    told = played("hw-loss", "two-messages", "epoch")
    _, leader = after(told, "controller: 2 leads, epoch 1")
    assert leader.followers == (FollowerView(1, -1, None, None),)
    assert leader.epochs == ((0, 0), (1, 2))


def test_the_table_shows_epochs_and_what_leaders_know():
    """Below the event that changed them, and only then."""
    shown = transcript(load("hw-divergence"), "epoch").splitlines()
    assert "         epochs of 2: (0,0) (1,1)" in shown
    assert "         2 knows of 1: remote LEO ?, no FETCH, caught up never" in shown
    shown = transcript(load("isr-by-lag"), "time").splitlines()
    assert "         1 knows of 3: remote LEO 2, last FETCH at 0.2 s, caught up at 0 s" in shown
    below = [line for line in shown if line.startswith("         ") and "knows of" in line]
    assert len(below) == len([each for each, _ in groupby(below)])


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
    """Without unclean election the replica fails, keeps its log and is shown so (A11)."""
    told = played("hw-divergence", "refused", "epoch")
    state, _ = after(told, "it refuses: a cut to 1 would lose records committed below 2")
    assert state[:5] == ReplicaState(RoleMark.FAILED, 1, 2, 2)[:5]


def test_the_last_replica_standing_does_not_lead_without_its_tail():
    """What was acknowledged before the ISR shrank survives the lost tail of its last one (K2)."""
    told = played("last-replica", "alone", "epoch")
    assert [state.mark for state in after(told, "3 returns")][1:] == [RoleMark.OFFLINE] * 2
    assert "acknowledged: a on 1,2,3. The replicas agree." in told.verdict


def test_a_partition_waits_for_the_log_that_may_be_longer():
    """Who may have lost its tail does not lead while another may have it all (K2)."""
    told = played("hw-divergence", "seen", "epoch")
    waiting = after(told, "nobody leads")
    assert [state.mark for state in waiting] == [RoleMark.DOWN, RoleMark.OFFLINE]
    assert "b on 1,2. The replicas agree." in told.verdict


def test_a_burst_moves_nobody_by_time_and_everybody_by_count():
    """Four messages at once are more than the three that may be missing; by time all stay (A4)."""
    assert isrs(played("isr-by-lag", "burst", "time")) == [(1, 2, 3)]
    by_count = isrs(played("isr-by-lag", "burst", "lag-messages"))
    assert by_count == [(1, 2, 3), (1,), (1, 2), (1, 2, 3)]


@pytest.mark.parametrize("rule", ["time", "lag-messages"])
def test_a_follower_that_stands_still_leaves_under_both_rules(rule: str):
    """It leaves once the lag time has passed, and returns when it has caught up (A3, A4)."""
    told = played("isr-by-lag", "stall", rule)
    assert isrs(told) == [(1, 2, 3), (1, 2), (1, 2, 3)]
    assert min(event.now for event in events(told) if event.replicas[0].isr == (1, 2)) > 0.5


@pytest.mark.parametrize("rule", ["time", "lag-messages"])
def test_a_short_pause_moves_nobody(rule: str):
    """Logs that end at 5, 4 and 3: two messages and 100 ms behind is in sync, and HW waits."""
    told = played("isr-by-lag", "pause", rule)
    assert isrs(told) == [(1, 2, 3)]
    assert ends(after(told, "0.1 s pass")) == [(5, 3), (4, 3), (3, 3)]
    assert ends(after(told, "1 acknowledges e"))[0] == (5, 5)


def test_a_slow_follower_leaves_by_time_only():
    """It always sends FETCH and never has everything: the count does not find it (KIP-16)."""
    assert isrs(played("isr-by-lag", "slow", "time")) == [(1, 2, 3), (1, 2)]
    assert isrs(played("isr-by-lag", "slow", "lag-messages")) == [(1, 2, 3)]


@pytest.mark.parametrize(("rule", "held_until"), [("time", 0.7), ("lag-messages", 0.3)])
def test_a_slow_follower_holds_producers_up_until_it_is_out(rule: str, held_until: float):
    """Four messages that it lacks are one too many by count, 500 ms too long by time. Then all that
    waited for it is acknowledged at once."""
    told = played("isr-by-lag", "held-up", rule)
    assert isrs(told) == [(1, 2, 3), (1, 2), (1, 2, 3)]
    acknowledged = [
        (event.now, event.text[-1]) for event in events(told) if "acknowledges" in event.text
    ]
    assert acknowledged == [(0, "a"), (0.2, "b"), *((held_until, value) for value in "cdef")]
    leader = after(told, "controller: ISR 1,2")[0]
    assert [view.log_end for view in leader.followers] == [6, 2]


def test_a_silent_follower_at_the_log_end_leaves_by_the_old_rule_only():
    """Whoever has everything is in sync, even if it stops asking (PAR-11)."""
    assert isrs(played("isr-by-lag", "quiet", "time")) == [(1, 2, 3)]
    assert isrs(played("isr-by-lag", "quiet", "lag-messages")) == [(1, 2, 3), (1, 2)]


def test_the_number_of_messages_is_a_setting():
    """replica.lag.max.messages has its old default of 4000 where a text sets nothing."""
    steps = "run a\nburst 1 4000\ncheck 1\nburst 1 1\ncheck 1\n"
    head = "# T\nbrokers 1 2\nrules lag-messages\nunclean-return seen\n"
    assert isrs(play(parse(head + steps).runs[0], "lag-messages")) == [(1, 2), (1,)]
    few = f"{head}with replica.lag.max.messages=5000\n{steps}"
    assert isrs(play(parse(few).runs[0], "lag-messages")) == [(1, 2)]
