"""A cluster of real brokers that a test starts, breaks, waits for and inspects."""

import os
import re
import time
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, TypeVar, Unpack, overload
from uuid import uuid4

from minibroker.testing.kit.breakable import BreakableBrokers
from minibroker.testing.kit.brokers import START_S_MAX, Event
from minibroker.testing.kit.faults import Fault
from minibroker.testing.kit.requests import Request, requests_of
from minibroker.testing.kit.run_directory import PORTS, ports_of
from minibroker.testing.kit.service_process import (
    READY_S_MAX,
    Program,
    Ready,
    ServiceProcess,
    ServiceProcesses,
)
from minibroker.testing.kit.settings import ClusterSettings
from minibroker.testing.kit.state import PartitionState, partition_states
from minibroker.testing.kit.waiting import Look, WaitTimeout, wait_for

if TYPE_CHECKING:
    from minibroker.client import ConsumerRecord
    from minibroker.client.blocking import Admin, Consumer, Producer
    from minibroker.client.committed_offsets import OffsetAndMetadata
    from minibroker.client.groups.admin import GroupDescription
    from minibroker.client.option_types import AdminKeywords, ConsumerKeywords, ProducerKeywords
    from minibroker.protocol.messages.replicas import ReplicaDescription
    from minibroker.protocol.types import TopicPartition
    from minibroker.testing.kit.history import History
    from minibroker.testing.kit.recorded import RecordedProducer
    from minibroker.testing.kit.stored import StoredRecord

WAIT_S: Final = 30.0
ASK_MS: Final = 2_000  # one look, where brokers may be away
NAME_LENGTH_MAX: Final = 200
T = TypeVar("T")
NOT_IN_NAMES: Final = re.compile(r"[^A-Za-z0-9._-]+")


