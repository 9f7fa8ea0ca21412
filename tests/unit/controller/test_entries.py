"""Registrations in the store: what is written is read, and so is what older brokers wrote."""

import json
from dataclasses import replace

import pytest

from minibroker.broker.controller import entries
from minibroker.broker.controller.state import (
    Admission,
    BrokerRegistration,
    ClosedLog,
    Departure,
    PartitionRecord,
    Reassignment,
    TopicRecord,
)
from minibroker.broker.metadata.store import NO_LEASE, Entry, StoreError
from minibroker.broker.turns import without_pause
from minibroker.protocol.types import Endpoint, NamedEndpoint, TopicPartition

MOVING = PartitionRecord(
    0, 1, 5, 9, (1, 2), (4, 1, 2, 3), reassignment=Reassignment((1, 2, 3), (4, 1)), former=(5, 6)
)
RESTING = PartitionRecord(1, 1, 5, 9, (1, 2), (1, 2, 3))
TOPIC = TopicRecord(b"i" * 16, "t", {}, (MOVING, RESTING), 3)

REGISTERED = BrokerRegistration(
    node_id=3,
    epoch=7,
    endpoint=Endpoint("inner", 19092),
    directory_id="d" * 32,
    run=2,
    process="p",
    tail_safe=False,
    was_synced=True,
    damaged=frozenset({TopicPartition("t", 1)}),
    listeners=(NamedEndpoint("INSIDE", "inner", 19092), NamedEndpoint("OUTSIDE", "::1", 29092)),
    fence_timeout_ms=2_000,
    rack="zone 1/ä",
)


def stored(**changes: object) -> dict[str, Entry]:
    """The store with this one registration; a field that is changed to None is left out."""
    put = entries.broker_put(REGISTERED, NO_LEASE)
    value = json.loads(put.value) | changes
    kept = {name: each for name, each in value.items() if each is not None}
    return {put.key: Entry(json.dumps(kept).encode(), 7)}


def test_a_registration_is_read_as_it_was_written() -> None:
    """All that a broker says of itself, every listener with its name."""
    assert entries.read_brokers(stored()) == {3: REGISTERED}


def test_a_registration_without_listeners_is_read() -> None:
    """That of a broker from before there were several: it has the one address."""
    found = entries.read_brokers(stored(listeners=None))[3]
    assert found.endpoint == REGISTERED.endpoint
    assert found.listeners == ()


def test_what_an_earlier_version_wrote_tells_that_it_knows_no_fences() -> None:
    """Neither its brokers, which answer no probes, nor its controllers, which send none."""
    assert entries.read_brokers(stored(fence_timeout_ms=None))[3].fence_timeout_ms == 0
    put, _ = entries.active_controller_puts(3, 1, NO_LEASE)
    active = entries.read_active_controller({put.key: Entry(put.value, 7)})
    assert active == entries.ActiveController(3, 7, fences=True)
    earlier = entries.read_active_controller({put.key: Entry(b'{"node_id": 3}', 7)})
    assert earlier == entries.ActiveController(3, 7, fences=False)


@pytest.mark.parametrize("listeners", [7, [["INSIDE", "inner"]], ["INSIDE"]])
def test_listeners_that_make_no_sense_name_the_entry(listeners: object) -> None:
    """Nothing is guessed from a damaged store."""
    with pytest.raises(StoreError, match="its entry 'brokers/3' cannot be read"):
        entries.read_brokers(stored(listeners=listeners))


@pytest.mark.parametrize("count", [0, 3, entries.DEPARTED_LOGS_MAX + 1])
def test_a_departure_is_read_as_it_was_written(count: int) -> None:
    """However many entries it takes."""
    departure = Departure(3, 7, tuple(ClosedLog(b"\1" * 16, n, 2, n * n) for n in range(count)))
    assert entries.read_departures(departed(departure, admitted=7)) == {3: departure}


