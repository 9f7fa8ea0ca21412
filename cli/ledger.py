"""The ledger of a producer: one JSON object a line for each record that was acknowledged or not.

The lines are those of Kafka's verifiable producer, so that whatever judges a run by its ledger
(the audit) reads ledgers of either. Text that is not UTF-8 is written with surrogate escapes,
which `str.encode("utf-8", "surrogateescape")` turns back into the same bytes.
"""

import json
import time
from pathlib import Path
from typing import IO, TYPE_CHECKING

if TYPE_CHECKING:
    from minibroker.client import Delivery


class Ledger:
    """Writes as deliveries come in; a context manager that ends the file in order."""

    def __init__(self, path: Path) -> None:
        self._file: IO[str] = path.open("w", encoding="ascii")

    def __enter__(self) -> "Ledger":
        self._write({"timestamp": _now_ms(), "name": "startup_complete"})
        return self

    def __exit__(self, *_: object) -> None:
        self._write({"timestamp": _now_ms(), "name": "shutdown_complete"})
        self._file.close()

    def record(self, delivery: "Delivery") -> None:
        """One line for each record of a batch."""
        error = delivery.error
        told: dict[str, object] = {"timestamp": _now_ms(), "name": "producer_send_success"}
        if error is not None:
            told["name"] = "producer_send_error"
            told |= {"exception": type(error).__name__, "message": str(error)}
        told |= {"topic": delivery.topic, "partition": delivery.partition}
        for record in delivery.records():
            what: dict[str, object] = {"key": _text(record.key), "value": _text(record.value)}
            if error is None:
                what["offset"] = record.offset
            self._write(told | what)

    def _write(self, entry: dict[str, object]) -> None:
        self._file.write(json.dumps(entry) + "\n")


def _text(data: bytes | None) -> str | None:
    return None if data is None else data.decode("utf-8", "surrogateescape")


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
