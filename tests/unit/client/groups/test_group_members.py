"""Members of a group against the real broker on virtual time: who gets what, and who is told."""

import re
from collections.abc import AsyncIterator
from itertools import pairwise
from typing import Any

import pytest
import trio

from minibroker.client import Admin, BrokerError, ClientError, CommitFailed, Consumer, Producer
from minibroker.client.errors import ConfigError
from minibroker.protocol.constants import ErrorCode
from tests.unit.client.groups.grouped import (
    Diary,
    Workplace,
    keep_polling,
    open_workplace,
    poll_all,
    poll_until_has,
)


@pytest.fixture
async def place(autojump_clock: Any) -> AsyncIterator[Workplace]:
    """Topic "t" has four partitions."""
    async with open_workplace() as place:
        yield place


async def share(first: Consumer, second: Consumer) -> list[list[int]]:
    """Poll both until they share the four partitions evenly; the parts."""
    with trio.fail_after(30):
        while [len(first.assignment), len(second.assignment)] != [2, 2]:
            await first.poll(0.1)
            await second.poll(0.1)
    return [[name.partition for name in each.assignment] for each in (first, second)]


@pytest.mark.parametrize("strategy", ["cooperative-sticky", "range", "roundrobin"])
async def test_members_share_and_take_over(
    autojump_clock: Any, place: Workplace, strategy: str
) -> None:
    """Every partition has one owner; who leaves is succeeded where it committed, at once."""
    await place.fill(5)
    options: dict[str, Any] = {"partition_assignment_strategy": strategy}
    async with place.consumer("a", **options) as a:
        await a.subscribe("t")
        assert len(await poll_all(a, 20)) == 20
        async with place.consumer("b", **options) as b:
            await b.subscribe("t")
            mine, others = await share(a, b)
            assert sorted(mine + others) == [0, 1, 2, 3]
            await place.fill(1)
            assert sorted(await poll_all(a, 2)) == [(number, 5) for number in sorted(mine)]
            assert sorted(await poll_all(b, 2)) == [(number, 5) for number in sorted(others)]
            await place.fill(1)
        assert sorted(await poll_all(a, 4, within_s=3)) == [(number, 6) for number in range(4)]


async def test_kept_partitions_never_stop(autojump_clock: Any, place: Workplace) -> None:
    """Cooperative: while two wait for each other to join, both get records of what they keep."""
    slow = {"heartbeat_interval_ms": 3000}
    got: dict[str, list[Any]] = {"a": [], "b": []}
    async with place.consumer("a", **slow) as a, place.consumer("b", **slow) as b:
        for each in (a, b):
            await each.subscribe("t")
        kept = await share(a, b)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(keep_polling, a, got["a"])
            nursery.start_soon(keep_polling, b, got["b"])
            nursery.start_soon(_produce_steadily, place)
            await trio.sleep(1)
            began_at = trio.current_time()
            async with place.consumer("c", **slow) as c:
                await c.subscribe("t")
                with trio.fail_after(20):
                    while len(c.assignment) < 1:
                        await c.poll(0.1)
            ended_at = trio.current_time()
            nursery.cancel_scope.cancel()
        assert ended_at - began_at > 3  # it took a heartbeat of either, twice
        still = [{name.partition for name in each.assignment} for each in (a, b)]
        for numbers, before, name in zip(still, kept, "ab", strict=True):
            for number in numbers & set(before):
                times = [at for at, partition, _ in got[name] if partition == number]
                gaps = [later - at for at, later in pairwise(times)]
                assert max(gaps) < 0.2, f"{name} had nothing of {number} for {max(gaps)} s"


async def _produce_steadily(place: Workplace) -> None:
    async with Producer(place.broker.address, seams=place.world.seams("steady")) as producer:
        while True:
            for partition in range(4):
                producer.send_nowait("t", b"x", partition=partition)
            await trio.sleep(0.05)


