"""A cluster of real brokers that a test starts, breaks, waits for and looks into."""

import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Self, Unpack

from minibroker.testing.kit.broker_process import (
    BrokerFailed,
    BrokerProcess,
    ProcessGroup,
    wait_until_ready,
)
from minibroker.testing.kit.faults import Fault
from minibroker.testing.kit.run_directory import RunDirectory
from minibroker.testing.kit.settings import HOST, ClusterSettings
from minibroker.testing.kit.waiting import Look, wait_for

if TYPE_CHECKING:
    from minibroker.client.blocking import Admin, Consumer, Producer
    from minibroker.client.consumer.assigned_partition import OffsetAndMetadata
    from minibroker.client.groups.admin import GroupDescription
    from minibroker.client.option_types import AdminKeywords, ConsumerKeywords, ProducerKeywords
    from minibroker.protocol.messages.metadata import PartitionMetadata
    from minibroker.protocol.messages.replicas import ReplicaDescription
    from minibroker.protocol.types import TopicPartition

START_S_MAX: Final = 60.0
WAIT_S: Final = 30.0
ASK_MS: Final = 2_000  # one look, where brokers may be away
NAME_LENGTH_MAX: Final = 200
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
        self._began = time.monotonic()
        self._events: list[Event] = []
        self._place = RunDirectory.take()
        self._keep_as: Path | None = None
        self._group = ProcessGroup()
        self._brokers = {
            node_id: BrokerProcess(
                node_id,
                self._place.root,
                self.settings.broker_properties(
                    node_id, str(self._place.root), self._port(node_id)
                ),
                self._group,
            )
            for node_id in self.settings.node_ids
        }
        self._faults: list[Fault] = []
        self._down: set[int] = set()  # by order of the test
        self._own_admin: Admin | None = None
        self._name = "topic"
        self._named = 0
        self._is_closed = False
        self._last_lines: dict[int, str] = {}

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- what clients need

    @property
    def bootstrap(self) -> str:
        """The addresses of all brokers, as `bootstrap.servers` has them."""
        return ",".join(f"{HOST}:{self._port(node_id)}" for node_id in self.node_ids)

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
        self._note(f"created topic {name!r}")
        self._wait_for_partitions(f"leaders of {name!r}", name, lambda each: each.leader_id > 0)
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
        """Have these brokers stand still (SIGSTOP), as in a long pause of their machine; undone by
        having them go on."""
        brokers = self._running(node_ids)
        for broker in brokers:
            broker.pause()
        self._down.update(node_ids)
        return self._fault("pause", node_ids, lambda: self.resume(*node_ids))

    def resume(self, *node_ids: int) -> None:
        """Have paused brokers go on; without a number all of them."""
        for node_id in node_ids or self.node_ids:
            if self._broker(node_id).is_paused:
                self._broker(node_id).resume()
                self._down.discard(node_id)
                self._note(f"resume {node_id}")

    def start(self, *node_ids: int) -> None:
        """Start brokers that do not run, without a number all of them; return once they answer."""
        wanted = [self._broker(node_id) for node_id in node_ids or self.node_ids]
        starting = [broker for broker in wanted if not broker.is_running]
        for broker in starting:
            broker.start()
        wait_until_ready(starting, START_S_MAX)
        for broker in starting:
            self._down.discard(broker.node_id)
        if starting:
            self._note(f"started {_numbers(broker.node_id for broker in starting)}")

    def restart(self, *node_ids: int) -> None:
        """Stop these brokers in order and start them again; without a number all of them."""
        chosen = node_ids or tuple(self.node_ids)
        self.stop(*chosen).undo()

    def roll(self, timeout_s: float = WAIT_S) -> None:
        """Restart one broker after another, each when all replicas are in sync again."""
        for node_id in self.node_ids:
            self.restart(node_id)
            self.wait_until_in_sync(timeout_s)

    # -- waiters

    def wait_for_leader(self, topic: str, partition: int = 0, timeout_s: float = WAIT_S) -> int:
        """The broker that leads a partition, once it is one that runs."""

        def look() -> Look[int]:
            seen = self._partition(topic, partition)
            leads = seen.leader_id if seen.leader_id not in {-1, *self._down} else None
            return Look(leads, _described(seen))

        return wait_for(f"a leader of {topic}-{partition}", look, timeout_s)

    def wait_for_isr(
        self, topic: str, partition: int = 0, count: int = 0, timeout_s: float = WAIT_S
    ) -> tuple[int, ...]:
        """The brokers in sync, once there are exactly `count`; by default as many as replicas."""

        def look() -> Look[tuple[int, ...]]:
            seen = self._partition(topic, partition)
            leads = self._leader_of(topic, partition)
            wanted = count or len(seen.replicas)
            isr = None if leads is None else leads.isr
            is_so = isr is not None and len(isr) == wanted
            shown = "no leader answers" if isr is None else f"in sync are {_numbers(sorted(isr))}"
            return Look(isr if is_so else None, f"{shown}; {_described(seen)}")

        wanted = f"{count} replicas" if count else "all replicas"
        return wait_for(f"{wanted} of {topic}-{partition} in sync", look, timeout_s)

    def wait_for_high_watermark(
        self, topic: str, offset: int, partition: int = 0, timeout_s: float = WAIT_S
    ) -> int:
        """The high watermark, once it is at least `offset`: all before it is on every replica that
        is in sync, and can be read."""

        def look() -> Look[int]:
            leads = self._leader_of(topic, partition)
            if leads is None:
                return Look(None, "no leader answers")
            reached = leads.high_watermark if leads.high_watermark >= offset else None
            state = f"it is {leads.high_watermark}, and the leader's log ends at {leads.log_end}"
            return Look(reached, state)

        what = f"the high watermark {offset} of {topic}-{partition}"
        return wait_for(what, look, timeout_s)

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
        """All replicas of all topics are in sync."""
        self._wait_for_partitions(
            "all replicas in sync",
            None,
            lambda each: set(each.isr) == set(each.replicas),
            timeout_s,
        )

    def wait_until_balanced(self, timeout_s: float = WAIT_S) -> None:
        """Each partition is led by its preferred replica, which is the first of them, and all
        replicas are in sync."""
        self._wait_for_partitions(
            "each partition to be led by its first replica",
            None,
            lambda each: set(each.isr) == set(each.replicas) and each.leader_id == each.replicas[0],
            timeout_s,
        )

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
        if self._is_closed:
            return self._last_lines.get(node_id, "")
        return self._broker(node_id).last_lines(count)

    def timeline(self) -> tuple[Event, ...]:
        """What was done to the cluster, and when."""
        return tuple(self._events)

    def note(self, text: str) -> None:
        """Add a line to the timeline, which a failed test shows."""
        self._note(text)

    # -- for whoever hands the cluster out

    def begin_test(self, name: str) -> None:
        """Name topics after this test from now on."""
        self._name = NOT_IN_NAMES.sub("-", name)[-NAME_LENGTH_MAX:].strip("-.") or "topic"
        self._note(f"test {name}")

    def heal(self, timeout_s: float = START_S_MAX) -> list[Fault]:
        """Undo what was never undone, and return it, newest first; all replicas are in sync then.

        Raises `BrokerFailed` where a broker has ended by itself.
        """
        self.check_alive()
        left = [fault for fault in reversed(self._faults) if not fault.is_undone]
        was_broken = bool(self._faults)
        for fault in left:
            fault.undo()
        self.resume()
        self.start()
        self._faults.clear()
        if was_broken:
            self.wait_until_in_sync(timeout_s)
        return left

    def check_alive(self) -> None:
        """Raise `BrokerFailed` where a broker has ended that was not told to."""
        for broker in self._brokers.values():
            if broker.node_id not in self._down and not broker.is_running:
                raise BrokerFailed(
                    f"broker {broker.node_id} ended by itself, with exit code"
                    f" {broker.exit_code}:\n{broker.last_lines()}"
                )

    def keep(self) -> Path:
        """Keep the directory beyond the end of the cluster; where it will lie then."""
        if self._keep_as is None:
            self._keep_as = self._place.kept_as
        return self._keep_as

    def close(self) -> None:
        """End all brokers at once and remove the directory, unless it is to be kept. May be
        repeated."""
        if self._is_closed:
            return
        self._last_lines = {number: self.log_lines(number) for number in self.node_ids}
        self._is_closed = True
        if self._own_admin is not None:
            self._own_admin.close()
            self._own_admin = None
        for broker in self._brokers.values():
            if broker.is_running:
                broker.kill()
        self._group.kill()
        self._place.release(self._keep_as)

    # -- inside

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

    def _new_name(self) -> str:
        self._named += 1
        return f"{self._name}-{self._named}"

    def _port(self, node_id: int) -> int:
        return self._place.base_port + node_id

    def _note(self, text: str) -> None:
        self._events.append(Event(time.monotonic() - self._began, text))

    def _broker(self, node_id: int) -> BrokerProcess:
        if node_id not in self._brokers:
            raise ValueError(f"there is no broker {node_id}; there are {_numbers(self.node_ids)}")
        return self._brokers[node_id]

    def _running(self, node_ids: tuple[int, ...]) -> list[BrokerProcess]:
        """These brokers. Raises `ValueError` if none is named, or one does not run."""
        if not node_ids:
            raise ValueError("name at least one broker")
        brokers = [self._broker(node_id) for node_id in node_ids]
        for broker in brokers:
            if not broker.is_running:
                raise ValueError(f"broker {broker.node_id} does not run")
        return brokers

    def _take_down(
        self, text: str, node_ids: tuple[int, ...], end: Callable[[BrokerProcess], None]
    ) -> Fault:
        brokers = self._running(node_ids)
        self._down.update(node_ids)
        for broker in brokers:
            end(broker)
        return self._fault(text, node_ids, lambda: self.start(*node_ids))

    def _fault(self, text: str, node_ids: tuple[int, ...], undo: Callable[[], None]) -> Fault:
        fault = Fault(f"{text} {_numbers(node_ids)}", node_ids, undo)
        self._faults.append(fault)
        self._note(fault.text)
        return fault

    def _partition(self, topic: str, partition: int) -> "PartitionMetadata":
        [seen] = self._admin.describe_topics(topic)
        for each in seen.partitions:
            if each.partition == partition:
                return each
        raise ValueError(f"{topic!r} has no partition {partition}")

    def _leader_of(self, topic: str, partition: int) -> "ReplicaDescription | None":
        """What the leader says of a partition: of several that think they lead, the newest."""
        told = self.replicas(topic).get(partition, {}).values()
        leaders = [replica for replica in told if replica.role == "leader"]
        return max(leaders, key=lambda replica: replica.leader_epoch, default=None)

    def _wait_for_partitions(
        self,
        what: str,
        topic: str | None,
        is_so: "Callable[[PartitionMetadata], bool]",
        timeout_s: float = WAIT_S,
    ) -> None:
        def look() -> Look[bool]:
            names = self._admin.list_topics() if topic is None else [topic]
            topics = self._admin.describe_topics(*names) if names else []
            for seen in topics:
                for each in seen.partitions:
                    if not is_so(each) or each.leader_id in self._down:
                        return Look(None, f"{seen.name}-{each.partition}: {_described(each)}")
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


def _numbers(node_ids: "Iterator[int] | Any") -> str:
    return ", ".join(map(str, node_ids))


def _described(seen: "PartitionMetadata") -> str:
    leader = "nobody leads" if seen.leader_id < 0 else f"broker {seen.leader_id} leads"
    return f"{leader}; in sync are {_numbers(seen.isr)} of {_numbers(seen.replicas)}"


def _commits(found: "dict[TopicPartition, OffsetAndMetadata]") -> str:
    shown = (f"{at.offset} of {name[0]}-{name[1]}" for name, at in found.items())
    return ", ".join(shown) or "nothing"
