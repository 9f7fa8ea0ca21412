"""The ledger of a producer: one JSON object a line for each record that was acknowledged or not.

The lines are those of Kafka's verifiable producer, so that whatever judges a run by its ledger
reads ledgers of either. Text that is not UTF-8 is written with surrogate escapes, which
`str.encode("utf-8", "surrogateescape")` turns back into the same bytes. Each batch's lines are
given to the system at once, so a ledger survives the end of its program. A file that is there is
added to: what it holds may be the only evidence of an earlier run.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from minibroker.client.delivery import Delivery


class Ledger:
    """Writes as deliveries come in (`record` fits `on_delivery`); used with `with`.

    `acks` is written beside each record: what an acknowledgement was worth. `wall_ms` is the
    wall clock. An `OSError` says that it was the ledger that could not be written.
    """

    def __init__(self, path: Path | str, acks: int, wall_ms: Callable[[], int]) -> None:
        self._path = path
        self._file: IO[str] = Path(path).open("a", encoding="ascii")  # noqa: SIM115 (__exit__)
        self._acks = acks
        self._wall_ms = wall_ms

    def __enter__(self) -> "Ledger":
        self._write([{"name": "startup_complete"}])
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._write([{"name": "shutdown_complete"}])
        finally:
            with self._explained():  # it tries once more to write what could not be written
                self._file.close()

    def record(self, delivery: Delivery) -> None:
        """One line for each record of a batch."""
        error = delivery.error
        told: dict[str, object] = {"name": "producer_send_success"}
        if error is not None:
            told = {
                "name": "producer_send_error",
                "exception": type(error).__name__,
                "message": str(error),
            }
        told |= {
            "topic": delivery.topic,
            "partition": delivery.partition,
            "acks": self._acks,
        }
        entries = []
        for record in delivery.records():
            entry = told | {"key": _text(record.key), "value": _text(record.value)}
            if error is None:
                entry["offset"] = record.offset
            entries.append(entry)
        self._write(entries)

    def _write(self, entries: list[dict[str, object]]) -> None:
        timestamp = {"timestamp": self._wall_ms()}
        with self._explained():
            self._file.write("".join([json.dumps(timestamp | entry) + "\n" for entry in entries]))
            self._file.flush()

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            text = f"cannot write the ledger: {error.strerror}"
            raise OSError(error.errno, text, str(self._path)) from None


def _text(data: bytes | None) -> str | None:
    return None if data is None else data.decode("utf-8", "surrogateescape")
