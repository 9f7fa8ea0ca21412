"""What is live of one partition of `__transaction_state`, in one leader epoch: its decided
transactions, whose markers this broker sends, and those that have all their markers.

A decided transaction gets into the marker queue when its record is replayed, or when this broker
begins to serve. Once it has its markers, its last record is appended; if that is refused, again
after a pause.
"""

import logging
import math
from collections.abc import Callable, Sequence
from typing import Final

from minibroker.broker.errors import Refused
from minibroker.broker.transactions.markers import MarkerKey, MarkerQueue
from minibroker.broker.transactions.records import in_batches, work_of
from minibroker.broker.transactions.states import DECIDED
from minibroker.broker.transactions.table import TransactionTable
from minibroker.broker.transactions.transaction import Transaction, complete
from minibroker.broker.turns import Turn, Turns
from minibroker.protocol.types import TopicPartition

logger = logging.getLogger(__name__)

PAUSE_S: Final = 0.5  # before a refused record is appended again


class TransactionRegistry:
    """See the head of this module. `leader_epoch` is that of the partition's leader, and the
    coordinator epoch of its markers."""

    def __init__(
        self,
        leader_epoch: int,
        home: TopicPartition,
        table: TransactionTable,
        markers: MarkerQueue,
        append: Callable[[Sequence[tuple[str, Transaction]], float], int],
        wall_ms: Callable[[], int],
    ) -> None:
        """`append` appends records and returns the offset after them, or raises `Refused`."""
        self.leader_epoch = leader_epoch
        self._home = home
        self._table = table
        self._markers = markers
        self._append = append
        self._wall_ms = wall_ms
        self._marked: list[str] = []
        self._retry_at = -math.inf

    def start(self, now: float) -> Turns[None]:
        """Begin to send the markers of what earlier coordinators have decided."""
        self._table.report_decided()
        turn = Turn()
        for transactional_id in list(self._table.decided):
            decided = self._table.get(transactional_id)
            self._add(transactional_id, now)
            if turn.is_over(work_of(transactional_id, decided)):
                yield

    def on_replayed(self, end: int, now: float) -> None:
        """Send the markers of what the records below `end` have decided."""
        for transactional_id in self._table.pop_decided():
            self._add(transactional_id, now)

    def _add(self, transactional_id: str, now: float) -> None:
        decided = self._table.get(transactional_id)
        if decided is not None and decided.state in DECIDED:
            key = MarkerKey(self._home, transactional_id)
            self._markers.add(key, decided, self.leader_epoch, now)

    def on_marked(self, transactional_id: str) -> None:
        """Handle that a transaction has all its markers."""
        self._marked.append(transactional_id)

    @property
    def is_writing(self) -> bool:
        """Whether a record is not replayed yet."""
        return self._table.has_pending

    @property
    def held_bytes(self) -> int:
        """The memory that it takes beside the table: nothing worth counting."""
        return 0

    @property
    def deadline(self) -> float:
        """When `tick` has something to do."""
        return self._retry_at if self._marked else math.inf

    def tick(self, now: float) -> None:
        """Append the last record of some transactions that have all their markers."""
        if not self._marked or now < self._retry_at:
            return
        some = [key for key, _ in next(in_batches((key, None) for key in self._marked))]
        self._marked = self._marked[len(some) :]
        found = [(each, self._table.get(each)) for each in some]
        now_ms = self._wall_ms()
        records = [
            (transactional_id, complete(decided, now_ms))
            for transactional_id, decided in found
            if decided is not None and decided.state in DECIDED
        ]
        if not records:
            return
        try:
            self._append(records, now)
        except Refused as refused:
            logger.info("%s: %d transactions cannot end yet: %s", self._home, len(records), refused)
            self._marked = [*some, *self._marked]
            self._retry_at = now + PAUSE_S

    def close(self, now: float) -> None:
        """End it: the next coordinator sends the markers that are missing, again or not yet."""
        self._table.ignore_decided()
        self._markers.forget_home(self._home)
        self._marked.clear()
