"""The entries of the metadata store: keys, values, and how they are read and written.

| key | value |
|---|---|
| `cluster-id` | the id that data directories are marked with |
| `cluster-id/restore` | exists while a backup is put back in several transactions |
| `controller` | the active controller; under its broker's lease |
| `controller-epoch` | the epoch of the newest controller; it is never removed and only grows |
| `brokers/NODE` | a broker's registration, under its lease; its revision is the broker epoch |
| `admissions/NODE` | the last registration that the controller admitted, until unregistered |
| `departures/NODE/PART` | the ends of a broker's logs when it had shut down cleanly |
| `topics/NAME` | a topic's id and its own settings |
| `groups/ID` | a consumer group's own settings |
| `broker-configs/NODE` | the settings that a broker was given while it runs |
| `partitions/ID/NUMBER` | leader, epochs, ISR and replicas of one partition of that topic id |
| `tombstones/ID` | a deleted topic whose directories may still lie on brokers (CTL-15) |
| `producer-ids` | the first producer id that no broker has claimed |

A broker writes its own registration, its own departure, its claims of producer ids and, when it
stands for election, the two controller keys. Only the elected controller writes the rest, and each
of its transactions compares the `controller` key.

Values are JSON, so that a person can read them with any SQLite tool. The key of a partition has the
topic's id and not its name: a topic that is created again under the same name shares nothing with
the old one.

A backup has what only the store knows: `backup.py` says which keys those are, and a restore writes
them back while no broker runs.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, TypeVar

from minibroker.broker.controller.state import (
    Admission,
    BrokerRegistration,
    ClosedLog,
    Departure,
    PartitionRecord,
    Reassignment,
    State,
    Tombstone,
    TopicRecord,
)
from minibroker.broker.metadata.store import ABSENT, NO_LEASE, Delete, Entry, Put, StoreError
from minibroker.broker.turns import Turns, at_once
from minibroker.protocol.constants import NO_EPOCH
from minibroker.protocol.types import Endpoint, NamedEndpoint, TopicPartition

CLUSTER_ID: Final = "cluster-id"
RESTORE: Final = "cluster-id/restore"  # a broker that starts reads both at once
CONTROLLER: Final = "controller"
CONTROLLER_EPOCH: Final = "controller-epoch"
PRODUCER_IDS: Final = "producer-ids"
BROKERS: Final = "brokers/"
ADMISSIONS: Final = "admissions/"
DEPARTURES: Final = "departures/"
TOPICS: Final = "topics/"
GROUPS: Final = "groups/"
BROKER_CONFIGS: Final = "broker-configs/"
PARTITIONS: Final = "partitions/"
TOMBSTONES: Final = "tombstones/"

READ_AT_ONCE: Final = 500  # topics and partitions, in one turn of the loop
DEPARTED_LOGS_MAX: Final = 2_000  # in one entry, far below what etcd takes at once
CREATION_BITS: Final = 32  # how many topics one controller can number

Entries = Mapping[str, Entry]
Value = TypeVar("Value")


class ActiveController(NamedTuple):
    """The active controller; `revision` is that of its key, which each of its writes compares.

    `fences`: it probes brokers and fences those that do not answer. An earlier version does not.
    """

    node_id: int
    revision: int
    fences: bool = True


class _DepartedPart(NamedTuple):
    """One entry of a departure, with some of its logs."""

    departure: Departure
    part_count: int


# -- reading


def read_state(entries: Entries) -> Turns[State]:
    """Read everything but the registrations from a snapshot of the whole store.

    A controller numbers the topics that it creates from a number of its own, made of its epoch.
    `brokers` is empty: a review sets the live brokers. Raises `StoreError` that names a bad entry.
    """
    admissions = [_parse(entries, key, _admission) for key in _under(entries, ADMISSIONS)]
    tombstones = [_parse(entries, key, _tombstone) for key in _under(entries, TOMBSTONES)]
    topics: list[TopicRecord] = []
    read = 0  # topics and partitions, since the last pause
    for key in _under(entries, TOPICS):
        topic = yield from _read_topic(entries, key.removeprefix(TOPICS))
        topics.append(topic)
        read += 1 + len(topic.partitions)
        if read > READ_AT_ONCE:
            read = 0
            yield
    deleted = {tombstone.id: tombstone for tombstone in tombstones}
    return State(
        cluster_id=read_cluster_id(entries) or "",
        topics={topic.name: topic for topic in topics if topic.id not in deleted},
        admissions={admission.node_id: admission for admission in admissions},
        tombstones=deleted,
        groups={
            key.removeprefix(GROUPS): _parse(entries, key, _configs)
            for key in _under(entries, GROUPS)
        },
        broker_configs={
            int(key.removeprefix(BROKER_CONFIGS)): _parse(entries, key, _configs)
            for key in _under(entries, BROKER_CONFIGS)
        },
        creation=(read_controller_epoch(entries) + 1) << CREATION_BITS,
    )


def leftovers(entries: Entries, state: State) -> tuple[Delete, ...]:
    """Return the deletions of all entries that `read_state` leaves out: parts of topics that a
    controller was creating, deleting or extending in several transactions when it ended."""
    counts = {topic.id.hex(): len(topic.partitions) for topic in state.topics.values()}
    topics = [
        key for key in _under(entries, TOPICS) if key.removeprefix(TOPICS) not in state.topics
    ]
    partitions = []
    for key in _under(entries, PARTITIONS):
        _, topic_id, number = key.split("/")
        if int(number) >= counts.get(topic_id, 0):
            partitions.append(key)
    return tuple(map(Delete, (*topics, *partitions)))


def _read_topic(entries: Entries, name: str) -> Turns[TopicRecord]:
    """Read one topic with its partitions. Raises `StoreError` if a part is missing or bad."""

    def topic(_: str, found: Any) -> tuple[bytes, dict[str, str], range, int]:
        numbers = range(found["partitions"])
        creation = int(found.get("creation", 0))  # an older controller wrote none
        return bytes.fromhex(found["id"]), dict(found["configs"]), numbers, creation

    topic_id, configs, numbers, creation = _parse(entries, TOPICS + name, topic)
    partitions: list[PartitionRecord] = []
    for some in at_once(numbers, READ_AT_ONCE):
        keys = [_partition_key(topic_id, number) for number in some]
        partitions += [_parse(entries, key, _partition) for key in keys]
        if len(partitions) < len(numbers):
            yield
    return TopicRecord(topic_id, name, configs, tuple(partitions), creation)


def read_brokers(entries: Entries) -> dict[int, BrokerRegistration]:
    """Read the registrations. Raises `StoreError`."""
    return {
        registered.node_id: registered
        for registered in (
            _parse(entries, key, lambda key, found: _registered(key, found, entries[key].revision))
            for key in _under(entries, BROKERS)
        )
    }


def read_departures(entries: Entries) -> dict[int, Departure]:
    """Read the departures that are complete and still valid. Raises `StoreError`."""
    parts: dict[int, list[_DepartedPart]] = {}
    for key in _under(entries, DEPARTURES):
        part = _parse(entries, key, _departed_part)
        parts.setdefault(part.departure.node_id, []).append(part)
    found = {}
    for key in _under(entries, ADMISSIONS):
        admission = _parse(entries, key, _admission)
        node_id, epoch = admission.node_id, admission.epoch
        mine = [part for part in parts.get(node_id, ()) if part.departure.epoch == epoch]
        if mine and len(mine) == mine[0].part_count:
            logs = tuple(log for part in mine for log in part.departure.logs)
            found[node_id] = Departure(node_id, epoch, logs)
    return found


def read_active_controller(entries: Entries) -> ActiveController | None:
    """Read the active controller; None if there is none."""
    if CONTROLLER not in entries:
        return None
    node_id, fences = _parse(
        entries, CONTROLLER, lambda _, found: (int(found["node_id"]), bool(found.get("fences")))
    )
    return ActiveController(node_id, entries[CONTROLLER].revision, fences)


def read_controller_epoch(entries: Entries) -> int:
    """Read the epoch of the newest controller; -1 before the first."""
    return _number(entries, CONTROLLER_EPOCH, NO_EPOCH)


def read_cluster_id(entries: Entries) -> str | None:
    """Read the cluster's id; None if it has none yet."""
    return str(_read(entries, CLUSTER_ID)) if CLUSTER_ID in entries else None


