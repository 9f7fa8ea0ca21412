"""The laws of docs/scale.md: how what a cluster says to itself grows with its brokers."""

from collections.abc import Mapping

import pytest

from minibroker.testing.cluster import simulate
from tests.bench.scale import IDLE_S, REPLICAS, Event, Scenario
from tests.support.seeds import rest_in_soak

HEARTBEATS = IDLE_S * 4  # broker.heartbeat.interval.ms is 250
WAITS = IDLE_S * 2  # replica.fetch.wait.max.ms is 500


def events_of(brokers: int, partitions: int) -> Mapping[str, Event]:
    """What each event cost, by its name."""
    found: list[Event] = []
    simulate(Scenario(brokers, partitions, found.append).live, 1)
    return {event.name: event for event in found}


@pytest.mark.parametrize("brokers", rest_in_soak((3, 5), 1))
def test_what_is_said_grows_as_the_page_says(brokers: int) -> None:
    """Probes and fetches at rest, and the orders after each event."""
    partitions = 5 * brokers
    events = events_of(brokers, partitions)
    others = brokers - 1
    idle = events[f"idle for {IDLE_S:g} s"]
    assert idle.apis["PROBE"].messages == others * HEARTBEATS
    assert idle.sent.messages == 0
    fetches = idle.apis["FETCH"].messages + idle.others.get("FETCH", idle.sent).messages
    assert fetches == brokers * (REPLICAS - 1) * WAITS
    assert idle.store["renewals"].messages == brokers * HEARTBEATS
    one = events["one partition more"]
    assert one.apis["UPDATE_METADATA"].messages == others
    assert one.apis["LEADER_AND_ISR"].messages in (REPLICAS - 1, REPLICAS)
    failed = events["a broker fails"]
    assert failed.apis["UPDATE_METADATA"].messages == others - 1
    assert failed.store["transactions"].messages == 1
    held = REPLICAS * partitions // brokers  # and perhaps the one more
    assert failed.store["entries written"].messages in (held, held + 1)
    again = events["the controller fails"]
    assert again.apis["UPDATE_METADATA"].messages == others - 1
