"""Commits of a member that is put out, and joins again, while one of them is under way."""

from typing import Any

import pytest
import trio

from minibroker.client.committed_offsets import OffsetAndMetadata
from minibroker.client.errors import CommitFailed
from minibroker.client.groups.membership import Membership
from minibroker.client.groups.offset_commits import OffsetCommits
from minibroker.client.options import ConsumerOptions, read_options
from minibroker.protocol.constants import ErrorCode
from minibroker.protocol.messages.group_offsets import OffsetCommitResponse, PartitionCommitted
from minibroker.protocol.messages.groups import JoinGroupResponse, SyncGroupResponse
from minibroker.protocol.types import TopicPartition

A = TopicPartition("t", 0)


class Rejoining:
    """A coordinator that asks for patience, and a member that is put out and back meanwhile."""

    def __init__(self, member: Membership) -> None:
        self.member = member
        self.asked: list[Any] = []

    async def ask(self, _api_key: object, request: object, _lane: str) -> OffsetCommitResponse:
        """The first commit has to wait; any other one is taken."""
        await trio.lowlevel.checkpoint()
        self.asked.append(request)
        wait = ErrorCode.REBALANCE_IN_PROGRESS if len(self.asked) == 1 else ErrorCode.NONE
        return OffsetCommitResponse((PartitionCommitted(*A, wait),))

    async def pause(self, _failures: int) -> None:
        """Time for what happens meanwhile."""
        await trio.lowlevel.checkpoint()
        heartbeat = self.member.heartbeat()
        self.member.handle_heartbeat(heartbeat, ErrorCode.UNKNOWN_MEMBER_ID, trio.current_time())
        self.member.accept_loss()
        join(self.member, 8, "m-2")


def join(member: Membership, generation: int, member_id: str) -> None:
    """Be a member of this generation."""
    member.begin_join()
    joined = JoinGroupResponse(0, generation, "range", member_id, member_id)
    member.handle_join(joined, trio.current_time())
    member.handle_sync(SyncGroupResponse(), trio.current_time())
    member.complete_rebalance(must_join=False)


async def test_a_commit_of_before_an_exit_is_not_sent_after_it() -> None:
    """Others may have read on and committed more: in the new generation it would set them back."""
    member = Membership(read_options(ConsumerOptions, "a:1", {"group_id": "g"}))
    member.request_join()
    join(member, 7, "m-1")
    coordinator = Rejoining(member)
    commits = OffsetCommits(coordinator, member)  # type: ignore[arg-type]
    with pytest.raises(CommitFailed, match="put out meanwhile"):
        await commits.commit(lambda: {A: OffsetAndMetadata(54)}, timeout_s=1)
    assert [request.generation for request in coordinator.asked] == [7]
    await commits.commit(lambda: {A: OffsetAndMetadata(81)}, timeout_s=1)
    assert [request.generation for request in coordinator.asked] == [7, 8]
