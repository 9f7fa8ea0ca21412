"""How the doctor joins what it finds, and how it tells it."""

import json
from pathlib import Path

import pytest
import trio

from minibroker.broker.findings import Finding, Level
from minibroker.cli.doctor import commands
from minibroker.cli.terminal import OutputFormat
from minibroker.client.net.network import TcpNetwork
from minibroker.protocol.constants import ApiKey
from minibroker.protocol.messages import RequestEnvelope
from minibroker.protocol.messages.brokers import DescribeBrokerResponse, MachineDescription
from minibroker.protocol.types import Endpoint
from tests.support.leaders import Leader, frame, leading

FINDINGS = [
    Finding(Level.OK, "all is well"),
    Finding(Level.NOTE, "a \x1b[2J name", "think of it"),
    Finding(Level.PROBLEM, "it burns", "run"),
]


def test_the_worst_is_told_first(capsys: pytest.CaptureFixture[str]) -> None:
    """Each with what to do, and a sum; no terminal obeys what is in a text."""
    commands.show(FINDINGS, OutputFormat.TEXT)
    assert capsys.readouterr().out.splitlines() == [
        "problem  it burns",
        "           to do: run",
        r"note     'a \x1b[2J name'",
        "           to do: think of it",
        "ok       all is well",
        "1 problem, 1 note.",
    ]
    commands.show(FINDINGS, OutputFormat.JSON)
    told = json.loads(capsys.readouterr().out)
    assert told["problems"] == 1
    assert told["findings"][0] == {"level": "problem", "what": "it burns", "advice": "run"}
    assert [row["level"] for row in told["findings"]] == ["problem", "note", "ok"]


def test_nobody_answers() -> None:
    """Each address that was named is told; there is nobody to ask more of."""
    found = list(commands.of_cluster("127.0.0.1:1,127.0.0.1:2", 5.0, None))
    assert [(each.level, each.what) for each in found] == [
        ("problem", "127.0.0.1:1 cannot be asked: Connection refused"),
        ("problem", "127.0.0.1:2 cannot be asked: Connection refused"),
    ]


async def test_a_broker_that_knows_no_cluster_yet_speaks_for_itself() -> None:
    """It is asked for what it knows, and that it tells no more is a problem, too."""
    machine = MachineDescription("1", "3", "etcd:http://127.0.0.1:1")
    waiting = DescribeBrokerResponse(4, reasons=("it waits",), machine=machine)

    async def answer(request: RequestEnvelope) -> list[bytes]:
        if request.api_key != ApiKey.DESCRIBE_BROKER:
            raise EOFError
        return frame(request, waiting)

    async with leading(Leader(TcpNetwork(), Endpoint("127.0.0.1", 0), answer)) as broker:
        address = str(broker.endpoint)
        found = await trio.to_thread.run_sync(lambda: [*commands.of_cluster(address, 0.5, None)])
    told = [(each.level, each.what) for each in found]
    assert ("problem", "broker 4 is not ready: it waits") in told
    sent = f"reached where clients are sent, Kafka's and minibroker's own: broker 4 at {address}"
    assert ("ok", sent) in told
    (silent,) = [text for _, text in told if text.startswith("no broker tells what the cluster is")]
    assert address in silent
    store = "etcd:http://127.0.0.1:1, which the brokers use, cannot be read here"
    assert [level for level, text in told if text.startswith(store)] == ["note"]


def test_a_store_in_memory_is_noted(tmp_path: Path) -> None:
    """It can be looked at by nobody, and forgets all."""
    config = commands.load_settings(None, {"metadata.store": "memory:"}).config
    found = commands.of_settings(config, tmp_path)
    notes = [each.what for each in found if each.level == Level.NOTE]
    assert "metadata.store=memory: forgets all topics when the broker stops" in notes
