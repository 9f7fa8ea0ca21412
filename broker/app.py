"""The composition root: what a broker is made of, in which order it starts, and how it stops.

    serve
     |- HttpServer.run         pages about the broker, with http.listener only
     |- ControllerNode.run     registers, renews the lease, is controller if elected
     |- Flusher.run            syncs what was appended
     |- LogCleaner.run         compacts logs
     |- LogMover.run           moves logs between log directories, where there are several
     |- ReplicaFetchers.run    one fetcher for each leader that is copied from
     |- LogStartCheckpoint.run  makes raised log starts durable
     |- _tend                  each second: the wall clock, log lines put off, requests to answer
     |- keep_isrs              looks for lagging and silent followers, proposes in-sync sets
     |- Coordinator.run        follows the groups' partitions, keeps the groups of those it leads
     |- TransactionCoordinator.run  the same for transactional ids
     |- CoordinatorLinks.run   holds connections to the coordinators of transactions
     |- TransactionVerifier.run  asks them about transactions that begin in a partition
     |- MarkerSender.run       sends the markers of decided transactions
     |   `- one task for each leader of their partitions
     |- OffsetLookups.run      looks up offsets by time
     |- _keep_house            retention, checkpoints, expiry, deleted files
     `- Acceptor.run           takes connections
         |- _close_idle        closes the silent ones
         `- Session.run        one per connection: the reader
             `- the writer

Start: lock the data directory, bind the addresses (before any log is opened, so that an address in
use is an early error), open the logs in a worker, register, and serve. The broker has started once
a controller has sent all roles and the whole image; until then it answers clients only what is
sure.

Clean stop (BRK-01): hand over leaderships while still serving, close the connections, end the
tasks, write high watermarks, close the logs, write the clean mark, and withdraw the registration
last. Parked requests are not answered: their clients see a closed connection.

An exception of any task ends the others and leaves `serve`: no clean mark is written, and the next
start runs recovery. Nothing here catches exceptions to keep a broken broker alive.

A simulation replaces `System` and trio's clock; a broker has no other access to the outside world.
Nothing here prints: `task_status` gets the addresses, everything else is logged.
"""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, NamedTuple, TypeVar, TypeVarTuple

import trio

from minibroker.broker.config import Config
from minibroker.broker.controller.cluster_id import ClusterMark, ensure_cluster_id
from minibroker.broker.controller.context import OwnBrokerHandlers, RegistrationFacts
from minibroker.broker.controller.node import ControllerNode
from minibroker.broker.controller.state import OWN_LEVELS, ClosedLog
from minibroker.broker.controller.store_retry import StoreRetry
from minibroker.broker.defects import Defects
from minibroker.broker.descriptors import DescriptorBudget
from minibroker.broker.disk import InWorker
from minibroker.broker.duties import cleaner_limits, intervals
from minibroker.broker.groups.coordinator import Coordinator
from minibroker.broker.log.directory import RunMarks
from minibroker.broker.log.disk_room import DiskRoom
from minibroker.broker.log.files import Files
from minibroker.broker.log.housekeeping import Duty, Housekeeping
from minibroker.broker.log.manager import DiskSpace, LogManager
from minibroker.broker.machine import MachineFacts
from minibroker.broker.metadata.store import MetadataStore
from minibroker.broker.observe.sources import Sources
from minibroker.broker.replication.fetch_connection import Connect
from minibroker.broker.replication.fetch_task import connect_by_task
from minibroker.broker.replication.fetch_thread import ConnectSocket, connect_by_thread
from minibroker.broker.replication.flusher import Flusher
from minibroker.broker.replication.isr_proposals import Intervals, IsrProposals, keep_isrs
from minibroker.broker.replication.log_cleaner import LogCleaner
from minibroker.broker.replication.log_mover import LogMover
from minibroker.broker.replication.purgatory import Purgatory
from minibroker.broker.replication.replica_fetcher import ReplicaFetchers
from minibroker.broker.replication.replica_table import Collaborators
from minibroker.broker.replication.replicas import Replicas
from minibroker.broker.replication.transaction_verifier import (
    CoordinatorLinks,
    TransactionVerifier,
)
from minibroker.broker.replication.verified_appends import VerifiedAppends
from minibroker.broker.server.dispatch import Dispatch, dispatch
from minibroker.broker.server.fetch_sessions import FetchSessions
from minibroker.broker.server.listener import Acceptor, listen
from minibroker.broker.server.request_memory import RequestMemory
from minibroker.broker.server.request_times import RequestTimes
from minibroker.broker.server.services import Services
from minibroker.broker.transactions.coordinator import TransactionCoordinator
from minibroker.broker.transactions.marker_sender import MarkerSender
from minibroker.broker.turns import Turns, take_steps, take_turns
from minibroker.broker.wall_clock import ClockWatch
from minibroker.client.net.channel import ChannelOptions
from minibroker.client.net.network import Listener, Network, connected_socket
from minibroker.protocol.types import Endpoint, NamedEndpoint, TopicPartition

