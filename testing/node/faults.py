"""What is broken at one broker: a value, which the kit sends and the broker's process obeys.

It is always the whole: what is not in it is in order. So faults may overlap and be undone in any
order, and a broker that starts again gets the faults that hold at that time.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final, Self

CLIENTS: Final = "clients"  # the name of the link to all clients
BROKERS: Final = "brokers"  # and of that to other brokers, for the connections that they have made
ACTIONS: Final = ("drop_response", "fail", "hold")


class BadOrder(ValueError):
    """An order that cannot be obeyed; the text says why."""


@dataclass(frozen=True, slots=True)
class LinkFaults:
    """What is wrong with the way to a peer, seen from this broker.

    What is lost waits, as what TCP sends again and again does. `delay_ms`, give or take
    `jitter_ms`, and `bytes_per_s` (0: no limit) concern what this broker sends.
    """

    are_sends_lost: bool = False
    are_receives_lost: bool = False
    delay_ms: float = 0
    jitter_ms: float = 0
    bytes_per_s: float = 0

    def __or__(self, other: "LinkFaults") -> "LinkFaults":
        limits = [each.bytes_per_s for each in (self, other) if each.bytes_per_s]
        return LinkFaults(
            self.are_sends_lost or other.are_sends_lost,
            self.are_receives_lost or other.are_receives_lost,
            self.delay_ms + other.delay_ms,
            self.jitter_ms + other.jitter_ms,
            min(limits, default=0),
        )


@dataclass(frozen=True, slots=True)
class RequestRule:
    """Requests that do not get what they ask for.

    `number` tells rules apart. `api` is a name as in `ApiKey`, `action` one of `ACTIONS`, and
    `error`, for "fail", a name as in `ErrorCode` or the number of one of Kafka's. It concerns the
    first `times` requests (0: all) that have this client id, and name this topic and partition;
    None stands for any. Without a client id it concerns clients only, not other brokers.
    """

    number: int
    api: str
    action: str
    times: int = 0
    error: str = ""
    client_id: str | None = None
    topic: str | None = None
    partition: int | None = None


@dataclass(frozen=True, slots=True)
class NodeFaults:
    """All that is broken. `links` has `CLIENTS`, `BROKERS`, and the connections that this broker
    makes to others, by the address (HOST:PORT) of each."""

    links: Mapping[str, LinkFaults] = field(default_factory=dict)
    is_store_cut: bool = False
    is_disk_full: bool = False
    disk_delay_ms: float = 0
    rules: tuple[RequestRule, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """As an order has it."""
        return asdict(self)

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """Read what `as_json` gives. Raises `BadOrder`."""
        try:
            given = dict(value)
            links = {peer: LinkFaults(**link) for peer, link in given.pop("links", {}).items()}
            rules = tuple(RequestRule(**rule) for rule in given.pop("rules", ()))
            found = cls(links=links, rules=rules, **given)
        except (TypeError, ValueError, AttributeError) as error:
            raise BadOrder(f"these are no faults: {error}") from None
        for rule in found.rules:
            if rule.action not in ACTIONS:
                raise BadOrder(f"action {rule.action!r} is none of {', '.join(ACTIONS)}")
        return found
