"""One broker of the lab, on its own disk: the broker's own parts, without tasks and connections.

The parts are the real ones: log manager and recovery, `Replicas` with its roles, the handlers of
PRODUCE and FETCH, the follower's fetch plan. Nothing happens by time: nothing is sent, renewed or
flushed until the scenario says so.

`Machine` has a disk, can lose its process or its power, and starts again. `Process` is one process
of the broker on it, and all its state is gone with it.
"""

from collections.abc import Callable, Mapping
from pathlib import PurePath
from random import Random
from typing import Final

from minibroker.broker.config import Config, load
from minibroker.broker.config_property import INT_MAX
from minibroker.broker.controller.context import OwnBrokerHandlers
from minibroker.broker.controller.node import ControllerNode
from minibroker.broker.controller.producer_ids import ProducerIds
from minibroker.broker.controller.state import BrokerRegistration
from minibroker.broker.groups.coordinator import Coordinator
from minibroker.broker.log.directory import RunMarks
from minibroker.broker.log.manager import LogManager
from minibroker.broker.replication.fetch_plan import FetchLimits, FetchPlan
from minibroker.broker.replication.flusher import Flusher
from minibroker.broker.replication.follower import Follower
from minibroker.broker.replication.isr_proposals import IsrProposals
from minibroker.broker.replication.partition import Partition
from minibroker.broker.replication.purgatory import Purgatory
from minibroker.broker.replication.quotas import ReplicationQuota
from minibroker.broker.replication.replica_table import Collaborators
from minibroker.broker.replication.roles import NEVER, IsrProposal, Leader
from minibroker.broker.replication.statistics import followers_of
from minibroker.broker.replication.verified_appends import VerifiedAppends
from minibroker.broker.server.fetch_sessions import FetchSessions
from minibroker.broker.server.request_memory import RequestMemory
from minibroker.broker.server.request_times import RequestTimes
from minibroker.broker.server.services import Services
from minibroker.broker.transactions.coordinator import TransactionCoordinator
from minibroker.broker.turns import without_pause
from minibroker.client.net.network import Network
from minibroker.protocol.constants import NO_EPOCH
from minibroker.protocol.types import Endpoint, TopicPartition
from minibroker.testing.disk import SimulatedFiles, Tail
from minibroker.testing.lab.claims import BlockClaim, SteppedStore
from minibroker.testing.lab.strategies import Rule
from minibroker.testing.lab.transcript import FollowerView, ReplicaState, RoleMark
from minibroker.testing.network import SimulatedNetwork

ROOT: Final = PurePath("/data")
CLUSTER_ID: Final = "lab"
PARTITION: Final = TopicPartition("t", 0)
WALL_MS: Final = 1_700_000_000_000  # the wall clock at virtual time 0
# No follower's request waits in the lab for more records. A follower sends a FETCH when the
# scenario says so, and is not silent before the lag time.
STEPPED: Final = {
    "replica.high.watermark.wait.max.ms": "0",
    "broker.fence.timeout.ms": str(INT_MAX),
}
DOWN: Final = ReplicaState(RoleMark.DOWN)


class ImpossibleStep(Exception):
    """A step that is impossible after the scenario's earlier steps."""


class RecordedProposals(IsrProposals):
    """Keeps a leader's proposals, until the stage passes them to the controller."""

    def __init__(self) -> None:
        super().__init__()
        self.waiting: list[IsrProposal] = []

    def put(self, proposal: IsrProposal) -> None:
        """Keep a proposal."""
        self.waiting.append(proposal)


class LabFetchers:
    """The broker's fetchers: a plan, which the stage follows step by step."""

    def __init__(self, limits: FetchLimits, wall_ms: Callable[[], int]) -> None:
        self._limits = limits
        self._wall_ms = wall_ms
        self.quota = ReplicationQuota()  # without a limit
        self.plan = FetchPlan(limits)

    def assign(self, partition: Partition) -> None:
        """Follow a new leader or leader epoch, with another connection and session."""
        assert isinstance(partition.role, Follower)
        self.plan = FetchPlan(self._limits)
        partition.role.begin(partition.log, self._wall_ms())
        self.plan.add(partition, partition.role)

    def unassign(self, name: TopicPartition) -> None:
        """Stop fetching."""
        self.plan = FetchPlan(self._limits)

    def set_endpoints(self, endpoints: Mapping[int, Endpoint]) -> None:
        """Do nothing: the lab finds brokers by number."""

    def on_flushed(self, partition: Partition) -> None:
        """Do nothing: the next step asks the log itself."""