def read_producer_ids(entries: Entries) -> int:
    """Read the first producer id that no broker has claimed."""
    return _number(entries, PRODUCER_IDS, 0)


def revision_of(entries: Entries, key: str) -> int:
    """Return the revision to compare a key with."""
    return entries[key].revision if key in entries else ABSENT


# -- writing


def topic_put(topic: TopicRecord) -> Put:
    """The entry of a topic, without its partitions."""
    return _put(
        TOPICS + topic.name,
        {
            "id": topic.id.hex(),
            "configs": topic.configs,
            "partitions": len(topic.partitions),
            "creation": topic.creation,
        },
    )


def group_write(group_id: str, configs: Mapping[str, str]) -> Put | Delete:
    """The entry of a group's own settings; without any it has no entry."""
    key = GROUPS + group_id
    return _put(key, {"configs": dict(configs)}) if configs else Delete(key)


def broker_configs_write(node_id: int, configs: Mapping[str, str]) -> Put | Delete:
    """The entry of the settings that a broker was given while it runs; none without any."""
    key = f"{BROKER_CONFIGS}{node_id}"
    return _put(key, {"configs": dict(configs)}) if configs else Delete(key)


def partition_put(topic_id: bytes, record: PartitionRecord) -> Put:
    """The entry of one partition."""
    value: dict[str, object] = {
        "leader": record.leader,
        "leader_epoch": record.leader_epoch,
        "partition_epoch": record.partition_epoch,
        "isr": record.isr,
        "replicas": record.replicas,
    }
    if record.unsafe:
        value["unsafe"] = record.unsafe
    if record.reassignment is not None:
        value["reassignment"] = record.reassignment._asdict()
    if record.former:
        value["former"] = record.former
    if record.unclean_epoch != NO_EPOCH:
        value["unclean_epoch"] = record.unclean_epoch
    if record.is_restored:
        value["restored"] = True
    return _put(_partition_key(topic_id, record.number), value)


