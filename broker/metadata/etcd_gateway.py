"""Requests to etcd over its v3 JSON gateway: the endpoint, the token, and the errors.

All requests go to one endpoint while it answers; if it does not, they go to the next one from then
on. A request is repeated only if the caller says that this does no harm. Other callers get
`Unanswered`: etcd may have executed the request.

Every request has the header `hasleader`. With it, a member that is cut off from the others refuses
at once instead of keeping its callers waiting, and ends the watches that it cannot serve.

A user needs a token. etcd forgets tokens after some minutes, and in a restart; then the gateway
gets a new one and repeats the request. An answer from another cluster than the first one is an
error: two clusters behind one list of endpoints would have two controllers.
"""

import json
import logging
import ssl
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, Final

import httpx
import trio

from minibroker.broker.metadata.store import StoreError, StoreUnavailable

CONNECT_S_MAX: Final = 0.5
ANSWER_S_MAX: Final = 1.0  # the longest wait for the first or next piece of an answer
WHOLE_ANSWER_S_MAX: Final = 60.0  # for all pieces of an answer
ANSWER_BYTES_MAX: Final = 256 * 1024 * 1024  # far above what a cluster stores
BYTES_A_SECOND: Final = 200_000  # adds to that for large requests: the gateway reads JSON slowly
HEADERS: Final = {"Grpc-Metadata-Hasleader": "true"}

# gRPC's codes. With these etcd has done nothing, and another try may succeed.
RESOURCE_EXHAUSTED: Final = 8  # no space, too many requests
FAILED_PRECONDITION: Final = 9  # a learner, or a member that cannot serve it now
PASSING: Final = {RESOURCE_EXHAUSTED, FAILED_PRECONDITION}
# With these etcd has done nothing, and another try would fail, too.
INVALID_ARGUMENT: Final = 3
NOT_FOUND: Final = 5
PERMISSION_DENIED: Final = 7
OUT_OF_RANGE: Final = 11
UNAUTHENTICATED: Final = 16
FINAL: Final = {INVALID_ARGUMENT, NOT_FOUND, PERMISSION_DENIED, OUT_OF_RANGE, UNAUTHENTICATED}
OLD_TOKEN: Final = "revision of auth store is old"  # roles have changed since it was given
# The errors of a request above --max-request-bytes, and far above it (code 8, at each try).
TOO_LARGE: Final = ("request is too large", "received message larger than max")
HINTS: Final = {
    "user name is empty": "set metadata.store.user and metadata.store.password.file",
    **dict.fromkeys(TOO_LARGE, "its members need a larger --max-request-bytes"),
}
BEGINNING: Final = {"header", "created", "watch_id"}  # fields of a watch's first message

Json = dict[str, Any]

log = logging.getLogger(__name__)


class Unanswered(StoreUnavailable):
    """No answer: etcd may have executed the request, or may still execute it."""


