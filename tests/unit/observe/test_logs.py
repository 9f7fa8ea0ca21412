"""The log lines: Kafka's pattern, or JSON."""

import io
import json
import logging
import re
import time
from datetime import UTC, datetime, timedelta

import pytest

from minibroker.broker.observe.logs import configure_logs


@pytest.fixture
def ours():
    logger = logging.getLogger("minibroker")
    before = logger.handlers, logger.level, logger.propagate
    yield logging.getLogger("minibroker.broker.x")
    logger.handlers, logger.propagate = before[0], before[2]
    logger.setLevel(before[1])


@pytest.fixture
def elsewhere(monkeypatch):
    """A machine whose clock shows another time than UTC."""
    monkeypatch.setenv("TZ", "Asia/Kolkata")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def test_the_text_form(ours):
    """[date time,millis] LEVEL message (logger), with the level names of log4j."""
    stream = io.StringIO()
    configure_logs(stream)
    ours.info("[KafkaServer id=%d] started", 1)
    ours.warning("careful")
    ours.debug("not shown")
    first, second = stream.getvalue().splitlines()
    stamp = r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}\]"
    assert re.fullmatch(
        stamp + r" INFO \[KafkaServer id=1\] started \(minibroker\.broker\.x\)", first
    )
    assert re.fullmatch(stamp + r" WARN careful \(minibroker\.broker\.x\)", second)


def test_a_message_is_one_line(ours):
    """A name that a client chose cannot make up log lines; the traceback is still on its own."""
    stream = io.StringIO()
    configure_logs(stream)
    try:
        raise OSError("gone")
    except OSError:
        ours.exception("there is no %s", "a\r\n[2026] WARN\x1b[2J fake\u2028-0")
    first, *traceback = stream.getvalue().splitlines()
    assert r"there is no a\x0d\x0a[2026] WARN\x1b[2J fake\x2028-0" in first
    assert traceback[0].startswith("Traceback")


@pytest.mark.parametrize("log_format", ["text", "json"])
def test_a_name_in_any_script_is_a_line(ours, log_format):
    """What the output's encoding cannot say is escaped, and a line in JSON is one line for all
    who read it."""
    output = io.BytesIO()
    configure_logs(io.TextIOWrapper(output, "ascii"), log_format)
    ours.info("[Group %s] is new", "\u6f22\u2028\x85\udc80")
    (line,) = output.getvalue().decode("ascii").splitlines()
    if log_format == "json":
        assert json.loads(line)["message"] == "[Group \u6f22\u2028\x85\udc80] is new"
    else:
        assert r"[Group \u6f22\x2028\x85\udc80] is new" in line


def test_the_json_form(ours, elsewhere):
    """One object a line, with the time in UTC and the traceback inside."""
    stream = io.StringIO()
    configure_logs(stream, "json")
    try:
        raise OSError("gone")
    except OSError:
        ours.exception('a "quoted"\nline')
    (line,) = stream.getvalue().splitlines()
    said = json.loads(line)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", said["time"])
    age = datetime.now(UTC) - datetime.fromisoformat(said["time"])
    assert abs(age) < timedelta(minutes=1)
    assert (said["level"], said["logger"]) == ("ERROR", "minibroker.broker.x")
    assert said["message"] == 'a "quoted"\nline'
    assert "OSError: gone" in said["exception"]


def test_a_second_call_replaces_the_first(ours):
    """Configuring again does not write lines twice."""
    first, second = io.StringIO(), io.StringIO()
    configure_logs(first)
    configure_logs(second)
    ours.info("once")
    assert first.getvalue() == ""
    assert len(second.getvalue().splitlines()) == 1
