"""The markers that are still to be written: for each decided transaction, its partitions.

    add -> [unrouted] -> route -> [of each leader] -> take -> in flight -> on_answer / on_lost
                ^                                                   |
                +------------------ after a pause <-----------------+

A transaction is complete once each of its partitions has its marker, or does not exist any more, or
knows a newer epoch of the producer. Any other error is tried again, after a pause, at the leader
that the partition has by then: the decision stands, so a partition that is not reachable delays it
and cannot change it. `troubles` says since when and why.

No more is kept than the partitions of decided transactions, each in one place. A request has at
most `PARTITIONS_MAX` of them, and the sender has one request in flight to each broker.
"""

import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final, NamedTuple

from minibroker.broker.metadata.model import ClusterImage
from minibroker.broker.transactions.states import State
from minibroker.broker.transactions.transaction import Transaction
from minibroker.broker.turns import AT_ONCE
from minibroker.protocol.constants import ErrorCode
from minibroker.protocol.messages.transactions import (
    TransactionMarker,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from minibroker.protocol.types import TopicPartition

PARTITIONS_MAX: Final = AT_ONCE  # of a request
PAUSE_S: Final = 0.1  # before a marker is sent again
# A log that knows a newer epoch of the producer has no open transaction of this one, and takes no
# batch of it any more.
MARKED: Final = (ErrorCode.NONE, ErrorCode.INVALID_PRODUCER_EPOCH)


class MarkerKey(NamedTuple):
    """A transactional id, and the partition of `__transaction_state` that stores it."""

    home: TopicPartition
    transactional_id: str


@dataclass(eq=False, slots=True)
class Unmarked:
    """A decided transaction that still lacks markers. `since` is when this broker began to send
    them, `error` the last one of a partition."""

    key: MarkerKey
    marker: TransactionMarker  # without partitions
    since: float
    left: dict[TopicPartition, None] = field(default_factory=dict)
    error: int = 0


class _Item(NamedTuple):
    unmarked: Unmarked
    name: TopicPartition


class MarkerTrouble(NamedTuple):
    """A transaction whose markers take long: since when, a partition without one, and its last
    error."""

    transactional_id: str
    since: float
    partition: TopicPartition
    error: int


class MarkerQueue:
    """See the head of this module."""

    def __init__(self) -> None:
        self.on_added: Callable[[], None] = lambda: None  # hears that there is something to send
        self._unmarked: dict[MarkerKey, Unmarked] = {}
        self._unrouted: deque[_Item] = deque()
        self._paused: deque[tuple[float, _Item]] = deque()  # in order of time
        self._of_leader: dict[int, deque[_Item]] = {}
        self._in_flight: dict[int, list[_Item]] = {}
        self._marked: list[MarkerKey] = []

    def add(self, key: MarkerKey, decided: Transaction, coordinator_epoch: int, now: float) -> None:
        """Add the partitions of a decided transaction."""
        marker = TransactionMarker(
            decided.producer_id,
            decided.producer_epoch,
            decided.state is State.PREPARE_COMMIT,
            coordinator_epoch,
            transaction_version=decided.version,
        )
        self.forget(key)
        unmarked = Unmarked(key, marker, now, dict.fromkeys(sorted(decided.partitions)))
        self._unmarked[key] = unmarked
        self._unrouted.extend(_Item(unmarked, name) for name in unmarked.left)
        if not unmarked.left:
            self._finish(unmarked)
        self.on_added()

    def forget(self, key: MarkerKey) -> None:
        """Forget a transaction: another coordinator finishes it."""
        unmarked = self._unmarked.pop(key, None)
        if unmarked is not None:
            unmarked.left.clear()

    def forget_home(self, home: TopicPartition) -> None:
        """Forget all transactions that a partition of `__transaction_state` stores."""
        for key in [key for key in self._unmarked if key.home == home]:
            self.forget(key)
        self._marked = [key for key in self._marked if key.home != home]

    # -- sending

    def route(self, image: ClusterImage, now: float) -> bool:
        """Give some markers to the leaders of their partitions; return whether there may be more to
        route now. What has no leader waits; what does not exist any more needs no marker."""
        while self._paused and self._paused[0][0] <= now:
            self._unrouted.append(self._paused.popleft()[1])
        for _ in range(min(len(self._unrouted), AT_ONCE)):
            item = self._unrouted.popleft()
            if item.name not in item.unmarked.left:
                continue
            partition = image.partition(item.name)
            if partition is None:
                self._mark(item)
            elif partition.leader in image.brokers:
                self._of_leader.setdefault(partition.leader, deque()).append(item)
            else:
                self._pause(item, ErrorCode.LEADER_NOT_AVAILABLE, now)
        return bool(self._unrouted)

    @property
    def leaders(self) -> list[int]:
        """The brokers that have markers to write, and no request in flight."""
        return [node for node in self._of_leader if node not in self._in_flight]

    @property
    def deadline(self) -> float:
        """When `route` has something to do."""
        if self._unrouted:
            return -math.inf
        return self._paused[0][0] if self._paused else math.inf

    def take(self, node_id: int) -> WriteTxnMarkersRequest | None:
        """Return the next request for a broker, which is then in flight; None if there is none."""
        assert node_id not in self._in_flight
        items: list[_Item] = []
        waiting = self._of_leader.get(node_id, deque())
        while waiting and len(items) < PARTITIONS_MAX:
            item = waiting.popleft()
            if item.name in item.unmarked.left:
                items.append(item)
        if not waiting:
            self._of_leader.pop(node_id, None)
        if not items:
            return None
        self._in_flight[node_id] = items
        return WriteTxnMarkersRequest(tuple(_markers(items)))

    def on_answer(self, node_id: int, answer: WriteTxnMarkersResponse, now: float) -> None:
        """Handle a broker's answer. A partition without a result is tried again."""
        items = self._in_flight.pop(node_id)
        errors = _errors(answer)
        for item in items:
            if item.name not in item.unmarked.left:
                continue
            error = errors.get((item.unmarked.marker.producer_id, item.name))
            if error in MARKED:
                self._mark(item)
            else:
                self._pause(item, ErrorCode.UNKNOWN_SERVER_ERROR if error is None else error, now)

    def on_lost(self, node_id: int, now: float) -> None:
        """Handle that a broker was not reached, or did not answer."""
        for item in [*self._in_flight.pop(node_id, ()), *self._of_leader.pop(node_id, ())]:
            self._pause(item, ErrorCode.NETWORK_EXCEPTION, now)

    def _pause(self, item: _Item, error: int, now: float) -> None:
        item.unmarked.error = error
        self._paused.append((now + PAUSE_S, item))

    def _mark(self, item: _Item) -> None:
        del item.unmarked.left[item.name]
        if not item.unmarked.left:
            self._finish(item.unmarked)

    def _finish(self, unmarked: Unmarked) -> None:
        if self._unmarked.get(unmarked.key) is unmarked:
            del self._unmarked[unmarked.key]
            self._marked.append(unmarked.key)

    def pop_marked(self) -> list[MarkerKey]:
        """Return the transactions that have got their last marker since the last call."""
        marked, self._marked = self._marked, []
        return marked

    # -- observing

    def troubles(self, before: float) -> Iterator[MarkerTrouble]:
        """Yield the transactions that lack markers since before a time."""
        for unmarked in self._unmarked.values():
            if unmarked.since < before and unmarked.left:
                name = next(iter(unmarked.left))
                key = unmarked.key
                yield MarkerTrouble(key.transactional_id, unmarked.since, name, unmarked.error)

    def statistics(self) -> int:
        """Return how many transactions lack markers."""
        return len(self._unmarked)


def _markers(items: list[_Item]) -> Iterator[TransactionMarker]:
    """Yield the markers of a request: items of one transaction that follow each other share one."""
    for _, some in groupby(items, lambda item: id(item.unmarked)):
        its_items = list(some)
        marker = its_items[0].unmarked.marker
        yield TransactionMarker(
            marker.producer_id,
            marker.producer_epoch,
            marker.is_commit,
            marker.coordinator_epoch,
            tuple([item.name for item in its_items]),
            marker.transaction_version,
        )


def _errors(answer: WriteTxnMarkersResponse) -> Mapping[tuple[int, TopicPartition], int]:
    return {
        (marker.producer_id, TopicPartition(one.topic, one.partition)): one.error
        for marker in answer.markers
        for one in marker.partitions
    }