class Refused(StoreError):
    """etcd refused the request, and would refuse it again. `code` is one of gRPC's."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


class TooLarge(Refused):
    """The request is larger than etcd accepts."""


@dataclass(frozen=True, slots=True)
class Access:
    """The endpoints of etcd, and the credentials. The files may be None, `user` empty."""

    endpoints: Sequence[str]  # http://HOST:PORT, or https
    user: str = ""
    password_file: PurePath | None = None
    ca_file: PurePath | None = None  # None: the authorities that this system trusts
    cert_file: PurePath | None = None
    key_file: PurePath | None = None  # None: in the same file as the certificate


class Gateway:
    """See the head of this module. Used by many tasks at once."""

    def __init__(self, access: Access) -> None:
        """Reads the files. Raises `StoreError` naming one that cannot be used."""
        self._endpoints = [endpoint.rstrip("/") for endpoint in access.endpoints]
        self._current = 0
        self._left: dict[str, str] = {}  # endpoints since the last answer, and why
        self._user = access.user
        self._password = _password(access)
        self._token = ""
        self._token_turn = trio.Lock()
        self._cluster_id = ""
        self._http = httpx.AsyncClient(verify=_tls(access), trust_env=False)

    async def call(self, path: str, body: Json, *, may_repeat: bool = True) -> Json:
        """Send a request, and return the answer of the first endpoint that gives one.

        Raises `StoreUnavailable` if none does, as `Unanswered` if the last one asked may have
        executed the request; without `may_repeat` no other endpoint is asked then. Raises
        `Refused`, and `StoreError` if an endpoint belongs to another cluster.
        """
        failures: list[StoreUnavailable] = []
        while True:
            endpoint = self._endpoints[self._current]
            try:
                answer = await self._ask(endpoint, path, body)
            except StoreUnavailable as error:
                self._leave(endpoint, error)
                failures.append(error)
                is_last = len(failures) == len(self._endpoints)
                if is_last or (isinstance(error, Unanswered) and not may_repeat):
                    raise type(error)("; ".join(map(str, failures))) from error
            else:
                self._check_cluster(endpoint, answer)
                self._stay(endpoint)
                return answer

    async def first_news(self, path: str, body: Json, wait_s: float) -> Json:
        """Return the first message of a stream after the one that opens it.

        Return {} if there is none within `wait_s` seconds. Raises `StoreUnavailable` and `Refused`.
        """
        endpoint = self._endpoints[self._current]
        try:
            answer = await self._first_line(endpoint, path, body, wait_s)
            return _result(endpoint, *answer) if answer is not None else {}
        except StoreUnavailable as error:
            self._leave(endpoint, error)
            raise

    async def close(self) -> None:
        """Close all connections; may be called twice."""
        await self._http.aclose()

    async def _first_line(
        self, endpoint: str, path: str, body: Json, wait_s: float
    ) -> tuple[int, bytes] | None:
        """Return the HTTP status and the line; see `first_news`."""
        answer = None
        with trio.move_on_after(wait_s) as scope, _transport_errors(endpoint):
            headers = await self._headers(endpoint)
            request = self._request(endpoint, path, body, headers)
            request.extensions["timeout"]["read"] = None
            unread = bytearray()
            async with aclosing(await self._http.send(request, stream=True)) as response:
                async for piece in response.aiter_bytes():
                    unread += piece
                    lines = []
                    if b"\n" in piece:
                        *lines, rest = bytes(unread).split(b"\n")
                        unread = bytearray(rest)
                    answer = answer or _news(response.status_code, lines)
                    if answer is not None or len(unread) > ANSWER_BYTES_MAX:
                        # Not `break`: httpx's generators close properly if cancelled in a read.
                        scope.cancel()
                answer = answer or _news(response.status_code, [bytes(unread)])
        if answer is None and not scope.cancelled_caught:
            raise Unanswered(f"etcd at {endpoint} has ended its answer")
        return answer

    async def _ask(self, endpoint: str, path: str, body: Json) -> Json:
        headers = await self._headers(endpoint)
        try:
            return await self._post(endpoint, path, body, headers)
        except Refused as refusal:
            is_token_old = refusal.code == UNAUTHENTICATED or OLD_TOKEN in str(refusal)
            if not (self._user and is_token_old):
                raise
            if self._token == headers.get("Authorization"):
                self._token = ""
        return await self._post(endpoint, path, body, await self._headers(endpoint))

    async def _post(
        self, endpoint: str, path: str, body: Json, headers: Mapping[str, str] = HEADERS
    ) -> Json:
        request = self._request(endpoint, path, body, headers)
        content = bytearray()
        with trio.move_on_after(WHOLE_ANSWER_S_MAX) as scope, _transport_errors(endpoint):
            async with aclosing(await self._http.send(request, stream=True)) as response:
                async for piece in response.aiter_bytes():
                    content += piece
                    if len(content) > ANSWER_BYTES_MAX:
                        scope.cancel()  # not `break`, as in `_first_line`
        if scope.cancelled_caught:
            raise Unanswered(f"etcd at {endpoint} does not end its answer")
        return _result(endpoint, response.status_code, bytes(content))

    def _request(
        self, endpoint: str, path: str, body: Json, headers: Mapping[str, str]
    ) -> httpx.Request:
        content = json.dumps(body).encode()
        answer_s_max = ANSWER_S_MAX + len(content) / BYTES_A_SECOND
        request = self._http.build_request(
            "POST",
            f"{endpoint}/v3/{path}",
            content=content,
            headers=headers,
            timeout=httpx.Timeout(answer_s_max, connect=CONNECT_S_MAX, pool=None),
        )
        request.stream = _Content(content)
        return request

    async def _headers(self, endpoint: str) -> Mapping[str, str]:
        if not self._user:
            return HEADERS
        async with self._token_turn:
            if not self._token:
                body = {"name": self._user, "password": self._password}
                self._token = (await self._post(endpoint, "auth/authenticate", body))["token"]
        return {**HEADERS, "Authorization": self._token}

    def _leave(self, endpoint: str, error: StoreUnavailable) -> None:
        """Use the next endpoint from now on, unless another task has already changed it."""
        if self._endpoints[self._current] == endpoint:
            self._current = (self._current + 1) % len(self._endpoints)
            self._left[endpoint] = str(error)

    def _stay(self, endpoint: str) -> None:
        """Record that an endpoint answers. If others did not, log that once."""
        if self._left and endpoint not in self._left:
            log.info("%s; asking %s from now on", "; ".join(self._left.values()), endpoint)
        self._left.clear()

    def _check_cluster(self, endpoint: str, answer: Json) -> None:
        found = answer["header"]["cluster_id"]
        self._cluster_id = self._cluster_id or found
        if found != self._cluster_id:
            raise StoreError(
                f"the etcd at {endpoint} belongs to another cluster than those asked before"
                f" ({found}, not {self._cluster_id}); metadata.store must name members of one"
            )


class _Content(httpx.AsyncByteStream):
    """The body of a request. httpx's own is a generator, which a cancellation leaves unfinished."""

    def __init__(self, content: bytes) -> None:
        self._pieces = iter((content,))

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        for piece in self._pieces:
            return piece
        raise StopAsyncIteration


