"""Fixed seeds of simulated consumer groups, and mutants to see that the checkers find them."""

import pytest

from minibroker.testing.cluster import simulate
from minibroker.testing.mutants import RULE_MUTANTS, mutated
from tests.sim.cluster import FLUSHES
from tests.sim.group_compaction import CompactedGroupScenario
from tests.sim.group_scenario import KINDS, GroupScenario
from tests.support.seeds import rest_in_soak

SEEDS = range(9)
PART = 20
SOAK = range(1000, 1400, PART)
SEARCHED = 60
TRIED = 20
REPEAT = "python -m tests.sim --groups --seeds"

# A seed that finds each mutant, or is followed by one, as in test_cluster.py.
FOUND_BY = {
    "answer-uncommitted-commits": 0,
    "serve-below-epoch-start": 3,
    "accept-old-generations": 163,
    "commit-delivered-records": 3,
    "assign-before-revoked": 0,
    "count-epochs-from-members": 0,
    "commit-of-the-fenced": 0,
    "forget-target-in-failover": 13,
    "convert-without-instance-ids": 5,
}


@pytest.mark.parametrize("seed", SEEDS)
def test_a_group_keeps_its_promises(seed):
    """Whatever the faults of a seed: one owner, offsets that only rise, all read, nothing twice
    without an excuse, stable in the end, and closed in time."""
    told = simulate(GroupScenario(seed).run, seed)
    assert told.delivered > 40, f"repeat: {REPEAT} {seed}"
    assert told.generations > 0


@pytest.mark.parametrize("seed", rest_in_soak(range(len(KINDS))))
def test_a_group_keeps_its_promises_while_its_commits_are_compacted(seed):
    """Coordinators replay what compaction has left, on whichever broker."""
    scenario = CompactedGroupScenario(seed)
    told = simulate(scenario.run, seed)
    command = f"repeat: python -m tests.sim --scenario group-compaction --seeds {seed}"
    assert told.delivered > 40, command
    assert scenario.filler_count > 0, command


@pytest.mark.soak
@pytest.mark.parametrize("first", range(1000, 1300, PART))
def test_many_seeds_with_compaction(first):
    """Some hundreds more, in parts."""
    seeds = range(first, first + PART)
    failed = [seed for seed in seeds if finds(seed, CompactedGroupScenario)]
    command = "python -m tests.sim --scenario group-compaction --seeds"
    assert not failed, [f"{command} {seed}" for seed in failed]


@pytest.mark.soak
@pytest.mark.parametrize("first", SOAK)
def test_many_seeds(first):
    """Some hundreds more, in parts."""
    failed = [seed for seed in range(first, first + PART) if finds(seed)]
    assert not failed, [f"{REPEAT} {seed}" for seed in failed]


@pytest.mark.parametrize(("name", "first"), FOUND_BY.items())
def test_a_mutant_is_found(name, first):
    """The checkers see what each broken rule leads to."""
    seeds = range(first, first + TRIED)
    with mutated(name):
        command = f"{REPEAT} {seeds.start}-{seeds.stop - 1} --mutant {name}"
        assert any(finds(seed) for seed in seeds), command


@pytest.mark.soak
@pytest.mark.parametrize("name", RULE_MUTANTS)
def test_a_mutant_is_found_by_searching(name):
    """Nobody has to know the seed."""
    with mutated(name):
        assert any(finds(seed) for seed in range(2000, 2000 + SEARCHED))


def test_every_mutant_has_its_seed():
    """None is forgotten."""
    assert set(FOUND_BY) == set(RULE_MUTANTS)


def test_every_kind_of_scenario_has_its_seeds():
    """The fixed seeds go round over all of them, with every flush mode."""
    kinds = {(GroupScenario(seed).kind, seed // len(KINDS) % len(FLUSHES)) for seed in SEEDS}
    assert len(kinds) == len(KINDS) * len(FLUSHES)


def finds(seed, scenario_type=GroupScenario):
    """Whether something is wrong with a seed."""
    try:
        simulate(scenario_type(seed).run, seed)
    except Exception:
        return True
    return False
