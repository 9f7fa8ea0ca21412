"""The consumer of a scenario: one reader without a group, which fetches when a step says so. It may
ask for committed records only, and then leaves out those of aborted transactions.

It fetches from the offset after the last record it has read, and names the epoch of that record, as
the client does. `seen` has every value that it was ever given, in order, even if the log loses it
later.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, cast

from minibroker.broker.replication.purgatory import Parked
from minibroker.broker.server.handlers import fetch
from minibroker.broker.turns import Steps
from minibroker.client.consumer.aborted_transactions import AbortedTransactions
from minibroker.protocol.constants import (
    NO_EPOCH,
    NO_NODE,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    ErrorCode,
)
from minibroker.protocol.messages.fetch import FetchRequest, FetchResponse, PartitionFetch
from minibroker.protocol.records.batch import iterate_headers
from minibroker.testing.lab.follower_fetch import as_sent
from minibroker.testing.lab.machine import PARTITION, Process
from minibroker.testing.lab.verdict import records_in

WAIT_MS_MAX: Final = 500


@dataclass(frozen=True, slots=True)
class ParkedFetch:
    """A FETCH that waits at a broker, in one process of it."""

    broker: int
    process: Process
    request: Parked[FetchResponse]


class LabConsumer:
    """See the head of this module. `position` is the next offset to fetch."""

    def __init__(self) -> None:
        self.position = 0
        self.seen: list[str] = []
        self._last_epoch = NO_EPOCH
        self._parked: ParkedFetch | None = None

    @property
    def is_waiting(self) -> bool:
        """Whether its FETCH waits at a running broker."""
        return self._parked is not None and self._parked.process.is_running

    @property
    def leader(self) -> int:
        """The broker at which its FETCH waits."""
        return self._parked.broker if self._parked and self.is_waiting else NO_NODE

    @property
    def deadline(self) -> float:
        """When a waiting FETCH is answered without more."""
        return self._parked.request.deadline() if self._parked and self.is_waiting else math.inf

    def __str__(self) -> str:
        return f"{self.position:>4} {' '.join(self.seen)}".rstrip()

    def seek(self, offset: int) -> None:
        """Read from this offset on, and forget the epoch of the last record."""
        self.position, self._last_epoch = offset, NO_EPOCH

    def ask(
        self,
        broker: int,
        process: Process,
        now: float,
        *,
        waits: bool = False,
        isolation_level: int = READ_UNCOMMITTED,
    ) -> Iterator[str]:
        """Send a FETCH to a broker; with `waits` it may wait there."""
        if self.is_waiting:
            yield "the reader has a FETCH under way"
            return
        asked = PartitionFetch(*PARTITION, self.position, last_fetched_epoch=self._last_epoch)
        request = FetchRequest(
            wait_ms_max=WAIT_MS_MAX if waits else 0,
            partitions=(asked,),
            isolation_level=isolation_level,
        )
        answer = fetch.handle(process.services, request, now)
        what = "for committed records " if isolation_level == READ_COMMITTED else ""
        question = f"the reader asks {broker} {what}from {self.position}"
        if isinstance(answer, Parked):
            self._parked = ParkedFetch(broker, process, answer)
            yield f"{question}; it waits"
        else:
            yield f"{question}: {self._handle_answer(answer)}"

    def try_waiting(self, now: float) -> Iterator[str]:
        """Take the answer to the waiting FETCH, if there is one now."""
        waiting = self._parked
        if waiting is not None and self.is_waiting:
            answer = waiting.request.attempt(now)
            if answer is not None:
                self._parked = None
                yield f"{waiting.broker} answers the reader: {self._handle_answer(answer)}"

    def expire(self, now: float) -> Iterator[str]:
        """Take the answer to a FETCH whose time is up."""
        waiting = self._parked
        if waiting is not None and self.deadline <= now:
            self._parked = None
            answer = waiting.request.expire()
            text = self._handle_answer(answer)
            yield f"{waiting.broker} answers the reader, its time is up: {text}"

    def _handle_answer(self, answer: FetchResponse | Steps[FetchResponse]) -> str:
        (fetched,) = as_sent(answer).partitions
        if fetched.error:
            return ErrorCode(fetched.error).name
        if fetched.diverging_epoch != NO_EPOCH:
            self.seek(fetched.diverging_end)
            return f"epoch {fetched.diverging_epoch} ends at {fetched.diverging_end}; it goes there"
        values = []
        data = cast(bytes, fetched.records)
        aborted = AbortedTransactions(fetched.aborted_transactions or ())
        for start, header in iterate_headers(data):
            batch = data[start : start + header.size]
            if header.is_control:
                aborted.on_control_batch(batch, header)
            elif not aborted.has(header):
                values += [
                    (record.value or b"").decode()
                    for offset, record in records_in(batch).items()
                    if offset >= self.position
                ]
            self.position, self._last_epoch = header.next_offset, header.leader_epoch
        self.seen += values
        return " ".join(values) or "nothing"
