"""Count what a controller, its brokers and the store say to each other, by the cluster's size.

    python -m tests.bench.scale [--brokers N]... [--partitions N|Nx]...

Clusters of real brokers run on virtual time (`testing.cluster`), so the counts of a size are the
same in each run. They have RF 3 and the settings of a broker; the partitions are those of one
topic. What is counted are the requests and answers on the wire, with their bytes as the network
carries them, and the calls of the store with the keys and values that they write.

* idle: in a second.
* create: a topic with all the partitions, until the brokers were told.
* one partition more: a topic with one partition.
* a broker fails: a broker that is not the controller dies. It comes back as another event.
* the controller fails: another broker is elected, and tells all brokers everything.
* start: all brokers die and start again.

An event counts what the periodic messages (PROBE, FETCH) are not. The controller's own broker is
told by plain calls, which are no messages. `CPU` is what the controller's process takes for an
event, periodic messages included, on the simulated network and disk.

What requests cost real brokers, by processor time, is measured by `tests/bench/scale_costs.py`.
"""

import argparse
import statistics
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Final, NamedTuple

import msgpack
import trio

from minibroker.broker.metadata.memory_store import MemoryStore
from minibroker.broker.metadata.store import (
    Compare,
    Delete,
    Entry,
    Put,
    Snapshot,
    TransactionOutcome,
)
from minibroker.client import Admin, NewTopic
from minibroker.client.net.network import Stream
from minibroker.protocol.constants import PREFACE, ApiKey
from minibroker.protocol.types import Buffer, Endpoint
from minibroker.testing.cluster import (
    SimulatedBroker,
    SimulatedCluster,
    SimulatedWorld,
    open_cluster,
    simulate,
)
from minibroker.testing.network import SimulatedHost, SimulatedNetwork, SimulatedStream
from minibroker.testing.pause import PROCESS

BROKERS: Final = (3, 10, 30, 100)
REPLICAS: Final = 3
SETTINGS: Final = {
    "default.replication.factor": str(REPLICAS),
    "min.insync.replicas": "2",
    "auto.leader.rebalance.enable": "false",
}
PERIODIC: Final = {"PROBE", "FETCH", "API_VERSIONS"}
IDLE_S: Final = 2.0
SESSION_S: Final = 1.2  # after which a broker that has died is seen to be gone
QUIET_S: Final = 0.6  # without a message that is not periodic


@dataclass(frozen=True, slots=True)
class Count:
    """Messages, and their bytes."""

    messages: int = 0
    size: int = 0

    def __add__(self, other: "Count") -> "Count":
        return Count(self.messages + other.messages, self.size + other.size)


class Line(NamedTuple):
    """What is counted for itself: from one host to another, of one api, request or answer."""

    source: str
    target: str
    api: str
    is_request: bool


class Traffic:
    """All that was sent since the last `clear`."""

    def __init__(self) -> None:
        self.lines: defaultdict[Line, Count] = defaultdict(Count)
        self.store: defaultdict[str, Count] = defaultdict(Count)  # by the call
        self.used: dict[int, tuple[str, str]] = {}  # connections: who made them, to whom

    @property
    def event_count(self) -> int:
        """Messages that are not periodic."""
        return sum(count.messages for line, count in self.lines.items() if line.api not in PERIODIC)

    def add(self, line: Line, size: int) -> None:
        """A message."""
        self.lines[line] += Count(1, size)

    def add_call(self, name: str, size: int = 0, entries: int = 1) -> None:
        """A call of the store, with the bytes and the number of its entries."""
        self.store[name] += Count(entries, size)

    def clear(self) -> None:
        """Begin anew."""
        for counted in (self.lines, self.store, self.used):
            counted.clear()


class _Frames:
    """Cuts a stream of bytes into frames; the first `skipped` bytes are none."""

    def __init__(self, skipped: int, on_frame: Callable[[memoryview], None]) -> None:
        self._skipped = skipped
        self._on_frame = on_frame
        self._data = bytearray()

    def cut(self, data: Buffer) -> None:
        """Hand on the frames that are whole now, with their lengths."""
        self._data += data
        if self._skipped:
            skipped = min(self._skipped, len(self._data))
            self._skipped -= skipped
            del self._data[:skipped]
        while len(self._data) >= 4:
            end = 4 + int.from_bytes(self._data[:4], "big")
            if len(self._data) < end:
                break
            self._on_frame(memoryview(bytes(self._data[:end])))
            del self._data[:end]


