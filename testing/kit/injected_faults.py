"""The faults inside the brokers of a cluster, and the faults that each broker must apply."""

from collections.abc import Callable, Iterable, Mapping
from itertools import count
from typing import Final, Literal

from minibroker.testing.node.faults import BROKERS, CLIENTS, LinkFaults, NodeFaults

Direction = Literal["both", "to", "from"]
DIRECTIONS: Final = ("both", "to", "from")


class InjectedFaults:
    """The faults that hold now. Each applies to one broker or more."""

    def __init__(self) -> None:
        self._active: dict[int, Mapping[int, NodeFaults]] = {}
        self._numbers = count(1)

    def next_number(self) -> int:
        """Return a number that no fault has had."""
        return next(self._numbers)

    def add(self, number: int, faults: Mapping[int, NodeFaults]) -> None:
        """Add a fault: what each broker must apply, by broker."""
        self._active[number] = faults

    def remove(self, number: int) -> None:
        """Remove a fault."""
        self._active.pop(number, None)

    def clear(self) -> None:
        """Remove all faults."""
        self._active.clear()

    def of(self, node_id: int) -> NodeFaults:
        """Return all faults of a broker."""
        links: dict[str, LinkFaults] = {}
        found = [each[node_id] for each in self._active.values() if node_id in each]
        for each in found:
            for peer, link in each.links.items():
                links[peer] = links.get(peer, LinkFaults()) | link
        return NodeFaults(
            links,
            any(each.is_store_cut for each in found),
            any(each.is_disk_full for each in found),
            sum(each.disk_delay_ms for each in found),
            tuple(rule for each in found for rule in each.rules),
        )


def cut_links(
    direction: str, one: int, other: int, address_of: Callable[[int], str]
) -> dict[int, NodeFaults]:
    """Return what both brokers must apply for a cut between them. Raises `ValueError`."""
    if direction not in DIRECTIONS:
        raise ValueError(f"direction={direction!r}: expected one of {', '.join(DIRECTIONS)}")
    is_to, is_from = direction in ("both", "to"), direction in ("both", "from")
    if one == other:
        raise ValueError(f"cut({one}, {other}): name two brokers")
    return {
        one: NodeFaults({address_of(other): LinkFaults(is_to, is_from)}),
        other: NodeFaults({address_of(one): LinkFaults(is_from, is_to)}),
    }


def slowed(link: LinkFaults, peers: Iterable[str]) -> NodeFaults:
    """Return the faults of a broker, all links of which have these faults."""
    return NodeFaults(dict.fromkeys((CLIENTS, BROKERS, *peers), link))


def all_lost() -> NodeFaults:
    """Return the faults of a broker that no client reaches."""
    return NodeFaults({CLIENTS: LinkFaults(are_sends_lost=True, are_receives_lost=True)})
