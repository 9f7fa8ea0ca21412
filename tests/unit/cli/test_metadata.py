"""`minibroker metadata`: backups as files, and what is answered to bad input."""

import json
import stat
import zlib
from pathlib import Path

import pytest
import trio
import typer

from minibroker.broker.clock import boot_id, boottime_s
from minibroker.broker.controller import entries
from minibroker.broker.controller.state import (
    Admission,
    BrokerRegistration,
    PartitionRecord,
    TopicRecord,
)
from minibroker.broker.disk import in_worker
from minibroker.broker.metadata.sqlite_store import BootClock, SqliteStore
from minibroker.broker.metadata.store import Delete, Put
from minibroker.cli.metadata import export, restore
from minibroker.cli.terminal import USAGE, Failure
from minibroker.protocol.types import Endpoint

TOPIC = TopicRecord(b"i" * 16, "t", {}, (PartitionRecord(0, 1, 5, 9, (1,), (1, 2)),))
CLUSTER = [
    entries.cluster_id_put("c"),
    entries.admission_put(Admission(1, 3, "d", 1, "p")),
    entries.partition_put(TOPIC.id, TOPIC.partitions[0]),
    entries.topic_put(TOPIC),
]


def change(
    directory: Path, writes: list[Put | Delete], lease_s: float = 0, ago_s: float = 0
) -> dict[str, bytes]:
    """Write into a store, some time ago, with a broker registered for a time; return what it has
    then."""

    async def main() -> dict[str, bytes]:
        clock = BootClock(boot_id(), lambda: boottime_s() - ago_s)
        store = await SqliteStore.open(directory / "metadata.db", clock, in_worker)
        if lease_s:
            registered = BrokerRegistration(1, 0, Endpoint("h", 1), "d", 1, "p")
            lease = await store.grant(lease_s)
            writes.append(entries.broker_put(registered, lease.id))
        await store.transact([], writes)
        found = (await store.get("")).entries
        await store.close()
        return {key: entry.value for key, entry in found.items()}

    return trio.run(main)


@pytest.fixture
def backup(tmp_path: Path) -> Path:
    """A backup of the store in `tmp_path`."""
    change(tmp_path, [*CLUSTER])
    export(tmp_path / "backup.json", tmp_path)
    return tmp_path / "backup.json"


def is_restored(found: dict[str, bytes]) -> bool:
    return json.loads(found[f"partitions/{TOPIC.id.hex()}/0"]).get("restored", False)


def test_a_backup_is_for_its_owner_alone(backup: Path) -> None:
    """Settings may be secrets. A later export replaces it."""
    backup.chmod(0o644)
    export(backup, backup.parent)
    assert stat.S_IMODE(backup.stat().st_mode) == 0o600
    assert json.loads(backup.read_text())["brokers"] == [1]


