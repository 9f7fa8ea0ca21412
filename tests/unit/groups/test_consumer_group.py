"""A group of the consumer protocol: epochs, assignments, fencing (rows GRP)."""

import random
from dataclasses import replace
from typing import Any

import pytest

from minibroker.broker.groups.consumer_heartbeats import ConsumerLimits
from minibroker.broker.groups.member import Ticket
from minibroker.broker.groups.states import ConsumerGroupState
from minibroker.broker.turns import without_pause
from minibroker.protocol.constants import ErrorCode
from minibroker.protocol.messages.consumer_groups import (
    ConsumerGroupHeartbeatResponse,
    TopicIdPartitions,
)
from tests.unit.groups.consuming import CLIENT, Consumer, World, owned_of, settle, topic, topics_of


def answered(answer: object) -> ConsumerGroupHeartbeatResponse:
    assert isinstance(answer, ConsumerGroupHeartbeatResponse)
    return answer


def test_the_first_member_gets_all_at_once() -> None:
    """Its first answer has its epoch and all partitions; the next ones have no assignment."""
    world = World(t=4)
    one = Consumer(world, "one", "t")
    assert world.group.state is ConsumerGroupState.EMPTY
    answer = answered(world.send(one.request()))
    one.obey(answer)
    assert one.numbers == [0, 1, 2, 3]
    assert (answer.member_id, answer.heartbeat_interval_ms) == ("one", 5000)
    assert world.group.state is ConsumerGroupState.STABLE
    brief = replace(one.request(), topics=None, owned=None, rebalance_timeout_ms=-1)
    again = answered(world.send(brief))
    assert (again.member_epoch, again.assignment) == (one.epoch, None)


def test_a_partition_is_revoked_before_it_is_assigned() -> None:
    """The member that has it goes on in its epoch until it says that it does not own it any more;
    only then the other one gets it."""
    world = World(t=4)
    one, two = Consumer(world, "one", "t"), Consumer(world, "two", "t")
    one.beat()
    first_epoch = one.epoch
    two.beat()
    assert two.numbers == []
    assert two.epoch > first_epoch
    told = answered(world.send(one.request()))
    assert told.member_epoch == first_epoch
    assert told.assignment is not None
    assert world.group.state is ConsumerGroupState.RECONCILING
    two.beat()
    assert two.numbers == []
    still = answered(world.send(one.request()))
    assert still.member_epoch == first_epoch
    one.obey(told)
    assert len(one.numbers) == 2
    two.beat()
    assert two.numbers == []
    one.beat()
    assert one.epoch == two.epoch
    two.beat()
    assert sorted(one.numbers + two.numbers) == [0, 1, 2, 3]
    assert world.group.state is ConsumerGroupState.STABLE


def test_a_member_that_does_not_revoke_is_removed() -> None:
    """Once its rebalance time-out is over, though it sends heartbeats."""
    world = World(ConsumerLimits(session_timeout_ms=500_000), t=2)
    one, two = Consumer(world, "one", "t"), Consumer(world, "two", "t")
    one.beat()
    two.beat()
    world.send(one.request())
    world.pass_time(59)
    assert "one" in world.group.members
    world.pass_time(1)
    assert "one" not in world.group.members
    two.beat()
    assert two.numbers == [0, 1]
    assert one.beat() == ErrorCode.UNKNOWN_MEMBER_ID
    settle(one, two)
    assert len(one.owned) == len(two.owned) == 1


def test_a_silent_member_is_removed() -> None:
    """After the session time-out; each heartbeat begins another session."""
    world = World(t=2)
    one, two = Consumer(world, "one", "t"), Consumer(world, "two", "t")
    settle(one, two)
    world.pass_time(40)
    one.beat()
    world.pass_time(5)
    assert [*world.group.members] == ["one"]
    one.beat()
    assert one.numbers == [0, 1]


