"""Which fetcher copies which partition, from where, and when it lets go of it."""

import trio

from minibroker.protocol.constants import ApiKey
from minibroker.protocol.types import Endpoint, TopicPartition
from tests.unit.replication.copying import (
    ENDPOINT,
    EPOCH,
    LONG_POLL_S,
    ROUND_TRIPS_S,
    A,
    B,
    cluster,
    is_same,
    settle,
    state_of,
)


async def test_a_new_assignment_ends_the_long_poll(autojump_clock):
    """It does not wait behind the partitions that have nothing new (A18).

    The session ends with it, for its answer is lost.
    """
    async with cluster(A, B) as (leader, broker):
        leader.logs[B].append(epoch=EPOCH)
        broker.follow(A)
        await trio.sleep(LONG_POLL_S * 1.25)
        broker.follow(B)
        await trio.sleep(ROUND_TRIPS_S)
        assert is_same(leader, broker, B)
        leader.logs[A].append(epoch=EPOCH)
        await trio.sleep(ROUND_TRIPS_S)
        assert is_same(leader, broker, A)


async def test_many_assignments_end_the_long_poll_now_and_then(autojump_clock):
    """A burst does not open the session anew for each of them; all are copied before long."""
    many = [TopicPartition("t", number) for number in range(100)]
    async with cluster(*many) as (leader, broker):
        for name in many:
            leader.logs[name].append(epoch=EPOCH)
            broker.follow(name)
            await trio.sleep(0.005)
        await trio.sleep(LONG_POLL_S)
        assert all(is_same(leader, broker, name) for name in many)
        assert leader.connection_count < 40


async def test_an_assignment_in_the_same_role_changes_nothing(autojump_clock):
    """A higher partition epoch leaves the fetch state and the long poll alone (A11, RM-03)."""
    async with cluster(A) as (leader, broker):
        broker.follow(A)
        await trio.sleep(LONG_POLL_S / 4)
        broker.follow(A, epochs=(EPOCH, 1))
        await settle()
        assert leader.connection_count == 1


async def test_nothing_is_appended_after_the_partition_was_taken_away(autojump_clock):
    """An answer that is under way does not count any more (RM-05, FOL-04)."""
    async with cluster(A, B) as (leader, broker):
        partition = broker.follow(A)
        broker.follow(B)
        await trio.sleep(LONG_POLL_S / 4)
        broker.network.hold("broker-1", "broker-2")
        leader.logs[A].append(epoch=EPOCH)
        leader.logs[B].append(epoch=EPOCH)
        await trio.sleep(ROUND_TRIPS_S)
        broker.fetchers.unassign(A)
        broker.network.release("broker-1", "broker-2")
        await settle()
        assert partition.log.log_end == 0
        assert is_same(leader, broker, B)


async def test_an_answer_to_an_older_role_does_not_count(autojump_clock):
    """Neither its records nor its high watermark reach the role that came after it (RM-05)."""
    async with cluster(A) as (leader, broker):
        partition = broker.follow(A)
        await trio.sleep(LONG_POLL_S / 4)
        broker.network.hold("broker-1", "broker-2")
        leader.logs[A].append(epoch=EPOCH)
        await trio.sleep(ROUND_TRIPS_S)
        partition.become_follower(state_of(A, epochs=(EPOCH + 1, 1)))
        broker.network.release("broker-1", "broker-2")
        await settle()
        assert (partition.log.log_end, partition.high_watermark) == (0, 0)
        leader.leader_epoch = EPOCH + 1
        broker.fetchers.assign(partition)
        await settle()
        assert is_same(leader, broker, A)


async def test_a_range_that_comes_too_late_cuts_nothing(autojump_clock):
    """The partition was taken away while its range was asked for (A21)."""
    async with cluster(A, B) as (leader, broker):
        partition = broker.hold(A)
        broker.benches[A].append(2)
        leader.logs[A].log.restart_at(7, 0)
        leader.before_offsets = lambda: broker.fetchers.unassign(A)
        broker.follow(A)
        broker.follow(B)
        await settle()
        assert ApiKey.LIST_OFFSETS in [request.api_key for request in leader.requests]
        assert (partition.log.log_start, partition.log.log_end) == (0, 2)


