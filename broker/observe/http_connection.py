"""One HTTP connection to a broker's pages: HTTP/1.1 by h11, answered by an application.

The pages are read by machines that send a few hundred bytes and take the answer at once, so
everything else is bounded:

* A request must be there whole `REQUEST_S_MAX` after the connection began or the last answer was
  sent, however its bytes drip in. Its head has at most `HEAD_BYTES_MAX` bytes.
* A request with a body is refused (413): no page takes one. No other protocol can be asked for.
* An answer must be taken within `ANSWER_S_MAX`. The next request, which may have come already, is
  read after that.

`phase` and `since` tell the server which connections it may close for others.
"""

import logging
from collections.abc import Callable
from email.utils import formatdate
from enum import Enum, auto
from http import HTTPStatus
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

import h11
import trio
from starlette.types import ASGIApp, Message

REQUEST_S_MAX: Final = 5.0
ANSWER_S_MAX: Final = 60.0
LINGER_S_MAX: Final = 1.0  # for the end of a request that was refused
HEAD_BYTES_MAX: Final = 8192
RECEIVE_BYTES: Final = 8192
VERSIONS: Final = frozenset({b"1.0", b"1.1"})

logger = logging.getLogger(__name__)


class Phase(Enum):
    """What a connection does."""

    READING = auto()  # it is idle, or its request is not whole yet
    ANSWERING = auto()  # the application makes the answer
    SENDING = auto()  # the client takes the answer


class _Answer(NamedTuple):
    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes


class HttpConnection:
    """See the head of this module. `since` is when its phase began, `answer_bytes` the size of the
    answer that it sends.

    `before_sending` is called with the connection and the size of each answer.
    """

    def __init__(
        self,
        stream: trio.SocketStream,
        app: ASGIApp,
        before_sending: Callable[["HttpConnection", int], None],
    ) -> None:
        self.phase = Phase.READING
        self.since = trio.current_time()
        self.answer_bytes = 0
        self._stream = stream
        self._app = app
        self._before_sending = before_sending
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES_MAX)
        self._scope = trio.CancelScope()
        self._is_last = False

    async def run(self) -> None:
        """Serve until either side ends it. Raises `OSError` and trio's errors of a broken
        connection."""
        try:
            with self._scope:
                while await self._serve_request():
                    self._http.start_next_cycle()
        finally:
            self.close()

    def close(self) -> None:
        """Close it at once. May be called twice."""
        self._stream.socket.close()
        self._scope.cancel()

    def finish(self) -> None:
        """Close it as soon as no answer is under way."""
        self._is_last = True
        if self.phase is Phase.READING:
            self.close()

    def _enter(self, phase: Phase, answer_bytes: int = 0) -> None:
        self.phase, self.since = phase, trio.current_time()
        self.answer_bytes = answer_bytes

    async def _serve_request(self) -> bool:
        """Serve one request; return whether another may follow."""
        self._enter(Phase.READING)
        try:
            with trio.move_on_after(REQUEST_S_MAX) as patience:
                request = await self._read_request()
            if patience.cancelled_caught or request is None:
                return False
            has_body = not isinstance(self._http.next_event(), h11.EndOfMessage)
        except h11.RemoteProtocolError as error:
            await self._refuse(error.error_status_hint, str(error))
            return False
        self._enter(Phase.ANSWERING)
        if request.http_version not in VERSIONS:
            await self._refuse(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED, "HTTP/1.1 is spoken here")
            return False
        if has_body:
            await self._refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "no page takes a body")
            return False
        answer = await self._ask(request)
        if request.method == b"HEAD":
            answer = answer._replace(body=b"")
        await self._send(answer)
        return not self._is_last and self._http.our_state is h11.DONE

    async def _read_request(self) -> h11.Request | None:
        """Return the next request's head; None if the client has ended the connection."""
        while True:
            event = self._http.next_event()
            if isinstance(event, h11.Request):
                return event
            if event is not h11.NEED_DATA:
                return None
            self._http.receive_data(await self._stream.receive_some(RECEIVE_BYTES))

    async def _ask(self, request: h11.Request) -> _Answer:
        """Return the application's answer; an exception of it is logged, and answered with 500."""
        path, _, query = request.target.partition(b"?")
        scope: dict[str, Any] = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.4"},
            "http_version": request.http_version.decode("ascii"),
            "method": request.method.decode("ascii"),
            "scheme": "http",
            "path": unquote(path.decode("ascii", "replace")),
            "raw_path": path,
            "query_string": query,
            "root_path": "",
            "headers": list(request.headers),
            "client": None,
            "server": None,
        }
        starts: list[Message] = []
        parts: list[bytes] = []

        async def receive() -> Message:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Message) -> None:
            if message["type"] == "http.response.start":
                starts.append(message)
            else:
                parts.append(message.get("body", b""))

        try:
            await self._app(scope, receive, send)
        except Exception:  # a page that fails is no reason for the broker to end
            logger.exception("%s cannot be answered", scope["path"])
            return _text(HTTPStatus.INTERNAL_SERVER_ERROR, "the broker's log has the reason")
        (start,) = starts
        return _Answer(start["status"], list(start["headers"]), b"".join(parts))

    async def _refuse(self, status: int, why: str) -> None:
        """Answer with an error, and read on for a moment: a close with bytes unread would take the
        answer back."""
        if self._http.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return
        self._is_last = True
        await self._send(_text(status, why))
        with trio.move_on_after(LINGER_S_MAX):
            await self._stream.send_eof()
            while await self._stream.receive_some(RECEIVE_BYTES):
                pass

    async def _send(self, answer: _Answer) -> None:
        headers = [*answer.headers, (b"date", formatdate(usegmt=True).encode("ascii"))]
        if self._is_last:
            headers.append((b"connection", b"close"))
        reason = HTTPStatus(answer.status).phrase.encode("ascii")
        response = h11.Response(status_code=answer.status, headers=headers, reason=reason)
        head = self._http.send(response) or b""
        # h11 gives a body of known length back as it is, so a large page is not copied.
        body = self._http.send(h11.Data(data=answer.body)) if answer.body else b""
        end = self._http.send(h11.EndOfMessage()) or b""
        self._before_sending(self, len(answer.body))
        self._enter(Phase.SENDING, len(answer.body))
        with trio.fail_after(ANSWER_S_MAX):
            for data in (head, body, end):
                if data:
                    await self._stream.send_all(data)


def _text(status: int, text: str) -> _Answer:
    body = f"{text}\n".encode()
    headers = [(b"content-type", b"text/plain"), (b"content-length", b"%d" % len(body))]
    return _Answer(status, headers, body)
