"""What a replica tells of itself at one moment, and what went through it since it is here.

The counts are plain ints that grow; whoever wants a rate looks twice. They are noted where records
are appended and where answers are made, so nothing else is done with them there.
"""

from typing import NamedTuple

from minibroker.broker.log.outcomes import LogStatistics
from minibroker.protocol.types import TopicPartition


class Traffic:
    """What went through one replica. Sizes in bytes, of batches as they are stored.

    `records_in` and `bytes_in` came from producers, `bytes_out` went to consumers; followers were
    sent `bytes_to_followers`, and from a leader came `bytes_from_leader`.
    """

    __slots__ = ("bytes_from_leader", "bytes_in", "bytes_out", "bytes_to_followers", "records_in")

    def __init__(self) -> None:
        self.records_in = 0
        self.bytes_in = 0
        self.bytes_out = 0
        self.bytes_to_followers = 0
        self.bytes_from_leader = 0

    def add(self, other: "Traffic") -> None:
        """Count what another one has seen as well."""
        self.records_in += other.records_in
        self.bytes_in += other.bytes_in
        self.bytes_out += other.bytes_out
        self.bytes_to_followers += other.bytes_to_followers
        self.bytes_from_leader += other.bytes_from_leader

    def statistics(self) -> "TrafficStatistics":
        """The counts of now."""
        return TrafficStatistics(
            self.records_in,
            self.bytes_in,
            self.bytes_out,
            self.bytes_to_followers,
            self.bytes_from_leader,
        )


class TrafficStatistics(NamedTuple):
    """As `Traffic`, at one moment."""

    records_in: int
    bytes_in: int
    bytes_out: int
    bytes_to_followers: int
    bytes_from_leader: int


class ReplicaStatistics(NamedTuple):
    """One replica at one moment.

    `role` is "leader", "follower", "failed" (a follower that does not copy any more) or "offline".
    `lag` is how many committed records are missing here, as far as is known. `isr`, `replicas` and
    `needed` (how many of them acks=all needs in sync) are known to the leader alone, else empty, 0.
    `flush` is when its records are forced to the disk.
    """

    name: TopicPartition
    role: str
    leader_epoch: int
    high_watermark: int
    lag: int
    isr: tuple[int, ...]
    replicas: tuple[int, ...]
    needed: int
    flush: str
    log: LogStatistics
    traffic: TrafficStatistics

    @property
    def is_leader(self) -> bool:
        """Whether it takes appends and serves reads."""
        return self.role == "leader"
