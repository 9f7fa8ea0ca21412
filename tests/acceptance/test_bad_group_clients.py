"""What an application is told when it does something wrong with a group: one real broker.

docs/faults.md has the table of what the broker answers.
"""

from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest
import trio

from minibroker.client import (
    Admin,
    BrokerError,
    ClientError,
    CommitFailed,
    Consumer,
    OffsetAndMetadata,
    OffsetOutOfRange,
    Producer,
    TopicPartition,
)
from minibroker.protocol.constants import OFFSETS_TOPIC
from tests.support.processes import BrokerProcess
from tests.support.sound_group import TOPIC, Member, sound_group

GROUP = "sound-beside-clients"
SOON_S = 10.0
TEXT_CHARS_MAX = 300


@pytest.fixture(scope="module")
def member(broker: BrokerProcess) -> Iterator[Member]:
    """Who must not notice; for all of this file."""
    with sound_group(broker.address, GROUP) as found:
        yield found


async def polled(address: str, **options: Any) -> None:
    """Subscribe and poll, as a member of a group with these options."""
    given = {"group_id": "said", "session_timeout_ms": 6000} | options
    async with Consumer(address, **given) as consumer:
        await consumer.subscribe(TOPIC)
        await consumer.poll()


async def committed(address: str, partition: int, offset: OffsetAndMetadata) -> None:
    """Commit this, as a consumer that is assigned by hand."""
    async with Consumer(address, group_id="said", enable_auto_commit=False) as consumer:
        await consumer.assign_topics(TOPIC)
        await consumer.commit({TopicPartition(TOPIC, partition): offset})


async def committed_beside_members(address: str) -> None:
    """Commit by hand for a group that has a member."""
    async with Consumer(address, group_id=GROUP, enable_auto_commit=False) as consumer:
        await consumer.assign_topics(TOPIC)
        await consumer.commit({TopicPartition(TOPIC, 0): OffsetAndMetadata(0)})


async def read_beyond_the_end(address: str) -> None:
    """Read on where a group has committed more than there is."""
    options = {"enable_auto_commit": False, "auto_offset_reset": "none"}
    async with Consumer(address, group_id="beyond", **options) as consumer:
        await consumer.assign_topics(TOPIC)
        await consumer.commit({TopicPartition(TOPIC, 0): OffsetAndMetadata(1000)})
    async with Consumer(address, group_id="beyond", **options) as consumer:
        await consumer.assign_topics(TOPIC)
        await consumer.poll()


async def in_no_group(address: str) -> None:
    """Subscribe without a group id."""
    async with Consumer(address, group_id="") as consumer:
        await consumer.subscribe(TOPIC)


async def written(address: str) -> None:
    """Send a record to the offsets topic."""
    async with Producer(address) as producer:
        await producer.send_and_wait(OFFSETS_TOPIC, b"value", partition=0)


async def deleted(address: str) -> None:
    """Delete the offsets topic."""
    async with Admin(address) as admin:
        await admin.delete_topics(OFFSETS_TOPIC)


SAID: dict[str, tuple[Callable[[str], Awaitable[None]], type[Exception], str]] = {
    "a session too short": (
        lambda address: polled(address, session_timeout_ms=500, heartbeat_interval_ms=100),
        BrokerError,
        "INVALID_SESSION_TIMEOUT.*session.timeout.ms",
    ),
    "no common protocol": (
        lambda address: polled(address, group_id=GROUP),
        BrokerError,
        "INCONSISTENT_GROUP_PROTOCOL.*partition.assignment.strategy",
    ),
    "a group's name of 32 KB": (
        lambda address: polled(address, group_id="g" * 32_768),
        BrokerError,
        "INVALID_GROUP_ID.*'g{60}\\.\\.\\.'",
    ),
    "an instance's name of 10 KB": (
        lambda address: polled(address, group_instance_id="i" * 10_240),
        BrokerError,
        "INVALID_REQUEST.*group.instance.id",
    ),
    "no group": (in_no_group, ClientError, "give it a group_id"),
    "a commit for a partition that is not there": (
        lambda address: committed(address, 9, OffsetAndMetadata(0)),
        BrokerError,
        f"UNKNOWN_TOPIC_OR_PARTITION: the commit of {TOPIC}-9",
    ),
    "metadata too long": (
        lambda address: committed(address, 0, OffsetAndMetadata(0, "x" * 4097)),
        BrokerError,
        f"OFFSET_METADATA_TOO_LARGE: the commit of {TOPIC}-0",
    ),
    "a negative offset": (
        lambda address: committed(address, 0, OffsetAndMetadata(-1)),
        ValueError,
        "an offset is 0 to",
    ),
    "a commit of nobody beside members": (
        committed_beside_members,
        CommitFailed,
        f"{GROUP}.*UNKNOWN_MEMBER_ID",
    ),
    "a commit beyond the log's end": (
        read_beyond_the_end,
        OffsetOutOfRange,
        f"{TOPIC}-0 at offset 1000",
    ),
    "a record for the offsets topic": (written, BrokerError, "INVALID_TOPIC.*use the group apis"),
    "deleting the offsets topic": (deleted, BrokerError, "INVALID_TOPIC.*delete groups instead"),
}


@pytest.mark.parametrize("name", SAID)
async def test_a_client_says_what_is_wrong(
    broker: BrokerProcess, member: Member, name: str
) -> None:
    """The application gets one exception, which names the thing and what to do about it, and gets
    it soon."""
    call, kind, words = SAID[name]
    with trio.fail_after(SOON_S), pytest.raises(kind, match=words) as raised:
        await call(broker.address)
    assert len(str(raised.value)) <= TEXT_CHARS_MAX
    member.goes_on()
