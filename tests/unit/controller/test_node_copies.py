"""A data directory that was copied: two processes that are each other's former life (BRK-08)."""

import pytest

from minibroker.broker.controller.broker_session import NodeIdTaken
from tests.unit.controller.fleet import FakeBroker, open_fleet


async def test_who_is_replaced_by_a_copy_ends(autojump_clock):
    """A registration that replaced this broker's own is nobody's but a copy's: this one ends and
    says so, instead of leading on for nobody; the other one stays registered."""
    fleets = []
    with pytest.RaisesGroup(
        pytest.RaisesExc(NodeIdTaken, match=r"at copy:9092.* a copy of its data directory"),
        flatten_subgroups=True,
    ):
        async with open_fleet(1) as fleet:
            fleets.append(fleet)
            await fleet.create()
            copy = FakeBroker(fleet, 1, {})
            copy.name, copy.directory_id, copy.run = "copy", fleet[1].directory_id, fleet[1].run
            await copy.start()
            await fleet.until(never, "the first one ends")
    (entry,) = (await fleets[0].store.get("brokers/1")).entries.values()
    assert '"copy"' in str(entry.value)


async def never():
    """What does not come to be."""
    return False