def test_epochs_decide_who_is_heard() -> None:
    """A newer epoch than the member's is fenced, and an older one, unless it is the one before and
    the member owns no more than it was given: then the answer was lost."""
    world = World(t=4)
    one, two = Consumer(world, "one", "t"), Consumer(world, "two", "t")
    settle(one, two)
    fenced = ErrorCode.FENCED_MEMBER_EPOCH
    assert answered(world.send(one.request(one.epoch + 1))).error == fenced
    before = one.epoch
    world.topics = topics_of(t=6)
    lost = answered(world.send(one.request()))
    assert lost.member_epoch > before
    again = answered(world.send(one.request()))
    assert (again.error, again.member_epoch) == (0, lost.member_epoch)
    assert again.assignment is not None
    foreign = owned_of(one.owned | two.owned)
    assert answered(world.send(replace(one.request(), owned=foreign))).error == fenced
    assert answered(world.send(replace(one.request(), owned=None))).error == fenced
    assert answered(world.send(one.request(before - 1))).error == fenced
    stranger = Consumer(world, "stranger", "t")
    error = answered(world.send(stranger.request(before))).error
    assert error == ErrorCode.UNKNOWN_MEMBER_ID


def test_who_may_commit() -> None:
    """A member in its epoch; an administrator while the group is empty."""
    world = World(t=2)
    assert world.group.check_commit("", -1) == ErrorCode.NONE
    one = Consumer(world, "one", "t")
    one.beat()
    assert world.group.check_commit("one", one.epoch) == ErrorCode.NONE
    assert world.group.check_commit("one", one.epoch - 1) == ErrorCode.STALE_MEMBER_EPOCH
    assert world.group.check_commit("one", one.epoch + 1) == ErrorCode.STALE_MEMBER_EPOCH
    assert world.group.check_commit("two", one.epoch) == ErrorCode.UNKNOWN_MEMBER_ID
    assert world.group.check_commit("", -1) == ErrorCode.UNKNOWN_MEMBER_ID


def test_a_static_member_keeps_its_partitions_over_a_restart() -> None:
    """It leaves with epoch -2 and comes back with another id; nobody else moves. A second one of
    its instance id is refused before that, and the former id is fenced after it."""
    world = World(t=4)
    one = Consumer(world, "one", "t", instance_id="i")
    two = Consumer(world, "two", "t")
    settle(one, two)
    had, epoch = one.owned, two.epoch
    again = Consumer(world, "again", "t", instance_id="i")
    assert again.beat() == ErrorCode.UNRELEASED_INSTANCE_ID
    assert one.leave(-2) == ErrorCode.NONE
    two.beat()
    assert again.beat() == ErrorCode.NONE
    assert again.owned == had
    settle(again, two)
    assert (again.owned, two.epoch) == (had, epoch)
    assert answered(world.send(one.request(epoch))).error == ErrorCode.FENCED_INSTANCE_ID
    assert one.leave() == ErrorCode.FENCED_INSTANCE_ID
    assert again.leave(-2) == ErrorCode.NONE
    world.pass_time(44)
    two.beat()
    world.pass_time(1)
    two.beat()
    assert two.numbers == [0, 1, 2, 3]


def test_a_member_that_leaves_gives_all_up() -> None:
    """At once; the last one leaves an empty group, which may be deleted."""
    world = World(t=2)
    one, two = Consumer(world, "one", "t"), Consumer(world, "two", "t")
    settle(one, two)
    assert world.group.delete(world.now) == ErrorCode.NON_EMPTY_GROUP
    assert one.leave() == ErrorCode.NONE
    assert one.leave() == ErrorCode.UNKNOWN_MEMBER_ID
    two.beat()
    assert two.numbers == [0, 1]
    two.leave()
    assert world.group.state is ConsumerGroupState.EMPTY
    assert world.group.delete(world.now) == ErrorCode.NONE
    assert two.beat() == ErrorCode.COORDINATOR_NOT_AVAILABLE


def test_changes_of_topics_raise_the_epoch() -> None:
    """More partitions, a topic created or deleted, or created again with another id."""
    world = World(t=2)
    one = Consumer(world, "one", "t", "u")
    one.beat()
    epochs = [one.epoch]
    for topics in (topics_of(t=3), topics_of(t=3, u=1), topics_of(u=1), {"u": topic("u", 1, 7)}):
        world.topics = topics
        settle(one)
        epochs.append(one.epoch)
        assert one.owned == {
            (each.id, number) for each in topics.values() for number in range(len(each.partitions))
        }
    assert epochs == sorted(set(epochs))
    world.topics = {**world.topics, "other": topic("other", 9)}
    one.beat()
    assert one.epoch == epochs[-1]


