"""The budget of file descriptors: who may hold how many of the limit."""

import pytest

from minibroker.broker.descriptors import NOT_LIMITED, SEALED_MIN, DescriptorBudget


def fill(budget: DescriptorBudget, *, logs: int = 0, connections: int = 0) -> tuple[int, int]:
    """Hold as many of each as there is room for, and return how many were held."""
    for _ in range(logs):
        if budget.has_room_for_log():
            budget.hold_log()
    for _ in range(connections):
        if budget.has_room_for_connection():
            budget.hold_connection()
    return budget.logs, budget.connections


@pytest.mark.parametrize("limit", [64, 120, 256, 1_024, 4_096, 65_536])
def test_neither_logs_nor_connections_take_all(limit: int) -> None:
    """Whoever comes first leaves the reserve, some open sealed segments, and room for the other."""
    plenty = 2 * limit
    for first in ("logs", "connections"):
        budget = DescriptorBudget(limit)
        fill(budget, **{first: plenty})
        held = fill(budget, logs=plenty, connections=plenty)
        reserve = budget.statistics().reserve
        assert sum(held) + SEALED_MIN + reserve == limit
        assert min(held) >= limit // 16
        assert reserve >= 16


def test_sealed_segments_make_way() -> None:
    """They have what is left of three quarters of the limit, and are told when it gets less."""
    budget = DescriptorBudget(1_024)
    told = []
    budget.on_pressure = lambda: told.append(budget.sealed_max)
    assert budget.sealed_max == 768 - 64
    budget.sealed = 600
    budget.logs = 104
    budget.hold_log()
    assert told == [599]
    budget.sealed = 599
    budget.hold_connection()
    assert told == [599, 598]
    budget.connections = 480
    assert budget.sealed_max == 119
    budget.logs = 400
    assert budget.sealed_max == SEALED_MIN


def test_without_a_limit_there_is_room() -> None:
    """A simulation, and a process without a limit, are not held up."""
    budget = DescriptorBudget(NOT_LIMITED)
    assert fill(budget, logs=5_000, connections=5_000) == (5_000, 5_000)
    assert budget.sealed_max > 1_000_000


def test_too_many_logs_are_seen() -> None:
    """As after a start with a lower limit: then a log's next segment does not stay open."""
    budget = DescriptorBudget(64)
    while budget.has_room_for_log():
        budget.hold_log()
    assert not budget.has_too_many_logs()
    budget.hold_log()
    assert budget.has_too_many_logs()
