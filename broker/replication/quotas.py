"""Replication quotas (KIP-73): how fast this broker copies throttled replicas that lack records.

A broker has two quotas: one for what it sends as a leader, one for what it receives as a follower.
A quota is a rate in bytes per second, and the bytes of the last seconds. It never delays a copy
that is under way. Once the measured rate is above the limit, the caller moves no more bytes of
throttled replicas until it is below again. So one answer may pass the limit, and later ones wait
for as long as that takes to even out.

The rate is measured as Kafka measures it: bytes are counted in samples of `WINDOW_S`, of which the
last `WINDOW_COUNT` are kept, and divided by the time since the oldest of them began.

Only a replica that is not in sync may be held back (`ReplicationQuotas.holds_back` at the leader,
`may_throttle_copy` at the follower). An in-sync replica that is copied slowly would delay every
acks=all, and would leave the in-sync set. Its bytes count in the quota all the same.
"""

import math
from collections import deque
from typing import Final, NamedTuple

from minibroker.broker.replication.follower import Follower
from minibroker.broker.replication.partition import Partition
from minibroker.broker.replication.roles import Leader

WINDOW_S: Final = 1.0
WINDOW_COUNT: Final = 11
# The shortest and the longest time until a caller looks at a quota again: the limit may change.
RETRY_S_MIN: Final = 0.01
RETRY_S_MAX: Final = 1.0


class QuotaStatistics(NamedTuple):
    """A quota at one moment: its limit and its measured rate (bytes/s), and all bytes so far. The
    limit is infinity if there is none."""

    limit: float
    rate: float
    bytes: int


class ReplicationQuota:
    """A limit of bytes per second, and the bytes that were moved; see the head of this module.

    `limit` may be set at any time; infinity: no limit.
    """

    __slots__ = ("_bytes", "_samples", "limit")

    def __init__(self, limit: float = math.inf) -> None:
        self.limit = limit
        self._bytes = 0
        # The time at which each sample begins, and its bytes; the oldest first.
        self._samples: deque[tuple[float, int]] = deque()

    def record(self, size: int, now: float) -> None:
        """Count bytes of a throttled replica that were moved."""
        self._bytes += size
        self._drop_old(now)
        if self._samples and now - self._samples[-1][0] < WINDOW_S:
            begun, before = self._samples.pop()
            self._samples.append((begun, before + size))
        else:
            self._samples.append((now, size))

    def rate(self, now: float) -> float:
        """Return the measured rate in bytes per second."""
        self._drop_old(now)
        if not self._samples:
            return 0.0
        elapsed = max(now - self._samples[0][0], WINDOW_S)
        return sum(size for _, size in self._samples) / elapsed

    def is_exceeded(self, now: float) -> bool:
        """Whether the measured rate is above the limit."""
        return self.limit != math.inf and self.rate(now) > self.limit

    def retry_at(self, now: float) -> float:
        """Return when to look again at a quota that is exceeded: when it is expected to be below
        its limit, if nothing else is recorded, but at most `RETRY_S_MAX` from now."""
        self._drop_old(now)
        wait_s = RETRY_S_MAX
        if self._samples and self.limit > 0:
            size = sum(size for _, size in self._samples)
            wait_s = self._samples[0][0] + max(size / self.limit, WINDOW_S) - now
        return now + min(max(wait_s, RETRY_S_MIN), RETRY_S_MAX)

    def statistics(self, now: float) -> QuotaStatistics:
        """Return the limit and the measured rate now."""
        return QuotaStatistics(self.limit, self.rate(now), self._bytes)

    def _drop_old(self, now: float) -> None:
        while self._samples and now - self._samples[0][0] >= WINDOW_COUNT * WINDOW_S:
            self._samples.popleft()


def may_throttle_copy(partition: Partition, broker_id: int) -> bool:
    """Whether the quota of this broker, a follower, may hold its copy back: it is not in sync, as
    far as it knows."""
    role = partition.role
    return (
        partition.settings.throttles_follower(partition.topic_partition.partition, broker_id)
        and isinstance(role, Follower)
        and broker_id not in role.isr
        and not role.is_at_known_end(partition.log)
    )


class ReplicationQuotas(NamedTuple):
    """The quotas of a broker: of replication, and of moves between its log directories."""

    broker_id: int
    leader: ReplicationQuota
    follower: ReplicationQuota
    moves: ReplicationQuota

    def holds_back(self, partition: Partition, replica_id: int, now: float) -> bool:
        """Whether the leader's quota leaves nothing for a follower now. It may hold back only one
        that is not in sync, nor about to be."""
        role = partition.role
        return (
            self.leader.is_exceeded(now)
            and self._throttles_leader(partition)
            and isinstance(role, Leader)
            and not role.must_keep_up(replica_id)
        )

    def record_sent(self, partition: Partition, size: int, now: float) -> None:
        """Count bytes that this broker, the leader, sends to a follower."""
        if self._throttles_leader(partition):
            self.leader.record(size, now)

    def record_copied(self, partition: Partition, size: int, now: float) -> None:
        """Count bytes that this broker, a follower, has copied."""
        number = partition.topic_partition.partition
        if size and partition.settings.throttles_follower(number, self.broker_id):
            self.follower.record(size, now)

    def _throttles_leader(self, partition: Partition) -> bool:
        number = partition.topic_partition.partition
        return partition.settings.throttles_leader(number, self.broker_id)
