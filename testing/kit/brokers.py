"""The brokers of one test's cluster: their processes, and the faults of processes."""

import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from threading import RLock
from typing import Final, NamedTuple, Self
from uuid import uuid4

from minibroker.testing.kit.broker_process import (
    BrokerFailed,
    BrokerProcess,
    ProcessGroup,
    wait_until_ready,
)
from minibroker.testing.kit.faults import Fault
from minibroker.testing.kit.injected_faults import InjectedFaults
from minibroker.testing.kit.run_directory import PORTS, RunDirectory
from minibroker.testing.kit.settings import HOST, BrokerPorts, ClusterSettings
from minibroker.testing.kit.state import numbers

START_S_MAX: Final = 60.0


class Event(NamedTuple):
    """An event in the timeline; `at_s` counts from the start of the cluster, in seconds."""

    at_s: float
    text: str

    def __str__(self) -> str:
        return f"{self.at_s:8.3f}  {self.text}"


class Brokers:
    """Brokers 1 to N on this machine, which run until the `with` block ends.

    Methods that break something return a `Fault`, which a `with` block undoes. They raise
    `BrokerFailed` for a broker that ends by itself or does not answer.
    """

    def __init__(self, settings: ClusterSettings | None = None, ports: range = PORTS) -> None:
        self.settings = settings or ClusterSettings()
        self._ports_range = ports
        self._has_ended = False
        self._lock = RLock()  # held while brokers start, end or get faults
        self._events: list[Event] = []
        self._faults: list[Fault] = []
        self._down: set[int] = set()  # because the test wants it
        self._injected = InjectedFaults()
        self._brokers: dict[int, BrokerProcess] = {}
        self._last_lines: dict[int, str] = {}  # once the cluster has ended
        self._place: RunDirectory | None = None
        self._keep_as: Path | None = None
        self._began = time.monotonic()
        self._began_at = time.time()
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        if self._place is None:
            state = "has ended" if self._has_ended else "is not started"
            return f"<{type(self).__name__} of {len(self.node_ids)} brokers, {state}>"
        faults = [fault.text for fault in self._faults if not fault.is_undone]
        shown = f", faults: {'; '.join(faults)}" if faults else ""
        running = [each for each, broker in self._brokers.items() if broker.is_running]
        which = numbers(running) or "none"
        return f"<{type(self).__name__} at {self.bootstrap}, running: {which}{shown}>"

    def _open(self) -> None:
        self._place = place = RunDirectory.reserve(ports=self._ports_range)
        self._stack.callback(lambda: place.release(self._keep_as))
        group = ProcessGroup()
        self._stack.callback(group.kill)
        prefix = f"minibroker-test-{uuid4().hex}"
        for node_id in self.node_ids:
            ports = BrokerPorts.of(place.base_port, node_id)
            properties = self.settings.broker_properties(node_id, str(place.root), ports, prefix)
            broker = BrokerProcess(node_id, place.root, properties, ports.orders, group)
            self._brokers[node_id] = broker
            self._stack.callback(broker.end)

    @property
    def bootstrap(self) -> str:
        """The addresses of all brokers, as `bootstrap.servers` has them."""
        return ",".join(f"{HOST}:{self._ports(node_id).clients}" for node_id in self.node_ids)

    @property
    def began_at(self) -> float:
        """When the cluster was made, as Unix time in seconds; `timeline` counts from then."""
        return self._began_at

    @property
    def node_ids(self) -> range:
        """The numbers of the brokers."""
        return self.settings.node_ids

    # -- faults of processes

    def kill(self, *node_ids: int) -> Fault:
        """Kill these brokers (`kill -9`); the undo starts them again."""
        return self._take_down("kill", node_ids, BrokerProcess.kill)

    def stop(self, *node_ids: int) -> Fault:
        """Stop these brokers by controlled shutdown, one by one; the undo starts them again."""
        return self._take_down("stop", node_ids, BrokerProcess.stop)

    def pause(self, *node_ids: int) -> Fault:
        """Pause these brokers (SIGSTOP), as a long pause of their machine would; the undo resumes
        them."""
        with self._lock:
            brokers = self._running(node_ids)
            for broker in brokers:
                if broker.is_paused:
                    raise ValueError(f"broker {broker.node_id} is paused already")
            fault = self.add_fault(
                Fault(
                    f"pause {numbers(node_ids)}",
                    node_ids,
                    lambda: self.resume(*node_ids),
                    takes_down=True,
                )
            )
            for broker in brokers:
                broker.pause()
            return fault

    def resume(self, *node_ids: int) -> None:
        """Resume paused brokers, by default all."""
        with self._lock:
            for node_id in node_ids or self.node_ids:
                if self._broker(node_id).is_paused:
                    self._broker(node_id).resume()
                    self._down.discard(node_id)
                    self._order_faults(node_id)
                    self.note(f"resume {node_id}")

    def start(self, *node_ids: int) -> Self:
        """Start brokers that do not run, by default all, and return the cluster once they answer.

        A cluster begins with the first start: in a shell, say
        `cluster = running_cluster().start()`, and at the end `cluster.close()`.
        """
        with self._lock:
            if self._place is not None:
                self._start(node_ids)
                return self
            if self._has_ended:
                raise RuntimeError("this cluster has ended: make another one")
            try:
                self._open()
                self._start(node_ids)
            except BaseException:
                if self._brokers:
                    self.keep()
                self.close()
                raise
            return self

    def _start(self, node_ids: tuple[int, ...]) -> None:
        wanted = [self._broker(node_id) for node_id in node_ids or self.node_ids]
        starting = [broker for broker in wanted if not broker.is_running]
        for broker in starting:
            broker.start(self._injected.of(broker.node_id))
        answering = [broker for broker in wanted if not broker.is_paused]
        wait_until_ready(answering, START_S_MAX)
        self._down.difference_update(broker.node_id for broker in answering)
        if starting:
            self.note(f"started {numbers([broker.node_id for broker in starting])}")

    def restart(self, *node_ids: int) -> None:
        """Stop these brokers by controlled shutdown, by default all, and start them again."""
        chosen = node_ids or tuple(self.node_ids)
        self.stop(*chosen).undo()

    # -- looking at them

    def pid(self, node_id: int) -> int:
        """Return the process id of a broker."""
        return self._broker(node_id).pid

    def data_dir(self, node_id: int) -> Path:
        """Return the data directory of a broker."""
        return self._broker(node_id).data_dir

    def log_lines(self, node_id: int, count: int = 20) -> str:
        """Return the last lines that a broker has printed; also when the cluster has ended."""
        if node_id in self._last_lines:
            return self._last_lines[node_id]
        return self._broker(node_id).last_lines(count)

    def timeline(self) -> tuple[Event, ...]:
        """Return what was done to the cluster, and when."""
        return tuple(self._events)

    def note(self, text: str) -> None:
        """Add a line to the timeline, which the report of a failed test shows."""
        self._events.append(Event(time.monotonic() - self._began, text))

    def add_fault(self, fault: Fault) -> Fault:
        """Record a fault that begins now, for the timeline and for `heal`; return the fault."""
        self._faults.append(fault)
        if fault.takes_down:
            self._down.update(fault.brokers)
        self.note(fault.text)
        return fault

    # -- for the fixtures

    def check_alive(self) -> None:
        """Raise `BrokerFailed` if a broker has ended by itself."""
        for broker in self._brokers.values():
            if broker.node_id not in self._down and not broker.is_running:
                raise BrokerFailed(broker.how_it_ended())

    def keep(self) -> Path | None:
        """Keep the directory when the cluster ends, and return its place then. Return None if the
        cluster has ended and its directory was not kept."""
        if self._keep_as is None and self._place is not None:
            self._keep_as = self._place.kept_as
        return self._keep_as

    def close(self) -> None:
        """Kill all brokers, and remove the directory unless it is to be kept. A second call does
        nothing."""
        self._has_ended = True
        for node_id, broker in self._brokers.items():
            self._last_lines.setdefault(node_id, broker.last_lines())
        try:
            self._stack.close()
        finally:
            self._place = None

    # -- inside

    @property
    def _open_place(self) -> RunDirectory:
        if self._place is None:
            raise RuntimeError(
                "this cluster does not run: it has ended, or neither a with block nor start() has"
                " begun it"
            )
        return self._place

    def _ports(self, node_id: int) -> BrokerPorts:
        return BrokerPorts.of(self._open_place.base_port, node_id)

    def _address_for_brokers(self, node_id: int) -> str:
        return f"{HOST}:{self._ports(node_id).brokers}"

    def _order_faults(self, node_id: int) -> None:
        """Send a broker the faults that it must apply now. A broker that is down or paused gets
        them when it starts or resumes."""
        broker = self._brokers[node_id]
        if broker.is_running and not broker.is_paused:
            broker.order("set_faults", faults=self._injected.of(node_id).as_json())

    def _broker(self, node_id: int) -> BrokerProcess:
        if node_id not in self.node_ids:
            raise ValueError(f"there is no broker {node_id}; there are {numbers(self.node_ids)}")
        assert self._open_place
        return self._brokers[node_id]

    def _running(self, node_ids: tuple[int, ...]) -> list[BrokerProcess]:
        """Return these brokers. Raises `ValueError` if none is named, or the test has taken one
        down, and `BrokerFailed` if one has ended by itself."""
        if not node_ids:
            raise ValueError("name at least one broker")
        brokers = [self._broker(node_id) for node_id in dict.fromkeys(node_ids)]
        for broker in brokers:
            if not broker.is_running and broker.node_id in self._down:
                raise ValueError(f"broker {broker.node_id} does not run")
        self.check_alive()
        return brokers

    def _take_down(
        self, text: str, node_ids: tuple[int, ...], end: Callable[[BrokerProcess], None]
    ) -> Fault:
        with self._lock:
            brokers = self._running(node_ids)
            fault = self.add_fault(
                Fault(
                    f"{text} {numbers(node_ids)}",
                    node_ids,
                    lambda: self.start(*node_ids),
                    takes_down=True,
                )
            )
            for broker in brokers:
                end(broker)
            return fault
