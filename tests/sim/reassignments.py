"""The scenario of `cluster.py`, in which partitions of the topic that stays move between brokers.

A client draws reassignments, replaces some that are under way and cancels others, through all
faults. Another one throttles replication. At rest every partition has the replicas of its last
target and nobody else has any, and the tightest throttle leaves the in-sync sets as they are. The
checkers judge all records as in `cluster.py`. Few partitions move at a time in some seeds.
"""

from minibroker.testing.cluster import SimulatedWorld
from tests.sim.cluster import Scenario


class ReassignmentsScenario(Scenario):
    """See the head of this module."""

    reassigns = True
    broker_counts = (4, 4, 5)

    def draw_settings(self, world: SimulatedWorld) -> dict[str, str]:
        """As ever, but for how many partitions move at a time."""
        settings = super().draw_settings(world)
        limit = world.rng("reassignments").choice(("1", "2", "20"))
        return settings | {"num.concurrent.partition.movements": limit}
