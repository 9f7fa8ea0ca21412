"""The contents of one partition of the offsets topic: committed offsets and stored groups.

THE RULE of a coordinator: only the replay of committed records changes this table. That holds when
a new leader loads its partition, at run time, and on a follower. So a commit counts when its record
has been replayed, and every later leader knows all that clients were told.

The table also keeps the keys of pending records, which are in the log but not known to be
committed. A key is added when its record is appended, and removed when the record is replayed or
when the leader's epoch ends.

Offsets that are committed in a transaction are replayed, too, and wait beside the table until the
marker of their producer: a COMMIT applies them, an ABORT forgets them. Of several records of a key
the one with the highest offset in the log holds, whenever its transaction ends.

Expiry (GRP-15) returns which tombstones to write, and removes nothing: the tombstones come back as
records. The offsets of a group that has had members expire after the time at which it became empty,
or after their own commit if that was later (Kafka would drop an offset that was set for an empty
group a moment ago). The offsets of a group that never had members expire after their own commit, as
do those of a group of the consumer protocol. Such a group expires when it has neither members nor
offsets.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from itertools import islice
from types import MappingProxyType
from typing import Final

from minibroker.broker.groups.consumer_records import (
    ConsumerKey,
    ConsumerRecord,
    ConsumerValue,
    record_bytes,
)
from minibroker.broker.groups.records import (
    CommittedOffset,
    GroupKey,
    GroupMetadata,
    Key,
    OffsetKey,
    Value,
)
from minibroker.broker.turns import AT_ONCE
from minibroker.protocol.constants import NO_TIMESTAMP
from minibroker.protocol.types import TopicPartition

# What an offset, a stored group and a pending key take in memory beside their texts.
OFFSET_BYTES: Final = 300
GROUP_BYTES: Final = 500
PENDING_BYTES: Final = 300

_NO_OFFSETS: Final[Mapping[TopicPartition, CommittedOffset]] = MappingProxyType({})
_NO_RECORDS: Final[Mapping[ConsumerKey, ConsumerValue]] = MappingProxyType({})


class OffsetTable:
    """See the head of this module."""

    def __init__(self) -> None:
        # Each group in it has at least one offset.
        self._offsets: dict[str, dict[TopicPartition, CommittedOffset]] = {}
        self._groups: dict[str, GroupMetadata] = {}
        # The records of groups of the consumer protocol, at least one of each.
        self._consumer_groups: dict[str, dict[ConsumerKey, ConsumerValue]] = {}
        self._topics: Counter[str] = Counter()  # how many offsets there are of each
        # The offset of the newest record that is appended and not replayed.
        self._pending: dict[Key, int] = {}
        # By producer: the offsets of its open transaction, with their places in the log.
        self._transactions: dict[int, dict[OffsetKey, tuple[int, CommittedOffset | None]]] = {}
        # By key: the producers whose open transactions have it.
        self._unstable: dict[OffsetKey, dict[int, None]] = {}
        self._unstable_bytes = 0  # of the offsets of open transactions, about
        self._stored_bytes = 0  # of `_offsets` and `_groups`, about

    # -- changes

    def replay(self, offset: int, key: Key, value: Value | None) -> None:
        """Apply the record at an offset of the partition; without a value it is a tombstone."""
        if self._pending.get(key) == offset:
            del self._pending[key]
        if isinstance(key, OffsetKey):
            assert value is None or isinstance(value, CommittedOffset)
            self._apply_offset(offset, key, value)
            return
        if isinstance(key, ConsumerKey):
            assert not isinstance(value, CommittedOffset | GroupMetadata)
            self._set_record(key, value)
            return
        before = self._groups.get(key.group_id)
        if before is not None:
            self._stored_bytes -= _group_bytes(key.group_id, before)
        if value is not None:
            assert isinstance(value, GroupMetadata)
            self._groups[key.group_id] = value
            self._stored_bytes += _group_bytes(key.group_id, value)
        elif before is not None:
            del self._groups[key.group_id]

    def replay_in_transaction(
        self, producer_id: int, offset: int, key: OffsetKey, value: CommittedOffset | None
    ) -> None:
        """Apply a record of a producer's open transaction."""
        if self._pending.get(key) == offset:
            del self._pending[key]
        if producer_id in self._unstable.get(key, ()):
            self._drop_unstable(producer_id, key)
        self._transactions.setdefault(producer_id, {})[key] = offset, value
        self._unstable.setdefault(key, {})[producer_id] = None
        self._unstable_bytes += _unstable_bytes(key, value)

    def end_transaction(self, producer_id: int, *, is_commit: bool) -> bool:
        """Apply or forget some offsets of a producer's transaction; return whether that were all.
        Until it is, the caller calls again, and replays nothing meanwhile."""
        transaction = self._transactions.get(producer_id, {})
        for key in [*islice(transaction, AT_ONCE)]:
            offset, value = self._drop_unstable(producer_id, key)
            if is_commit:
                self._apply_offset(offset, key, value)
        return producer_id not in self._transactions

    def _apply_offset(self, offset: int, key: OffsetKey, value: CommittedOffset | None) -> None:
        """Set an offset, which replaces those of records before it in open transactions."""
        for producer_id in [*self._unstable.get(key, ())]:
            if self._transactions[producer_id][key][0] < offset:
                self._drop_unstable(producer_id, key)
        self._set_offset(key, value)

    def _drop_unstable(
        self, producer_id: int, key: OffsetKey
    ) -> tuple[int, CommittedOffset | None]:
        """Remove an offset of a producer's transaction, and return it with its place in the log."""
        transaction, producers = self._transactions[producer_id], self._unstable[key]
        offset, value = transaction.pop(key)
        self._unstable_bytes -= _unstable_bytes(key, value)
        if not transaction:
            del self._transactions[producer_id]
        del producers[producer_id]
        if not producers:
            del self._unstable[key]
        return offset, value

    def _set_offset(self, key: OffsetKey, value: CommittedOffset | None) -> None:
        group_id, topic, partition = key
        offsets = self._offsets.get(group_id)
        name = TopicPartition(topic, partition)
        before = None if offsets is None else offsets.get(name)
        if value is not None:
            if offsets is None:
                offsets = self._offsets[group_id] = {}
                self._stored_bytes += _group_bytes(group_id)
            offsets[name] = value
            self._topics[topic] += before is None
            self._stored_bytes += _offset_bytes(topic, value) - _offset_bytes(topic, before)
        elif offsets is not None and before is not None:
            del offsets[name]
            self._stored_bytes -= _offset_bytes(topic, before)
            if not offsets:
                del self._offsets[group_id]
                self._stored_bytes -= _group_bytes(group_id)
            self._topics[topic] -= 1
            if not self._topics[topic]:
                del self._topics[topic]

    def _set_record(self, key: ConsumerKey, value: ConsumerValue | None) -> None:
        records = self._consumer_groups.setdefault(key.group_id, {})
        before = records.pop(key, None)
        if value is not None:
            records[key] = value
        self._stored_bytes += record_bytes(key, value) - record_bytes(key, before)
        if not records:
            del self._consumer_groups[key.group_id]

    def add_pending(self, key: Key, offset: int) -> None:
        """Add a key whose record was appended at an offset, and is not known to be committed."""
        self._pending[key] = offset

    def forget_pending(self) -> None:
        """Forget all pending keys: the leader's epoch is over, and the next leader decides about
        them."""
        self._pending.clear()

    # -- queries

    @property
    def group_ids(self) -> Collection[str]:
        """All groups that have a record or an offset."""
        return self._offsets.keys() | self._groups.keys() | self._consumer_groups.keys()

    @property
    def topics(self) -> Collection[str]:
        """The topics that have a committed offset."""
        return self._topics.keys()

    def knows(self, group_id: str) -> bool:
        """Whether the group exists."""
        return (
            group_id in self._groups
            or group_id in self._offsets
            or group_id in self._consumer_groups
        )

    def metadata(self, group_id: str) -> GroupMetadata | None:
        """The newest stored generation of a group; None for one that never had members."""
        return self._groups.get(group_id)

    def consumer_records(self, group_id: str) -> Mapping[ConsumerKey, ConsumerValue]:
        """The records of a group of the consumer protocol, none if it is not one; valid until the
        next replay."""
        return self._consumer_groups.get(group_id, _NO_RECORDS)

    def with_members(self) -> list[str]:
        """The groups that have members, as stored."""
        classic = [group_id for group_id, metadata in self._groups.items() if metadata.members]
        return classic + [each for each in self._consumer_groups if self._has_members(each)]

    def _has_members(self, group_id: str) -> bool:
        kinds = {key.kind for key in self.consumer_records(group_id)}
        return not kinds.isdisjoint((ConsumerRecord.MEMBER, ConsumerRecord.CURRENT))

    def offsets(self, group_id: str) -> Mapping[TopicPartition, CommittedOffset]:
        """All offsets that a group has committed; valid until the next replay."""
        return self._offsets.get(group_id, _NO_OFFSETS)

    def is_pending(self, key: Key) -> bool:
        """Whether a record of this key is pending, or in an open transaction."""
        if not (self._pending or self._unstable):
            return False
        return key in self._pending or key in self._unstable

    def statistics(self) -> tuple[int, int]:
        """Return how many groups and how many offsets there are."""
        return len(self.group_ids), sum(self._topics.values())

    @property
    def held_bytes(self) -> int:
        """The memory that all of it takes, about."""
        return self._stored_bytes + self._unstable_bytes + PENDING_BYTES * len(self._pending)

    def growth(self, key: OffsetKey, value: CommittedOffset) -> int:
        """Return how many more bytes are held once this offset is committed, about. A group's
        first offset takes more."""
        before = self.offsets(key.group_id).get(TopicPartition(key.topic, key.partition))
        return _offset_bytes(key.topic, value) - _offset_bytes(key.topic, before)

    def unstable_growth(self, producer_id: int, key: OffsetKey, value: CommittedOffset) -> int:
        """Return how many more bytes are held once this offset is in a producer's transaction,
        about; as in `growth` if no other transaction has the key, so that what fits goes on."""
        if self._unstable.get(key, {}).keys() <= {producer_id}:
            return self.growth(key, value)
        return _unstable_bytes(key, value)

    # -- keys for tombstones

    def of_group(self, group_id: str) -> list[Key]:
        """Return the keys of all records of a group, pending ones too."""
        # A dict, since the order of a set differs from run to run.
        keys: dict[Key, None] = {}
        if group_id in self._groups:
            keys[GroupKey(group_id)] = None
        keys.update(dict.fromkeys(self.consumer_records(group_id)))
        keys.update((OffsetKey(group_id, *name), None) for name in self.offsets(group_id))
        keys.update((key, None) for key in self._pending if key.group_id == group_id)
        keys.update((key, None) for key in self._unstable if key.group_id == group_id)
        return list(keys)

    def of_topics(self, topics: Collection[str]) -> list[OffsetKey]:
        """Return the keys of all offsets of these topics, pending ones too."""
        keys = {
            OffsetKey(group_id, *name)
            for group_id, offsets in self._offsets.items()
            for name in offsets
            if name.topic in topics
        }
        keys.update(
            key for key in self._pending if isinstance(key, OffsetKey) and key.topic in topics
        )
        keys.update(key for key in self._unstable if key.topic in topics)
        return sorted(keys)

    def expired(self, group_ids: Iterable[str], oldest_ms: int) -> list[Key]:
        """Return the keys that have expired: older than `oldest_ms` (GRP-15), of these groups
        without members. A group expires with the last of its offsets."""
        keys: list[Key] = []
        for group_id in group_ids:
            metadata = self._groups.get(group_id)
            records = self.consumer_records(group_id)
            if (metadata is not None and metadata.members) or self._has_members(group_id):
                continue
            empty_since = NO_TIMESTAMP if metadata is None else metadata.state_timestamp_ms
            offsets = self.offsets(group_id)
            gone = [
                key
                for name, committed in offsets.items()
                if max(empty_since, committed.commit_timestamp_ms) < oldest_ms
                and not self.is_pending(key := OffsetKey(group_id, *name))
            ]
            keys += gone
            is_old = metadata is not None and empty_since < oldest_ms
            if is_old and len(gone) == len(offsets) and not self.is_pending(GroupKey(group_id)):
                keys.append(GroupKey(group_id))
            if records and len(gone) == len(offsets) and not any(map(self.is_pending, records)):
                keys += records
        return keys


def _offset_bytes(topic: str, value: CommittedOffset | None) -> int:
    return 0 if value is None else OFFSET_BYTES + len(topic) + len(value.metadata)


def _unstable_bytes(key: OffsetKey, value: CommittedOffset | None) -> int:
    texts = len(key.group_id) + len(key.topic) + (0 if value is None else len(value.metadata))
    return PENDING_BYTES + texts


def _group_bytes(group_id: str, value: GroupMetadata | None = None) -> int:
    members = () if value is None else value.members
    contents = sum(len(each.subscription) + len(each.assignment) for each in members)
    return GROUP_BYTES * (1 + len(members)) + len(group_id) + contents
