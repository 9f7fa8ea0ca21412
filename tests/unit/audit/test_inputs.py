"""What is small is read once, and what of it cannot be believed is a finding."""

from pathlib import Path

from minibroker.audit.inputs import read_inputs


def test_a_snapshot_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """A finding's segment is the number in the file's name; none where the name has none."""
    log = tmp_path / "t-0"
    log.mkdir()
    (tmp_path / "meta.properties").write_text("version=1\ncluster.id=c\nnode.id=3\n")
    (log / "partition.metadata").write_text("version: 0\ntopic_id: AAECAwQFBgcICQoLDA0ODw\n")
    (log / f"{0:020}.log").touch()
    (log / f"{30:020}.snapshot").touch()
    (log / "leader-epoch-checkpoint").touch()
    found = [(each.check, each.segment) for each in read_inputs([tmp_path], lambda: None).findings]
    assert found == [("epoch-checkpoint", None), ("snapshot", 30)]
