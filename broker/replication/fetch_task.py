"""A fetcher's connection that runs as a task in the broker's event loop.

A simulation has no threads, so it uses this form; `replica.fetcher=task` selects it elsewhere.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TypeVar

from minibroker.broker.replication.fetch_connection import (
    Connect,
    FetchConnection,
    Fetched,
    check,
)
from minibroker.client.net.channel import ChannelOptions, ConnectionLost, RpcChannel, open_channel
from minibroker.client.net.network import Network
from minibroker.protocol.constants import ApiKey
from minibroker.protocol.errors import BrokerError
from minibroker.protocol.messages import Request
from minibroker.protocol.messages.fetch import FetchRequest
from minibroker.protocol.messages.offsets import ListOffsetsRequest, ListOffsetsResponse
from minibroker.protocol.types import Endpoint

Response = TypeVar("Response")


class TaskConnection:
    """`FetchConnection` over a channel of the loop."""

    def __init__(self, channel: RpcChannel) -> None:
        self._channel = channel

    async def fetch(self, request: FetchRequest) -> Fetched:
        """FETCH."""
        return check(await self._call(ApiKey.FETCH, request))

    async def list_offsets(self, request: ListOffsetsRequest) -> ListOffsetsResponse:
        """LIST_OFFSETS."""
        return await self._call(ApiKey.LIST_OFFSETS, request)

    async def _call(self, api_key: ApiKey, request: Request[Response]) -> Response:
        try:
            return await self._channel.call(api_key, request)
        except BrokerError as error:
            raise ConnectionLost(str(error)) from error


def connect_by_task(network: Network, options: ChannelOptions) -> Connect:
    """Return how fetchers connect that run as tasks."""

    @asynccontextmanager
    async def connect(endpoint: Endpoint) -> AsyncIterator[FetchConnection]:
        is_connected = False
        try:
            async with open_channel(network, endpoint, options) as channel:
                is_connected = True
                yield TaskConnection(channel)
        except OSError as error:
            if is_connected:
                raise
            raise ConnectionLost(str(error)) from error

    return connect
