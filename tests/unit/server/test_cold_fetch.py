"""FETCH of records that are not in the page cache: the log changes while a worker reads them."""

from collections.abc import Callable, Generator
from dataclasses import replace
from typing import Any

import pytest
import trio
import trio.testing

from minibroker.broker.log.cached_reads import AHEAD_BYTES_MIN, READS_AHEAD_MAX, ReadAhead
from minibroker.broker.log.outcomes import LogLimits
from minibroker.broker.server.services import READS_AT_ONCE
from minibroker.broker.turns import finished, without_pause
from minibroker.protocol.constants import READ_COMMITTED, ErrorCode
from minibroker.protocol.messages.fetch import (
    SESSION_EPOCH_NONE,
    SESSION_EPOCH_OPEN,
    FetchResponse,
    PartitionFetched,
)
from minibroker.protocol.types import TopicPartition
from tests.unit.node import Node, batch_of, records_of, state_of
from tests.unit.server.fetching import append, ask, want

SIZE = 500
BATCH = len(batch_of(size=SIZE))
IN_SEGMENT = 40  # more than a segment knows the places of
BATCHES = 3 * IN_SEGMENT
OTHER = TopicPartition("t", 1)


def limit(node: Node, **limits: int) -> LogLimits:
    """Set limits of the log, below what a topic can be configured to."""
    log = node.partition().log
    log.limits = replace(log.limits, **limits)
    return log.limits


def filled(size: int = SIZE) -> Node:
    """A leader with three segments of records of a size, whose indexes and files have to be read
    again."""
    node = Node()
    node.lead(state_of(), state_of(OTHER))
    batch_size = len(batch_of(size=size))
    limit(node, segment_bytes=IN_SEGMENT * batch_size, index_interval_bytes=3 * batch_size)
    append(node, *[batch_of(size=size) for _ in range(BATCHES)])
    append(node, batch_of(), name=OTHER)
    make_cold(node)
    return node


def make_cold(node: Node) -> None:
    log = node.partition().log
    without_pause(log.apply_retention(0, node.wall_time_ms))  # it frees the indexes
    node.manager._sealed_files.give_back(100)
    node.files.evict("t-0")
    node.files.read_s, node.files.stalled_s = 1.0, 0.0


def read_in_worker(node: Node, outcome: Any) -> tuple[FetchResponse, int]:
    """The answer, and how many reads ahead it took."""
    count = 0
    answer, sent = None, None
    assert isinstance(outcome, Generator), "nothing was cold"
    while True:
        try:
            step = outcome.send(sent)
        except StopIteration as end:
            answer = end.value
            break
        assert isinstance(step, ReadAhead)
        sent, seconds = node.files.run_in_worker(step)
        assert seconds <= 1 or count, "one read of the disk"
        count += 1
    return answer, count


def shown(fetched: PartitionFetched) -> tuple[object, ...]:
    """What a reader sees."""
    error, records = fetched.error, b"" if fetched.error else records_of(fetched)
    return error, records, fetched.high_watermark, fetched.log_start, fetched.diverging_end


def test_a_worker_reads_what_the_loop_would_wait_for() -> None:
    """The index, then the records: the loop waits for neither. The second time both are there."""
    node = filled()
    answer, count = read_in_worker(node, ask(node, want(1)))
    assert node.files.stalled_s == 0
    assert count == 2
    [fetched] = answer.partitions
    assert len(records_of(fetched)) == (IN_SEGMENT - 1) * BATCH, "it ends before a cold segment"
    assert node.files.stalled_s == 0, "what is sent was read ahead"
    assert isinstance(ask(node, want(1, bytes_max=BATCH)), FetchResponse)


def test_a_cold_partition_does_not_keep_back_warm_ones() -> None:
    """They are in the same answer, in the request's order."""
    node = filled()
    answer, _ = read_in_worker(node, ask(node, want(1), want(0, name=OTHER)))
    assert [fetched.partition for fetched in answer.partitions] == [0, 1]
    assert all(records_of(fetched) for fetched in answer.partitions)


