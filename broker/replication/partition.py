"""One replica of one partition: its log, its role, and the epochs under which it has that role.

All that happens to a partition goes through here, and nothing in here waits: checks, append,
producer state, epochs and the high watermark change together or not at all, with no lock. What a
change means for others (waiting requests, the next fsync) is not known here; `Replicas` does that.

`version` orders what the controller says: (leader epoch, partition epoch), which never falls. A
leader epoch is a term of one leader; a partition epoch counts every change of leader, in-sync set
or assignment.
"""

from minibroker.broker.config import TopicConfig
from minibroker.broker.log.log import Log
from minibroker.broker.log.outcomes import Appended
from minibroker.broker.log.validate import Refused
from minibroker.broker.metadata.model import PartitionState
from minibroker.broker.replication.roles import Leader, Offline
from minibroker.protocol.constants import ACKS_ALL, NO_EPOCH, NO_NODE, NO_OFFSET, ErrorCode
from minibroker.protocol.types import OffsetAndEpoch, TopicPartition


class Partition:
    """See the head of this module. `settings` may be replaced at any time."""

    __slots__ = ("_broker_id", "log", "role", "settings", "topic_id", "topic_partition", "version")

    def __init__(self, broker_id: int, log: Log, settings: TopicConfig) -> None:
        self._broker_id = broker_id
        self.topic_partition: TopicPartition = log.topic_partition
        self.topic_id = log.topic_id
        self.log = log
        self.settings = settings
        self.version = (NO_EPOCH, NO_EPOCH)
        self.role: Leader | Offline = Offline(
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
            "it has no role yet",
            log.checkpointed_high_watermark,
        )

    # -- what it is

    @property
    def leader_epoch(self) -> int:
        """The newest term this replica knows of, whoever leads in it."""
        return self.version[0]

    @property
    def high_watermark(self) -> int:
        """First offset that is not known to be committed."""
        return self.role.high_watermark

    @property
    def is_leader(self) -> bool:
        """Whether it takes appends and serves reads."""
        return isinstance(self.role, Leader)

    @property
    def is_synced_before_ack(self) -> bool:
        """With `flush=always` only what is durable counts, here as at the followers."""
        return self.settings.flush == "always"

    @property
    def own_end(self) -> int:
        """How far this replica has the log, as it counts for the high watermark."""
        return self.log.durable_end if self.is_synced_before_ack else self.log.log_end

    def leader(self, leader_epoch: int = NO_EPOCH) -> Leader:
        """The role of leader, for who believes in `leader_epoch` (-1: not checked).

        Raises `Refused`: FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH, or what being offline means.
        The epoch is looked at first: it tells the asker more than "not leader" does.
        """
        if leader_epoch not in (NO_EPOCH, self.leader_epoch):
            if leader_epoch < self.leader_epoch:
                raise Refused(ErrorCode.FENCED_LEADER_EPOCH, f"now {self.leader_epoch}")
            raise Refused(ErrorCode.UNKNOWN_LEADER_EPOCH, f"still {self.leader_epoch}")
        role = self.role
        if isinstance(role, Leader):
            return role
        raise Refused(role.error, f"{self.topic_partition}: {role.reason}")

    # -- how it changes role

    def become_leader(self, state: PartitionState) -> None:
        """Lead, or go on leading with another in-sync set or assignment.

        A new term leaves its mark in the log's epochs even if nothing is ever written in it.
        """
        role = self.role
        if isinstance(role, Leader) and role.leader_epoch == state.leader_epoch:
            role.update(state)
        else:
            epoch_start = self.log.log_end
            self.log.assign_epoch(state.leader_epoch, epoch_start)
            self.role = Leader(self._broker_id, state, epoch_start, role.high_watermark)
        self._take_version(state)
        self.advance()

    def go_offline(self, error: ErrorCode, reason: str) -> None:
        """Serve nothing until the next role."""
        self.role = Offline(error, reason, self.high_watermark)

    def lose_leader(self, state: PartitionState) -> None:
        """Somebody else leads, or nobody does: perhaps because this log lost records."""
        damage = self.log.damage
        if damage is not None:
            self.go_offline(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"records are lost from offset {damage.offset} on ({damage.reason}); to go on"
                " with what is left: minibroker partition recover"
                f" {state.topic} {state.partition}",
            )
        elif state.leader == NO_NODE:
            self.go_offline(ErrorCode.NOT_LEADER_OR_FOLLOWER, "nobody leads it")
        else:
            self.go_offline(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"broker {state.leader} leads it")
        self._take_version(state)

    def _take_version(self, state: PartitionState) -> None:
        version = (state.leader_epoch, state.partition_epoch)
        assert version >= self.version, "a controller's word never goes back"
        self.version = version

    # -- what it does as a leader

    def append_as_leader(self, batch: memoryview, acks: int, now_ms: int) -> Appended:
        """Append one producer's batch, or find that it was appended before.

        Raises `Refused`, and then nothing is written: not leader, too few in-sync replicas for
        `acks`, or what the log says of the batch.
        """
        leader = self.leader()
        if acks == ACKS_ALL and not leader.is_isr_large_enough(self.settings.min_insync_replicas):
            raise Refused(
                ErrorCode.NOT_ENOUGH_REPLICAS,
                f"{len(leader.isr)} of {self.settings.min_insync_replicas} replicas are in sync",
            )
        appended = self.log.append_as_leader(batch, leader.leader_epoch, now_ms)
        self.advance()
        return appended

    def advance(self) -> bool:
        """Raise the high watermark as far as it can go; say whether it rose."""
        role = self.role
        return isinstance(role, Leader) and role.advance(
            self.own_end, self.settings.min_insync_replicas
        )

    def readable_end(self, replica_id: int, leader_epoch: int = NO_EPOCH) -> int:
        """Where a reader must stop: a consumer at the high watermark, a follower at the log end.

        Raises `Refused` as `leader` does, and for a follower it is not assigned to: that one is
        told to look for newer metadata if it does know this term.
        """
        leader = self.leader(leader_epoch)
        if replica_id < 0:
            return leader.high_watermark
        if replica_id not in leader.replicas or replica_id == self._broker_id:
            code = ErrorCode.NOT_LEADER_OR_FOLLOWER
            if leader_epoch != NO_EPOCH:
                code = ErrorCode.UNKNOWN_LEADER_EPOCH
            raise Refused(code, f"broker {replica_id} is not a follower of it")
        return self.log.log_end

    def note_fetch(self, replica_id: int, offset: int) -> bool:
        """A follower has everything below `offset`; say whether the high watermark rose."""
        self.leader().note_fetch(replica_id, offset)
        return self.advance()

    def divergence(self, fetch_offset: int, last_fetched_epoch: int) -> OffsetAndEpoch | None:
        """Where the asker's log parts from this one, or None where it does not.

        The answer is the largest epoch here that is not above the asker's, and where it ended.
        Raises `Refused`: OFFSET_OUT_OF_RANGE below the log start, which comes first;
        UNKNOWN_LEADER_EPOCH for an epoch that is newer than any here.
        """
        if fetch_offset < self.log.log_start:
            raise Refused(ErrorCode.OFFSET_OUT_OF_RANGE, f"log starts at {self.log.log_start}")
        if last_fetched_epoch == NO_EPOCH:
            return None
        ours = self.log.epochs.end_offset_for(last_fetched_epoch, self.log.log_end)
        if ours.offset == NO_OFFSET:
            raise Refused(ErrorCode.UNKNOWN_LEADER_EPOCH, f"no epoch {last_fetched_epoch} here")
        if ours.leader_epoch < last_fetched_epoch or ours.offset < fetch_offset:
            return ours
        return None
