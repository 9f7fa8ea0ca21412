"""What a fetcher asks next: sessions, order, back-off, and which answers still count."""

import math

import pytest

from minibroker.broker.config import load
from minibroker.broker.replication.fetch_plan import (
    NEWS_MAX,
    Assignment,
    FetchLimits,
    FetchPlan,
    RetryDelay,
)
from minibroker.broker.replication.partition import Partition
from minibroker.broker.replication.quotas import ReplicationQuota
from minibroker.broker.replication.roles import LocalBroker
from minibroker.protocol.messages.fetch import FetchRequest, FetchResponse, PartitionFetched
from minibroker.protocol.types import TopicPartition
from tests.unit.log.workbench import Bench
from tests.unit.replication.copying import EPOCH, state_of

CONFIG = load(flags={"node.id": "2"}).config
A, B, C = (TopicPartition("t", number) for number in range(3))


class Desk:
    """A plan, and the partitions that it is about."""

    def __init__(self, *names: TopicPartition) -> None:
        self.quota = ReplicationQuota()
        self.plan = FetchPlan(FetchLimits.of(CONFIG))
        self.benches: dict[TopicPartition, Bench] = {}
        self.partitions: dict[TopicPartition, Partition] = {}
        for name in names:
            self.add(name)

    def add(self, name: TopicPartition, **overrides: str) -> None:
        """One more partition that follows."""
        bench = self.benches[name] = Bench(name)
        local_broker = LocalBroker(2, 30.0, lambda _: None)
        partition = Partition(local_broker, bench.log, CONFIG.for_topic(overrides))
        partition.become_follower(state_of(name))
        self.partitions[name] = partition
        self.plan.add(partition, partition.role)

    def next(self, now: float = 0.0, *, are_starts_durable: bool = True) -> FetchRequest:
        """The next request."""
        request = self.plan.next(now, 77, are_starts_durable=are_starts_durable)
        assert request is not None
        return request

    def answered(self, *names: TopicPartition, session_id: int = 9) -> None:
        """The request was answered, with something about these."""
        self.plan.on_response(FetchResponse(0, session_id))
        for name in names:
            assert self.plan.complete(PartitionFetched(*name)) is not None

    def assignment(self, name: TopicPartition):
        """The plan's own view of a partition."""
        return next(each for each in self.plan if each.partition.topic_partition == name)


def names(request: FetchRequest) -> list[int]:
    """The partitions that a request says something about."""
    return [each.partition for each in request.partitions]


def test_a_session_says_only_what_changed():
    """First everything, then what moved, then nothing; the epochs count up."""
    desk = Desk(A, B)
    first = desk.next()
    assert (first.session_epoch, names(first)) == (0, [0, 1])
    desk.answered(B)
    desk.benches[B].append(3, epoch=EPOCH)
    second = desk.next()
    assert (second.session_id, second.session_epoch, names(second)) == (9, 1, [1])
    (asked,) = second.partitions
    assert (asked.fetch_offset, asked.last_fetched_epoch) == (3, EPOCH)
    desk.answered()
    third = desk.next()
    assert (third.session_epoch, third.partitions, third.forgotten) == (2, (), ())


def test_a_log_start_that_moved_is_told():
    """With the next request after an answer: the leader keeps it (A1)."""
    desk = Desk(A)
    desk.benches[A].append(3)
    desk.next()
    desk.answered(A)
    desk.partitions[A].log.raise_start(2)
    (asked,) = desk.next().partitions
    assert asked.log_start == 2


def test_the_session_ends_with_the_connection():
    """The next request names the old one and says everything anew."""
    desk = Desk(A, B)
    desk.next()
    desk.answered()
    desk.plan.end_session()
    request = desk.next()
    assert (request.session_id, request.session_epoch, names(request)) == (9, 0, [0, 1])


def test_a_leader_without_a_free_session():
    """Then every request is a full one."""
    desk = Desk(A)
    for _ in range(3):
        request = desk.next()
        assert (request.session_id, request.session_epoch, names(request)) == (0, 0, [0])
        desk.answered(A, session_id=0)