class CountedHost(SimulatedHost):
    """A host that counts the requests on its connections, and the answers to them."""

    def __init__(self, network: SimulatedNetwork, name: str, traffic: Traffic) -> None:
        super().__init__(network, name)
        self._traffic = traffic

    async def connect(self, endpoint: Endpoint) -> Stream:
        """Count what passes the two pipes of the connection."""
        stream = await super().connect(endpoint)
        assert isinstance(stream, SimulatedStream)
        source, target = self.name, endpoint.host
        asked: deque[str] = deque()  # what was asked and not answered, in order
        used = self._traffic.used

        def on_request(frame: memoryview) -> None:
            unpacker = msgpack.Unpacker()
            unpacker.feed(frame[8:])
            unpacker.read_array_header()
            asked.append(ApiKey(unpacker.unpack()).name)
            used[id(stream)] = source, target
            self._traffic.add(Line(source, target, asked[-1], is_request=True), len(frame))

        def on_answer(frame: memoryview) -> None:
            api = asked.popleft()
            self._traffic.add(Line(target, source, api, is_request=False), len(frame))

        _tap(stream._outgoing, _Frames(len(PREFACE), on_request))
        _tap(stream._incoming, _Frames(0, on_answer))
        return stream


def _tap(pipe: Any, frames: _Frames) -> None:
    """Have what a pipe takes cut into frames."""
    put = pipe.put

    def counted(data: Buffer) -> int:
        size: int = put(data)
        frames.cut(data[:size])
        return size

    pipe.put = counted


class CountedNetwork(SimulatedNetwork):
    """A network of such hosts."""

    def __init__(self, rng: Random, traffic: Traffic) -> None:
        super().__init__(rng)
        self._traffic = traffic

    def host(self, name: str) -> SimulatedHost:
        """As `SimulatedNetwork.host`."""
        return self._hosts.setdefault(name, CountedHost(self, name, self._traffic))


class CountedStore(MemoryStore):
    """A store that counts its calls, with what they write or find."""

    def __init__(self, traffic: Traffic) -> None:
        super().__init__()
        self._traffic = traffic
        self._seen: dict[tuple[str, str], Mapping[str, Entry]] = {}

    async def transact(
        self, compare: Sequence[Compare], writes: Sequence[Put | Delete]
    ) -> TransactionOutcome:
        """Count what it writes, by entry."""
        sizes = [len(one.key) + len(getattr(one, "value", b"")) for one in writes]
        if sizes:
            self._traffic.add_call("transactions")
            self._traffic.add_call("entries written", sum(sizes), len(sizes))
        return await super().transact(compare, writes)

    async def watch(self, prefix: str, after: int) -> Snapshot:
        """Count an answer with news under the prefix, with the values that it brings."""
        found = await super().watch(prefix, after)
        watcher = PROCESS.get(), prefix
        if self._seen.get(watcher) != found.entries:
            self._seen[watcher] = found.entries
            sizes = [len(one.value) for one in found.entries.values()]
            self._traffic.add_call("watch answers", sum(sizes))
        return found

    async def renew(self, lease_id: int) -> None:
        """Count it."""
        self._traffic.add_call("renewals")
        await super().renew(lease_id)


