"""One record's delivery, as an awaitable (client/blocking/delivery_future.py has the cost)."""

import asyncio
import logging
from collections.abc import Callable, Generator
from typing import Any

from minibroker.client.asyncio.portal import AwaitedAnswer
from minibroker.client.blocking.delivery_future import RecordFuture
from minibroker.client.producer.delivery import RecordDelivered

log = logging.getLogger("minibroker.client")


class DeliveryFuture(RecordFuture):
    """What became of one record: `await` it, or ask as `asyncio.Future` is asked.

    It may be dropped, and awaited more than once. An awaiting that is cancelled cancels nothing
    else.
    """

    __slots__ = ()

    def __await__(self) -> Generator[Any, None, RecordDelivered]:
        """Wait until the record is delivered; raises why it was not."""
        return self._wait().__await__()

    def result(self) -> RecordDelivered:
        """Where the record is; raises why it was not delivered, and `InvalidStateError`."""
        error = self.exception()
        if error is not None:
            try:
                raise error
            finally:
                del error, self  # the traceback would refer to both
        return self._delivered()

    def exception(self) -> Exception | None:
        """Why the record was not delivered; None if it was. Raises `InvalidStateError`."""
        if not self.done():
            raise asyncio.InvalidStateError("it is not known yet what becomes of the record")
        return self._error_seen()

    def add_done_callback(self, callback: "Callable[[DeliveryFuture], object]") -> None:
        """Have this event loop call it with this future once it is done."""
        loop = asyncio.get_running_loop()

        def call() -> None:
            try:
                loop.call_soon_threadsafe(callback, self)
            except RuntimeError:  # the event loop was closed
                log.warning("an event loop was closed before it was told of a record")

        if not self._in_loop(lambda: self.when_done(call)):
            call()

    async def _wait(self) -> RecordDelivered:
        if not self.done():
            answer: AwaitedAnswer[None] = AwaitedAnswer()
            if self._in_loop(lambda: self.when_done(lambda: answer.set_result(None))):
                await answer.wait()
        return self.result()
