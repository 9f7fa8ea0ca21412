"""A frame of a fuzz, and the changes of messages that both wires share."""

from typing import Any, Final, NamedTuple

# More elements than any legal request of a client has, and fewer than the limit of a frame.
MANY: Final = 300
THOUSANDS: Final = 20_000
LONG_TEXT: Final = "x" * 32_767
LONG_BYTES: Final = bytes(70_000)


class Frame(NamedTuple):
    """A request as it is sent, with its length. `what` says how it was made.

    `is_whole`: the length is right, so that the broker knows where the next frame begins.
    """

    data: bytes
    api_key: int
    version: int
    what: str
    group: str = ""
    is_whole: bool = True


class Twist(NamedTuple):
    """A change of a valid message at a field's path: the value `value`, or, for an array, its
    elements `times` over. It is still a message of this type."""

    path: str
    value: Any = None
    times: int = 0
    is_value: bool = True

    def __str__(self) -> str:
        shown = repr(self.value) if self.is_value else f"its elements {self.times} times"
        return f"{self.path} = {shown[:40]}"


def boundaries(bits: int) -> tuple[int, ...]:
    """The numbers at which code goes wrong, of a signed integer of so many bits."""
    ends = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    return (ends[0], ends[0] + 1, -2, -1, 0, 1, ends[1] - 1, ends[1])
