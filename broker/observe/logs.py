"""The broker's log lines: the pattern that Kafka's operators grep for, or one JSON object each.

    [2022-09-14 04:08:48,209] INFO [Partition t-0 broker=1] Shrinking ISR ... (minibroker.broker.x)
    {"time": "2022-09-14T02:08:48.209Z", "level": "INFO", "logger": "minibroker.broker.x",
     "message": "[Partition t-0 broker=1] Shrinking ISR ..."}

The time is the machine's own in the first form, as in Kafka's, and UTC in the second.

A reader of the log that stops (a paused terminal, a log driver that hangs) must not stop the broker
with it. `NonBlockingHandler` writes only what the file takes at once. The rest waits in memory, and
beyond a limit it is dropped and counted.

Modules log through the standard library (`logging.getLogger(__name__)`). A message begins with its
subject in square brackets. Only this module sets a format and an output for log records; a program
that embeds a broker does not call it, and keeps its own.
"""

import json
import logging
import select
from datetime import UTC, datetime
from io import TextIOWrapper, UnsupportedOperation
from os import write
from select import PIPE_BUF
from typing import Final, TextIO

TEXT_PATTERN: Final = "[%(asctime)s] %(levelname)s %(message)s (%(name)s)"
LEVEL_NAMES: Final = {logging.WARNING: "WARN", logging.CRITICAL: "FATAL"}  # those of log4j
LOG_FORMATS: Final = ("text", "json")
# A message may contain names that a client chose; their control characters are escaped.
ESCAPED: Final = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160), 0x2028, 0x2029)}


class TextFormatter(logging.Formatter):
    """Formats a record as one line, as Kafka does; a traceback follows on lines of its own."""

    def __init__(self) -> None:
        super().__init__(TEXT_PATTERN)

    def format(self, record: logging.LogRecord) -> str:
        record.levelname = LEVEL_NAMES.get(record.levelno, record.levelname)
        return super().format(record)

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 -- logging's name
        return super().formatMessage(record).translate(ESCAPED)


class JsonFormatter(logging.Formatter):
    """One JSON object a line: time, level, logger, message, and the traceback if there is one."""

    def formatTime(  # noqa: N802 -- logging's name
        self, record: logging.LogRecord, datefmt: str | None = None
    ) -> str:
        moment = datetime.fromtimestamp(record.created, UTC)
        return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")

    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": self.formatTime(record),
            "level": LEVEL_NAMES.get(record.levelno, record.levelname),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line)  # in ASCII, which every terminal and collector can read


WAITING_BYTES_MAX: Final = 1024 * 1024
FLUSH_S: Final = 1.0
WARNING: Final = {"name": __name__, "levelno": logging.WARNING, "levelname": "WARNING"}


class NonBlockingHandler(logging.Handler):
    """Writes log lines to a file descriptor without ever waiting for its reader.

    A pipe that is ready takes PIPE_BUF bytes at once, so that many are written at a time. What it
    does not take waits, up to `WAITING_BYTES_MAX`, and is written with a later line, or by `flush`
    at the end of the process. Lines that find no room are dropped; the next one that finds some
    says how many they were.
    """

    def __init__(self, descriptor: int, encoding: str = "utf-8") -> None:
        super().__init__()
        self._descriptor = descriptor
        self._encoding = encoding
        self._waiting = bytearray()
        self._dropped = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record, after those that wait."""
        try:
            self._write_waiting(0)
            if self._dropped and not self._waiting:
                text = f"[Log] {self._dropped} lines are missing here: nothing read the log"
                self._dropped = 0
                self._add(logging.makeLogRecord(WARNING | {"msg": text}))
            self._add(record)
            self._write_waiting(0)
        except Exception:
            self.handleError(record)

    def flush(self) -> None:
        """Write what waits; give up when the reader takes nothing for `FLUSH_S`. At the end of the
        process `logging.shutdown` calls this."""
        self.acquire()
        try:
            self._write_waiting(FLUSH_S)
        finally:
            self.release()

    def _add(self, record: logging.LogRecord) -> None:
        line = (self.format(record) + "\n").encode(self._encoding, "backslashreplace")
        if len(self._waiting) + len(line) > WAITING_BYTES_MAX:
            self._dropped += 1
        else:
            self._waiting += line

    def _write_waiting(self, timeout_s: float) -> None:
        while self._waiting and select.select([], [self._descriptor], [], timeout_s)[1]:
            try:
                written = write(self._descriptor, self._waiting[:PIPE_BUF])
            except OSError:  # the reader is gone
                self._dropped += self._waiting.count(b"\n")
                written = len(self._waiting)
            del self._waiting[:written]


def configure_logs(stream: TextIO, log_format: str = "text", level: int = logging.INFO) -> None:
    """Send the log lines of minibroker to `stream`, as one of `LOG_FORMATS`.

    Calling it again replaces what the call before set up.
    """
    assert log_format in LOG_FORMATS
    if isinstance(stream, TextIOWrapper):  # a name that its encoding lacks must not cost the line
        stream.reconfigure(errors="backslashreplace")
    handler: logging.Handler
    try:
        stream.flush()
        handler = NonBlockingHandler(stream.fileno(), stream.encoding)
    except UnsupportedOperation:  # a stream in memory
        handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    ours = logging.getLogger("minibroker")
    ours.handlers = [handler]
    ours.setLevel(level)
    ours.propagate = False
