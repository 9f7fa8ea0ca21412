"""Fixed seeds of simulated clusters whose clients delete records."""

import pytest

from minibroker.broker.replication.replicas import Replicas
from minibroker.testing.cluster import simulate
from minibroker.testing.mutants import DELETION_MUTANTS
from tests.sim.deletions import DeletionsScenario
from tests.support.seeds import rest_in_soak

SEEDS = (0, 1, 2)
PART = 20
SOAK = range(1000, 1300, PART)
TRIED = 40
REPEAT = "python -m tests.sim --scenario deletions --seeds"

# A seed that finds each mutant, or is followed by one.
FOUND_BY = {
    "acknowledge-own-deletions": 5,
    "join-with-deleted-records": 202,
    "forget-log-starts": 0,
}


@pytest.mark.parametrize("seed", rest_in_soak(SEEDS))
def test_what_was_deleted_stays_deleted(seed: int) -> None:
    """Whatever the faults of a seed, no replica in sync begins below what clients were told is
    deleted, and nothing else is lost."""
    told = simulate(DeletionsScenario(seed).run, seed)
    assert told.delivered > 50, f"repeat: {REPEAT} {seed}"


@pytest.mark.parametrize("name", FOUND_BY)
def test_a_mutant_is_found(name: str) -> None:
    """A checker that was never seen to fail proves nothing."""
    first = FOUND_BY[name]
    assert any(finds(seed, DELETION_MUTANTS[name]) for seed in range(first, first + TRIED))


def test_every_mutant_has_its_seed() -> None:
    """None is forgotten."""
    assert set(FOUND_BY) == set(DELETION_MUTANTS)


@pytest.mark.soak
@pytest.mark.parametrize("first", SOAK)
def test_many_seeds(first: int) -> None:
    """Some hundreds more, in parts."""
    failed = [seed for seed in range(first, first + PART) if finds(seed)]
    assert not failed, [f"{REPEAT} {seed}" for seed in failed]


def finds(seed: int, replicas_type: type[Replicas] = Replicas) -> bool:
    """Whether something is wrong with a seed."""
    try:
        simulate(DeletionsScenario(seed, replicas_type).run, seed)
    except Exception:
        return True
    return False
