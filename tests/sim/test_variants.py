"""Fixed seeds of simulated clusters in their variants."""

import pytest

from minibroker.testing.cluster import SimulatedWorld, simulate
from tests.sim.variants import CROWDS, VariantScenario, draw_variant
from tests.support.seeds import rest_in_soak

SEEDS = (0, 1, 3, 4)  # the first two with both numbers of replicas
PART = 20
SOAK = range(1000, 1500, PART)
DRAWN = range(100)
REPEAT = "python -m tests.sim --scenario variants --seeds"


@pytest.mark.parametrize("seed", rest_in_soak(SEEDS))
def test_nothing_is_lost_in_any_variant(seed: int) -> None:
    """Whatever the faults of a seed, every checker is content and the cluster comes to rest."""
    told = simulate(VariantScenario(seed).run, seed)
    assert told.delivered > 50, f"repeat: {REPEAT} {seed}"


def test_a_crowd_of_topics_survives() -> None:
    """The first seed that has one."""
    seed = next(seed for seed in DRAWN if drawn(seed).crowd)
    told = simulate(VariantScenario(seed).run, seed)
    assert told.delivered > 50, f"repeat: {REPEAT} {seed}"


def test_every_variant_is_drawn() -> None:
    """Two and three replicas, each with one and two that must be in sync, and crowds."""
    variants = [drawn(seed) for seed in DRAWN]
    assert {each[:2] for each in variants} == {(2, 1), (2, 2), (3, 1), (3, 2)}
    assert {each.crowd for each in variants} == {0, *CROWDS}


@pytest.mark.soak
@pytest.mark.parametrize("first", SOAK)
def test_many_seeds(first: int) -> None:
    """Some hundreds more, in parts."""
    failed = [seed for seed in range(first, first + PART) if finds(seed)]
    assert not failed, [f"{REPEAT} {seed}" for seed in failed]


def drawn(seed: int):
    """The variant of a seed. Worlds belong to a run."""
    return draw_variant(SimulatedWorld(seed))


def finds(seed: int) -> bool:
    """Whether something is wrong with a seed."""
    try:
        simulate(VariantScenario(seed).run, seed)
    except Exception:
        return True
    return False
