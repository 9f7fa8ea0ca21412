"""A `History` that is read from brokers: what was appended, and what groups have committed.

The records are those that consumers can read. The commits are in the files of the offsets topic, at
the broker that leads its partition; those of a transaction count from its marker on. The requests
that the brokers have received tell which client and which member has sent a commit, and when a
broker has got a record: the timestamps of records are what producers say.
"""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from minibroker.broker.groups.records import CommittedOffset, OffsetKey, decode
from minibroker.protocol.constants import NO_PRODUCER_ID, OFFSETS_TOPIC
from minibroker.protocol.records.control import read_end_marker
from minibroker.protocol.records.record import decode_records
from minibroker.protocol.types import TopicPartition
from minibroker.testing.kit.history import History
from minibroker.testing.kit.requests import Request
from minibroker.testing.kit.stored import batches_of

if TYPE_CHECKING:
    from minibroker.client import ConsumerRecord
    from minibroker.client.blocking import Admin

COMMITS: Final = ("OFFSET_COMMIT", "TXN_OFFSET_COMMIT")


class RunningCluster(Protocol):
    """What is asked of a cluster; `KafkaCluster` is one."""

    @property
    def bootstrap(self) -> str:
        """The addresses of the brokers."""
        ...

    @property
    def began_at(self) -> float:
        """When the cluster was made, as Unix time in seconds."""
        ...

    def admin(self) -> "Admin":
        """Return a client, for a `with` block."""
        ...

    def requests(self) -> list[Request]:
        """Return the requests of clients."""
        ...

    def leader(self, topic: str, partition: int) -> int:
        """Return the broker that leads a partition."""
        ...

    def data_dir(self, node_id: int) -> Path:
        """Return the data directory of a broker."""
        ...


class _StoredCommit(NamedTuple):
    at_s: float  # when it counts
    asked_s: float  # when it was sent
    group: str
    topic: str
    partition: int
    offset: int


