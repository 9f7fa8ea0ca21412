"""What people type out of habit or by mistake, and what it says: at the call, in one sentence."""

import asyncio
import inspect
import logging
import re
from typing import Any

import pytest
import trio
import trio.testing

from minibroker.client import (
    Admin,
    ClientClosed,
    ClientError,
    Consumer,
    NewTopic,
    Producer,
    TopicPartition,
)
from tests.unit.client.groups.grouped import open_workplace, poll_until_has

# What was typed, and what it says.
MISUSE = [
    ("member.subscribe()", "subscribe names no topic: give names or a pattern"),
    ("member.subscribe([])", "subscribe names no topic"),
    ("member.subscribe(b'orders')", "a topic is a str, not bytes (b'orders'); decode it first"),
    ("member.subscribe(7)", "a topic is a str, not int (7)"),
    ("member.subscribe(None)", "a topic is a str, not NoneType"),
    ("member.subscribe(['orders'], ['bills'])", "a topic is a str, not list (['orders'])"),
    ("member.subscribe([['orders']])", "a topic is a str, not list (['orders'])"),
    ("member.subscribe('orders,bills')", "is no topic name, which has letters"),
    ("member.subscribe('orders,bills')", "give each name by itself"),
    ("member.subscribe('my topic')", "'my topic' is no topic name"),
    ("member.subscribe('')", "'' is no topic name"),
    ("member.subscribe('orders', '^bills')", "subscribe takes names, or one pattern"),
    ("member.subscribe('^(orders')", "'^(orders' is no regular expression"),
    ("member.subscribe(re.compile(b'orders'))", "a pattern is one of str, not of bytes"),
    ("member.subscribe('t', on_assigned=print('') or 5)", "is an async function, not 5"),
    ("member.poll(1)", "there is nothing to read: await subscribe (with a group_id)"),
    ("alone.subscribe('t')", "this consumer is in no group: give it a group_id"),
    ("alone.assign_topics('^t')", "'^t' is a pattern, which only subscribe takes"),
    ("alone.assign_topics('nowhere')", "there is no topic 'nowhere', and this client creates none"),
    ("alone.commit()", "this consumer is in no group: give it a group_id"),
    ("member.commit(5)", "offsets to commit are those of a record"),
    ("member.commit([('t', 0, 5)])", "offsets to commit are those of a record"),
    ("member.commit({'t': 5})", "a partition is a TopicPartition, not 't'"),
    (
        "member.commit({TopicPartition('t', 0): None})",
        "an offset is an int or an Offset",
    ),
    ("member.commit({TopicPartition('t', 0): -1})", "an offset is 0 to"),
    ("member.commit_async({'t': 5})", "a partition is a TopicPartition, not 't'"),
    ("alone.offsets_for_times({TopicPartition('t', 0): 1.5})", "a time is 0 to"),
    ("admin.create_topics([NewTopic('u')])", "create_topics takes NewTopic or str one by one"),
    ("admin.delete_topics(['u'])", "topics are given one by one, as a str each, not ['u']"),
    ("admin.describe_topics(['u'])", "topics are given one by one, as a str each, not ['u']"),
    ("alone.partitions_for_topic('nowhere')", "there is no topic 'nowhere'"),
]


async def evaluate(typed: str, names: dict[str, Any]) -> None:
    """Run what was typed, and await it where that is meant."""
    result = eval(typed, names)
    if inspect.isawaitable(result):
        await result


@pytest.mark.parametrize(("typed", "says"), MISUSE)
async def test_misuse_is_told_at_the_call(autojump_clock: Any, typed: str, says: str) -> None:
    """Each row: the call raises, and its text has this in it."""
    async with open_workplace() as place:
        address, seams = place.broker.address, place.world.seams("user")
        async with (
            place.consumer("member") as member,
            place.consumer("alone", group_id="") as alone,
            Producer(address, seams=seams) as producer,
            Admin(address, seams=seams) as admin,
        ):
            names = {
                "member": member,
                "alone": alone,
                "producer": producer,
                "admin": admin,
                "re": re,
                "NewTopic": NewTopic,
                "TopicPartition": TopicPartition,
            }
            with pytest.raises(Exception, match=re.escape(says)) as raised:
                await evaluate(typed, names)
            assert "\n" not in str(raised.value)


async def test_a_callback_that_is_not_async_is_named(autojump_clock: Any) -> None:
    """A plain function as a rebalance callback is told by the poll that would call it."""
    async with open_workplace() as place, place.consumer("a") as a:
        await a.subscribe("t", on_assigned=print)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=r"print.* is no async function: a rebalance callback"):
            await poll_until_has(a, 7)


@pytest.mark.parametrize("typed", ["'t', 'u'", "['t', 'u']", "'^[tu]$'", "re.compile('t|u')"])
async def test_topics_are_named_in_several_ways(autojump_clock: Any, typed: str) -> None:
    """Names, a list of names, a text that begins with ^, a compiled pattern: all the same."""
    async with open_workplace() as place:
        await place.create("u", 1)
        async with place.consumer("a") as a:
            await eval(f"a.subscribe({typed})", {"a": a, "re": re})
            await poll_until_has(a, 0, 0, 1, 2, 3)
            assert a.subscription == ["t", "u"]
        async with place.consumer("b", group_id="") as b:
            assert len(await b.assign_topics(["t", "u"])) == 5


