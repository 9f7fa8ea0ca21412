"""The ledgers of clients: what brokers acknowledged and delivered, one JSON object a line.

The lines are those of Kafka's verifiable producer and consumer, so a tool that judges a run by its
ledgers reads either. Text that is not UTF-8 is written with surrogate escapes, which
`str.encode("utf-8", "surrogateescape")` turns back into the same bytes. Each batch's lines are
written to the system at once, so a ledger survives the end of its program. An existing file is
appended to, on a new line: it may be the only evidence of an earlier run.
"""

import json
from collections.abc import Callable, Sequence
from itertools import groupby
from operator import itemgetter
from os import SEEK_END
from pathlib import Path
from typing import Self

from minibroker.client.consumer.completed_fetch import ConsumerRecord
from minibroker.client.groups.offset_commits import CommitAnswer
from minibroker.client.options import ProducerOptions
from minibroker.client.producer.delivery import Delivery
from minibroker.protocol.constants import READ_COMMITTED, READ_UNCOMMITTED, ErrorCode
from minibroker.protocol.types import TopicPartition


class LedgerFile:
    """A ledger that is being written; used with `with`.

    `wall_ms` is the wall clock. An `OSError` means that the ledger could not be written.
    """

    def __init__(self, path: Path | str, wall_ms: Callable[[], int], **about: object) -> None:
        self._path = path
        self._about = about  # the client's facts for the first line
        self._begin = "" if _ends_in_a_line(Path(path)) else "\n"
        # Unbuffered: the child of a fork would write a buffer again.
        self._file = Path(path).open("ab", buffering=0)  # noqa: SIM115 (__exit__)
        self._unwritten = b""  # not written yet (disk full); written first
        self._wall_ms = wall_ms

    def __enter__(self) -> Self:
        self._write([{"name": "startup_complete"} | self._about])
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self._write([{"name": "shutdown_complete"}])
        finally:
            self._file.close()

    def _write(self, entries: list[dict[str, object]]) -> None:
        timestamp = {"timestamp": self._wall_ms()}
        lines = "".join([json.dumps(timestamp | entry) + "\n" for entry in entries])
        self._unwritten += (self._begin + lines).encode("ascii")
        self._begin = ""
        try:
            while self._unwritten:
                self._unwritten = self._unwritten[self._file.write(self._unwritten) :]
        except OSError as error:
            text = f"cannot write the ledger: {error.strerror}"
            raise OSError(error.errno, text, str(self._path)) from None


class Ledger(LedgerFile):
    """A producer's ledger: written as deliveries come in (`record` fits `on_delivery`).

    It also records what an acknowledgement was worth: `acks` beside each record, and `idempotence`
    in its first line, with which a broker recognises repetitions.
    """

    def __init__(
        self, path: Path | str, options: ProducerOptions, wall_ms: Callable[[], int]
    ) -> None:
        super().__init__(path, wall_ms, idempotence=options.enable_idempotence)
        self._acks = options.acks

    def record(self, delivery: Delivery) -> None:
        """Write one line for each record of a batch."""
        error = delivery.error
        common: dict[str, object] = {"name": "producer_send_success"}
        if error is not None:
            common = {
                "name": "producer_send_error",
                "exception": type(error).__name__,
                "message": str(error),
            }
        common |= {
            "topic": delivery.topic,
            "partition": delivery.partition,
            "acks": self._acks,
        } | _named(delivery.topic_id)
        entries = []
        for record in delivery.records():
            entry = common | {"key": _text(record.key), "value": _text(record.value)}
            if error is None:
                entry["offset"] = record.offset
            entries.append(entry)
        self._write(entries)


class ConsumerLedger(LedgerFile):
    """A consumer's ledger: each delivered record, a sum for each poll, the commits, and the jumps.

    `id_of` returns the id of the topic that the consumer reads, b"" while that is not known. Lines
    have the `group`, if there is one, so that the readings of its members can be put together. The
    first line has the `isolation` level if the consumer gets committed records only.
    """

    def __init__(
        self,
        path: Path | str,
        wall_ms: Callable[[], int],
        id_of: Callable[[str], bytes] = lambda _: b"",
        group: str | None = None,
        isolation: int = READ_UNCOMMITTED,
    ) -> None:
        self._id_of = id_of
        self._of_group = {"group": group} if group else {}
        level = {"isolation": "read_committed"} if isolation == READ_COMMITTED else {}
        super().__init__(path, wall_ms, **self._of_group, **level)

    def record(self, records: Sequence[ConsumerRecord]) -> None:
        """Write a line for each record of a poll, grouped by partition, and one for all."""
        named = {topic: self._named(topic) for topic in {each.topic for each in records}}
        entries: list[dict[str, object]] = [
            {
                **named[record.topic],
                **self._of_group,
                "name": "record_data",
                "key": _text(record.key),
                "value": _text(record.value),
                "topic": record.topic,
                "partition": record.partition,
                "offset": record.offset,
            }
            for record in records
        ]
        partitions = []
        for (topic, partition), group in groupby(records, itemgetter(0, 1)):
            offsets = [record.offset for record in group]
            read = {"topic": topic, "partition": partition, "count": len(offsets)}
            ends = {"minOffset": offsets[0], "maxOffset": offsets[-1]}
            partitions.append(read | ends | named[topic])
        total = {"name": "records_consumed", "count": len(records), "partitions": partitions}
        self._write([*entries, total])

    def record_commit(self, answer: CommitAnswer) -> None:
        """Write a line for what the coordinator has answered to a commit: done, or refused."""
        offsets = [
            {"topic": topic, "partition": partition, "offset": offset, **self._named(topic)}
            for (topic, partition), offset in answer.offsets.items()
        ]
        is_done = answer.error == ErrorCode.NONE
        entry: dict[str, object] = {"name": "offsets_committed", "success": is_done}
        if not is_done:
            entry["error"] = answer.error.name
        if answer.member_id:
            entry |= {"member": answer.member_id, "generation": answer.generation}
        self._write([entry | {"group": answer.group_id, "offsets": offsets}])

    def record_jump(self, name: TopicPartition, offset: int) -> None:
        """Write a line for a position that the application has sought, or that a reset has found:
        what lies before it is left out on purpose."""
        place = {"topic": name.topic, "partition": name.partition, "offset": offset}
        entry: dict[str, object] = {"name": "position_set", **self._of_group, **place}
        self._write([entry | self._named(name.topic)])

    def _named(self, topic: str) -> dict[str, str]:
        return _named(self._id_of(topic))


def _named(topic_id: bytes) -> dict[str, str]:
    """Return a topic with its id, as `cluster export` writes it."""
    return {"topicId": topic_id.hex()} if topic_id else {}


def _ends_in_a_line(path: Path) -> bool:
    """Whether the file ends with a whole line, not with one that a crash has cut."""
    if not path.is_file() or path.stat().st_size == 0:
        return True
    with path.open("rb") as file:
        file.seek(-1, SEEK_END)
        return file.read() == b"\n"


def _text(data: bytes | None) -> str | None:
    return None if data is None else data.decode("utf-8", "surrogateescape")
