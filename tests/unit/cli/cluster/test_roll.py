"""Which broker is restarted when, and what a roll waits for."""

import pytest

from minibroker.cli.cluster.roll import controller_of, next_of, reasons_to_wait
from minibroker.protocol.messages.brokers import DescribeBrokerResponse


def answer(node_id: int, *reasons: str, epoch: int = 0, controller: int = 1):
    """What a broker says of itself: ready, unless there are reasons."""
    return DescribeBrokerResponse(
        node_id, epoch, controller_id=controller, is_ready=not reasons, reasons=reasons
    )


@pytest.mark.parametrize(
    ("remaining", "controller", "next_one"),
    [([1, 2, 3], 3, 1), ([1, 2, 3], 1, 2), ([3, 1], -1, 3), ([3], 3, 3), ([2, 1], 3, 2)],
)
def test_the_controller_comes_last(remaining: list[int], controller: int, next_one: int) -> None:
    """The others come in the order in which they were named."""
    assert next_of(remaining, controller) == next_one


def test_a_roll_waits_for_every_broker() -> None:
    """Whoever is not ready is named with its reasons, whoever does not answer with why."""
    assert not list(reasons_to_wait({1: answer(1), 2: answer(2)}))
    found = {1: answer(1), 2: answer(2, "it is new", "1 replica is not in sync: t-0"), 3: "gone"}
    assert list(reasons_to_wait(found)) == [
        "broker 2: it is new, 1 replica is not in sync: t-0",
        "broker 3: gone",
    ]


def test_the_newest_broker_knows_the_controller() -> None:
    """It was told last: another may not have heard yet that the controller has changed."""
    found = {
        1: answer(1, epoch=7, controller=3),
        2: answer(2, epoch=9, controller=1),
        3: answer(3, epoch=2, controller=3),
        4: "gone",
    }
    assert controller_of(found) == 1
    assert controller_of({1: "gone"}) == -1
