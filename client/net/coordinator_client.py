"""Requests to the coordinator of a group or of a transactional id, which any broker can name.

The client finds the coordinator when it needs it and does not know it. It forgets the coordinator
when a connection to it is lost, or when it answers that it is not the coordinator; so after a
failover each request finds it again. During an election brokers may still name the old one, and
while the new one loads it can do nothing: senders wait between tries (`pause`), and limit the time
themselves.
"""

from typing import TypeVar

import trio

from minibroker.client.errors import ClientTimeout, error_code, named
from minibroker.client.net.channel import ConnectionLost
from minibroker.client.net.cluster import Cluster
from minibroker.client.net.connection_pool import COMMITS, JITTER
from minibroker.protocol.constants import NO_NODE, ApiKey, ErrorCode
from minibroker.protocol.errors import RETRIABLE, BrokerError
from minibroker.protocol.messages import Request
from minibroker.protocol.messages.groups import GROUP_KEY, FindCoordinatorRequest

Response = TypeVar("Response")


class CoordinatorClient:
    """The requests about one key: a group, or a transactional id, as `key_type` says."""

    def __init__(self, cluster: Cluster, key: str, *, key_type: int = GROUP_KEY) -> None:
        self._cluster = cluster
        self._key = key
        self._key_type = key_type
        self._node_id = NO_NODE
        self._finding = trio.StrictFIFOLock()

    async def ask(self, api_key: ApiKey, message: Request[Response], purpose: str) -> Response:
        """Send a request once. If the call is cancelled, its connection is closed, because the next
        request would wait behind it.

        A connection for commits stays open, because commits must stay in order. Raises `OSError` if
        no broker answers or knows the coordinator, and `BrokerError` for an error that will not
        change.
        """
        node_id = await self._find()
        try:
            channel = await self._cluster.channel(node_id, purpose)
            reply = channel.start(api_key, message)
            try:
                return await reply.wait()
            finally:
                if not reply.is_completed and purpose != COMMITS:
                    channel.close()
        except OSError:
            self.forget(node_id)
            raise

    def forget(self, node_id: int | None = None) -> None:
        """Forget the coordinator, unless it is another than `node_id` by now."""
        if node_id in (None, self._node_id):
            self._node_id = NO_NODE

    async def pause(self, failures: int, first_ms: int | None = None) -> None:
        """Wait between tries: `first_ms` or `retry.backoff.ms`, doubled with each failure, at most
        `retry.backoff.max.ms`."""
        options = self._cluster.options
        backoff_ms = (first_ms or options.retry_backoff_ms) * 2 ** min(failures, 30)
        jitter = self._cluster.seams.rng.uniform(1 - JITTER, 1 + JITTER)
        await trio.sleep(min(backoff_ms, options.retry_backoff_max_ms) / 1000 * jitter)

    def timeout(self, text: str, last: Exception | None) -> ClientTimeout:
        """Return the error for a time-out: the last error, or who was asked without an answer."""
        return ClientTimeout(f"{text}: {last or self._cluster.timeout()}")

    async def _find(self) -> int:
        async with self._finding:
            if self._node_id == NO_NODE:
                request = FindCoordinatorRequest(self._key, self._key_type)
                answer = await self._cluster.ask(ApiKey.FIND_COORDINATOR, request)
                error = error_code(answer.error)
                text = f"the coordinator of {named(self._key, self._key_type)}"
                text += f": {answer.error_message}" if answer.error_message else ""
                if error in RETRIABLE:
                    raise ConnectionLost(f"{error.name}: {text}")
                if error != ErrorCode.NONE:
                    raise BrokerError(error, text)
                self._node_id = answer.node_id
            return self._node_id
