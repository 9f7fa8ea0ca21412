"""The writes of a group: the records to store, and what the group does once they are stored.

A write is pending from `put` until its result is known (`complete`), or until the group has moved
on (`forget`). After that its record may still be committed, but nothing depends on it.
"""

import itertools
from typing import NamedTuple, TypeAlias

from minibroker.broker.groups.consumer_records import ConsumerKey, ConsumerValue
from minibroker.broker.groups.records import GroupMetadata


class Write(NamedTuple):
    """A record to append; the writer puts the wall clock into `state_timestamp_ms`."""

    token: int
    value: GroupMetadata


class Batch(NamedTuple):
    """Records of a group of the consumer protocol, to append as one batch."""

    token: int
    records: tuple[tuple[ConsumerKey, ConsumerValue | None], ...]


class Assigned(NamedTuple):
    """The leader's assignments, by member; answers the members that asked for theirs."""

    parts: dict[str, bytes]


class Replaced(NamedTuple):
    """The new id of a static member; answers its JOIN."""

    member_id: str


class Emptied(NamedTuple):
    """The group is empty; answers nobody."""


Reason: TypeAlias = Assigned | Replaced | Emptied


class Outbox:
    """See the head of this module."""

    def __init__(self) -> None:
        self._tokens = itertools.count(1)
        self._new: list[Write] = []
        self._under_way: dict[int, Reason] = {}

    def put(self, value: GroupMetadata, reason: Reason) -> None:
        """Add a write, after all earlier ones."""
        token = next(self._tokens)
        self._new.append(Write(token, value))
        self._under_way[token] = reason

    def pop_new(self) -> tuple[Write, ...]:
        """Return what is to be appended, in order; each write is returned once."""
        writes, self._new = tuple(self._new), []
        return writes

    def complete(self, token: int) -> Reason | None:
        """Complete a write whose result is known. Return its purpose; None if it was forgotten."""
        return self._under_way.pop(token, None)

    def forget(self) -> None:
        """Forget the purpose of pending writes; those not returned yet are still to be written."""
        self._under_way.clear()

    def forget_replaced(self, member_id: str) -> None:
        """Forget that a member waits for its new id."""
        gone = Replaced(member_id)
        under_way = self._under_way.items()
        self._under_way = {token: reason for token, reason in under_way if reason != gone}

    @property
    def is_assigning(self) -> bool:
        """Whether assignments are pending."""
        return any(isinstance(reason, Assigned) for reason in self._under_way.values())
