"""`minibroker metadata` as an operator types it: the store of three brokers is lost."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.processes import free_base_port, run_here
from tests.support.typed_cluster import Cluster

pytestmark = pytest.mark.soak


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    """A directory whose brokers are gone in the end."""
    cluster = Cluster(tmp_path / "cluster")
    yield cluster
    cluster.kill_all()


def metadata(verb: str, backup: Path, root: Path, *options: str, code: int = 0) -> str:
    """What a command says; it must end with `code`."""
    done = run_here("metadata", verb, str(backup), "--data-dir", str(root), *options)
    assert done.returncode == code, done.stderr
    return done.stderr


def test_a_lost_store_is_restored(cluster: Cluster, tmp_path: Path) -> None:
    """The backup is from before a failover, records and a topic; the topic's logs are kept."""
    root, backup = cluster.root, tmp_path / "backup.json"
    cluster(f"up -n 3 --base-port {free_base_port(3)} --detach")
    cluster.ask("topic create kept -r 3")
    cluster.ask("produce kept", stdin="one\n")
    metadata("export", backup, root)
    cluster.ask("topic create newer -r 3")
    assert "brokers 1, 2, 3 must not run" in metadata("restore", backup, root, "--yes", code=1)
    cluster("kill 1")
    cluster.ask("produce kept", stdin="two\n")
    cluster("start 1")
    cluster("down")
    for path in root.glob("metadata.db*"):
        path.unlink()
    assert "Start the brokers 1, 2, 3." in metadata("restore", backup, root, "--yes")
    cluster("up --detach")
    cluster.ask("produce kept", stdin="three\n")
    assert cluster.ask("consume kept --from-beginning -e") == "one\ntwo\nthree\n"
    assert cluster.ask("topic list").split() == ["kept"]
    assert len([*root.glob("broker-*/newer-0.*-stray")]) == 3
