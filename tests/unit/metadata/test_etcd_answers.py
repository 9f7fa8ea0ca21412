"""What the etcd store makes of answers that a real etcd seldom gives."""

import json
import random
from contextlib import asynccontextmanager
from functools import partial

import pytest
import trio

from minibroker.broker.metadata import etcd_gateway
from minibroker.broker.metadata.etcd_gateway import Access
from minibroker.broker.metadata.etcd_store import EtcdStore
from minibroker.broker.metadata.store import (
    LeaseLost,
    Put,
    StoreError,
    StoreUnavailable,
    TransactionTooLarge,
)

HEADER = {"cluster_id": "1", "member_id": "1", "revision": "1"}


@pytest.fixture(autouse=True)
def patient(monkeypatch):
    """What is tested is what an answer says, not how soon a busy machine gives it."""
    monkeypatch.setattr(etcd_gateway, "ANSWER_S_MAX", 60.0)
    monkeypatch.setattr(etcd_gateway, "CONNECT_S_MAX", 60.0)


class Server:
    """Gives the answers of a list in turn, the last one for ever; `paths` is what was asked."""

    def __init__(self, *answers):
        self.paths = []
        self._answers = list(answers)

    async def serve(self, stream):
        async with stream:
            request = b""
            while not request.endswith(b"}"):
                request += await stream.receive_some()
            self.paths.append(request.split()[1].decode())
            status, body = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
            head = (
                f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
            )
            await stream.send_all(head.encode() + body)


@asynccontextmanager
async def answering(*answers):
    """A server, and a store that asks it."""
    server = Server(*answers)
    async with trio.open_nursery() as nursery:
        serve = partial(trio.serve_tcp, host="127.0.0.1")
        [listener] = await nursery.start(serve, server.serve, 0)
        url = f"http://127.0.0.1:{listener.socket.getsockname()[1]}"
        store = EtcdStore(Access([url]), "test/", "1", random.Random(1))
        yield server, store
        await store.close()
        nursery.cancel_scope.cancel()


def ok(**content):
    return 200, json.dumps(content).encode()


def renewed(term):
    return ok(result={"header": {**HEADER, "raft_term": term}, "ID": "7", "TTL": "2"})


def agreed(term):
    return ok(header={**HEADER, "raft_term": term}, succeeded=True)


async def test_a_renewal_by_a_deposed_leader_does_not_count():
    """Where the members agree upon another term than the renewal was made in, it is made again."""
    async with answering(renewed("2"), agreed("3"), renewed("3"), agreed("3")) as (server, store):
        await store.renew(7)
    assert server.paths == ["/v3/lease/keepalive", "/v3/kv/txn"] * 2


async def test_a_renewal_without_time_is_a_lost_lease():
    """etcd leaves the time out where there is no such lease."""
    async with answering(ok(result={"header": HEADER, "ID": "7"})) as (_, store):
        with pytest.raises(LeaseLost):
            await store.renew(7)


@pytest.mark.parametrize(
    ("status", "body", "says"),
    [
        (404, b"404 page not found\n", "does not answer as etcd does: HTTP status 404"),
        (200, b"<html>", "does not answer as etcd does: HTTP status 200"),
        (200, b"[]", "does not answer as etcd does: HTTP status 200"),
        (200, b"{}", "does not answer as etcd does: HTTP status 200"),
        (200, b"", "does not answer as etcd does: HTTP status 200"),
        (503, b'{"error": "etcdserver: no leader", "code": 14, "message": "x"}', "says 'x'"),
        (500, b'{"error": "something new", "code": 99}', "says 'something new'"),
        (503, b'{"code": 14, "message": "as of 3.6", "details": []}', "says 'as of 3.6'"),
        (200, b'{"error": {"grpc_code": 14, "message": "in a stream"}}', "says 'in a stream'"),
        (200, b'{"error": {"code": 14, "message": "as of 3.6"}}', "says 'as of 3.6'"),
        (200, b"[" * 200_000, "does not answer as etcd does: HTTP status 200"),
    ],
)
async def test_what_is_no_answer_may_be_one_later(status, body, says):
    """Neither errors that may pass nor something else at etcd's address stop a broker."""
    async with answering((status, body)) as (_, store):
        for call, argument in ((store.get, ""), (store.renew, 7)):
            with pytest.raises(StoreUnavailable, match=says):
                await call(argument)


async def test_an_answer_without_end_is_given_up(monkeypatch):
    """One that is too large is not kept, nor one that never ends waited for, whose pieces come in
    time."""
    body = b" " * 10_000_000
    monkeypatch.setattr(etcd_gateway, "ANSWER_BYTES_MAX", 1_000_000)
    async with answering((200, body)) as (_, store):
        with pytest.raises(StoreUnavailable, match="does not end its answer"):
            await store.get("")
    monkeypatch.setattr(etcd_gateway, "WHOLE_ANSWER_S_MAX", 0.05)

    async def begin(server, stream):
        await stream.receive_some()
        await stream.send_all(b"HTTP/1.1 200 X\r\nContent-Length: 10\r\n\r\n[")
        await trio.sleep_forever()

    monkeypatch.setattr(Server, "serve", begin)
    async with answering((200, b"")) as (_, store):
        with pytest.raises(StoreUnavailable, match="does not end its answer"):
            await store.get("")


async def test_a_watch_that_etcd_ends_is_no_busy_loop():
    """Twice in a row it is an error for who watches, who waits before asking again."""
    state = ok(header={**HEADER, "raft_term": "2"})
    ended = ok(result={"header": HEADER, "created": True, "canceled": True, "cancel_reason": "y"})
    for end, says in ((ended, "ended a watch: y"), ((200, b""), "has ended its answer")):
        async with answering(state, end, state, end) as (_, store):
            with pytest.raises(StoreUnavailable, match=says):
                await store.watch("", 0)


async def test_a_repetition_that_is_too_large_stops_the_broker():
    """Asked again a request is longer, and of the first one it is not known that it was not made:
    in parts it might be made twice."""
    unknown = (500, b'{"error": "something new", "code": 99}')
    too_large = (400, b'{"code": 3, "message": "etcdserver: request is too large"}')
    async with answering(ok(header=HEADER), unknown, too_large) as (_, store):
        with pytest.raises(StoreError, match="request is too large") as caught:
            await store.transact([], [Put("key", b"")])
        assert not isinstance(caught.value, TransactionTooLarge)


async def test_a_refusal_stops_the_broker():
    """What etcd would refuse again is no `StoreUnavailable`."""
    refusal = b'{"code": 7, "message": "etcdserver: permission denied"}'
    async with answering((403, refusal)) as (_, store):
        with pytest.raises(StoreError, match="permission denied") as caught:
            await store.get("")
        assert not isinstance(caught.value, StoreUnavailable)
