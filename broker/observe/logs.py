"""The broker's log lines: the pattern that Kafka's operators grep for, or one JSON object each.

    [2022-09-14 04:08:48,209] INFO [Partition t-0 broker=1] Shrinking ISR ... (minibroker.broker.x)
    {"time": "2022-09-14T02:08:48.209Z", "level": "INFO", "logger": "minibroker.broker.x",
     "message": "[Partition t-0 broker=1] Shrinking ISR ..."}

The time is the machine's own in the first form, as in Kafka's, and UTC in the second.

Modules log through the standard library (`logging.getLogger(__name__)`). A message begins with its
subject in square brackets. Only this module sets a format and an output for log records; a program
that embeds a broker does not call it, and keeps its own.
"""

import json
import logging
from datetime import UTC, datetime
from io import TextIOWrapper
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


def configure_logs(stream: TextIO, log_format: str = "text", level: int = logging.INFO) -> None:
    """Send the log lines of minibroker to `stream`, as one of `LOG_FORMATS`.

    Calling it again replaces what the call before set up.
    """
    assert log_format in LOG_FORMATS
    if isinstance(stream, TextIOWrapper):  # a name that its encoding lacks must not cost the line
        stream.reconfigure(errors="backslashreplace")
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter() if log_format == "json" else TextFormatter())
    ours = logging.getLogger("minibroker")
    ours.handlers = [handler]
    ours.setLevel(level)
    ours.propagate = False
