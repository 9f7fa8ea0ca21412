"""How a fetcher talks to its leader: what its two forms, thread and task, have in common.

A connection is used for one request at a time, by one task. Cancelling that task is the way to end
a long poll: the connection is closed then, and the answer, if one comes, is nobody's.
"""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import NamedTuple, Protocol, TypeAlias

from minibroker.broker.log.admission import CheckedBatches, check_batches
from minibroker.protocol.messages.fetch import FetchRequest, FetchResponse
from minibroker.protocol.messages.offsets import ListOffsetsRequest, ListOffsetsResponse
from minibroker.protocol.records.batch import InvalidBatch
from minibroker.protocol.types import Endpoint


class Fetched(NamedTuple):
    """An answer, and for each partition of it its records, checked."""

    response: FetchResponse
    batches: list[CheckedBatches | InvalidBatch]


class FetchConnection(Protocol):
    """One connection to a leader. Its methods raise `ConnectionLost`, and then it is of no use."""

    async def fetch(self, request: FetchRequest) -> Fetched:
        """FETCH. Records are valid until the next request."""

    async def list_offsets(self, request: ListOffsetsRequest) -> ListOffsetsResponse:
        """LIST_OFFSETS."""


# Connects for the length of a block. Raises `ConnectionLost`: nobody answers as a broker does.
Connect: TypeAlias = Callable[[Endpoint], AbstractAsyncContextManager[FetchConnection]]


def check(response: FetchResponse) -> Fetched:
    """Check all records of an answer. What is wrong with one partition concerns it alone."""
    batches: list[CheckedBatches | InvalidBatch] = []
    for fetched in response.partitions:
        assert isinstance(fetched.records, bytes | memoryview)
        try:
            batches.append(check_batches(memoryview(fetched.records)))
        except InvalidBatch as invalid:
            batches.append(invalid)
    return Fetched(response, batches)
