"""Faults inside the brokers of one test's cluster: in the network, the disk and single requests.

A test calls these methods; the processes of the brokers apply the faults (`testing.node`).
"""

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import TypedDict, Unpack

from minibroker.testing.kit.broker_process import BrokerFailed
from minibroker.testing.kit.brokers import Brokers
from minibroker.testing.kit.faults import Fault
from minibroker.testing.kit.injected_faults import Direction, all_lost, cut_links, slowed
from minibroker.testing.kit.state import numbers
from minibroker.testing.node.faults import LinkFaults, NodeFaults, RequestRule


class RequestFilter(TypedDict, total=False):
    """Limits a fault to requests of this client id that name this topic and partition."""

    client_id: str
    topic: str
    partition: int


class Disk:
    """The disk of one broker."""

    def __init__(self, brokers: "BreakableBrokers", node_id: int) -> None:
        self._brokers = brokers
        self._node_id = node_id

    def full(self) -> Fault:
        """Make each write fail, as on a full disk."""
        what = f"fill the disk of {self._node_id}"
        return self._brokers.inject(what, {self._node_id: NodeFaults(is_disk_full=True)})

    def slow(self, ms: float) -> Fault:
        """Make each append and each flush take `ms` longer; an append blocks the broker."""
        what = f"slow the disk of {self._node_id} by {ms:g} ms"
        return self._brokers.inject(what, {self._node_id: NodeFaults(disk_delay_ms=ms)})

    def flip_bit(self, topic: str, partition: int, offset: int) -> Fault:
        """Flip one bit in the stored batch that holds this record; the undo flips it back.

        Raises `ValueError` if the broker has no such record.
        """
        from minibroker.testing.kit.stored import flip_back, flip_bit

        flipped = flip_bit(self._brokers.data_dir(self._node_id), topic, partition, offset)

        def undo() -> None:
            flip_back(flipped)

        what = f"flip a bit of {topic}-{partition} at {offset} on {self._node_id}"
        return self._brokers.add_fault(Fault(what, (self._node_id,), undo))


