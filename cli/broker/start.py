"""`minibroker start`: one broker in this process, until SIGTERM or SIGINT.

This is the composition root of the real broker. It makes the network, the disk, the store, the
clocks and the random generator, and hands them to `broker.app.serve`. A simulation hands over its
own, and `testing.node` wraps the real ones. The first signal stops the broker in order: it flushes
the logs, writes the clean-shutdown mark and exits with 0. A second signal ends the process at once,
which is no worse than `kill -9`: the next start recovers the logs.
"""

import errno
import os
import random
import signal
import socket
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

import typer

from minibroker.cli.broker.announcements import Announcer
from minibroker.cli.broker.data_directory import log_directories, volume_warning
from minibroker.cli.broker.stores import check_store, open_store, store_name, wait_for_store
from minibroker.cli.cluster.layout import FILE as CLUSTER_FILE
from minibroker.cli.settings import ConfigFile, Settings, given_settings, load_settings
from minibroker.cli.terminal import Failure, OutputFormat, end_now, note

if TYPE_CHECKING:
    import trio

    from minibroker.broker.app import Started, System
    from minibroker.broker.config import Config
    from minibroker.broker.metadata.store import MetadataStore
    from minibroker.broker.observe.http import HttpServer
    from minibroker.protocol.types import Endpoint

FILES_MAX = 65_536


def start(
    file: ConfigFile = None,
    settings: Settings = None,
    *,
    data_dir: Annotated[
        Path | None,
        typer.Option(
            "--data-dir",
            "-d",
            help="Data directory; several log directories with commas between them.",
            show_default=False,
        ),
    ] = None,
    listen: Annotated[
        str,
        typer.Option(
            "--listen",
            "-l",
            metavar="HOST:PORT",
            help="Address to listen on; a port alone: 127.0.0.1. Default: 127.0.0.1:9092.",
        ),
    ] = "",
    flush: Annotated[
        str,
        typer.Option(
            "--flush", metavar="never|interval|always", help="When records are forced to the disk."
        ),
    ] = "",
    log_format: Annotated[
        OutputFormat | None,
        typer.Option("--log-format", help="Shape of the log lines; default: text."),
    ] = None,
) -> None:
    """Start one broker and run it until SIGTERM or Ctrl-C.

    It keeps everything in its data directory. Started again with the same directory, it continues
    where it stopped, even after `kill -9`.
    """
    named = {
        "log.dirs": str(data_dir or ""),
        "listeners": listen,
        "flush": flush,
        "log.format": log_format or "",
    }
    given = {name: value for name, value in named.items() if value}
    run_broker(load_settings(file, given_settings(settings) | given).config, nullcontext)


# Makes the system that the broker uses from the real one.
WrapSystem: TypeAlias = "Callable[[System], AbstractAsyncContextManager[System]]"


def run_broker(config: "Config", wrap_system: WrapSystem) -> None:
    """Run one broker in this process until a signal ends it. Raises `Failure` if the broker cannot
    start or go on."""
    import trio

    from minibroker.broker.observe.logs import configure_logs

    configure_logs(sys.stdout, config.log_format)
    _raise_file_limit()
    config = replace(config, log_dirs=log_directories(*map(Path, config.log_dirs)))
    for directory in config.log_dirs:
        if warning := volume_warning(Path(directory), os.environ):
            note(f"WARNING: {warning}")
    _check_directory(config)
    check_store(config)
    try:
        trio.run(_run, config, wrap_system)
    except* OSError as group:
        raise _failure_of(_first(group)) from None


async def _run(config: "Config", wrap_system: WrapSystem) -> None:
    """The broker and the task that waits for signals."""
    import trio

    from minibroker.broker.app import serve

    announcer = Announcer(config)
    shutdown = trio.Event()
    rng = random.Random()
    async with trio.open_nursery() as nursery:
        await nursery.start(_shut_down_on_signal, shutdown, announcer)
        store = await open_store(config, rng)
        try:
            async with trio.open_nursery() as waiting:
                waiting.start_soon(_cancel_after, shutdown, waiting.cancel_scope)
                await wait_for_store(store, config)
                waiting.cancel_scope.cancel()
            if not shutdown.is_set():
                async with wrap_system(_real_system(config, store, rng)) as system:
                    await serve(config, system, shutdown, _AnnouncedStart(announcer))
        finally:
            with trio.CancelScope(shield=True):
                await store.close()
        nursery.cancel_scope.cancel()
    announcer.announce_stopped()


