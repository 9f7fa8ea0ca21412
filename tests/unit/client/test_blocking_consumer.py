"""The blocking consumer and admin client, over real sockets with a real thread."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from minibroker.client.blocking import Admin, Consumer
from minibroker.client.errors import ClientClosed, ClientTimeout, ConfigError


@pytest.fixture
def closed_port() -> Iterator[str]:
    """An address where nobody listens."""
    import socket

    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{bound.getsockname()[1]}"


def test_an_error_of_the_loop_comes_out_of_the_call(closed_port: str) -> None:
    """What the trio client raises, the blocking one raises, in the caller's thread."""
    options: dict[str, Any] = {"default_api_timeout_ms": 200}
    with Consumer(closed_port, **options) as consumer, pytest.raises(ClientTimeout, match="200 ms"):
        consumer.assign_topics("t")
    with Admin(closed_port, **options) as admin, pytest.raises(ClientTimeout, match="refused"):
        admin.list_topics()
    with pytest.raises(ConfigError, match=r"auto_offset_reset"):
        Consumer(closed_port, auto_offset_rest="latest")


def test_close_from_another_thread_ends_the_iteration(closed_port: str) -> None:
    """A thread that waits for records in vain can be told to stop."""
    ended = threading.Event()

    def iterate(consumer: Consumer) -> None:
        with pytest.raises(ClientClosed):
            next(iter(consumer))
        ended.set()

    with Consumer(closed_port) as consumer:
        consumer.assign([("t", 0)])
        assert consumer.poll(0) == []
        thread = threading.Thread(target=iterate, args=(consumer,))
        thread.start()
        consumer.close()
        assert ended.wait(5)
        thread.join()