@contextmanager
def _transport_errors(endpoint: str) -> Iterator[None]:
    """Raise `Unanswered` for a failure after which the request may have arrived, and
    `StoreUnavailable` for others."""
    try:
        yield
    except (httpx.ConnectError, httpx.ConnectTimeout) as error:
        raise StoreUnavailable(f"etcd at {endpoint} cannot be reached: {_text(error)}") from error
    except httpx.HTTPError as error:
        raise Unanswered(f"etcd at {endpoint} gives no answer: {_text(error)}") from error


def _text(error: BaseException) -> str:
    """Return the first text that the exception, or its cause, has."""
    if isinstance(error, httpx.TimeoutException):
        return "it takes too long"
    cause: BaseException | None = error
    while cause is not None and not str(cause):
        cause = cause.__cause__ or cause.__context__
    return type(error).__name__ if cause is None else str(cause)


def _news(status: int, lines: Iterable[bytes]) -> tuple[int, bytes] | None:
    """Return the status and the first line that is news; None if there is none."""
    return next(((status, line) for line in lines if _is_news(line)), None)


def _is_news(line: bytes) -> bool:
    if not line.strip():
        return False
    result = _parsed(line).get("result")
    return not (isinstance(result, dict) and result.keys() <= BEGINNING)  # an error is news


def _result(endpoint: str, status: int, content: bytes) -> Json:
    """Return the content of an answer, or of a message of a stream. Raises as `Gateway.call`."""
    answer = _parsed(content)
    error = answer.get("error")
    result = answer.get("result", answer)
    is_good = status == httpx.codes.OK and error is None and isinstance(result, dict)
    if is_good and "header" in result:
        good: Json = result
        return good
    described = error if isinstance(error, dict) else answer  # a stream's is one level deeper
    words = described.get("message", error)
    if words is None:
        raise Unanswered(f"{endpoint} does not answer as etcd does: HTTP status {status}")
    text = f"etcd at {endpoint} says {words!r}"
    code: Any = described.get("code", described.get("grpc_code"))
    is_too_large = any(cause in text for cause in TOO_LARGE)
    if code in FINAL or is_too_large:
        hints = [hint for cause, hint in HINTS.items() if cause in text]
        refusal = TooLarge if is_too_large else Refused
        raise refusal("; ".join([text, *hints]), code)
    if code in PASSING:
        raise StoreUnavailable(text)
    raise Unanswered(text)


def _parsed(content: bytes) -> Json:
    """Return the JSON object; {} if the content is none."""
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _password(access: Access) -> str:
    if access.password_file is None:
        return ""
    try:
        return Path(access.password_file).read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise StoreError(f"cannot read the password for etcd: {error}") from error


def _tls(access: Access) -> ssl.SSLContext | bool:
    if all(httpx.URL(endpoint).scheme == "http" for endpoint in access.endpoints):
        return False
    try:
        context = ssl.create_default_context(cafile=access.ca_file)
        if access.cert_file is not None:
            context.load_cert_chain(access.cert_file, access.key_file)
    except OSError as error:  # this includes ssl.SSLError
        files = (access.ca_file, access.cert_file, access.key_file)
        named = ", ".join(str(file) for file in files if file is not None)
        raise StoreError(f"cannot use the TLS files for etcd ({named}): {error}") from error
    return context
