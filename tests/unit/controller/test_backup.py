"""The document of a backup: what is in it, and what is refused."""

import json
import zlib
from collections.abc import Iterable

import pytest

from minibroker.broker.controller import entries
from minibroker.broker.controller.backup import Backup, BackupError, backup_of, dump, load
from minibroker.broker.controller.state import (
    Admission,
    BrokerRegistration,
    ClosedLog,
    Departure,
    PartitionRecord,
    Tombstone,
    TopicRecord,
)
from minibroker.broker.metadata.store import Delete, Entry, Put, Snapshot
from minibroker.protocol.types import Endpoint

TOPIC = TopicRecord(b"i" * 16, "t", {"flush": "always"}, (PartitionRecord(0, 1, 5, 9, (1,), (1,)),))
KEPT = (
    entries.cluster_id_put("c"),
    entries.feature_level_put(1),
    entries.controller_epoch_put(7),
    entries.producer_ids_put(3_000),
    entries.topic_put(TOPIC),
    entries.partition_put(TOPIC.id, TOPIC.partitions[0]),
    entries.group_write("g", {"consumer.session.timeout.ms": "9000"}),
    entries.broker_configs_write(1, {"leader.replication.throttled.rate": "1"}),
)
LEFT_OUT = (
    entries.active_controller_puts(2, 7, 1)[0],
    entries.broker_put(BrokerRegistration(2, 0, Endpoint("h", 1), "d", 1, "p"), 1),
    entries.admission_put(Admission(1, 3, "d", 1, "p")),
    *entries.departure_puts(Departure(1, 3, (ClosedLog(TOPIC.id, 0, 5, 10),))),
    entries.tombstone_put(Tombstone(b"x" * 16, "gone", 1, (1,))),
)


def snapshot_of(*puts: Put | Delete) -> Snapshot:
    return Snapshot(12, {put.key: Entry(put.value, 12) for put in only_puts(puts)})


def only_puts(writes: Iterable[Put | Delete]) -> list[Put]:
    return [write for write in writes if isinstance(write, Put)]


def document(**changed: object) -> bytes:
    """A backup with other contents, and the checksum of these."""
    made = json.loads(dump(backup_of(snapshot_of(*KEPT), 5)))
    made.update(changed)
    made.pop("crc32")
    text = json.dumps(made, separators=(",", ":"), sort_keys=True)
    return json.dumps({**made, "crc32": zlib.crc32(text.encode())}).encode()


def test_a_backup_is_what_was_exported():
    """Each value comes back byte for byte; running brokers and directories are left out."""
    backup = backup_of(snapshot_of(*KEPT, *LEFT_OUT), 5)
    assert backup == Backup("c", 12, 5, (1, 2), {put.key: put.value for put in only_puts(KEPT)})
    assert load(dump(backup)) == backup
    assert backup.read().topics == {"t": TOPIC}


@pytest.mark.parametrize(
    "key",
    [name for name in dir(entries) if name.isupper() and isinstance(getattr(entries, name), str)],
)
def test_every_kind_of_entry_is_kept_or_left_out(key):
    """A new kind must be thought about: add it here, and to LEFT_OUT in `backup.py` if brokers
    make it again."""
    name = getattr(entries, key)
    known = [put.key for put in (*KEPT, *LEFT_OUT)]
    assert name in (entries.CLUSTER, entries.RESTORE) or any(
        each.startswith(name) for each in known
    )


def test_only_the_spaces_may_change():
    """A formatter does no harm."""
    data = dump(backup_of(snapshot_of(*KEPT), 5))
    assert load(json.dumps(json.loads(data), indent=8).encode()) == load(data)


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "is no backup of metadata, or is cut off"),
        (b"\xff\x00", "is no backup of metadata, or is cut off"),
        (document()[:-20], "is no backup of metadata, or is cut off"),
        (b"[" * 100_000, "is no backup of metadata, or is cut off"),
        (b"[]", "`minibroker metadata export` makes one"),
        (b'{"version": 1, "cluster_id": "c"}', "`minibroker metadata export` makes one"),
        (document(version="1"), "version '1' does not exist"),
        (document(version=0), "version 0 does not exist"),
        (document(version=2), "version is 2, and this minibroker knows 1: restore it with"),
        (document().replace(b'"flush"', b'"flusk"'), "checksum is wrong"),
        (document(crc32=1).replace(b'"crc32": ', b'"crc32": 1'), "checksum is wrong"),
        (document(brokers=["one"]), "no sound backup.*take another one"),
        (document(entries=[]), "no sound backup"),
        (document(entries={}), "names two clusters"),
        (document(cluster_id="d"), "names two clusters"),
    ],
)
def test_what_is_no_backup(data, reason):
    """One sentence says what to do."""
    with pytest.raises(BackupError, match=reason):
        load(data)


def test_a_backup_with_a_part_missing():
    """A topic without one of its partitions was no store's."""
    kept = [put for put in KEPT if not put.key.startswith(entries.PARTITIONS)]
    damaged = Backup("c", 12, 5, (1,), {put.key: put.value for put in only_puts(kept)})
    with pytest.raises(BackupError, match=r"no sound backup: KeyError\('partitions/.*another"):
        damaged.read()


@pytest.mark.parametrize(
    ("puts", "reason"),
    [
        ((), "knows of no cluster: name the one that brokers use"),
        ((*KEPT, Put(entries.RESTORE, b"{}")), "half restored: run `minibroker metadata restore`"),
    ],
)
def test_a_store_without_metadata(puts, reason):
    """An empty file would be a trap."""
    with pytest.raises(BackupError, match=reason):
        backup_of(snapshot_of(*puts), 5)
