"""Fixed seeds of simulated clusters that compact topics."""

import pytest

from minibroker.testing.cluster import simulate
from minibroker.testing.mutants import COMPACTION_MUTANTS, mutated
from tests.sim.compaction import CompactionScenario
from tests.support.seeds import rest_in_soak

SEEDS = (0, 1, 2)
PART = 20
SOAK = range(1000, 1500, PART)
SEARCHED = 200
REPEAT = "python -m tests.sim --scenario compaction --seeds"


@pytest.mark.parametrize("seed", rest_in_soak(SEEDS))
def test_each_replica_holds_the_newest_record_of_each_key(seed: int) -> None:
    """Whatever the faults of a seed, while each broker compacts its own logs."""
    told = simulate(CompactionScenario(seed).run, seed)
    assert told.delivered > 50, f"repeat: {REPEAT} {seed}"


@pytest.mark.soak
@pytest.mark.parametrize("first", SOAK)
def test_many_seeds(first: int) -> None:
    """Some hundreds more, in parts."""
    failed = [seed for seed in range(first, first + PART) if finds(seed)]
    assert not failed, [f"{REPEAT} {seed}" for seed in failed]


@pytest.mark.soak
@pytest.mark.parametrize("name", COMPACTION_MUTANTS)
def test_a_mutant_is_found_by_searching(name: str) -> None:
    """Nobody has to know the seed."""
    with mutated(name):
        assert any(finds(seed) for seed in range(2000, 2000 + SEARCHED))


def finds(seed: int) -> bool:
    """Whether something is wrong with a seed."""
    try:
        simulate(CompactionScenario(seed).run, seed)
    except Exception:
        return True
    return False
