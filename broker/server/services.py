"""The parts of a broker that handlers use, in one object. `broker.app` makes it; each handler gets
it. It owns no state.
"""

import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeAlias, TypeVar

import trio

from minibroker.broker.config import Config
from minibroker.broker.controller.node import ControllerNode
from minibroker.broker.defects import Defects
from minibroker.broker.errors import Refused
from minibroker.broker.groups.coordinator import Coordinator
from minibroker.broker.log.cached_reads import ReadAhead
from minibroker.broker.log.disk_room import RoomStatistics
from minibroker.broker.log.log_moves import LogMoves
from minibroker.broker.log.manager import DirectoryState
from minibroker.broker.machine import MachineFacts
from minibroker.broker.metadata.model import ClusterImage
from minibroker.broker.observe.readiness import Readiness, ReadinessFacts, readiness
from minibroker.broker.replication.log_cleaner import CleanerStatistics
from minibroker.broker.replication.partition import Partition
from minibroker.broker.replication.purgatory import Parked, Purgatory
from minibroker.broker.replication.replicas import Replicas
from minibroker.broker.replication.roles import Leader
from minibroker.broker.replication.verified_appends import VerifiedAppends
from minibroker.broker.server.connected_clients import ConnectedClients
from minibroker.broker.server.far_stamps import FarStamps
from minibroker.broker.server.fetch_sessions import FetchSessions
from minibroker.broker.server.member_connections import MemberConnections
from minibroker.broker.server.offset_lookups import OffsetLookups
from minibroker.broker.server.refusals import Refusals
from minibroker.broker.server.refused_batches import RefusedBatches
from minibroker.broker.server.request_memory import RequestMemory
from minibroker.broker.server.request_times import RequestTimes
from minibroker.broker.transactions.coordinator import TransactionCoordinator
from minibroker.broker.turns import Turns, at_once
from minibroker.broker.wall_clock import ClockStatistics
from minibroker.protocol.constants import NO_EPOCH, NO_NODE, PLAINTEXT, ErrorCode
from minibroker.protocol.types import NodeEndpoint, TopicPartition

READS_AT_ONCE: Final = 8  # of trio's 40 threads

Answer = TypeVar("Answer")
InWorker: TypeAlias = Callable[[Callable[[], Any]], Awaitable[Any]]


class HangUp(Exception):
    """Raised by a handler that cannot answer with an error. The session closes the connection.

    `level` is the level of the log line: `logging.INFO` for a normal end.
    """

    def __init__(self, reason: str, level: int = logging.WARNING) -> None:
        super().__init__(reason)
        self.level = level


class _NamesLeader(Protocol):
    @property
    def leader_id(self) -> int: ...


async def _here(function: Callable[[], Any]) -> Any:
    return function()


