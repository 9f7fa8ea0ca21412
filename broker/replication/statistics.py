"""Statistics of a replica: its state at one moment, and its traffic since it was opened.

The counts are plain ints that only grow; a reader computes a rate from two samples. Hot paths
(append, fetch answers) update them, so updating does nothing but add.
"""

from typing import NamedTuple

from minibroker.broker.log.outcomes import LogStatistics
from minibroker.broker.replication.roles import Leader
from minibroker.protocol.types import TopicPartition


class Traffic:
    """The traffic of one replica. Sizes in bytes, of batches as they are stored.

    `records_in` and `bytes_in` came from producers, `bytes_out` went to consumers,
    `bytes_to_followers` to followers; `bytes_from_leader` came from the leader.
    """

    __slots__ = ("bytes_from_leader", "bytes_in", "bytes_out", "bytes_to_followers", "records_in")

    def __init__(self) -> None:
        self.records_in = 0
        self.bytes_in = 0
        self.bytes_out = 0
        self.bytes_to_followers = 0
        self.bytes_from_leader = 0

    def add(self, other: "Traffic") -> None:
        """Add the counts of another one."""
        self.records_in += other.records_in
        self.bytes_in += other.bytes_in
        self.bytes_out += other.bytes_out
        self.bytes_to_followers += other.bytes_to_followers
        self.bytes_from_leader += other.bytes_from_leader

    def statistics(self) -> "TrafficStatistics":
        """Return the counts now."""
        return TrafficStatistics(
            self.records_in,
            self.bytes_in,
            self.bytes_out,
            self.bytes_to_followers,
            self.bytes_from_leader,
        )


class TrafficStatistics(NamedTuple):
    """The counts of a `Traffic` at one moment."""

    records_in: int
    bytes_in: int
    bytes_out: int
    bytes_to_followers: int
    bytes_from_leader: int


class FollowerStatistics(NamedTuple):
    """What a leader knows of a follower at one moment.

    `log_end` is the follower's log end as of its last fetch in this term (the remote LEO), -1
    before the first one. The times are in seconds of the broker's clock: when the follower last
    fetched, and when it last had all that the leader had; minus infinity: never.
    """

    broker_id: int
    log_end: int
    fetched_at: float
    caught_up_at: float


def followers_of(leader: Leader) -> tuple[FollowerStatistics, ...]:
    """Return what a leader knows of each follower, in the order of assignment."""
    return tuple(
        FollowerStatistics(replica, known.log_end, known.fetched_at, known.caught_up_at)
        for replica in leader.replicas
        if (known := leader.progress_of(replica)) is not None
    )


class ReplicaStatistics(NamedTuple):
    """One replica at one moment.

    `role` is "leader", "follower", "failed" (a follower that stopped copying) or "offline". `lag`
    is how many committed records are missing here, as far as is known. Only a leader knows `isr`,
    `replicas`, `needed` (how many in-sync replicas acks=all needs) and `followers`; elsewhere they
    are empty or 0. `flush` is the mode of `flusher.py`.
    """

    name: TopicPartition
    role: str
    leader_epoch: int
    high_watermark: int
    last_stable_offset: int
    lag: int
    isr: tuple[int, ...]
    replicas: tuple[int, ...]
    needed: int
    flush: str
    log: LogStatistics
    traffic: TrafficStatistics
    followers: tuple[FollowerStatistics, ...]

    @property
    def is_leader(self) -> bool:
        """Whether it accepts appends and serves reads."""
        return self.role == "leader"
