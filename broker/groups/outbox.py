"""The writes of a group: what it wants stored, and what follows when it is.

A write is under way from `put` until its result is known (`complete`), or until the group has moved
on (`forget`): its record may still be committed then, but nothing here depends on it.
"""

import itertools
from typing import NamedTuple, TypeAlias

from minibroker.broker.groups.records import GroupMetadata


class Write(NamedTuple):
    """A record to append; the writer puts the wall clock into `state_timestamp_ms`."""

    token: int
    value: GroupMetadata


class Assigned(NamedTuple):
    """The leader's assignment, by member; whoever asked for a part is answered."""

    parts: dict[str, bytes]


class Replaced(NamedTuple):
    """The new id of a static member, whose join is answered."""

    member_id: str


class Emptied(NamedTuple):
    """That nobody is left; nobody waits for it."""


Reason: TypeAlias = Assigned | Replaced | Emptied


class Outbox:
    """See the head of this module."""

    def __init__(self) -> None:
        self._tokens = itertools.count(1)
        self._new: list[Write] = []
        self._under_way: dict[int, Reason] = {}

    def put(self, value: GroupMetadata, reason: Reason) -> None:
        """This is to be written after all that was put before."""
        token = next(self._tokens)
        self._new.append(Write(token, value))
        self._under_way[token] = reason

    def pop_new(self) -> tuple[Write, ...]:
        """Return what is to be appended, in order; each write is returned once."""
        writes, self._new = tuple(self._new), []
        return writes

    def complete(self, token: int) -> Reason | None:
        """End a write whose result is known. Return what it was for, None if forgotten."""
        return self._under_way.pop(token, None)

    def forget(self) -> None:
        """Nothing hangs on what is under way; what was not taken yet is still to be written."""
        self._under_way.clear()

    def forget_replaced(self, member_id: str) -> None:
        """Nobody waits any longer for the id of this member."""
        gone = Replaced(member_id)
        under_way = self._under_way.items()
        self._under_way = {token: reason for token, reason in under_way if reason != gone}

    @property
    def is_assigning(self) -> bool:
        """Whether an assignment is under way."""
        return any(isinstance(reason, Assigned) for reason in self._under_way.values())
