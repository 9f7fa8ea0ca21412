"""How the cluster stands in the metadata store.

| key | value |
|---|---|
| `cluster-id` | the id that data directories are marked with |
| `controller` | who is controller, and its epoch |
| `brokers/NODE` | a broker's endpoint; the entry's revision is the broker epoch |
| `topics/NAME` | a topic's id and its own settings |
| `partitions/ID/NUMBER` | leader, epochs, ISR and replicas of one partition of that topic id |
| `tombstones/ID` | a deleted topic whose directories may still lie on a broker (CTL-15) |
| `producer-ids` | the first producer id that no broker has claimed |

Values are JSON, so that a person can read them with any SQLite tool. Partitions stand under the
topic's id and not its name: a topic made again under the same name shares nothing with the old one.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from minibroker.broker.metadata.model import ClusterImage, PartitionImage, TopicImage
from minibroker.broker.metadata.store import (
    ABSENT,
    Delete,
    Entry,
    Put,
    Snapshot,
    StoreError,
)
from minibroker.protocol.constants import NO_EPOCH, NO_NODE
from minibroker.protocol.types import Endpoint

CLUSTER_ID: Final = "cluster-id"
CONTROLLER: Final = "controller"
PRODUCER_IDS: Final = "producer-ids"
BROKERS: Final = "brokers/"
TOPICS: Final = "topics/"
PARTITIONS: Final = "partitions/"
TOMBSTONES: Final = "tombstones/"


@dataclass(frozen=True, slots=True)
class Tombstone:
    """A deleted topic."""

    id: bytes
    name: str
    partition_count: int


@dataclass(frozen=True, slots=True)
class Stored:
    """What the store says; `image.brokers` is empty, for an old registration is no live broker."""

    image: ClusterImage
    tombstones: tuple[Tombstone, ...]
    controller_revision: int


def read_all(snapshot: Snapshot) -> Stored:
    """Everything, from a snapshot with the prefix "". Raises `StoreError` naming a bad entry."""
    entries = snapshot.entries
    topics = {}
    for key in _under(entries, TOPICS):
        topic = read_topic(entries, key.removeprefix(TOPICS))
        topics[topic.name] = topic
    controller = _read(entries, CONTROLLER) if CONTROLLER in entries else {}
    image = ClusterImage(
        cluster_id=_read(entries, CLUSTER_ID) if CLUSTER_ID in entries else "",
        controller_id=controller.get("node_id", NO_NODE),
        controller_epoch=controller.get("epoch", NO_EPOCH),
        topics=topics,
    )
    tombstones = tuple(_read_tombstone(entries, key) for key in _under(entries, TOMBSTONES))
    return Stored(image, tombstones, revision_of(entries, CONTROLLER))


def read_topic(entries: Mapping[str, Entry], name: str) -> TopicImage:
    """One topic with its partitions. Raises `StoreError` if a part of it is missing or bad."""
    key = TOPICS + name
    found = _read(entries, key)
    try:
        topic_id, configs, count = bytes.fromhex(found["id"]), found["configs"], found["partitions"]
        partitions = tuple(_read_partition(entries, topic_id, number) for number in range(count))
        return TopicImage(topic_id, name, dict(configs), partitions)
    except (KeyError, TypeError, ValueError) as error:
        raise _bad(key, error) from error


def topic_put(topic: TopicImage) -> Put:
    """The entry of a topic, without its partitions."""
    return _put(
        TOPICS + topic.name,
        {"id": topic.id.hex(), "configs": topic.configs, "partitions": len(topic.partitions)},
    )


def partition_puts(topic: TopicImage) -> list[Put]:
    """The entries of a topic's partitions."""
    return [
        _put(
            _partition_key(topic.id, image.partition),
            {
                "leader": image.leader,
                "leader_epoch": image.leader_epoch,
                "isr": image.isr,
                "replicas": image.replicas,
                "partition_epoch": image.partition_epoch,
            },
        )
        for image in topic.partitions
    ]


def topic_removal(topic: TopicImage) -> list[Put | Delete]:
    """What takes a topic out of the store and leaves its tombstone."""
    tombstone = {"name": topic.name, "partitions": len(topic.partitions)}
    return [
        Delete(TOPICS + topic.name),
        *(Delete(_partition_key(topic.id, image.partition)) for image in topic.partitions),
        _put(TOMBSTONES + topic.id.hex(), tombstone),
    ]


def tombstone_removal(tombstone: Tombstone) -> Delete:
    """What forgets a deleted topic, once no broker has anything of it."""
    return Delete(TOMBSTONES + tombstone.id.hex())


def controller_put(node_id: int, epoch: int) -> Put:
    """The entry that says who is controller."""
    return _put(CONTROLLER, {"node_id": node_id, "epoch": epoch})


def broker_put(node_id: int, endpoint: Endpoint) -> Put:
    """The registration of a broker."""
    return _put(f"{BROKERS}{node_id}", {"host": endpoint.host, "port": endpoint.port})


def cluster_id_put(cluster_id: str) -> Put:
    """The entry of the cluster's id."""
    return _put(CLUSTER_ID, cluster_id)


def read_cluster_id(entries: Mapping[str, Entry]) -> str | None:
    """The cluster's id, if it has one yet."""
    return str(_read(entries, CLUSTER_ID)) if CLUSTER_ID in entries else None


def producer_ids_put(first_unclaimed: int) -> Put:
    """The entry of the producer id counter."""
    return _put(PRODUCER_IDS, first_unclaimed)


def read_producer_ids(entries: Mapping[str, Entry]) -> int:
    """The first producer id that nobody has claimed."""
    return int(_read(entries, PRODUCER_IDS)) if PRODUCER_IDS in entries else 0


def revision_of(entries: Mapping[str, Entry], key: str) -> int:
    """The revision to compare a key with."""
    return entries[key].revision if key in entries else ABSENT


def _read_partition(entries: Mapping[str, Entry], topic_id: bytes, number: int) -> PartitionImage:
    found = _read(entries, _partition_key(topic_id, number))
    return PartitionImage(
        partition=number,
        leader=found["leader"],
        leader_epoch=found["leader_epoch"],
        isr=tuple(found["isr"]),
        replicas=tuple(found["replicas"]),
        partition_epoch=found["partition_epoch"],
    )


def _read_tombstone(entries: Mapping[str, Entry], key: str) -> Tombstone:
    found = _read(entries, key)
    try:
        topic_id = bytes.fromhex(key.removeprefix(TOMBSTONES))
        return Tombstone(topic_id, found["name"], found["partitions"])
    except (KeyError, TypeError, ValueError) as error:
        raise _bad(key, error) from error


def _partition_key(topic_id: bytes, number: int) -> str:
    return f"{PARTITIONS}{topic_id.hex()}/{number}"


def _under(entries: Mapping[str, Entry], prefix: str) -> list[str]:
    return [key for key in entries if key.startswith(prefix)]


def _put(key: str, value: object) -> Put:
    return Put(key, json.dumps(value).encode())


def _read(entries: Mapping[str, Entry], key: str) -> Any:
    try:
        return json.loads(entries[key].value)
    except (KeyError, ValueError) as error:
        raise _bad(key, error) from error


def _bad(key: str, error: Exception) -> StoreError:
    return StoreError(
        f"the metadata store is damaged: its entry {key!r} cannot be read ({error!r}). "
        f"Nothing was deleted"
    )
