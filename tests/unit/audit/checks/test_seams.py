"""What the driver calls a log without a seam, so that nobody looks at it again."""

from typing import Any

import pyarrow as pa
import pytest

from minibroker.audit.checks.log import is_seamless

Row = dict[str, Any]


def run(segment: int, base: int, last: int, epoch: int = 0, **others: object) -> Row:
    """A run of batches at the begin of a segment, or behind the first ones."""
    row: Row = {"broker": 1, "topic": "t", "partition": 0, "torn": False, "is_chain": True}
    row |= {"segment": segment, "position": base - segment, "leader_epoch": epoch}
    return row | {"base_offset": base, "last_offset": last} | others


RIGHT = [run(0, 0, 9), run(0, 10, 19, 2), run(20, 20, 29, 2), run(30, 30, 39, 5)]


def test_runs_that_go_on_have_no_seam() -> None:
    """Over segments and leader epochs, in whichever order the rows come; so have no runs at all."""
    other = [row | {"broker": 2} for row in RIGHT]
    assert is_seamless(pa.Table.from_pylist([*RIGHT[::-1], *other]))
    assert is_seamless(pa.Table.from_pylist(RIGHT).slice(0, 0))


@pytest.mark.parametrize(
    ("at", "change"),
    [
        (0, {"base_offset": 1}),
        (0, {"segment": -1}),
        (0, {"leader_epoch": -1}),
        (1, {"is_chain": False}),
        (1, {"is_chain": False, "torn": True}),
        (1, {"base_offset": 11}),
        (1, {"base_offset": 9}),
        (1, {"last_offset": 18}),
        (2, {"segment": 19}),
        (2, {"segment": 21}),
        (2, {"leader_epoch": 1}),
        (3, {"base_offset": 31}),
        (3, {"partition": 1}),
        (3, {"topic": "u"}),
    ],
)
def test_each_kind_of_seam_is_seen(at: int, change: Row) -> None:
    """Whatever one run says other than it should."""
    rows = [*RIGHT]
    rows[at] = rows[at] | change
    assert not is_seamless(pa.Table.from_pylist(rows))
