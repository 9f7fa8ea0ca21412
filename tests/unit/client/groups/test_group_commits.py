"""What a group commits, and where its members begin, against the real broker on virtual time."""

import logging
import random
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any

import pytest
import trio
import trio.testing

from minibroker.client import (
    BrokerError,
    ClientClosed,
    ClientTimeout,
    CommitFailed,
    Consumer,
    OffsetAndMetadata,
    OffsetOutOfRange,
    TopicPartition,
)
from minibroker.protocol.constants import ErrorCode
from tests.unit.client.groups.grouped import (
    Diary,
    Workplace,
    keep_polling,
    open_workplace,
    poll_all,
    poll_until_has,
)

A, B = TopicPartition("t", 0), TopicPartition("t", 1)


@pytest.fixture
async def place(autojump_clock: Any) -> AsyncIterator[Workplace]:
    """Topic "t" has four partitions."""
    async with open_workplace() as place:
        yield place


async def committed(place: Workplace) -> list[int]:
    """What the group has committed of each partition, as somebody else sees it; 0: nothing."""
    async with place.consumer("auditor") as auditor:
        auditor.assign([("t", number) for number in range(4)])
        found = await auditor.committed()
        return [0 if (each := found[name]) is None else each.offset for name in sorted(found)]


async def _work_until_crash(place: Workplace, seed: int, done: set[tuple[int, int]]) -> None:
    """A worker that polls or iterates, takes its time for each record, and dies at some moment."""
    rng = random.Random(seed)
    name = f"worker-{seed}"

    async def work(record: Any) -> None:
        await trio.sleep(rng.choice([0, 0.01, 0.3]))
        done.add((record.partition, record.offset))

    async def run(consumer: Consumer) -> None:
        await consumer.subscribe("t")
        while True:
            if rng.random() < 0.5:
                for record in await consumer.poll(1):
                    await work(record)
            else:
                count = rng.randrange(1, 15)
                async for record in consumer:
                    await work(record)
                    if (count := count - 1) == 0:
                        break

    options: dict[str, Any] = {"auto_commit_interval_ms": 200, "max_poll_records": 10}
    with trio.CancelScope() as process:
        async with place.consumer(name, **options) as consumer:
            with trio.move_on_after(rng.uniform(1, 5)):
                await run(consumer)
            place.world.network.stop_host(name)
            place.world.network.cut(name, "broker-1")
            process.cancel()
            await trio.sleep(1)


async def test_auto_commit_never_passes_a_record_that_is_not_done(
    autojump_clock: Any, place: Workplace
) -> None:
    """K6, CCO-06: whenever a worker dies between poll and process, its successors do the rest."""
    await place.fill(40)
    done: set[tuple[int, int]] = set()
    before = [0, 0, 0, 0]
    for seed in range(8):
        await _work_until_crash(place, seed, done)
        now = await committed(place)
        for partition in range(4):
            assert now[partition] >= before[partition]
            missing = set(range(now[partition])) - {n for p, n in done if p == partition}
            assert not missing, f"committed {now[partition]} of {partition}, but not {missing}"
        before = now
    async with place.consumer("last") as last:
        await last.subscribe("t")
        with trio.fail_after(60):
            while len(done) < 160:
                done |= {(record.partition, record.offset) for record in await last.poll(1)}
    assert before > [0, 0, 0, 0]


async def test_auto_commit_waits_for_the_next_poll(autojump_clock: Any, place: Workplace) -> None:
    """CCO-06: however long a poll's records take, they are committed after the next poll only."""
    await place.fill(3)
    async with place.consumer("a", auto_commit_interval_ms=1000) as a:
        await a.subscribe("t")
        await poll_all(a, 12)
        await trio.sleep(10)
        assert await committed(place) == [0, 0, 0, 0]
        await a.poll(0)
        await trio.sleep(1.1)
        assert await committed(place) == [3, 3, 3, 3]


