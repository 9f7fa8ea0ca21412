"""The changes of a consumer group's state on their way to the log, and the answers that wait for
them.

A change is applied at once. The changes of a step are one batch of records, which has a token. An
answer waits for the newest batch at its time. A batch that is refused before it is appended is
taken back, and its answers become errors; a batch that is appended stays, even if it is committed
late: no other coordinator can have decided meanwhile, or this one ends.
"""

from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from minibroker.broker.groups.consumer_records import ConsumerKey, ConsumerRecord, ConsumerValue
from minibroker.broker.groups.consumer_state import ConsumerState
from minibroker.broker.groups.member import Ticket
from minibroker.broker.groups.outbox import Batch
from minibroker.protocol.constants import ErrorCode
from minibroker.protocol.messages.consumer_groups import ConsumerGroupHeartbeatResponse
from minibroker.protocol.messages.groups import JoinGroupResponse, SyncGroupResponse

AnyAnswer: TypeAlias = ConsumerGroupHeartbeatResponse | JoinGroupResponse | SyncGroupResponse
Answer = TypeVar("Answer", ConsumerGroupHeartbeatResponse, JoinGroupResponse, SyncGroupResponse)


FIRST_TOKEN: Final = 1


class _Change(NamedTuple):
    """A record that is applied, and the value before it."""

    key: ConsumerKey
    value: ConsumerValue | None
    before: ConsumerValue | None


class _Waiting(NamedTuple):
    """An answer, and the batch that it depends on."""

    token: int
    ticket: Ticket[Any]
    answer: AnyAnswer


class ConsumerJournal:
    """See the head of this module."""

    def __init__(self, state: ConsumerState, *, is_committed: bool = True) -> None:
        """`is_committed`: whether the records of `state` are; else they are the first batch."""
        self._state = state
        self._changes: list[_Change] = []
        self._newest: list[_Change] = []  # of the newest batch
        self._last_token = 0 if is_committed else FIRST_TOKEN
        self._written = 0
        self._waiting: list[_Waiting] = []

    def set(self, kind: ConsumerRecord, name: str, value: ConsumerValue | None) -> None:
        """Apply a record, without a value a tombstone, and have it appended if it is a change."""
        key = self._state.key(kind, name)
        before = self._state.set(key, value)
        if value != before:
            self._changes.append(_Change(key, value, before))

    def has(self, kind: ConsumerRecord) -> bool:
        """Whether a record of a kind is among the changes that are not returned yet."""
        return any(each.key.kind is kind for each in self._changes)

    def pop_batches(self) -> tuple[Batch, ...]:
        """Return the records to append now, at most one batch; each is returned once."""
        if not self._changes:
            return ()
        self._last_token += 1
        self._newest, self._changes = self._changes, []
        records = tuple((each.key, each.value) for each in self._newest)
        return (Batch(self._last_token, records),)

    def drop(self) -> None:
        """Take back the changes that are not returned yet."""
        self._take_back(self._changes)

    def answer(self, answer: Answer) -> Ticket[Answer]:
        """Return the ticket of an answer that depends on all changes so far."""
        ticket: Ticket[Answer] = Ticket()
        token = self._last_token + bool(self._changes)
        if token <= self._written:
            ticket.answer = answer
        else:
            self._waiting.append(_Waiting(token, ticket, answer))
        return ticket

    def written(self, token: int) -> None:
        """Handle that a batch is committed."""
        self._written = token
        ready = [each for each in self._waiting if each.token <= token]
        self._waiting = [each for each in self._waiting if each.token > token]
        for _, ticket, answer in ready:
            ticket.answer = answer

    def not_written(self, token: int, error: ErrorCode) -> None:
        """Take back the newest batch, which was refused."""
        assert token == self._last_token, "a refusal is known before the next batch"
        assert not self._changes, "a refusal is known before the next change"
        self._take_back(self._newest)
        self._last_token -= 1
        self._refuse([each for each in self._waiting if each.token == token], error)
        self._waiting = [each for each in self._waiting if each.token < token]

    def close(self, error: ErrorCode) -> None:
        """Answer all that waits with an error; no change is appended any more."""
        self._refuse(self._waiting, error)
        self._waiting = []
        self._changes = []

    def _refuse(self, refused: list[_Waiting], error: ErrorCode) -> None:
        for _, ticket, answer in refused:
            ticket.answer = _refused(answer, error)

    def _take_back(self, changes: list[_Change]) -> None:
        for key, _, before in reversed(changes):
            self._state.set(key, before)
        changes.clear()


def _refused(answer: AnyAnswer, error: ErrorCode) -> AnyAnswer:
    if isinstance(answer, SyncGroupResponse):
        return SyncGroupResponse(error)
    if isinstance(answer, JoinGroupResponse):
        return JoinGroupResponse(error, member_id=answer.member_id)
    return ConsumerGroupHeartbeatResponse(error, member_id=answer.member_id)
