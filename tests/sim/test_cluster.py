"""Fixed seeds of the simulated cluster, and mutants to see that its checkers find them."""

import pytest

from minibroker.testing.mutants import MUTANTS
from tests.sim.cluster import FLUSHES, run_seed
from tests.support.seeds import always, rest_in_soak

# Long scenarios are in soak.
SEEDS = [*range(4), 8, 10, 4, 5, 6, 7, 9, *range(11, 18)]
ALWAYS = 4
PART = 50
SOAK = range(1000, 2000, PART)
SEARCHED = 100
TRIED = 40

# A seed that finds each mutant, or is followed by one: a message that is a few bytes longer
# moves what chance does in every seed.
FOUND_BY = {
    "cut-at-high-watermark": 1,
    "count-unconfirmed-shrink": 3,
    "grow-without-epoch-start": 37,
    "ack-before-high-watermark": 3,
    "forget-producers": 0,
    "obey-stale-controller": 5,
    "ignore-partition-epoch": 20,
    "overlook-appends": 0,
}


@pytest.mark.parametrize("seed", rest_in_soak(SEEDS, ALWAYS))
def test_nothing_acknowledged_is_lost_doubled_or_changed(seed):
    """Whatever the faults of a seed, every checker is content and the cluster comes to rest."""
    told = run_seed(seed)
    assert told.delivered > 100, f"repeat: python -m tests.sim --seeds {seed}"
    assert told.faults


@pytest.mark.soak
@pytest.mark.parametrize("first", SOAK)
def test_many_seeds(first):
    """A thousand more, in parts."""
    failed = [seed for seed in range(first, first + PART) if finds(seed)]
    assert not failed, [f"python -m tests.sim --seeds {seed}" for seed in failed]


@pytest.mark.parametrize(("name", "first"), FOUND_BY.items())
def test_a_mutant_is_found(name, first):
    """The checkers see what each broken rule leads to."""
    seeds = range(first, first + TRIED)
    command = f"python -m tests.sim --mutant {name} --seeds {seeds.start}-{seeds.stop - 1}"
    assert any(finds(seed, name) for seed in seeds), command


@pytest.mark.soak
@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_found_by_searching(name):
    """Nobody has to know the seed."""
    assert any(finds(seed, name) for seed in range(2000, 2000 + SEARCHED))


def test_every_mutant_has_its_seed():
    """None is forgotten."""
    assert set(FOUND_BY) == set(MUTANTS)


def test_every_flush_mode_has_its_seeds():
    """Those seeds that always run go round over all of them."""
    assert {seed % len(FLUSHES) for seed in always(SEEDS, ALWAYS)} == set(range(len(FLUSHES)))


def finds(seed, mutant=None):
    """Whether something is wrong with a seed."""
    try:
        run_seed(seed, *([] if mutant is None else [MUTANTS[mutant]]))
    except Exception:
        return True
    return False