async def test_auto_commit_of_who_iterates(autojump_clock: Any, place: Workplace) -> None:
    """CCO-06: of iteration, the record of this moment is not done, and all before it are."""
    await place.fill(8)
    async with place.consumer("a", auto_commit_interval_ms=1000) as a:
        a.assign([A])
        count = 0
        async for record in a:
            await trio.sleep(1.1)
            assert (await committed(place))[0] == record.offset == count
            if (count := count + 1) == 5:
                break
        assert a.position(A) == 5
    assert (await committed(place))[0] == 5


async def _end_by(how: str, scope: trio.CancelScope) -> None:
    """Leave the block by an exception, or because it is cancelled."""
    if how == "exception":
        raise ValueError
    if how == "exit":
        raise SystemExit
    scope.cancel()
    await trio.sleep(1)


@pytest.mark.parametrize("how", ["exception", "exit", "cancellation"])
async def test_an_exception_leaves_its_records_undone(
    autojump_clock: Any, place: Workplace, how: str
) -> None:
    """K6: what was being worked on is read again, also if `on_revoked` commits; the rest is not."""
    await place.fill(5)
    a, b = place.consumer("a", max_poll_records=2), place.consumer("b")

    async def commit(_: object) -> None:
        await b.commit()

    with suppress(ValueError, SystemExit), trio.CancelScope() as scope:
        async with a:
            a.assign([A])
            await a.poll(5)
            await a.poll(5)
            await _end_by(how, scope)
    assert await committed(place) == [2, 0, 0, 0]
    with suppress(ValueError, SystemExit), trio.CancelScope() as scope:
        async with b:
            await b.subscribe("t", on_revoked=commit)
            async for record in b:
                if (record.partition, record.offset) == (0, 3):
                    await _end_by(how, scope)
    assert (await committed(place))[0] == 3


async def test_who_closes_for_another_commits_what_that_one_has_done(
    autojump_clock: Any, place: Workplace
) -> None:
    """A task that ends a consumer cannot know if the reader is done with its last records."""
    await place.fill(5)
    async with place.consumer("a", max_poll_records=2) as a, trio.open_nursery() as nursery:
        a.assign([A])
        await a.poll(5)
        await a.poll(5)
        nursery.start_soon(a.close)
        await trio.sleep(1)
    assert (await committed(place))[0] == 2
    async with place.consumer("b", max_poll_records=2) as b:
        b.assign([A])
        await b.poll(5)
        await b.close()
    assert (await committed(place))[0] == 4


@pytest.mark.parametrize("is_member", [False, True])
@pytest.mark.parametrize("delay_s", [0.0, 0.001, 0.002, 0.003, 0.005, 0.01, 0.1])
async def test_no_commit_beside_a_close_goes_back(
    autojump_clock: Any, place: Workplace, delay_s: float, is_member: bool
) -> None:
    """A commit either commits what it was asked to, or raises, however far the close has come."""
    await place.fill(5)
    told: list[str] = []

    async def revoked(_: object) -> None:
        await consumer.commit()  # of what is done, which may be nothing new

    async def commit() -> None:
        while "ClientClosed" not in told:
            try:
                await consumer.commit()
            except (ClientClosed, CommitFailed) as error:
                told.append(type(error).__name__)
            else:
                told.append("committed")
            await trio.sleep(0.0005)

    async with (
        place.consumer("a", enable_auto_commit=False) as consumer,
        trio.open_nursery() as nursery,
    ):
        if is_member:
            await consumer.subscribe("t", on_revoked=revoked)
        else:
            consumer.assign([A])
        while not (consumer.assignment and (consumer.position(A) or 0) == 5):
            await consumer.poll(1)
        await consumer.commit()
        nursery.start_soon(commit)
        await trio.sleep(delay_s)
        nursery.start_soon(consumer.close)
    assert (await committed(place))[0] == 5


async def test_what_a_close_leaves_undone_is_not_said_to_be_committed(
    autojump_clock: Any, place: Workplace
) -> None:
    """The records of the last poll are read again, so a commit of them raises."""
    await place.fill(5)
    is_closing = trio.Event()

    async def revoked(_: object) -> None:
        is_closing.set()
        await consumer.commit()
        await trio.sleep(1)

    async with place.consumer("a", enable_auto_commit=False) as consumer:
        await consumer.subscribe("t", on_revoked=revoked)
        while (consumer.position(A) if consumer.assignment else 0) != 5:
            await consumer.poll(1)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(consumer.close)
            await is_closing.wait()
            with pytest.raises(ClientClosed, match="not done"):
                await consumer.commit()
    assert (await committed(place))[0] == 0