def test_a_restore_says_what_it_does(backup: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Before the question, and with --dry-run only that."""
    store = backup.parent
    new = [Delete("topics/t"), entries.topic_put(TopicRecord(b"n" * 16, "new", {}, ()))]
    before = change(store, [*new, entries.group_write("g", {})])
    restore(backup, store, dry_run=True)
    text = capsys.readouterr().err
    assert "cluster c, 1 topic, made at 20" in text
    assert "1 topic (not in the store, returns): t\n" in text
    assert "1 topic (newer than the backup, stays as it is): new\n" in text
    assert "before all of the brokers 1, 2 have started and their logs were compared" in text
    assert change(store, []) == before
    with pytest.raises(Failure, match="nothing was done: --yes says") as caught:
        restore(backup, store)
    assert caught.value.exit_code == USAGE
    assert change(store, []) == before
    restore(backup, store, yes=True)
    assert is_restored(found := change(store, []))
    assert {"topics/t", "topics/new"} <= found.keys()


def test_a_lost_store_is_made_again(backup: Path, tmp_path: Path) -> None:
    """The file is private; a dry run makes none."""
    lost = tmp_path / "lost"
    lost.mkdir()
    restore(backup, lost, dry_run=True)
    assert not [*lost.iterdir()]
    restore(backup, lost, brokers="2", yes=True)
    assert stat.S_IMODE((lost / "metadata.db").stat().st_mode) == 0o600
    found = change(lost, [])
    assert found["cluster-id"] == b'"c"'
    assert json.loads(found[f"partitions/{TOPIC.id.hex()}/0"])["isr"] == [2]


def test_a_broker_that_was_killed(backup: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It counts until its session has ended."""
    change(backup.parent, [], lease_s=10, ago_s=20)
    restore(backup, backup.parent, yes=True)
    assert "Restored. Start the brokers 1, 2." in capsys.readouterr().err


def newer(data: bytes) -> bytes:
    """The same backup in a later format."""
    document = json.loads(data) | {"version": 2}
    document.pop("crc32")
    text = json.dumps(document, separators=(",", ":"), sort_keys=True)
    return json.dumps({**document, "crc32": zlib.crc32(text.encode())}).encode()


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda _: b"", "it is no backup of metadata, or is cut off"),
        (lambda data: data[:-30], "it is no backup of metadata, or is cut off"),
        (lambda _: b'{"version": 1}', "`minibroker metadata export` makes one"),
        (lambda data: data.replace(b'"t"', b'"u"').replace(b"topics/t", b"topics/u"), "checksum"),
        (newer, "version is 2, and this minibroker knows 1: restore it with the version of"),
    ],
)
def test_a_file_that_is_no_backup(backup: Path, damage, reason: str) -> None:
    """One line names the file, and says what to do; nothing is written."""
    backup.write_bytes(damage(backup.read_bytes()))
    before = change(backup.parent, [])
    with pytest.raises(Failure, match=f"^{backup}: .*{reason}"):
        restore(backup, backup.parent, yes=True)
    assert change(backup.parent, []) == before


@pytest.mark.parametrize(
    ("writes", "lease_s", "reason"),
    [
        ([entries.cluster_id_put("d")], 0, "a backup of the cluster 'c', and .* of 'd': name"),
        ([], 60, "broker 1 must not run during a restore: stop all brokers; one that was killed"),
    ],
)
def test_where_a_backup_cannot_be_restored(
    backup: Path, writes: list[Put | Delete], lease_s: float, reason: str
) -> None:
    """Another cluster, or brokers that run."""
    before = change(backup.parent, writes, lease_s)
    with pytest.raises(Failure, match=reason):
        restore(backup, backup.parent, yes=True)
    assert change(backup.parent, []) == before


def test_other_bad_input(backup: Path, tmp_path: Path) -> None:
    """No such file or store; a store that no command can reach; no numbers."""
    with pytest.raises(FileNotFoundError):
        restore(tmp_path / "none.json", tmp_path)
    with pytest.raises(IsADirectoryError):
        restore(tmp_path, tmp_path)
    with pytest.raises(Failure, match="cannot be read from outside"):
        restore(backup, tmp_path, store="memory:")
    with pytest.raises(Failure, match=r"metadata\.db is not there"):
        export(tmp_path / "other.json", tmp_path / "nowhere")
    with pytest.raises(Failure, match=r"no directory .*nowhere: name the store with --store"):
        restore(backup, tmp_path / "nowhere", yes=True)
    with pytest.raises(typer.BadParameter, match="numbers with commas"):
        restore(backup, tmp_path, brokers="1,x")
    assert not (tmp_path / "other.json").exists()


def test_a_damaged_store_is_not_written_over(backup: Path) -> None:
    """It is moved away first: what can still be read of it may be worth something."""
    change(backup.parent, [Put("topics/t", b"{")])
    with pytest.raises(Failure, match=r"entry 'topics/t' cannot be read.*an empty store"):
        restore(backup, backup.parent, yes=True)


def test_a_store_without_a_cluster(tmp_path: Path) -> None:
    """An empty backup would be a trap."""
    change(tmp_path, [])
    with pytest.raises(Exception, match="knows of no cluster: name the one"):
        export(tmp_path / "backup.json", tmp_path)
    assert not (tmp_path / "backup.json").exists()
