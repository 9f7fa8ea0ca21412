"""The pages over HTTP: what they answer, and that nobody who asks can hold the broker up."""

import math
import socket
import subprocess
import sys

import pytest
import trio
import trio.testing

from minibroker.broker.observe import http as http_module
from minibroker.broker.observe import pages
from minibroker.broker.observe.http import CONNECTIONS_MAX, GRACE_S, HttpServer, open_http
from minibroker.broker.observe.http_connection import ANSWER_S_MAX, HEAD_BYTES_MAX, REQUEST_S_MAX
from minibroker.broker.observe.loop_lag import LoopLag
from minibroker.broker.observe.sources import CannotServeHttp, Sources
from minibroker.protocol.types import Endpoint
from tests.unit.node import Node
from tests.unit.observe.shown import LOOPBACK, ask, shown, sources_of

PROMPTLY_S = 20.0  # far above what it takes, far below what a client could make it take
LAST_REQUEST = b"GET /live HTTP/1.1\r\nHost: b\r\nConnection: close\r\n\r\n"
LIBRARIES = ("h11", "starlette", "prometheus_client")


def admitted(node: Node) -> Node:
    """A node that the controller has told everything, with one partition."""
    node.lead()
    return node


async def test_a_broker_that_is_being_made_lives_and_is_not_ready() -> None:
    """Before its logs are open a broker answers that it lives, and why it is not ready; its metrics
    are those of the process."""
    async with shown() as http:
        live, ready = await ask(http, "/live"), await ask(http, "/ready")
        assert (live.status_code, live.json()) == (200, {"status": "live"})
        assert ready.status_code == 503
        assert ready.json()["status"] == "not ready"
        assert "logs are being opened" in ready.json()["reasons"][0]
        for path in ("/metrics", "/public_metrics"):
            assert "minibroker_event_loop_lag_seconds_count" in (await ask(http, path)).text


@pytest.mark.parametrize("path", ["/ready", "/v1/status/ready"])
async def test_readiness_is_the_brokers_word(path: str) -> None:
    """A broker whose replicas are all in sync is ready; one that leaves is not, from then on."""
    node = admitted(Node())
    async with shown(sources_of(node)) as http:
        answer = await ask(http, path)
        assert (answer.status_code, answer.json()) == (200, {"status": "ready", "reasons": []})
        http.show(sources_of(node, is_leaving=True))
        answer = await ask(http, path)
        assert answer.status_code == 503
        assert answer.json()["reasons"] == ["it is shutting down"]


async def test_what_is_not_there_is_told_with_what_is() -> None:
    """An unknown page is 404, another method 405 with the methods there are, HEAD has no body."""
    async with shown() as http:
        missing = await ask(http, "/metric")
        assert missing.status_code == 404
        assert "/metrics, /public_metrics" in missing.text
        refused = await ask(http, "/metrics", "POST")
        assert refused.status_code == 405
        assert "GET" in refused.headers["allow"]
        head = await ask(http, "/live", "HEAD")
        assert (head.status_code, head.content) == (200, b"")


@pytest.mark.parametrize("sent", [b"\x00\x01\x02\x03\r\n\r\n", b"MBK1" * 20 + b"\r\n\r\n"])
async def test_what_is_no_request_is_refused(sent: bytes) -> None:
    """Bytes that are no HTTP are answered with 400 and the end of the connection; others are
    served as before."""
    async with shown() as http:
        stream = await trio.open_tcp_stream(*http.endpoint)
        async with stream:
            await stream.send_all(sent)
            with trio.fail_after(PROMPTLY_S):
                answer = b"".join([part async for part in stream])
        assert answer.startswith(b"HTTP/1.1 400"), answer
        assert (await ask(http, "/live")).status_code == 200


