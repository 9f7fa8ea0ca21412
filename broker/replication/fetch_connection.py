"""A fetcher's connection to its leader: what its two forms, thread and task, have in common.

One task uses a connection, for one request at a time. Cancelling that task ends a long poll: this
closes the connection, and an answer that still comes is dropped.
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
    """A FETCH answer, and the checked records of each of its partitions."""

    response: FetchResponse
    batches: list[CheckedBatches | InvalidBatch]


class FetchConnection(Protocol):
    """One connection to a leader. Its methods raise `ConnectionLost`; it is unusable after that."""

    async def fetch(self, request: FetchRequest) -> Fetched:
        """Send a FETCH and return the answer. Its records are valid until the next request."""

    async def list_offsets(self, request: ListOffsetsRequest) -> ListOffsetsResponse:
        """Send a LIST_OFFSETS and return the answer."""


# Connects for the length of a block. Raises `ConnectionLost` if no broker answers there.
Connect: TypeAlias = Callable[[Endpoint], AbstractAsyncContextManager[FetchConnection]]


def check(response: FetchResponse) -> Fetched:
    """Check all records of an answer. An invalid batch affects only its own partition."""
    batches: list[CheckedBatches | InvalidBatch] = []
    for fetched in response.partitions:
        assert isinstance(fetched.records, bytes | memoryview)
        try:
            batches.append(check_batches(memoryview(fetched.records)))
        except InvalidBatch as invalid:
            batches.append(invalid)
    return Fetched(response, batches)
