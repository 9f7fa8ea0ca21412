"""A broker is never paused inside of a write to the metadata store, whoever pauses it.

The processes are real and hold SQLite's write lock until they are let go on for the first time.
"""

import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from minibroker.broker.metadata import sqlite_locks
from minibroker.broker.metadata.sqlite_locks import LOCKS, pause_between_writes
from minibroker.cli.cluster.layout import Layout
from minibroker.testing.kit.broker_process import BrokerProcess, ProcessGroup
from tests.support.processes import run_here

WRITER = """
import signal, sqlite3, sys
store = sqlite3.connect(sys.argv[-1], isolation_level=None)
store.execute("PRAGMA journal_mode = WAL")
store.execute("CREATE TABLE entries (key)")
store.execute("BEGIN IMMEDIATE")
signal.signal(signal.SIGCONT, lambda *_: store.in_transaction and store.execute("COMMIT"))
print("ready", flush=True)
while True:
    signal.pause()
"""

pytestmark = pytest.mark.skipif(not LOCKS.exists(), reason="this system does not list locks")


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    """A cluster of one broker."""
    layout = Layout(tmp_path.resolve(), 1, 7000, {})
    layout.save()
    return layout


@pytest.fixture
def writer(layout: Layout) -> Iterator["subprocess.Popen[bytes]"]:
    """A process that looks like that broker, and stands inside of a write."""
    seems = ["-m", "minibroker.cli", "start", "--data-dir", str(layout.data_dir(1)), "--set", "a=b"]
    process = subprocess.Popen(
        [sys.executable, "-c", WRITER, *seems, str(layout.root / "store")], stdout=subprocess.PIPE
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        layout.pid_file(1).write_text(f"{process.pid}\n")
        yield process
    finally:
        process.kill()
        process.communicate()


def assert_others_write(layout: Layout) -> None:
    """Another process gets the write lock at once."""
    store = sqlite3.connect(layout.root / "store", timeout=0, isolation_level=None)
    store.execute("BEGIN IMMEDIATE")
    store.close()


def test_a_write_in_progress_is_seen(layout: Layout, writer: "subprocess.Popen[bytes]") -> None:
    """The pauses below begin inside of one: nobody else can write."""
    assert writer.pid in {lock.pid for lock in sqlite_locks.write_locks()}
    with pytest.raises(sqlite3.OperationalError, match="locked"):
        assert_others_write(layout)


def test_a_command_pauses_between_writes(layout: Layout, writer: "subprocess.Popen[bytes]") -> None:
    """`minibroker cluster pause`."""
    done = run_here("cluster", "pause", "1", "--data-dir", str(layout.root))
    assert (done.returncode, done.stdout) == (0, "Paused broker 1.\n")
    status = run_here("cluster", "status", "--data-dir", str(layout.root))
    assert "State: paused" in status.stdout
    assert_others_write(layout)


def test_the_kit_pauses_between_writes(
    layout: Layout, writer: "subprocess.Popen[bytes]", monkeypatch: pytest.MonkeyPatch
) -> None:
    """`KafkaCluster.pause`."""
    group = ProcessGroup()
    try:
        broker = BrokerProcess(1, layout.root, {}, 0, group)
        monkeypatch.setattr(broker, "_process", writer)
        broker.pause()
        assert broker.is_paused
        assert_others_write(layout)
    finally:
        group.kill()


def test_a_process_that_only_writes_is_paused_with_an_error(
    writer: "subprocess.Popen[bytes]", monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rather than that the caller waits for ever."""
    monkeypatch.setattr(sqlite_locks, "PAUSES_MAX", 2)
    stops: list[int] = []
    with pytest.raises(TimeoutError, match=f"process {writer.pid} holds a write lock"):
        pause_between_writes(writer.pid, lambda: stops.append(1), lambda: None)
    assert len(stops) == 3
