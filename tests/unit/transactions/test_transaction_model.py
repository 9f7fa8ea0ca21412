"""A transactional id under producers, logs and coordinators that fail by chance."""

import pytest

from minibroker.broker.transactions.states import TRANSITIONS, State
from minibroker.broker.transactions.transaction import EPOCH_LAST
from tests.unit.transactions.transaction_world import World

SEEDS = 150
STEPS = 400


def run(seed: int, first_epoch: int | None = None) -> World:
    """One world from its seed to its quiet end."""
    print(f"the seed is {seed}")
    world = World(seed, first_epoch)
    for _ in range(STEPS):
        world.random_step()
    world.quiet()
    return world


@pytest.mark.parametrize("first", range(0, SEEDS, 50))
def test_a_transaction_ends_once_and_no_fenced_producer_commits(first: int) -> None:
    """Whatever requests, time-outs and coordinators do to each other: each transaction ends exactly
    once, as its producer was told, an epoch never goes back, and a producer that was replaced
    commits nothing."""
    for seed in range(first, first + 50):
        run(seed)


def test_so_it_is_where_the_epochs_are_used_up() -> None:
    """The same near the last epoch: producers get a new id, and none gets the reserved epoch."""
    rotated = 0
    for seed in range(50):
        world = run(seed, EPOCH_LAST - 4)
        rotated += len(world.epochs) > 1
        given = [client.producer.epoch for client in world.clients]
        assert max(given, default=0) <= EPOCH_LAST
    assert rotated > 25


def test_the_seeds_take_every_legal_move() -> None:
    """The worlds above see every move of the table."""
    seen: set[tuple[State, State]] = set()
    for seed in range(SEEDS):
        seen |= run(seed).transitions
    allowed = {(before, after) for before, afters in TRANSITIONS.items() for after in afters}
    dead = {(before, State.DEAD) for before in State}
    assert allowed - dead - seen == set()
    assert seen & dead
