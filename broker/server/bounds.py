"""What bounds the work and the answer of a request over many items.

* **Each name is answered once.** A request that names a group, a member or a partition several
  times gets one answer for it: a few bytes could otherwise ask for the same megabyte a thousand
  times. Clients put the answers into a table by name, and send no duplicates. Where the items
  differ, as in two commits for one partition, the last one counts, as in Kafka.
* **An answer has at most `ANSWER_BYTES_MAX`.** What is beyond it gets an error.
* **The work pauses** (`broker/turns.py`).
"""

from collections.abc import Callable, Hashable, Iterable
from typing import Final, TypeVar

from minibroker.broker.turns import Turn, Turns
from minibroker.protocol.constants import HEADER_BYTES_MAX

Item = TypeVar("Item")
Key = TypeVar("Key", bound=Hashable)

# About, by the texts and bytes in it. A client takes no header above HEADER_BYTES_MAX.
ANSWER_BYTES_MAX: Final = HEADER_BYTES_MAX * 3 // 4
ITEM_BYTES: Final = 64  # what an item of an answer takes beside its texts


def by_name(
    items: Iterable[Item], name_of: Callable[[Item], Key], turn: Turn
) -> Turns[dict[Key, Item]]:
    """Return the items by name, in the order in which the names first came; of several with one
    name the last."""
    found: dict[Key, Item] = {}
    for item in items:
        found[name_of(item)] = item
        if turn.is_over():
            yield
    return found