async def test_a_member_that_is_put_out_while_it_lets_go_says_what_it_did_not_commit(
    autojump_clock: Any, place: Workplace, caplog: pytest.LogCaptureFixture
) -> None:
    """Its partitions were given to others during its `on_revoked`: it cannot commit any more."""
    await place.fill(5)

    async def revoked(_: object) -> None:
        await trio.sleep(5)

    options = {"max_poll_interval_ms": 1000, "auto_commit_interval_ms": 60_000}
    async with place.consumer("a", **options) as consumer:
        await consumer.subscribe("t", on_revoked=revoked)
        while (consumer.position(A) if consumer.assignment else 0) != 5:
            await consumer.poll(1)
        await consumer.poll(0)
        with caplog.at_level(logging.WARNING, "minibroker.client"):
            await consumer.unsubscribe()
    assert "auto commit: this member was put out" in caplog.text
    assert (await committed(place))[0] == 0


async def test_explicit_commits(autojump_clock: Any, place: Workplace) -> None:
    """Without offsets, behind the last poll; with, what is said, for which nothing need be read."""
    await place.fill(5)
    async with place.consumer("a", enable_auto_commit=False, max_poll_records=3) as a:
        a.assign([A, B])
        assert await a.committed() == {A: None, B: None}
        a.seek(B, 5)
        await poll_all(a, 3)
        await a.commit()
        assert await a.committed() == {A: OffsetAndMetadata(3, "", 0), B: OffsetAndMetadata(5)}
        await a.commit({A: 1, TopicPartition("t", 3): OffsetAndMetadata(2, "why")})
        assert await committed(place) == [1, 5, 0, 2]
        assert await a.committed(TopicPartition("t", 3)) == {
            TopicPartition("t", 3): OffsetAndMetadata(2, "why")
        }
        with pytest.raises(ValueError, match="not -1"):
            await a.commit({A: -1})
        refused = {A: OffsetAndMetadata(2, "x" * 5000), B: OffsetAndMetadata(4)}
        with pytest.raises(BrokerError, match="the commit of t-0") as caught:
            await a.commit(refused)
        assert caught.value.code == ErrorCode.OFFSET_METADATA_TOO_LARGE
        with pytest.raises(BrokerError, match="UNKNOWN_TOPIC_OR_PARTITION"):
            await a.commit({TopicPartition("nowhere", 0): 1})
        assert await a.lag() == {A: 2, B: 0}
    assert await committed(place) == [1, 4, 0, 2]


async def test_partitions_begin_behind_what_was_committed(
    autojump_clock: Any, place: Workplace
) -> None:
    """Where nothing was, by the policy; a seek in `on_assigned` counts for more."""
    await place.fill(5)
    async with place.consumer("a") as a:
        await a.commit({A: 3, B: 5})

    async def seek(_: object) -> None:
        b.seek(TopicPartition("t", 2), 4)

    async with place.consumer("b", enable_auto_commit=False) as b:
        await b.subscribe("t", on_assigned=seek)
        got = await poll_all(b, 2 + 0 + 1 + 5)
        assert sorted(got) == [(0, 3), (0, 4), (2, 4), *[(3, n) for n in range(5)]]
    async with place.consumer("c", auto_offset_reset="none") as c:
        c.assign([A, TopicPartition("t", 3)])
        with pytest.raises(OffsetOutOfRange, match=r"t-3.*nothing was committed"):
            await poll_all(c, 9)


async def test_who_assigns_alone_may_not_disturb_members(
    autojump_clock: Any, place: Workplace
) -> None:
    """GRP-06: while a group has members, only they commit; the error says what to do."""
    async with place.consumer("a") as a, place.consumer("b") as b:
        b.assign([A])
        await b.commit({A: 1})
        await a.subscribe("t")
        await poll_until_has(a, 0, 1, 2, 3)
        with pytest.raises(CommitFailed, match="it has members"):
            await b.commit({A: 2})


