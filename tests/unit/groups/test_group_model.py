"""Groups under clients, logs and coordinators that fail by chance (`group_world.py`)."""

import pytest

from minibroker.broker.groups.states import TRANSITIONS, State
from tests.unit.groups.group_world import World

WHERE = "tests/unit/groups/test_group_model.py"
SEEDS = 100
STEPS = 150


def run(seed: int, steps: int = STEPS) -> World:
    """One world from its seed to its quiet end, with all that must hold at the end."""
    print(f"again: pytest '{WHERE}::test_a_group_among_failures[{seed}]'")
    world = World(seed)
    for _ in range(steps):
        world.random_step()
    world.quiet()
    assert world.group.state is (State.STABLE if world.consumers else State.EMPTY)
    members = {each.instance_id or each.member_id for each in world.group.members.values()}
    assert members == {consumer.place for consumer in world.consumers}
    assert all(consumer.has_part for consumer in world.consumers)
    assert all(ticket.answer is not None for ticket in world.tickets), "a ticket is left waiting"
    return world


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_group_among_failures(seed: int) -> None:
    """No partition has two owners in a generation, and once it is quiet the group is Stable with
    all who live, or Empty, within the time-outs of session and rebalance."""
    run(seed)


def test_the_seeds_go_every_way_there_is() -> None:
    """The worlds above see every transition of the table but the deletion of an empty group."""
    seen: set[tuple[State, State]] = set()
    for seed in range(20):
        seen |= run(seed).transitions
    allowed = {(before, after) for before, afters in TRANSITIONS.items() for after in afters}
    assert seen >= allowed - {(State.EMPTY, State.DEAD)}


@pytest.mark.soak
@pytest.mark.parametrize("first", range(1000, 21_000, 1000))
def test_many_groups_among_failures(first: int) -> None:
    """As above, for a thousand seeds each."""
    for seed in range(first, first + 1000):
        run(seed, 300)
