"""Seeds of the scenario with reassignments, and bugs of reassignments that it must find."""

import pytest

from minibroker.testing.cluster import simulate
from minibroker.testing.mutants import REASSIGNMENT_MUTANTS, mutated
from tests.sim.reassignments import ReassignmentsScenario
from tests.support.seeds import rest_in_soak

SEEDS = (1, 2)
PART = 20
SOAK = range(1000, 2000, PART)
TRIED = 40
QUICK = 3  # of the mutants
REPEAT = "python -m tests.sim --scenario reassignments --seeds"

# A seed that finds each mutant, or is followed by one.
FOUND_BY = {
    "remove-before-successors": 1,
    "leave-stray-replicas": 1,
    "join-at-once": 2,
    "starve-in-sync-followers": 1,
    "join-at-the-high-watermark": 100,
    "copy-without-producers": 1,
    "leave-cancelled-replicas": 5,
}


@pytest.mark.parametrize("seed", rest_in_soak(SEEDS))
def test_nothing_is_lost_while_partitions_move(seed: int) -> None:
    """Whatever the faults of a seed; and at rest each partition is where it was last asked to be,
    and nowhere else."""
    told = simulate(ReassignmentsScenario(seed).run, seed)
    assert told.delivered > 0


@pytest.mark.parametrize("name", rest_in_soak(tuple(REASSIGNMENT_MUTANTS), QUICK))
def test_a_mutant_is_found(name: str) -> None:
    """A checker that was never seen to fail proves nothing."""
    first = FOUND_BY[name]
    with mutated(name):
        assert any(finds(seed) for seed in range(first, first + TRIED))


def test_every_mutant_has_its_seed() -> None:
    """None is forgotten."""
    assert set(FOUND_BY) == set(REASSIGNMENT_MUTANTS)


@pytest.mark.soak
@pytest.mark.parametrize("first", SOAK)
def test_many_seeds(first: int) -> None:
    """A thousand more, in parts."""
    failed = [seed for seed in range(first, first + PART) if finds(seed)]
    assert not failed, [f"{REPEAT} {seed}" for seed in failed]


def finds(seed: int) -> bool:
    """Whether something is wrong with a seed."""
    try:
        simulate(ReassignmentsScenario(seed).run, seed)
    except Exception:
        return True
    return False
