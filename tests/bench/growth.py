"""How the work of one event grows with the partitions of a cluster.

A change of one partition must cost the same however many others there are, and what concerns all of
them as much for each as with few: so each figure's yardstick is the same event with 100 partitions.
No call may hold up the broker's loop for longer than 20 ms. Processor time of this process, without
network and disk, which are simulated, and without Python's garbage collector.
"""

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import trio
import trio.testing

from minibroker.protocol.constants import ApiKey
from minibroker.protocol.messages.control import (
    AlterPartitionRequest,
    IsrMember,
    PartitionChange,
    PartitionState,
    TopicState,
)
from tests.bench.rounds import Row, by_turns, median_of, milliseconds
from tests.unit.controller.fleet import T0, Fleet
from tests.unit.node import Node

FEW = 100
COUNTS = (1_000, 10_000)
TOLD_AT_ONCE = 500  # topics and partitions in one UPDATE_METADATA
ROLES_AT_ONCE = 80  # in one LEADER_AND_ISR
CHANGES = 20
CHANGE_RATIO_MAX = 5.0  # the table of topics is copied, at 4 ns for each
EACH_RATIO_MAX = 2.0
CALL_MS_MAX = 20.0
ALL = (1, 2, 3)


def _state(number: int, leader: int, epoch: int, isr: tuple[int, ...] = ALL) -> PartitionState:
    """Of the only partition of its topic."""
    name, topic_id = _topic(number)
    return PartitionState(name, topic_id, 0, leader, epoch, epoch, ALL, isr)


def _topic(number: int) -> tuple[str, bytes]:
    return f"t{number}", number.to_bytes(16, "big")


def _tell(node: Node, count: int) -> float:
    """Tell all; the longest request, in seconds."""
    longest_s = 0.0
    for first in range(0, count, TOLD_AT_ONCE // 2):
        numbers = range(first, min(count, first + TOLD_AT_ONCE // 2))
        began = time.process_time()
        node.update(
            topics=tuple(TopicState(*_topic(number), (), 1) for number in numbers),
            partitions=tuple(_state(number, 1, 0) for number in numbers),
        )
        longest_s = max(longest_s, time.process_time() - began)
    return longest_s


def _metadata_s(count: int) -> float:
    node = Node()
    began = time.process_time()
    _tell(node, count)
    return (time.process_time() - began) / count


def _metadata_longest_s(count: int) -> float:
    return _tell(Node(), count)


def _metadata_change_s(count: int) -> float:
    node = Node()
    _tell(node, count)
    began = time.process_time()
    for change in range(CHANGES):
        node.update(partitions=(_state(count // 2, 1, 0, ALL[: 2 + change % 2]),))
    return (time.process_time() - began) / CHANGES


def _role_calls(count: int) -> Iterator[float]:
    """Another broker becomes leader of all that was led here: seconds of each call."""
    node = Node()
    _tell(node, count)
    for leader, epoch in ((1, 0), (2, 1)):
        for first in range(0, count, ROLES_AT_ONCE):
            numbers = range(first, min(count, first + ROLES_AT_ONCE))
            states = [_state(number, leader, epoch) for number in numbers]
            began = time.process_time()
            results = node.apply(*states)
            if leader == 2:
                yield time.process_time() - began
            assert not any(result.error for result in results)


def _roles_s(count: int) -> float:
    return sum(_role_calls(count)) / count


def _roles_longest_s(count: int) -> float:
    return max(_role_calls(count))


async def _change_isrs(count: int) -> float:
    """A follower leaves and joins one partition's in-sync set: the controller and all brokers."""
    async with trio.open_nursery() as nursery:
        fleet = Fleet(nursery, 1)
        await fleet.add(*ALL)
        await fleet.create("t", count, len(ALL))
        await trio.sleep(120)
        topic = (await fleet.state()).topics["t"]
        record = await fleet.record()
        node, epoch = fleet[record.leader].node, record.partition_epoch
        others = [broker for broker in ALL if broker != record.leader]
        began = time.process_time()
        for change in range(CHANGES):
            isr = (record.leader, *others[: 1 + change % 2])
            asked = PartitionChange(
                "t",
                topic.id,
                T0.partition,
                record.leader_epoch,
                epoch,
                tuple(IsrMember(member) for member in isr),
            )
            request = AlterPartitionRequest(record.leader, node.broker_epoch, (asked,))
            (answer,) = (await node.call(ApiKey.ALTER_PARTITION, request)).partitions
            assert not answer.error, answer
            epoch = answer.partition_epoch
            await trio.sleep(0.01)
        spent = time.process_time() - began
        nursery.cancel_scope.cancel()
    return spent / CHANGES


def _isr_change_s(count: int) -> float:
    return trio.run(_change_isrs, count, clock=trio.testing.MockClock(autojump_threshold=0))


@contextmanager
def _without_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _rows(name: str, measure: Callable[[int], float], ratio_max: float) -> Iterator[Row]:
    for count in COUNTS:
        found = by_turns(partial(measure, count), partial(measure, FEW))
        yield Row(
            f"{name}, {count:,} partitions",
            f"{found.ours * 1e6:,.0f} us",
            f"the same with {FEW}",
            f"{found.theirs * 1e6:,.0f} us",
            f"{found.ratio:.2f}",
            f"< {ratio_max:.0f}",
            found.ratio < ratio_max,
        )


def _longest_rows(name: str, measure: Callable[[int], float]) -> Iterator[Row]:
    for count in COUNTS:
        longest_ms = median_of(partial(measure, count)) * 1000
        yield Row(
            f"{name}: the longest call, {count:,} partitions",
            milliseconds(longest_ms),
            wanted=f"< {milliseconds(CALL_MS_MAX)}",
            is_met=longest_ms < CALL_MS_MAX,
        )


def metadata_growth() -> Iterator[Row]:
    """UPDATE_METADATA, at the broker that is told."""
    with _without_collector():
        yield from _rows("one changes: UPDATE_METADATA", _metadata_change_s, CHANGE_RATIO_MAX)
        yield from _rows("all are told: for each", _metadata_s, EACH_RATIO_MAX)
        yield from _longest_rows("all are told", _metadata_longest_s)


def role_growth() -> Iterator[Row]:
    """LEADER_AND_ISR, at the broker that is told."""
    with _without_collector():
        yield from _rows("all change their roles: for each", _roles_s, EACH_RATIO_MAX)
        yield from _longest_rows("all change their roles", _roles_longest_s)


def isr_growth() -> Iterator[Row]:
    """ALTER_PARTITION, at the controller and the three brokers it tells."""
    with _without_collector():
        yield from _rows("an in-sync set changes", _isr_change_s, CHANGE_RATIO_MAX)


MEASURES = (metadata_growth, role_growth, isr_growth)
