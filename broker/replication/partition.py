"""One replica of one partition: its log, its role, and the epochs under which it has that role.

Every change of a partition goes through this module, and nothing here waits: checks, append,
producer state, epochs, in-sync set and high watermark change together or not at all, without a
lock. `Effects` returns what a change means for others (waiting requests and the controller);
`Replicas` carries it out. The exception is a leader's answer: `Replicas.apply_answer` applies it
through the `Follower` role.

`version` is (leader epoch, partition epoch). It numbers the controller's orders and never falls. A
leader epoch is a term of one leader; a partition epoch counts every change of leader, in-sync set
or assignment.

Tests and the lab replace rules by subclassing: `leader_type` and `follower_type` here, and
`is_news` for the order of orders.
"""

from typing import ClassVar, Final, NamedTuple, TypeAlias

from minibroker.broker.config import TopicConfig
from minibroker.broker.errors import Refused
from minibroker.broker.log.log import Log
from minibroker.broker.log.outcomes import Appended
from minibroker.broker.log.verifications import Verification
from minibroker.broker.replication.follower import Follower
from minibroker.broker.replication.roles import (
    Committed,
    FollowerFetch,
    IsrProposal,
    Leader,
    LocalBroker,
    Offline,
    Pending,
)
from minibroker.broker.replication.statistics import (
    FollowerStatistics,
    ReplicaStatistics,
    Traffic,
    followers_of,
)
from minibroker.protocol.constants import (
    ACKS_ALL,
    NO_EPOCH,
    NO_NODE,
    NO_OFFSET,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    ErrorCode,
)
from minibroker.protocol.messages.control import PartitionAltered, PartitionState
from minibroker.protocol.messages.transactions import SECOND_PROTOCOL, TransactionMarker
from minibroker.protocol.records.batch import BatchHeader
from minibroker.protocol.records.control import EndMarker
from minibroker.protocol.types import OffsetAndEpoch, TopicPartition

Role: TypeAlias = Leader | Follower | Offline

# The change was not applied, for certain.
NOT_APPLIED: Final = frozenset({ErrorCode.OPERATION_NOT_ATTEMPTED, ErrorCode.INELIGIBLE_REPLICA})
# This leader does not know the newest state; the controller is about to send it.
WAIT_FOR_NEWS: Final = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.INVALID_UPDATE_VERSION,
        ErrorCode.INVALID_REQUEST,
        ErrorCode.NEW_LEADER_ELECTED,
    }
)


class Effects(NamedTuple):
    """What a change means for others: waiting requests, and the controller."""

    high_watermark_rose: bool = False
    proposal: IsrProposal | None = None


NO_EFFECTS: Final = Effects()


