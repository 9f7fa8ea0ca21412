"""The client side of a fetch session, for followers and consumers alike.

A fetch session saves resending what the broker already knows. `ask` and `forget` set the wanted
partitions; `build` makes a request from those that are new or changed since the last request, and
lists as forgotten those no longer wanted. `on_response` processes the answer. After anything that
may leave the two sides with different state (an error, a lost connection) the caller uses `reset`:
the next request is a full one, names the old session so that the broker drops it, and opens
another. A broker that grants no session answers with id 0; then every request is a full one.
"""

from minibroker.protocol.constants import NO_EPOCH, NO_NODE, READ_UNCOMMITTED
from minibroker.protocol.messages.fetch import (
    SESSION_EPOCH_OPEN,
    SESSION_NONE,
    FetchRequest,
    FetchResponse,
    PartitionFetch,
)
from minibroker.protocol.types import TopicPartition

SESSION_EPOCH_MAX = 2**31 - 1


class FetchSessionHandler:
    """One session with one broker. One request is in flight at a time.

    Each request is made in the same order: `begin`, then `ask` and `forget`, then `build`.
    """

    def __init__(self) -> None:
        self._session_id = SESSION_NONE
        self._next_epoch = SESSION_EPOCH_OPEN
        # The partitions that the session fetches; those of them that are new or changed; and those
        # that it still fetches but no longer should.
        self._asked: dict[TopicPartition, PartitionFetch] = {}
        self._changed: list[PartitionFetch] = []
        # The value: whether to list the partition as forgotten even if it is asked for again.
        self._forgotten: dict[TopicPartition, bool] = {}

    def __len__(self) -> int:
        return len(self._asked)

    @property
    def is_new(self) -> bool:
        """Whether the next request opens a session and lists all partitions."""
        return self._next_epoch == SESSION_EPOCH_OPEN

    @property
    def changed_count(self) -> int:
        """The number of partitions that the next request lists as new or changed."""
        return len(self._changed)

    def begin(self) -> None:
        """Begin a request; for a new session, clear the state of the old one."""
        if self.is_new:
            self._asked.clear()
            self._changed.clear()
            self._forgotten.clear()

    def ask(self, name: TopicPartition, wanted: PartitionFetch) -> None:
        """Add a partition to the session, or change how it is fetched."""
        known = self._asked.get(name)
        if known is not wanted and known != wanted:
            self._asked[name] = wanted
            self._changed.append(wanted)
            if not self._forgotten.get(name, True):
                del self._forgotten[name]

    def forget(self, name: TopicPartition) -> None:
        """Remove a partition from the session."""
        if self._asked.pop(name, None) is not None:
            self._forgotten[name] = False

    def renew(self, name: TopicPartition) -> None:
        """Remove a partition, and list it as forgotten even if it is asked for again.

        The broker then sends its full state again: an answer in flight is going to be discarded.
        """
        self.forget(name)
        if name in self._forgotten:
            self._forgotten[name] = True

    def forget_all_but(self, names: set[TopicPartition]) -> None:
        """Remove all other partitions from the session."""
        for name in [name for name in self._asked if name not in names]:
            self.forget(name)

    def asked(self, name: TopicPartition) -> PartitionFetch | None:
        """Return the partition's last request, in flight or earlier; None if it has none."""
        return self._asked.get(name)

    def build(
        self,
        *,
        wait_ms_max: int,
        bytes_min: int,
        bytes_max: int,
        replica_id: int = NO_NODE,
        broker_epoch: int = NO_EPOCH,
        isolation_level: int = READ_UNCOMMITTED,
    ) -> FetchRequest:
        """Return the next request. Times are in ms, sizes in bytes."""
        request = FetchRequest(
            replica_id=replica_id,
            wait_ms_max=wait_ms_max,
            bytes_min=bytes_min,
            bytes_max=bytes_max,
            session_id=self._session_id,
            session_epoch=self._next_epoch,
            partitions=tuple(self._changed),
            forgotten=tuple(self._forgotten),
            broker_epoch=broker_epoch,
            isolation_level=isolation_level,
        )
        self._changed.clear()
        self._forgotten.clear()
        return request

    def on_response(self, response: FetchResponse) -> None:
        """Process an answer. The next request is full if this one has an error or no session."""
        if response.error or response.session_id == SESSION_NONE:
            self.reset()
            return
        self._session_id = response.session_id
        self._next_epoch = 1 if self._next_epoch == SESSION_EPOCH_MAX else self._next_epoch + 1

    def reset(self) -> None:
        """Make the next request a full one that opens another session."""
        self._next_epoch = SESSION_EPOCH_OPEN