def test_a_departure_that_does_not_hold_is_not_read() -> None:
    """Its broker came back and was admitted, or not all of it was written."""
    departure = Departure(3, 7, tuple(ClosedLog(b"", n, 2, n) for n in range(5000)))
    assert entries.read_departures(departed(departure, admitted=8)) == {}
    partly = departed(departure, admitted=7)
    del partly["departures/3/1"]
    assert entries.read_departures(partly) == {}


def test_a_rack_is_read_as_it_was_written() -> None:
    """Of a registration, and of the admission that keeps it while the broker is away; without a
    rack the entries are as they were before there were racks."""
    for rack in ("eu-west 1", None):
        registered = replace(REGISTERED, rack=rack)
        admission = Admission(3, 7, "d", 1, "p", rack=rack)
        put, admitted = entries.broker_put(registered, NO_LEASE), entries.admission_put(admission)
        assert entries.read_brokers({put.key: Entry(put.value, 7)}) == {3: registered}
        state = without_pause(entries.read_state({admitted.key: Entry(admitted.value, 9)}))
        assert state.admissions == {3: admission}
        for written in (put, admitted):
            assert ("rack" in json.loads(written.value)) == (rack is not None)


def test_a_rack_that_is_no_text_names_the_entry() -> None:
    """Nothing is guessed from a damaged store."""
    put = entries.admission_put(Admission(3, 7, "d", 1, "p"))
    bad = json.dumps(json.loads(put.value) | {"rack": 1}).encode()
    with pytest.raises(StoreError, match="its entry 'admissions/3' cannot be read"):
        without_pause(entries.read_state({put.key: Entry(bad, 9)}))


def test_a_departure_that_makes_no_sense_names_the_entry() -> None:
    """Nothing is guessed from a damaged store."""
    found = departed(Departure(3, 7, ()), admitted=7)
    found["departures/3/0"] = Entry(b'{"epoch": 7, "parts": 1, "logs": [["0"]]}', 9)
    with pytest.raises(StoreError, match="its entry 'departures/3/0' cannot be read"):
        entries.read_departures(found)


def departed(departure: Departure, admitted: int) -> dict[str, Entry]:
    """The store with it, and with the admission of that epoch."""
    admission = Admission(departure.node_id, admitted, "d", 1, "p")
    puts = [entries.admission_put(admission), *entries.departure_puts(departure)]
    return {put.key: Entry(put.value, 9) for put in puts}


def test_a_reassignment_is_read_as_it_was_written() -> None:
    """A next controller continues it from the store alone."""
    puts = [
        entries.topic_put(TOPIC),
        *(entries.partition_put(TOPIC.id, p) for p in TOPIC.partitions),
    ]
    state = without_pause(entries.read_state({put.key: Entry(put.value, 9) for put in puts}))
    assert state.topics == {"t": TOPIC}
    moving = state.topics["t"].partitions[0]
    assert (moving.original, moving.target, moving.removing) == ((1, 2, 3), (4, 1), (2, 3))


def test_a_partition_from_before_reassignments_has_none() -> None:
    """Its entry has no such fields; nor has that of a partition that rests today."""
    value = json.loads(entries.partition_put(TOPIC.id, RESTING).value)
    assert sorted(value) == ["isr", "leader", "leader_epoch", "partition_epoch", "replicas"]
    assert RESTING.reassignment is None
    assert RESTING.original == RESTING.target == RESTING.replicas


@pytest.mark.parametrize(
    "changes",
    [
        {"reassignment": {"original": [1, 7], "target": [4]}},  # its replicas lack an original one
        {"reassignment": {"target": [4]}},
        {"former": [1]},
    ],
)
def test_a_reassignment_that_makes_no_sense_names_the_entry(changes: dict[str, object]) -> None:
    """Nothing is guessed from a damaged store."""
    put = entries.partition_put(TOPIC.id, MOVING)
    bad = json.dumps(json.loads(put.value) | changes).encode()
    topic = entries.topic_put(TopicRecord(TOPIC.id, "t", {}, (MOVING,)))
    found = {topic.key: Entry(topic.value, 9), put.key: Entry(bad, 9)}
    with pytest.raises(StoreError, match=r"its entry 'partitions/\w+/0' cannot be read"):
        without_pause(entries.read_state(found))
