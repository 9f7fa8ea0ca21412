"""Faults inside of the brokers of one test's cluster: network, disk, single requests.

The broker's process makes them (`testing.node`); this is how a test asks for them.
"""

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, TypedDict, Unpack

from minibroker.testing.kit.broker_process import BrokerFailed
from minibroker.testing.kit.brokers import Brokers
from minibroker.testing.kit.faults import Fault
from minibroker.testing.kit.injected_faults import Direction, all_lost, cut_links, rule_of, slowed
from minibroker.testing.kit.state import numbers
from minibroker.testing.node.faults import LinkFaults, NodeFaults


class Which(TypedDict, total=False):
    """The requests that a fault concerns: all that are not excluded here."""

    client_id: str
    topic: str
    partition: int


class Disk:
    """The disk of one broker."""

    def __init__(self, brokers: "BreakableBrokers", node_id: int) -> None:
        self._brokers = brokers
        self._node_id = node_id

    def full(self) -> Fault:
        """Let nothing be written: each append is an error, as on a disk that is full."""
        what = f"fill the disk of {self._node_id}"
        return self._brokers.inject(what, {self._node_id: NodeFaults(is_disk_full=True)})

    def slow(self, ms: float) -> Fault:
        """Let each append, and each sync, take `ms` more. The broker stands still meanwhile."""
        what = f"slow the disk of {self._node_id} by {ms:g} ms"
        return self._brokers.inject(what, {self._node_id: NodeFaults(disk_delay_ms=ms)})

    def flip_bit(self, topic: str, partition: int, offset: int) -> Fault:
        """Turn one bit round in the batch that holds this record; undone by turning it back.

        Raises `ValueError` where the broker has no such record.
        """
        from minibroker.testing.kit.stored import flip_back, flip_bit

        flipped = flip_bit(self._brokers.data_dir(self._node_id), topic, partition, offset)

        def undo() -> None:
            flip_back(flipped)

        what = f"flip a bit of {topic}-{partition} at {offset} on {self._node_id}"
        return self._brokers.add_fault(what, (self._node_id,), undo)


class BreakableBrokers(Brokers):
    """Brokers that also break inside. Faults may overlap, and are undone in any order."""

    def cut(self, one: int, other: int, direction: Direction = "both") -> Fault:
        """Lose what two brokers send to each other; "to" loses only what `one` sends to `other`,
        "from" only what it would get from there."""
        faults = cut_links(direction, one, other, self._address_for_brokers)
        way = {"both": "and", "to": "to", "from": "from"}[direction]
        return self.inject(f"cut {one} {way} {other}", faults)

    def cut_from_clients(self, *node_ids: int) -> Fault:
        """Lose what clients and these brokers send to each other; brokers reach each other."""
        return self._inject_at("cut from clients", node_ids, all_lost())

    def cut_from_store(self, *node_ids: int) -> Fault:
        """Let these brokers get no answer from the metadata store."""
        return self._inject_at("cut from the store", node_ids, NodeFaults(is_store_cut=True))

    def delay(self, *node_ids: int, ms: float, jitter_ms: float = 0) -> Fault:
        """Send all that these brokers send `ms` later, give or take `jitter_ms`."""
        link = LinkFaults(delay_ms=ms, jitter_ms=jitter_ms)
        return self._inject_at(f"delay {ms:g} ms", node_ids, slowed(link, self._peers()))

    def throttle(self, *node_ids: int, bytes_per_s: float) -> Fault:
        """Send no more than so much on each connection of these brokers."""
        if bytes_per_s <= 0:
            raise ValueError(f"bytes_per_s={bytes_per_s}: it is more than 0; see cut_from_clients")
        link = LinkFaults(bytes_per_s=bytes_per_s)
        return self._inject_at(
            f"throttle to {bytes_per_s:g} bytes/s", node_ids, slowed(link, self._peers())
        )

    def reset_connections(self, *node_ids: int) -> None:
        """Break all connections of these brokers; without a number of all. New ones are possible at
        once."""
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
        self, api: str, *, times: int = 1, broker: int = 0, **which: "Unpack[Which]"
    ) -> Fault:
        """Serve the next `times` such requests at each broker, and break their connections in the
        place of the answer. `api` is a name of Kafka's, "PRODUCE". `which` are `client_id`, `topic`
        and `partition`; without a client id it concerns clients only, not other brokers."""
        return self._inject_rule(broker, api, "drop_response", times=times, **which)

    def fail(
        self,
        api: str,
        error: "str | int",
        *,
        times: int = 1,
        broker: int = 0,
        **which: "Unpack[Which]",
    ) -> Fault:
        """Answer the next `times` such requests at each broker with an error, unserved.

        An error is a name of Kafka's, or a number where this broker has no name for it.
        """
        return self._inject_rule(broker, api, "fail", error=str(error), times=times, **which)

    def hold(self, api: str, *, times: int = 0, broker: int = 0, **which: "Unpack[Which]") -> Fault:
        """Serve the next `times` such requests at each broker, or all, when this is undone.
        PRODUCE with acks=0, which has no answer, is not held."""
        return self._inject_rule(broker, api, "hold", times=times, **which)

    def disk(self, node_id: int) -> Disk:
        """The disk of a broker, which can be full or slow, or lose a bit."""
        self._broker(node_id)
        return Disk(self, node_id)

    # -- what these do it by

    def inject(self, text: str, faults: Mapping[int, NodeFaults]) -> Fault:
        """Have brokers obey these faults, beside those that there are."""
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

        return self.add_fault(text, tuple(faults), undo)

    def add_fault(self, text: str, node_ids: tuple[int, ...], undo: Callable[[], None]) -> Fault:
        """Take down a fault that is there now, for the timeline and for the end of the test."""
        fault = Fault(text, node_ids, undo)
        self._faults.append(fault)
        self.note(text)
        return fault

    def _order_all(self, node_ids: Iterable[int]) -> None:
        """Have brokers obey the faults that there are now. Raises the first failure at the end."""
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

    def _inject_rule(self, broker: int, api: str, action: str, **given: Any) -> Fault:
        rule = rule_of(self._injected.next_number(), api, action, **given)
        chosen = (broker,) if broker else tuple(self.node_ids)
        said = {name: value for name, value in given.items() if value not in (None, "")}
        which = "".join(f" {name}={value}" for name, value in said.items())
        faults = NodeFaults(rules=(rule,))
        return self.inject(f"{action} {rule.api}{which}", dict.fromkeys(chosen, faults))