class ProcessorTime(trio.abc.Instrument):
    """The seconds that the tasks of each simulated process took."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self._began = 0.0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        """A step begins."""
        self._began = time.thread_time()

    def after_task_step(self, task: trio.lowlevel.Task) -> None:
        """A step has ended."""
        process = task.context.get(PROCESS, "")
        self.seconds[process] += time.thread_time() - self._began


@dataclass(frozen=True)
class Event:
    """What an event cost. `apis` are the messages that the controller sent or got, and `others`
    those between two other brokers."""

    name: str
    virtual_s: float
    controller_cpu_s: float
    broker_cpu_s: float  # of the other brokers, the mean
    sent: Count  # by the controller
    received: Count
    apis: Mapping[str, Count]
    others: Mapping[str, Count]
    store: Mapping[str, Count]
    connections: int  # that were used between brokers
    connections_max: int  # that the busiest broker had a part in

    def lines(self) -> Iterator[str]:
        """To print."""
        yield (
            f"  {self.name}: controller sent {_told(self.sent)}, got {_told(self.received)};"
            f" CPU {self.controller_cpu_s * 1000:.0f} ms, of another broker"
            f" {self.broker_cpu_s * 1000:.0f} ms; {self.virtual_s:.1f} s;"
            f" connections {self.connections:,}, of one broker {self.connections_max:,}"
        )
        for title, counts in (
            ("controller", self.apis),
            ("others", self.others),
            ("store", self.store),
        ):
            told = "; ".join(f"{name} {_told(one)}" for name, one in sorted(counts.items()))
            yield f"    {title}: {told or 'nothing'}"


def _told(count: Count) -> str:
    return f"{count.messages:,} ({count.size / 1000:,.1f} KB)"


class Scenario:
    """The life of one cluster; `events` is what each part of it cost so far."""

    def __init__(self, brokers: int, partitions: int, on_event: Callable[[Event], None]) -> None:
        self._brokers = brokers
        self._partitions = partitions
        self._on_event = on_event
        self._traffic = Traffic()
        self._time = ProcessorTime()
        self._began = 0.0

    async def live(self) -> None:
        """All events, one after another."""
        trio.lowlevel.add_instrument(self._time)
        world = SimulatedWorld(1)
        world.network = CountedNetwork(world.rng("network"), self._traffic)
        world.store = CountedStore(self._traffic)
        async with open_cluster(world, SETTINGS, self._brokers) as cluster:
            await self._finish("all register", cluster)
            async with Admin(cluster.address, seams=world.seams("client")) as admin:
                await admin.create_topics(NewTopic("t", self._partitions, REPLICAS))
                await self._finish("create", cluster)
                self._clear()
                await trio.sleep(IDLE_S)
                self._take(f"idle for {IDLE_S:g} s", cluster)
                await admin.create_topics(NewTopic("one", 1, REPLICAS))
                await self._finish("one partition more", cluster)
            controller = _controller(cluster)
            victim = next(one for one in cluster.brokers if one is not controller)
            await victim.kill()
            await self._finish("a broker fails", cluster)
            await victim.start()
            await self._finish("it comes back", cluster)
            await controller.kill()
            await self._finish("the controller fails", cluster)

    async def _finish(self, name: str, cluster: SimulatedCluster) -> None:
        """Wait until a while passes in which nothing is said but what is said all the time."""
        await trio.sleep(SESSION_S)
        before = -1
        while before != self._traffic.event_count:
            before = self._traffic.event_count
            await trio.sleep(QUIET_S)
        self._take(name, cluster)

    def _take(self, name: str, cluster: SimulatedCluster) -> None:
        controller = _controller(cluster).name
        sent = received = Count()
        apis: defaultdict[str, Count] = defaultdict(Count)
        others: defaultdict[str, Count] = defaultdict(Count)
        for line, count in self._traffic.lines.items():
            what = line.api if line.is_request else f"{line.api} answer"
            if not line.source.startswith("broker") or not line.target.startswith("broker"):
                continue
            if controller in (line.source, line.target):
                apis[what] += count
                if line.api not in PERIODIC:
                    sent += count if line.source == controller else Count()
                    received += count if line.target == controller else Count()
            else:
                others[what] += count
        seconds = self._time.seconds
        names = {one.name for one in cluster.brokers} - {controller}
        used = [pair for pair in self._traffic.used.values() if pair[0].startswith("broker")]
        ends = Counter(end for pair in used for end in pair)
        self._on_event(
            Event(
                name=name,
                virtual_s=trio.current_time() - self._began,
                controller_cpu_s=seconds[controller],
                broker_cpu_s=statistics.mean(seconds[one] for one in names),
                sent=sent,
                received=received,
                apis=apis,
                others=others,
                store=dict(self._traffic.store),
                connections=len(used),
                connections_max=max(ends.values(), default=0),
            )
        )
        self._clear()

    def _clear(self) -> None:
        self._traffic.clear()
        self._time.seconds.clear()
        self._began = trio.current_time()


def _controller(cluster: SimulatedCluster) -> SimulatedBroker:
    """The broker that is it."""
    return next(
        one for one in cluster.brokers if one.is_running and one.node and one.node.is_controller
    )


def messages(given: argparse.Namespace) -> None:
    """Count at each size, and print."""
    for brokers in given.brokers or BROKERS:
        for each in given.partitions or ["100", "10x"]:
            count = int(each.rstrip("x")) * (brokers if each.endswith("x") else 1)
            print(f"{brokers} brokers, {count:,} partitions", flush=True)
            began = time.process_time()

            def tell(event: Event) -> None:
                for line in event.lines():
                    print(line, flush=True)

            simulate(Scenario(brokers, count, tell).live, 1)
            print(f"  (CPU {time.process_time() - began:.0f} s)", flush=True)


def main() -> None:
    """Count, and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--brokers", type=int, action="append")
    parser.add_argument("--partitions", action="append", help="a number; 10x: so many a broker")
    messages(parser.parse_args())


if __name__ == "__main__":
    main()