def test_what_is_not_asked_any_more_is_forgotten():
    """Taken away, backed off, failed, or its role has ended; and a new assignment is said anew."""
    desk = Desk(A, B, C)
    desk.next()
    desk.answered(A, B)
    desk.plan.remove(A)
    desk.assignment(B).backoff.fail(0.0)
    request = desk.next()
    assert (request.partitions, request.forgotten) == ((), (A, B))
    desk.answered(C)
    desk.plan.add(desk.partitions[A], desk.partitions[A].role)
    desk.partitions[C].role.failure = "it broke a rule"
    request = desk.next(now=1.0)
    assert (names(request), request.forgotten) == ([0, 1], (C,))
    desk.answered(A)
    desk.partitions[A].become_follower(state_of(A, epochs=(EPOCH + 1, 0)))
    request = desk.next(now=1.0)
    assert (request.partitions, request.forgotten) == ((), (A,))


def test_what_is_to_be_forgotten_is_told_when_something_is_asked():
    """Not before; of what is asked for again by then, too, for it has to be told anew."""
    desk = Desk(A, B)
    desk.next()
    desk.answered()
    for name in (A, B):
        desk.plan.remove(name)
    assert desk.plan.next(0.0, 77, are_starts_durable=True) is None
    desk.plan.add(desk.partitions[A], desk.partitions[A].role)
    request = desk.next()
    assert (names(request), request.forgotten) == ([0], (A, B))


def test_an_assignment_renewed_between_two_requests_is_said_anew():
    """The session may know another leader epoch of it, and have told what was not taken."""
    desk = Desk(A)
    desk.next()
    desk.answered()
    desk.partitions[A].become_follower(state_of(A, epochs=(EPOCH + 1, 0)))
    desk.plan.add(desk.partitions[A], desk.partitions[A].role)
    request = desk.next()
    assert [each.leader_epoch for each in request.partitions] == [EPOCH + 1]
    assert request.forgotten == (A,)


def test_what_was_backed_off_is_told_anew():
    """Its last answer was not taken. The leader forgets what it told, even where there was no
    request in between."""
    desk = Desk(A)
    desk.next()
    desk.answered(A)
    desk.assignment(A).backoff.fail(0.0)
    assert desk.plan.next(0.0, 77, are_starts_durable=True) is None
    request = desk.next(now=1.0)
    assert (names(request), request.forgotten) == ([0], (A,))


def test_nothing_to_ask_for():
    """All are backed off or have failed: when to try again is told."""
    desk = Desk(A, B)
    assert desk.plan.next_due(0.0) == math.inf
    desk.assignment(A).backoff.fail(0.0)
    desk.partitions[B].role.failure = "it broke a rule"
    desk.assignment(B).backoff.fail(0.0)
    assert desk.plan.next_due(0.0) == pytest.approx(0.02)
    assert desk.plan.next(0.0, 77, are_starts_durable=True) is None
    assert desk.plan.next_due(0.0) == pytest.approx(0.02)
    assert names(desk.next(now=0.02)) == [0]


def test_what_is_backed_off_costs_a_request_nothing(monkeypatch: pytest.MonkeyPatch):
    """Thousands of partitions may wait for their leaders while a few others are copied: each is
    looked at when it is backed off and when its time has come, not in every request."""
    many = [TopicPartition("t", number) for number in range(3, 503)]
    desk = Desk(A, *many)
    delays = {each.partition.topic_partition: each.backoff for each in desk.plan}
    for _ in range(3):
        asked = [TopicPartition(each.topic, each.partition) for each in desk.next().partitions]
        desk.answered(*asked)
        for name in asked:
            if name != A:
                delays[name].fail(0.0)
    looked: list[Assignment] = []
    is_open = Assignment.is_open.fget
    assert is_open is not None
    monkeypatch.setattr(
        Assignment, "is_open", property(lambda each: looked.append(each) or is_open(each))
    )
    for _ in range(50):
        assert desk.next(now=0.01).wait_ms_max == 10
        desk.answered(A)
    assert len(looked) < 700
    assert len(desk.next(now=0.02).partitions) == 200