def topic_removal(topic: TopicRecord, tombstone: Tombstone) -> list[Put | Delete]:
    """Return the writes that remove a topic from the store and leave its tombstone."""
    return [
        tombstone_put(tombstone),
        Delete(TOPICS + topic.name),
        *(Delete(_partition_key(topic.id, record.number)) for record in topic.partitions),
    ]


def tombstone_put(tombstone: Tombstone) -> Put:
    """The entry of a deleted topic."""
    value = {
        "name": tombstone.name,
        "partitions": tombstone.partition_count,
        "holders": tombstone.holders,
    }
    return _put(TOMBSTONES + tombstone.id.hex(), value)


def tombstone_removal(topic_id: bytes) -> Delete:
    """Return the removal of a tombstone."""
    return Delete(TOMBSTONES + topic_id.hex())


def admission_put(admission: Admission) -> Put:
    """The entry that a broker was admitted, or has asked to stop."""
    value: dict[str, object] = {
        "epoch": admission.epoch,
        "directory_id": admission.directory_id,
        "run": admission.run,
        "process": admission.process,
        "is_leaving": admission.is_leaving,
    }
    if admission.rack is not None:
        value["rack"] = admission.rack
    return _put(f"{ADMISSIONS}{admission.node_id}", value)


def admission_removal(node_id: int) -> Delete:
    """Return the removal of a broker's admission: the cluster forgets it."""
    return Delete(f"{ADMISSIONS}{node_id}")


def departure_puts(departure: Departure) -> list[Put]:
    """Return the entries of a broker that has shut down cleanly. They may be written one by one."""
    some = [*at_once(departure.logs, DEPARTED_LOGS_MAX)] or [[]]
    return [
        _put(
            f"{DEPARTURES}{departure.node_id}/{number}",
            {
                "epoch": departure.epoch,
                "parts": len(some),
                "logs": [(log.topic_id.hex(), *log[1:]) for log in logs],
            },
        )
        for number, logs in enumerate(some)
    ]


def broker_put(registered: BrokerRegistration, lease: int) -> Put:
    """Return the entry of a registration; the store's revision of it becomes its epoch."""
    value: dict[str, object] = {
        "host": registered.endpoint.host,
        "port": registered.endpoint.port,
        "directory_id": registered.directory_id,
        "run": registered.run,
        "process": registered.process,
        "tail_safe": registered.tail_safe,
        "was_synced": registered.was_synced,
        "damaged": sorted(registered.damaged),
        "listeners": registered.listeners,
        "fence_timeout_ms": registered.fence_timeout_ms,
    }
    if registered.rack is not None:
        value["rack"] = registered.rack
    return _put(broker_key(registered.node_id), value, lease)


def broker_key(node_id: int) -> str:
    """The key of a registration."""
    return f"{BROKERS}{node_id}"


def active_controller_puts(node_id: int, epoch: int, lease: int) -> list[Put]:
    """Return the entries of a new controller."""
    active = {"node_id": node_id, "fences": True}
    return [_put(CONTROLLER, active, lease), controller_epoch_put(epoch)]


def controller_epoch_put(epoch: int) -> Put:
    """The entry of the newest controller's epoch."""
    return _put(CONTROLLER_EPOCH, epoch)


