"""Fetchers over a simulated network: what they copy, and when they wait."""

import itertools

import pytest
import trio

from minibroker.broker.config import load
from minibroker.broker.replication.descriptions import describe
from minibroker.broker.replication.events import LINES_MAX
from minibroker.broker.replication.fetch_thread import connect_by_thread
from minibroker.client.net.channel import ChannelOptions
from minibroker.client.net.network import TcpNetwork
from minibroker.protocol.constants import ApiKey, ErrorCode
from minibroker.protocol.types import Endpoint, TopicPartition
from tests.support.leaders import LogLeader, leading
from tests.unit.log.workbench import Bench
from tests.unit.replication.copying import (
    EPOCH,
    LONG_POLL_S,
    ROUND_TRIPS_S,
    A,
    B,
    Broker,
    cluster,
    fetcher_threads_left,
    is_same,
    settle,
)


async def test_a_log_is_copied_byte_for_byte(autojump_clock):
    """What was there, and what comes while the follower waits for it (FOL-01, FOL-02)."""
    async with cluster(A, B) as (leader, broker):
        for step in range(300):
            leader.logs[A].append(3, epoch=step // 100, value=bytes(2000))
        partition = broker.follow(A)
        broker.follow(B)
        await settle()
        assert is_same(leader, broker, A)
        assert (partition.high_watermark, partition.log.log_end) == (900, 900)
        leader.logs[A].append(2, epoch=EPOCH)
        leader.logs[B].append(epoch=EPOCH)
        await trio.sleep(ROUND_TRIPS_S)
        assert is_same(leader, broker, A)
        assert is_same(leader, broker, B)
        assert partition.log.epochs.entries == ((0, 0), (1, 300), (2, 600), (EPOCH, 900))
        assert set(broker.written[-2:]) == {A, B}
        assert leader.connection_count == 1


async def test_the_high_watermark_comes_without_records(autojump_clock):
    """An empty answer of the session carries it (FOL-02)."""
    async with cluster(A) as (leader, broker):
        leader.logs[A].append(3, epoch=EPOCH)
        leader.high_watermarks[A] = 0
        partition = broker.follow(A)
        await settle()
        assert (partition.log.log_end, partition.high_watermark) == (3, 0)
        leader.high_watermarks[A] = 2
        await trio.sleep(LONG_POLL_S + ROUND_TRIPS_S)
        assert partition.high_watermark == 2


@pytest.mark.parametrize("has_sessions", [True, False])
async def test_a_backlog_starves_nobody(autojump_clock, has_sessions):
    """A partition that got records goes last, however much it still has (FET-11)."""
    async with cluster(
        A, B, replica_fetch_response_max_bytes="10000", replica_fetch_max_bytes="10000"
    ) as (leader, broker):
        leader.has_sessions = has_sessions
        for _ in range(200):
            leader.logs[A].append(value=bytes(9000))
        broker.follow(A)
        broker.follow(B)
        await trio.sleep(0.05)
        leader.logs[B].append(epoch=EPOCH, value=bytes(9000))
        await trio.sleep(ROUND_TRIPS_S)
        assert broker.partitions[B].log.log_end == 1
        assert 1 < broker.partitions[A].log.log_end < 100


async def test_logs_that_parted_come_together(autojump_clock):
    """What the leader lacks is cut by epochs, then its records are copied (FOL-05, A11)."""
    async with cluster(A) as (leader, broker):
        partition = broker.hold(A)
        for epoch in (0, 0, 1, 1, 2):
            broker.benches[A].append(epoch=epoch, value=b"ours")
        for batch in broker.benches[A].headers()[:3]:
            leader.logs[A].append(epoch=batch.leader_epoch, value=b"ours")
        leader.logs[A].append(4, epoch=EPOCH, value=b"theirs")
        broker.follow(A)
        await settle()
        assert is_same(leader, broker, A)
        assert partition.log.epochs.entries == leader.logs[A].log.epochs.entries


async def test_a_leader_that_starts_behind_the_follower(autojump_clock):
    """Everything is dropped, and copied from the leader's start on (FOL-13)."""
    async with cluster(A) as (leader, broker):
        partition = broker.hold(A)
        broker.benches[A].append(2)
        leader.logs[A].log.restart_at(7, 0)
        leader.logs[A].append(3, epoch=EPOCH)
        broker.follow(A)
        await settle()
        assert is_same(leader, broker, A)
        assert (partition.log.log_start, partition.high_watermark) == (7, 10)


async def test_a_failed_partition_does_not_concern_the_others(autojump_clock):
    """It stays as it is until its next role, which is served at once (FOL-11, FOL-15)."""
    async with cluster(A, B) as (leader, broker):
        partition = broker.hold(A)
        broker.benches[A].append(5)
        partition.role.high_watermark = 5
        leader.logs[A].append(3)
        leader.logs[A].append(epoch=EPOCH)
        broker.follow(A)
        broker.follow(B)
        leader.logs[B].append(epoch=EPOCH)
        await settle()
        assert "committed below 5" in partition.role.failure
        assert partition.log.log_end == 5
        assert is_same(leader, broker, B)
        asked = [request.message for request in leader.requests[-2:]]
        assert not any(
            each.topic == "t" and each.partition == 0 for m in asked for each in m.partitions
        )
        leader.logs[A].append(5)
        leader.leader_epoch += 1
        broker.follow(A, epochs=(EPOCH + 1, 1))
        await trio.sleep(ROUND_TRIPS_S)
        assert partition.high_watermark == 5


async def test_an_error_delays_its_partition_alone(autojump_clock):
    """20 ms, then twice as long each time, up to the limit; the others go on (FOL-12)."""
    async with cluster(A, B, replica_fetch_backoff_ms="160") as (leader, broker):
        leader.errors[A] = ErrorCode.UNKNOWN_LEADER_EPOCH
        broker.follow(A)
        broker.follow(B)
        await trio.sleep(1.0)
        # After 0, 20, 60, 140, 300, 460, 620, 780, 940 ms, and round trips.
        asked = [request.message for request in leader.requests]
        tries = sum(each.partition == 0 for message in asked for each in message.partitions)
        assert 7 <= tries <= 9
        leader.logs[B].append(epoch=EPOCH)
        await trio.sleep(ROUND_TRIPS_S)
        assert is_same(leader, broker, B)
        leader.logs[A].append(epoch=EPOCH)
        del leader.errors[A]
        await trio.sleep(0.16 + ROUND_TRIPS_S)
        assert is_same(leader, broker, A)


async def test_a_failover_of_many_partitions_takes_few_lines(autojump_clock, caplog):
    """Their new leader has not taken its roles yet: that passes, and is to be expected."""
    caplog.set_level("INFO")
    names = [TopicPartition("t", number) for number in range(LINES_MAX + 30)]
    async with cluster(*names) as (leader, broker):
        for name in names:
            leader.errors[name] = ErrorCode.NOT_LEADER_OR_FOLLOWER
            broker.follow(name)
        await settle()
    lines = [each.getMessage() for each in caplog.records]
    delays = [line for line in lines if "copying from broker 1 is delayed" in line]
    assert len(delays) == LINES_MAX
    assert any("(and 30 more like these)" in line for line in lines)


async def test_a_corrupt_batch_delays_its_partition_alone(autojump_clock, caplog):
    """The rest of the same answer is applied, and it is fetched again (FOL-14). Who asks how the
    replica does is told why it does not go on."""
    async with cluster(A, B) as (leader, broker):
        for name in (A, B):
            leader.logs[name].append(epoch=EPOCH, value=bytes(100))
        rotten = leader.logs[A]
        rotten.files.flip(rotten.path(0), 100)
        broker.follow(A)
        broker.follow(B)
        await trio.sleep(ROUND_TRIPS_S)
        assert is_same(leader, broker, B)
        assert broker.partitions[A].log.log_end == 0
        [warning] = [each.getMessage() for each in caplog.records if each.levelname == "WARNING"]
        assert "t-0: copying from broker 1 is delayed" in warning
        assert "checksum" in warning
        assert "checksum" in describe(broker.partitions[A], 2, 0.0).reason
        assert describe(broker.partitions[B], 2, 0.0).reason == ""
        rotten.files.flip(rotten.path(0), 100)
        await settle()
        assert describe(broker.partitions[A], 2, 0.0).reason == ""
        assert is_same(leader, broker, A)


async def test_a_lost_connection_loses_no_partition(autojump_clock):
    """All wait for the same while, then all go on (FOL-16)."""
    async with cluster(A, B) as (leader, broker):
        broker.follow(A)
        broker.follow(B)
        await trio.sleep(LONG_POLL_S / 4)
        broker.network.cut("broker-1", "broker-2")
        for name in (A, B):
            leader.logs[name].append(epoch=EPOCH)
        before = broker.connect_count
        await trio.sleep(3)
        assert broker.written == []
        # After 0, 20, 60, 140, 300, 620, 1260, 2260 ms, and the time that it takes to fail.
        assert 7 <= broker.connect_count - before <= 8
        broker.network.mend("broker-1", "broker-2")
        await trio.sleep(1 + ROUND_TRIPS_S)
        assert is_same(leader, broker, A)
        assert is_same(leader, broker, B)


async def test_statistics_count_bytes_and_lag(autojump_clock):
    """Bytes a second in the last few seconds, and committed records that are missing here."""
    async with cluster(A) as (leader, broker):
        broker.follow(A)
        for _ in range(80):
            leader.logs[A].append(epoch=EPOCH, value=bytes(25_000 - 70))
            await trio.sleep(0.25)
        (one,) = broker.fetchers.statistics()
        assert one.bytes == leader.logs[A].log.size
        assert one.bytes_per_s == pytest.approx(100_000, rel=0.1)
        assert one.lags == {A: 0}
        leader.high_watermarks[A] = 130
        await trio.sleep(LONG_POLL_S + ROUND_TRIPS_S)
        (one,) = broker.fetchers.statistics()
        assert one.lags == {A: 50}


@pytest.mark.parametrize("is_alone", [True, False])
async def test_a_fetch_offset_is_durable_when_it_must_be(autojump_clock, is_alone):
    """With `flush=always` a partition is left out while its fsync is pending (N1)."""
    async with cluster(A, B) as (leader, broker):
        partition = broker.hold(A, {"flush": "always"})
        broker.follow(A)
        if not is_alone:
            broker.follow(B)
        for step in range(1, 6):
            leader.logs[A].append(epoch=EPOCH)
            leader.logs[B].append(epoch=EPOCH)
            await trio.sleep(0.2)
            assert (partition.log.log_end, leader.positions[A]) == (step, step - 1)
            assert is_alone or leader.positions[B] == step
            broker.benches[A].flush()
            broker.fetchers.on_flushed(partition)
            await trio.sleep(ROUND_TRIPS_S)
            assert leader.positions[A] == step


async def test_a_leader_hears_of_a_follower_whose_disk_hangs(autojump_clock):
    """It asks for nothing, several times within the fence time-out, and goes on where it was."""
    async with cluster(A) as (leader, broker):
        partition = broker.hold(A, {"flush": "always"})
        broker.follow(A)
        leader.logs[A].append(epoch=EPOCH)
        began = trio.current_time()
        await trio.sleep(10)
        moments = [began, *leader.keepalives, trio.current_time()]
        gaps = [later - sooner for sooner, later in itertools.pairwise(moments)]
        assert max(gaps) <= broker.config.follower_silence_s / 2
        assert len(leader.keepalives) < 40
        broker.benches[A].flush()
        broker.fetchers.on_flushed(partition)
        await trio.sleep(ROUND_TRIPS_S)
        assert leader.positions[A] == 1


async def test_a_partition_that_need_not_be_durable_any_more(autojump_clock):
    """Its setting changed while it waited for a fsync that never comes (N1)."""
    async with cluster(A) as (leader, broker):
        partition = broker.hold(A, {"flush": "always"})
        broker.follow(A)
        leader.logs[A].append(epoch=EPOCH)
        await settle()
        partition.settings = broker.config.for_topic({"flush": "never"})
        leader.logs[A].append(epoch=EPOCH)
        await settle()
        assert is_same(leader, broker, A)


async def test_a_sync_that_is_quick_costs_no_request(autojump_clock):
    """The others wait for it for a moment, so that nobody leaves the session for it (N1)."""
    async with cluster(A, B) as (leader, broker):
        partition = broker.hold(A, {"flush": "always"})
        broker.follow(A)
        broker.follow(B)
        await trio.sleep(LONG_POLL_S / 4)
        leader.logs[A].append(epoch=EPOCH)
        await broker.has_written()
        before = len(leader.requests)
        await trio.sleep(0.005)
        broker.benches[A].flush()
        broker.fetchers.on_flushed(partition)
        await trio.sleep(ROUND_TRIPS_S)
        assert [request.message.forgotten for request in leader.requests[before:]] == [()]


async def test_requests_name_the_follower(autojump_clock):
    """Who it is, in which registration, and how far it has the log (A1, A3)."""
    async with cluster(A) as (leader, broker):
        broker.hold(A)
        broker.benches[A].append(2)
        leader.logs[A].append(2)
        broker.follow(A)
        await settle()
        first = leader.requests[0]
        assert first.api_key == ApiKey.FETCH
        assert (first.message.replica_id, first.message.broker_epoch) == (2, 77)
        (asked,) = first.message.partitions
        assert (asked.fetch_offset, asked.last_fetched_epoch, asked.log_start) == (2, 0, 0)
        assert asked.leader_epoch == EPOCH
        assert all(not request.message.partitions for request in leader.requests[1:])


async def test_an_error_of_the_own_disk_ends_the_broker(autojump_clock):
    """It comes out of `run`, and is not taken for one of the connection."""
    with pytest.RaisesGroup(
        pytest.RaisesExc(OSError, match="Input/output"), flatten_subgroups=True
    ):
        async with cluster(A) as (leader, broker):
            broker.hold(A)
            broker.benches[A].files.fail("append")
            leader.logs[A].append(epoch=EPOCH)
            broker.follow(A)
            await settle()


async def test_a_thread_copies_as_a_task_does():
    """Over real sockets, and it has ended when the fetchers have."""
    network, endpoint = TcpNetwork(), Endpoint("127.0.0.1", 0)
    leader = LogLeader(network, endpoint, EPOCH)
    leader.logs = {name: Bench(name) for name in (A, B)}
    for step in range(50):
        leader.logs[A].append(3, epoch=step // 20, value=bytes(20_000))
    config = load(flags={"node.id": "2"}).config
    broker = Broker(config, connect_by_thread(ChannelOptions()))
    async with leading(leader), trio.open_nursery() as nursery:
        nursery.start_soon(broker.fetchers.run, broker)
        broker.fetchers.set_endpoints({1: leader.endpoint})
        broker.follow(A)
        while broker.partitions[A].log.log_end < 150:
            await broker.has_written()
        broker.follow(B)
        leader.logs[B].append(epoch=EPOCH)
        while broker.partitions[B].log.log_end < 1:
            await broker.has_written()
        assert is_same(leader, broker, A)
        assert is_same(leader, broker, B)
        broker.fetchers.unassign(B)
        nursery.cancel_scope.cancel()
    assert not fetcher_threads_left()