async def test_callbacks_tell_what_moves(autojump_clock: Any, place: Workplace) -> None:
    """Cooperative tells of what is new and what goes; eager of everything, before each join."""
    cooperative, eager = Diary(), Diary()
    async with place.consumer("a") as a, place.consumer("b") as b:
        await a.subscribe("t", **cooperative.callbacks)
        await poll_until_has(a, 0, 1, 2, 3)
        await b.subscribe("t")
        await share(a, b)
        assert cooperative.entries[0] == ("assigned", [0, 1, 2, 3])
        assert cooperative.of("revoked") == [[2, 3]]
        assert all(numbers == [] for numbers in cooperative.of("assigned")[1:])
    ranged: dict[str, Any] = {"group_id": "h", "partition_assignment_strategy": "range"}
    async with place.consumer("a", **ranged) as a, place.consumer("b", **ranged) as b:
        await a.subscribe("t", **eager.callbacks)
        await poll_until_has(a, 0, 1, 2, 3)
        await b.subscribe("t")
        await share(a, b)
        assert eager.entries == [
            ("assigned", [0, 1, 2, 3]),
            ("revoked", [0, 1, 2, 3]),
            ("assigned", [0, 1]),
        ]


async def test_who_was_cut_off_loses_its_partitions(autojump_clock: Any, place: Workplace) -> None:
    """GRP-11: others go on behind its last commit; it is told, drops what it has, and comes back.

    Its own records since then cannot be committed, and nothing is handed out while it cannot know.
    """
    await place.fill(3)
    diary = Diary()
    manual: dict[str, Any] = {"enable_auto_commit": False, "max_poll_records": 2}
    async with place.consumer("a", **manual) as a, place.consumer("b", **manual) as b:
        await a.subscribe("t", **diary.callbacks)
        await poll_all(a, 2)
        await a.commit()
        first = await poll_all(a, 2)
        place.world.network.cut("a", "broker-1")
        await b.subscribe("t")
        seen = await poll_all(b, 10)
        assert set(first) <= set(seen)
        assert await a.poll(0) == []
        assert a.health().state == "in doubt"
        assert diary.of("lost") == []
        place.world.network.mend("a", "broker-1")
        await trio.sleep(3)
        assert a.health().state == "out"
        with pytest.raises(CommitFailed, match="Poll, to join again"):
            await a.commit()
        assert diary.of("lost") == []
        assert await a.poll(0) == []
        assert diary.of("lost") == [[0, 1, 2, 3]]
        await share(a, b)


async def test_doubt_alone_costs_nothing(autojump_clock: Any, place: Workplace) -> None:
    """Answers late by more than a session: nothing is handed out, and then all goes on."""
    await place.fill(3)
    diary = Diary()
    quiet: dict[str, Any] = {"auto_commit_interval_ms": 60_000, "fetch_max_wait_ms": 20_000}
    async with place.consumer("a", max_poll_records=1, **quiet) as a:
        await a.subscribe("t", **diary.callbacks)
        got = await poll_all(a, 2)
        age_s = a.health().heartbeat_age_s or 0.0
        await trio.sleep(0.55 - age_s)  # just after a heartbeat; the next one arrives, too
        place.world.network.hold("broker-1", "a")
        await trio.sleep(6.1)
        assert a.health().state == "in doubt"
        assert await a.poll(0) == []
        place.world.network.release("broker-1", "a")
        released_at = trio.current_time()
        got += [(record.partition, record.offset) for record in await a.poll(60)]
        assert trio.current_time() - released_at < 1
        got += await poll_all(a, 9)
        assert sorted(got) == [(partition, n) for partition in range(4) for n in range(3)]
        assert diary.entries == [("assigned", [0, 1, 2, 3])]


async def test_who_does_not_poll_is_put_out(autojump_clock: Any, place: Workplace) -> None:
    """max.poll.interval.ms: the member leaves by itself; a poll in time, or iterating, keeps it."""
    lazy, busy = Diary(), Diary()
    soon: dict[str, Any] = {"max_poll_interval_ms": 10_000}
    async with place.consumer("a", **soon) as a, place.consumer("b", **soon) as b:
        await a.subscribe("t", **lazy.callbacks)
        await b.subscribe("t", **busy.callbacks)
        await share(a, b)
        await place.fill(10)
        await a.poll(0)

        async def iterate() -> None:
            async for _ in b:
                await trio.sleep(4)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(iterate)
            await trio.sleep(9.5)
            await a.poll(0)
            assert a.health().state == "stable"
            await trio.sleep(9.5)
            assert a.health().state == "stable"
            await trio.sleep(1)
            assert a.health().state == "out"
            await trio.sleep(20)
            assert len(b.assignment) == 4
            nursery.cancel_scope.cancel()
        with pytest.raises(CommitFailed):
            await a.commit()
        assert lazy.of("lost") == []
        assert await a.poll(0) == []
        assert len(lazy.of("lost")) == 1
        assert busy.of("lost") == []
        await share(a, b)