async def test_an_address_that_cannot_be_had_is_named() -> None:
    """A port that is taken, or a host that is none, is an error with the address in it."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        endpoint = Endpoint(*taken.getsockname())
        with pytest.raises(CannotServeHttp, match=r"http\.listener: .*in use") as found:
            await open_http(endpoint)
        assert found.value.endpoint == endpoint
    with pytest.raises(CannotServeHttp, match=r"http\.listener"):
        await open_http(Endpoint("no..host", 0))


async def connected(http: HttpServer) -> trio.SocketStream:
    """A connection that takes little at once, so that an answer soon has to wait."""
    client = trio.socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
    await client.connect(tuple(http.endpoint))
    return trio.SocketStream(client)


LONG = b"x" * 6_000_000  # more than a system keeps for a reader that is slow


@pytest.fixture
def long_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """The metrics are a long page."""

    async def make(sources: Sources | None, loop_lag: LoopLag) -> bytes:
        await trio.lowlevel.checkpoint()
        return LONG

    monkeypatch.setattr(pages, "all_metrics", make)


@pytest.mark.parametrize("is_stopped", [True, False], ids=["stopped", "cancelled"])
async def test_no_connection_holds_up_the_end(is_stopped: bool, long_page: None) -> None:
    """A connection that is idle, one that has sent half a request, and one that reads nothing of a
    long answer: the server ends at once if it is cancelled, and soon if it is stopped."""
    http = await open_http(LOOPBACK)
    with trio.fail_after(PROMPTLY_S):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(http.run)
            clients = [await connected(http) for _ in range(3)]
            await clients[0].send_all(b"GET /live HTTP/1.1\r\nHost: b\r\n\r\n")
            await clients[0].receive_some()
            await clients[1].send_all(b"GET /metrics HTT")
            await clients[2].send_all(b"GET /metrics HTTP/1.1\r\nHost: b\r\n\r\n")
            assert (await clients[2].receive_some()).startswith(b"HTTP/1.1 200")
            if is_stopped:
                await http.stop()
            else:
                nursery.cancel_scope.cancel()
        for client in clients:
            await client.aclose()


async def test_an_answer_under_way_goes_out_before_the_stop() -> None:
    """Who has asked when the broker stops still gets the whole answer."""
    http = await open_http(LOOPBACK)
    http.show(sources_of(admitted(Node())))
    endpoint = http.endpoint
    async with trio.open_nursery() as nursery:
        nursery.start_soon(http.run)
        stream = await trio.open_tcp_stream(*endpoint)
        async with stream:
            await stream.send_all(b"GET /metrics HTTP/1.1\r\nHost: b\r\n\r\n")
            answer = await stream.receive_some(10)
            nursery.start_soon(http.stop)
            with trio.fail_after(PROMPTLY_S):
                answer += b"".join([part async for part in stream])
        head, _, body = answer.partition(b"\r\n\r\n")
        assert f"content-length: {len(body)}".encode() in head.lower()
    with pytest.raises(OSError, match="connect"):
        await trio.open_tcp_stream(*endpoint)


async def live_is_answered(http: HttpServer) -> bool:
    """Whether a new connection is served, whatever the others do."""
    stream = await trio.open_tcp_stream(*http.endpoint)
    async with stream:
        await stream.send_all(LAST_REQUEST)
        answer = b"".join([part async for part in stream])
    return answer.startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("sent", [b"", b"G", b"GET /live HTTP/1.1\r\nHost: b\r\nX: "])
@pytest.mark.parametrize("count", [CONNECTIONS_MAX, 4 * CONNECTIONS_MAX])
async def test_slow_connections_keep_nobody_out(sent: bytes, count: int) -> None:
    """However many connections send nothing or half a request, `/live` is answered, and no more
    than the limit are open: the oldest go first."""
    async with shown() as http:
        clients = []
        with trio.fail_after(PROMPTLY_S):
            for _ in range(count):
                clients.append(await trio.open_tcp_stream(*http.endpoint))
                await clients[-1].send_all(sent)
            for _ in range(3):
                assert await live_is_answered(http)
                assert http.statistics() <= CONNECTIONS_MAX
            for client in clients[: count - CONNECTIONS_MAX + 1]:
                assert await is_closed(client)
        for client in clients:
            await client.aclose()


async def is_closed(client: trio.SocketStream) -> bool:
    """Wait for what the server does with a connection, and return whether it ended it."""
    try:
        return await client.receive_some() == b""
    except trio.BrokenResourceError:
        return True


async def test_slow_readers_keep_nobody_out(
    mock_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch, long_page: None
) -> None:
    """Connections that take nothing of a long answer make room for a new one; those that are idle
    for longer than a request takes to come go before them."""
    monkeypatch.setattr(http_module, "ANSWERS_BYTES_MAX", math.inf)
    async with shown() as http:
        idle = await trio.open_tcp_stream(*http.endpoint)
        await trio.testing.wait_all_tasks_blocked()
        mock_clock.jump(GRACE_S)
        readers = [await reading_nothing(http) for _ in range(CONNECTIONS_MAX - 1)]
        assert await live_is_answered(http)
        assert await is_closed(idle)
        assert http.statistics() == CONNECTIONS_MAX - 1
        readers.append(await reading_nothing(http))
        assert await live_is_answered(http)
        assert http.statistics() == CONNECTIONS_MAX - 1
        for client in (idle, *readers):
            await client.aclose()


async def reading_nothing(http: HttpServer) -> trio.SocketStream:
    """A connection that has asked for much, has got the beginning, and takes no more."""
    client = await connected(http)
    await client.send_all(b"GET /metrics HTTP/1.1\r\nHost: b\r\n\r\n")
    assert (await client.receive_some()).startswith(b"HTTP/1.1 200")
    return client


async def test_answers_that_wait_hold_little_memory(
    monkeypatch: pytest.MonkeyPatch, long_page: None
) -> None:
    """Above the limit the answer that waits the longest ends, with its connection."""
    async with shown() as http:
        first = await reading_nothing(http)
        monkeypatch.setattr(http_module, "ANSWERS_BYTES_MAX", 3 * len(LONG))
        others = [await reading_nothing(http) for _ in range(2)]
        assert http.statistics() == 3
        others.append(await reading_nothing(http))
        await trio.testing.wait_all_tasks_blocked()
        assert http.statistics() == 3
        while not await is_closed(first):  # what the system had kept for it comes first
            pass
        for client in (first, *others):
            await client.aclose()


async def test_a_request_that_drips_is_let_go(mock_clock: trio.testing.MockClock) -> None:
    """The time for a request does not begin anew with each byte; after an answer it does."""
    async with shown() as http:
        client = await trio.open_tcp_stream(*http.endpoint)
        for _ in range(2):
            for byte in (b"GET", b" ", b"/live", b" HTTP/1.1\r\nHost: b\r\n\r\n"):
                await client.send_all(byte)
                await trio.testing.wait_all_tasks_blocked()
                mock_clock.jump(REQUEST_S_MAX / 5)
            assert (await client.receive_some()).startswith(b"HTTP/1.1 200")
        for byte in (b"G", b"E", b"T", b" "):
            assert http.statistics() == 1
            await client.send_all(byte)
            await trio.testing.wait_all_tasks_blocked()
            mock_clock.jump(REQUEST_S_MAX / 5)
            await trio.testing.wait_all_tasks_blocked()
        assert http.statistics() == 0
        await client.aclose()


async def exchanged(http: HttpServer, sent: bytes) -> bytes:
    """All that is answered to these bytes, until the server ends the connection."""
    stream = await trio.open_tcp_stream(*http.endpoint)
    async with stream:
        await stream.send_all(sent)
        with trio.fail_after(PROMPTLY_S):
            await stream.send_eof()
            return b"".join([part async for part in stream])


HEAD = b"GET /live HTTP/1.1\r\nHost: b\r\n"


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"POST /live HTTP/1.1\r\nHost: b\r\nContent-Length: 9999999\r\n\r\n" + b"x" * 9000, 413),
        (HEAD + b"Content-Length: 1\r\nExpect: 100-continue\r\n\r\n", 413),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\n", 413),
        (HEAD + b"Transfer-Encoding: chunked\r\n\r\nmany\r\n", 400),
        (HEAD + b"X: " + b"x" * HEAD_BYTES_MAX, 431),
        (b"GET /live HTTP/1.1\r\n\r\n", 400),
        (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505),
    ],
)
async def test_what_no_page_needs_is_refused(sent: bytes, status: int) -> None:
    """Bodies, long heads, and HTTP/2, whose streams could each hold an answer: the request is
    answered with an error, and the connection ends."""
    async with shown() as http:
        answer = await exchanged(http, sent)
        assert answer.startswith(b"HTTP/1.1 %d" % status), answer
        assert answer.count(b"\r\ndate: ") == 1
        assert b"connection: close" in answer.lower()


async def test_no_other_protocol_is_upgraded_to() -> None:
    """A request for an upgrade is answered as if it had not asked for one."""
    async with shown() as http:
        for protocol in (b"h2c", b"websocket"):
            asked = b"Connection: Upgrade, close\r\nUpgrade: " + protocol + b"\r\n\r\n"
            answer = await exchanged(http, HEAD + asked)
            assert answer.startswith(b"HTTP/1.1 200"), answer
            assert answer.count(b"HTTP/1.1") == 1


async def test_requests_in_one_packet_are_answered_in_turn() -> None:
    """Also if there are more of them than are read at once."""
    async with shown() as http:
        missing = b"GET /none HTTP/1.1\r\nHost: b\r\n\r\n"
        answer = await exchanged(http, (HEAD + b"\r\n" + missing) * 200 + LAST_REQUEST)
        statuses = [part[:3] for part in answer.split(b"HTTP/1.1 ")[1:]]
        assert statuses == [b"200", b"404"] * 200 + [b"200"]


async def test_a_page_that_fails_is_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is answered with 500, and the broker goes on."""

    async def fail(sources: Sources | None, loop_lag: LoopLag) -> bytes:
        raise ValueError("a defect")

    monkeypatch.setattr(pages, "all_metrics", fail)
    async with shown() as http:
        answer = await exchanged(http, b"GET /metrics HTTP/1.1\r\nHost: b\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 500")
        assert await live_is_answered(http)
    assert "a defect" in caplog.text