def test_a_request_does_not_wait_longer_than_a_back_off():
    """Or one partition's error would cost it a whole long poll."""
    desk = Desk(A, B)
    assert desk.next().wait_ms_max == 500
    desk.answered(B)
    desk.assignment(B).backoff.fail(0.0)
    assert desk.next().wait_ms_max == 20
    desk.partitions[B].role.failure = "it broke a rule"
    assert desk.next().wait_ms_max == 500


def test_no_request_waits_longer_than_the_leader_may_hear_nothing():
    """Nor does a follower that has nothing to ask for let the leader hear nothing so long."""
    flags = {"node.id": "2", "replica.fetch.wait.max.ms": "5000", "broker.fence.timeout.ms": "2000"}
    desk = Desk()
    desk.plan = FetchPlan(FetchLimits.of(load(flags=flags).config))
    assert desk.plan.keepalive_at == -math.inf
    desk.add(A)
    assert desk.next(1.0).wait_ms_max == 500
    assert desk.plan.keepalive_at == 1.5
    assert desk.plan.keepalive(1.5, 77) == FetchRequest(2, 0, broker_epoch=77)
    assert desk.plan.keepalive_at == 2.0


def test_a_request_does_not_wait_while_a_sync_is_pending():
    """The partition is left out until it is durable (N1)."""
    desk = Desk(A)
    desk.add(B, flush="always")
    assert not desk.plan.is_syncing
    desk.benches[B].append()
    assert desk.plan.is_syncing
    request = desk.next()
    assert (names(request), request.wait_ms_max) == ([0], 0)
    desk.answered()
    desk.benches[B].flush()
    assert not desk.plan.is_syncing
    assert names(desk.next()) == [1]


def test_many_partitions_come_into_a_session_little_by_little():
    """A request that brings in as many as one may does not wait; the rest come with the next ones,
    each once."""
    many = [TopicPartition("t", number) for number in range(NEWS_MAX + 20)]
    desk = Desk(*many)
    first = desk.next()
    assert (len(first.partitions), first.wait_ms_max) == (NEWS_MAX, 0)
    desk.answered()
    second = desk.next()
    assert (len(second.partitions), second.wait_ms_max) == (20, 500)
    assert sorted(names(first) + names(second)) == [each.partition for each in many]


def test_a_leader_without_room_for_a_session_is_asked_for_all():
    """Or who comes last would never be asked for."""
    many = [TopicPartition("t", number) for number in range(NEWS_MAX + 20)]
    desk = Desk(*many)
    desk.next()
    desk.answered(session_id=0)
    assert len(desk.next().partitions) == NEWS_MAX + 20
    desk.answered(session_id=9)
    desk.plan.end_session()
    assert len(desk.next().partitions) == NEWS_MAX


def test_a_session_is_given_up_seldom_for_those_that_join():
    """The more it costs, the longer it stands; a small one at once."""
    assert Desk(A).plan.may_reopen_at(5.0) == pytest.approx(5.0, abs=0.005)
    many = [TopicPartition("t", number) for number in range(1000)]
    assert Desk(*many).plan.may_reopen_at(5.0) == pytest.approx(7.0)


def test_a_log_start_is_named_once_it_is_durable():
    """Until then the last one that was named stands for it, or none; then the leader is told though
    no answer came meanwhile."""
    desk = Desk(A, B)
    for name in (A, B):
        desk.benches[name].append(5)
    desk.next()
    desk.answered(A)
    desk.benches[A].log.raise_start(3)
    desk.benches[B].log.raise_start(4)
    desk.benches[A].append(1)
    (asked,) = desk.next(are_starts_durable=False).partitions
    assert (asked.fetch_offset, asked.log_start) == (6, 0)
    desk.answered()
    assert not desk.next(are_starts_durable=False).partitions
    desk.answered()
    desk.add(C)
    (asked,) = desk.next(are_starts_durable=False).partitions
    assert asked.log_start == -1
    desk.answered()
    told = {each.partition: each.log_start for each in desk.next().partitions}
    assert told == {0: 3, 2: 0}
    desk.answered()
    assert not desk.next().partitions