class Partition:
    """See the head of this module. `settings` may be replaced at any time."""

    leader_type: ClassVar[type[Leader]] = Leader
    follower_type: ClassVar[type[Follower]] = Follower

    __slots__ = (
        "_local_broker",
        "log",
        "role",
        "settings",
        "topic_partition",
        "traffic",
        "version",
    )

    def __init__(self, local_broker: LocalBroker, log: Log, settings: TopicConfig) -> None:
        self._local_broker = local_broker
        self.topic_partition: TopicPartition = log.topic_partition
        self.log = log
        self.settings = settings
        self.version = (NO_EPOCH, NO_EPOCH)
        self.traffic = Traffic()
        self.role: Role = Offline(
            ErrorCode.NOT_LEADER_OR_FOLLOWER,
            "it has no role yet",
            log.checkpointed_high_watermark,
        )

    # -- what it is

    @property
    def topic_id(self) -> bytes:
        """The topic's id, which tells topics of the same name apart."""
        return self.log.topic_id

    @property
    def leader_epoch(self) -> int:
        """The newest leader epoch that this replica knows of, whichever broker leads in it."""
        return self.version[0]

    @property
    def high_watermark(self) -> int:
        """First offset that is not known to be committed."""
        return self.role.high_watermark

    @property
    def last_stable_offset(self) -> int:
        """The offset below which all transactions are decided, and their markers are committed."""
        return self.log.last_stable_offset(self.high_watermark)

    @property
    def is_leader(self) -> bool:
        """Whether it accepts appends and serves reads."""
        return isinstance(self.role, Leader)

    @property
    def is_synced_before_ack(self) -> bool:
        """Whether only durable records count, here and on the followers (`flush=always`)."""
        return self.settings.flush == "always"

    @property
    def own_end(self) -> int:
        """This replica's log end as it counts for the high watermark: the durable one if
        `is_synced_before_ack`."""
        return self.log.durable_end if self.is_synced_before_ack else self.log.log_end

    def leader(self, leader_epoch: int = NO_EPOCH) -> Leader:
        """Return the leader role, for a client that expects `leader_epoch` (-1: not checked).

        Raises `Refused`: FENCED_LEADER_EPOCH, UNKNOWN_LEADER_EPOCH, or the error of another role.
        The epoch is checked first: such an error tells the client more than "not leader" does.
        """
        if leader_epoch != NO_EPOCH and leader_epoch != self.leader_epoch:
            if leader_epoch < self.leader_epoch:
                raise Refused(ErrorCode.FENCED_LEADER_EPOCH, f"now {self.leader_epoch}")
            raise Refused(ErrorCode.UNKNOWN_LEADER_EPOCH, f"still {self.leader_epoch}")
        role = self.role
        if isinstance(role, Leader):
            return role
        raise Refused(role.error, f"{self.topic_partition}: {role.reason}")

    def follower(self) -> Follower:
        """Return the role of follower, which the replica must have."""
        assert isinstance(self.role, Follower), "only a follower copies"
        return self.role

    def statistics(self) -> ReplicaStatistics:
        """Return the replica's statistics now."""
        role, log, lag, needed = self.role, self.log, 0, 0
        isr: tuple[int, ...] = ()
        replicas: tuple[int, ...] = ()
        followers: tuple[FollowerStatistics, ...] = ()
        kind = "offline"
        if isinstance(role, Leader):
            kind, isr, replicas, followers = "leader", role.isr, role.assigned, followers_of(role)
            needed = min(self.settings.min_insync_replicas, len(replicas))
        elif isinstance(role, Follower):
            kind, lag = "failed" if role.failure else "follower", role.lag(log)
        return ReplicaStatistics(
            name=self.topic_partition,
            role=kind,
            leader_epoch=self.leader_epoch,
            high_watermark=self.high_watermark,
            last_stable_offset=self.last_stable_offset,
            lag=lag,
            isr=isr,
            replicas=replicas,
            needed=needed,
            flush=self.settings.flush,
            log=log.statistics(),
            traffic=self.traffic.statistics(),
            followers=followers,
        )

    # -- how it changes role

    def is_news(self, state: PartitionState) -> bool:
        """Whether the controller's order is newer than the last one obeyed here (A18, RM-03)."""
        return (state.leader_epoch, state.partition_epoch) > self.version

    def become_leader(self, state: PartitionState, now: float) -> Effects:
        """Become the leader, or continue to lead with another in-sync set or assignment.

        A new term is recorded in the log's epochs even if nothing is ever appended in it.
        """
        before = self.role
        if isinstance(before, Leader) and before.leader_epoch == state.leader_epoch:
            before.update(state)
        else:
            epoch_start = self.log.log_end
            self.log.assign_epoch(state.leader_epoch, epoch_start)
            high_watermark = self._fitted_high_watermark()
            role = self.leader_type(self._local_broker, state, epoch_start, high_watermark, now)
            if isinstance(before, Leader) and before.leader_epoch + 1 == role.leader_epoch:
                role.succeed(before, now)
            role.start_required = self.log.log_start
            self.role = role
        self._set_version(state)
        return Effects(self.advance(now))

    def follows(self, state: PartitionState) -> bool:
        """Whether it already copies from this state's leader in this term, so that its fetcher may
        continue undisturbed."""
        role = self.role
        return (
            isinstance(role, Follower)
            and not role.failure
            and (role.leader, role.leader_epoch) == (state.leader, state.leader_epoch)
        )

    def become_follower(self, state: PartitionState) -> None:
        """Become a follower of another broker. The log alone determines the fetch offset (A11)."""
        if not self.follows(state):
            self.role = self.follower_type(state, self._fitted_high_watermark())
        self._set_version(state)

    def become_offline(self, state: PartitionState, error: ErrorCode, reason: str) -> None:
        """Serve nothing in this state of the partition."""
        self.go_offline(error, reason)
        self._set_version(state)

    def go_offline(self, error: ErrorCode, reason: str) -> None:
        """Serve nothing until the next role."""
        self.role = Offline(error, reason, self.high_watermark)

    def _fitted_high_watermark(self) -> int:
        return max(self.log.log_start, min(self.high_watermark, self.log.log_end))

    def _set_version(self, state: PartitionState) -> None:
        version = (state.leader_epoch, state.partition_epoch)
        assert version >= self.version, "a controller's word never goes back"
        self.version = version

    # -- what it does as a leader

    def append_as_leader(
        self,
        batch: memoryview,
        acks: int,
        now: float,
        now_ms: int,
        verification: Verification | None = None,
        header: BatchHeader | None = None,
    ) -> Appended:
        """Append one producer's batch, or find that it was appended before. The last arguments as
        in `Log.append_as_leader`.

        Raises `Refused`, and then nothing is written: not leader, too few in-sync replicas for
        `acks`, or what the log says of the batch and of its `verification`.
        """
        leader = self.leader()
        if acks == ACKS_ALL and not leader.is_isr_large_enough(self.settings.min_insync_replicas):
            of = f"{len(leader.isr)} of {self.settings.min_insync_replicas}"
            raise Refused(ErrorCode.NOT_ENOUGH_REPLICAS, f"{of} replicas are in sync")
        if acks != ACKS_ALL and leader.is_handing_over(now):
            raise Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER, "another replica is about to lead")
        appended = self.log.append_as_leader(
            batch, leader.leader_epoch, now_ms, verification, header
        )
        if not appended.is_duplicate:
            self.traffic.records_in += appended.last_offset - appended.base_offset + 1
            self.traffic.bytes_in += len(batch)
        leader.advance(self.own_end, self.settings.min_insync_replicas, now)
        return appended

    def append_marker(self, marker: TransactionMarker, now: float, now_ms: int) -> Appended:
        """Append a coordinator's marker as the leader, as with acks=all.

        Raises `Refused` as `append_as_leader` does, and as `Log.append_marker`.
        """
        leader = self.leader()
        if not leader.is_isr_large_enough(self.settings.min_insync_replicas):
            raise Refused(ErrorCode.NOT_ENOUGH_REPLICAS, "too few replicas are in sync")
        appended = self.log.append_marker(
            EndMarker(marker.is_commit, marker.coordinator_epoch),
            (marker.producer_id, marker.producer_epoch),
            leader.leader_epoch,
            now_ms,
            is_next_epoch=marker.transaction_version >= SECOND_PROTOCOL,
        )
        leader.advance(self.own_end, self.settings.min_insync_replicas, now)
        return appended

    def delete_records(self, offset: int) -> int:
        """Delete the records below an offset as the leader; -1: below the high watermark. Returns
        the log start that all replicas must reach.

        Raises `Refused` as `leader` does, OFFSET_OUT_OF_RANGE for an offset that is not committed,
        and OFFSET_NOT_AVAILABLE if a new leader does not know yet whether it is.
        """
        leader = self.leader()
        end = leader.high_watermark
        if end < leader.epoch_start and not 0 <= offset <= end:
            what = "the new leader does not know the high watermark yet"
            raise Refused(ErrorCode.OFFSET_NOT_AVAILABLE, what)
        if offset == NO_OFFSET:
            offset = end
        if not 0 <= offset <= end:
            what = f"offset {offset}, and records are committed up to {end}"
            raise Refused(ErrorCode.OFFSET_OUT_OF_RANGE, what)
        self.log.raise_start(offset)
        leader.start_required = max(leader.start_required, offset)
        return offset

    def hand_over(self, leader_epoch: int, target: int, now: float, until: float) -> bool:
        """Prepare the election of `target` (-1: end the handover). Returns whether it may be
        elected without loss.

        Raises `Refused` as `leader` does.
        """
        leader = self.leader(leader_epoch)
        if target == NO_NODE:
            leader.keep_leading()
            return False
        leader.hand_over(target, self.log.log_end, now, until)
        return leader.has_handed_over()

    def is_handing_over(self, now: float) -> bool:
        """Whether this leader refuses acks 0 and 1, since another replica may be elected."""
        return isinstance(self.role, Leader) and self.role.is_handing_over(now)

    def advance(self, now: float) -> bool:
        """Raise the high watermark as far as possible. Returns whether it rose."""
        role = self.role
        return isinstance(role, Leader) and role.advance(
            self.own_end, self.settings.min_insync_replicas, now
        )

    def readable_end(
        self, replica_id: int, leader_epoch: int = NO_EPOCH, isolation_level: int = READ_UNCOMMITTED
    ) -> int:
        """Return where a reader must stop: a consumer at the high watermark, or, for committed
        records only, at the last stable offset; a follower at the log end.

        Raises `Refused` as `leader` does, and for a broker that is not a follower: the error makes
        it look for newer metadata if it knows this term (PAR-19).
        """
        leader = self.leader(leader_epoch)
        if replica_id < 0:
            is_stable = isolation_level == READ_COMMITTED
            return self.last_stable_offset if is_stable else leader.high_watermark
        if leader.progress_of(replica_id) is None:
            code = ErrorCode.NOT_LEADER_OR_FOLLOWER
            if leader_epoch != NO_EPOCH:
                code = ErrorCode.UNKNOWN_LEADER_EPOCH
            raise Refused(code, f"broker {replica_id} is not a follower of it")
        return self.log.log_end

    def record_fetch(self, fetch: FollowerFetch, now: float) -> Effects:
        """Record a follower's fetch that was accepted: it has everything below the offset (A1 to
        A3)."""
        leader = self.leader()
        has_moved = leader.record_fetch(fetch, self.own_end, now)
        pending = leader.grow_isr(fetch.replica_id)
        rose = has_moved and self.advance(now)
        if pending is None:
            return Effects(True) if rose else NO_EFFECTS
        return Effects(rose, self._proposal(leader, pending))

    def review(self, now: float) -> Effects:
        """Apply what time alone changes (A4). Propose to remove in-sync followers that fell behind;
        other followers that fell behind no longer hold the high watermark."""
        role = self.role
        if not isinstance(role, Leader):
            return NO_EFFECTS
        pending = role.shrink_isr(self.own_end, self.settings.min_insync_replicas, now)
        proposal = None if pending is None else self._proposal(role, pending)
        return Effects(self.advance(now), proposal)

    def _proposal(self, leader: Leader, pending: Pending) -> IsrProposal:
        epochs = []
        for replica in pending.proposed:
            progress = leader.progress_of(replica)
            epochs.append(NO_EPOCH if progress is None else progress.broker_epoch)
        return IsrProposal(
            *self.topic_partition, self.topic_id, *self.version, pending, tuple(epochs)
        )

    def resolve(
        self, proposal: IsrProposal, answer: PartitionAltered, now: float
    ) -> Effects | None:
        """Apply the controller's answer to a proposal (A5). Returns None if it must be sent
        again."""
        role = self.role
        if not isinstance(role, Leader) or role.isr_state is not proposal.pending:
            return NO_EFFECTS  # settled: the controller sent another state, or another term began
        if answer.error in NOT_APPLIED:
            role.isr_state = Committed(role.isr)
        elif not answer.error:
            version = (answer.leader_epoch, answer.partition_epoch)
            if answer.leader_epoch == self.leader_epoch and version >= self.version:
                role.isr_state = Committed(answer.isr)
                self.version = version
                return Effects(self.advance(now))
        elif answer.error not in WAIT_FOR_NEWS:
            return None
        return NO_EFFECTS

    def divergence(self, fetch_offset: int, last_fetched_epoch: int) -> OffsetAndEpoch | None:
        """Return where a client's log diverges from this one, or None if it does not (A10).

        The result is the largest epoch here that is not above the client's, and its end offset.
        Raises `Refused`: OFFSET_OUT_OF_RANGE below the log start, which is checked first;
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