async def test_metrics_are_made_once_for_many(
    monkeypatch: pytest.MonkeyPatch, mock_clock: trio.testing.MockClock
) -> None:
    """Requests that come within a second share one text; then another is made, and so it is for
    another broker."""
    made: list[Sources | None] = []

    async def count(sources: Sources | None, loop_lag: LoopLag) -> bytes:
        made.append(sources)
        await trio.lowlevel.checkpoint()
        return b"%d" % len(made)

    monkeypatch.setattr(pages, "all_metrics", count)
    async with shown() as http:

        async def ask_often() -> None:
            async with trio.open_nursery() as nursery:
                for _ in range(10):
                    nursery.start_soon(ask, http, "/metrics")

        await ask_often()
        assert len(made) == 1
        mock_clock.jump(pages.METRICS_S_MIN)
        await ask_often()
        assert len(made) == 2
        sources = sources_of(Node())
        http.show(sources)
        await ask_often()
        assert made[2:] == [sources]


def test_a_broker_without_http_loads_none_of_it() -> None:
    """What a broker is made of imports no library of HTTP."""
    program = (
        "import sys, minibroker.broker.app, minibroker.cli.broker.start\n"
        f"print([name for name in {LIBRARIES} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.stdout.strip(), done.returncode) == ("[]", 0), done.stderr


async def test_who_reads_nothing_is_let_go(
    mock_clock: trio.testing.MockClock, long_page: None
) -> None:
    """A connection that takes nothing of its answer does not keep its place for ever."""
    async with shown() as http:
        client = await connected(http)
        await client.send_all(b"GET /metrics HTTP/1.1\r\nHost: b\r\n\r\n")
        assert (await client.receive_some()).startswith(b"HTTP/1.1 200")
        await trio.testing.wait_all_tasks_blocked()
        assert http.statistics() == 1
        mock_clock.jump(ANSWER_S_MAX)
        await trio.testing.wait_all_tasks_blocked()
        assert http.statistics() == 0
        await client.aclose()
