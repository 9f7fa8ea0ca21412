"""What happened to one consumer group, as its members and their wires saw it.

Two sources, neither of which is a broker: the application of each member (what a poll returned,
what it has finished, which callbacks were called) and the wire (`group_tap.py`: each request and
its answer, so a retry inside the client is seen as what it is). A member is one process, `who`;
its slot's next process is another one.

`History` puts the events in their order and shows each to the checkers.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol, TypeAlias

from minibroker.broker.groups.consumer_records import Partitions
from minibroker.protocol.types import TopicPartition

Places: TypeAlias = tuple[TopicPartition, ...]
Offsets: TypeAlias = Mapping[TopicPartition, int]


class Assigned(NamedTuple):
    """The application was told that these are its partitions, beside those that it has."""

    who: str
    places: Places


class Revoked(NamedTuple):
    """It has given these back, and has had the time to commit."""

    who: str
    places: Places


class Lost(NamedTuple):
    """It was told that these may be somebody else's already."""

    who: str
    places: Places


class Shown(NamedTuple):
    """A poll returned a record."""

    who: str
    place: TopicPartition
    offset: int


class Done(NamedTuple):
    """The application has finished with a record."""

    who: str
    place: TopicPartition
    offset: int


class Closing(NamedTuple):
    """`close` was called."""

    who: str
    timeout_s: float


class Closed(NamedTuple):
    """`close` has returned."""

    who: str


class Crashed(NamedTuple):
    """The process is no more."""

    who: str


class CommitBegun(NamedTuple):
    """The application has called `commit`, and waits for it."""

    who: str


class CommitEnded(NamedTuple):
    """It goes on, whatever became of the commit."""

    who: str


class CommitFailed(NamedTuple):
    """The application's own commit raised, so it knows that it is read again."""

    who: str
    error: str


class CommitSent(NamedTuple):
    """OFFSET_COMMIT went out; `number` is that of the request."""

    who: str
    number: int
    generation: int
    offsets: Offsets


class CommitAnswered(NamedTuple):
    """An error code, or 0, for each of its partitions."""

    who: str
    number: int
    errors: Mapping[TopicPartition, int]


class FetchSent(NamedTuple):
    """OFFSET_FETCH went out."""

    who: str
    number: int


class FetchAnswered(NamedTuple):
    """What is committed, -1 where nothing is; partitions with an error are not in it."""

    who: str
    number: int
    offsets: Offsets


class Synced(NamedTuple):
    """SYNC_GROUP was answered. `member` is the instance id of a static member."""

    who: str
    generation: int
    member: str
    places: Places


class PutOut(NamedTuple):
    """HEARTBEAT was answered: the group has gone on without this member of a generation."""

    who: str
    generation: int


class BeatSent(NamedTuple):
    """CONSUMER_GROUP_HEARTBEAT went out. `owned` is None where the member does not say what it
    has; `instance` is that of a static member."""

    who: str
    number: int
    instance: str | None
    epoch: int
    owned: Partitions | None


class BeatAnswered(NamedTuple):
    """It was answered. `places` is None where the assignment did not change."""

    who: str
    number: int
    error: int
    epoch: int
    places: Partitions | None


Event: TypeAlias = (
    Assigned | Revoked | Lost | Shown | Done | Closing | Closed | Crashed | CommitBegun
    | CommitEnded | CommitFailed | CommitSent | CommitAnswered | FetchSent | FetchAnswered
    | Synced | PutOut | BeatSent | BeatAnswered
)  # fmt: skip


class Checker(Protocol):
    """See group_checkers.py."""

    def look(self, now: float, event: Event) -> None:
        """Raises `Violation`."""


class History:
    """The events of a group until now, each shown to all checkers when it happens."""

    def __init__(self, checkers: Sequence[Checker]) -> None:
        self.events: list[tuple[float, Event]] = []
        self._checkers = checkers

    def note(self, now: float, event: Event) -> None:
        """It happens now. Raises `Violation`."""
        self.events.append((now, event))
        for checker in self._checkers:
            checker.look(now, event)

    def __str__(self) -> str:
        return "\n".join(f"{now:9.4f} {event}" for now, event in self.events)
