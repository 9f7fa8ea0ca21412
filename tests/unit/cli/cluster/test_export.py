"""`minibroker cluster export`: what it says, and that it leaves everything as it was."""

import hashlib
import json
import shutil
import sqlite3
from pathlib import Path

import pytest
import trio

from minibroker.broker.clock import boot_id, boottime_s
from minibroker.broker.controller import entries
from minibroker.broker.controller.state import (
    Admission,
    BrokerRegistration,
    ClosedLog,
    Departure,
    PartitionRecord,
    Tombstone,
    TopicRecord,
)
from minibroker.broker.disk import in_worker
from minibroker.broker.metadata.sqlite_store import BootClock, SqliteStore
from minibroker.broker.metadata.store import StoreError
from minibroker.cli.cluster.export import export, export_store
from minibroker.cli.terminal import Failure
from minibroker.protocol.types import Endpoint

TOPIC = TopicRecord(
    bytes(range(16)),
    "words",
    {"retention.ms": "5000"},
    (
        PartitionRecord(0, 2, 7, 9, (2, 1), (1, 2, 3)),
        PartitionRecord(1, -1, 3, 4, (3,), (2, 3), (3,)),
    ),
)
TTL_S = 60.0


async def write(path: Path) -> SqliteStore:
    """A store with a topic, a deleted one, a controller and two live brokers, one admitted."""
    store = await SqliteStore.open(path, BootClock(boot_id(), boottime_s), in_worker)
    lease = (await store.grant(TTL_S)).id
    brokers = [BrokerRegistration(n, 0, Endpoint("here", 7000 + n), "d", 1, "p") for n in (2, 1)]
    writes = [
        entries.cluster_id_put("cluster"),
        entries.topic_put(TOPIC),
        *(entries.partition_put(TOPIC.id, record) for record in TOPIC.partitions),
        entries.tombstone_put(Tombstone(b"\1" * 16, "gone", 1, (1,))),
        *entries.active_controller_puts(2, 5, lease),
        *(entries.broker_put(broker, lease) for broker in brokers),
    ]
    epoch = (await store.transact([], writes)).revision
    await store.transact([], [entries.admission_put(Admission(1, epoch, "d", 1, "p"))])
    log = ClosedLog(TOPIC.id, 0, 6, 90)
    gone = [Admission(3, 4, "d", 1, "p"), Admission(4, 4, "d", 1, "p")]
    departures = [Departure(3, 4, (log,)), Departure(4, 3, (log,))]  # the latter came back
    await store.transact([], [entries.admission_put(admission) for admission in gone])
    await store.transact([], [put for each in departures for put in entries.departure_puts(each)])
    return store


def files(directory: Path) -> dict[str, str]:
    """Every file with a digest of what it holds."""
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(directory.iterdir())
    }


def described(**changed: object) -> dict[str, object]:
    """The export of that store, but for the time."""
    return {
        "version": 1,
        "cluster_id": "cluster",
        "controller_id": 2,
        "controller_epoch": 5,
        "brokers": [
            {"node_id": 1, "host": "here", "port": 7001, "epoch": 1, "admitted_epoch": 1},
            {"node_id": 2, "host": "here", "port": 7002, "epoch": 1, "admitted_epoch": None},
        ],
        "topics": [
            {
                "name": "words",
                "id": "000102030405060708090a0b0c0d0e0f",
                "configs": {"retention.ms": "5000"},
                "partitions": [
                    {
                        "partition": 0,
                        "leader": 2,
                        "leader_epoch": 7,
                        "partition_epoch": 9,
                        "isr": [2, 1],
                        "replicas": [1, 2, 3],
                        "unsafe": [],
                        "left": [{"node_id": 3, "last_epoch": 6, "log_end": 90}],
                    },
                    {
                        "partition": 1,
                        "leader": -1,
                        "leader_epoch": 3,
                        "partition_epoch": 4,
                        "isr": [3],
                        "replicas": [2, 3],
                        "unsafe": [3],
                        "left": [],
                    },
                ],
            }
        ],
        "tombstones": [{"id": "01" * 16, "name": "gone"}],
        "directories": [{"node_id": node, "directory_id": "d", "run": 1} for node in (1, 3, 4)],
    } | changed