class _AnnouncedStart:
    """A `trio.TaskStatus` that announces the broker's start."""

    def __init__(self, announcer: Announcer) -> None:
        self._announcer = announcer

    def started(self, value: "Started | None" = None) -> None:
        """Announce that the broker has started."""
        assert value is not None
        self._announcer.announce_started(value)


async def _cancel_after(event: "trio.Event", scope: "trio.CancelScope") -> None:
    await event.wait()
    scope.cancel()


async def _shut_down_on_signal(
    shutdown: "trio.Event", announcer: Announcer, task_status: "trio.TaskStatus[None]"
) -> None:
    import trio

    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        task_status.started()
        async for number in signals:
            if shutdown.is_set():
                end_now(number)
            announcer.announce("shutting down; a second signal ends at once")
            shutdown.set()


def _raise_file_limit() -> None:
    """Raise the limit of open files: each connection and each log needs a descriptor, and shells
    start with few."""
    import resource  # not on Windows, where this module is imported for its help

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES_MAX if hard == resource.RLIM_INFINITY else min(FILES_MAX, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _real_system(config: "Config", store: "MetadataStore", rng: random.Random) -> "System":
    """Return the real form of everything that a simulation replaces."""
    from minibroker.broker.app import System
    from minibroker.broker.clock import boot_id, wall_ms
    from minibroker.broker.disk import SENDS_AT_ONCE, RealFiles, Workers, in_worker
    from minibroker.broker.machine import RealMachine
    from minibroker.broker.process_memory import ProcessMemory
    from minibroker.client.net.network import TcpNetwork

    memory = ProcessMemory(time.perf_counter)
    return System(
        network=TcpNetwork(Workers(SENDS_AT_ONCE)),
        files=RealFiles(),
        store=store,
        wall_ms=wall_ms,
        boot_id=boot_id(),
        rng=rng,
        in_worker=in_worker,
        machine=RealMachine(config.log_dirs, store_name(config)),
        hostname=socket.gethostname(),
        open_http=_http_of(config),
        settle_memory=memory.settle,
        release_memory=memory.release,
        collect_garbage=memory.collect,
    )


def _http_of(config: "Config") -> "Callable[[Endpoint], Awaitable[HttpServer]] | None":
    """Return how to serve HTTP, None if it is not configured; then its libraries are not loaded."""
    if config.http_listener is None:
        return None
    from minibroker.broker.observe.http import open_http

    return open_http


def _check_directory(config: "Config") -> None:
    """Raise `Failure` for a cluster's directory, or a cluster's broker without its store."""
    root = Path(config.data_dir)
    if (root / CLUSTER_FILE).exists():
        raise Failure(
            f"{root} is the directory of a cluster, which `minibroker cluster up --data-dir {root}`"
            " starts; a single broker needs another one"
        )
    if (root.parent / CLUSTER_FILE).exists() and config.metadata_store is None:
        number = root.name.rpartition("-")[2]
        raise Failure(
            f"{root} belongs to a cluster: minibroker cluster start {number} --data-dir"
            f" {root.parent}"
        )


def _first(group: BaseExceptionGroup[OSError]) -> OSError:
    first = group.exceptions[0]
    return _first(first) if isinstance(first, BaseExceptionGroup) else first


def _failure_of(error: OSError) -> Failure:
    """Return the failure with what the user can do about it."""
    from minibroker.broker.observe.sources import CannotServeHttp
    from minibroker.broker.server.listener import CannotListen

    if isinstance(error, CannotListen):
        where = f"{error.listener.endpoint} (listener {error.listener.name})"
        if error.errno == errno.EADDRINUSE:
            return Failure(
                f"{where} is taken by another program; stop it, or choose another address with"
                " --listen HOST:PORT (port 0 takes a free one)"
            )
        if error.errno == errno.EADDRNOTAVAIL:
            return Failure(f"{where} is no address of this machine; see --listen")
    if isinstance(error, CannotServeHttp):
        return Failure(
            f"http.listener={error.endpoint}: {error.reason}; choose another address for health"
            " and metrics (port 0 takes a free one), or leave it out"
        )
    where = f": {error.filename}" if error.filename else ""
    return Failure(f"the broker ended: {error.strerror or error}{where}")
