"""`cluster purge`: what it removes, and what it leaves."""

import subprocess
from pathlib import Path

import pytest

from minibroker.cli.cluster import purge
from minibroker.cli.cluster.layout import Layout, exclusive
from minibroker.cli.cluster.process import Broker, State
from tests.support.processes import run_here


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    """A cluster of two brokers that have run and do not run now."""
    layout = Layout((tmp_path / "cluster").resolve(), 2, 19092, {})
    layout.root.mkdir()
    layout.save()
    for node_id in layout.node_ids:
        (layout.data_dir(node_id) / "t-0").mkdir(parents=True)
        (layout.data_dir(node_id) / "t-0" / "0.log").write_bytes(b"records")
        layout.log_file(node_id).write_text("lines")
    for name in ("metadata.db", "metadata.db-wal"):
        (layout.root / name).write_bytes(b"topics")
    return layout


def typed(layout: Layout, *options: str) -> subprocess.CompletedProcess:
    """Run the command for this cluster."""
    return run_here("cluster", "purge", "--data-dir", str(layout.root), *options)


def test_nothing_is_left(layout: Layout) -> None:
    """Not even the directory, and another purge finds no cluster."""
    what = f"all records and topics of 2 brokers in {layout.root}"
    done = typed(layout, "--yes")
    assert (done.returncode, done.stdout) == (0, f"Removed {what}.\n")
    assert not layout.root.exists()
    done = typed(layout, "--yes")
    assert done.returncode == 1
    assert "there is no cluster in" in done.stderr


def test_what_others_have_put_there_stays(layout: Layout, tmp_path: Path) -> None:
    """A file of the user's, and what a link leads to."""
    elsewhere = tmp_path / "elsewhere"
    layout.data_dir(1).rename(elsewhere)
    layout.data_dir(1).symlink_to(elsewhere)
    mine = layout.root / "notes.txt"
    mine.write_text("mine")
    done = typed(layout, "-y")
    assert done.returncode == 0
    assert f"{layout.root} stays" in done.stderr
    assert [*layout.root.iterdir()] == [mine]
    assert (elsewhere / "t-0" / "0.log").read_bytes() == b"records"


def test_nothing_is_removed_without_consent(layout: Layout) -> None:
    """A dry run lists what would be; without a terminal --yes is needed."""
    before = sorted(layout.root.rglob("*"))
    done = typed(layout, "--dry-run")
    assert done.stdout.splitlines() == [
        *(str(layout.root / f"broker-{number}{end}") for number in (1, 2) for end in ("", ".log")),
        *(str(layout.root / name) for name in ("metadata.db", "metadata.db-wal")),
        str(layout.file),
    ]
    done = typed(layout)
    assert (done.returncode, done.stdout) == (2, "")
    with exclusive(layout):
        done = typed(layout, "--yes")
    assert done.returncode == 1
    assert "another command starts or rolls the brokers" in done.stderr
    (layout.root / "cluster.lock").unlink()
    assert sorted(layout.root.rglob("*")) == before


def test_a_broker_that_does_not_stop_keeps_everything(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files are not taken from under it."""
    monkeypatch.setattr(Broker, "inspect", lambda _: (1, State.RUNNING))
    monkeypatch.setattr(Broker, "send", lambda *_: True)
    stop = purge.stop
    monkeypatch.setattr(purge, "stop", lambda brokers: stop(brokers, 0))
    done = typed(layout, "--yes")
    assert done.returncode == 1
    assert "still runs after" in done.stderr
    assert (layout.data_dir(1) / "t-0" / "0.log").exists()
    assert layout.file.exists()
