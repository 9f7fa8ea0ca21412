"""What `minibroker health` makes of what a broker says, and of one that says nothing."""

import itertools
import json
import subprocess
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial

import pytest
import trio

from minibroker.cli.broker import probe
from minibroker.cli.broker.probe import (
    ANSWER_BYTES_MAX,
    FAILED,
    USAGE,
    ProbeFailed,
    ask_health,
)
from minibroker.client.net.network import TcpNetwork
from minibroker.protocol.constants import ApiKey
from minibroker.protocol.messages import RequestEnvelope
from minibroker.protocol.messages.api_versions import ApiVersion, ApiVersionsResponse
from minibroker.protocol.messages.brokers import DescribeBrokerRequest, DescribeBrokerResponse
from minibroker.protocol.types import Endpoint
from tests.support import leaders
from tests.support.leaders import Leader, frame, leading

READY = DescribeBrokerResponse(7, 3, "c", 1, is_ready=True)
UNREADY = DescribeBrokerResponse(7, 3, "c", 1, False, ("it is shutting down", "a\x1b[2Jb"))
PATIENCE_S = 20.0
LOADED = """
import sys
from minibroker.cli.main import main
sys.argv = ["minibroker", "health", *sys.argv[1:]]
try:
    main()
finally:
    print(*sys.modules)
"""

Answer = Callable[[RequestEnvelope], Awaitable[list[bytes]]]


async def looked(answer: Answer, timeout_s: float = PATIENCE_S, **options: bool) -> str:
    """What is said of a broker that answers so."""
    async with leading(Leader(TcpNetwork(), Endpoint("127.0.0.1", 0), answer)) as broker:
        try:
            return await looked_at(str(broker.endpoint), timeout_s, **options)
        except ProbeFailed as error:
            failure = error  # which the nursery would wrap
    raise failure


async def looked_at(address: str, timeout_s: float = PATIENCE_S, **options: bool) -> str:
    """What is said of this address."""
    ask = partial(ask_health, address, timeout_s, **{"must_be_ready": False, **options})
    return "\n".join(await trio.to_thread.run_sync(lambda: list(ask())))


def saying(response: DescribeBrokerResponse) -> Answer:
    """A broker that says this of itself."""

    async def answer(request: RequestEnvelope) -> list[bytes]:
        assert request.message == DescribeBrokerRequest(include_machine=False)
        return frame(request, response)

    return answer


async def test_a_broker_that_is_ready_passes() -> None:
    """Whether readiness is demanded or not; the broker is asked for no more than that."""
    assert await looked(saying(READY)) == "broker 7 is ready"
    assert await looked(saying(READY), must_be_ready=True) == "broker 7 is ready"
    as_json = await looked(saying(READY), as_json=True)
    assert json.loads(as_json) == {"broker": 7, "ready": True, "reasons": []}


async def test_a_broker_that_is_not_ready_says_why() -> None:
    """It answers, which is enough unless readiness is demanded; no reason reaches the terminal as
    an order to it."""
    reasons = r"'it is shutting down; a\x1b[2Jb'"
    assert await looked(saying(UNREADY)) == f"broker 7 answers, and is not ready: {reasons}"
    as_json = json.loads(await looked(saying(UNREADY), as_json=True))
    assert as_json == {"broker": 7, "ready": False, "reasons": [*UNREADY.reasons]}
    for also_json in (False, True):
        with pytest.raises(ProbeFailed) as failed:
            await looked(saying(UNREADY), must_be_ready=True, as_json=also_json)
        assert str(failed.value) == f"broker 7 is not ready: {reasons}"
        assert failed.value.exit_code == FAILED


async def test_a_broker_that_does_not_answer_fails() -> None:
    """Silence, a closed connection, and bytes that no broker sends, each in its words."""

    async def say_nothing(request: RequestEnvelope) -> list[bytes]:
        await trio.sleep_forever()
        raise AssertionError

    async def hang_up(request: RequestEnvelope) -> list[bytes]:
        raise EOFError

    async def babble(request: RequestEnvelope) -> list[bytes]:
        return [b"\0\0\0\4oops"]

    with pytest.raises(ProbeFailed, match=r"gives no answer within 0\.05 s"):
        await looked(say_nothing, 0.05)
    with pytest.raises(ProbeFailed, match="cannot be asked: the broker closed the connection"):
        await looked(hang_up)
    with pytest.raises(ProbeFailed, match="does not answer as a broker does"):
        await looked(babble)


async def looked_at_bytes(first: bytes, more: bytes) -> str:
    """What is said of a server that sends these bytes, and then others for ever."""

    async def serve(stream: trio.SocketStream) -> None:
        with suppress(trio.BrokenResourceError):
            await stream.send_all(first)
            while more:
                await stream.send_all(more)
            await stream.receive_some()
            await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        (listener,) = await nursery.start(partial(trio.serve_tcp, serve, 0, host="127.0.0.1"))
        try:
            return await looked_at(str(Endpoint(*listener.socket.getsockname())))
        except ProbeFailed as failure:
            return str(failure)
        finally:
            nursery.cancel_scope.cancel()


