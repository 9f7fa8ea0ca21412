"""A backup of the metadata is put back, while no broker runs.

A backup says what operators decided: topics, partitions, settings. It does not say where the
records are: since it was made, other replicas may have been in sync, led, or been assigned. A store
that is still there may itself be an old copy that was put back, and nothing in it shows that. So
after a restore no partition has a leader, and none of the in-sync sets is believed. Every partition
waits until all brokers whose logs are to be compared have started. Then the replica with the
longest log leads, in a leader epoch above the newest in any of these logs (`elections.py`, rule 2).
A record that was acknowledged is in the log of at least one in-sync replica, and the longest log
has it: a log with a later last epoch has everything that was committed in an earlier one.

Which brokers have a log of a partition now, nobody can say before they start: it may have been
reassigned since the backup. So every partition gets all these brokers as replicas, behind those
that it is to have, as if a reassignment were removing them. Once enough of the others are in sync,
the surplus ones are removed as at the end of any reassignment. (Rejected: to trust the assignment
of the backup, since a partition that was moved would begin with empty logs; to read the data
directories here, since they are on other machines.)

Nothing is taken away. A topic that the store knows and the backup does not is newer, and stays. So
does a topic that has another id in the store than in the backup: it was created again. If the store
was lost, brokers set the logs of such topics aside.

Numbers that must not be used twice are raised without knowing how far they got: the controller's
epoch and the producer ids skip more than a cluster can use between two backups, and are at least
what the wall clock makes of them, so that restoring one backup twice gives different numbers.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from minibroker.broker.controller import entries
from minibroker.broker.controller.backup import Backup, BackupError
from minibroker.broker.controller.producer_ids import BLOCK_SIZE, ID_MAX
from minibroker.broker.controller.state import PartitionRecord, Reassignment, State, TopicRecord
from minibroker.broker.metadata.store import ABSENT, Compare, Delete, Put, Snapshot
from minibroker.broker.turns import without_pause
from minibroker.protocol.constants import NO_NODE

CONTROLLER_EPOCHS_SKIPPED: Final = 100_000
PRODUCER_IDS_SKIPPED: Final = 10**12
PRODUCER_IDS_PER_MS: Final = 10**6  # far more than brokers can claim
EPOCHS_BEGIN_MS: Final = 1_767_225_600_000  # 2026-01-01: a controller epoch has 31 bits


@dataclass(frozen=True, slots=True)
class RestorePlan:
    """What a restore writes, and what it does, for the operator.

    `brokers` are those whose logs are compared. Topics by name: `returning` are not in the store,
    `reset` get the settings of the backup again, `newer` are not in the backup, and `recreated`
    have another id in the store. `settings` is the number of groups and brokers whose own settings
    change.
    """

    compare: tuple[Compare, ...]
    writes: tuple[Put | Delete, ...]
    brokers: tuple[int, ...]
    returning: tuple[str, ...]
    reset: tuple[str, ...]
    newer: tuple[str, ...]
    recreated: tuple[str, ...]
    settings: int


def plan_restore(
    backup: Backup, snapshot: Snapshot, now_ms: int, brokers: Collection[int] | None = None
) -> RestorePlan:
    """Plan to restore a backup into the store that has this snapshot.

    `brokers` are those whose logs are compared; None: all that the backup or the store names.
    Raises `BackupError`, and `StoreError` for a damaged store.
    """
    found = snapshot.entries
    _check_cluster(backup, entries.read_cluster_id(found))
    _check_stopped(snapshot)
    old, present = backup.read(), without_pause(entries.read_state(found))
    topics = _merged(old, present)
    known = {*backup.brokers, *present.admissions}
    for state in (old, present):
        for _, record in state.partitions():
            known.update(record.replicas, record.target)
    compared = tuple(sorted(known if brokers is None else brokers))
    restored = [_restored(topic, compared) for topic in topics]
    settings = [
        Put(key, value)
        for key, value in backup.values.items()
        if not _is_counted_or_topic(key) and (key not in found or found[key].value != value)
    ]
    return RestorePlan(
        compare=tuple(_compared(snapshot, compared)),
        writes=(
            *_topic_writes(restored, present),
            *settings,
            *_raised(backup, snapshot, now_ms),
            entries.cluster_id_put(backup.cluster_id),
            Delete(entries.RESTORE),
        ),
        brokers=compared,
        returning=tuple(sorted(old.topics.keys() - present.topics.keys())),
        reset=tuple(
            name
            for name, topic in sorted(old.topics.items())
            if name in present.topics
            and present.topics[name].id == topic.id
            and present.topics[name].configs != topic.configs
        ),
        newer=tuple(sorted(present.topics.keys() - old.topics.keys())),
        recreated=tuple(
            name
            for name, topic in sorted(old.topics.items())
            if name in present.topics and present.topics[name].id != topic.id
        ),
        settings=len(settings),
    )


def _check_cluster(backup: Backup, cluster_id: str | None) -> None:
    if cluster_id not in (None, backup.cluster_id):
        raise BackupError(
            f"it is a backup of the cluster {backup.cluster_id!r}, and the metadata store is that"
            f" of {cluster_id!r}: name the store of {backup.cluster_id!r}, or an empty one"
        )


def _check_stopped(snapshot: Snapshot) -> None:
    """Raise `BackupError` if a broker runs, or ended so recently that its lease still counts."""
    running = sorted(entries.read_brokers(snapshot.entries))
    active = entries.read_active_controller(snapshot.entries)
    if not running and active is not None:
        running = [active.node_id]
    if running:
        nodes = ", ".join(map(str, running))
        raise BackupError(
            f"broker{'s' if len(running) > 1 else ''} {nodes} must not run during a restore: stop"
            " all brokers; one that was killed counts until its session has ended"
            " (broker.session.timeout.ms)"
        )


def _merged(old: State, present: State) -> Iterator[TopicRecord]:
    """Yield all topics that exist afterwards, each partition with the newest that is known of it;
    the settings of a topic that both have are those of the backup."""
    for name in sorted({**old.topics, **present.topics}):
        before, now = old.topics.get(name), present.topics.get(name)
        if before is None or now is None or before.id != now.id:
            yield now or old.topics[name]
            continue
        longer = max(now.partitions, before.partitions, key=len)
        both = [*zip(now.partitions, before.partitions, strict=False)]
        partitions = (*(_newest(*pair) for pair in both), *longer[len(both) :])
        yield replace(now, configs=before.configs, partitions=partitions)


def _newest(now: PartitionRecord, before: PartitionRecord) -> PartitionRecord:
    """Return the store's record of a partition, with no epoch below that of the backup."""
    return replace(
        now,
        leader_epoch=max(now.leader_epoch, before.leader_epoch),
        partition_epoch=max(now.partition_epoch, before.partition_epoch),
        unclean_epoch=max(now.unclean_epoch, before.unclean_epoch),
    )


