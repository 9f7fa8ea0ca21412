"""The way of in-sync sets to the controller (A4, A5)."""

from collections.abc import Callable
from typing import Any

import trio
import trio.testing

from minibroker.broker.replication.isr_proposals import AGAIN_S, Intervals, keep_isrs
from minibroker.protocol.constants import ApiKey, ErrorCode
from minibroker.protocol.messages.control import (
    AlterPartitionRequest,
    AlterPartitionResponse,
    IsrMember,
    PartitionAltered,
    PartitionChange,
)
from minibroker.protocol.types import TopicPartition
from tests.unit.node import Node, state_of

SILENCE_LOOK_S = 0.25
NAMES = [TopicPartition("t", number) for number in range(3)]


def granted(change: PartitionChange) -> PartitionAltered:
    """The controller agrees."""
    isr = tuple(member.node_id for member in change.isr)
    epochs = (change.leader_epoch, change.partition_epoch + 1)
    return PartitionAltered(change.topic, change.partition, 0, 1, *epochs, isr)


class Controller:
    """Answers what `answer` says, after `delay_s`; remembers requests and their times."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.requests: list[tuple[float, AlterPartitionRequest]] = []
        self.under_way = 0
        self.delay_s = 0.0
        self.answer: Callable[[PartitionChange], PartitionAltered] = granted
        self.fails: list[Any] = []

    async def call(self, api_key: ApiKey, request: AlterPartitionRequest) -> Any:
        assert api_key == ApiKey.ALTER_PARTITION
        assert not self.under_way, "one request at a time"
        self.requests.append((trio.current_time(), request))
        self.under_way += 1
        await trio.sleep(self.delay_s)
        self.under_way -= 1
        if self.fails:
            failure = self.fails.pop(0)
            if isinstance(failure, Exception):
                raise failure
            return AlterPartitionResponse(failure)
        return AlterPartitionResponse(0, tuple(map(self.answer, request.partitions)))


def started(nursery: trio.Nursery, interval_s: float = 5.0) -> Controller:
    """Broker 1 leads three partitions alone, and 2 could join."""
    node = Node()
    node.live(1, 2)
    node.lead(*(state_of(name, isr=(1,), replicas=(1, 2)) for name in NAMES))
    controller = Controller(node)
    intervals = Intervals(interval_s, SILENCE_LOOK_S)
    nursery.start_soon(keep_isrs, node.replicas, node.isr_proposals, controller.call, intervals)
    return controller


async def ask_for_nothing(node: Node, lasts_s: float) -> None:
    """Broker 2 keeps its fetches coming."""
    until = trio.current_time() + lasts_s
    while trio.current_time() < until:
        node.replicas.record_arrival(2, trio.current_time())
        await trio.sleep(0.5)


async def settle() -> None:
    await trio.sleep(AGAIN_S / 2)


async def test_a_wish_reaches_the_controller_and_its_answer_the_leader(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    """A5: the request names this registration and those of the members; the answer is applied."""
    controller = started(nursery)
    controller.node.followed(2, 0, epoch=1, name=NAMES[1])
    await settle()
    ((_, request),) = controller.requests
    assert (request.broker_id, request.broker_epoch) == (1, 1)
    (change,) = request.partitions
    assert change == PartitionChange("t", b"i" * 16, 1, 0, 0, (IsrMember(1), IsrMember(2, 1)))
    assert controller.node.leader(NAMES[1]).isr == (1, 2)
    assert controller.node.partition(NAMES[1]).version == (0, 1)


async def test_one_request_is_under_way_and_the_rest_gathers(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    """A5: what is wished meanwhile goes together in the next request."""
    controller = started(nursery)
    controller.delay_s = 1.0
    for name in NAMES:
        controller.node.followed(2, 0, name=name)
        await trio.sleep(0.01)
    await trio.sleep(3)
    assert [len(request.partitions) for _, request in controller.requests] == [1, 2]
    assert all(controller.node.leader(name).isr == (1, 2) for name in NAMES)


async def test_a_request_without_an_answer_is_repeated(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    """A5: nobody answers, or the whole request is refused: the same again after 50 ms."""
    controller = started(nursery)
    controller.fails = [OSError("nobody"), ErrorCode.STALE_BROKER_EPOCH, ErrorCode.NOT_CONTROLLER]
    start = trio.current_time()
    controller.node.followed(2, 0)
    await trio.sleep(1)
    times = [time - start for time, _ in controller.requests]
    assert times == [0, AGAIN_S, 2 * AGAIN_S, 3 * AGAIN_S]
    assert len({request for _, request in controller.requests}) == 1
    assert controller.node.leader().isr == (1, 2)


async def test_an_unexpected_error_is_asked_again_that_partition_alone(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    """PAR-14: what nobody knows the meaning of is sent again; the others are settled."""
    controller = started(nursery)
    is_odd = True

    def answer(change: PartitionChange) -> PartitionAltered:
        if is_odd and change.partition == 1:
            return PartitionAltered("t", 1, ErrorCode.UNKNOWN_SERVER_ERROR)
        return granted(change)

    controller.answer = answer
    for name in NAMES[:2]:
        controller.node.followed(2, 0, name=name)
    await trio.sleep(0.07)
    is_odd = False
    await trio.sleep(1)
    partitions = [[p.partition for p in request.partitions] for _, request in controller.requests]
    assert partitions == [[0, 1], [1], [1]]
    assert controller.node.leader(NAMES[1]).isr == (1, 2)


async def test_a_newer_wish_replaces_what_was_not_answered(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    """A5: a wish whose question was decided by a push is not repeated over the newer one."""
    controller = started(nursery)
    controller.fails = [OSError("nobody")]
    controller.delay_s = 0.5
    controller.node.followed(2, 0)
    await trio.sleep(0.1)
    controller.node.apply(state_of(NAMES[0], epochs=(0, 5), isr=(1,), replicas=(1, 2)))
    controller.node.followed(2, 0, now=1.0)
    await trio.sleep(3)
    epochs = [request.partitions[0].partition_epoch for _, request in controller.requests]
    assert epochs == [0, 5]
    assert controller.node.partition().version == (0, 6)


async def test_the_timer_looks_for_who_fell_behind(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    """A4: every half lag time; a follower that asks, but not for this partition, and is behind
    leaves between one and one and a half of it."""
    controller = started(nursery, interval_s=15.0)
    node = controller.node
    start = trio.current_time()
    node.apply(state_of(epochs=(1, 1), isr=(1, 2), replicas=(1, 2)), now=start)
    node.followed(2, 0, now=start + 10.0)
    node.append(1, now=start + 10.0)
    await ask_for_nothing(node, 44)
    assert node.leader().isr == (1, 2)
    await ask_for_nothing(node, 2)
    assert node.leader().isr == (1,)
    assert node.partition().high_watermark == 1


async def test_a_silent_follower_is_not_waited_for(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    """A follower that lacks records and sends no FETCH leaves soon after the fence time-out, and
    does not hold acks=all up for the lag time."""
    controller = started(nursery, interval_s=15.0)
    node = controller.node
    timeout_s = node.config.follower_silence_s
    start = trio.current_time()
    node.apply(state_of(epochs=(1, 1), isr=(1, 2), replicas=(1, 2)), now=start)
    node.followed(2, 0, epoch=1, now=start)
    node.append(1, now=start)
    await trio.sleep(timeout_s)
    assert node.leader().isr == (1, 2)
    await trio.sleep(3 * SILENCE_LOOK_S)
    assert node.leader().isr == (1,)
    assert node.partition().high_watermark == 1
    node.followed(2, 1, epoch=1, now=trio.current_time())
    await trio.sleep(AGAIN_S)
    assert node.leader().isr == (1, 2)


async def test_who_asks_on_stays(
    autojump_clock: trio.testing.MockClock, nursery: trio.Nursery
) -> None:
    """A slow follower has the lag time, and keeps the others waiting."""
    controller = started(nursery, interval_s=15.0)
    node = controller.node
    node.apply(state_of(epochs=(1, 1), isr=(1, 2), replicas=(1, 2)), now=trio.current_time())
    node.append(1, now=trio.current_time())
    await ask_for_nothing(node, 20)
    assert node.leader().isr == (1, 2)