async def test_a_missing_topic_is_said_once(
    autojump_clock: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Subscribing to what does not exist creates nothing; it is read once somebody creates it."""
    caplog.set_level(logging.WARNING, "minibroker.client")
    async with open_workplace() as place, place.consumer("a") as a:
        await a.subscribe("later")
        await a.poll(30)
        async with Admin(place.broker.address, seams=place.world.seams("admin")) as admin:
            assert "later" not in await admin.list_topics()
        said = [each.getMessage() for each in caplog.records if "later" in each.getMessage()]
        text = "subscribed to 'later', which does not exist: it is read once it is created"
        assert said == [text]
        await place.create("later", 2)
        await poll_until_has(a, 0, 1)


async def test_a_pattern_that_matches_nothing_says_so(
    autojump_clock: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """Once, with when new topics are looked for."""
    caplog.set_level(logging.WARNING, "minibroker.client")
    async with open_workplace() as place, place.consumer("a", metadata_max_age_ms=3000) as a:
        await a.subscribe("^later")
        await a.poll(10)
        said = [each.getMessage() for each in caplog.records]
        text = "no topic matches '^later'; new ones are looked for every metadata.max.age.ms (3000)"
        assert said.count(text) == 1
        await place.create("later-1", 1)
        await poll_until_has(a, 0)


@pytest.mark.parametrize("kind", [Admin, Consumer, Producer])
def test_a_trio_client_under_asyncio_names_the_right_one(kind: Any) -> None:
    """One sentence, with the module that an asyncio program needs."""

    async def enter() -> None:
        async with kind("127.0.0.1:1"):
            pass

    with pytest.raises(ClientError, match=r"needs trio: .*minibroker\.client\.asyncio"):
        asyncio.run(enter())


async def test_clients_are_started_in_a_nursery(autojump_clock: Any) -> None:
    """`nursery.start` returns the open client; `close` ends its task, a cancellation too."""
    async with open_workplace() as place, trio.open_nursery() as nursery:
        address, seams = place.broker.address, place.world.seams("user")
        producer = await nursery.start(Producer(address, seams=seams).run)
        await producer.send("t", b"value", partition=0)
        consumer = await nursery.start(place.consumer("a", group_id="").run)
        await consumer.assign_topics("t")
        assert [record.value for record in await consumer.poll(10)] == [b"value"]
        assert (await producer.close()).is_complete
        await consumer.close()
        admin = await nursery.start(Admin(address, seams=seams).run)
        assert await admin.list_topics() == ["t"]
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    with pytest.raises(ClientClosed):
        await admin.list_topics()


async def test_a_reset_says_from_where_to_where_and_why(
    autojump_clock: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """A gap is a warning; to begin where nothing was committed is information."""
    caplog.set_level(logging.INFO, "minibroker.client")
    async with open_workplace() as place:
        await place.fill(2)
        async with place.consumer("a") as a:
            name = TopicPartition("t", 0)
            a.assign([name])
            await a.poll(5)
            a.seek(name, 50)
            await a.poll(5)
    said = [(each.levelname, each.getMessage()) for each in caplog.records]
    policy = "auto.offset.reset is earliest: going on at offset 0"
    assert ("INFO", f"t-0: nothing was committed; {policy}") in said
    assert ("WARNING", f"t-0: the log has no offset 50 (any more); {policy}") in said


async def test_statistics_are_told_now_and_then(autojump_clock: Any) -> None:
    """A function gets what `statistics()` returns, every statistics.interval.ms."""
    told: list[Any] = []
    async with open_workplace() as place:
        seams: dict[str, Any] = {"seams": place.world.seams("user"), "on_statistics": told.append}
        async with Producer(place.broker.address, statistics_interval_ms=1000, **seams) as producer:
            await producer.send_and_wait("t", b"value")
            await trio.sleep(2.5)
        assert [each.delivered for each in told] == [1, 1]
        async with place.consumer("a", on_statistics=told.append, statistics_interval_ms=500) as a:
            await a.assign_topics("t")
            await trio.sleep(1.2)
        assert [each.partition_count for each in told[2:]] == [4, 4]


async def test_a_delivered_record_has_its_time(autojump_clock: Any) -> None:
    """The one it was sent with, or else its batch's; what a consumer reads is the same."""
    async with open_workplace() as place:
        seams = place.world.seams("user")
        async with Producer(place.broker.address, seams=seams) as producer:
            given = await producer.send_and_wait("t", b"a", partition=0, timestamp_ms=1234)
            taken = await producer.send_and_wait("t", b"b", partition=0)
        async with place.consumer("a", group_id="") as a:
            await a.assign_topics("t")
            times = [record.timestamp for record in await a.poll(5)]
    assert times == [given.timestamp, taken.timestamp]
    assert given.timestamp == 1234
