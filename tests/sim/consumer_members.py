"""Members of a group of the consumer protocol (KIP-848): the wire and nothing else.

A member sends heartbeats, gives up what it is not assigned any more, takes what it is assigned, and
commits ever higher offsets of what it has. As a careful client it says all of itself after a lost
answer. As a careless one it also commits as the member that it was before it was removed, or in an
epoch that is over; such commits must be refused.

A slot is a machine on which one process runs after the other, as in `group_members.py`. In some
seeds processes of the classic protocol are among them, so the group is converted again and again.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import count
from random import Random
from typing import Any, Final, NamedTuple

import trio

from minibroker.broker.groups.consumer_heartbeats import by_topic_id, partitions_of
from minibroker.broker.groups.consumer_records import NO_PARTITIONS, Partitions, TopicIdPartition
from minibroker.client.net.channel import ConnectionLost
from minibroker.client.net.cluster import Cluster, open_cluster
from minibroker.client.net.servers import parse_servers
from minibroker.client.options import AdminOptions
from minibroker.protocol.constants import ApiKey, ErrorCode
from minibroker.protocol.messages.consumer_groups import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    LEAVE_STATIC_EPOCH,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
)
from minibroker.protocol.messages.group_offsets import (
    OffsetCommitRequest,
    OffsetFetchRequest,
    PartitionCommit,
)
from minibroker.protocol.messages.groups import (
    FindCoordinatorRequest,
    GroupProtocol,
    HeartbeatRequest,
    JoinGroupRequest,
    JoinGroupResponse,
    LeaveGroupRequest,
    LeavingMember,
    MemberAssignment,
    SyncGroupRequest,
)
from minibroker.protocol.subscription import (
    Assignment,
    Subscription,
    decode_assignment,
    encode_assignment,
    encode_subscription,
)
from minibroker.protocol.types import TopicPartition
from minibroker.testing.cluster import SimulatedWorld
from tests.sim.checkers import Violation
from tests.sim.consumer_checkers import (
    REMOVED,
    EpochCommits,
    NoneRemoved,
    OneHolder,
    RisingEpochs,
    StaticKeeps,
)
from tests.sim.group_checkers import RisingCommits
from tests.sim.group_events import BeatAnswered, BeatSent, Crashed, Event, History
from tests.sim.group_members import CONSUMERS, Stage
from tests.sim.processes import Process
from tests.sim.workload import TIMEOUT_MS, TOPIC

REBALANCE_TIMEOUT_MS: Final = 30_000
BEAT_S: Final = 0.3
PATTERNS: Final = (f"{TOPIC[:-1]}.", f"{TOPIC}|extra-.*")  # each matches the topic
WILD_FATES: Final = ("leave", "crash", "pause")
# The coordinator loads, is not sure that it is one, or is another one.
RETRIED: Final = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
    }
)
CAREFUL_LEAVES: Final = 5  # tries until a member that leaves has left


class ConsumerFates(NamedTuple):
    """What the members of a seed are like. Times are seconds."""

    is_calm: bool
    slots: int
    static_slots: int
    classic: float  # how many processes use the classic protocol
    session_s: float
    life_s: float
    revoke_s: float  # longest time to give partitions up


def draw_consumer_fates(world: SimulatedWorld, *, is_calm: bool) -> ConsumerFates:
    """For all members of a seed; there are none in some."""
    rng = world.rng("consumers")
    return ConsumerFates(
        is_calm,
        slots=rng.choice((0, 2, 3, 3)),
        static_slots=rng.choice((0, 1, 2)),
        session_s=20.0 if is_calm else rng.choice((1.0, 1.0, 3.0)),
        life_s=rng.choice((0.7, 1.5, 3.0)),
        revoke_s=rng.choice((0.05, 0.6)),
        classic=rng.choice((0.0, 0.0, 0.3, 0.6)),
    )


def consumer_settings(fates: ConsumerFates) -> dict[str, str]:
    """What all brokers have in common."""
    return {
        "group.consumer.session.timeout.ms": f"{fates.session_s * 1000:.0f}",
        "group.min.session.timeout.ms": "500",
        "group.consumer.heartbeat.interval.ms": f"{BEAT_S * 1000:.0f}",
    }


class ConsumerGroupSeen:
    """The group: its history, and the checkers that it is shown to."""

    def __init__(self, fates: ConsumerFates) -> None:
        self.fates = fates
        self.commits = RisingCommits()
        self.holders = OneHolder()
        self.epochs = RisingEpochs()
        self.static = StaticKeeps(fates.session_s)
        checkers = [self.commits, self.holders, self.epochs, EpochCommits(), self.static]
        if fates.is_calm:
            checkers.append(NoneRemoved())
        self.history = History(checkers)
        self.running: dict[int, ConsumerMember] = {}  # by slot

    def unstable(self, partitions: int) -> str:
        """What the group lacks to be stable with all its members, or "" if it lacks nothing."""
        members = [each for each in self.running.values() if not each.ended.is_set()]
        if not self.fates.slots:
            return ""
        epochs = {each.who: each.epoch for each in members}
        if len(members) < self.fates.slots or set(epochs.values()) != {self.epochs.newest}:
            return f"the members' epochs are {epochs}, the newest is {self.epochs.newest}"
        held = sorted(number for each in members for number in each.numbers)
        return "" if held == [*range(partitions)] else f"held are {held} of {partitions}"


class ConsumerMember(Process):
    """One process, from its start to its end."""

    def __init__(self, stage: Stage, seen: ConsumerGroupSeen, slot: int, number: int) -> None:
        super().__init__(stage.world, f"consumer-{slot}.{number}", f"consumer-{slot}")
        self.epoch = JOIN_EPOCH
        self.is_back_soon = False
        self._stage = stage
        self._instance = self._host if slot < seen.fates.static_slots else None
        self._fates = seen.fates
        self._rng = stage.world.rng(self.who)
        self._tap, self._seams = stage.seams(self.who, self._host)
        self._subscription: dict[str, Any] = {"topics": (TOPIC,)}
        if self._rng.random() < 0.3:
            self._subscription = {"pattern": self._rng.choice(PATTERNS)}
        if self._rng.random() < 0.3:
            self._subscription["assignor"] = self._rng.choice(("uniform", "range"))
        self._member_id = self.who
        self._owned: Partitions = NO_PARTITIONS
        self._told: Partitions | None = None  # that it owns
        self._topic_id = b""
        self._offsets: dict[int, int] = {}
        self._former: tuple[int, list[int]] | None = None
        self._is_unsure = True
        self._coordinator: int | None = None

    @property
    def numbers(self) -> list[int]:
        """The partitions of the topic that it has."""
        return [each.partition for each in self._owned if each.topic_id == self._topic_id]

    def crash(self) -> None:
        """`kill -9`."""
        self._note(Crashed(self.who))
        self._tap.die()
        super().crash()

    def _note(self, event: Event) -> None:
        """Unless it is dead."""
        if not self.is_crashed:
            self._stage.note(CONSUMERS, event)

    async def run(self) -> None:
        """Be a member until told to leave."""
        with self._living():
            async with self._open() as cluster:
                self._topic_id = (await cluster.topic(TOPIC)).topic_id
                while not self.leaving.is_set():
                    if not await self._beat(cluster):
                        await self._commit(cluster)
                        with trio.move_on_after(self._rng.uniform(0.1, BEAT_S)):
                            await self.leaving.wait()
                await self._leave(cluster)

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[Cluster]:
        options = AdminOptions(
            bootstrap_servers=parse_servers(self._stage.address),
            default_api_timeout_ms=TIMEOUT_MS,
            request_timeout_ms=self._rng.choice((1_000, 3_000)),
        )
        async with open_cluster(options, self._seams) as cluster:
            yield cluster

    async def _call(self, cluster: Cluster, api_key: ApiKey, request: object) -> Any:
        """The answer to one try, None if it was lost."""
        try:
            if self._coordinator is None:
                find = FindCoordinatorRequest(CONSUMERS)
                found = await cluster.ask(ApiKey.FIND_COORDINATOR, find)
                if found.error != ErrorCode.NONE:
                    return None
                self._coordinator = found.node_id
            channel = await cluster.channel(self._coordinator)
            return await channel.call(api_key, request)
        except ConnectionLost:
            self._coordinator = None
            return None

    async def _beat(self, cluster: Cluster) -> bool:
        """One heartbeat. Whether another one should follow at once."""
        owned = self._owned
        is_full = self._is_unsure or self.epoch == JOIN_EPOCH
        self._is_unsure = True
        answer = await self._call(
            cluster,
            ApiKey.CONSUMER_GROUP_HEARTBEAT,
            ConsumerGroupHeartbeatRequest(
                CONSUMERS,
                self._member_id,
                self.epoch,
                self._instance,
                owned=by_topic_id(owned) if is_full or owned != self._told else None,
                **({"rebalance_timeout_ms": REBALANCE_TIMEOUT_MS} if is_full else {}),
                **(self._subscription if is_full else {}),
            ),
        )
        if answer is None or answer.error in REMOVED | {ErrorCode.NONE}:
            return answer is not None and await self._answered(cluster, answer, owned)
        if answer.error == ErrorCode.INVALID_REQUEST:
            raise Violation(f"{self.who}: {answer.error_message}")
        self._coordinator = None
        return False

    async def _answered(
        self, cluster: Cluster, answer: ConsumerGroupHeartbeatResponse, told: Partitions
    ) -> bool:
        if answer.error != ErrorCode.NONE:
            self._drop()
            return False
        self._is_unsure = False
        self._told, self.epoch = told, answer.member_epoch
        places = partitions_of(answer.assignment)
        if places is None or places == self._owned:
            return False
        await self._take(cluster, places)
        return True

    def _drop(self) -> None:
        """It is not a member any more."""
        self._former = self.epoch, self.numbers
        self._owned, self.epoch = NO_PARTITIONS, JOIN_EPOCH

    async def _take(self, cluster: Cluster, places: Partitions) -> None:
        """Give up what is not among these, and begin to read the others."""
        if self._owned - places:
            await self._commit(cluster)
            await trio.sleep(self._rng.uniform(0, self._fates.revoke_s))
        self._owned &= places
        await self._start_reading(cluster)
        self._owned = places

    async def _start_reading(self, cluster: Cluster) -> None:
        """Ask for the committed offsets."""
        request = OffsetFetchRequest(CONSUMERS)
        while not self.leaving.is_set():
            answer = await self._call(cluster, ApiKey.OFFSET_FETCH, request)
            if answer is not None and answer.error == ErrorCode.NONE:
                self._offsets = {each.partition: each.offset for each in answer.partitions}
                return
            self._coordinator = None
            await trio.sleep(0.05)

    async def _commit(self, cluster: Cluster) -> None:
        """Higher offsets of what it has, or as somebody that it is no more."""
        epoch, numbers = self.epoch, self.numbers
        if self._former is not None:
            epoch, numbers = self._former
            self._former = None
        elif self._rng.random() < 0.1:
            epoch -= 1
        if not numbers or epoch < JOIN_EPOCH:
            return
        offsets = {each: self._offsets.get(each, 0) + self._rng.randint(1, 5) for each in numbers}
        commits = [PartitionCommit(TOPIC, *item) for item in offsets.items()]
        request = OffsetCommitRequest(
            CONSUMERS, epoch, self._member_id, self._instance, tuple(commits)
        )
        answer = await self._call(cluster, ApiKey.OFFSET_COMMIT, request)
        if answer is None:
            self._coordinator = None
        if answer is None or not any(each.error for each in answer.partitions):
            self._offsets |= offsets  # without an answer it may have been done

    async def _leave(self, cluster: Cluster) -> None:
        epoch = LEAVE_EPOCH
        if self._instance is not None and self.is_back_soon:
            epoch = LEAVE_STATIC_EPOCH
        request = ConsumerGroupHeartbeatRequest(CONSUMERS, self._member_id, epoch, self._instance)
        for _ in range(CAREFUL_LEAVES):
            answer = await self._call(cluster, ApiKey.CONSUMER_GROUP_HEARTBEAT, request)
            if answer is not None and answer.error in REMOVED | {ErrorCode.NONE}:
                return
            self._coordinator = None
            await trio.sleep(0.1)


class ClassicProcess(ConsumerMember):
    """One process that uses the classic protocol, and gives up all that it has before it joins
    again. It tells the checkers what it has been told, in the words of the newer protocol."""

    def __init__(self, stage: Stage, seen: ConsumerGroupSeen, slot: int, number: int) -> None:
        super().__init__(stage, seen, slot, number)
        self._member_id = ""
        self._is_told = False  # its assignment of the generation

    async def _beat(self, cluster: Cluster) -> bool:
        if not self._is_told:
            return await self._join(cluster)
        number = self._note_sent(self.epoch)
        request = HeartbeatRequest(CONSUMERS, self.epoch, self._member_id, self._instance)
        answer = await self._call(cluster, ApiKey.HEARTBEAT, request)
        if answer is None or answer.error in RETRIED:
            self._coordinator = None
            return False
        if answer.error in REMOVED:
            self._note(BeatAnswered(self.who, number, answer.error, self.epoch, None))
            self._reset(answer.error)
            return True
        self._note(BeatAnswered(self.who, number, ErrorCode.NONE, self.epoch, None))
        if answer.error == ErrorCode.NONE:
            return False
        if answer.error != ErrorCode.REBALANCE_IN_PROGRESS:
            raise Violation(f"{self.who} is told {ErrorCode(answer.error).name}")
        await self._take(cluster, NO_PARTITIONS)
        self._is_told = False
        return True

    async def _join(self, cluster: Cluster) -> bool:
        number = self._note_sent(JOIN_EPOCH)
        subscription = encode_subscription(Subscription((TOPIC,)))
        request = JoinGroupRequest(
            CONSUMERS,
            round(self._fates.session_s * 1000),
            REBALANCE_TIMEOUT_MS,
            self._member_id,
            self._instance,
            protocols=(GroupProtocol("range", subscription),),
        )
        answer = await self._call(cluster, ApiKey.JOIN_GROUP, request)
        if answer is None:
            return False
        if answer.error == ErrorCode.MEMBER_ID_REQUIRED:
            self._member_id = answer.member_id
            return True
        if answer.error != ErrorCode.NONE:
            self._reset(answer.error)
            return False
        self._member_id = answer.member_id
        return await self._sync(cluster, answer, number)

    async def _sync(self, cluster: Cluster, joined: JoinGroupResponse, number: int) -> bool:
        request = SyncGroupRequest(
            CONSUMERS,
            joined.generation,
            self._member_id,
            self._instance,
            assignments=self._assigned([each.member_id for each in joined.members]),
        )
        answer = await self._call(cluster, ApiKey.SYNC_GROUP, request)
        if answer is None:
            return False
        if answer.error != ErrorCode.NONE:
            self._reset(answer.error)
            return False
        partitions = decode_assignment(answer.assignment).partitions
        places = frozenset(TopicIdPartition(self._topic_id, each.partition) for each in partitions)
        self.epoch, self._is_told = joined.generation, True
        self._note(BeatAnswered(self.who, number, ErrorCode.NONE, self.epoch, places))
        await self._take(cluster, places)
        return True

    def _assigned(self, member_ids: list[str]) -> tuple[MemberAssignment, ...]:
        """What the leader of a classic group assigns: every n-th partition."""
        parts: list[MemberAssignment] = []
        for first, member_id in enumerate(sorted(member_ids)):
            numbers = range(first, self._stage.partitions, len(member_ids))
            places = tuple(TopicPartition(TOPIC, number) for number in numbers)
            parts.append(MemberAssignment(member_id, encode_assignment(Assignment(places))))
        return tuple(parts)

    def _note_sent(self, epoch: int) -> int:
        number = next(self._stage.numbers)
        owned = NO_PARTITIONS if epoch == JOIN_EPOCH else None
        self._note(BeatSent(self.who, number, self._instance, epoch, owned))
        return number

    def _reset(self, error: int) -> None:
        """Begin again as far as an error asks for it."""
        if error in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.FENCED_INSTANCE_ID):
            self._member_id = ""
        if error in REMOVED and self._is_told:
            self._drop()
        if error in RETRIED:
            self._coordinator = None
        self._is_told = False

    async def _leave(self, cluster: Cluster) -> None:
        self._note_sent(LEAVE_EPOCH)
        if self._instance is None or not self.is_back_soon:
            leaving = (LeavingMember(self._member_id, self._instance),)
            await self._call(cluster, ApiKey.LEAVE_GROUP, LeaveGroupRequest(CONSUMERS, leaving))


async def play_consumer(stage: Stage, seen: ConsumerGroupSeen, slot: int) -> None:
    """One process after the other in a slot, until all is drained; the last one leaves."""
    rng = stage.world.rng(f"consumer-slot-{slot}")
    async with trio.open_nursery() as nursery:
        await trio.sleep(rng.uniform(0, 2))
        for number in count():
            is_classic = rng.random() < seen.fates.classic
            kind = ClassicProcess if is_classic else ConsumerMember
            member = seen.running[slot] = kind(stage, seen, slot, number)
            nursery.start_soon(member.run)
            if await _lives_on(stage, member, rng, seen.fates):
                break
            del seen.running[slot]
            with trio.move_on_after(rng.expovariate(1 / 0.5)):
                await stage.stop.wait()
        await stage.drained.wait()
        member.leaving.set()


async def _lives_on(
    stage: Stage, member: ConsumerMember, rng: Random, fates: ConsumerFates
) -> bool:
    """What becomes of a process: whether it is still there when all is to `stop`."""
    while True:
        with trio.move_on_after(rng.expovariate(1 / fates.life_s)):
            await stage.stop.wait()
        fate = rng.choice(("leave",) if fates.is_calm else WILD_FATES)
        if stage.stop.is_set():
            return True
        if fate == "leave":
            member.is_back_soon = rng.random() < 0.7
            member.leaving.set()
            await member.ended.wait()
            return False
        if fate == "crash":
            member.crash()
            return False
        await member.pause(rng.uniform(0.2, 2.0) * fates.session_s)