if TYPE_CHECKING:
    from minibroker.broker.observe.http import HttpServer

logger = logging.getLogger(__name__)

Result = TypeVar("Result")
Arguments = TypeVarTuple("Arguments")

TENDING_S = 1.0
RELEASE_S = 2.0  # between two times that free memory is given back
SETTLED_PARTITIONS = 250  # made or gone, until memory is settled again


@dataclass(frozen=True, slots=True)
class System:
    """A broker's access to the outside world.

    `wall_ms` is the wall clock in milliseconds, `boot_id` names the machine's current boot. The
    caller opens and closes `store`. `machine` returns facts about the machine. `hostname` is the
    machine's name, which a broker that listens on all interfaces advertises. `open_http` binds the
    address of `http.listener`, and is needed only with that property. With `replicas_type` and
    `node_type` the lab and the simulation replace rules. `connect_socket` connects fetchers that
    are threads, and `dispatch` serves requests. The broker calls `settle_memory` once it runs, and
    when it has many more or fewer partitions than before: the garbage collector need not scan what
    is there every time. It calls `collect_garbage` now and then, with the time and the bytes that
    requests hold. A worker calls `release_memory` now and then, with these bytes: it gives free
    memory back to the machine.
    """

    network: Network
    files: Files
    store: MetadataStore
    wall_ms: Callable[[], int]
    boot_id: str
    rng: Random
    in_worker: InWorker
    machine: Callable[[], MachineFacts] = MachineFacts
    hostname: str = ""
    open_http: "Callable[[Endpoint], Awaitable[HttpServer]] | None" = None
    replicas_type: type[Replicas] = Replicas
    node_type: type[ControllerNode] = ControllerNode
    connect_socket: ConnectSocket = connected_socket
    dispatch: Dispatch = dispatch
    settle_memory: Callable[[], None] = lambda: None
    release_memory: Callable[[int], None] = lambda held_bytes: None
    collect_garbage: Callable[[float, int], None] = lambda now, held_bytes: None


class Started(NamedTuple):
    """A broker that has started: its addresses, cluster id and damaged logs."""

    listening: tuple[NamedEndpoint, ...]  # the bound addresses; the first is the one for brokers
    advertised: tuple[NamedEndpoint, ...]  # the address that each listener's clients are told
    cluster_id: str
    damaged: tuple[TopicPartition, ...]  # and no other replica can replace them
    http: Endpoint | None = None  # the address of its pages