def test_nothing_is_read_ahead_for_an_answer_that_is_full() -> None:
    """Of the partitions behind those that fill it."""
    node = filled()
    answer = ask(node, want(0, name=OTHER), want(1), bytes_max=1)
    assert isinstance(answer, FetchResponse)
    assert [bool(records_of(fetched)) for fetched in answer.partitions] == [True, False]


@pytest.mark.parametrize("session_epoch", [SESSION_EPOCH_NONE, SESSION_EPOCH_OPEN])
def test_a_request_that_waited_is_answered_in_steps(session_epoch: int) -> None:
    """Also at its deadline, with what there is."""
    node = filled()
    waiting = ask(node, want(BATCHES - 1), bytes_min=10 * BATCH, session_epoch=session_epoch)
    node.files.evict()
    answer, count = read_in_worker(node, waiting.expire())
    assert count == 1
    assert len(records_of(answer.partitions[0])) == BATCH


def test_a_reader_of_committed_records_waits_for_the_list_of_aborted_transactions() -> None:
    """Its file is read ahead, too."""
    node = filled()
    answer, count = read_in_worker(node, ask(node, want(1), isolation_level=READ_COMMITTED))
    assert count == 3
    assert node.files.stalled_s == 0
    assert answer.partitions[0].aborted_transactions == ()


def append_more(node: Node) -> None:
    append(node, batch_of(size=SIZE))


def cut_behind(node: Node) -> None:
    node.partition().log.truncate_to(2, node.wall_time_ms)


def cut_before(node: Node) -> None:
    node.partition().log.truncate_to(1, node.wall_time_ms)


def cut_and_write_others(node: Node) -> None:
    node.partition().log.truncate_to(1, node.wall_time_ms)
    append(node, *[batch_of(2, size=100) for _ in range(60)])


def begin_anew(node: Node) -> None:
    node.partition().log.restart_at(50, node.wall_time_ms)


def delete_first(node: Node) -> None:
    limit(node, retention_bytes=BATCH)
    without_pause(node.partition().log.apply_retention(BATCHES, node.wall_time_ms))


def delete_first_and_its_files(node: Node) -> None:
    delete_first(node)
    log = node.partition().log
    without_pause(log.remove_deleted_files(node.wall_time_ms + 10**9))


def compact(node: Node) -> None:
    limit(node, is_compacted=True, cleanable_dirty_ratio_min=0)
    log = node.partition().log
    found = log.compaction.find_cleanable(log.log_end, node.wall_time_ms)
    without_pause(log.compaction.clean(found, 10**6, node.wall_time_ms))


def delete_topic(node: Node) -> None:
    node.stop(state_of(), delete=True, leader_epoch=-2)


def lead_elsewhere(node: Node) -> None:
    node.lead(state_of(epochs=(7, 1), leader=2, isr=(1, 2), replicas=(1, 2)))


def lead_again(node: Node) -> None:
    node.lead(state_of(epochs=(7, 1)))


def make_cold_again(node: Node) -> None:
    make_cold(node)


CHANGES: list[Callable[[Node], None]] = [
    append_more,
    cut_behind,
    cut_before,
    cut_and_write_others,
    begin_anew,
    delete_first,
    delete_first_and_its_files,
    compact,
    delete_topic,
    lead_elsewhere,
    lead_again,
    make_cold_again,
]


@pytest.mark.parametrize("session_epoch", [SESSION_EPOCH_NONE, SESSION_EPOCH_OPEN])
@pytest.mark.parametrize("moment", ["before", "during", "after"])
@pytest.mark.parametrize("number", [0, 1], ids=["index", "records"])
@pytest.mark.parametrize("change", CHANGES)
def test_the_answer_is_of_the_log_as_it_is_after_the_read(
    change: Callable[[Node], None], number: int, moment: str, session_epoch: int
) -> None:
    """Whatever happened to the log before the worker read the index or the records, between its
    look at the file and the read itself, or behind it: the answer is what a request gets that comes
    now."""
    node = filled()
    steps: Any = ask(node, want(1), session_epoch=session_epoch)
    step = next(steps)
    for _ in range(number):
        step = steps.send(step())
    if moment == "before":
        change(node)
    if moment == "during":
        change_at_read(node, change)
    was_read = step()
    if moment == "after":
        change(node)
    node.files.check = type(node.files).check.__get__(node.files)
    answer = finished(resume(steps, was_read))
    assert answer.error == 0
    now = finished(ask(node, want(1), wait_ms_max=0))
    assert shown(answer.partitions[0]) == shown(now.partitions[0])


