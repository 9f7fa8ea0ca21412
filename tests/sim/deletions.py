"""The scenario of `cluster.py`, in which clients also delete records of some topics.

Producers write to these topics all the time, and no consumer reads them. A deletion that a broker
acknowledged must stay, whatever fails: no replica that leads or may lead begins below it. The
checkers judge all other records as in `cluster.py`. Segments are small, and retention runs often.
"""

from minibroker.client.admin import NewTopic
from minibroker.testing.cluster import SimulatedWorld
from tests.sim.cluster import Scenario
from tests.sim.workload import REPLICAS

TOPICS = 2


class DeletionsScenario(Scenario):
    """See the head of this module."""

    deletes_records = True

    def draw_settings(self, world: SimulatedWorld) -> dict[str, str]:
        """As ever, but for retention and the size of segments."""
        settings = super().draw_settings(world)
        rng = world.rng("deletions")
        return settings | {
            "log.segment.bytes": rng.choice(("500", "2000", "20000")),
            "log.retention.check.interval.ms": rng.choice(("300", "3000")),
            "log.segment.delete.delay.ms": "1000",
        }

    def draw_crowd(self, world: SimulatedWorld) -> tuple[NewTopic, ...]:
        """The topics whose records are deleted."""
        return tuple(NewTopic(f"trimmed-{number}", 1, REPLICAS) for number in range(TOPICS))