async def test_an_answer_without_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time is that of all waits together, so bytes that drip in do not prolong it. An answer
    that claims to be large is not waited for."""
    seconds = itertools.count()
    monkeypatch.setattr(probe, "monotonic", lambda: float(next(seconds)))
    found = await looked_at_bytes((ANSWER_BYTES_MAX).to_bytes(4, "big"), b"x")
    assert found.endswith("gives no answer within 20 s")
    found = await looked_at_bytes((ANSWER_BYTES_MAX + 1).to_bytes(4, "big"), b"")
    assert "does not answer as a broker does: a frame of" in found


async def test_an_older_broker_is_named_as_such(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that has no DESCRIBE_BROKER."""
    old = ApiVersionsResponse(0, (ApiVersion(int(ApiKey.METADATA), 0, 0),))
    monkeypatch.setattr(leaders, "VERSIONS", old)
    with pytest.raises(ProbeFailed, match="it serves no version of DESCRIBE_BROKER"):
        await looked(saying(READY))


async def test_an_address_where_nobody_is_fails() -> None:
    """Refused, or no address at all."""
    listener = await TcpNetwork().listen(Endpoint("127.0.0.1", 0))
    listener.close()
    with pytest.raises(ProbeFailed, match="cannot be asked: Connection refused"):
        await looked_at(str(listener.endpoint))
    for host in ("nowhere.invalid", "a..b"):
        with pytest.raises(ProbeFailed, match="cannot be asked"):
            await looked_at(f"{host}:9092")


async def test_each_named_broker_is_asked() -> None:
    """README exports the addresses of all: the health of all is told, also after one that fails."""
    listener = await TcpNetwork().listen(Endpoint("127.0.0.1", 0))
    listener.close()
    ready = Leader(TcpNetwork(), Endpoint("127.0.0.1", 0), saying(READY))
    unready = Leader(TcpNetwork(), Endpoint("127.0.0.1", 0), saying(UNREADY))
    async with leading(ready) as one, leading(unready) as two:
        both = f"{one.endpoint},{two.endpoint}"
        lines = (await looked_at(both)).splitlines()
        assert [line.split(",")[0] for line in lines] == ["broker 7 is ready", "broker 7 answers"]
        told: list[str] = []
        failure = await trio.to_thread.run_sync(
            partial(failure_of, f"{listener.endpoint},{both}", told)
        )
    assert told == ["broker 7 is ready"]
    assert f"{listener.endpoint} cannot be asked: Connection refused; broker 7 is not" in failure


def failure_of(addresses: str, told: list[str]) -> str:
    """Why brokers are not all ready; `told` gets what is said of those that are."""
    with pytest.raises(ProbeFailed) as failed:
        told.extend(ask_health(addresses, PATIENCE_S, must_be_ready=True))
    assert failed.value.exit_code == FAILED
    return str(failed.value)


@pytest.mark.parametrize("address", ["", "h:", "h:0", "h:x", "9092", "a:1,b:"])
async def test_brokers_are_named_by_address(address: str) -> None:
    """Whose health it is must be clear; it is a usage error."""
    with pytest.raises(ProbeFailed, match="name a broker as HOST:PORT") as failed:
        await looked_at(address)
    assert failed.value.exit_code == USAGE


async def test_a_container_pays_for_little() -> None:
    """The ways in which containers call it load no event loop, no command line, no other message;
    the address comes from the environment, or is named."""

    async def say_ready(request: RequestEnvelope) -> list[bytes]:
        return frame(request, READY)

    async with leading(Leader(TcpNetwork(), Endpoint("127.0.0.1", 0), say_ready)) as broker:
        address = str(broker.endpoint)
        ways: list[tuple[list[str], dict[str, str]]] = [
            (["--ready"], {"MINIBROKER_BOOTSTRAP": address}),
            (["--ready", "-b", address], {}),
        ]
        outputs = [
            await trio.run_process(
                [sys.executable, "-c", LOADED, *options], capture_stdout=True, env=variables
            )
            for options, variables in ways
        ]
    slow = {"typer", "pydantic", "trio", "logging", "importlib.metadata", "rich", "cramjam"}
    slow |= {"minibroker.cli.terminal", "minibroker.broker", "minibroker.protocol.messages.groups"}
    for output in outputs:
        said, modules = output.stdout.decode().splitlines()
        assert said == "broker 7 is ready"
        assert not slow & set(modules.split())


def test_both_ways_end_alike() -> None:
    """With the parser of the command line and past it: the same words and the same exit code."""
    for address, code in (("127.0.0.1:1", FAILED), ("a:1,b:", USAGE)):
        plain, parsed = (
            subprocess.run(
                [sys.executable, "-m", "minibroker.cli", "health", *options],
                env={"MINIBROKER_BOOTSTRAP": address},
                capture_output=True,
                text=True,
                check=False,
            )
            for options in (["--ready"], ["--ready", "--timeout-s", "2"])
        )
        assert plain.returncode == parsed.returncode == code
        assert plain.stderr == parsed.stderr != ""
        assert plain.stdout == parsed.stdout == ""
