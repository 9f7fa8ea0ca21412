"""Fixed seeds of simulated transactions, and mutants to see that the checkers find them."""

import pytest

from minibroker.testing.cluster import simulate
from minibroker.testing.mutants import mutated
from minibroker.testing.transaction_mutants import TRANSACTION_MUTANTS
from tests.sim.transaction_scenario import TransactionScenario
from tests.support.seeds import rest_in_soak

# With and without agreeing clocks and compaction, with each flush mode.
SEEDS = (0, 3, 5, 6, 8, 11)
PART = 20
SOAK = range(1000, 2000, PART)
SEARCHED = 200
TRIED = 20
REPEAT = "python -m tests.sim --scenario transactions --seeds"

# A seed that finds a mutant soon, or is followed by one. Soak searches for all of them.
FOUND_BY = {
    "fence-without-an-epoch": 2000,
    "ignore-open-transactions": 2000,
    "recover-without-open": 2000,
    "append-unverified": 2000,
    "time-out-a-commit": 2002,
    "forget-decisions-in-failover": 2000,
    "offsets-before-the-end": 2001,
    "compact-abort-markers": 2030,
    "keep-truncated-aborts": 2016,
    "answer-uncommitted-markers": 2004,
}


@pytest.mark.parametrize("seed", rest_in_soak(SEEDS, 1))
def test_transactions_keep_their_promises(seed: int) -> None:
    """Whatever the faults of a seed: each transaction visible as a whole or not at all, nothing of
    an open or aborted one, none of a fenced epoch, each input record transformed once, and no
    transaction open in the end."""
    told = simulate(TransactionScenario(seed).run, seed)
    assert told.delivered > 20, f"repeat: {REPEAT} {seed}"
    assert told.committed > 0


@pytest.mark.parametrize(("name", "first"), FOUND_BY.items())
def test_a_mutant_is_found(name: str, first: int) -> None:
    """The checkers see what each broken rule leads to."""
    seeds = range(first, first + TRIED)
    with mutated(name):
        command = f"{REPEAT} {seeds.start}-{seeds.stop - 1} --mutant {name}"
        assert any(finds(seed) for seed in seeds), command


@pytest.mark.soak
@pytest.mark.parametrize("first", SOAK)
def test_many_seeds(first: int) -> None:
    """A thousand more, in parts."""
    failed = [seed for seed in range(first, first + PART) if finds(seed)]
    assert not failed, [f"{REPEAT} {seed}" for seed in failed]


@pytest.mark.soak
@pytest.mark.parametrize("name", TRANSACTION_MUTANTS)
def test_a_mutant_is_found_by_searching(name: str) -> None:
    """From seeds that no test knows."""
    with mutated(name):
        assert any(finds(seed) for seed in range(2000, 2000 + SEARCHED))


def finds(seed: int) -> bool:
    """Whether something is wrong with a seed."""
    try:
        simulate(TransactionScenario(seed).run, seed)
    except Exception:
        return True
    return False