def test_who_got_records_comes_last():
    """In the next full request, as in the leader's session (FET-11)."""
    desk = Desk(A, B, C)
    desk.plan.put_last(desk.assignment(A))
    assert names(desk.next()) == [1, 2, 0]


def test_an_answer_counts_once_and_only_while_nothing_happened():
    """Not when it was not asked for, taken away, assigned anew, or in another role (FOL-04)."""
    desk = Desk(A, B)
    desk.benches[A].append(2)

    def offset(name: TopicPartition) -> int | None:
        asked = desk.plan.complete(PartitionFetched(*name))
        return asked and asked.offset

    desk.next()
    assert (offset(A), offset(A), offset(C)) == (2, None, None)
    desk.next()
    desk.plan.remove(A)
    assert offset(A) is None
    desk.plan.add(desk.partitions[A], desk.partitions[A].role)
    desk.next()
    desk.plan.add(desk.partitions[A], desk.partitions[A].role)
    assert offset(A) is None
    desk.next()
    desk.partitions[B].become_follower(state_of(B, epochs=(EPOCH + 1, 0)))
    assert (offset(A), offset(B)) == (2, None)


def test_a_back_off_doubles_and_starts_again():
    """20 ms to the limit; after a success 20 ms again (FOL-12)."""
    backoff = RetryDelay(0.1)
    waits = []
    for _ in range(5):
        backoff.fail(1.0)
        waits.append(backoff.due - 1.0)
    assert waits == pytest.approx([0.02, 0.04, 0.08, 0.1, 0.1])
    backoff.reset()
    assert backoff.due == -math.inf
    backoff.fail(1.0)
    assert backoff.due == pytest.approx(1.02)
    short = RetryDelay(0.005)
    short.fail(1.0)
    assert short.due == pytest.approx(1.005)


def throttled(*names: TopicPartition, limit: float = 100) -> Desk:
    """Partitions that are throttled and not in sync, and a quota with room."""
    desk = Desk()
    desk.quota = ReplicationQuota(limit)
    desk.plan = FetchPlan(FetchLimits.of(CONFIG), desk.quota)
    for name in names:
        desk.add(name, **{"follower.replication.throttled.replicas": "*"})
        desk.partitions[name].follower().isr = (1,)
    return desk


def test_throttled_partitions_are_left_out_while_the_quota_is_exceeded():
    """They are taken out of the session, answered or not, and come back when it has room."""
    desk = throttled(A, B)
    desk.add(C)
    assert names(desk.next()) == [0, 1, 2]
    desk.answered(A)
    desk.quota.record(1_000, 0.0)
    request = desk.next()
    assert sorted(name.partition for name in request.forgotten) == [0, 1]
    assert request.wait_ms_max <= 1_000
    desk.answered()
    assert names(desk.next(5.0)) == []
    desk.answered()
    assert sorted(names(desk.next(10.5))) == [0, 1]


def test_a_plan_of_throttled_partitions_alone_waits_and_does_not_spin():
    """There is nothing to ask for until the quota is looked at again."""
    desk = throttled(A)
    desk.quota.record(1_000, 0.0)
    assert desk.plan.next(0.0, 77, are_starts_durable=True) is None
    assert 0.0 < desk.plan.next_due(0.0) <= 1.0


@pytest.mark.parametrize("known", ["isr", "at end"])
def test_a_replica_that_keeps_up_is_not_left_out(known):
    """It is in sync as the controller says, or lacks no committed record."""
    desk = throttled(A)
    desk.quota.record(1_000, 0.0)
    role = desk.partitions[A].follower()
    if known == "isr":
        role.isr = (1, 2)
    else:
        role.leader_high_watermark = 0
    assert names(desk.next()) == [0]
