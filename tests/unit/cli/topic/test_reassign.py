"""`partition reassign` against a cluster of a few dictionaries: what it asks for, and says."""

import pytest

from minibroker.cli.topic import reassign
from minibroker.cli.topic.reassignment_plan import read_plan
from tests.support.fake_reassignments import FakeCluster
from tests.support.processes import run_here

T0, T1 = ("t", 0), ("t", 1)


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> FakeCluster:
    """Four live brokers; the commands find them at any address, and wait for nothing."""
    cluster = FakeCluster({T0: (1, 2), T1: (2, 3)}, [1, 2, 3, 4])
    monkeypatch.setattr(reassign, "opened_admin", cluster.opened)

    def sleep(_: float) -> None:
        for name in [*cluster.moves]:
            cluster.finish(name)

    monkeypatch.setattr(reassign.time, "sleep", sleep)
    return cluster


def typed(command: str, code: int = 0, stdin: str = "") -> tuple[str, str]:
    """Run `partition reassign` with these options; return its two outputs."""
    done = run_here("partition", "reassign", *command.split(), stdin=stdin)
    assert done.returncode == code, done.stderr
    return done.stdout, " ".join(done.stderr.replace("│", " ").split())


def test_a_move_under_way_is_planned_from_its_target(cluster: FakeCluster) -> None:
    """Not from all replicas that its partition has meanwhile: it would get as many for ever."""
    cluster.is_slow = True
    typed("--topic t --brokers 2,3,4 --no-wait")
    assert len(cluster.replicas[T0]) == 3
    out, _ = typed("--topic t --brokers 1,2,3 --dry-run")
    assert {len(nodes) for nodes in read_plan(out).values()} == {2}
    out, _ = typed("--topic t --brokers 1,2,3")
    assert out == "Reassigning 2 partitions.\nReassigned 2 partitions.\n"
    assert {len(nodes) for nodes in cluster.replicas.values()} == {2}
