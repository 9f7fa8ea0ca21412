"""The story of one seed as in `cluster.py`, where clients delete records of some topics meanwhile.

Those topics are filled all the time, and nobody reads them. Whatever fails, a deletion that was
answered stays: no replica that leads or may lead begins below it. What was not deleted is judged as
ever. Segments are small, and retention looks often.
"""

from minibroker.client.admin import NewTopic
from minibroker.testing.cluster import SimulatedWorld
from tests.sim.cluster import Story
from tests.sim.workload import REPLICAS

TOPICS = 2


class DeletionsStory(Story):
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
