"""The audit as an application for `spark-submit`: what it is given, without a Spark."""

from pathlib import Path

import pytest

from minibroker.audit.files.cluster import InvalidExport
from minibroker.audit.submit import exported


def test_metadata_that_cannot_be_read_are_what_was_given_not_a_failure(tmp_path: Path) -> None:
    """The file is named, whether it is missing, no JSON, or JSON that nobody can follow."""
    path = tmp_path / "cluster.json"
    with pytest.raises(InvalidExport, match=r"cluster\.json cannot be read: .*No such file"):
        exported(path)
    for text in (b"{", b"\xff", b"[" * 100_000):
        path.write_bytes(text)
        with pytest.raises(InvalidExport, match=r"cluster\.json cannot be read: "):
            exported(path)
    path.write_text('{"version": 1}')
    assert exported(path) == {"version": 1}