class BrokerHistory:
    """Reads the records and commits of some topics; `groups` are those wanted, by default all."""

    def __init__(
        self, cluster: RunningCluster, topics: Sequence[str], groups: Collection[str]
    ) -> None:
        if not topics:
            raise ValueError("name at least one topic")
        if isinstance(groups, str):
            raise ValueError(f"groups={groups!r}: expected a list of groups: [{groups!r}]")
        self._cluster = cluster
        self._topics = topics
        self._groups = groups

    def check_complete(self) -> None:
        """Raise `ValueError` if a topic's log does not have all that was appended."""
        from minibroker.client.blocking import Consumer

        with self._cluster.admin() as admin:
            configs = admin.describe_configs(*self._topics)
        for topic, entries in configs.items():
            for entry in entries:
                if entry.name == "cleanup.policy" and "compact" in str(entry.value):
                    raise ValueError(
                        f"{topic!r} is compacted, so its log does not tell all that was appended;"
                        " read the history of a topic with cleanup.policy=delete"
                    )
        with Consumer(self._cluster.bootstrap) as consumer:
            for topic in self._topics:
                numbers = sorted(consumer.partitions_for_topic(topic))
                names = [TopicPartition(topic, number) for number in numbers]
                for name, start in consumer.beginning_offsets(*names).items():
                    if start > 0:
                        raise ValueError(
                            f"the records of {name[0]}-{name[1]} before offset {start} were"
                            " deleted; keep all records for as long as the test runs"
                        )

    def history(
        self,
        records: "Sequence[ConsumerRecord]",
        value_of: "Callable[[ConsumerRecord], Hashable]",
    ) -> History:
        """Return the history of these records and of the commits."""
        requests = self._requests()
        appends = _appends(requests)
        made = History()
        for record in records:
            value = value_of(record)
            if value is not None:
                place = record.topic, record.partition, record.offset
                made.appended(value, *place, at=_appended_at(record, appends))
        senders = _senders(requests)
        for each in sorted(self._commits(), key=lambda commit: commit.at_s):
            by = _sender(each, senders)
            place = each.topic, each.partition, each.offset
            made.committed(each.group, *place, at=each.at_s, by=by)
        return made

    def _requests(self) -> list[Request]:
        began_at = self._cluster.began_at
        return [each._replace(at_s=each.at_s + began_at) for each in self._cluster.requests()]

    def _commits(self) -> Iterator[_StoredCommit]:
        with self._cluster.admin() as admin:
            if OFFSETS_TOPIC not in admin.list_topics():
                return
            [described] = admin.describe_topics(OFFSETS_TOPIC)
        for partition in described.partitions:
            yield from self._commits_in(partition.partition)

    def _commits_in(self, partition: int) -> Iterator[_StoredCommit]:
        leader = self._cluster.leader(OFFSETS_TOPIC, partition)
        pending: dict[int, list[_StoredCommit]] = defaultdict(list)
        next_offset = 0
        for batch, header in batches_of(self._cluster.data_dir(leader), OFFSETS_TOPIC, partition):
            if (header.base_offset, header.record_count) != (
                next_offset,
                header.last_offset - header.base_offset + 1,
            ):
                raise ValueError(
                    f"{OFFSETS_TOPIC}-{partition} was compacted before offset"
                    f" {header.next_offset}, so commits are missing; leave"
                    " offsets.topic.segment.bytes as it is"
                )
            next_offset = header.next_offset
            if header.is_control:
                marker = read_end_marker(batch, header)
                ended = pending.pop(header.producer_id, [])
                if marker is not None and marker.is_commit:
                    at_s = header.max_timestamp / 1000
                    yield from (each._replace(at_s=at_s) for each in ended)
                continue
            for record in decode_records(batch, header):
                found = self._commit(record.key, record.value)
                if found is None:
                    continue
                if header.producer_id == NO_PRODUCER_ID:
                    yield found
                else:
                    pending[header.producer_id].append(found)

    def _commit(self, key: bytes | None, value: bytes | None) -> _StoredCommit | None:
        """Return the commit in a record, if it is one for these topics and groups."""
        decoded = decode(key, value)
        if not isinstance(decoded, tuple):
            return None
        name, stored = decoded
        if not isinstance(name, OffsetKey) or not isinstance(stored, CommittedOffset):
            return None
        if name.topic not in self._topics or (self._groups and name.group_id not in self._groups):
            return None
        at_s = stored.commit_timestamp_ms / 1000
        return _StoredCommit(at_s, at_s, *name, stored.offset)


def _appends(requests: Sequence[Request]) -> dict[tuple[str, int], list[tuple[int, float]]]:
    """Return where and when batches were appended, by partition, in the order of offsets."""
    found: dict[tuple[str, int], list[tuple[int, float]]] = defaultdict(list)
    for each in requests:
        if each.api == "PRODUCE":
            for name, offset in zip(each.partitions, each.offsets, strict=False):
                if offset >= 0:
                    found[name].append((offset, each.at_s))
    for batches in found.values():
        batches.sort()
    return found


def _appended_at(
    record: "ConsumerRecord", appends: dict[tuple[str, int], list[tuple[int, float]]]
) -> float:
    batches = appends.get((record.topic, record.partition), [])
    number = bisect_right(batches, record.offset, key=lambda batch: batch[0]) - 1
    return batches[number][1] if number >= 0 else record.timestamp / 1000


def _senders(
    requests: Sequence[Request],
) -> dict[tuple[str, str, int, int], list[Request]]:
    """Return the requests that have committed an offset, by group, partition and offset."""
    found: dict[tuple[str, str, int, int], list[Request]] = defaultdict(list)
    for each in requests:
        if each.api in COMMITS:
            for name, offset in zip(each.partitions, each.offsets, strict=False):
                found[each.group_id, *name, offset].append(each)
    return found


def _sender(commit: _StoredCommit, senders: dict[tuple[str, str, int, int], list[Request]]) -> str:
    """Return who has sent a commit, as text; empty if no broker has kept the request."""
    known = senders.get(commit[2:])
    if not known:
        return ""
    nearest = min(known, key=lambda each: abs(each.at_s - commit.asked_s))
    member = f", member {nearest.member_id!r}" if nearest.member_id else ""
    return f"client {nearest.client_id!r}{member}"
