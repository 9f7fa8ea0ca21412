"""The three forms of each client have the same methods: for trio, for asyncio, and blocking."""

from collections.abc import Iterator
from inspect import iscoroutinefunction, signature
from types import ModuleType
from typing import Any, get_args

import pytest

import minibroker.client.asyncio
import minibroker.client.blocking
from minibroker import client

FACES = (minibroker.client.asyncio, minibroker.client.blocking)
NAMES = ("Producer", "Consumer", "Admin")

# What only the trio clients have, with the reason.
ONLY_TRIO = {
    "Producer.run": "for a nursery; `start` and `close` elsewhere",
    "Consumer.run": "for a nursery; `start` and `close` elsewhere",
    "Admin.run": "for a nursery; `start` and `close` elsewhere",
    "Producer.send_nowait": "`send` waits only where there is no room",
    "Producer.room": "for who calls `send_nowait`",
    "Producer.send_for_delivery": "`send` returns a future",
    "Producer.send_watched": "what the others' `send` is made of",
    "Producer.mark_seen": "what the others' futures are made of",
    "Producer.check_size": "what the others' `send` is made of",
    "Producer.free_bytes": "what the others' `send` is made of",
    "Producer.wait_for_memory": "what the others' `send` is made of",
    "Producer.within_max_block": "what the others' `send` is made of",
    "Producer.takes_records": "what the others' `send` is made of",
    "Producer.abort_after": "what the others' `transaction` is made of",
    "Producer.fail_transaction": "what the others' `commit_transaction` is made of",
    "Consumer.close_from": "what the others' `close` is made of",
    "Consumer.commit_from": "what the others' `commit` is made of",
    "Consumer.commit_async_from": "what the others' `commit_async` is made of",
    "Consumer.poll_iterator": "what the others' `poll` is made of",
}
# What only the blocking clients have, with the reason.
ONLY_BLOCKING = {
    "Producer.make_portal": "of the sender, which it is for speed and others have",
    "Producer.raise_rejected": "of the sender, which it is for speed and others have",
}
# What is async in only one of trio and asyncio, with the reason.
OTHER_SHAPE = {
    "Producer.send_many": "for trio it takes as many as there is room for; elsewhere it waits",
}


def public(kind: type) -> Iterator[str]:
    """The names of a class that an application may use."""
    return (name for name in dir(kind) if not name.startswith("_"))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("face", FACES, ids=["asyncio", "blocking"])
def test_a_client_has_the_methods_of_the_trio_client(face: ModuleType, name: str) -> None:
    """With the same parameters, in the same order; there may be more behind them."""
    trio_client, its_face = getattr(client, name), getattr(face, name)
    for member in public(trio_client):
        if f"{name}.{member}" in ONLY_TRIO:
            assert not hasattr(its_face, member), f"{member} is no exception"
            continue
        assert hasattr(its_face, member), member
        ours, theirs = getattr(its_face, member), getattr(trio_client, member)
        if not callable(theirs):
            assert isinstance(ours, type(theirs)), member
            continue
        names = list(signature(theirs).parameters)
        assert list(signature(ours).parameters)[: len(names)] == names, member
        assert ours.__doc__, member


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("face", FACES, ids=["asyncio", "blocking"])
def test_a_client_is_made_as_the_trio_client_is(face: ModuleType, name: str) -> None:
    """With the same typed options."""
    made, expected = (signature(getattr(of, name).__init__) for of in (face, client))
    assert list(made.parameters) == list(expected.parameters)
    for parameter in ("bootstrap_servers", "options"):
        assert made.parameters[parameter] == expected.parameters[parameter]


@pytest.mark.parametrize("kind", ["Producer", "Consumer", "ConsumerRecord"])
@pytest.mark.parametrize("face", [client, *FACES], ids=["trio", "asyncio", "blocking"])
def test_an_annotation_names_both_types(face: ModuleType, kind: str) -> None:
    """As docs/consumer.md says: one type alone is refused at run time."""
    generic = getattr(face, kind, client.ConsumerRecord)
    assert get_args(generic[bytes, str]) == (bytes, str)


@pytest.mark.parametrize("name", NAMES)
def test_asyncio_and_blocking_have_the_same_methods(name: str) -> None:
    """Who knows one knows the other."""
    asyncio_names, blocking_names = (set(public(getattr(face, name))) for face in FACES)
    only_blocking = {each for each in blocking_names if f"{name}.{each}" in ONLY_BLOCKING}
    assert asyncio_names == blocking_names - only_blocking


@pytest.mark.parametrize("name", NAMES)
def test_what_is_async_for_trio_is_async_for_asyncio(name: str) -> None:
    """And what is not is not; nothing is in the blocking clients."""
    trio_client: Any = getattr(client, name)
    for_asyncio, blocking = (getattr(face, name) for face in FACES)
    for member in public(trio_client):
        full_name = f"{name}.{member}"
        if full_name in ONLY_TRIO or not callable(getattr(trio_client, member)):
            continue
        is_same = iscoroutinefunction(getattr(for_asyncio, member)) == iscoroutinefunction(
            getattr(trio_client, member)
        )
        assert is_same == (full_name not in OTHER_SHAPE), member
        assert not iscoroutinefunction(getattr(blocking, member)), member


def test_the_exceptions_exist() -> None:
    """No list names what is gone."""
    for full_name in (*ONLY_TRIO, *OTHER_SHAPE):
        name, member = full_name.split(".")
        assert member in set(public(getattr(client, name))), full_name
