"""A cluster of real brokers that a test starts, breaks, waits for and looks into."""

import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, Self, TypeVar, Unpack
from uuid import uuid4

from minibroker.testing.kit.broker_process import (
    BrokerFailed,
    BrokerProcess,
    ProcessGroup,
    wait_until_ready,
)
from minibroker.testing.kit.faults import Fault
from minibroker.testing.kit.run_directory import RunDirectory
from minibroker.testing.kit.settings import HOST, ClusterSettings
from minibroker.testing.kit.state import PartitionState, numbers, partition_states
from minibroker.testing.kit.waiting import Look, wait_for

if TYPE_CHECKING:
    from minibroker.client.blocking import Admin, Consumer, Producer
    from minibroker.client.consumer.assigned_partition import OffsetAndMetadata
    from minibroker.client.groups.admin import GroupDescription
    from minibroker.client.option_types import AdminKeywords, ConsumerKeywords, ProducerKeywords
    from minibroker.protocol.messages.replicas import ReplicaDescription
    from minibroker.protocol.types import TopicPartition

START_S_MAX: Final = 60.0
WAIT_S: Final = 30.0
ASK_MS: Final = 2_000  # one look, where brokers may be away
NAME_LENGTH_MAX: Final = 200
T = TypeVar("T")
NOT_IN_NAMES: Final = re.compile(r"[^A-Za-z0-9._-]+")


class Event(NamedTuple):
    """Something that the kit did or saw; `at_s` counts from the start of the cluster."""

    at_s: float
    text: str

    def __str__(self) -> str:
        return f"{self.at_s:8.3f}  {self.text}"


