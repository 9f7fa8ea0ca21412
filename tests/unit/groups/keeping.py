"""A broker that keeps groups, for tests that speak to it without connections.

It leads the one partition of the offsets topic, and topic `t` of three partitions. With
`replicas=(1, 2)` broker 2 is a follower of the offsets topic, and nothing is committed before a
test says how far it has come.
"""

from collections.abc import AsyncIterator, Generator
from contextlib import asynccontextmanager
from typing import Any

import trio
import trio.testing

from minibroker.broker.groups.shard import Shard
from minibroker.broker.replication.partition import Partition
from minibroker.broker.replication.purgatory import Parked
from minibroker.broker.server.dispatch import dispatch
from minibroker.broker.turns import without_pause
from minibroker.protocol.constants import OFFSETS_TOPIC, ErrorCode
from minibroker.protocol.messages import APIS, RequestEnvelope
from minibroker.protocol.messages.group_offsets import (
    GroupPartition,
    OffsetCommitRequest,
    OffsetFetchRequest,
    PartitionCommit,
    PartitionGroupOffset,
)
from minibroker.protocol.messages.groups import (
    GroupProtocol,
    JoinGroupRequest,
    JoinGroupResponse,
    MemberAssignment,
    SyncGroupRequest,
)
from minibroker.protocol.records.batch import iterate_headers
from minibroker.protocol.records.record import Record, decode_records
from minibroker.protocol.subscription import Subscription, encode_subscription
from minibroker.protocol.types import TopicPartition
from minibroker.testing.cluster import in_worker
from tests.unit.node import Node, state_of, state_of_transactions

OFFSETS = TopicPartition(OFFSETS_TOPIC, 0)
API_OF = {api.request: key for key, api in APIS.items()}
READS_T = (GroupProtocol("range", encode_subscription(Subscription(("t",)))),)
SESSION_MS = 10_000
TWO = (1, 2)  # replicas
HOUR_S = 3600.0


def state_of_offsets(**more: Any) -> Any:
    """What the partition of the offsets topic shall be."""
    return state_of(OFFSETS, topic_id=b"o" * 16, **more)


class Keeper(Node):
    """See the head of this module."""

    def __init__(self, replicas: tuple[int, ...] = (1,), **settings: str) -> None:
        super().__init__(**settings)
        self.live(1, 2)
        self.lead(*(state_of(TopicPartition("t", number)) for number in range(3)))
        self.know(state_of_transactions())
        self.lead(state_of_offsets(isr=replicas, replicas=replicas))

    @property
    def offsets(self) -> Partition:
        """The partition of the offsets topic."""
        return self.partition(OFFSETS)

    @property
    def shard(self) -> Shard:
        """What the coordinator has of it."""
        return self.groups._shards[OFFSETS]

    def ask(self, message: Any, peer: str = "10.0.0.1:5000") -> Any:
        """The answer to a request, or the `Parked` one."""
        envelope = RequestEnvelope(API_OF[type(message)], 0, 1, "app", message)
        outcome = dispatch(self.services, envelope, peer, trio.current_time())
        return without_pause(outcome) if isinstance(outcome, Generator) else outcome

    async def answer(self, message: Any) -> Any:
        """The answer to a request, waited for."""
        outcome = self.ask(message)
        return await self.wait(outcome) if isinstance(outcome, Parked) else outcome

    async def wait(self, parked: Parked[Any]) -> Any:
        """The answer to a request that waits."""
        answer = await self.purgatory.wait_for_answer(parked)
        return without_pause(answer) if isinstance(answer, Generator) else answer

    async def commit(self, offset: int, group_id: str = "g", **more: Any) -> int:
        """Commit an offset of t-0; the error."""
        partitions = (PartitionCommit("t", 0, offset),)
        request = OffsetCommitRequest(group_id, partitions=partitions, **more)
        return (await self.answer(request)).partitions[0].error

    def fetch(self, group_id: str = "g", **more: Any) -> PartitionGroupOffset:
        """What a group has committed for t-0."""
        answer = self.ask(OffsetFetchRequest(group_id, (GroupPartition("t", 0),), **more))
        assert not answer.error, answer
        return answer.partitions[0]

    async def join(self, group_id: str = "g", **more: Any) -> JoinGroupResponse:
        """The answer to a join of a consumer that reads t, asked again with the id it is given."""
        request = JoinGroupRequest(group_id, SESSION_MS, 30_000, protocols=READS_T, **more)
        answer: JoinGroupResponse = await self.answer(request)
        if answer.error == ErrorCode.MEMBER_ID_REQUIRED:
            return await self.join(group_id, member_id=answer.member_id, **more)
        return answer

    async def lead_group(self, group_id: str = "g") -> JoinGroupResponse:
        """Be the only member of a group, with an assignment."""
        joined = await self.join(group_id)
        parts = (MemberAssignment(joined.member_id, b"all"),)
        request = SyncGroupRequest(group_id, joined.generation, joined.member_id, assignments=parts)
        assert (await self.answer(request)).assignment == b"all"
        return joined

    def catch_up(self) -> None:
        """Broker 2 has all of the offsets topic."""
        self.followed(2, self.offsets.log.log_end, name=OFFSETS, now=trio.current_time())

    def stored(self) -> list[Record]:
        """All records of the offsets topic."""
        log = self.offsets.log
        slices = log.read(log.log_start, 2**31, log.log_end)
        data = memoryview(b"".join(bytes(part.read()) for part in slices))
        return [
            record
            for position, header in iterate_headers(data)
            for record in decode_records(data[position : position + header.size], header)
        ]


@asynccontextmanager
async def keeping(keeper: Keeper) -> AsyncIterator[Keeper]:
    """The coordinator's task runs, and has done what it can. A test has an hour for the rest."""
    is_done = False
    async with trio.open_nursery() as nursery:
        nursery.cancel_scope.deadline = trio.current_time() + HOUR_S
        nursery.start_soon(keeper.groups.run, in_worker)
        await trio.testing.wait_all_tasks_blocked()
        yield keeper
        is_done = True
        nursery.cancel_scope.cancel()
    assert is_done, "something waits in vain"


def error_of(keeper: Node, group_id: str = "g") -> int:
    """What a fetch of a group's offsets is answered as a whole."""
    answer = Keeper.ask(keeper, OffsetFetchRequest(group_id))  # type: ignore[arg-type]
    error: int = answer.error
    return error


async def turn() -> None:
    """Let everybody do what can be done now."""
    await trio.testing.wait_all_tasks_blocked()


def commit_of(*partitions: PartitionCommit, group_id: str = "g", **more: object) -> object:
    """A commit of these offsets."""
    return OffsetCommitRequest(group_id, partitions=partitions, **more)  # type: ignore[arg-type]
