"""A consumer group's member as a state machine: which requests it may send, and what answers mean.

    OUT ------> JOINING ---> SYNCING ---> ASSIGNED ---> STABLE
     ^             ^ \\_________/ ^            |            |
     |             |____________|____________|____________| a rebalance: join again
     |_____________________________________________________| left, or lost

Pure: membership_tasks.py sends and waits. A request is made from the state at that moment, and its
answer is judged by the state when it comes, so an answer to an older generation changes nothing.

*Lost* means that the coordinator may have given this member's partitions to others: it does not
know the member or its generation, or the application has not polled for `max.poll.interval.ms` and
the member has left. The member may no longer commit offsets of those partitions. The application
learns of it in its next poll, and only then does the member join again. A member that the
coordinator still knows, or may know, keeps its member id, so that the group does not wait for a
former id of it: it keeps the id through lost connections, other coordinators and
ILLEGAL_GENERATION, but not through UNKNOWN_MEMBER_ID.

*In doubt* is a member whose coordinator has not answered for `session.timeout.ms`. The coordinator
may have removed it. So no records of its partitions are delivered until a coordinator answers. If
it is still a member then, as after an outage of all brokers, it has lost nothing.

While a coordinator loads, it answers heartbeats without an error as long as it surely was not
replaced. So a load, however long, puts no member in doubt; it ends no doubt either.

A session counts from the sending of the last request that was answered well, because the
coordinator cannot have renewed it earlier. Times are seconds of one clock, passed by the caller.
"""

from collections.abc import Mapping
from enum import Enum, auto
from typing import Final

from minibroker.client.errors import CommitFailed, error_code, named
from minibroker.client.options import ConsumerOptions
from minibroker.protocol.constants import ErrorCode
from minibroker.protocol.errors import NOT_A_MEMBER, RETRIABLE, BrokerError, ProtocolError
from minibroker.protocol.messages.group_offsets import OffsetCommitRequest, PartitionCommit
from minibroker.protocol.messages.groups import (
    NO_GENERATION,
    GroupProtocol,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeavingMember,
    MemberAssignment,
    SyncGroupRequest,
    SyncGroupResponse,
)
from minibroker.protocol.subscription import decode_assignment
from minibroker.protocol.types import TopicPartition

# Another broker is the coordinator, or none is yet.
NOT_THE_COORDINATOR: Final = frozenset(
    {ErrorCode.COORDINATOR_NOT_AVAILABLE, ErrorCode.NOT_COORDINATOR}
)
# Errors with which a member can never join.
WHAT_TO_CHANGE: Final[Mapping[ErrorCode, str]] = {
    ErrorCode.INVALID_SESSION_TIMEOUT: "the broker allows no such session.timeout.ms"
    " (group.min.session.timeout.ms, group.max.session.timeout.ms)",
    ErrorCode.INCONSISTENT_GROUP_PROTOCOL: "its other members share no"
    " partition.assignment.strategy with this consumer",
    ErrorCode.GROUP_MAX_SIZE_REACHED: "it has as many members as the broker allows"
    " (group.max.size), or their subscriptions take as much memory as it allows",
    ErrorCode.MESSAGE_TOO_LARGE: "its subscription is larger than a record of the group may be"
    " (max.message.bytes of __consumer_offsets)",
    ErrorCode.INVALID_REQUEST: "the broker takes no such group.instance.id",
}


class State(Enum):
    """The state of a member. ASSIGNED: it has an assignment that the application has not taken
    over."""

    OUT = auto()
    JOINING = auto()
    SYNCING = auto()
    ASSIGNED = auto()
    STABLE = auto()


class NextStep(Enum):
    """What the tasks do after an answer."""

    CONTINUE = auto()
    RETRY = auto()  # send the same kind of request again, at once
    RETRY_LATER = auto()  # the same, after a pause
    FIND_COORDINATOR = auto()  # the same, after finding the coordinator
    STOP = auto()  # the application must know first


_ALLOWED: Final = {
    State.OUT: (State.JOINING,),
    State.JOINING: (State.SYNCING, State.OUT),
    State.SYNCING: (State.ASSIGNED, State.JOINING, State.OUT),
    State.ASSIGNED: (State.STABLE, State.OUT),
    State.STABLE: (State.JOINING, State.OUT),
}
_HOLDING: Final = (State.ASSIGNED, State.STABLE)