async def serve(
    config: Config,
    system: System,
    shutdown: trio.Event,
    task_status: trio.TaskStatus[Started] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Run a broker until `shutdown` is set, then stop it cleanly.

    `task_status` is told once the broker answers requests. A shutdown before that ends it cleanly,
    too, without telling `task_status`. Raises `DataDirectoryError`, `StoreError`, `OSError` (an
    address in use, a failed fsync) or the exception of a defect, in an exception group if it was
    raised in a task.
    """
    descriptors = DescriptorBudget(system.machine().open_files_max)
    limits = config.for_topic().limits()
    room = DiskRoom(config.log_dirs_min_free_bytes, config.log_dirs_max_bytes)
    first, *others = config.log_dirs
    manager = LogManager(system.files, first, limits, descriptors, room, others)
    manager.lock()
    try:
        listeners = await listen(system.network, config.served_listeners)
        try:
            async with _serving_http(config, system) as http:
                ask = StoreRetry(config.node_id).ask_at_start
                about = system.store, system.rng, config.cluster_id, OWN_LEVELS
                mark = await _unless(shutdown, ask, ensure_cluster_id, *about)
                if mark is None:
                    return
                now_ms, now = system.wall_ms(), trio.current_time()
                is_synced = config.flush == "always"
                marks = RunMarks(system.rng.randbytes(16), is_synced, began_ms=now_ms)
                whose = system.boot_id, mark.cluster_id, config.node_id
                await system.in_worker(manager.start, *whose, now_ms, marks)
                await take_turns(_observe_disk(manager, system.machine()))
                clock = ClockWatch(now_ms, now, manager.directory.last_run_ms)
                broker = _Broker(config, system, manager, clock, listeners, shutdown)
                try:
                    await broker.run(mark, http, task_status)
                except* OSError:
                    manager.distrust_tail()
                    raise
        finally:
            for listener in listeners.values():
                listener.close()
    finally:
        manager.abandon()


async def _unless(
    shutdown: trio.Event,
    function: Callable[[*Arguments], Awaitable[Result]],
    *arguments: *Arguments,
) -> Result | None:
    """Return what the function returns; None if the shutdown comes first. Raises what it raises.

    Only a cancel scope tells the cancellation apart from a failure: it may arrive as a group of
    `trio.Cancelled`, when it finds the function in a nursery of its own.
    """
    result: Result | None = None
    failure: Exception | None = None
    async with trio.open_nursery() as nursery:
        scope = trio.CancelScope()

        async def watch() -> None:
            await shutdown.wait()
            scope.cancel()

        nursery.start_soon(watch)
        try:
            with scope:
                result = await function(*arguments)
        except Exception as error:  # raised below, where no nursery wraps it
            failure = error
        nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure
    return result


@asynccontextmanager
async def _serving_http(config: Config, system: System) -> "AsyncIterator[HttpServer | None]":
    """Serve the broker's pages, if configured, from before its logs open until they are closed."""
    if config.http_listener is None:
        yield None
        return
    assert system.open_http is not None, "http.listener is set where there is no HTTP"
    http = await system.open_http(config.http_listener)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(http.run)
        yield http
        await http.stop()


class _Broker:
    """The parts of a running broker, and its tasks.

    The node and the coordinator need the replicas, so the replicas are made first. The replicas
    call those two through this object (`Broker` in `replica_table`).
    """

    def __init__(
        self,
        config: Config,
        system: System,
        manager: LogManager,
        clock: ClockWatch,
        listeners: Mapping[str, Listener],
        shutdown: trio.Event,
    ) -> None:
        self._config = config
        self._system = system
        self._manager = manager
        self._clock = clock
        self._listeners = listeners
        self._shutdown = shutdown
        purgatory = Purgatory()
        self._flusher = Flusher(lambda path: system.in_worker(manager.sync_dir, path))
        self._isr_proposals = IsrProposals()
        self._fetchers = ReplicaFetchers(config, _connect(config, system), system.wall_ms)
        self._replicas = self._make_replicas(purgatory)
        defects = Defects()
        orders = _order_handlers(self._replicas, purgatory, defects)
        self._node = system.node_type(config, system.store, system.network, orders, system.rng)
        memory = RequestMemory(config.queued_max_request_bytes)
        slots = config.max_incremental_fetch_session_cache_slots
        self._groups = self._make_groups(purgatory)
        self._transactions = self._make_transactions(purgatory)
        self._verified_appends = VerifiedAppends(self._replicas, purgatory, system.wall_ms)
        self._cleaner = self._make_cleaner()
        self._services = services = Services(
            config=config,
            replicas=self._replicas,
            purgatory=purgatory,
            controller=self._node,
            memory=memory,
            fetch_sessions=FetchSessions(system.rng, slots, purgatory, memory),
            groups=self._groups,
            transactions=self._transactions,
            verified_appends=self._verified_appends,
            times=RequestTimes(),
            wall_ms=system.wall_ms,
            machine=system.machine,
            is_shutting_down=shutdown.is_set,
            silent_leaders=self._fetchers.silent_leaders,
            defects=defects,
            clock_statistics=clock.statistics,
            cleaner_statistics=self._cleaner.statistics,
            in_worker=system.in_worker,
            room_statistics=manager.room_statistics,
            log_directories=manager.states,
            log_moves=manager.moves,
        )
        acceptor = Acceptor(services, listeners, system.dispatch, manager.descriptors)
        self._sources = Sources(
            services, acceptor, self._fetchers, self._flusher, self._isr_proposals
        )

    def _make_replicas(self, purgatory: Purgatory) -> Replicas:
        collaborators = Collaborators(
            manager=self._manager,
            purgatory=purgatory,
            flusher=self._flusher,
            fetchers=self._fetchers,
            isr_proposals=self._isr_proposals,
            wall_ms=self._system.wall_ms,
            broker=self,
        )
        return self._system.replicas_type(self._config, collaborators)

    def _make_groups(self, purgatory: Purgatory) -> Coordinator:
        return Coordinator(
            self._config,
            self._replicas,
            purgatory,
            self._system.wall_ms,
            self._node.may_decide_alone,
            self._system.rng,
            expiry_ms=self._expiry_ms,
        )

    def _make_transactions(self, purgatory: Purgatory) -> TransactionCoordinator:
        return TransactionCoordinator(
            self._config,
            self._replicas,
            purgatory,
            self._system.wall_ms,
            self._node.may_decide_alone,
            expiry_ms=self._expiry_ms,
        )

    def _make_cleaner(self) -> LogCleaner:
        return LogCleaner(
            cleaner_limits(self._config),
            self._replicas.partitions,
            self._expiry_ms,
            self._system.in_worker,
            self._manager.checkpoint_first_dirty,
        )

    def _make_marker_sender(self) -> MarkerSender:
        return MarkerSender(
            self._config.node_id,
            self._system.network,
            lambda: self._replicas.image,
            self._transactions.markers,
            self._transactions.on_marked,
        )

    @property
    def broker_epoch(self) -> int:
        """The epoch of the present registration, -1 before the first."""
        return self._node.broker_epoch

    def on_damage(self) -> None:
        """Register again, because the registration tells the controller which logs are damaged or
        offline."""
        self._node.register_anew()

    def on_topic_removed(self, topic: str, now: float) -> None:
        """Delete the committed offsets of a topic that was deleted."""
        self._groups.forget_topic(topic, now)

    async def run(
        self, mark: ClusterMark, http: "HttpServer | None", task_status: trio.TaskStatus[Started]
    ) -> None:
        """Register, serve until the shutdown, close the logs, and withdraw the registration."""
        if http is not None:
            http.show(self._sources)
        listening = tuple(
            NamedEndpoint(name, *listener.endpoint) for name, listener in self._listeners.items()
        )
        advertised = self._config.advertised(listening, self._system.hostname)
        registration = RegistrationFacts(
            advertised[0].endpoint,
            self._manager.directory.directory_id,
            self._manager.directory.run,
            tail_safe=self._manager.tail_safe,
            was_synced=self._manager.was_synced,
            damaged=lambda: self._manager.damaged,
            listeners=advertised,
            level_revision=mark.level_revision,
            offline=lambda: self._manager.offline,
        )

        def tell_started() -> None:
            damaged = self._manager.damaged
            endpoint = None if http is None else http.endpoint
            task_status.started(Started(listening, advertised, mark.cluster_id, damaged, endpoint))

        async with trio.open_nursery() as membership:
            epoch = await _unless(self._shutdown, membership.start, self._node.run, registration)
            if epoch is not None:
                await self._work(tell_started)
            high_watermarks = self._replicas.high_watermarks()
            logs = self._closed_logs()
            is_clean = await self._system.in_worker(
                self._manager.close, high_watermarks, self._system.wall_ms()
            )
            membership.cancel_scope.cancel()
        await self._node.close(logs if is_clean else None)

    def _closed_logs(self) -> list[ClosedLog]:
        """Return where each sound log ends. Nothing changes the logs any more."""
        return [
            ClosedLog(log.topic_id, name.partition, log.epochs.newest_epoch, log.log_end)
            for name, log in self._manager.logs.items()
            if log.damage is None
        ]

    async def _work(self, tell_started: Callable[[], None]) -> None:
        """Serve until the shutdown, and then until the leaderships are handed over."""
        config = self._config
        intervals = Intervals(
            config.replica_lag_time_max_ms / 2000, config.follower_silence_interval_s
        )
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._flusher.run, self._replicas.on_flushed)
            nursery.start_soon(self._fetchers.run, self._replicas)
            nursery.start_soon(self._replicas.log_starts.run, self._write_log_starts)
            nursery.start_soon(self._tend)
            nursery.start_soon(
                keep_isrs, self._replicas, self._isr_proposals, self._node.call, intervals
            )
            async with trio.open_nursery() as connections:
                connections.start_soon(self._groups.run, self._system.in_worker)
                connections.start_soon(self._transactions.run, self._system.in_worker)
                connections.start_soon(self._make_marker_sender().run)
                links = CoordinatorLinks(
                    config.node_id, self._system.network, self._transactions.keeper
                )
                connections.start_soon(links.run)
                verifier = TransactionVerifier(self._verified_appends, links.verify)
                connections.start_soon(verifier.run)
                connections.start_soon(
                    self._services.offset_lookups.run,
                    self._system.in_worker,
                    self._services.purgatory.notify,
                )
                connections.start_soon(self._sources.acceptor.run)
                nursery.start_soon(self._begin, tell_started)
                await self._shutdown.wait()
                await self._node.leave()
                connections.cancel_scope.cancel()
            nursery.cancel_scope.cancel()

    async def _begin(self, tell_started: Callable[[], None]) -> None:
        """Wait for all roles, report the start, and begin the duties that need the roles."""
        await self._replicas.ready.wait()
        self._report_tail()
        tell_started()
        async with trio.open_nursery() as duties:
            duties.start_soon(self._keep_house)
            if self._config.log_cleaner_enable:
                duties.start_soon(self._cleaner.run)
            if len(self._manager.directories) > 1:
                parts = self._system, self._manager, self._replicas, self._flusher
                duties.start_soon(_log_mover(*parts, self._services.purgatory).run)

    async def _tend(self) -> None:
        """Every second: watch the wall clock, take off the replicas of log directories that have
        failed, write the log lines about partitions that were put off, answer parked requests if
        another broker may lead, and settle memory at the start and after many new partitions. Every
        two seconds: collect garbage, give free memory back, and look at the disks' room."""
        settled, released_at = -SETTLED_PARTITIONS, trio.current_time()
        while True:
            await trio.sleep(TENDING_S)
            now = trio.current_time()
            self._clock.observe(self._system.wall_ms(), now)
            self._replicas.flush_events(now)
            await _tend_directories(self._replicas, self._manager, self._system.in_worker)
            if not self._node.may_decide_alone(now):
                await take_turns(self._services.wake_abandoned(now))
            count = len(self._replicas.partitions)
            if abs(count - settled) >= SETTLED_PARTITIONS:
                settled = count
                self._system.settle_memory()
            if now >= released_at + RELEASE_S:
                released_at = now
                held_bytes = self._services.memory.statistics()
                self._system.collect_garbage(now, held_bytes)
                await self._system.in_worker(self._system.release_memory, held_bytes)
                await take_turns(_observe_disk(self._manager, self._system.machine()))

    def _report_tail(self) -> None:
        """Log that the end of logs may be lost. The controller, which admitted us, knows it."""
        if not self._manager.tail_safe:
            logger.warning(
                "The machine stopped, or its disk failed, while this broker ran: what was not"
                " flushed may be lost"
            )
        self._manager.forget_lost_tail()

    async def _write_log_starts(self) -> bool:
        return await self._system.in_worker(self._manager.checkpoint_log_starts)

    async def _keep_house(self) -> None:
        """Do the recurring duties, until cancelled. Those that sync files run in a worker; those
        over all partitions take turns."""
        house = Housekeeping(intervals(self._config), trio.current_time())
        while True:
            await trio.sleep_until(house.next_deadline)
            for duty in house.due(trio.current_time()):
                await self._do(duty)

    def _expiry_ms(self) -> int:
        """Return the wall clock by which things expire: not the present one if it has jumped."""
        return self._clock.expiry_ms(self._system.wall_ms(), trio.current_time())

    async def _do(self, duty: Duty) -> None:
        manager = self._manager
        match duty:
            case Duty.HIGH_WATERMARKS:
                manager.record_high_watermarks(self._replicas.high_watermarks())
                await self._system.in_worker(manager.checkpoint_high_watermarks)
            case Duty.RECOVERY_POINTS:
                await self._system.in_worker(manager.checkpoint_recovery_points)
            case Duty.LOG_STARTS:
                await self._system.in_worker(manager.checkpoint_log_starts)
            case Duty.RETENTION:
                await take_turns(self._replicas.apply_retention(self._expiry_ms()))
            case Duty.DELETED_FILES:
                removal = manager.remove_deleted_files(self._system.wall_ms())
                await take_steps(removal, self._system.in_worker)
            case Duty.PRODUCERS:
                await take_turns(manager.expire_producers(self._expiry_ms()))
            case Duty.UNCREATED_LOGS:
                await take_turns(self._replicas.retry(trio.current_time))