async def test_a_store_in_use_is_exported_and_not_touched(tmp_path: Path) -> None:
    """All that the store holds is told while brokers have it open, and no byte of it changes."""
    store = await write(tmp_path / "metadata.db")
    before = files(tmp_path)
    found = await trio.to_thread.run_sync(export_store, f"sqlite:{tmp_path / 'metadata.db'}")
    unchanged = {name for name in before if not name.endswith("-shm")}  # its locks
    after = files(tmp_path)
    assert after.keys() == before.keys()
    assert all(after[name] == before[name] for name in unchanged)
    assert found.pop("exported_at_ms") > 0
    assert found == described()
    await store.close()


async def test_a_closed_store_is_exported_and_not_touched(tmp_path: Path) -> None:
    """Nor does an export make a file beside a store that nobody has open."""
    await (await write(tmp_path / "metadata.db")).close()
    before = files(tmp_path)
    assert not any(name.endswith("-wal") for name in before)
    found = await trio.to_thread.run_sync(export_store, tmp_path / "metadata.db")
    assert files(tmp_path) == before
    assert found.pop("exported_at_ms") > 0
    assert found == described()


async def test_a_copy_of_a_store_in_use_is_exported_whole(tmp_path: Path) -> None:
    """What only the write-ahead log has is told, also without the other files that go with it."""
    live, copied = tmp_path / "live", tmp_path / "copied"
    copied.mkdir()
    store = await write(live / "metadata.db")
    for name in ("metadata.db", "metadata.db-wal"):
        shutil.copyfile(live / name, copied / name)
    before = files(copied)
    found = await trio.to_thread.run_sync(export_store, copied / "metadata.db")
    assert files(copied) == before
    assert found.pop("exported_at_ms") > 0
    # Without the file of leases nobody is known to live.
    assert found == described(brokers=[], controller_id=-1)
    await store.close()


async def test_a_store_of_killed_brokers_is_exported_and_not_touched(tmp_path: Path) -> None:
    """After a crash the log and its index in shared memory lie there, and stay as they are."""
    live, left = tmp_path / "live", tmp_path / "left"
    store = await write(live / "metadata.db")
    shutil.copytree(live, left)
    await store.close()
    before = files(left)
    assert "metadata.db-shm" in before
    found = await trio.to_thread.run_sync(export_store, left / "metadata.db")
    after = files(left)
    assert after.keys() == before.keys()
    assert all(after[name] == before[name] for name in before if not name.endswith("-shm"))
    assert found.pop("exported_at_ms") > 0
    assert found == described()


@pytest.mark.parametrize("content", [None, b""])
def test_a_missing_store_is_an_error_and_stays_missing(
    tmp_path: Path, content: bytes | None
) -> None:
    """A mistyped path says so, and no store is made there."""
    path = tmp_path / "metadata.db"
    if content is not None:
        path.write_bytes(content)
    before = files(tmp_path)
    with pytest.raises(Failure, match=f"the metadata store {path} is (not there|empty)"):
        export(tmp_path)
    assert files(tmp_path) == before


@pytest.mark.parametrize(
    "content", [b"no database at all " * 100, b"SQLite format 3\0" + bytes(99)]
)
def test_a_foreign_file_is_an_error_that_names_it(tmp_path: Path, content: bytes) -> None:
    """The copy that is looked at is nobody's business: the error names the file that was given."""
    path = tmp_path / "metadata.db"
    path.write_bytes(content)
    with pytest.raises(StoreError, match=str(path)):
        export_store(path)
    other = tmp_path / "other.db"
    with sqlite3.connect(other) as connection:
        connection.execute("CREATE TABLE t (a)")
    connection.close()
    with pytest.raises(StoreError, match=f"{other} is a database, but not"):
        export_store(other)


def test_only_what_can_be_read_from_outside_is_a_store() -> None:
    """A store in a broker's memory is refused in so many words."""
    with pytest.raises(Failure, match="'memory:' cannot be read from outside"):
        export_store("memory:")


async def test_the_command_writes_where_it_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The same JSON to stdout or to a file."""
    await (await write(tmp_path / "metadata.db")).close()
    output = tmp_path / "export.json"
    await trio.to_thread.run_sync(lambda: export(tmp_path))
    await trio.to_thread.run_sync(lambda: export(tmp_path, output=output))
    shown, written = json.loads(capsys.readouterr().out), json.loads(output.read_text())
    assert shown.pop("exported_at_ms") <= written.pop("exported_at_ms")
    assert shown == written == described()
