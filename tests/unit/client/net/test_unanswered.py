"""Requests without an answer (PRODUCE with acks=0) on a connection that breaks."""

from collections.abc import Sequence

import trio

from minibroker.client.net.channel import ChannelOptions, ConnectionLost, RpcChannel, _Receiver
from minibroker.client.net.network import Stream
from minibroker.protocol.constants import ApiKey
from minibroker.protocol.messages.produce import ProduceRequest, ProduceResponse
from minibroker.protocol.types import Endpoint, Part


class ClosedWhileSending(Stream):
    """The peer closes it while something is sent, which is sent all the same."""

    peer = "broker:1"

    def __init__(self) -> None:
        self._is_sending = trio.Event()
        self._has_ended = trio.Event()

    async def receive_into(self, view: memoryview) -> int:
        """The end, once something is sent."""
        await self._is_sending.wait()
        return 0

    async def send(self, parts: Sequence[Part]) -> None:
        """Return after the end was received, as a send does that the system has taken."""
        self._is_sending.set()
        with trio.CancelScope(shield=True):
            await self._has_ended.wait()

    def send_now(self, parts: Sequence[Part]) -> Sequence[Part]:
        """Nothing."""
        return parts

    def close(self) -> None:
        """Who sends is told that all was sent."""
        self._has_ended.set()


async def test_a_connection_that_ends_in_a_send_tells_nobody_of_answers(autojump_clock) -> None:
    """Its requests have failed, and `run` ends without an exception."""
    stream = ClosedWhileSending()
    channel = RpcChannel(stream, Endpoint("broker", 1), ChannelOptions("c"), _Receiver(stream, 100))
    channel._versions = {ApiKey.PRODUCE: 0}
    told: list[ProduceResponse | str | None] = []

    def look() -> None:
        told.append(reply.message())

    [reply] = channel.start_produce([ProduceRequest(acks=0)], look)
    await channel.run()
    assert told == []
    assert not channel.is_open
    try:
        reply.message()
    except ConnectionLost as error:
        told.append(str(error))
    assert told == ["the connection to broker:1 broke: the broker closed it"]
