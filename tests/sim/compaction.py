"""The scenario of `cluster.py`, with topics that are compacted all the time.

Producers write records of few keys, some of them tombstones, and no consumer reads these topics.
Segments are small, and each broker compacts its own logs by itself, while brokers are killed, lose
power, cut logs and change leaders. `compacted_tables.Table` says what each replica must still hold.

How long a tombstone stays is a matter of the brokers' clocks, each compared with the horizon that
another broker may have set. So in every other seed the clocks agree, and the time is judged.
"""

from collections.abc import Sequence

from minibroker.client.admin import NewTopic
from minibroker.testing.cluster import SimulatedWorld
from tests.sim.cluster import Scenario
from tests.sim.compacted_tables import Table
from tests.sim.faults import Chaos
from tests.sim.sights import decode_keyed
from tests.sim.workload import REPLICAS, produce_to_tables

TABLES = 2
RETENTION_S = 2.0


class AgreeingClocks(Chaos):
    """All faults but wrong clocks."""

    async def _shift_clock(self) -> None:
        """Leave them as they are."""


class CompactionScenario(Scenario):
    """See the head of this module."""

    @property
    def chaos_type(self) -> type[Chaos]:
        """Which faults come."""
        return AgreeingClocks if self._do_clocks_agree else Chaos

    @property
    def _do_clocks_agree(self) -> bool:
        return self.seed % 2 == 0

    produce_to_crowd = staticmethod(produce_to_tables)

    def draw_settings(self, world: SimulatedWorld) -> dict[str, str]:
        """As ever, but for compaction and the size of segments."""
        settings = super().draw_settings(world)
        rng = world.rng("compaction")
        return settings | {
            "log.segment.bytes": rng.choice(("500", "1000", "2000")),
            "log.cleaner.backoff.ms": rng.choice(("50", "300")),
            "log.cleaner.dedupe.buffer.size": rng.choice(("600", "100000")),
            "log.segment.delete.delay.ms": rng.choice(("0", "1000")),
        }

    def draw_crowd(self, world: SimulatedWorld) -> tuple[NewTopic, ...]:
        """The topics that are compacted."""
        configs = {
            "cleanup.policy": "compact",
            "min.cleanable.dirty.ratio": "0.01",
            "delete.retention.ms": f"{RETENTION_S * 1000:.0f}",
        }
        return tuple(
            NewTopic(f"table-{number}", 1, REPLICAS, configs=configs) for number in range(TABLES)
        )

    def draw_tables(self, crowd: Sequence[NewTopic]) -> dict[str, Table]:
        """All of them."""
        retention_s = RETENTION_S if self._do_clocks_agree else 0.0
        return {topic.name: Table(decode_keyed, retention_s) for topic in crowd}
