"""The facts of the machine, where it cannot tell them."""

import errno
import os
from pathlib import Path

import pytest

from minibroker.broker import machine
from minibroker.broker.machine import NOT_KNOWN, RealMachine


def test_open_files_that_cannot_be_listed_are_not_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The list takes a descriptor itself: without one the broker answers all the same."""
    facts = RealMachine([tmp_path], "memory")
    assert 0 < facts().open_files < facts().open_files_max

    def list_none(path: Path) -> list[str]:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), str(path))

    class Unsized(type(tmp_path)):  # type: ignore[misc]
        def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
            return os.stat_result((0o040755, *[0] * 9))

    monkeypatch.setattr(os, "listdir", list_none)
    monkeypatch.setattr(machine, "DESCRIPTORS", Unsized(machine.DESCRIPTORS))
    assert facts().open_files == NOT_KNOWN
    assert facts().disk_total_bytes > 0
