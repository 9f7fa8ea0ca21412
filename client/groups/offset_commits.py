"""Committed offsets: OFFSET_COMMIT and OFFSET_FETCH, repeated until there is an answer.

A consumer sends its commits one at a time, over one connection. Each is made from the state when
its turn comes, and one without an answer is sent again before any other. So an older commit does
not overtake a newer one: the coordinator appends in the order in which it reads. One case remains:
a request whose connection was lost reaches the same coordinator, in the same generation, only after
the next request came over the next connection. Then the committed offset goes back to where this
consumer was a moment before. Nothing is lost: a member that starts from it reads some records
again, and the next commit corrects it.

The client waits while errors may pass: another coordinator, one that loads, too few replicas, a
rebalance under way (a cooperative member goes on to the next generation without the application,
and may then commit in that one). A commit that the group refuses because this consumer is no longer
a member can never succeed; what was read since the last one will be read again.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

import trio

from minibroker.client.committed_offsets import OffsetAndMetadata, Offsets
from minibroker.client.errors import error_code
from minibroker.client.groups.membership import (
    NOT_THE_COORDINATOR,
    Membership,
    NextStep,
)
from minibroker.client.net.connection_pool import COMMITS
from minibroker.client.net.coordinator_client import CoordinatorClient
from minibroker.protocol.constants import ApiKey, ErrorCode
from minibroker.protocol.errors import NOT_A_MEMBER, BrokerError
from minibroker.protocol.messages.group_offsets import (
    GroupPartition,
    OffsetFetchRequest,
    OffsetFetchResponse,
    PartitionCommit,
)
from minibroker.protocol.types import TopicPartition


class CommitAnswer(NamedTuple):
    """What a coordinator has said of some offsets, and who had asked; `error` is NONE if they are
    committed. The generation is -1 and the id empty for a consumer that is no member."""

    group_id: str
    generation: int
    member_id: str
    offsets: Mapping[TopicPartition, int]
    error: ErrorCode


def drop_answer(_: CommitAnswer) -> None:
    """Do nothing with an answer."""


class OffsetCommits:
    """The commits of one consumer. `record` is called with each answer that settles a commit, and
    with each refusal to a consumer that is not in the generation any more."""

    def __init__(
        self,
        coordinator: CoordinatorClient,
        membership: Membership,
        record: Callable[[CommitAnswer], None] = drop_answer,
    ) -> None:
        self._coordinator = coordinator
        self._membership = membership
        self._record = record
        self._turn = trio.StrictFIFOLock()

    async def commit(self, choose: Callable[[], Offsets], timeout_s: float) -> Offsets:
        """Commit what `choose` returns when the commit's turn has come; return that.

        Raises `CommitFailed`; `BrokerError` if a partition was refused, when the others are
        committed; `ClientTimeout`: then the commit may or may not have been made.
        """
        last: list[Exception] = []
        exit_count = self._membership.exit_count
        with trio.move_on_after(timeout_s):
            async with self._turn:
                offsets = choose()
                await self._commit(offsets, exit_count, last)
            return offsets
        text = f"a commit was not answered within {timeout_s:g} s, and may have been done"
        raise self._coordinator.timeout(text, last[-1] if last else None)

    async def finish(self) -> None:
        """Wait until all earlier commits have ended."""
        async with self._turn:
            pass

    async def fetch(
        self, names: Iterable[TopicPartition], timeout_s: float
    ) -> dict[TopicPartition, OffsetAndMetadata | None]:
        """Return the committed offsets, None for a partition without one; wait for pending commits
        first.

        Raises `BrokerError` and `ClientTimeout`.
        """
        asked = tuple(GroupPartition(*name) for name in names)
        request = OffsetFetchRequest(self._membership.group_id, asked, require_stable=True)
        last: Exception | None = None
        failures = 0
        with trio.move_on_after(timeout_s):
            while True:
                try:
                    answer = await self._coordinator.ask(ApiKey.OFFSET_FETCH, request, COMMITS)
                    return _read(answer)
                except (OSError, BrokerError) as error:
                    last = error
                    if isinstance(error, BrokerError):
                        if not error.is_retriable:
                            raise
                        if error.code in NOT_THE_COORDINATOR:
                            self._coordinator.forget()
                await self._coordinator.pause(failures)
                failures += 1
        raise self._coordinator.timeout(f"no committed offsets within {timeout_s:g} s", last)

    async def _commit(self, offsets: Offsets, exit_count: int, last: list[Exception]) -> None:
        left = dict(offsets)
        refusals: list[Exception] = []
        failures = 0
        while left:
            if self._membership.exit_count != exit_count:
                raise self._membership.commit_failed("it was put out meanwhile")
            asked = (
                PartitionCommit(*name, each.offset, each.leader_epoch, each.metadata)
                for name, each in left.items()
            )
            request = self._membership.commit(tuple(asked))
            sent_at = trio.current_time()
            try:
                answer = await self._coordinator.ask(ApiKey.OFFSET_COMMIT, request, COMMITS)
            except OSError as error:
                last.append(error)
            else:
                said: dict[ErrorCode, dict[TopicPartition, int]] = {}
                for committed in answer.partitions:
                    name = TopicPartition(committed.topic, committed.partition)
                    code = error_code(committed.error)
                    step = self._membership.handle_commit(request, code, sent_at)
                    is_settled = step in (NextStep.CONTINUE, NextStep.STOP)
                    if is_settled or code in NOT_A_MEMBER:
                        said.setdefault(code, {})[name] = left[name].offset
                    if is_settled:
                        del left[name]
                    if step is not NextStep.CONTINUE:
                        last.append(self._refusal(name, code))
                    if step is NextStep.STOP:
                        refusals.append(last[-1])
                    if step is NextStep.FIND_COORDINATOR:
                        self._coordinator.forget()
                by = (request.group_id, request.generation, request.member_id)
                for code, these in said.items():
                    self._record(CommitAnswer(*by, these, code))
            if left:
                await self._coordinator.pause(failures)
                failures += 1
        if refusals:
            raise refusals[0]

    def _refusal(self, name: TopicPartition, error: ErrorCode) -> Exception:
        if error not in NOT_A_MEMBER or error == ErrorCode.FENCED_INSTANCE_ID:
            return BrokerError(error, f"the commit of {name}")
        return self._membership.commit_failed(error.name)


def _read(answer: OffsetFetchResponse) -> dict[TopicPartition, OffsetAndMetadata | None]:
    """Return the offsets of an answer. Raises `BrokerError` for any error in it."""
    if answer.error:
        raise BrokerError(error_code(answer.error), "what the group has committed")
    found: dict[TopicPartition, OffsetAndMetadata | None] = {}
    for each in answer.partitions:
        name = TopicPartition(each.topic, each.partition)
        if each.error:
            raise BrokerError(error_code(each.error), f"what was committed of {name}")
        committed = OffsetAndMetadata(each.offset, each.metadata or "", each.leader_epoch)
        found[name] = None if each.offset < 0 else committed
    return found