class Membership:
    """See the head of this module. Read its fields; only its methods change them."""

    def __init__(self, options: ConsumerOptions) -> None:
        self._options = options
        self._instance_id = options.group_instance_id or None
        self._contact_at = float("-inf")  # when the last request that was answered well was sent
        self.group_id = options.group_id
        self.is_subscribed = False  # else the application assigns partitions itself
        self.state = State.OUT
        self.member_id = ""
        self._synced_id = ""  # the member id of the last assignment
        self._synced_generation = NO_GENERATION  # its generation, which its coordinator has stored
        self.generation = NO_GENERATION
        self._commit_generation = NO_GENERATION  # this one or the last synced one
        self.protocol = ""
        self.leader = ""  # its member id
        self.assignment: tuple[TopicPartition, ...] = ()  # the generation's
        self.held_generation = NO_GENERATION  # of the assignment that the application has
        self.must_join = False
        self.is_lost = False
        self.exit_count = 0  # offsets read before a loss must not be committed after it
        self.failure: Exception | None = None  # for the application
        self.poll_deadline = float("inf")  # when the next poll is due at the latest

    # -- what the application does

    def request_join(self) -> None:
        """Join as soon as possible: for the first time, or with a new subscription."""
        self.is_subscribed = self.must_join = True

    def begin_poll(self) -> None:
        """Record that the application polls; while it does, the poll interval does not run."""
        self.poll_deadline = float("inf")

    def end_poll(self, now: float) -> None:
        """Record that a poll has ended; the poll interval starts."""
        self.poll_deadline = now + self._options.max_poll_interval_ms / 1000

    def accept_loss(self) -> None:
        """Handle that the application knows of the loss; the member may join again."""
        self.is_lost = False

    def report(self, failure: Exception) -> None:
        """Set an error for the application; the member does not join until it was raised."""
        self.failure = failure

    def pop_failure(self) -> Exception | None:
        """Return the error for the application: once, but again and again for a fenced member."""
        failure = self.failure
        if not self.is_fenced:
            self.failure = None
        return failure

    @property
    def is_fenced(self) -> bool:
        """Whether another process took over its instance id, which ends the membership."""
        failure = self.failure
        return isinstance(failure, BrokerError) and failure.code == ErrorCode.FENCED_INSTANCE_ID

    @property
    def may_join(self) -> bool:
        """Whether JOIN is the next thing to do."""
        is_free = self.failure is None and not self.is_lost
        return self.must_join and is_free and self.state in (State.OUT, State.STABLE)

    @property
    def says_leave(self) -> bool:
        """Whether it tells the coordinator that it leaves; the place of a static member is kept."""
        return self.is_subscribed and self._instance_id is None

    def is_in(self, *states: State) -> bool:
        """Whether it is in one of these states."""
        return self.state in states

    def is_in_doubt(self, now: float) -> bool:
        """Whether its session may have ended without its knowledge."""
        has_session = self.generation != NO_GENERATION
        return has_session and now > self._contact_at + self._options.session_timeout_ms / 1000

    def contact_age_s(self, now: float) -> float | None:
        """How long ago the last request that was answered well was sent; None for no member."""
        return None if self.generation == NO_GENERATION else now - self._contact_at

    # -- joining

    def begin_join(self) -> None:
        """Begin to join: `join` is sent until there is an answer."""
        self.must_join = False
        self._move(State.JOINING)

    def join(self, protocols: tuple[GroupProtocol, ...]) -> JoinGroupRequest:
        """Make a JOIN; `protocols` is in the order of preference.

        A static member that never got an assignment under its id joins without it, as a new
        process: the id may have been lost with its coordinator, and the next coordinator would take
        another id than the stored one for that of a replaced member.
        """
        assert self.state is State.JOINING
        is_id_sure = self._instance_id is None or self.member_id == self._synced_id
        return JoinGroupRequest(
            self.group_id,
            self._options.session_timeout_ms,
            self._options.max_poll_interval_ms,
            self.member_id if is_id_sure else "",
            self._instance_id,
            protocols=protocols,
        )

    def handle_join(self, answer: JoinGroupResponse, now: float) -> NextStep:
        """Handle a JOIN's answer. CONTINUE: send `sync`; the leader computes its `assignments`."""
        assert self.state is State.JOINING
        error = error_code(answer.error)
        if error == ErrorCode.NONE:
            if self.generation == NO_GENERATION:
                self._contact_at = now  # its first session begins
            self.generation = self._commit_generation = answer.generation
            self.member_id = answer.member_id
            self.protocol, self.leader = answer.protocol, answer.leader
            self._move(State.SYNCING)
            return NextStep.CONTINUE
        if error == ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = answer.member_id
            return NextStep.RETRY
        return self._handle_refusal(error)

    def sync(self, assignments: tuple[MemberAssignment, ...] = ()) -> SyncGroupRequest:
        """Make a SYNC, which asks for this member's assignment; the leader's has all
        assignments."""
        assert self.state is State.SYNCING
        return SyncGroupRequest(
            self.group_id, self.generation, self.member_id, self._instance_id, assignments
        )

    def handle_sync(self, answer: SyncGroupResponse, sent_at: float) -> NextStep:
        """Handle a SYNC's answer. CONTINUE: there is an assignment. RETRY, RETRY_LATER,
        FIND_COORDINATOR: join again."""
        assert self.state is State.SYNCING
        error = error_code(answer.error)
        if error == ErrorCode.NONE:
            try:
                self.assignment = decode_assignment(answer.assignment).partitions
            except ProtocolError as failure:
                return self.fail(failure)
            self._record_contact(sent_at)
            self._synced_id, self._synced_generation = self.member_id, self.generation
            self._commit_generation = self.generation
            self._move(State.ASSIGNED)
            return NextStep.CONTINUE
        step = self._handle_refusal(error)
        if step is not NextStep.STOP:
            self._move(State.JOINING)
        return NextStep.RETRY if error == ErrorCode.REBALANCE_IN_PROGRESS else step

    def on_disconnect(self) -> None:
        """Handle that the answer to JOIN or SYNC is lost: join again, as the same member."""
        if self.state is State.SYNCING:
            self._move(State.JOINING)

    def complete_rebalance(self, *, must_join: bool) -> None:
        """Handle that the application has taken over its assignment, and given up the rest.

        `must_join`: the member must join again to say so, so that others get what it gave up
        (cooperative).
        """
        self.must_join |= must_join
        self.held_generation = self.generation
        self._move(State.STABLE)

    def fail(self, failure: Exception) -> NextStep:
        """End the membership with an error for the application; the poll after that joins again."""
        self.report(failure)
        self._go_out()
        self.is_lost = self.must_join = True
        return NextStep.STOP

    # -- being a member

    def heartbeat(self) -> HeartbeatRequest:
        """Make a heartbeat, which is sent in every state but OUT: while JOIN waits, it shows
        whether the coordinator is alive."""
        return HeartbeatRequest(self.group_id, self.generation, self.member_id, self._instance_id)

    def handle_heartbeat(
        self, asked: HeartbeatRequest, error: ErrorCode, sent_at: float, *, is_loading: bool = False
    ) -> NextStep:
        """Handle a heartbeat's answer. FIND_COORDINATOR: the coordinator has changed. STOP: the
        partitions are lost.

        A coordinator that `is_loading` removes no member meanwhile, but it cannot know whether the
        one before it did: it ends no doubt.
        """
        if error in NOT_THE_COORDINATOR:
            return NextStep.FIND_COORDINATOR
        if not self._is_current(asked.generation, asked.member_id):
            return NextStep.CONTINUE
        if is_loading and self.is_in_doubt(sent_at):
            return NextStep.CONTINUE
        if error in (ErrorCode.NONE, ErrorCode.REBALANCE_IN_PROGRESS):
            self._record_contact(sent_at)
            if error == ErrorCode.REBALANCE_IN_PROGRESS and self.state in _HOLDING:
                self.must_join = True
        elif error in NOT_A_MEMBER and self.state in _HOLDING:
            return self._handle_refusal(error)
        return NextStep.CONTINUE

    def commit(self, partitions: tuple[PartitionCommit, ...]) -> OffsetCommitRequest:
        """Make a commit; call it again for each try. Raises `CommitFailed` if it is not a member
        any more."""
        if not self.is_subscribed:
            return OffsetCommitRequest(self.group_id, partitions=partitions)
        if self.generation == NO_GENERATION:
            raise self.commit_failed("it is not a member now")
        return OffsetCommitRequest(
            self.group_id, self._commit_generation, self.member_id, self._instance_id, partitions
        )

    def commit_failed(self, reason: str) -> CommitFailed:
        """Return the error, which says what to do."""
        text = f"{named(self.group_id)} takes no offsets from this consumer ({reason})"
        if not self.is_subscribed:
            return CommitFailed(f"{text}: it has members, so subscribe, or take another group.id")
        return CommitFailed(
            f"{text}: what it read since its last commit will be read again, perhaps by others."
            " Poll, to join again. If it polled too rarely, work faster on less (max.poll.records)"
            " or raise max.poll.interval.ms"
        )

    def handle_commit(
        self, asked: OffsetCommitRequest, error: ErrorCode, sent_at: float
    ) -> NextStep:
        """Handle one partition's answer. STOP: the commit cannot succeed any more.

        While the member joins, the coordinator may be in a generation that it does not know yet;
        the answer to its JOIN or SYNC will tell whether it was removed. Or it may know only the
        last synced generation, because a later one was lost with its coordinator before it was
        stored. Then the next commit is made in that one.
        """
        is_current = self._is_current(asked.generation, asked.member_id)
        if error == ErrorCode.NONE:
            if is_current:
                self._record_contact(sent_at)
            return NextStep.CONTINUE
        if error in NOT_THE_COORDINATOR:
            return NextStep.FIND_COORDINATOR
        if error not in NOT_A_MEMBER:
            may_pass = error in RETRIABLE and error != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            return NextStep.RETRY_LATER if may_pass else NextStep.STOP
        if is_current and self.state in _HOLDING:
            return self._handle_refusal(error)
        if error == ErrorCode.ILLEGAL_GENERATION and asked.generation == self._commit_generation:
            others = {self.generation, self._synced_generation} - {asked.generation, NO_GENERATION}
            self._commit_generation = min(others, default=asked.generation)
        return NextStep.STOP if self.generation == NO_GENERATION else NextStep.RETRY_LATER

    # -- the end

    def expire(self) -> LeaveGroupRequest | None:
        """Handle that the application does not poll: leave, so that others get the partitions."""
        request = self.leave()
        self.is_subscribed = self.is_lost = self.must_join = True
        return request

    def leave(self) -> LeaveGroupRequest | None:
        """End the membership; return the request to leave.

        None for a static member, whose place is kept until it comes back, and without a member id.
        A member that has lost its partitions leaves, too: a coordinator that knows its id would
        wait for it.
        """
        member_id, self.member_id = self.member_id, ""
        self._go_out()
        self.is_subscribed = self.must_join = False
        self.failure = None
        if not member_id or self._instance_id is not None:
            return None
        return LeaveGroupRequest(self.group_id, (LeavingMember(member_id),))

    # -- inside

    def _move(self, state: State) -> None:
        assert state in _ALLOWED[self.state], f"{self.state} to {state}"
        self.state = state

    def _go_out(self) -> None:
        if self.state is not State.OUT:
            self._move(State.OUT)
        self.exit_count += 1
        self.generation = self._synced_generation = self._commit_generation = NO_GENERATION
        self.assignment = ()

    def _is_current(self, generation: int, member_id: str) -> bool:
        is_member = generation != NO_GENERATION
        return is_member and (generation, member_id) == (self.generation, self.member_id)

    def _record_contact(self, sent_at: float) -> None:
        self._contact_at = max(self._contact_at, sent_at)

    def _handle_refusal(self, error: ErrorCode) -> NextStep:
        if error == ErrorCode.FENCED_INSTANCE_ID:
            text = f"another consumer runs with group.instance.id {self._instance_id!r}"
            return self.fail(BrokerError(error, text))
        if error in NOT_A_MEMBER:
            if error == ErrorCode.UNKNOWN_MEMBER_ID:
                self.member_id = ""
            self._go_out()
            self.is_lost = self.must_join = True
            return NextStep.STOP
        if error in NOT_THE_COORDINATOR:
            return NextStep.FIND_COORDINATOR
        if error in RETRIABLE:
            return NextStep.RETRY_LATER
        why = WHAT_TO_CHANGE.get(error, "it did not take this consumer")
        return self.fail(BrokerError(error, f"{named(self.group_id)}: {why}"))