class LabController(ControllerNode):
    """A broker's view of its session and ids. It never runs: the stage calls the controller itself,
    and steps decide when producer ids are claimed."""

    def __init__(
        self,
        config: Config,
        store: SteppedStore,
        network: Network,
        order_handlers: OwnBrokerHandlers,
        rng: Random,
    ) -> None:
        super().__init__(config, store, network, order_handlers, rng)
        self._claimed_ids = ProducerIds()
        self.block_claim = BlockClaim(store, self._claimed_ids)

    def may_decide_alone(self, now: float) -> bool:
        """Return True: a running broker keeps its session, and the controller hears it."""
        return True

    def next_producer_id(self) -> int | None:
        """Return an id of the blocks that this broker has claimed."""
        return self._claimed_ids.next_id()


class Process:
    """One process of the broker. `Machine.start` makes it."""

    def __init__(self, machine: "Machine", manager: LogManager) -> None:
        number, files, wall_ms = machine.number, machine.files, machine.wall_ms
        flags = {**STEPPED, **machine.settings, "node.id": str(number)}
        config = load(flags=flags).config
        self.is_running = True

        async def sync_dir(directory: PurePath) -> None:
            files.sync_dir(directory)

        purgatory, flusher, self.proposals = Purgatory(), Flusher(sync_dir), RecordedProposals()
        self.manager, self._files = manager, files
        self.fetchers = LabFetchers(FetchLimits.of(config), wall_ms)
        self.broker_epoch = NO_EPOCH
        self.replicas = machine.rule.replicas_type(
            config,
            Collaborators(
                manager=manager,
                purgatory=purgatory,
                flusher=flusher,
                fetchers=self.fetchers,
                isr_proposals=self.proposals,
                wall_ms=wall_ms,
                broker=self,
            ),
        )
        order_handlers = OwnBrokerHandlers(
            self.replicas.obey_roles,
            self.replicas.stop,
            self.replicas.update_metadata,
            self.replicas.describe,
            purgatory.notify,
            self.replicas.hand_over,
        )
        rng = Random(number)
        network = SimulatedNetwork(rng).host(f"broker-{number}")
        controller = LabController(config, machine.store, network, order_handlers, rng)
        self.block_claim = controller.block_claim
        may_decide_alone = controller.may_decide_alone
        memory = RequestMemory(config.queued_max_request_bytes)
        self.services = Services(
            config=config,
            replicas=self.replicas,
            purgatory=purgatory,
            controller=controller,
            memory=memory,
            fetch_sessions=FetchSessions(rng, 10, purgatory, memory),
            groups=Coordinator(config, self.replicas, purgatory, wall_ms, may_decide_alone, rng),
            transactions=TransactionCoordinator(
                config, self.replicas, purgatory, wall_ms, may_decide_alone
            ),
            verified_appends=VerifiedAppends(self.replicas, purgatory, wall_ms),
            times=RequestTimes(),
            wall_ms=wall_ms,
        )

    def on_damage(self) -> None:
        """Never called: no disk corrupts bytes in the lab."""

    def on_topic_removed(self, topic: str, now: float) -> None:
        """Have the coordinator delete the topic's offsets."""
        self.services.groups.forget_topic(topic, now)

    @property
    def partition(self) -> Partition:
        """Return the replica. Raises `ImpossibleStep` if it was deleted."""
        partition = self.replicas.get(PARTITION)
        if partition is None:
            raise ImpossibleStep(f"broker {self.replicas.broker_id} has no replica any more")
        return partition

    @property
    def log_end(self) -> int:
        """The end of the replica's log; 0 if there is none."""
        partition = self.replicas.get(PARTITION)
        return 0 if partition is None else partition.log.log_end

    def end(self) -> None:
        """End the process."""
        self.is_running = False
        self.block_claim.end()

    @property
    def state(self) -> ReplicaState:
        """Return the replica's own view of its state."""
        partition = self.replicas.get(PARTITION)
        if partition is None:
            return self._state_of_found_log()
        role, mark = partition.role, RoleMark.OFFLINE
        isr: tuple[int, ...] = ()
        followers: tuple[FollowerView, ...] = ()
        held_back_to = None
        if isinstance(role, Leader):
            mark, isr, followers = RoleMark.LEADER, role.isr, _views(role)
            stable = partition.last_stable_offset
            held_back_to = stable if stable < partition.high_watermark else None
        elif isinstance(role, Follower):
            mark = RoleMark.FAILED if role.failure else RoleMark.FOLLOWER
        return ReplicaState(
            mark,
            partition.leader_epoch,
            partition.log.log_end,
            partition.high_watermark,
            isr,
            partition.log.epochs.entries,
            followers,
            held_back_to,
        )

    def _state_of_found_log(self) -> ReplicaState:
        """Return what recovery found, before the controller has given the replica a role."""
        log = self.manager.get(PARTITION)
        if log is None:
            return ReplicaState(RoleMark.OFFLINE)
        found = (log.epochs.newest_epoch, log.log_end, log.checkpointed_high_watermark)
        return ReplicaState(RoleMark.OFFLINE, *found, epochs=log.epochs.entries)

    def flush(self) -> None:
        """Sync the log to the disk."""
        flush = self.partition.log.start_flush()
        for file in flush.files:
            file.sync_now()
        for directory in flush.directories:
            self._files.sync_dir(directory)
        self.partition.log.finish_flush(flush)

    def apply_retention(self) -> int:
        """Delete the segments that are too old; return how many."""
        wall_ms = self.services.wall_ms()
        return sum(
            without_pause(self.manager.apply_retention(name, high_watermark, wall_ms))
            for name, high_watermark in self.replicas.high_watermarks().items()
        )

    def expire_producers(self) -> None:
        """Forget idle producers, as a timer does every ten minutes."""
        without_pause(self.manager.expire_producers(self.services.wall_ms()))

    def checkpoint(self) -> None:
        """Write the high watermark's checkpoint, as a timer does every few seconds."""
        self.manager.record_high_watermarks(self.replicas.high_watermarks())
        self.manager.checkpoint_high_watermarks()


