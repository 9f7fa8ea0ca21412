"""When records are forced to the disk (N1)."""

import errno

import pytest
import trio
import trio.testing

from minibroker.broker.log.admission import check_batches
from minibroker.broker.log.checkpoints import read_topic_id
from minibroker.broker.replication.follower import LeaderAnswer
from minibroker.protocol.messages.fetch import PartitionFetched
from minibroker.protocol.records.batch import stamp
from minibroker.protocol.types import TopicPartition
from minibroker.testing.disk import Tail
from tests.unit.node import T0, Node, batch_of, state_of

OTHER = TopicPartition("t", 1)


def append(node: Node, name: TopicPartition = T0) -> None:
    node.append(name=name, now=trio.current_time())


async def test_interval_flushes_what_is_dirty(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    """flush=interval: a record is durable at most flush.ms after its append, and idle logs rest."""
    node = Node(flush_ms="500")
    node.lead()
    nursery.start_soon(node.flusher.run, node.replicas.on_flushed)
    await trio.sleep(10)
    append(node)
    await trio.sleep(0.4)
    append(node)
    assert node.partition().log.durable_end == 0
    await trio.sleep(0.2)
    assert node.partition().log.durable_end == 2
    count = node.files.sync_count
    await trio.sleep(60)
    assert node.files.sync_count == count


async def test_never_flushes_nothing(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    """flush=never: the system writes back when it likes."""
    node = Node(flush="never")
    node.lead()
    nursery.start_soon(node.flusher.run, node.replicas.on_flushed)
    append(node)
    await trio.sleep(3_600)
    assert node.partition().log.durable_end == 0


@pytest.mark.parametrize("mode", ["never", "interval", "always"])
async def test_a_new_log_keeps_its_topic_over_a_power_cut(
    mode: str, autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    """Its directory and its topic id are synced right after the creation, whatever `flush` is."""
    node = Node(flush=mode)
    node.lead()
    log = node.partition().log
    nursery.start_soon(node.flusher.run, node.replicas.on_flushed)
    await trio.sleep(0.1)
    assert log.durable_end == 0
    nursery.cancel_scope.cancel()
    node.files.power_off(Tail.LOST)
    assert read_topic_id(node.files, log.directory) == log.topic_id


async def test_always_gathers_a_group_while_it_syncs(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    """flush=always: what comes during an fsync shares the next one."""
    node = Node(flush="always")
    node.files.sync_s = 0.1
    node.lead()
    nursery.start_soon(node.flusher.run, node.replicas.on_flushed)
    append(node)
    await trio.sleep(1)
    count = node.files.sync_count
    for _ in range(50):
        append(node)
        await trio.sleep(0.01)
    await trio.sleep(0.3)
    assert node.partition().high_watermark == 51
    assert node.files.sync_count - count <= 8


async def test_who_waits_for_its_flush_waits_for_no_other(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    """flush=always: the flush of another topic's interval, under way on a slow disk, delays no
    acknowledgement, and neither does a change of mode during a flush."""
    node = Node(flush_ms="500")
    node.files.sync_s = 10
    node.lead()
    urgent = TopicPartition("u", 0)
    node.lead(state_of(urgent, topic_id=b"u" * 16), overrides={"flush": "always"})
    nursery.start_soon(node.flusher.run, node.replicas.on_flushed)
    append(node)
    await trio.sleep(1)
    append(node, urgent)
    node.configure(flush="always")
    await trio.sleep(25)  # a first flush syncs two files
    assert node.partition(urgent).high_watermark == 1
    await trio.sleep(60)
    assert node.partition().high_watermark == 1


async def test_the_high_watermark_waits_for_the_disk(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    """flush=always: the own end is the durable one, and nobody sees more."""
    node = Node(flush="always")
    node.files.sync_s = 0.1
    node.lead()
    nursery.start_soon(node.flusher.run, node.replicas.on_flushed)
    append(node)
    await trio.sleep(0.05)
    assert (node.partition().high_watermark, node.partition().log.log_end) == (0, 1)
    await trio.sleep(0.5)
    assert node.partition().high_watermark == 1


async def test_a_stricter_setting_takes_over(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    """A change to flush=always flushes what was waiting for its interval."""
    node = Node(flush_ms="60000")
    node.lead()
    nursery.start_soon(node.flusher.run, node.replicas.on_flushed)
    append(node)
    await trio.sleep(1)
    node.configure(flush="always")
    await trio.sleep(1)
    assert node.partition().log.durable_end == 1


async def test_what_is_durable_after_opening_is_known_by_a_flush(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    """flush=always: after an unclean stop the log end counts only once it was synced."""
    node = Node(flush="always")
    node.lead()
    append(node)
    node.files.kill()
    again = Node(node.files, flush="always")
    again.lead(state_of(epochs=(1, 1)))
    assert again.partition().log.log_end == 1
    nursery.start_soon(again.flusher.run, again.replicas.on_flushed)
    await trio.sleep(1)
    assert again.partition().high_watermark == 1


async def test_a_failed_fsync_leaves(autojump_clock: trio.testing.MockClock) -> None:
    """A failed fsync is not tried again: its error ends the flusher."""
    node = Node(flush="always")
    node.lead()
    append(node)
    node.files.fail("sync")
    with pytest.raises(ExceptionGroup) as failed:
        await node.flusher.run(node.replicas.on_flushed)
    [error] = failed.value.exceptions
    assert isinstance(error, OSError)
    assert error.errno == errno.EIO


async def test_a_flush_without_a_descriptor_is_put_off(
    autojump_clock: trio.testing.MockClock,
    nursery: trio.Nursery,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It has not come to the fsync: nothing is durable by it, and it is tried again."""
    node = Node(flush="always")
    node.lead()
    nursery.start_soon(node.flusher.run, node.replicas.on_flushed)
    await trio.sleep(1)
    node.files.descriptors_max = 0
    append(node)
    await trio.sleep(60)
    assert node.partition().log.durable_end == 0
    assert len(caplog.records) == 1
    assert "no file descriptor is free" in caplog.text
    node.files.descriptors_max = None
    await trio.sleep(1)
    assert node.partition().log.durable_end == 1


async def test_a_deleted_log_is_forgotten(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    """A log that is deleted before or during its flush stops nobody."""
    node = Node(flush="always")
    node.files.sync_s = 0.1
    node.lead(state_of(), state_of(OTHER))
    nursery.start_soon(node.flusher.run, node.replicas.on_flushed)
    append(node)
    append(node, OTHER)
    await trio.sleep(0.05)
    for state in (state_of(), state_of(OTHER)):
        node.stop(state, delete=True, leader_epoch=0)
    await trio.sleep(1)
    node.lead(state_of(topic_id=b"j" * 16))
    append(node)
    await trio.sleep(1)
    assert node.partition().high_watermark == 1


async def test_followers_hear_of_it(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    """N1: who copies is told of a flush, for what is not durable is not acknowledged by the next
    fetch."""
    node = Node(flush="always")
    node.apply(state_of(leader=2, isr=(2,), replicas=(1, 2)))
    nursery.start_soon(node.flusher.run, node.replicas.on_flushed)
    batch = batch_of()
    stamp(batch, 0, 0)
    answer = LeaderAnswer(0, PartitionFetched(*T0), check_batches(batch))
    node.replicas.apply_answer(node.partition(), answer, trio.current_time())
    await trio.sleep(1)
    assert ("on_flushed", T0) in node.fetchers.calls
