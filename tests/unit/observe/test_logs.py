"""The log lines: Kafka's pattern, or JSON."""

import io
import json
import logging
import os
import re
import time
from datetime import UTC, datetime, timedelta
from select import PIPE_BUF

import pytest

from minibroker.broker.observe.logs import WAITING_BYTES_MAX, configure_logs


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


@pytest.fixture
def pipe():
    """A reader and a writer; the reader does not wait."""
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    with os.fdopen(reader, "rb", 0) as read_from, os.fdopen(writer, "w") as write_to:
        yield read_from, write_to


def test_a_reader_that_stops_stops_nobody(ours, pipe):
    """What the pipe does not take is kept up to a limit, then dropped and counted; what was kept
    comes once the log is read again, in order."""
    reader, writer = pipe
    configure_logs(writer)
    for number in range(20_000):
        ours.info("line %06d %s", number, "x" * 100)
    seen = b""
    for _ in range(WAITING_BYTES_MAX // PIPE_BUF):  # a pipe has room for more
        seen += reader.read(1 << 20) or b""
        ours.info("read")
    seen += reader.read(1 << 20) or b""
    numbers = [int(found) for found in re.findall(rb"line (\d{6}) x{100} ", seen)]
    assert numbers == [*range(len(numbers))]
    (missing,) = re.findall(rb"WARN \[Log\] (\d+) lines are missing here", seen)
    assert len(numbers) + int(missing) == 20_000
    assert WAITING_BYTES_MAX < len(seen) < 2 * WAITING_BYTES_MAX


def test_the_end_writes_what_waits_if_it_can(ours, pipe):
    """And waits a second at most for a reader that does not come back."""
    reader, writer = pipe
    configure_logs(writer)
    for _ in range(200):  # more than a pipe has room for
        ours.info("x" * 1000)
    ours.info("the last")
    (handler,) = logging.getLogger("minibroker").handlers
    handler.flush()
    while seen := reader.read(1 << 20):
        handler.flush()
        last = seen
    assert last.endswith(b" INFO the last (minibroker.broker.x)\n")


def test_a_reader_that_is_gone_costs_only_the_lines(ours, pipe, capfd):
    """Nothing is raised, and nothing is said on stderr instead."""
    reader, writer = pipe
    configure_logs(writer)
    reader.close()
    ours.info("lost")
    assert capfd.readouterr() == ("", "")