class KafkaCluster:
    """Brokers 1 to N on this machine, for as long as the `with` block or the fixture lasts.

    Any Kafka client connects to `bootstrap`. Methods that break something return a `Fault`, which
    a `with` block undoes. Methods that wait raise `WaitTimeout`, whose text says what was there
    instead. `BrokerFailed` is raised for a broker that does not do what brokers do.
    """

    def __init__(self, settings: ClusterSettings | None = None) -> None:
        self.settings = settings or ClusterSettings()
        self._events: list[Event] = []
        self._faults: list[Fault] = []
        self._down: set[int] = set()  # by order of the test
        self._brokers: dict[int, BrokerProcess] = {}
        self._last_lines: dict[int, str] = {}  # of a cluster that has ended
        self._own_admin: Admin | None = None
        self._place: RunDirectory | None = None
        self._keep_as: Path | None = None
        self._name = "topic"
        self._named = 0
        self._test_began = 0  # in the events
        self._began = time.monotonic()
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        try:
            self._open()
            self.start()
        except BaseException:
            if self._brokers:
                self.keep()
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _open(self) -> None:
        self._place = place = RunDirectory.take()
        self._stack.callback(lambda: place.release(self._keep_as))
        group = ProcessGroup()
        self._stack.callback(group.kill)
        prefix = f"minibroker-test-{uuid4().hex}"
        for node_id in self.node_ids:
            port = place.base_port + node_id
            properties = self.settings.broker_properties(node_id, str(place.root), port, prefix)
            broker = BrokerProcess(node_id, place.root, properties, group)
            self._brokers[node_id] = broker
            self._stack.callback(broker.end)
        self._stack.callback(self._close_admin)

    # -- what clients need

    @property
    def bootstrap(self) -> str:
        """The addresses of all brokers, as `bootstrap.servers` has them."""
        base_port = self._open_place.base_port
        return ",".join(f"{HOST}:{base_port + node_id}" for node_id in self.node_ids)

    @property
    def node_ids(self) -> range:
        """The numbers of the brokers."""
        return self.settings.node_ids

    def topic(
        self,
        name: str = "",
        *,
        partitions: int = 1,
        replication_factor: int = -1,
        configs: Mapping[str, str] | None = None,
    ) -> str:
        """Create a topic, wait until its partitions have leaders, and return its name.

        Without a `name` it is one that no other test has. There are as many replicas as brokers,
        at most three, if nothing else is said. Raises `BrokerError` if there is such a topic.
        """
        from minibroker.client import NewTopic

        name = name or self._new_name()
        new = NewTopic(name, partitions, replication_factor, configs or {})
        self._admin.create_topics(new)
        self.note(f"created topic {name!r}")
        what = f"each partition of {name!r} to have a leader"
        self._wait_for_all(what, [name], lambda each: each.leader is not None, WAIT_S)
        return name

    def producer(self, **options: "Unpack[ProducerKeywords]") -> "Producer":
        """A `minibroker.client.blocking.Producer`, for a `with` block."""
        from minibroker.client.blocking import Producer

        return Producer(self.bootstrap, **options)

    def consumer(self, **options: "Unpack[ConsumerKeywords]") -> "Consumer":
        """A `minibroker.client.blocking.Consumer`, for a `with` block. Unless told otherwise it is
        in a group of its own and begins at the first record."""
        from minibroker.client.blocking import Consumer

        options.setdefault("auto_offset_reset", "earliest")
        options.setdefault("group_id", self._new_name())
        return Consumer(self.bootstrap, **options)

    def admin(self, **options: "Unpack[AdminKeywords]") -> "Admin":
        """A `minibroker.client.blocking.Admin`, for a `with` block."""
        from minibroker.client.blocking import Admin

        return Admin(self.bootstrap, **options)

    # -- faults

    def kill(self, *node_ids: int) -> Fault:
        """`kill -9` of these brokers; undone by starting them."""
        return self._take_down("kill", node_ids, BrokerProcess.kill)

    def stop(self, *node_ids: int) -> Fault:
        """Stop these brokers in order, one after another; undone by starting them."""
        return self._take_down("stop", node_ids, BrokerProcess.stop)

    def pause(self, *node_ids: int) -> Fault:
        """Make these brokers stand still (SIGSTOP), as a long pause of their machine does; undone
        by letting them go on."""
        brokers = self._running(node_ids)
        for broker in brokers:
            if broker.is_paused:
                raise ValueError(f"broker {broker.node_id} is paused already")
        fault = self._fault("pause", node_ids, lambda: self.resume(*node_ids))
        for broker in brokers:
            broker.pause()
        return fault

    def resume(self, *node_ids: int) -> None:
        """Let paused brokers go on, without a number all of them."""
        for node_id in node_ids or self.node_ids:
            if self._broker(node_id).is_paused:
                self._broker(node_id).resume()
                self._down.discard(node_id)
                self.note(f"resume {node_id}")

    def start(self, *node_ids: int) -> None:
        """Start brokers that do not run, without a number all of them; return once they answer."""
        wanted = [self._broker(node_id) for node_id in node_ids or self.node_ids]
        starting = [broker for broker in wanted if not broker.is_running]
        for broker in starting:
            broker.start()
        answering = [broker for broker in wanted if not broker.is_paused]
        wait_until_ready(answering, START_S_MAX)
        self._down.difference_update(broker.node_id for broker in answering)
        if starting:
            self.note(f"started {numbers([broker.node_id for broker in starting])}")

    def restart(self, *node_ids: int) -> None:
        """Stop these brokers in order and start them again; without a number all of them."""
        chosen = node_ids or tuple(self.node_ids)
        self.stop(*chosen).undo()

    def roll(self, timeout_s: float = WAIT_S) -> None:
        """Restart one broker after another, the next one when all replicas are in sync again."""
        for node_id in self.node_ids:
            self.restart(node_id)
            self.wait_until_in_sync(timeout_s)

    # -- waiters

    def wait_for_leader(self, topic: str, partition: int = 0, timeout_s: float = WAIT_S) -> int:
        """The broker that leads a partition, once one that runs does."""
        what = f"a leader of {topic}-{partition}"
        return self._wait_for_one(what, topic, partition, lambda seen: seen.leader, timeout_s)

    def wait_for_isr(
        self, topic: str, partition: int = 0, count: int = 0, timeout_s: float = WAIT_S
    ) -> tuple[int, ...]:
        """The brokers in sync, once there are exactly `count`; by default as many as replicas."""

        def pick(seen: PartitionState) -> tuple[int, ...] | None:
            return seen.isr if len(seen.isr) == (count or len(seen.replicas)) else None

        wanted = f"{count} replicas" if count else "all replicas"
        what = f"{wanted} of {topic}-{partition} in sync"
        return self._wait_for_one(what, topic, partition, pick, timeout_s)

    def wait_for_high_watermark(
        self, topic: str, offset: int, partition: int = 0, timeout_s: float = WAIT_S
    ) -> int:
        """The high watermark, once it is at least `offset`: every replica that is in sync has all
        before it, and consumers can read all before it."""

        def pick(seen: PartitionState) -> int | None:
            return seen.high_watermark if seen.high_watermark >= offset else None

        def tell(seen: PartitionState) -> str:
            return f"it is {seen.high_watermark}, and the log ends at {seen.log_end}; {seen}"

        what = f"the high watermark {offset} of {topic}-{partition}"
        return self._wait_for_one(what, topic, partition, pick, timeout_s, tell)

    def wait_for_commit(
        self, group: str, topic: str, offset: int, partition: int = 0, timeout_s: float = WAIT_S
    ) -> int:
        """The offset that a group has committed, once it is at least `offset`."""
        from minibroker.protocol.types import TopicPartition

        def look() -> Look[int]:
            found = self.committed(group)
            at = found.get(TopicPartition(topic, partition))
            if at is None:
                return Look(None, f"it has committed {_commits(found)}")
            return Look(at.offset if at.offset >= offset else None, f"it is {at.offset}")

        what = f"group {group!r} to commit {offset} of {topic}-{partition}"
        return wait_for(what, look, timeout_s)

    def wait_for_group(
        self, group: str, state: str = "Stable", members: int = -1, timeout_s: float = WAIT_S
    ) -> "GroupDescription":
        """A group, once it is in this state (as Kafka spells them), with so many members."""

        def look() -> Look["GroupDescription"]:
            [seen] = self._admin.describe_groups(group)
            is_so = seen.state == state and members in (-1, len(seen.members))
            shown = f"it is {seen.state} with {len(seen.members)} members"
            return Look(seen if is_so else None, shown)

        count = "" if members < 0 else f" with {members} members"
        return wait_for(f"group {group!r} to be {state}{count}", look, timeout_s)

    def wait_until_in_sync(self, timeout_s: float = WAIT_S) -> None:
        """Return once all replicas of all topics are in sync."""
        what = "all replicas to be in sync"
        self._wait_for_all(what, None, lambda each: each.is_in_sync, timeout_s)

    def wait_until_balanced(self, timeout_s: float = WAIT_S) -> None:
        """Return once the preferred replica, which is the first, leads each partition, and all
        replicas are in sync."""

        def is_so(each: PartitionState) -> bool:
            return each.is_in_sync and each.leader == each.replicas[0]

        what = "the preferred replica to lead each partition"
        self._wait_for_all(what, None, is_so, timeout_s)

    # -- looking inside

    def leader(self, topic: str, partition: int = 0) -> int:
        """The broker that leads a partition; waits for one."""
        return self.wait_for_leader(topic, partition)

    def coordinator(self, group: str) -> int:
        """The broker that coordinates a group; waits for one."""

        def look() -> Look[int]:
            [seen] = self._admin.describe_groups(group)
            found = seen.coordinator_id if seen.coordinator_id not in self._down else None
            return Look(found, f"broker {seen.coordinator_id} was the latest")

        return wait_for(f"a coordinator of group {group!r}", look, WAIT_S)

    def replicas(self, topic: str) -> "dict[int, dict[int, ReplicaDescription]]":
        """How far each replica is, as its broker says: by partition, then by broker. Brokers that
        do not answer are missing."""
        report = self._admin.describe_replicas(topic)
        found: dict[int, dict[int, ReplicaDescription]] = {}
        for node_id, answer in report.answers.items():
            for replica in answer.replicas:
                if replica.topic == topic:
                    found.setdefault(replica.partition, {})[node_id] = replica
        return found

    def committed(self, group: str) -> "dict[TopicPartition, OffsetAndMetadata]":
        """What a group has committed."""
        return self._admin.committed_offsets(group)

    def pid(self, node_id: int) -> int:
        """The process of a broker."""
        return self._broker(node_id).pid

    def data_dir(self, node_id: int) -> Path:
        """The data directory of a broker."""
        return self._broker(node_id).data_dir

    def log_lines(self, node_id: int, count: int = 20) -> str:
        """What a broker has printed last; also when the cluster has ended."""
        if node_id in self._last_lines:
            return self._last_lines[node_id]
        return self._broker(node_id).last_lines(count)

    def timeline(self) -> tuple[Event, ...]:
        """What was done to the cluster, and when."""
        return tuple(self._events)

    def note(self, text: str) -> None:
        """Add a line to the timeline, which a failed test shows."""
        self._events.append(Event(time.monotonic() - self._began, text))

    # -- for whoever hands the cluster out

    def timeline_of_test(self) -> tuple[Event, ...]:
        """The timeline since `begin_test`."""
        return tuple(self._events[self._test_began :])

    def begin_test(self, name: str) -> None:
        """Name topics after this test from now on."""
        self._test_began = len(self._events)
        self._name = NOT_IN_NAMES.sub("-", name)[-NAME_LENGTH_MAX:].strip("-.") or "topic"
        self.note(f"test {name}")

    def heal(self, timeout_s: float = START_S_MAX) -> list[Fault]:
        """Undo what was not undone, and return it, newest first. All replicas are in sync then, if
        there was any fault.

        Raises `BrokerFailed` where a broker has ended by itself.
        """
        self.check_alive()
        left = [
            fault
            for fault in reversed(self._faults)
            if not fault.is_undone and self._down.intersection(fault.brokers)
        ]
        was_broken = bool(self._faults or self._down)
        self.resume()
        self.start()
        for fault in left:
            fault.undo()
        if was_broken:
            self.wait_until_in_sync(timeout_s)
        self._faults.clear()
        self._close_admin()
        return left

    def check_alive(self) -> None:
        """Raise `BrokerFailed` where a broker has ended that was not told to."""
        for broker in self._brokers.values():
            if broker.node_id not in self._down and not broker.is_running:
                raise BrokerFailed(broker.how_it_ended())

    def keep(self) -> Path | None:
        """Keep the directory beyond the end of the cluster; where it will lie, or lies, then. None
        if the cluster has ended and its directory was not kept."""
        if self._keep_as is None and self._place is not None:
            self._keep_as = self._place.kept_as
        return self._keep_as

    def close(self) -> None:
        """End all brokers at once, and remove the directory unless it is to be kept. May be
        repeated."""
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
            raise RuntimeError("this cluster does not run: it has ended, or was not entered")
        return self._place

    @property
    def _admin(self) -> "Admin":
        if self._own_admin is None:
            self._own_admin = self.admin(
                client_id="minibroker-testing",
                request_timeout_ms=ASK_MS,
                default_api_timeout_ms=2 * ASK_MS,
                retry_backoff_ms=20,
            ).start()
        return self._own_admin

    def _close_admin(self) -> None:
        admin, self._own_admin = self._own_admin, None
        if admin is not None:
            admin.close()

    def _new_name(self) -> str:
        self._named += 1
        return f"{self._name}-{self._named}"

    def _broker(self, node_id: int) -> BrokerProcess:
        if node_id not in self.node_ids:
            raise ValueError(f"there is no broker {node_id}; there are {numbers(self.node_ids)}")
        assert self._open_place
        return self._brokers[node_id]

    def _running(self, node_ids: tuple[int, ...]) -> list[BrokerProcess]:
        """These brokers. Raises `ValueError` if none is named, or one is down by order of the test,
        and `BrokerFailed` if one has ended by itself."""
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
        brokers = self._running(node_ids)
        fault = self._fault(text, node_ids, lambda: self.start(*node_ids))
        for broker in brokers:
            end(broker)
        return fault

    def _fault(self, text: str, node_ids: tuple[int, ...], undo: Callable[[], None]) -> Fault:
        fault = Fault(f"{text} {numbers(node_ids)}", node_ids, undo)
        self._faults.append(fault)
        self._down.update(node_ids)
        self.note(fault.text)
        return fault

    def _states(self, topics: Collection[str]) -> list[PartitionState]:
        running = [node_id for node_id in self.node_ids if node_id not in self._down]
        return partition_states(self._admin, topics, running)

    def _wait_for_one(
        self,
        what: str,
        topic: str,
        partition: int,
        pick: Callable[[PartitionState], T | None],
        timeout_s: float,
        tell: Callable[[PartitionState], str] = str,
    ) -> T:
        """What `pick` finds in the state of a partition, once it is not None."""

        def look() -> Look[T]:
            for seen in self._states([topic]):
                if seen.partition == partition:
                    return Look(pick(seen), tell(seen))
            return Look(None, f"{topic!r} has no partition {partition}")

        return wait_for(what, look, timeout_s)

    def _wait_for_all(
        self,
        what: str,
        topics: Collection[str] | None,
        is_so: Callable[[PartitionState], bool],
        timeout_s: float,
    ) -> None:
        """Return once it is so of each partition of these topics, or of all that there are."""

        def look() -> Look[bool]:
            names = self._admin.list_topics() if topics is None else topics
            for seen in self._states(names):
                if not is_so(seen):
                    return Look(None, str(seen))
            return Look(True, "")

        wait_for(what, look, timeout_s)


@contextmanager
def running_cluster(
    brokers: int = 3,
    *,
    properties: Mapping[str, object] | None = None,
    flush: str = "never",
    store: str = "",
) -> Iterator[KafkaCluster]:
    """A cluster for a `with` block: for unittest, for fixtures of your own, for scripts.

    `properties` are those of docs/configuration.md, laid over what tests need; `flush` and `store`
    are the `flush` and the `metadata.store` of all brokers.
    """
    with KafkaCluster(ClusterSettings.of(brokers, properties, flush, store)) as cluster:
        yield cluster


def _commits(found: "dict[TopicPartition, OffsetAndMetadata]") -> str:
    shown = (f"{at.offset} of {name[0]}-{name[1]}" for name, at in found.items())
    return ", ".join(shown) or "nothing"
