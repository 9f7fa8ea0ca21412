"""The asking side of a fetch session, for followers and consumers alike.

What the broker already knows need not travel again. `ask` and `forget` say what is wanted from now
on; `build` makes a request of what is new or changed since the last one, and names as forgotten
what is no longer wanted. `on_response` follows the answer. Whatever may have put the two sides out
of step (an error, a lost connection) ends in `reset`: the next request is a full one, names the old
session so that the broker drops it, and opens another. A broker that has no session to give answers
with id 0; then every request is a full one.
"""

from minibroker.protocol.constants import NO_EPOCH, NO_NODE
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
    """One session with one broker. One request is under way at a time.

    Each request is made in the same order: `begin`, then `ask` and `forget`, then `build`.
    """

    def __init__(self) -> None:
        self._session_id = SESSION_NONE
        self._next_epoch = SESSION_EPOCH_OPEN
        # What the broker fetches for us; what is new or changed in it; and what it fetches in vain.
        self._asked: dict[TopicPartition, PartitionFetch] = {}
        self._changed: list[PartitionFetch] = []
        # Whether it is named as forgotten, too, where it is asked for again at once.
        self._forgotten: dict[TopicPartition, bool] = {}

    def __len__(self) -> int:
        return len(self._asked)

    @property
    def is_new(self) -> bool:
        """Whether the next request opens a session, and says everything."""
        return self._next_epoch == SESSION_EPOCH_OPEN

    @property
    def changed_count(self) -> int:
        """How many partitions the next request names as new or changed."""
        return len(self._changed)

    def begin(self) -> None:
        """Begin a request: a new session knows nothing."""
        if self.is_new:
            self._asked.clear()
            self._changed.clear()
            self._forgotten.clear()

    def ask(self, name: TopicPartition, wanted: PartitionFetch) -> None:
        """Have the broker fetch this from now on."""
        known = self._asked.get(name)
        if known is not wanted and known != wanted:
            self._asked[name] = wanted
            self._changed.append(wanted)
            if not self._forgotten.get(name, True):
                del self._forgotten[name]

    def forget(self, name: TopicPartition) -> None:
        """Have the broker fetch it no more."""
        if self._asked.pop(name, None) is not None:
            self._forgotten[name] = False

    def renew(self, name: TopicPartition) -> None:
        """Have the broker fetch it no more, and tell everything about it if it is asked for again:
        an answer that is under way is not taken."""
        self.forget(name)
        if name in self._forgotten:
            self._forgotten[name] = True

    def forget_all_but(self, names: set[TopicPartition]) -> None:
        """Have the broker fetch no other partitions."""
        for name in [name for name in self._asked if name not in names]:
            self.forget(name)

    def asked(self, name: TopicPartition) -> PartitionFetch | None:
        """Return what the broker was asked for, in the request under way or an earlier one."""
        return self._asked.get(name)

    def build(
        self,
        *,
        wait_ms_max: int,
        bytes_min: int,
        bytes_max: int,
        replica_id: int = NO_NODE,
        broker_epoch: int = NO_EPOCH,
    ) -> FetchRequest:
        """Return the request: times in ms, sizes in bytes."""
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
        )
        self._changed.clear()
        self._forgotten.clear()
        return request

    def on_response(self, response: FetchResponse) -> None:
        """Follow the answer. With an error in it, or without a session, the next one is new."""
        if response.error or response.session_id == SESSION_NONE:
            self.reset()
            return
        self._session_id = response.session_id
        self._next_epoch = 1 if self._next_epoch == SESSION_EPOCH_MAX else self._next_epoch + 1

    def reset(self) -> None:
        """Say everything in the next request, and open another session."""
        self._next_epoch = SESSION_EPOCH_OPEN
