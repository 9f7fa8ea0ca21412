"""The composition root: what a broker is made of, in which order it starts, and how it stops.

    serve
     |- Acceptor.run          takes connections
     |   |- _close_idle       closes the silent ones
     |   `- Session.run       one per connection: the reader
     |       `- the writer
     |- Controller.run        elects itself, gives out roles, then does jobs
     |- Flusher.run           syncs what was appended
     `- _keep_house           retention, checkpoints, expiry, deleted files

Start: lock the data directory, bind the address (a taken one is noticed before any log is
touched), open the logs in a worker, become controller and take roles, and only then accept. So
who connects early waits, and is never told a half truth.

Clean stop: connections first, then everything that works, then high watermarks, logs and the clean
mark. A request that still waits is not answered: its client sees a closed connection.

Any exception of a task ends the others and leaves `serve`: no clean mark is written, and the next
start recovers. Nothing is caught here to keep a broken broker alive.

`System` is all that a simulation replaces; with trio's clock it is all that a broker knows of the
world. Nothing here prints: what happened is returned through `task_status`, and logged.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import PurePath
from random import Random
from typing import NamedTuple

import trio

from minibroker.broker.config import Config
from minibroker.broker.controller.controller import (
    Controller,
    Ports,
    Registration,
    ensure_cluster_id,
)
from minibroker.broker.disk import InWorker
from minibroker.broker.log.files import Files
from minibroker.broker.log.housekeeping import Duty, Housekeeping, Interval
from minibroker.broker.log.manager import LogManager
from minibroker.broker.metadata.model import ClusterImage
from minibroker.broker.metadata.store import MetadataStore
from minibroker.broker.replication.flusher import Flusher
from minibroker.broker.replication.purgatory import Purgatory
from minibroker.broker.replication.replicas import Replicas
from minibroker.broker.server.fetch_sessions import FetchSessions
from minibroker.broker.server.listener import Acceptor
from minibroker.broker.server.services import Services
from minibroker.client.net import Listener, Network
from minibroker.protocol.types import Endpoint, TopicPartition

logger = logging.getLogger(__name__)

RETENTION_DELAY_S = 30.0  # after the start, so that it does not compete with it
DELETED_FILES_INTERVAL_S = 10.0
UNMADE_LOGS_INTERVAL_S = 5.0


@dataclass(frozen=True, slots=True)
class System:
    """The world outside: what `serve` needs of it and does not make itself.

    `wall_ms` is the wall clock in milliseconds, `boot_id` names the machine's current run. The
    store is closed by who opened it.
    """

    network: Network
    files: Files
    store: MetadataStore
    wall_ms: Callable[[], int]
    boot_id: str
    rng: Random
    in_worker: InWorker
    replicas_type: type[Replicas] = Replicas


class Started(NamedTuple):
    """What a broker that answers says of itself."""

    endpoint: Endpoint  # where it listens
    advertised: Endpoint  # where clients are told to connect
    cluster_id: str
    damaged: tuple[TopicPartition, ...]  # offline until an operator accepts the loss


async def serve(
    config: Config,
    system: System,
    shutdown: trio.Event,
    task_status: trio.TaskStatus[Started] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Be a broker until `shutdown` is set, then stop cleanly. Started once requests are answered.

    Raises what made it impossible to start or to go on, in an exception group if it happened in
    one of the tasks: `DataDirectoryError`, `StoreError`, `OSError` (a taken address, a failed
    fsync), or a defect.
    """
    manager = LogManager(system.files, config.log_dirs, config.for_topic().limits())
    manager.lock()
    try:
        listener = await system.network.listen(config.listeners)
        try:
            cluster_id = await ensure_cluster_id(system.store, system.rng)
            await system.in_worker(
                manager.start, system.boot_id, cluster_id, config.node_id, system.wall_ms()
            )
            broker = _Broker(config, system, manager, listener)
            await broker.run(cluster_id, shutdown, task_status)
            await system.in_worker(manager.close, broker.replicas.high_watermarks())
        finally:
            listener.close()
    finally:
        manager.abandon()