async def test_who_never_polls_is_put_out(autojump_clock: Any, place: Workplace) -> None:
    """The first poll is due like any other: who subscribes and forgets it keeps nothing."""
    async with place.consumer("a", max_poll_interval_ms=10_000) as a:
        await a.subscribe("t")
        await trio.sleep(9)
        assert a.health().state == "assigned"
        await trio.sleep(2)
        assert a.health().state == "out"
        await poll_until_has(a, 0, 1, 2, 3)


async def test_a_restarted_coordinator_knows_its_members(
    autojump_clock: Any, place: Workplace
) -> None:
    """Over a crash of the broker a member keeps its id, its generation, and its partitions."""
    await place.fill(1)
    diary = Diary()
    async with place.consumer("a") as a:
        await a.subscribe("t", **diary.callbacks)
        await poll_all(a, 4)
        before = a.health()
        await place.broker.kill()
        await trio.sleep(2)
        await place.broker.start()
        await place.fill(1)
        await poll_all(a, 4)
        await a.commit()
        await trio.sleep(2)
        after = a.health()
        assert (after.member_id, after.generation) == (before.member_id, before.generation)
        assert diary.entries == [("assigned", [0, 1, 2, 3])]


async def test_a_pattern_finds_new_topics(autojump_clock: Any, place: Workplace) -> None:
    """With the age of metadata; none that is internal. Deleted ones stay deleted."""
    async with place.consumer("a", metadata_max_age_ms=5000) as a:
        await a.subscribe(re.compile(r"t.?$|__.*"))
        await poll_until_has(a, 0, 1, 2, 3)
        assert a.subscription == ["t"]
        for name in ("t2", "tall"):
            await place.create(name, 1)
        await trio.sleep(6)
        with trio.fail_after(10):
            while len(a.assignment) != 5:
                await a.poll(0.1)
        assert a.subscription == ["t", "t2"]
        async with Admin(place.broker.address, seams=place.world.seams("admin")) as admin:
            await admin.delete_topics("t2")
            await a.poll(12)
            await poll_until_has(a, 0, 1, 2, 3)
            assert {"t", "t2", "tall"} & set(await admin.list_topics()) == {"t", "tall"}


async def test_a_topic_may_come_later(autojump_clock: Any, place: Workplace) -> None:
    """Who leads the group sees that a topic is there, and has it shared out."""
    async with place.consumer("a") as a:
        await a.subscribe("later")
        await a.poll(5)
        assert (a.assignment, a.health().state) == ([], "stable")
        await place.create("later", 2)
        await poll_until_has(a, 0, 1, within_s=5)


async def test_subscribing_to_something_else(autojump_clock: Any, place: Workplace) -> None:
    """Partitions of other topics are let go before the member joins for the new ones."""
    await place.create("u", 1)
    diary = Diary()
    async with place.consumer("a") as a:
        await a.subscribe("t", **diary.callbacks)
        await poll_until_has(a, 0, 1, 2, 3)
        await a.subscribe("u", **diary.callbacks)
        await poll_until_has(a, 0)
        assert diary.of("revoked") == [[0, 1, 2, 3]]
        await a.unsubscribe()
        assert diary.of("revoked")[1:] == [[0]]
        assert (a.subscription, a.assignment, a.health().state) == ([], [], "alone")


async def test_a_static_member_comes_back_to_its_place(
    autojump_clock: Any, place: Workplace
) -> None:
    """It does not leave; within its session another process takes its place without a rebalance."""
    named: dict[str, Any] = {"group_instance_id": "i"}
    async with place.consumer("b") as b:
        async with place.consumer("a", **named) as a:
            for each in (a, b):
                await each.subscribe("t")
            mine, _ = await share(a, b)
        generation = b.health().generation
        async with place.consumer("c", **named) as c:
            await c.subscribe("t")
            await poll_until_has(c, *mine)
            await b.poll(2)
            assert c.health().generation == b.health().generation == generation


