"""The scenario of `group_scenario.py`, with `__consumer_offsets` compacted all the time.

Its segments are small, so that coordinators, and the followers that replay with them, read logs
that were compacted, while brokers are killed and lose power. At the end the log of each replica,
replayed from its beginning, says what the coordinator tells.

The brokers' clocks agree. A broker whose clock is wrong drops tombstones early, or has the others
drop them: a follower that was behind then keeps members that have left, as in Kafka.
"""

from collections.abc import Iterator

from minibroker.protocol.constants import OFFSETS_TOPIC
from minibroker.protocol.records.batch import iterate_headers
from minibroker.protocol.records.record import Record
from minibroker.testing.cluster import SimulatedWorld
from tests.sim.compacted_tables import Table
from tests.sim.compaction import AgreeingClocks
from tests.sim.group_scenario import GroupChaos, GroupScenario
from tests.sim.sights import Watcher, decode_batches, decode_keyed

# Of tombstones: longer than the faults of a seed. A follower that was behind for longer would keep
# members whose tombstones its leader has dropped.
RETENTION_S = 10


class AgreeingChaos(AgreeingClocks, GroupChaos):
    """All faults but wrong clocks."""


class CompactedGroupScenario(GroupScenario):
    """See the head of this module. `filler_count` is how many batches without records were left in
    the end."""

    filler_count = 0

    @property
    def chaos_type(self) -> type[GroupChaos]:
        """Which faults come."""
        return AgreeingChaos

    def draw_settings(self, world: SimulatedWorld) -> dict[str, str]:
        """As ever, but for the offsets topic and its compaction."""
        settings = super().draw_settings(world)
        rng = world.rng("compaction")
        return settings | {
            "offsets.topic.num.partitions": "1",  # a table is of one partition
            "offsets.topic.segment.bytes": rng.choice(("2000", "3000")),
            "log.cleaner.backoff.ms": rng.choice(("50", "300")),
            "log.cleaner.min.cleanable.ratio": "0.01",
            "log.cleaner.dedupe.buffer.size": rng.choice(("600", "100000")),
            "log.cleaner.delete.retention.ms": str(1000 * RETENTION_S),
            "log.segment.delete.delay.ms": rng.choice(("0", "1000")),
        }

    def draw_tables(self) -> dict[str, Table]:
        """The offsets topic."""
        return {OFFSETS_TOPIC: Table(decode_keyed, RETENTION_S)}

    def stored_commits(self, watcher: Watcher) -> Iterator[list[Record]]:
        """What each replica holds."""
        for replica in watcher.replicas(OFFSETS_TOPIC):
            data = replica.read(replica.log_start, replica.log_end)
            headers = [header for _, header in iterate_headers(data)]
            self.filler_count += sum(not header.record_count for header in headers)
            yield decode_batches(data)
