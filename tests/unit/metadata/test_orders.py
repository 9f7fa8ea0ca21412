"""What a controller's order may say."""

import pytest

from minibroker.broker.metadata.orders import are_sound
from minibroker.protocol.topic_names import is_topic_name
from tests.unit.node import state_of

SOUND = {"leader": 1, "isr": (2, 1), "replicas": (1, 2, 3)}


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../a", "a b", "a\n", "ä", "x" * 250])
def test_a_topic_name_is_no_path(name: str) -> None:
    """What would lead out of the data directory, or hide in a log line, is no name."""
    assert not is_topic_name(name)


def test_what_makes_sense_is_sound() -> None:
    """A leader in sync, nobody leading, and a partition that is deleted."""
    deleted = state_of(leader=-2, isr=(), replicas=())
    assert are_sound([state_of(**SOUND), state_of(**SOUND | {"leader": -1}), deleted])


@pytest.mark.parametrize(
    "wrong",
    [
        {"leader": 3},
        {"isr": ()},
        {"isr": (1, 1)},
        {"isr": (1, 4)},
        {"original": (1, 4)},
        {"replicas": ()},
        {"isr": (1, -1), "replicas": (1, -1)},
        {"epochs": (-1, 0)},
        {"epochs": (0, -1)},
        {"epochs": (2**31, 0)},
        {"topic_id": b"short"},
    ],
)
def test_nonsense_is_not(wrong: dict[str, object]) -> None:
    """A leader outside the ISR, an ISR outside the assignment, numbers out of range."""
    assert not are_sound([state_of(**SOUND | wrong)])