async def test_a_static_leader_learns_what_it_missed(autojump_clock: Any, place: Workplace) -> None:
    """It comes back to the assignment of before, and a topic that was made meanwhile is read."""
    static: dict[str, Any] = {"group_instance_id": "i"}
    async with place.consumer("a", **static) as a:
        await a.subscribe("t", "later")
        await poll_until_has(a, 0, 1, 2, 3)
    await place.create("later", 2)
    async with place.consumer("b", **static) as b:
        await b.subscribe("t", "later")
        await poll_until_has(b, 0, 0, 1, 1, 2, 3)
        generation = b.health().generation
    async with place.consumer("c", **static) as c:
        await c.subscribe("t", "later")
        await poll_until_has(c, 0, 0, 1, 1, 2, 3)
        assert (await c.poll(5), c.health().generation) == ([], generation)


async def test_a_fenced_member_is_told(autojump_clock: Any, place: Workplace) -> None:
    """FENCED_INSTANCE_ID: whoever had the name before gets an error in every poll."""
    diary = Diary()
    named: dict[str, Any] = {"group_instance_id": "i"}
    async with place.consumer("a", **named) as a, place.consumer("b", **named) as b:
        await a.subscribe("t", **diary.callbacks)
        await poll_until_has(a, 0, 1, 2, 3)
        await b.subscribe("t")
        await poll_until_has(b, 0, 1, 2, 3)
        for _ in range(2):
            with pytest.raises(BrokerError, match=r"group\.instance\.id 'i'") as caught:
                await a.poll(5)
            assert caught.value.code == ErrorCode.FENCED_INSTANCE_ID
        assert diary.of("lost") == [[0, 1, 2, 3]]
        assert a.health().state == "fenced"


async def test_a_refused_member_is_told(autojump_clock: Any, place: Workplace) -> None:
    """GRP-12: what the coordinator will not have comes out of the poll, once for each try."""
    async with place.consumer("a", session_timeout_ms=800) as a:
        await a.subscribe("t")
        for _ in range(2):
            with pytest.raises(BrokerError, match="INVALID_SESSION_TIMEOUT"):
                await a.poll(5)
    with pytest.raises(ConfigError, match=r"heartbeat\.interval\.ms .* below .*session"):
        place.consumer("b", session_timeout_ms=500)


async def test_what_a_callback_raises_comes_out_of_the_poll(
    autojump_clock: Any, place: Workplace
) -> None:
    """And the rebalance is done all the same; polling or leaving in a callback is refused."""

    async def fail(_: object) -> None:
        raise RuntimeError("no disk")

    async def poll(_: object) -> None:
        await b.poll()

    async def close(_: object) -> None:
        await c.close()

    async with place.consumer("a") as a, place.consumer("b") as b, place.consumer("c") as c:
        await a.subscribe("t", on_assigned=fail)
        with pytest.raises(RuntimeError, match="no disk"):
            await a.poll(5)
        assert len(a.assignment) == 4
        await a.unsubscribe()
        await b.subscribe("t", on_assigned=poll)
        with pytest.raises(ClientError, match="not by a callback"):
            await b.poll(5)
        await b.unsubscribe()
        await c.subscribe("t", on_assigned=close)
        with pytest.raises(ClientError, match="a callback cannot leave"):
            await c.poll(5)


async def test_what_needs_a_group_says_so(autojump_clock: Any, place: Workplace) -> None:
    """Group calls without a group, and the two ways to assign mixed, are errors with a reason."""
    async with place.consumer("a", group_id="") as a:
        with pytest.raises(ClientError, match="give it a group_id"):
            await a.subscribe("t")
        assert a.health().state == "alone"
    async with place.consumer("b") as b:
        with pytest.raises(ValueError, match="names no topic"):
            await b.subscribe()
        await b.subscribe("t")
        with pytest.raises(ClientError, match="unsubscribe"):
            b.assign([("t", 0)])
        await b.unsubscribe()
        b.assign([("t", 0)])
        with pytest.raises(ClientError, match="unsubscribe"):
            await b.subscribe("t")
    with pytest.raises(ConfigError, match=r"give group\.id"):
        place.consumer("c", group_id="", group_instance_id="i")
