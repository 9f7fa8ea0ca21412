"""The leader's high watermark (A2; rows PAR)."""

import pytest

from minibroker.broker.metadata.model import PartitionState
from minibroker.broker.replication.roles import Leader


def state(
    isr: tuple[int, ...], replicas: tuple[int, ...], *, partition_epoch: int = 0
) -> PartitionState:
    return PartitionState("t", bytes(16), 0, 1, 5, partition_epoch, isr, replicas)


def lead(isr: tuple[int, ...], replicas: tuple[int, ...] = (1, 2, 3), *, start: int = 0) -> Leader:
    return Leader(1, state(isr, replicas), epoch_start=start, high_watermark=0)


def test_alone_the_log_end_is_committed() -> None:
    """PAR-02: with ISR {leader} and min ISR 1 the high watermark is the log end."""
    leader = lead((1,), (1,))
    assert leader.advance(7, 1)
    assert leader.high_watermark == 7


def test_the_slowest_of_the_isr_decides() -> None:
    """PAR-01: the high watermark is the smallest end in the ISR; who is outside does not count."""
    leader = lead((1, 2))
    leader.note_fetch(2, 4)
    leader.note_fetch(3, 1)
    assert leader.advance(9, 1)
    assert leader.high_watermark == 4


def test_a_fetch_acknowledges_what_lies_below_its_offset() -> None:
    """PAR-03: a fetch at offset f moves the high watermark to f, not beyond."""
    leader = lead((1, 2), (1, 2))
    leader.note_fetch(2, 3)
    assert leader.advance(10, 1)
    assert leader.high_watermark == 3
    assert not leader.advance(11, 1)


def test_a_follower_that_never_fetched_holds_it() -> None:
    """PAR-17: in a new term the followers' ends are unknown, so nothing more is committed."""
    leader = lead((1, 2, 3))
    leader.note_fetch(2, 10)
    assert not leader.advance(10, 1)
    assert leader.high_watermark == 0


def test_it_never_falls() -> None:
    """A follower that fetches again from further back does not take back what was committed."""
    leader = lead((1, 2), (1, 2))
    leader.note_fetch(2, 6)
    leader.advance(6, 1)
    leader.note_fetch(2, 2)
    assert not leader.advance(6, 1)
    assert leader.high_watermark == 6


def test_it_is_frozen_below_the_min_isr() -> None:
    """A2: with fewer in-sync replicas than demanded nothing is committed."""
    leader = lead((1,), (1, 2, 3))
    assert not leader.advance(5, 2)
    assert leader.high_watermark == 0


def test_more_than_all_replicas_cannot_be_demanded() -> None:
    """A2: the demand is at most the number of replicas."""
    leader = lead((1,), (1,))
    assert leader.is_isr_large_enough(3)
    assert leader.advance(5, 3)


def test_a_new_isr_keeps_what_is_known_of_followers() -> None:
    """A18: another in-sync set in the same term keeps the followers' progress."""
    leader = lead((1, 2, 3))
    leader.note_fetch(2, 8)
    leader.note_fetch(3, 2)
    leader.update(state((1, 2), (1, 2, 3), partition_epoch=1))
    assert leader.advance(9, 1)
    assert leader.high_watermark == 8


def test_another_term_is_another_leader() -> None:
    """A leader cannot be carried into another epoch."""
    leader = lead((1,))
    other = PartitionState("t", bytes(16), 0, 1, 6, 1, (1,), (1,))
    with pytest.raises(AssertionError):
        leader.update(other)
