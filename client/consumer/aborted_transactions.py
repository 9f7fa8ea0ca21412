"""The aborted transactions in one FETCH answer, whose batches a reader of committed records leaves
out.

The broker lists the aborted transactions that overlap the answer's batches: each by its producer
and the offset of its first record. It ends at the producer's next ABORT marker. So the batches are
asked about in order, and each marker is told.
"""

from collections import deque
from collections.abc import Iterable
from operator import attrgetter

from minibroker.protocol.messages.fetch import AbortedTransaction
from minibroker.protocol.records.batch import BatchHeader
from minibroker.protocol.records.control import read_end_marker
from minibroker.protocol.types import Buffer


class AbortedTransactions:
    """The aborted transactions of one partition in an answer."""

    def __init__(self, transactions: Iterable[AbortedTransaction]) -> None:
        # Those that begin behind the batches so far, in order.
        self._later = deque(sorted(transactions, key=attrgetter("first_offset")))
        self._producers: set[int] = set()  # of those that have begun and not ended

    def has(self, header: BatchHeader) -> bool:
        """Whether the next batch belongs to one of them."""
        while self._later and self._later[0].first_offset <= header.last_offset:
            self._producers.add(self._later.popleft().producer_id)
        return header.is_transactional and header.producer_id in self._producers

    def on_control_batch(self, batch: Buffer, header: BatchHeader) -> None:
        """Handle that the next batch is a control batch: an ABORT marker ends one of them."""
        if self.has(header):
            marker = read_end_marker(batch, header)
            if marker is not None and not marker.is_commit:
                self._producers.discard(header.producer_id)
