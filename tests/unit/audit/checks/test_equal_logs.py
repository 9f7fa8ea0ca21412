"""Which logs hold the same batches, so that their records are decoded once."""

from typing import Any

import pytest

from minibroker.audit.checks.facts import equal_by_runs
from minibroker.audit.files.directories import Replica


def run(broker: int, segment: int, digest: int, epoch: int = 0, **others: object) -> dict[str, Any]:
    """A run of two batches of t-0."""
    row = {"broker": broker, "topic": "t", "partition": 0, "segment": segment, "torn": False}
    row |= {"leader_epoch": epoch, "digest": digest, "batches": 2, "bytes": 200}
    return row | {"has_bad_crc": False} | others


def equal(*rows: dict[str, Any]) -> dict[int, int]:
    """Of each broker that has an equal log, or is alone, the one whose log is decoded."""
    return {replica.broker: source.broker for replica, source in equal_by_runs(rows).items()}


def test_equal_logs_may_have_other_segments() -> None:
    """What counts are the batches of each leader epoch."""
    first = (run(1, 0, 5), run(1, 4, 6), run(1, 8, 7, epoch=2))
    second = (run(2, 0, 5 ^ 6, batches=4, bytes=400), run(2, 8, 7, epoch=2))
    assert equal(*first, *second) == {1: 1, 2: 1}
    other_partition = run(3, 0, 5) | {"partition": 1}
    assert equal_by_runs([run(1, 0, 5), other_partition])[Replica(3, "t", 1)].broker == 3
    assert equal_by_runs([]) == {}


@pytest.mark.parametrize(
    "others",
    [
        {"digest": 6},
        {"bytes": 201},
        {"batches": 3},
        {"leader_epoch": 1},
        {"has_bad_crc": True},
        {"torn": True},
    ],
)
def test_other_or_damaged_logs_are_decoded_themselves(others: dict[str, object]) -> None:
    """Each of them; the equal ones are still decoded once."""
    found = equal(run(1, 0, 5), run(2, 0, 5) | others, run(3, 0, 5))
    assert found.get(2, 2) == 2
    assert (found[1], found[3]) == (1, 1)


def test_batches_that_cancel_out_in_a_digest_are_counted() -> None:
    """Twice the same batch has the digest of none."""
    twice = run(2, 0, 5 ^ 9 ^ 9, batches=4, bytes=400)
    assert equal(run(1, 0, 5), twice) == {1: 1, 2: 2}