def _views(leader: Leader) -> tuple[FollowerView, ...]:
    """What a leader knows of its followers."""
    views = []
    for known in sorted(followers_of(leader)):
        times = (known.fetched_at, known.caught_up_at)
        fetched_at, caught_up_at = (None if at == NEVER else round(at, 3) for at in times)
        views.append(FollowerView(known.broker_id, known.log_end, fetched_at, caught_up_at))
    return tuple(views)


class Machine:
    """A disk, and the broker's process on it while there is one. `store` is shared by all brokers,
    and `wall_ms` is their wall clock in milliseconds."""

    def __init__(
        self,
        number: int,
        settings: Mapping[str, str],
        rule: Rule,
        store: SteppedStore,
        wall_ms: Callable[[], int],
    ) -> None:
        self.number = number
        self.settings = settings
        self.rule = rule
        self.store = store
        self.wall_ms = wall_ms
        self.files = SimulatedFiles(Random(number))
        self.process: Process | None = None
        self._starts = 0
        self._boots = 1
        self._disks = 1

    @property
    def state(self) -> ReplicaState:
        """The replica's column in the transcript."""
        return DOWN if self.process is None else self.process.state

    def start(self) -> BrokerRegistration:
        """Start the process; return its registration."""
        assert self.process is None
        self.files.clock_ms = lambda: self.wall_ms()
        config = load(flags=self.settings).config
        manager = LogManager(self.files, ROOT, config.for_topic().limits())
        marks = RunMarks(
            new_directory_id=self.number.to_bytes(8) + self._disks.to_bytes(8),
            is_synced=config.flush == "always",
        )
        manager.start(f"boot-{self._boots}", CLUSTER_ID, self.number, self.wall_ms(), marks)
        self.process = Process(self, manager)
        self._starts += 1
        directory = manager.directory
        return BrokerRegistration(
            node_id=self.number,
            epoch=NO_EPOCH,
            endpoint=Endpoint(f"broker-{self.number}", 9092),
            directory_id=directory.directory_id,
            run=directory.run,
            process=f"{self.number}.{self._starts}",
            tail_safe=directory.tail_safe,
            was_synced=directory.was_synced,
            damaged=frozenset(manager.statistics().damaged),
        )

    def kill(self) -> None:
        """End the process; what it wrote stays."""
        self._end_process()
        self.files.kill()

    def power_off(self, tail: Tail) -> None:
        """Stop the machine."""
        self._end_process()
        self.files.power_off(tail)
        self._boots += 1

    def lose_disk(self) -> None:
        """Stop the machine, and give it an empty disk."""
        self._end_process()
        self.files = SimulatedFiles(Random(self.number))
        self._boots += 1
        self._disks += 1

    def _end_process(self) -> None:
        if self.process is not None:
            self.process.end()
        self.process = None
