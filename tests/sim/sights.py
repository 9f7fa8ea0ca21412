"""Looks at a simulated cluster from outside, often, and shows what it sees to the checkers.

What brokers hold is read from their objects, what is agreed from the store's raw entries: nothing
goes over the simulated network or takes virtual time, so a look changes nothing.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial

import trio

from minibroker.broker.log.log import Log
from minibroker.broker.metadata.store import Snapshot
from minibroker.broker.replication.partition import Partition
from minibroker.broker.replication.replicas import Replicas
from minibroker.broker.replication.roles import NEVER, Leader, PendingShrink
from minibroker.protocol.records.batch import iterate_headers
from minibroker.protocol.records.record import Record, decode_records
from minibroker.protocol.types import TopicPartition
from minibroker.testing.cluster import (
    DATA_DIRECTORY,
    SimulatedBroker,
    SimulatedCluster,
    SimulatedWorld,
)
from minibroker.testing.mutants import patched
from tests.sim.checkers import (
    ActiveController,
    Agreed,
    Checker,
    Committed,
    Deleted,
    Deletions,
    Departure,
    JustifiedDepartures,
    Key,
    NewestController,
    OneLeader,
    PatientCandidates,
    Proposal,
    Replica,
    Resting,
    RisingHighWatermark,
    Sight,
    SoleLeader,
    SoundIsr,
    UnaskedChanges,
    WakefulSessions,
)
from tests.sim.compacted_tables import KeyedRecord, Table
from tests.sim.reassignment_checkers import SoundReassignments

INTERVAL_S = 0.02
MIN_INSYNC_REPLICAS = 2  # of the topics whose partitions are reassigned
PATIENCE_S = 0.5  # less than any pause before a broker stands again
EVERYTHING = 1 << 40


class Watcher:
    """All checkers, and the cluster that they are shown, every `interval_s`. `trace` tells who led
    what since when."""

    def __init__(self, world: SimulatedWorld, cluster: SimulatedCluster) -> None:
        self.leaders = OneLeader()
        self.deletions = Deletions()
        self.tables: dict[str, Table] = {}  # of compacted topics, by name
        self.committed = Committed(self.deletions, self.tables)
        self.trace: list[str] = []
        self.interval_s = INTERVAL_S
        self._checkers: tuple[Checker, ...] = (
            self.leaders,
            RisingHighWatermark(),
            self.committed,
            Deleted(self.deletions),
            SoundIsr(),
            SoundReassignments(MIN_INSYNC_REPLICAS),
            NewestController(),
            WakefulSessions(),
            SoleLeader(),
            PatientCandidates(PATIENCE_S),
        )
        self._world = world
        self._cluster = cluster
        self._lost: dict[int, int] = {}  # brokers whose machine lost power: at which store revision
        self._last = Sight((), {})
        self._snapshot = Snapshot(-1, {})
        self.power_offs = 0
        self.revision = -1  # of the store, at the last look
        self.controller = -1

    async def run(self) -> None:
        """Look for ever."""
        proposals: set[Proposal] = set()
        departures: list[Departure] = []
        self._checkers += (UnaskedChanges(proposals), JustifiedDepartures(departures))
        with recorded(proposals, departures):
            while True:
                await self.look()
                await trio.sleep(self.interval_s)

    @property
    def agreed(self) -> Mapping[Key, Agreed]:
        """What the store said at the last look."""
        return self._last.agreed

    async def look(self) -> Sight:
        """Look once. Raises `Violation`."""
        snapshot = await self._world.store.get("")
        agreed = self._last.agreed
        if snapshot.revision != self.revision:
            agreed = read_agreed(snapshot)
            self.revision = snapshot.revision
            self.controller = _value(snapshot, "controller", "node_id", -1)
            self._note_changes(agreed)
            self._note_admissions(snapshot)
            self._snapshot = snapshot
        replicas = tuple(each for broker in self._cluster.brokers for each in holdings(broker))
        obeyed = {
            (broker.node_id, broker.life): broker.replicas.image.controller_epoch
            for broker in self._cluster.brokers
            if broker.replicas is not None
        }
        self._last = Sight(
            replicas,
            agreed,
            frozenset(self._lost),
            obeyed,
            leaving(self._snapshot),
            admitted(self._snapshot),
            active_controller(self._snapshot),
            trio.current_time(),
        )
        for checker in self._checkers:
            checker.look(self._last)
        return self._last

    def note(self, text: str) -> None:
        """Something for the trace."""
        self.trace.append(f"{trio.current_time():9.4f} {text}")

    def note_power_off(self, broker: int, *, is_tail_lost: bool) -> None:
        """A machine loses power, perhaps with what its logs were promised to keep."""
        self.power_offs += 1
        if is_tail_lost:
            self._lost[broker] = self.revision

    def may_lose_power(self, broker: int) -> bool:
        """Whether nothing acknowledged is lost with this broker's unsynced tail: wherever it has a
        replica, another one that is in sync has its whole tail. A replica that is not in sync may
        have the last whole one: the others lost theirs before the controller heard of it. Ask right
        after a look."""
        return all(
            any(
                member != broker and member not in self._lost and member not in each.unsafe
                for member in each.isr
            )
            for each in self._last.agreed.values()
            if broker in each.replicas
        )

    def _note_changes(self, agreed: Mapping[Key, Agreed]) -> None:
        for key, state in agreed.items():
            if self._last.agreed.get(key) != state:
                self.note(
                    f"{state.name} leader {state.leader} epoch {state.leader_epoch}"
                    f" isr {state.isr}" + (f" unsafe {state.unsafe}" if state.unsafe else "")
                )

    def _note_admissions(self, snapshot: Snapshot) -> None:
        for broker, revision in list(self._lost.items()):
            entry = snapshot.entries.get(f"brokers/{broker}")
            admitted = _value(snapshot, f"admissions/{broker}", "epoch", -1)
            if entry is not None and entry.revision > revision and entry.revision == admitted:
                del self._lost[broker]

    def unsettled(self) -> str:
        """What the last sight lacks to be a cluster at rest, or "" if it lacks nothing."""
        held = {(each.broker, each.key): each for each in self._last.replicas}
        for key, agreed in self._last.agreed.items():
            is_moving = bool(agreed.original or agreed.former)
            if is_moving or agreed.leader < 0 or set(agreed.isr) != set(agreed.replicas):
                return f"{agreed.name}: {agreed}"
            there = [held.pop((node, key), None) for node in agreed.replicas]
            ends = {(each.log_end, each.high_watermark) for each in there if each is not None}
            leads = {each.broker: each.leader_epoch for each in there if each and each.is_leader}
            if None in there or len({*next(iter(ends))}) != 1 or len(ends) != 1:
                return f"{agreed.name}: {[_ends(each) for each in there]}"
            if leads != {agreed.leader: agreed.leader_epoch}:
                return f"{agreed.name}: {agreed}, but those who lead it are {leads}"
        for broker in self._cluster.brokers:
            told = told_of(broker)
            if told != {each[:4] for each in self.agreed.values()}:
                return f"broker {broker.node_id} knows of {sorted(told)}"
        if held:
            return f"nobody needs {[str(each) for each in held.values()]}"
        names = (broker.files.list(DATA_DIRECTORY) for broker in self._cluster.brokers)
        strays = [name for each in names for name in each if name.endswith("-stray")]
        if self.power_offs:
            # What a log was called, and whose it was, is not synced at once: a deletion may be
            # undone when nobody remembers it any more, and a new log be nobody's.
            strays = []
        return f"strays: {strays}" if strays else ""

    def replicas(self, topic: str) -> list[Replica]:
        """All replicas of a topic, as they were seen last."""
        return [each for each in self._last.replicas if each.name.topic == topic]

    def stored(self) -> dict[TopicPartition, list[tuple[int, bytes]]]:
        """All records of the topics that there are, from replicas that must be equal to the byte,
        but for compacted topics.

        For a cluster at rest.
        """
        return {
            name: [(record.offset, bytes(record.value or b"")) for record in records]
            for name, records in self.records().items()
        }

    def records(self, topic: str | None = None) -> dict[TopicPartition, list[Record]]:
        """The same, as whole records; of one topic that is at rest, if it is named."""
        found = {}
        for key, agreed in self._last.agreed.items():
            if topic not in (None, agreed.name.topic) or agreed.name.topic in self.tables:
                continue
            there = [each for each in self._last.replicas if each.key == key]
            start = max(each.log_start for each in there)
            logs = {each.read(start, each.log_end) for each in there}
            assert len(logs) == 1, f"the replicas of {agreed.name} differ"
            records = decode_batches(logs.pop())
            found[agreed.name] = [record for record in records if record.offset >= start]
        return found


def holdings(broker: SimulatedBroker) -> Iterator[Replica]:
    """What a broker holds, if it runs and has not closed its logs yet to end."""
    replicas = broker.replicas
    if replicas is None or not broker.is_running or not broker.files.locks:
        return
    for name in replicas.high_watermarks():
        partition = replicas.get(name)
        assert partition is not None, "what has a high watermark is there"
        log = partition.log
        yield Replica(
            broker=broker.node_id,
            life=broker.life,
            key=(partition.topic_id.hex(), name.partition),
            name=name,
            is_leader=partition.is_leader,
            leader_epoch=partition.leader_epoch,
            high_watermark=partition.high_watermark,
            log_start=log.log_start,
            log_end=log.log_end,
            generation=log.generation,
            size=log.size,
            read=partial(read_log, log),
            resting=tuple(resting_of(partition)),
            promises=partition.is_leader and promises(broker, partition),
        )


def promises(broker: SimulatedBroker, partition: Partition) -> bool:
    """Whether a leader would take acks=1 now. A process that stands still takes nothing."""
    now = trio.current_time()
    return (
        broker.node is not None
        and broker.replicas is not None
        and not broker.is_paused
        and broker.node.may_decide_alone(now)
        and broker.replicas.is_role_present(partition.topic_partition)
        and not partition.is_handing_over(now)
    )


@contextmanager
def recorded(proposals: set[Proposal], departures: list[Departure]) -> Iterator[None]:
    """Note each wish of a leader to have replicas leave an in-sync set, and what it knew then."""
    usual, usual_record = Leader.shrink_isr, Replicas.record_arrival
    heard_at: dict[tuple[int, int], float] = {}  # the last FETCH, by leader and follower

    def record_arrival(replicas: Replicas, node_id: int, now: float) -> None:
        heard_at[replicas.broker_id, node_id] = now
        usual_record(replicas, node_id, now)

    def shrink_isr(
        leader: Leader, own_end: int, min_insync_replicas: int, now: float
    ) -> PendingShrink | None:
        pending = usual(leader, own_end, min_insync_replicas, now)
        if pending is None:
            return None
        broker = leader._local_broker
        needed = min(min_insync_replicas, len(leader.replicas))
        for replica in set(pending.isr).difference(pending.proposed):
            proposals.add(Proposal(leader.broker_id, leader.leader_epoch, replica))
            progress = leader.progress_of(replica)
            caught_up_at = NEVER if progress is None else progress.caught_up_at
            heard = max(caught_up_at, heard_at.get((leader.broker_id, replica), NEVER))
            departures.append(
                Departure(
                    leader.broker_id,
                    replica,
                    now - caught_up_at,
                    broker.lag_s_max,
                    now - heard,
                    broker.follower_silence.timeout_s,
                    len(pending.proposed),
                    needed,
                )
            )
        return pending

    with (
        patched(Leader, "shrink_isr", shrink_isr),
        patched(Replicas, "record_arrival", record_arrival),
    ):
        yield


def admitted(snapshot: Snapshot) -> dict[int, int]:
    """The broker epochs of those who are registered as they were admitted."""
    return {
        node: entry.revision
        for key, entry in snapshot.entries.items()
        if key.startswith("brokers/")
        for node in [int(key.removeprefix("brokers/"))]
        if entry.revision == _value(snapshot, f"admissions/{node}", "epoch", -1)
    }


def active_controller(snapshot: Snapshot) -> ActiveController | None:
    """The active controller. One elected before its present registration is of a former life."""
    entry = snapshot.entries.get("controller")
    if entry is None:
        return None
    node_id = int(json.loads(entry.value)["node_id"])
    registration = snapshot.entries.get(f"brokers/{node_id}")
    is_present = registration is not None and registration.revision <= entry.revision
    return ActiveController(node_id, entry.revision, registration.revision if is_present else -1)


def leaving(snapshot: Snapshot) -> frozenset[int]:
    """The brokers that have asked to stop."""
    return frozenset(
        int(key.removeprefix("admissions/"))
        for key, entry in snapshot.entries.items()
        if key.startswith("admissions/") and json.loads(entry.value)["is_leaving"]
    )


def resting_of(partition: Partition) -> Iterator[Resting]:
    """The followers that rest, where the partition is led."""
    role = partition.role
    if isinstance(role, Leader):
        for broker in role.replicas:
            progress = role.progress_of(broker)
            if progress is not None and progress.is_resting:
                yield Resting(broker, progress.log_end, progress.fetched_at)


def told_of(broker: SimulatedBroker) -> set[tuple[object, ...]]:
    """What a broker answers clients from: of each partition what `Agreed` begins with."""
    assert broker.replicas is not None, "it has started"
    return {
        (TopicPartition(topic.name, each.partition), each.leader, each.leader_epoch, each.isr)
        for topic in broker.replicas.image.topics.values()
        for each in topic.partitions
    }


def read_log(log: Log, start: int, end: int) -> bytes:
    """The whole batches of a log between two offsets. One read gives 1,024 batches at most."""
    parts: list[bytes] = []
    while start < end:
        part = b"".join(bytes(each.read()) for each in log.read(start, EVERYTHING, end))
        if not part:
            break
        parts.append(part)
        start = [header.next_offset for _, header in iterate_headers(part)][-1]
    return b"".join(parts)


def decode(data: bytes) -> list[tuple[int, bytes]]:
    """Offsets and values of the records in some batches."""
    return [(record.offset, bytes(record.value or b"")) for record in decode_batches(data)]


def decode_keyed(data: bytes) -> list[KeyedRecord]:
    """The records in some batches of a compacted topic."""
    return [
        KeyedRecord(record.offset, bytes(record.key or b""), record.value)
        for record in decode_batches(data)
    ]


def decode_batches(data: bytes) -> list[Record]:
    """The records in some batches."""
    return [
        record
        for position, header in iterate_headers(data)
        for record in decode_records(data[position : position + header.size], header)
    ]


def read_agreed(snapshot: Snapshot) -> dict[Key, Agreed]:
    """The partitions that the store has, of topics that are not deleted."""
    names = {
        json.loads(entry.value)["id"]: key.removeprefix("topics/")
        for key, entry in snapshot.entries.items()
        if key.startswith("topics/")
    }
    found = {}
    for path, entry in snapshot.entries.items():
        if not path.startswith("partitions/"):
            continue
        _, topic_id, number = path.split("/")
        value = json.loads(entry.value)
        if topic_id in names:
            found[topic_id, int(number)] = Agreed(
                TopicPartition(names[topic_id], int(number)),
                value["leader"],
                value["leader_epoch"],
                tuple(value["isr"]),
                tuple(value["replicas"]),
                tuple(value.get("unsafe", ())),
                value["partition_epoch"],
                tuple(value.get("reassignment", {}).get("original", ())),
                tuple(value.get("former", ())),
            )
    return found


def _value(snapshot: Snapshot, key: str, field: str, default: int) -> int:
    entry = snapshot.entries.get(key)
    return default if entry is None else int(json.loads(entry.value)[field])


def _ends(replica: Replica | None) -> str:
    if replica is None:
        return "not there"
    return f"broker {replica.broker}: {replica.high_watermark}/{replica.log_end}"