def test_a_pattern_subscribes_to_topics_to_come() -> None:
    """Whole names match; the topic of offsets never does."""
    world = World(**{"a.x": 1, "b": 1, "__consumer_offsets": 1})
    one = Consumer(world, "one", pattern=".*x|__.*")
    settle(one)
    assert len(one.owned) == 1
    world.topics = topics_of(**{"a.x": 1, "b.x": 1, "b": 1, "__consumer_offsets": 1})
    settle(one)
    assert len(one.owned) == 2
    one.pattern = "("
    assert one.beat() == ErrorCode.INVALID_REGULAR_EXPRESSION
    assert world.group.members["one"].pattern == ".*x|__.*"


def test_most_members_choose_the_assignor() -> None:
    """Of those that the broker has; the first of these is the default."""
    world = World(t=4, u=4)
    one = Consumer(world, "one", "t", "u", assignor="range")
    two = Consumer(world, "two", "t", "u", assignor="range")
    settle(one, two)
    assert one.numbers == [0, 0, 1, 1]
    assert world.group.describe({}).assignor == "range"
    other = Consumer(world, "other", "t", assignor="sticky")
    assert other.beat() == ErrorCode.UNSUPPORTED_ASSIGNOR


@pytest.mark.parametrize(
    "wrong",
    [
        {"member_id": ""},
        {"member_id": "x" * 256},
        {"instance_id": ""},
        {"rack_id": ""},
        {"member_epoch": -3},
        {"member_epoch": -2},
        {"rebalance_timeout_ms": -1},
        {"owned": None},
        {"owned": (TopicIdPartitions(bytes(16), (0,)),)},
        {"topics": None},
        {"topics": ("",)},
        {"topics": ("t",) * 5001},
        {"member_epoch": 1, "owned": (TopicIdPartitions(bytes(16), (0,) * 10_001),)},
    ],
)
def test_a_request_that_cannot_be_is_refused(wrong: dict[str, object]) -> None:
    """It changes nothing."""
    world = World(t=1)
    request = replace(Consumer(world, "one", "t").request(), is_member_id_made=False)
    changed: Any = replace(request, **wrong)  # type: ignore[arg-type]
    assert answered(world.send(changed)).error == ErrorCode.INVALID_REQUEST
    assert not world.group.members


def test_a_group_takes_so_many_members() -> None:
    """GROUP_MAX_SIZE_REACHED for the next one."""
    world = World(ConsumerLimits(size_max=1), t=1)
    one, two = Consumer(world, "one", "t"), Consumer(world, "two", "t")
    settle(one)
    assert two.beat() == ErrorCode.GROUP_MAX_SIZE_REACHED
    assert one.beat() == ErrorCode.NONE


def test_an_answer_waits_until_what_it_says_is_committed() -> None:
    """Also one that changes nothing itself, after one that did."""
    world = World(t=2)
    world.log.is_slow = True
    one = Consumer(world, "one", "t")
    first = world.send(one.request())
    assert isinstance(first, Ticket)
    second = world.send(one.request())
    assert isinstance(second, Ticket)
    world.log.commit(world.now, 1)
    assert first.answer is None
    world.log.commit(world.now)
    assert first.answer is not None
    assert second.answer is not None
    assert second.answer.assignment == first.answer.assignment
    world.group.close(ErrorCode.NOT_COORDINATOR, world.now)
    assert one.beat() == ErrorCode.NOT_COORDINATOR


def test_a_refused_write_is_taken_back() -> None:
    """The group is as it was before; a member that was to be removed is tried again later."""
    world = World(t=2)
    one, two = Consumer(world, "one", "t"), Consumer(world, "two", "t")
    settle(one)
    world.log.refuses = ErrorCode.COORDINATOR_NOT_AVAILABLE
    assert two.beat() in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.COORDINATOR_NOT_AVAILABLE)
    assert [*world.group.members] == ["one"]
    world.pass_time(45)
    assert [*world.group.members] == ["one"]
    assert world.group.deadline == world.now + 1
    world.log.refuses = ErrorCode.NONE
    world.pass_time(1)
    assert not world.group.members
    assert world.group.state == ConsumerGroupState.EMPTY


def test_members_that_change_during_a_review_end_it() -> None:
    """The next heartbeat makes the target assignment; meanwhile others go on with the former."""
    world = World(t=2, big=1500)
    one, two = Consumer(world, "one", "t", "big"), Consumer(world, "two", "t")
    world.group.receive(one.request(), CLIENT, "one", 0)
    world.log.follow_up(0)
    review = world.group.review(world.topics)
    next(review)
    assert not world.group.needs_review(world.topics)
    assert two.beat() == ErrorCode.NONE
    assert two.numbers == []
    without_pause(review)
    assert world.group.pop_writes() == ()
    settle(one, two)
    assert len(one.owned) + len(two.owned) == 1502