@dataclass(slots=True)
class Services:
    """See the head of this module. `wall_ms` is the wall clock in milliseconds.

    `listener` is the name of the listener that received the request. Each listener has a copy of
    this object. `in_worker` runs what would hold up the loop in a thread; without one it runs here.
    """

    config: Config
    replicas: Replicas
    purgatory: Purgatory
    controller: ControllerNode
    memory: RequestMemory
    fetch_sessions: FetchSessions
    groups: Coordinator
    transactions: TransactionCoordinator
    verified_appends: VerifiedAppends
    times: RequestTimes
    wall_ms: Callable[[], int]
    machine: Callable[[], MachineFacts] = MachineFacts
    is_shutting_down: Callable[[], bool] = lambda: False
    silent_leaders: Callable[[float], Sequence[int]] = lambda now: ()
    clock_statistics: Callable[[float], ClockStatistics] = lambda now: ClockStatistics()
    listener: str = PLAINTEXT
    clients: ConnectedClients = field(default_factory=ConnectedClients)
    defects: Defects = field(default_factory=Defects)
    offset_lookups: OffsetLookups = field(default_factory=OffsetLookups)
    refusals: Refusals = field(default_factory=Refusals)
    refused_batches: RefusedBatches = field(default_factory=RefusedBatches)
    member_connections: MemberConnections = field(default_factory=MemberConnections)
    far_stamps: FarStamps = field(default_factory=FarStamps)
    cleaner_statistics: Callable[[], CleanerStatistics] = CleanerStatistics
    in_worker: InWorker = _here
    room_statistics: Callable[[], RoomStatistics] = RoomStatistics
    log_directories: Callable[[], Sequence[DirectoryState]] = tuple
    log_moves: LogMoves = field(default_factory=lambda: LogMoves(()))
    unpacking: trio.Lock = field(default_factory=trio.Lock)
    reading: trio.Semaphore = field(default_factory=lambda: trio.Semaphore(READS_AT_ONCE))

    async def step_in_worker(self, function: Callable[[], Answer]) -> Answer:
        """Run a step of a handler in a worker thread. A few read ahead at a time, one for each
        connection, so that enough threads are left for what syncs files. Of all other steps one
        runs at a time, so that one large batch is held unpacked at most, however many connections
        send such batches."""
        limit = self.reading if isinstance(function, ReadAhead) else self.unpacking
        async with limit:
            done: Answer = await self.in_worker(function)
            return done

    @property
    def image(self) -> ClusterImage:
        """The image of the cluster that the controller sent last."""
        return self.replicas.image

    def readiness(self, now: float) -> Readiness:
        """Whether this broker is ready, and why not."""
        replicas = self.replicas
        return readiness(
            ReadinessFacts(
                replicas.broker_id,
                replicas.broker_epoch,
                is_session_current=self.controller.is_session_current(now),
                is_controller_lease_current=self.controller.is_controller_lease_current(now),
                has_all_roles=replicas.is_ready,
                is_shutting_down=self.is_shutting_down(),
                image=replicas.image,
                partitions=replicas.partitions,
                uncreated=replicas.uncreated,
                silent_leaders=self.silent_leaders(now),
            )
        )

    def partition(self, name: TopicPartition, topic_id: bytes = b"") -> Partition:
        """Return this broker's replica of a partition of the topic with this id (b"": not checked).

        Raises `Refused`: KAFKA_STORAGE_ERROR if its log cannot be made yet,
        NOT_LEADER_OR_FOLLOWER if it is on other brokers, UNKNOWN_TOPIC_OR_PARTITION if it does not
        exist, and INCONSISTENT_TOPIC_ID if the name belongs to another topic: a leader hint about
        that one would mislead the client.
        """
        partition = self.replicas.get(name)
        if partition is not None:
            if topic_id and topic_id != partition.topic_id:
                raise Refused(ErrorCode.INCONSISTENT_TOPIC_ID, "another topic of this name is here")
            return partition
        if why := self.replicas.why_uncreated(name):
            raise Refused(ErrorCode.KAFKA_STORAGE_ERROR, f"{name}: {why}")
        if not self.replicas.is_ready:
            raise Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER, "this broker has no roles yet")
        if self.image.partition(name) is None:
            raise Refused(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no {name}")
        if topic_id and topic_id != self.image.topics[name.topic].id:
            raise Refused(ErrorCode.INCONSISTENT_TOPIC_ID, "another topic of this name is known")
        raise Refused(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{name} is not on this broker")

    def run_by_controller(
        self, request: Any, now: float, timeout_ms: int, expire: Callable[[], Answer]
    ) -> Parked[Answer]:
        """Submit a request to the controller; on another broker the result is NOT_CONTROLLER. The
        answer comes when the job is done, or from `expire` after `timeout_ms`; the job may still be
        done after that."""
        job = self.controller.submit(request)
        deadline = now + max(0, timeout_ms) / 1000
        return Parked((job,), lambda: deadline, lambda now: job.result, expire)

    def why_late(self) -> str:
        """Return the text for a job that the controller does not finish in time."""
        trouble = self.controller.store_trouble()
        return f"not done in time; it may still happen{f' ({trouble})' if trouble else ''}"

    def may_be_replaced(self, name: TopicPartition, now: float) -> bool:
        """Whether another broker may lead this partition instead of this one.

        That is so if this broker's lease has lapsed, or if the controller has not confirmed the
        role since this broker registered again.
        """
        is_sure = self.controller.may_decide_alone(now) and self.replicas.is_role_present(name)
        return not is_sure

    def refuse_if_abandoned(self, leader: Leader, now: float) -> None:
        """Raise `Refused` if none of a leader's in-sync followers has fetched for a session and a
        follower's longest wait: another broker may then have been elected."""
        if leader.is_abandoned(now, self._silence_s):
            raise Refused(
                ErrorCode.NOT_LEADER_OR_FOLLOWER,
                "another broker may lead this partition: ask for metadata",
            )

    def is_abandoned_and_replaceable(self, leader: Leader, now: float) -> bool:
        """Whether this leader may have been replaced, and its followers have stopped fetching."""
        is_abandoned = leader.is_abandoned(now, self._silence_s)
        return is_abandoned and not self.controller.may_decide_alone(now)

    def wake_abandoned(self, now: float) -> Turns[None]:
        """Wake the produce requests that wait for followers which have stopped fetching."""
        for some in at_once(list(self.replicas.partitions.items())):
            for name, partition in some:
                role = partition.role
                if isinstance(role, Leader) and self.is_abandoned_and_replaceable(role, now):
                    self.purgatory.notify(name)
            yield

    @property
    def _silence_s(self) -> float:
        config = self.config
        return (config.replica_fetch_wait_max_ms + config.broker_session_timeout_ms) / 1000

    def leader_hint(self, name: TopicPartition, error: ErrorCode) -> tuple[int, int]:
        """Return the leader and its epoch for a client that asked the wrong broker, or with a wrong
        epoch; -1 and -1 otherwise."""
        if error in (ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.FENCED_LEADER_EPOCH):
            image = self.image.partition(name)
            if image is not None:
                return image.leader, image.leader_epoch
        return NO_NODE, NO_EPOCH

    def nodes(self, answers: Iterable[_NamesLeader]) -> tuple[NodeEndpoint, ...]:
        """Return the addresses of the leaders that the answers about partitions name."""
        named = {one.leader_id for one in answers if one.leader_id >= 0}
        if not named:
            return ()
        brokers = map(self.image.brokers.get, named)
        return tuple(
            NodeEndpoint(broker.node_id, *broker.seen_from(self.listener))
            for broker in brokers
            if broker is not None and not broker.is_fenced
        )
