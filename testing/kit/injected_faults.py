"""What is broken inside of the brokers of a cluster now, as the brokers are told."""

from collections.abc import Callable, Iterable, Mapping
from itertools import count
from typing import Any, Final, Literal

from minibroker.testing.node.faults import BROKERS, CLIENTS, LinkFaults, NodeFaults, RequestRule

Direction = Literal["both", "to", "from"]
DIRECTIONS: Final = ("both", "to", "from")


class InjectedFaults:
    """What is broken inside of the brokers now, each fault at one or more of them."""

    def __init__(self) -> None:
        self._active: dict[int, Mapping[int, NodeFaults]] = {}
        self._numbers = count(1)

    def next_number(self) -> int:
        """A number that no fault has had."""
        return next(self._numbers)

    def add(self, number: int, faults: Mapping[int, NodeFaults]) -> None:
        """Have one more, by broker."""
        self._active[number] = faults

    def remove(self, number: int) -> None:
        """Have one less."""
        self._active.pop(number, None)

    def clear(self) -> None:
        """Have none."""
        self._active.clear()

    def of(self, node_id: int) -> NodeFaults:
        """All that is broken at a broker."""
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
    """What both brokers do for a cut between them. Each breaks the connections that it makes."""
    if direction not in DIRECTIONS:
        raise ValueError(f"direction={direction!r}: it is one of {', '.join(DIRECTIONS)}")
    is_to, is_from = direction in ("both", "to"), direction in ("both", "from")
    if one == other:
        raise ValueError(f"cut({one}, {other}): name two brokers")
    return {
        one: NodeFaults({address_of(other): LinkFaults(is_to, is_from)}),
        other: NodeFaults({address_of(one): LinkFaults(is_from, is_to)}),
    }


def slowed(link: LinkFaults, peers: Iterable[str]) -> NodeFaults:
    """A broker all of whose links are like this one."""
    return NodeFaults(dict.fromkeys((CLIENTS, BROKERS, *peers), link))


def all_lost() -> NodeFaults:
    """A broker that no client reaches."""
    return NodeFaults({CLIENTS: LinkFaults(are_sends_lost=True, are_receives_lost=True)})


def rule_of(number: int, api: str, action: str, **given: Any) -> RequestRule:
    """A rule as the cluster's methods give it. Raises `ValueError`."""
    return RequestRule(number, api.upper(), action, **given)