async def _tend_directories(replicas: Replicas, manager: LogManager, in_worker: InWorker) -> None:
    """Take off the replicas of log directories that have failed, and remember what is where."""
    replicas.take_off_failed()
    if manager.has_news:
        await in_worker(manager.write_known)


def _observe_disk(manager: LogManager, facts: MachineFacts) -> Turns[None]:
    return manager.observe_disks([DiskSpace(*space) for space in facts.disks])


def _log_mover(
    system: System,
    manager: LogManager,
    replicas: Replicas,
    flusher: Flusher,
    purgatory: Purgatory,
) -> LogMover:
    return LogMover(
        manager.moves,
        replicas.partitions,
        flusher,
        replicas.quotas.moves,
        system.in_worker,
        system.wall_ms,
        purgatory.notify,
    )


def _order_handlers(
    replicas: Replicas, purgatory: Purgatory, defects: Defects
) -> OwnBrokerHandlers:
    """Return the handlers by which a controller in this process calls this broker."""
    return OwnBrokerHandlers(
        obey_roles=replicas.obey_roles,
        stop=replicas.stop,
        update_metadata=replicas.update_metadata,
        describe=replicas.describe,
        notify=purgatory.notify,
        hand_over=replicas.hand_over,
        defects=defects,
    )


def _connect(config: Config, system: System) -> Connect:
    """Return how fetchers connect to their leaders."""
    timeout_s = config.replica_socket_timeout_ms / 1000
    options = ChannelOptions(f"fetcher-of-broker-{config.node_id}", request_timeout_s=timeout_s)
    if config.replica_fetcher == "thread":
        return connect_by_thread(options, system.connect_socket)
    return connect_by_task(system.network, options)