def cluster_id_put(cluster_id: str) -> Put:
    """The entry of the cluster's id."""
    return _put(CLUSTER_ID, cluster_id)


def producer_ids_put(first_unclaimed: int) -> Put:
    """The entry of the producer id counter."""
    return _put(PRODUCER_IDS, first_unclaimed)


# -- one entry


def _partition(key: str, found: Any) -> PartitionRecord:
    return PartitionRecord(
        number=int(key.rpartition("/")[2]),
        leader=found["leader"],
        leader_epoch=found["leader_epoch"],
        partition_epoch=found["partition_epoch"],
        isr=tuple(found["isr"]),
        replicas=tuple(found["replicas"]),
        unsafe=tuple(found.get("unsafe", ())),
        reassignment=_reassignment(found.get("reassignment")),
        former=tuple(found.get("former", ())),
        unclean_epoch=int(found.get("unclean_epoch", NO_EPOCH)),
        is_restored=bool(found.get("restored")),
    )


def _reassignment(found: Any) -> Reassignment | None:
    if found is None:
        return None
    return Reassignment(tuple(found["original"]), tuple(found["target"]))


def _configs(key: str, found: Any) -> dict[str, str]:
    return dict(found["configs"])


def _tombstone(key: str, found: Any) -> Tombstone:
    topic_id = bytes.fromhex(key.removeprefix(TOMBSTONES))
    return Tombstone(topic_id, found["name"], found["partitions"], tuple(found["holders"]))


def _admission(key: str, found: Any) -> Admission:
    return Admission(
        node_id=int(key.removeprefix(ADMISSIONS)),
        epoch=found["epoch"],
        directory_id=found["directory_id"],
        run=found["run"],
        process=found["process"],
        is_leaving=found["is_leaving"],
        rack=_rack(found),
    )


def _departed_part(key: str, found: Any) -> _DepartedPart:
    node_id = int(key.split("/")[1])
    logs = tuple(
        ClosedLog(bytes.fromhex(topic_id), *map(int, rest)) for topic_id, *rest in found["logs"]
    )
    return _DepartedPart(Departure(node_id, int(found["epoch"]), logs), int(found["parts"]))


def _registered(key: str, found: Any, revision: int) -> BrokerRegistration:
    return BrokerRegistration(
        node_id=int(key.removeprefix(BROKERS)),
        epoch=revision,
        endpoint=Endpoint(found["host"], found["port"]),
        directory_id=found["directory_id"],
        run=found["run"],
        process=found["process"],
        tail_safe=found["tail_safe"],
        was_synced=found["was_synced"],
        damaged=frozenset(TopicPartition(*one) for one in found["damaged"]),
        # A registration from before several listeners existed has none.
        listeners=tuple(NamedEndpoint(*one) for one in found.get("listeners", ())),
        fence_timeout_ms=int(found.get("fence_timeout_ms", 0)),
        rack=_rack(found),
    )


def _rack(found: Any) -> str | None:
    """Return the rack in an entry; one of an earlier version, or of a broker without, has none."""
    rack: object = found.get("rack")
    if rack is not None and not isinstance(rack, str):
        raise TypeError(f"the rack {rack!r} is no text")
    return rack


def _partition_key(topic_id: bytes, number: int) -> str:
    return f"{PARTITIONS}{topic_id.hex()}/{number}"


def _under(entries: Entries, prefix: str) -> list[str]:
    return [key for key in entries if key.startswith(prefix)]


def _put(key: str, value: object, lease: int = NO_LEASE) -> Put:
    return Put(key, json.dumps(value).encode(), lease)


def _number(entries: Entries, key: str, missing: int) -> int:
    return _parse(entries, key, lambda _, found: int(found)) if key in entries else missing


def _parse(entries: Entries, key: str, parse: Callable[[str, Any], Value]) -> Value:
    """Read one entry with `parse`. Raises `StoreError` if it is missing or cannot be read."""
    found = _read(entries, key)
    try:
        return parse(key, found)
    except (AssertionError, KeyError, TypeError, ValueError) as error:
        raise _bad(key, error) from error


def _read(entries: Entries, key: str) -> Any:
    try:
        return json.loads(entries[key].value)
    except (KeyError, ValueError) as error:
        raise _bad(key, error) from error


def _bad(key: str, error: Exception) -> StoreError:
    return StoreError(
        f"the metadata store is damaged: its entry {key!r} cannot be read ({error!r}). "
        f"Nothing was deleted"
    )
