"""A group among clients that come, go and crash, a log that fails, and coordinators that move.

The clients follow the protocol as real ones do, but they lose answers and send again, forget who
they are, and disappear. The log keeps records in order: one may be refused, it may be in doubt and
be committed or lost afterwards, and a failover keeps any part of those that are not committed.

What must hold is checked while it happens (`check`, and where answers are read):

* a member is told one part in a generation, and no partition has two owners in one;
* nobody is told a part that the log does not hold;
* who is in a generation does not change, but for new ids of static members;
* a coordinator's generation never falls, nor does that of the records in the log.
"""

import random
from dataclasses import replace

from minibroker.broker.groups.group import Group
from minibroker.broker.groups.group_members import EXPECTED_BYTES, GroupLimits
from minibroker.broker.groups.member import Client, Ticket
from minibroker.broker.groups.outbox import Write
from minibroker.broker.groups.records import GroupMetadata
from minibroker.broker.groups.states import State
from minibroker.protocol.constants import ErrorCode
from minibroker.protocol.messages.group_offsets import OffsetCommitRequest
from minibroker.protocol.messages.groups import (
    GroupProtocol,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    LeavingMember,
    MemberAssignment,
    SyncGroupRequest,
    SyncGroupResponse,
)
from minibroker.protocol.subscription import Subscription, encode_subscription

SESSION_S = 2.0
REBALANCE_S = 5.0
STEP_S = 0.25
PARTITIONS = 5
LIMITS = GroupLimits(1000, 60_000, 8, 100)
TOPICS = [encode_subscription(Subscription(topics)) for topics in (("t",), ("t", "u"))]
INSTANCES = (None, None, "i0", "i1", "i2")
JOIN = JoinGroupRequest("g", int(SESSION_S * 1000), int(REBALANCE_S * 1000))
GONE = {ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID}


class Consumer:
    """One client process: what it believes, and what it waits for."""

    def __init__(self, world: "World", instance_id: str | None) -> None:
        self._world = world
        self.instance_id = instance_id
        self.member_id = ""
        self.generation = -1
        self.is_fenced = False
        self.has_part = False
        self._metadata = TOPICS[0]
        self._join: Ticket[JoinGroupResponse] | None = None
        self._sync: Ticket[SyncGroupResponse] | None = None

    @property
    def place(self) -> str:
        """Who it is to the checks: a static member is its instance."""
        return self.instance_id or self.member_id

    def step(self, *, well_behaved: bool = False) -> None:
        """Do the next thing."""
        chance = self._world.chance
        if not well_behaved and chance.random() < 0.1:
            self._metadata = chance.choice(TOPICS)
        if not well_behaved and chance.random() < 0.1:
            self._join = self._sync = None  # the answer is lost
            self._ask_to_join()
        elif self._join is not None:
            self._read_join()
        elif self._sync is not None:
            self._read_sync()
        elif self.has_part:
            self._beat()
        else:
            self._ask_to_join()

    def _ask_to_join(self) -> None:
        self.has_part = False
        protocols = tuple(GroupProtocol(name, self._metadata) for name in ("range", "sticky"))
        asked = replace(JOIN, member_id=self.member_id, instance_id=self.instance_id)
        asked = replace(asked, protocols=protocols)
        world = self._world
        self._join = world.group.join(asked, Client("c", "h"), world.fresh_id(), world.now)
        world.tickets.append(self._join)

    def _read_join(self) -> None:
        assert self._join is not None
        answer = self._join.answer
        if answer is None:
            return
        self._join = None
        if answer.error == ErrorCode.MEMBER_ID_REQUIRED:
            self.member_id = answer.member_id
        elif answer.error:
            self._refused(ErrorCode(answer.error))
        else:
            self.member_id, self.generation = answer.member_id, answer.generation
            self._ask_for_part(answer)

    def _ask_for_part(self, answer: JoinGroupResponse) -> None:
        chance = self._world.chance
        parts: dict[str, list[int]] = {each.member_id: [] for each in answer.members}
        for partition in range(PARTITIONS if parts else 0):
            parts[chance.choice(list(parts))].append(partition)
        assigned = tuple(MemberAssignment(name, bytes(part)) for name, part in parts.items())
        asked = SyncGroupRequest(
            "g", self.generation, self.member_id, self.instance_id, assignments=assigned
        )
        self._sync = self._world.group.sync(asked, self._world.now)
        self._world.tickets.append(self._sync)

    def _read_sync(self) -> None:
        assert self._sync is not None
        answer = self._sync.answer
        if answer is None:
            return
        self._sync = None
        if answer.error:
            self._refused(ErrorCode(answer.error))
        else:
            self.has_part = True
            self._world.told(self, answer.assignment)

    def _beat(self) -> None:
        world = self._world
        asked = HeartbeatRequest("g", self.generation, self.member_id, self.instance_id)
        self._refused(world.group.heartbeat(asked, world.now))
        commit = OffsetCommitRequest("g", self.generation, self.member_id, self.instance_id)
        error = world.group.check_commit(commit, world.now)
        assert self.has_part <= (error == ErrorCode.NONE), "a heartbeat was fine, a commit is not"

    def _refused(self, error: ErrorCode) -> None:
        if error:
            self.has_part = False
        if error in GONE:
            self.member_id = ""
        self.is_fenced |= error is ErrorCode.FENCED_INSTANCE_ID

    def leave(self) -> None:
        """Go, and say so; a static member does not say so by itself."""
        if self.instance_id is None:
            self._world.group.leave(LeavingMember(self.member_id), self._world.now)