async def test_a_new_assignment_tries_a_lost_leader_at_once(autojump_clock):
    """The controller knows better than an old back-off."""
    async with cluster(A, B) as (leader, broker):
        broker.network.cut("broker-1", "broker-2")
        broker.follow(A)
        await trio.sleep(10.1)
        broker.network.mend("broker-1", "broker-2")
        leader.logs[B].append(epoch=EPOCH)
        broker.follow(B)
        await trio.sleep(ROUND_TRIPS_S)
        assert is_same(leader, broker, B)


async def test_a_leader_without_a_known_endpoint(autojump_clock):
    """Copying begins when it is told where the leader is, and follows it elsewhere (RM-09)."""
    async with cluster(A) as (leader, broker):
        broker.fetchers.set_endpoints({1: Endpoint("broker-1", 4)})
        partition = broker.follow(A, leader=3)
        leader.logs[A].append(epoch=EPOCH)
        await settle()
        assert partition.log.log_end == 0
        broker.fetchers.set_endpoints({3: Endpoint("broker-1", 5)})
        await settle()
        broker.fetchers.set_endpoints({3: ENDPOINT})
        await trio.sleep(ROUND_TRIPS_S)
        assert is_same(leader, broker, A)
        broker.fetchers.set_endpoints({3: ENDPOINT})
        await settle()
        assert leader.connection_count == 1
        broker.fetchers.set_endpoints({3: Endpoint("broker-1", 5)})
        await settle()
        assert leader.left.is_set()


async def test_a_partition_is_copied_from_one_leader(autojump_clock):
    """Its new role takes it away from the fetcher of the old one (A18)."""
    async with cluster(A) as (_, broker):
        broker.follow(A)
        broker.follow(A, leader=3, epochs=(EPOCH + 1, 1))
        await settle()
        assert [(each.leader, [*each.lags]) for each in broker.fetchers.statistics()] == [(3, [A])]


async def test_fetchers_end_when_they_have_nothing_to_copy(autojump_clock):
    """And come back when they have."""
    async with cluster(A, B) as (leader, broker):
        broker.follow(A)
        await trio.sleep(LONG_POLL_S / 4)
        assert [each.leader for each in broker.fetchers.statistics()] == [1]
        broker.fetchers.unassign(A)
        await trio.sleep(ROUND_TRIPS_S)
        assert broker.fetchers.statistics() == []
        await settle()
        assert leader.left.is_set()
        leader.logs[B].append(epoch=EPOCH)
        broker.follow(B)
        await trio.sleep(ROUND_TRIPS_S)
        assert is_same(leader, broker, B)


async def test_partitions_are_spread_over_fetchers(autojump_clock):
    """By a hash of their name that is the same in every run."""
    names = [TopicPartition("t", number) for number in range(24)]
    async with cluster(*names, num_replica_fetchers="3") as (leader, broker):
        for name in names:
            leader.logs[name].append(epoch=EPOCH)
            broker.follow(name)
        await settle()
        assert all(is_same(leader, broker, name) for name in names)
        statistics = broker.fetchers.statistics()
        assert sorted(each.fetcher_id for each in statistics) == [0, 1, 2]
        assert sum(len(each.lags) for each in statistics) == len(names)
        assert {each.fetcher_id: next(iter(each.lags)).partition for each in statistics} == {
            0: 3,
            1: 0,
            2: 1,
        }


async def test_an_assignment_while_the_fetchers_end_starts_nothing(autojump_clock):
    """A controller in the same broker may give roles until the broker has stopped."""
    for _ in range(30):  # which task runs first is up to trio, each time
        async with cluster(A) as (_, broker), trio.open_nursery() as nursery:
            broker.hold(A)
            nursery.start_soon(broker.fetchers.run, broker)
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
            await trio.lowlevel.cancel_shielded_checkpoint()
            broker.follow(A)
