"""Fixed seeds of the simulation, and mutants to see that its judges find them."""

import pytest
import trio

from minibroker.broker.log.producers import ProducerStates
from minibroker.testing.disk import SimulatedFile
from tests.sim.chaos import PROMISES, run_seed
from tests.support.seeds import always, rest_in_soak

# The quick ones first, of each flush mode.
SEEDS = [3, 4, 2, 0, 1, *range(5, 15)]
ALWAYS = 3
REPEAT = "python -m tests.sim --scenario broker --seeds"


@pytest.mark.parametrize("seed", rest_in_soak(SEEDS, ALWAYS))
def test_nothing_is_lost_doubled_or_changed(seed):
    """Whatever the faults of a seed: the ledgers and the log agree, and all comes to an end."""
    ledger = run_seed(seed)
    assert ledger.sent > 100, f"repeat: {REPEAT} {seed}"
    assert ledger.faults


@pytest.mark.soak
def test_many_seeds():
    """A thousand more."""
    for seed in range(1000, 2000):
        try:
            run_seed(seed)
        except Exception as error:
            raise AssertionError(f"repeat: {REPEAT} {seed}") from error


def test_a_broker_that_forgets_its_producers_is_found(monkeypatch):
    """Without the duplicate test, a retry after a lost answer is stored twice."""
    monkeypatch.setattr(ProducerStates, "check", lambda *_: None)
    assert fails(1)


def test_a_disk_that_does_not_sync_is_found(monkeypatch):
    """Under flush=always, a power cut shows that fsync did nothing."""

    async def lie(self) -> None:
        await trio.lowlevel.checkpoint()

    monkeypatch.setattr(SimulatedFile, "sync", lie)
    assert fails(2)


def fails(seed: int) -> bool:
    """Whether the judges find something wrong with a seed."""
    try:
        run_seed(seed)
    except Exception:
        return True
    return False


def test_every_promise_has_its_seeds():
    """Those seeds that always run go round over all flush modes."""
    assert {seed % len(PROMISES) for seed in always(SEEDS, ALWAYS)} == {0, 1, 2}
