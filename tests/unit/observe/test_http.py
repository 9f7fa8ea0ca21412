"""The pages over HTTP: what they answer, and that nobody who asks can hold the broker up."""

import socket
import subprocess
import sys

import pytest
import trio
import trio.testing

from minibroker.broker.metadata.model import ClusterImage, PartitionImage, TopicImage
from minibroker.broker.observe.http import (
    CONNECTION_S_MAX,
    CONNECTIONS_MAX,
    SWEEP_S,
    HttpServer,
    open_http,
)
from minibroker.broker.observe.sources import CannotServeHttp
from minibroker.protocol.constants import NO_NODE
from minibroker.protocol.types import Endpoint
from tests.unit.node import Node
from tests.unit.observe.shown import LOOPBACK, ask, shown, sources_of

PROMPTLY_S = 20.0  # far above what it takes, far below what a client could make it take
LAST_REQUEST = b"GET /live HTTP/1.1\r\nHost: b\r\nConnection: close\r\n\r\n"
LIBRARIES = ("hypercorn", "starlette", "prometheus_client")


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


def with_many_partitions() -> Node:
    """A node whose metrics are more than a system keeps for a reader that is slow."""
    node = Node()
    partitions = [PartitionImage(n, NO_NODE, 0, (1,), (1,), 0) for n in range(60_000)]
    topic = TopicImage(b"i" * 16, "t" * 100, {}, tuple(partitions))
    node.replicas.image = ClusterImage(topics={topic.name: topic})
    return node


@pytest.mark.parametrize("is_stopped", [True, False], ids=["stopped", "cancelled"])
async def test_no_connection_holds_up_the_end(is_stopped: bool) -> None:
    """A connection that is idle, one that has sent half a request, and one that reads nothing of a
    long answer: the server ends at once if it is cancelled, and soon if it is stopped."""
    http = await open_http(LOOPBACK)
    http.show(sources_of(with_many_partitions()))
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


async def test_connections_are_bounded() -> None:
    """One more than there may be is closed at once; when one ends there is room again."""
    async with shown() as http:
        clients = [await trio.open_tcp_stream(*http.endpoint) for _ in range(CONNECTIONS_MAX)]
        one_more = await trio.open_tcp_stream(*http.endpoint)
        with trio.fail_after(PROMPTLY_S):
            assert await one_more.receive_some() == b""
            await clients[0].send_all(LAST_REQUEST)
            while await clients[0].receive_some():
                pass
            while not await answers(http):
                await trio.lowlevel.checkpoint()
        for client in (*clients, one_more):
            await client.aclose()


async def answers(http: HttpServer) -> bool:
    """Whether a new connection is served."""
    stream = await trio.open_tcp_stream(*http.endpoint)
    async with stream:
        try:
            await stream.send_all(LAST_REQUEST)
            return (await stream.receive_some()).startswith(b"HTTP/1.1 200")
        except trio.BrokenResourceError:
            return False


def test_a_broker_without_http_loads_none_of_it() -> None:
    """What a broker is made of imports no library of HTTP."""
    program = (
        "import sys, minibroker.broker.app, minibroker.cli.broker.start\n"
        f"print([name for name in {LIBRARIES} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (done.stdout.strip(), done.returncode) == ("[]", 0), done.stderr


async def test_who_reads_nothing_is_let_go(mock_clock: trio.testing.MockClock) -> None:
    """A connection that takes nothing of its answer does not keep its place for ever."""
    async with shown(sources_of(with_many_partitions())) as http:
        client = await connected(http)
        await client.send_all(b"GET /metrics HTTP/1.1\r\nHost: b\r\n\r\n")
        assert (await client.receive_some()).startswith(b"HTTP/1.1 200")
        await trio.testing.wait_all_tasks_blocked()
        assert http.statistics() == 1
        for seconds in (CONNECTION_S_MAX + SWEEP_S, SWEEP_S):  # closed, and then forgotten
            mock_clock.jump(seconds)
            await trio.testing.wait_all_tasks_blocked()
        assert http.statistics() == 0
        await client.aclose()