class Record:
    """A record in the log, and who waits for it; nobody once it was given up."""

    def __init__(self, write: Write, group: Group) -> None:
        self.value = write.value
        self.token = write.token
        self.group: Group | None = group


class World:
    """See the head of this module. `transitions` collects the ways that groups went."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.now = 0.0
        self.group = Group("g", LIMITS, None, self.now)
        self.consumers: list[Consumer] = []
        self.tickets: list[Ticket[JoinGroupResponse] | Ticket[SyncGroupResponse]] = []
        self.transitions: set[tuple[State, State]] = set()
        self._committed: list[GroupMetadata] = []
        self._in_flight: list[Record] = []
        self._ids = 0
        self._parts: dict[tuple[int, str], bytes] = {}
        self._owners: dict[tuple[int, int], str] = {}
        self._seen_state = State.EMPTY
        self._seen: dict[int, set[str]] = {}  # who is in each generation of this coordinator

    def fresh_id(self) -> str:
        """An id that was never used."""
        self._ids += 1
        return f"m{self._ids}"

    def told(self, consumer: Consumer, part: bytes) -> None:
        """A SYNC was answered."""
        generation, place = consumer.generation, consumer.place
        assert self._parts.setdefault((generation, place), part) == part, "another part"
        for partition in part:
            owner = self._owners.setdefault((generation, partition), place)
            assert owner == place, f"{partition} of {generation} has {owner} and {place}"
        assert any(
            value.generation == generation
            and any(each.assignment == part for each in value.members)
            for value in self._committed
        ), "it was told what is not stored"

    def check(self) -> None:
        """What must hold after every step."""
        group = self.group
        held_bytes = sum(member.held_bytes for member in group.members.values())
        expected = group.held_bytes - held_bytes
        assert expected >= 0 == expected % EXPECTED_BYTES, "the memory is miscounted"
        if group.state is not self._seen_state:
            self.transitions.add((self._seen_state, group.state))
            self._seen_state = group.state
        assert group.generation >= max(self._seen, default=0), "the generation fell"
        if group.state in (State.COMPLETING_REBALANCE, State.STABLE):
            places = {each.instance_id or each.member_id for each in group.members.values()}
            assert self._seen.setdefault(group.generation, places) == places
        elif group.state is State.EMPTY:
            assert not group.members
        generations = [value.generation for value in self._committed]
        assert generations == sorted(generations), "a record is of an older generation"

    # -- what may happen

    def random_step(self) -> None:
        """One thing, by chance."""
        chance = self.chance
        steps = [self._step_one] * 12 + [self._pass_time] * 5 + [self._write] * 5
        steps += [self._commit] * 5 + [self._start] * 2
        steps += [self._stop, self._give_up, self._fail_over, self._admin_leave]
        chance.choice(steps)()
        self.check()

    def _step_one(self) -> None:
        if self.consumers:
            self.chance.choice(self.consumers).step()

    def _start(self) -> None:
        if len(self.consumers) < 6:
            self.consumers.append(Consumer(self, self.chance.choice(INSTANCES)))

    def _stop(self) -> None:
        if self.consumers:
            consumer = self.consumers.pop(self.chance.randrange(len(self.consumers)))
            if self.chance.random() < 0.5:
                consumer.leave()

    def _admin_leave(self) -> None:
        self.group.leave(LeavingMember(instance_id=self.chance.choice(INSTANCES)), self.now)

    def _pass_time(self) -> None:
        self.pass_time(self.chance.choice((0.05, 0.3, 1.0, 3.0)))

    def pass_time(self, seconds: float) -> None:
        """Let the group do what is due, each thing at its time."""
        end = self.now + seconds
        while self.group.deadline <= end:
            self.now = max(self.now, self.group.deadline)
            self.group.tick(self.now)
            self.check()
            self._write()
        self.now = end

    def _write(self) -> None:
        for write in self.group.pop_writes():
            if self.chance.random() < 0.1:
                error = ErrorCode.COORDINATOR_NOT_AVAILABLE
                self.group.not_written(write.token, error, self.now)
            else:
                self._in_flight.append(Record(write, self.group))

    def _commit(self) -> None:
        if self._in_flight:
            record = self._in_flight.pop(0)
            self._committed.append(record.value)
            if record.group is not None:
                record.group.written(record.token, self.now)

    def _give_up(self) -> None:
        for record in self._in_flight:
            if record.group is not None:
                record.group.not_written(record.token, ErrorCode.REQUEST_TIMED_OUT, self.now)
                record.group = None

    def _fail_over(self) -> None:
        """Another coordinator begins with what is committed by then."""
        self.group.close(ErrorCode.NOT_COORDINATOR, self.now)
        self.check()
        assert all(ticket.answer is not None for ticket in self.tickets)
        self.tickets.clear()
        survive = self._in_flight[: self.chance.randint(0, len(self._in_flight))]
        self._committed += [record.value for record in survive]
        self._in_flight.clear()
        newest = self._committed[-1] if self._committed else None
        self.group = Group("g", LIMITS, newest, self.now)
        self._seen_state = self.group.state
        self._seen.clear()

    # -- the end

    def quiet(self) -> None:
        """Nothing goes wrong any longer: all steps are done in turn for as long as it may take."""
        end = self.now + SESSION_S + REBALANCE_S + 2
        while self.now < end:
            self.consumers = [each for each in self.consumers if not each.is_fenced]
            for consumer in self.consumers:
                consumer.step(well_behaved=True)
                self.check()
            for write in self.group.pop_writes():
                self._in_flight.append(Record(write, self.group))
            while self._in_flight:
                self._commit()
            self.pass_time(STEP_S)