def test_a_new_coordinator_continues() -> None:
    """With all epochs and assignments, a whole session for each member, and the time to revoke."""
    world = World(t=4)
    one, two = Consumer(world, "one", "t"), Consumer(world, "two", "t", instance_id="i")
    settle(one, two)
    epochs = one.epoch, two.epoch
    world.fail_over()
    assert world.group.state is ConsumerGroupState.STABLE
    settle(one, two)
    assert (one.epoch, two.epoch) == epochs
    three = Consumer(world, "three", "t")
    three.beat()
    world.send(one.request())
    world.fail_over()
    world.pass_time(44)
    two.beat()
    assert [*world.group.members] == ["one", "two", "three"]
    world.pass_time(1)
    assert [*world.group.members] == ["two"]


class RandomRun:
    """Members, topics and coordinators that change at random."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.world = World(t=4, u=3)
        self.consumers: list[Consumer] = []
        self.count = 0
        self.waiting: list[tuple[Consumer, Ticket[ConsumerGroupHeartbeatResponse]]] = []

    def step(self) -> None:
        """Do one thing, and hand over the answers that are ready."""
        rng, world = self.rng, self.world
        match rng.randrange(10):
            case 0 if len(self.consumers) < 5:
                self.consumers.append(self.fresh())
            case 1 if self.consumers:
                gone = self.consumers.pop(rng.randrange(len(self.consumers)))
                if rng.random() < 0.5:
                    world.send(gone.request(-1))
            case 2:
                world.fail_over()
                self.waiting.clear()
            case 3:
                world.topics = topics_of(t=rng.randrange(1, 7), u=3)
            case 4:
                world.pass_time(rng.choice([1, 10, 46]))
            case 5:
                world.log.is_slow = rng.random() < 0.5
                world.log.commit(world.now)
            case 6:
                refused = ErrorCode.COORDINATOR_NOT_AVAILABLE
                world.log.refuses = rng.choice([refused, ErrorCode.NONE, ErrorCode.NONE])
            case _ if self.consumers:
                self.beat(rng.choice(self.consumers))
        for consumer, ticket in self.waiting[:]:
            if ticket.answer is not None:
                self.waiting.remove((consumer, ticket))
                self.take(consumer, ticket.answer)

    def fresh(self) -> Consumer:
        """Return a new member."""
        self.count += 1
        return Consumer(
            self.world,
            f"m{self.count}",
            *self.rng.sample(["t", "u"], self.rng.randrange(1, 3)),
            pattern=self.rng.choice(["[tu]", None, None]),
            assignor=self.rng.choice([None, "range", "uniform"]),
        )

    def beat(self, consumer: Consumer) -> None:
        """Send a heartbeat; some answers are lost."""
        answer = self.world.send(consumer.request())
        if isinstance(answer, Ticket):
            self.waiting.append((consumer, answer))
        elif self.rng.random() < 0.8:
            self.take(consumer, answer)

    def take(self, consumer: Consumer, answer: ConsumerGroupHeartbeatResponse) -> None:
        """Have a member obey an answer."""
        if consumer in self.consumers:
            assert answer.error or not consumer.epoch or answer.member_epoch >= consumer.epoch
            consumer.obey(answer)

    def check(self) -> None:
        """Check that no partition has two owners."""
        members = self.world.group.members
        alive = [each for each in self.consumers if each.member_id in members]
        owned = [partition for each in alive for partition in each.owned]
        assert len(owned) == len({*owned})


@pytest.mark.parametrize("seed", range(150))
def test_no_partition_has_two_owners(seed: int) -> None:
    """Whatever members, topics and coordinators do: what members own by their last answers never
    overlaps, their epochs never fall, and in the end each partition has an owner."""
    run = RandomRun(seed)
    for _ in range(120):
        run.step()
        run.check()
    world = run.world
    world.log.refuses, world.log.is_slow = ErrorCode.NONE, False
    world.log.commit(world.now)
    consumers = [*run.consumers, Consumer(world, "last", "t", "u")]
    for _ in range(8):
        world.pass_time(10)
        settle(*consumers)
    wanted = {(each.id, n) for each in world.topics.values() for n in range(len(each.partitions))}
    assert {partition for each in consumers for partition in each.owned} == wanted
    assert world.group.state is ConsumerGroupState.STABLE