class KafkaCluster(BreakableBrokers):
    """Brokers 1 to N on this machine, which run until the `with` block or the fixture ends.

    Any Kafka client connects to `bootstrap`. Methods that break something return a `Fault`, which
    a `with` block undoes. Methods that wait raise `WaitTimeout`, the text of which gives the state
    instead. All methods raise `BrokerFailed` for a broker that ends by itself or does not answer.
    """

    def __init__(self, settings: ClusterSettings | None = None, ports: range = PORTS) -> None:
        super().__init__(settings, ports)
        self._own_admin: Admin | None = None
        self._keeps_ledgers = False
        self._name = "topic"
        self._named = 0
        self._test_began = 0  # in the events
        self._logs_began: dict[int, int] = {}  # in the log file of each broker
        self._last_logs: dict[int, str] = {}  # of the last test, once the cluster has ended
        self._services = ServiceProcesses(self.note)

    # -- what clients need

    def topic(
        self,
        name: str = "",
        *,
        partitions: int = 1,
        replication_factor: int = -1,
        configs: Mapping[str, str] | None = None,
    ) -> str:
        """Create a topic, wait until its partitions have leaders, and return its name.

        By default the name is one that no other test has, and the topic has a replica on each
        broker, at most three. Raises `BrokerError` if the topic exists.
        """
        from minibroker.client import NewTopic

        name = name or self._new_name()
        new = NewTopic(name, partitions, replication_factor, configs or {})
        self._admin.create_topics(new)
        self.note(f"created topic {name!r}")
        what = f"each partition of {name!r} to have a leader"
        self._wait_for_all(what, [name], lambda each: each.leader is not None, WAIT_S)
        return name

    @overload
    def producer(
        self, *, history: None = None, **options: "Unpack[ProducerKeywords]"
    ) -> "Producer": ...

    @overload
    def producer(
        self, *, history: "History", **options: "Unpack[ProducerKeywords]"
    ) -> "RecordedProducer": ...

    def producer(
        self, *, history: "History | None" = None, **options: "Unpack[ProducerKeywords]"
    ) -> "Producer":
        """Return a `minibroker.client.blocking.Producer`, for a `with` block. It records in the
        `history` what it sends and what is acknowledged, and its transactions."""
        from minibroker.client.blocking import Producer
        from minibroker.testing.kit.recorded import RecordedProducer

        ledger = self._ledgers / uuid4().hex if self._keeps_ledgers else None
        if history is not None:
            return RecordedProducer(history, self.bootstrap, ledger=ledger, **options)
        return Producer(self.bootstrap, ledger=ledger, **options)

    def consumer(
        self, *, history: "History | None" = None, **options: "Unpack[ConsumerKeywords]"
    ) -> "Consumer":
        """Return a `minibroker.client.blocking.Consumer`, for a `with` block.

        By default it has a group of its own and begins at the first record. It records in the
        `history` what it polls and what `commit` commits; its auto-commit is then off.
        """
        from minibroker.client.blocking import Consumer
        from minibroker.testing.kit.recorded import RecordedConsumer

        options.setdefault("auto_offset_reset", "earliest")
        options.setdefault("group_id", self._new_name())
        if history is None:
            return Consumer(self.bootstrap, **options)
        options.setdefault("enable_auto_commit", False)
        return RecordedConsumer(history, self.bootstrap, **options)

    def admin(self, **options: "Unpack[AdminKeywords]") -> "Admin":
        """Return a `minibroker.client.blocking.Admin`, for a `with` block."""
        from minibroker.client.blocking import Admin

        return Admin(self.bootstrap, **options)

    # -- the program under test

    def process(
        self,
        command: Sequence[str | os.PathLike[str]],
        *,
        ready: Ready = None,
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
        name: str = "",
        timeout_s: float = READY_S_MAX,
    ) -> ServiceProcess:
        """Start a service of your own, and return it once it is ready. It ends with the test.

        The service has the addresses of the brokers in KAFKA_BOOTSTRAP_SERVERS; "{bootstrap}" in
        `command` and in values of `env`, which is added to the environment, stands for them, too.
        `ready` is a regular expression that a line of its output has, a port on this machine, or a
        function that returns true (what it raises counts as "not yet"); by default the service
        counts as ready at once. `cwd` is its directory, by default that of the test.

        Raises `ServiceFailed` if there is no such command, if it ends before it is ready, or is not
        ready within `timeout_s` seconds; the text has its last lines. Raises `TypeError` and
        `ValueError` for arguments that cannot be meant.
        """
        program = Program.of(
            command, self.bootstrap, ready=ready, env=env or {}, cwd=cwd, timeout_s=timeout_s
        )
        return self._services.start(program, name, self._open_place.root)

    @property
    def processes(self) -> tuple[ServiceProcess, ...]:
        """The services that this test has started, in order."""
        return tuple(self._services.current)

    def end_processes(self) -> None:
        """End the services of this test, as the fixtures do after it."""
        self._services.end()

    # -- faults, beside those of `BreakableBrokers` and `Brokers`

    def roll(self, timeout_s: float = WAIT_S) -> None:
        """Restart all brokers one by one, each when all replicas are in sync again."""
        for node_id in self.node_ids:
            self.restart(node_id)
            self.wait_until_in_sync(timeout_s)

    # -- waiters

    def wait_for_leader(self, topic: str, partition: int = 0, timeout_s: float = WAIT_S) -> int:
        """Wait until a running broker leads a partition, and return its number."""
        what = f"a leader of {topic}-{partition}"
        return self._wait_for_one(what, topic, partition, lambda seen: seen.leader, timeout_s)

    def wait_for_isr(
        self, topic: str, partition: int = 0, count: int = 0, timeout_s: float = WAIT_S
    ) -> tuple[int, ...]:
        """Wait until exactly `count` replicas are in sync, by default all, and return their
        brokers."""

        def pick(seen: PartitionState) -> tuple[int, ...] | None:
            return seen.isr if len(seen.isr) == (count or len(seen.replicas)) else None

        wanted = f"{count} replicas" if count else "all replicas"
        what = f"{wanted} of {topic}-{partition} in sync"
        return self._wait_for_one(what, topic, partition, pick, timeout_s)

    def wait_for_high_watermark(
        self, topic: str, offset: int, partition: int = 0, timeout_s: float = WAIT_S
    ) -> int:
        """Wait until the high watermark is at least `offset`, and return it. Every replica in sync
        then has the records before `offset`, and consumers can read them."""

        def pick(seen: PartitionState) -> int | None:
            return seen.high_watermark if seen.high_watermark >= offset else None

        def tell(seen: PartitionState) -> str:
            return f"it is {seen.high_watermark}, and the log ends at {seen.log_end}; {seen}"

        what = f"the high watermark {offset} of {topic}-{partition}"
        return self._wait_for_one(what, topic, partition, pick, timeout_s, tell)

    def wait_for_commit(
        self, group: str, topic: str, offset: int, partition: int = 0, timeout_s: float = WAIT_S
    ) -> int:
        """Wait until a group has committed at least `offset`, and return what it has committed."""
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
        """Wait until a group is in this state (as Kafka spells it) and has as many members, by
        default any number, and return the group."""

        def look() -> Look["GroupDescription"]:
            [seen] = self._admin.describe_groups(group)
            is_so = seen.state == state and members in (-1, len(seen.members))
            shown = f"it is {seen.state} with {len(seen.members)} members"
            return Look(seen if is_so else None, shown)

        count = "" if members < 0 else f" with {members} members"
        return wait_for(f"group {group!r} to be {state}{count}", look, timeout_s)

    def wait_until_in_sync(self, timeout_s: float = WAIT_S) -> None:
        """Wait until all replicas of all topics are in sync."""
        what = "all replicas to be in sync"
        self._wait_for_all(what, None, lambda each: each.is_in_sync, timeout_s)

    def wait_until_balanced(self, timeout_s: float = WAIT_S) -> None:
        """Wait until the preferred replica (the first) leads each partition, and all replicas are
        in sync."""

        def is_so(each: PartitionState) -> bool:
            return each.is_in_sync and each.leader == each.replicas[0]

        what = "the preferred replica to lead each partition"
        self._wait_for_all(what, None, is_so, timeout_s)

    # -- looking inside

    def leader(self, topic: str, partition: int = 0) -> int:
        """Return the broker that leads a partition; wait if there is none."""
        return self.wait_for_leader(topic, partition)

    def coordinator(self, group: str) -> int:
        """Return the broker that coordinates a group; wait if there is none."""

        def look() -> Look[int]:
            [seen] = self._admin.describe_groups(group)
            found = seen.coordinator_id if seen.coordinator_id not in self._down else None
            return Look(found, f"broker {seen.coordinator_id} was the latest")

        return wait_for(f"a coordinator of group {group!r}", look, WAIT_S)

    def transaction_coordinator(self, transactional_id: str) -> int:
        """Return the broker that coordinates a transactional id; wait if there is none."""

        def look() -> Look[int]:
            [seen] = self._admin.describe_transactions(transactional_id)
            found = seen.coordinator_id if seen.coordinator_id not in self._down else None
            return Look(found, f"broker {seen.coordinator_id} was the latest")

        return wait_for(f"a coordinator of transactional id {transactional_id!r}", look, WAIT_S)

    def replicas(self, topic: str) -> "dict[int, dict[int, ReplicaDescription]]":
        """Return the state of each replica, as its broker describes it: by partition, then by
        broker. Brokers that do not answer are missing."""
        report = self._admin.describe_replicas(topic)
        found: dict[int, dict[int, ReplicaDescription]] = {}
        for node_id, answer in report.answers.items():
            for replica in answer.replicas:
                if replica.topic == topic:
                    found.setdefault(replica.partition, {})[node_id] = replica
        return found

    def log(self, topic: str, partition: int, broker: int) -> "list[StoredRecord]":
        """Return the records in the files of a broker's replica; the broker may be down. Raises
        `ValueError` if there is no such replica."""
        from minibroker.testing.kit.stored import stored_records

        return stored_records(self.data_dir(broker), topic, partition)

    def read_all(
        self,
        topic: str,
        timeout_s: float = WAIT_S,
        *,
        isolation_level: Literal["read_uncommitted", "read_committed"] = "read_uncommitted",
    ) -> "list[ConsumerRecord]":
        """Return all records of a topic that consumers can read now, ordered by partition and
        offset. Raises `WaitTimeout` if they do not come in time.

        With "read_committed" wait until each transaction in the topic has ended, and leave out the
        records of those that were aborted.
        """
        from minibroker.client.blocking import Consumer
        from minibroker.protocol.types import TopicPartition

        found: list[ConsumerRecord] = []
        deadline = time.monotonic() + timeout_s
        with Consumer(self.bootstrap) as everything:
            numbers = sorted(everything.partitions_for_topic(topic))
            names = [TopicPartition(topic, number) for number in numbers]
            ends = everything.end_offsets(*names)  # behind transactions that are open, too
        with Consumer(self.bootstrap, isolation_level=isolation_level) as consumer:
            consumer.assign(names)
            consumer.seek_to_beginning()
            while any((consumer.position(name) or 0) < ends[name] for name in names):
                found += consumer.poll(0.1)
                if time.monotonic() > deadline:
                    what = f"all records of {topic!r}; got {len(found)}"
                    if isolation_level == "read_committed":
                        what += "; is a transaction open?"
                    raise WaitTimeout(f"waited {timeout_s:g} s for {what}")
        found = [each for each in found if each.offset < ends[TopicPartition(*each[:2])]]
        return sorted(found, key=lambda each: (each.partition, each.offset))

    def requests(self, client_id: str | None = None) -> list[Request]:
        """Return the requests with this client id that the brokers have received, in order.

        Without a client id these are the requests of all clients, but not those of other brokers.
        Each broker keeps the latest 20,000 of clients, and as many of brokers. Of a broker that the
        test has killed, stopped or paused these are the requests of clients until then.
        """
        found: list[Request] = []
        for node_id, broker in self._brokers.items():
            of_clients = requests_of(node_id, broker.requests(), self._began_at)
            of_this = [each for each in of_clients if client_id in (None, each.client_id)]
            is_of_clients = client_id is None or bool(of_this)
            if not is_of_clients and broker.is_running and not broker.is_paused:
                answer = broker.order("requests", client_id=client_id)["requests"]
                of_this = requests_of(node_id, answer, self._began_at)
            found += of_this
        return sorted(found, key=lambda each: each.at_s)

    def read_history(
        self,
        *topics: str,
        groups: Collection[str] = (),
        value_of: "Callable[[ConsumerRecord], Hashable]" = lambda record: record.value,
        isolation_level: Literal["read_uncommitted", "read_committed"] = "read_committed",
        timeout_s: float = WAIT_S,
    ) -> "History":
        """Return a `History` of what the brokers have: the records of these topics as `appended`,
        and what groups have committed for them, by which client and member, with the times.

        `groups` are by default all with commits for these topics. `value_of` is what stands for a
        record, by default its value as bytes; a record for which it is None is left out. What is
        `processed` only the program, its database or its own topic can tell. As in `read_all`,
        records of aborted transactions are left out, and open transactions are waited for.

        Raises `ValueError` for a topic whose log no longer has all records: one that is compacted,
        or from which some were deleted. Raises `WaitTimeout` as `read_all` does.
        """
        from minibroker.testing.kit.broker_history import BrokerHistory

        reader = BrokerHistory(self, topics, groups)
        reader.check_complete()
        records = [
            record
            for topic in topics
            for record in self.read_all(topic, timeout_s, isolation_level=isolation_level)
        ]
        return reader.history(records, value_of)

    def committed(self, group: str) -> "dict[TopicPartition, OffsetAndMetadata]":
        """Return the offsets that a group has committed."""
        return self._admin.committed_offsets(group)

    # -- for the fixtures

    def timeline_of_test(self) -> tuple[Event, ...]:
        """Return the timeline since `begin_test`."""
        return tuple(self._events[self._test_began :])

    def log_of_test(self, node_id: int) -> str:
        """Return what a broker has printed since `begin_test`."""
        if node_id in self._last_logs:
            return self._last_logs[node_id]
        return self._brokers[node_id].output_since(self._logs_began.get(node_id, 0))

    def begin_test(self, name: str) -> None:
        """Begin a test: topics are named after it from now on."""
        self._services.begin_test()
        self._test_began = len(self._events)
        self._logs_began = {each: broker.log_size() for each, broker in self._brokers.items()}
        self._name = NOT_IN_NAMES.sub("-", name)[-NAME_LENGTH_MAX:].strip("-.") or "topic"
        self.note(f"test {name}")

    def keep_ledgers(self) -> None:
        """Make producers of this cluster record acknowledgements in ledgers, for `check_logs`."""
        self._keeps_ledgers = True
        self._ledgers.mkdir(exist_ok=True)

    def check_logs(self) -> None:
        """Check the files of the brokers: no batch is damaged, the replicas are equal, and each
        acknowledged record is there. Call it when all faults are undone.

        Raises `LogsWrong`, and `ImportError` if the extra `audit` is missing.
        """
        from minibroker.testing.kit.audited import check_logs

        self.wait_until_in_sync()
        states = self._states(self._admin.list_topics())
        data_dirs = [self.data_dir(node_id) for node_id in self.node_ids]
        ledgers = sorted(self._ledgers.iterdir()) if self._keeps_ledgers else []
        check_logs(data_dirs, states, ledgers)

    def heal(self, timeout_s: float = START_S_MAX) -> list[Fault]:
        """Undo all faults that hold, and return them, newest first. If there was any fault, wait
        until all replicas are in sync. Raises `BrokerFailed` if a broker has ended by itself."""
        self.check_alive()
        left = [
            fault
            for fault in reversed(self._faults)
            if not fault.is_undone
            and (not fault.takes_down or self._down.intersection(fault.brokers))
        ]
        was_broken = bool(self._faults or self._down)
        for fault in left:  # first those that may hinder a start
            if not fault.takes_down:
                fault.undo()
        self.resume()
        self.start()
        for fault in left:
            fault.undo()
        if was_broken:
            self.wait_until_in_sync(timeout_s)
        self._faults.clear()
        self._injected.clear()
        self._close_admin()
        return left

    def close(self) -> None:
        """Kill all brokers, and remove the directory unless it is to be kept. A second call does
        nothing."""
        for node_id, broker in self._brokers.items():
            begin = self._logs_began.get(node_id, 0)
            self._last_logs.setdefault(node_id, broker.output_since(begin))
        try:
            self.end_processes()
            self._close_admin()
        finally:
            super().close()

    # -- inside

    @property
    def _ledgers(self) -> Path:
        return self._open_place.root / "ledgers"

    @property
    def _admin(self) -> "Admin":
        if self._own_admin is None:
            from minibroker.client.blocking import Admin

            # The listener for brokers, to which no fault of clients applies.
            self._own_admin = Admin(
                ",".join(map(self._address_for_brokers, self.node_ids)),
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
        """Wait until `pick` finds something in the state of a partition, and return it."""

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
        """Wait until `is_so` holds for each partition of these topics, by default of all."""

        def look() -> Look[bool]:
            names = self._admin.list_topics() if topics is None else topics
            for seen in self._states(names):
                if not is_so(seen):
                    return Look(None, str(seen))
            return Look(True, "")

        wait_for(what, look, timeout_s)


def running_cluster(
    brokers: int = 3,
    *,
    properties: Mapping[str, object] | None = None,
    flush: str = "never",
    store: str = "",
    ports: str = "",
) -> KafkaCluster:
    """Return a cluster for a `with` block, in unittest, fixtures of your own, or scripts; or for
    `start()` and `close()`, in a shell.

    `properties` are those of docs/configuration.md; they override the kit's settings for tests.
    `flush` and `store` are the `flush` and the `metadata.store` of all brokers. `ports` is the
    range for the brokers, such as "20000-20400". Raises `ValueError` for settings that cannot be.
    """
    settings = ClusterSettings.of(brokers, properties, flush, store)
    return KafkaCluster(settings, ports_of(ports))


def _commits(found: "dict[TopicPartition, OffsetAndMetadata]") -> str:
    shown = (f"{at.offset} of {name[0]}-{name[1]}" for name, at in found.items())
    return ", ".join(shown) or "nothing"