def change_at_read(node: Node, change: Callable[[Node], None]) -> None:
    """Let the log change at the moment at which a file is read."""
    check = node.files.check

    def changed(operation: str, path: Any) -> None:
        if operation == "read":
            node.files.check = check
            change(node)
        check(operation, path)

    node.files.check = changed


def resume(steps: Any, sent: bool) -> Any:
    """The rest of the steps, of which the last one returned `sent`."""
    try:
        step = steps.send(sent)
    except StopIteration as end:
        return end.value
    while True:
        try:
            step = steps.send((yield step))
        except StopIteration as end:
            return end.value


def test_a_cache_that_keeps_nothing_ends_in_a_read_by_the_loop() -> None:
    """No request waits for ever."""
    node = filled()
    steps: Any = ask(node, want(1))
    step = next(steps)
    count = 0
    while True:
        count += 1
        sent = step()
        make_cold(node)
        try:
            step = steps.send(sent)
        except StopIteration as end:
            answer = end.value
            break
    assert count == READS_AHEAD_MAX
    assert node.files.stalled_s > 0
    assert records_of(answer.partitions[0])


def test_an_error_of_the_disk_is_raised_in_the_loop() -> None:
    """A worker's error ends no request by itself: the loop meets the same one, and the broker
    stops."""
    node = filled()
    steps: Any = ask(node, want(1))
    node.files.fail("read", times=2)
    was_read = next(steps)()
    assert not was_read
    with pytest.raises(OSError, match="Input/output error"):
        steps.send(was_read)


def test_without_a_descriptor_for_the_read_the_partition_is_refused() -> None:
    """As one that the loop cannot open."""
    node = filled()
    node.files.descriptors_max = 0
    answer, _ = read_in_worker(node, ask(node, want(1)))
    assert answer.partitions[0].error == ErrorCode.KAFKA_STORAGE_ERROR
    node.files.descriptors_max = None
    answer, _ = read_in_worker(node, ask(node, want(1)))
    assert not answer.partitions[0].error


def test_a_wrong_index_is_rebuilt_from_what_a_worker_has_read() -> None:
    """Of the whole segment, which is larger than what is read ahead otherwise."""
    size = 2 * AHEAD_BYTES_MIN // IN_SEGMENT
    node = filled(size)
    segment = node.partition().log.directory / f"{0:020}.index"
    for at in range(7, len(node.files.read_bytes(segment)), 8):
        node.files.flip(segment, at)
    make_cold(node)
    answer, count = read_in_worker(node, ask(node, want(7, bytes_max=2 * size)))
    assert count == 3
    assert node.files.stalled_s == 0
    assert len(records_of(answer.partitions[0])) == len(batch_of(size=size))


async def test_few_workers_read_ahead_at_a_time() -> None:
    """The others of trio's threads are for what syncs files."""
    services = filled().services
    running = most = 0

    async def in_worker(function: Callable[[], Any]) -> Any:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await trio.sleep(0.001)
        running -= 1
        return function()

    services.in_worker = in_worker
    async with trio.open_nursery() as nursery:
        for _ in range(3 * READS_AT_ONCE):
            nursery.start_soon(services.step_in_worker, ReadAhead(lambda: None))
        await trio.testing.wait_all_tasks_blocked()
        most_of_others = 0
        for _ in range(2):
            nursery.start_soon(services.step_in_worker, lambda: None)
        most_of_others = most - READS_AT_ONCE
    assert most_of_others == 0
    assert most == READS_AT_ONCE + 1
