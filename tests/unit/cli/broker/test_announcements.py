"""What `minibroker start` says besides log lines, in the form that these have."""

import io
import json
import logging
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import replace

import pytest

from minibroker.broker.app import Started
from minibroker.broker.config import Config
from minibroker.broker.observe.logs import configure_logs
from minibroker.cli.broker.announcements import WIRES, Announcer
from minibroker.protocol.types import NamedEndpoint, TopicPartition


@pytest.fixture
def ours() -> Iterator[None]:
    """The log's settings are as before afterwards."""
    logger = logging.getLogger("minibroker")
    before = logger.handlers, logger.level, logger.propagate
    yield
    logger.handlers, logger.propagate = before[0], before[2]
    logger.setLevel(before[1])


def announce(log_format: str) -> list[str]:
    """The lines of all that there is to say, of both outputs, as a container has them."""
    listening = (NamedEndpoint("PLAINTEXT", "0.0.0.0", 9092),)
    advertised = (NamedEndpoint("PLAINTEXT", "here", 9092),)
    output = io.StringIO()
    with redirect_stdout(output), redirect_stderr(output):
        configure_logs(output, log_format)
        announcer = Announcer(replace(Config(), node_id=7, log_format=log_format))
        announcer.announce_started(Started(listening, advertised, "id", (TopicPartition("t", 0),)))
        announcer.announce("shutting down")
        announcer.announce_stopped()
    return output.getvalue().splitlines()


def test_bare_lines_for_people_and_scripts(ours: None) -> None:
    """The two that scripts wait for stand alone on a line; notes are marked."""
    lines = announce("text")
    assert "Listening on 0.0.0.0:9092" in lines
    assert f"Clients are told here:9092: {WIRES}" in lines
    assert lines[-4:-2] == ["[KafkaServer id=7] started", "Kafka Server started"]
    assert lines[-2:] == ["% shutting down", "[KafkaServer id=7] shut down completed"]
    assert sum(line.startswith("% WARNING: ") for line in lines) == 2


def test_objects_where_log_lines_are_objects(ours: None) -> None:
    """Every line, notes too, with its level."""
    lines = [json.loads(line) for line in announce("json")]
    messages = [line["message"] for line in lines]
    assert messages[-1] == "[KafkaServer id=7] shut down completed"
    assert "Kafka Server started" in messages
    assert sum(line["level"] == "WARN" for line in lines) == 2