class _Broker:
    """The parts of a running broker, and the tasks that keep them going."""

    def __init__(
        self, config: Config, system: System, manager: LogManager, listener: Listener
    ) -> None:
        self._config = config
        self._system = system
        self._manager = manager
        self._listener = listener
        purgatory = Purgatory()
        self._flusher = Flusher(purgatory, self._sync_dir)
        self.replicas = Replicas(config, manager, purgatory, self._flusher, system.wall_ms)
        ports = Ports(
            reconfigure=self.replicas.reconfigure,
            apply=self.replicas.apply,
            stop=self.replicas.stop,
            publish=self._publish,
            notify=purgatory.notify,
        )
        self._controller = Controller(config, system.store, ports, system.rng)
        slots = config.max_incremental_fetch_session_cache_slots
        self._services = Services(
            config=config,
            replicas=self.replicas,
            purgatory=purgatory,
            controller=self._controller,
            fetch_sessions=FetchSessions(system.rng, slots),
            wall_ms=system.wall_ms,
            image=ClusterImage(),
        )

    async def run(
        self, cluster_id: str, shutdown: trio.Event, task_status: trio.TaskStatus[Started]
    ) -> None:
        """Run all tasks until the shutdown."""
        endpoint = self._listener.endpoint
        damaged = self._manager.statistics().damaged
        advertised = _advertised(self._config, endpoint)
        registration = Registration(advertised, damaged)
        acceptor = Acceptor(self._services, self._listener)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._flusher.run)
            await nursery.start(self._controller.run, registration)
            self._report_tail()
            nursery.start_soon(self._keep_house)
            async with trio.open_nursery() as connections:
                connections.start_soon(acceptor.run)
                task_status.started(Started(endpoint, advertised, cluster_id, damaged))
                await shutdown.wait()
                connections.cancel_scope.cancel()
            nursery.cancel_scope.cancel()

    def _publish(self, image: ClusterImage) -> None:
        self._services.image = image

    def _report_tail(self) -> None:
        """The controller has just given out roles: a lost tail concerns nobody after this."""
        if not self._manager.tail_safe:
            logger.warning(
                "The machine stopped while this broker ran: records that were not flushed yet"
                " may be lost"
            )
        self._manager.forget_lost_tail()

    async def _sync_dir(self, directory: PurePath) -> None:
        await self._system.in_worker(self._system.files.sync_dir, directory)

    async def _keep_house(self) -> None:
        """Do the recurring duties. What syncs a file goes to a worker, the rest is quick."""
        house = Housekeeping(_intervals(self._config), trio.current_time())
        while True:
            await trio.sleep_until(house.next_deadline)
            for duty in house.due(trio.current_time()):
                await self._do(duty)

    async def _do(self, duty: Duty) -> None:
        manager, now_ms = self._manager, self._system.wall_ms()
        high_watermarks = self.replicas.high_watermarks()
        match duty:
            case Duty.HIGH_WATERMARKS:
                manager.note_high_watermarks(high_watermarks)
                await self._system.in_worker(manager.checkpoint_high_watermarks)
            case Duty.RECOVERY_POINTS:
                await self._system.in_worker(manager.checkpoint_recovery_points)
            case Duty.LOG_STARTS:
                await self._system.in_worker(manager.checkpoint_log_starts)
            case Duty.RETENTION:
                manager.apply_retention(high_watermarks, now_ms)
            case Duty.DELETED_FILES:
                manager.remove_deleted_files(now_ms)
            case Duty.PRODUCERS:
                manager.expire_producers(now_ms)
            case Duty.UNMADE_LOGS:
                self.replicas.retry()


def _advertised(config: Config, endpoint: Endpoint) -> Endpoint:
    """Where clients are told to connect, of a broker that listens at `endpoint`."""
    advertised = config.advertised_listeners or endpoint
    return Endpoint(advertised.host, advertised.port or endpoint.port)


def _intervals(config: Config) -> Mapping[Duty, Interval]:
    def every(interval_ms: int) -> Interval:
        return Interval(interval_ms / 1000, interval_ms / 1000)

    retention_s = config.log_retention_check_interval_ms / 1000
    return {
        Duty.HIGH_WATERMARKS: every(config.replica_high_watermark_checkpoint_interval_ms),
        Duty.RECOVERY_POINTS: every(config.log_flush_offset_checkpoint_interval_ms),
        Duty.LOG_STARTS: every(config.log_flush_start_offset_checkpoint_interval_ms),
        Duty.RETENTION: Interval(min(RETENTION_DELAY_S, retention_s), retention_s),
        Duty.DELETED_FILES: Interval(DELETED_FILES_INTERVAL_S, DELETED_FILES_INTERVAL_S),
        Duty.PRODUCERS: every(config.producer_id_expiration_check_interval_ms),
        Duty.UNMADE_LOGS: Interval(UNMADE_LOGS_INTERVAL_S, UNMADE_LOGS_INTERVAL_S),
    }
