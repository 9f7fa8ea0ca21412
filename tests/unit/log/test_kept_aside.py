"""What the files that damage left can still say."""

import random
from pathlib import PurePath

import pytest

from minibroker.broker.log.recovery import kept_aside
from minibroker.testing.disk import SimulatedFiles
from tests.unit.log.workbench import DIRECTORY, stored

BAD = b"\x02" * 70


@pytest.mark.parametrize(
    ("content", "last"),
    [
        (b"", None),
        (BAD, None),
        (stored(7)[:-1], None),
        (BAD + stored(7, 3) + stored(10), 10),
        (BAD + stored(7, 3) + BAD + stored(12, 2) + BAD, 13),
        (BAD + stored(9, 3) + stored(7)[:-1] + b"\xff", 11),
    ],
)
def test_the_last_offset_is_found_behind_any_bad_bytes(content: bytes, last: int | None) -> None:
    """REC-03: who accepts a loss is told up to which offset batches still lie in what was kept."""
    files = SimulatedFiles(random.Random(1))
    files.make_dir(DIRECTORY)
    path = DIRECTORY / f"{5:020}.damaged"
    files.write_atomic(path, content)
    files.write_atomic(PurePath(f"{DIRECTORY}/{0:020}.log"), stored(0))
    assert [tuple(one) for one in kept_aside(files, DIRECTORY)] == [(path, len(content), last)]
