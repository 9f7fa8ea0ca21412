"""What replicas tell of themselves: where they stand, and what went through them."""

from pathlib import PurePath

import pytest
import trio
import trio.testing

from minibroker.broker.replication.flusher import Flusher
from minibroker.broker.turns import without_pause
from minibroker.protocol.constants import ErrorCode
from minibroker.protocol.messages.control import PartitionAltered
from minibroker.protocol.records.batch import ProducerStamp
from tests.unit.node import T0, Node, batch_of, state_of
from tests.unit.server.fetching import SMALL, answer, append, want


def told(node: Node, *isr: int, epochs: tuple[int, int]) -> None:
    """The controller confirms what the leader of T0 asked for."""
    (proposal,) = node.isr_proposals.next_batch_nowait()
    confirmed = PartitionAltered(*T0, ErrorCode.NONE, 1, *epochs, isr)
    assert node.replicas.resolve(proposal, confirmed, 0.0)


def test_what_goes_through_a_leader_is_counted() -> None:
    """Records and bytes of producers, bytes to consumers and to followers; a repeated batch counts
    once, an empty answer not at all."""
    node = Node()
    node.live(1, 2)
    node.lead(state_of(isr=(1, 2), replicas=(1, 2)))
    stamp = ProducerStamp(7, 0, 0)
    append(node, batch_of(3, producer=stamp), batch_of(3, producer=stamp), batch_of())
    assert answer(node, want(0), replica_id=2).records
    answer(node, want(4), replica_id=2, wait_ms_max=0)
    assert answer(node, want(3)).records
    assert not answer(node, want(4), wait_ms_max=0).records
    (replica,) = without_pause(node.replicas.statistics()).replicas
    size = replica.log.size
    assert replica.traffic == (4, size, SMALL, size, 0)


def test_replicas_say_where_they_stand() -> None:
    """A leader knows its in-sync set and how many acks=all needs; nobody else does."""
    node = Node(min_insync_replicas="3")
    node.live(1, 2)
    node.lead(state_of(isr=(1,), replicas=(1, 2), epochs=(4, 1)))
    append(node, batch_of(5))
    (leader,) = without_pause(node.replicas.statistics()).replicas
    assert (leader.role, leader.leader_epoch, leader.high_watermark) == ("leader", 4, 0)
    assert (leader.isr, leader.replicas, leader.needed) == ((1,), (1, 2), 2)
    assert (leader.log.log_end, leader.flush) == (5, "interval")
    node.apply(state_of(leader=2, isr=(1, 2), replicas=(1, 2), epochs=(5, 2)))
    (follower,) = without_pause(node.replicas.statistics()).replicas
    assert (follower.role, follower.isr, follower.needed) == ("follower", (), 0)
    node.partition().role.failure = "its leader is strange"  # type: ignore[union-attr]
    assert without_pause(node.replicas.statistics()).replicas[0].role == "failed"
    node.partition().go_offline(ErrorCode.KAFKA_STORAGE_ERROR, "gone")
    assert without_pause(node.replicas.statistics()).replicas[0].role == "offline"


def test_confirmed_changes_of_in_sync_sets_are_counted() -> None:
    """A set that the controller has confirmed counts once, as shrunk or as grown."""
    node = Node()
    node.live(1, 2)
    node.lead(state_of(isr=(1,), replicas=(1, 2)))
    node.followed(2, 0)
    told(node, 1, 2, epochs=(0, 1))
    statistics = without_pause(node.replicas.statistics())
    assert (statistics.isr_shrinks, statistics.isr_expands) == (0, 1)
    append(node, batch_of())
    without_pause(node.replicas.review_isrs(1e6))
    told(node, 1, epochs=(0, 2))
    statistics = without_pause(node.replicas.statistics())
    assert (statistics.isr_shrinks, statistics.isr_expands) == (1, 1)


def test_the_broker_still_counts_what_went_through_deleted_replicas() -> None:
    """A sum over all that a broker ever took does not fall when a topic goes."""
    node = Node()
    node.lead()
    append(node, batch_of(3))
    node.stop(state_of(), delete=True, leader_epoch=0)
    statistics = without_pause(node.replicas.statistics())
    assert statistics.replicas == []
    assert (statistics.gone.records_in, statistics.gone.bytes_in) == (3, len(batch_of(3)))


@pytest.mark.parametrize("mode", ["always", "interval"])
async def test_flushes_are_timed_by_mode(autojump_clock: trio.testing.MockClock, mode: str) -> None:
    """Each flush counts in the mode that asked for it, with the time that the disk took; what is
    dirty and not flushed yet is told."""
    node = Node(flush=mode, flush_ms="500")

    async def sync_dir(directory: PurePath) -> None:
        await trio.sleep(0.2)

    flusher = node.flusher = Flusher(sync_dir)
    node.lead()
    partition = node.partition()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(flusher.run, node.replicas.on_flushed)
        await trio.sleep(0.1)
        partition.append_as_leader(batch_of(), 1, trio.current_time(), 1_000)
        flusher.schedule(partition, trio.current_time())
        assert flusher.statistics()[mode].dirty == 1
        await trio.sleep(2)
        seen = flusher.statistics()
        nursery.cancel_scope.cancel()
    assert [name for name, queue in seen.items() if sum(queue.times.counts)] == [mode]
    assert seen[mode].dirty == 0
    assert 0.4 <= seen[mode].times.total_s < 0.5