async def test_a_commit_waits_out_a_rebalance_and_a_restart(
    autojump_clock: Any, place: Workplace
) -> None:
    """GRP-04, GRP-05: it is tried again, in the next generation too, until there is an answer."""
    await place.fill(5)
    manual = place.consumer("a", enable_auto_commit=False)
    async with manual as a, place.consumer("b") as b, trio.open_nursery() as nursery:
        await a.subscribe("t")
        await poll_all(a, 20)
        await b.subscribe("t")
        nursery.start_soon(keep_polling, b, [])
        generation = a.health().generation
        with trio.fail_after(20):
            while a.health().generation == generation:
                await a.commit({A: 5})
                await trio.sleep(0.01)
        await place.broker.kill()
        nursery.start_soon(place.broker.start)
        with trio.fail_after(20):
            await a.commit({A: 4})
        nursery.cancel_scope.cancel()
    assert (await committed(place))[0] == 4


async def test_a_commit_that_nobody_answers_ends(autojump_clock: Any, place: Workplace) -> None:
    """default.api.timeout.ms bounds it, and the error names what was tried last."""
    async with place.consumer("a", default_api_timeout_ms=3000) as a:
        a.assign([A])
        await a.commit({A: 0})
        await place.broker.kill()
        began_at = trio.current_time()
        with pytest.raises(ClientTimeout, match=r"within 3 s, and may .*broker-1"):
            await a.commit({A: 1})
        assert trio.current_time() - began_at == pytest.approx(3)
        with pytest.raises(ClientTimeout):
            await a.committed()


@pytest.mark.parametrize("how", ["close", "leave", "cancel"])
async def test_the_end_comes_in_its_time(
    autojump_clock: Any, place: Workplace, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    """With all brokers gone, `close` returns in its time, and so does leaving the block."""
    await place.fill(1)
    diary = Diary()
    with trio.CancelScope() as scope:
        async with place.consumer("a") as a:
            await a.subscribe("t", **diary.callbacks)
            await poll_all(a, 4)
            await place.broker.kill()
            began_at = trio.current_time()
            with caplog.at_level(logging.CRITICAL):
                if how == "close":
                    await a.close(timeout_s=2)
                if how == "cancel":
                    scope.cancel()
                    await trio.sleep(1)
    bound_s = {"close": 2, "leave": 10, "cancel": 1}[how]
    assert trio.current_time() - began_at == pytest.approx(bound_s, abs=0.1)
    assert diary.of("revoked") == ([] if how == "cancel" else [[0, 1, 2, 3]])


async def test_who_is_closed_keeps_nothing(autojump_clock: Any, place: Workplace) -> None:
    """A close whose time ends before its callback does ends the membership all the same: within a
    session others have the partitions, though the block goes on."""

    async def hang(_: object) -> None:
        await trio.sleep_forever()

    async with place.consumer("a") as a, place.consumer("b") as b:
        await a.subscribe("t", on_revoked=hang)
        await poll_until_has(a, 0, 1, 2, 3)
        await a.close(timeout_s=1)
        await b.subscribe("t")
        await poll_until_has(b, 0, 1, 2, 3, within_s=8)


async def test_revoked_partitions_are_committed_for_the_next_owner(
    autojump_clock: Any, place: Workplace
) -> None:
    """What was done before a rebalance is not done twice after it."""
    await place.fill(20)
    got: list[tuple[int, int]] = []
    slow: dict[str, Any] = {"auto_commit_interval_ms": 60_000, "max_poll_records": 5}
    async with place.consumer("a", **slow) as a, place.consumer("b", **slow) as b:
        await a.subscribe("t")
        got += await poll_all(a, 40)
        await b.subscribe("t")
        with trio.fail_after(30):
            while len(got) < 80:
                for each in (a, b):
                    records = await each.poll(0.1)
                    got += [(record.partition, record.offset) for record in records]
    assert sorted(got) == [(partition, n) for partition in range(4) for n in range(20)]