def _restored(topic: TopicRecord, brokers: Sequence[int]) -> TopicRecord:
    """Return a topic whose partitions wait for the comparison of the logs on these brokers."""
    partitions = tuple(_waiting(record, brokers) for record in topic.partitions)
    return replace(topic, partitions=partitions)


def _waiting(record: PartitionRecord, brokers: Sequence[int]) -> PartitionRecord:
    """Return a partition without a leader, to be led by the longest log on these brokers.

    No replica is `former` any more: the broker may have got it again since.
    """
    target = record.target
    surplus = tuple(node for node in brokers if node not in target)
    replicas = (*target, *surplus)
    compared = tuple(node for node in replicas if node in brokers)
    return replace(
        record,
        leader=NO_NODE,
        partition_epoch=record.partition_epoch + 1,
        isr=compared,
        replicas=replicas,
        unsafe=compared,
        reassignment=Reassignment(replicas, target) if surplus else None,
        former=(),
        is_restored=True,
    )


def _topic_writes(topics: Sequence[TopicRecord], present: State) -> Iterator[Put | Delete]:
    """Yield the writes of these topics, each behind its partitions; they are not deleted any more.

    The store can be read between any two of them.
    """
    for topic in topics:
        for record in topic.partitions:
            yield entries.partition_put(topic.id, record)
        yield entries.topic_put(topic)
        if topic.id in present.tombstones:
            yield entries.tombstone_removal(topic.id)


def _is_counted_or_topic(key: str) -> bool:
    """Whether a key of a backup is written in another way than as it is."""
    counted = (entries.CLUSTER_ID, entries.CONTROLLER_EPOCH, entries.PRODUCER_IDS)
    return key in counted or key.startswith((entries.TOPICS, entries.PARTITIONS))


def _raised(backup: Backup, snapshot: Snapshot, now_ms: int) -> list[Put]:
    """Return the counters of which no number may be used twice, above all that were used."""
    both = (backup.entries, snapshot.entries)
    epoch = max(map(entries.read_controller_epoch, both)) + CONTROLLER_EPOCHS_SKIPPED
    first_id = max(map(entries.read_producer_ids, both)) + PRODUCER_IDS_SKIPPED
    by_clock = min(now_ms * PRODUCER_IDS_PER_MS, ID_MAX // 2) // BLOCK_SIZE * BLOCK_SIZE
    return [
        entries.controller_epoch_put(max(epoch, (now_ms - EPOCHS_BEGIN_MS) // 1000)),
        entries.producer_ids_put(max(first_id, by_clock)),
    ]


def _compared(snapshot: Snapshot, brokers: Sequence[int]) -> Iterator[Compare]:
    """Yield what must be as it was when the restore was planned."""
    yield Compare(entries.CONTROLLER, ABSENT)
    for key in (
        entries.CLUSTER_ID,
        entries.RESTORE,
        entries.CONTROLLER_EPOCH,
        entries.PRODUCER_IDS,
    ):
        yield Compare(key, entries.revision_of(snapshot.entries, key))
    for node in brokers:
        yield Compare(entries.broker_key(node), ABSENT)