class BreakableBrokers(Brokers):
    """Brokers with faults inside. Faults may overlap, and a test may undo them in any order."""

    def cut(self, one: int, other: int, direction: Direction = "both") -> Fault:
        """Lose what two brokers send to each other. "to" loses only what `one` sends to `other`,
        "from" only what `other` sends to `one`."""
        faults = cut_links(direction, one, other, self._address_for_brokers)
        way = {"both": "and", "to": "to", "from": "from"}[direction]
        return self.inject(f"cut {one} {way} {other}", faults)

    def cut_from_clients(self, *node_ids: int) -> Fault:
        """Lose what clients and these brokers send to each other. Brokers reach each other."""
        return self._inject_at("cut from clients", node_ids, all_lost())

    def cut_from_store(self, *node_ids: int) -> Fault:
        """Cut these brokers off from the metadata store, which then does not answer them."""
        return self._inject_at("cut from the store", node_ids, NodeFaults(is_store_cut=True))

    def delay(self, *node_ids: int, ms: float, jitter_ms: float = 0) -> Fault:
        """Delay all that these brokers send by `ms`, plus or minus `jitter_ms`."""
        link = LinkFaults(delay_ms=ms, jitter_ms=jitter_ms)
        return self._inject_at(f"delay {ms:g} ms", node_ids, slowed(link, self._peers()))

    def throttle(self, *node_ids: int, bytes_per_s: float) -> Fault:
        """Limit the rate at which these brokers send on each connection."""
        if bytes_per_s <= 0:
            raise ValueError(
                f"bytes_per_s={bytes_per_s}: expected more than 0; cut_from_clients() stops all"
            )
        link = LinkFaults(bytes_per_s=bytes_per_s)
        return self._inject_at(
            f"throttle to {bytes_per_s:g} bytes/s", node_ids, slowed(link, self._peers())
        )

    def reset_connections(self, *node_ids: int) -> None:
        """Reset all connections of these brokers, by default of all that run. Peers may reconnect
        at once."""
        with self._lock:
            chosen = node_ids or tuple(each for each in self.node_ids if each not in self._down)
            brokers = self._running(chosen)
            for broker in brokers:
                if broker.is_paused:
                    raise ValueError(f"broker {broker.node_id} is paused")
            self.note(f"reset connections of {numbers(chosen)}")
            for broker in brokers:
                broker.order("reset_connections")

    def drop_response(
        self, api: str, *, times: int = 1, broker: int = 0, **only: "Unpack[RequestFilter]"
    ) -> Fault:
        """Lose the responses of the next `times` (0: all) requests at each broker.

        The broker serves the request, then closes the connection instead of answering. `api` is
        the name of a request of Kafka's, such as "PRODUCE". `broker` limits the fault to one
        broker. `client_id`, `topic` and `partition` limit it to requests that have them; without a
        client id it applies to the requests of clients, not to those of brokers.
        """
        return self._inject_rule(broker, api, "drop_response", times=times, **only)

    def fail(
        self,
        api: str,
        error: "str | int",
        *,
        times: int = 1,
        broker: int = 0,
        **only: "Unpack[RequestFilter]",
    ) -> Fault:
        """Answer the next `times` (0: all) requests at each broker with an error, and do not serve
        them. Other arguments as for `drop_response`.

        `error` is the name of an error of Kafka's, or its number if minibroker has no name for it.
        """
        return self._inject_rule(broker, api, "fail", error=str(error), times=times, **only)

    def hold(
        self, api: str, *, times: int = 0, broker: int = 0, **only: "Unpack[RequestFilter]"
    ) -> Fault:
        """Hold the next `times` (0: all) requests at each broker; the undo lets the broker serve
        them. Other arguments as for `drop_response`. PRODUCE with acks=0, which has no response, is
        not held."""
        return self._inject_rule(broker, api, "hold", times=times, **only)

    def disk(self, node_id: int) -> Disk:
        """Return the disk of a broker, which has faults of its own."""
        self._broker(node_id)
        return Disk(self, node_id)

    # -- for what the cluster hands out

    def inject(self, text: str, faults: Mapping[int, NodeFaults]) -> Fault:
        """Add these faults, by broker, to those that hold already."""
        if not faults:
            raise ValueError("name at least one broker")
        for node_id in faults:
            self._broker(node_id)
        with self._lock:
            self.check_alive()
            number = self._injected.next_number()
            self._injected.add(number, faults)
            try:
                self._order_all(faults)
            except BaseException:
                self._injected.remove(number)
                with suppress(BrokerFailed):
                    self._order_all(faults)
                raise

        def undo() -> None:
            with self._lock:
                self._injected.remove(number)
                self.note(f"end: {text}")
                self._order_all(faults)

        return self.add_fault(Fault(text, tuple(faults), undo))

    # -- inside

    def _order_all(self, node_ids: Iterable[int]) -> None:
        """Send each broker the faults that it must apply now. Raises the first error at the end."""
        errors: list[BrokerFailed] = []
        for node_id in node_ids:
            try:
                self._order_faults(node_id)
            except BrokerFailed as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def _peers(self) -> list[str]:
        return [self._address_for_brokers(node_id) for node_id in self.node_ids]

    def _inject_at(self, text: str, node_ids: tuple[int, ...], faults: NodeFaults) -> Fault:
        return self.inject(f"{text} {numbers(node_ids)}", dict.fromkeys(node_ids, faults))

    def _inject_rule(
        self,
        broker: int,
        api: str,
        action: str,
        *,
        times: int,
        error: str = "",
        **only: "Unpack[RequestFilter]",
    ) -> Fault:
        number = self._injected.next_number()
        rule = RequestRule(number, api.upper(), action, times, error, **only)
        chosen = (broker,) if broker else tuple(self.node_ids)
        given = {"times": times, "error": error, **only}
        options = "".join(f" {name}={value}" for name, value in given.items() if value != "")
        faults = NodeFaults(rules=(rule,))
        return self.inject(f"{action} {rule.api}{options}", dict.fromkeys(chosen, faults))
