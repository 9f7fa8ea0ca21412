"""A consumer's side of a fetch session: what the broker already knows need not be said again.

`build` compares what is wanted now with what the broker was told before, and asks only for what is
new or changed; what is no longer wanted is named as forgotten. `note` takes the answer. Whatever
may have put the two sides out of step (an error, a lost connection) ends in `reset`: the next
request is a full one, names the old session so that the broker drops it, and opens another. A
broker that has no session to give answers with id 0; then every request is a full one.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from minibroker.protocol.messages.fetch import (
    SESSION_EPOCH_OPEN,
    SESSION_NONE,
    FetchRequest,
    FetchResponse,
    PartitionFetch,
)
from minibroker.protocol.types import TopicPartition

SESSION_EPOCH_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True)
class FetchOptions:
    """What is the same in every request of a consumer: times in ms, sizes in bytes."""

    wait_ms_max: int
    bytes_min: int


class FetchSession:
    """One session with one broker. One request is under way at a time."""

    def __init__(self, options: FetchOptions) -> None:
        self._options = options
        self._session_id = SESSION_NONE
        self._next_epoch = SESSION_EPOCH_OPEN
        self._known: dict[TopicPartition, PartitionFetch] = {}

    def build(self, wanted: Iterable[PartitionFetch], bytes_max: int) -> FetchRequest:
        """The request that makes the broker fetch exactly `wanted`."""
        now = {TopicPartition(each.topic, each.partition): each for each in wanted}
        request = FetchRequest(
            wait_ms_max=self._options.wait_ms_max,
            bytes_min=self._options.bytes_min,
            bytes_max=bytes_max,
            session_id=self._session_id,
            session_epoch=self._next_epoch,
        )
        before, self._known = self._known, now
        if self._next_epoch == SESSION_EPOCH_OPEN:
            return replace(request, partitions=tuple(now.values()))
        return replace(
            request,
            partitions=tuple(each for name, each in now.items() if before.get(name) != each),
            forgotten=tuple(name for name in before if name not in now),
        )

    def asked(self, name: TopicPartition) -> PartitionFetch | None:
        """What the request under way asks of a partition, said now or in an earlier one."""
        return self._known.get(name)

    def handle_response(self, response: FetchResponse) -> None:
        """The answer came. With an error in it nothing was fetched."""
        if response.error or response.session_id == SESSION_NONE:
            self.reset()
            return
        self._session_id = response.session_id
        self._next_epoch = 1 if self._next_epoch == SESSION_EPOCH_MAX else self._next_epoch + 1

    def reset(self) -> None:
        """Start anew with the next request."""
        self._next_epoch = SESSION_EPOCH_OPEN
