"""Collects orders by partition, and processes them when a batch is whole or a partition goes. Its
bug, if it has it: of several partitions that are revoked it processes only the first."""

from collections.abc import Iterable
from threading import Event, Thread

from minibroker.client import ConsumerRecord
from minibroker.client.blocking import Consumer
from minibroker.testing import History


class Batcher(Thread):
    """One member of the group, until `leave` is set."""

    def __init__(
        self, bootstrap: str, topic: str, group: str, history: History, *, forgets: bool
    ) -> None:
        super().__init__(daemon=True)
        self.leave = Event()
        self.error: BaseException | None = None
        self.batches: dict[tuple[str, int], list[ConsumerRecord]] = {}
        self._topic = topic
        self._group = group
        self._history = history
        self._forgets = forgets
        self._ends: dict[tuple[str, int], int] = {}
        self._consumer = Consumer(
            bootstrap,
            group_id=group,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            heartbeat_interval_ms=200,
        )

    def count(self) -> int:
        """How many orders it holds."""
        return sum(len(batch) for batch in list(self.batches.values()))

    def run(self) -> None:
        """Poll until it shall leave."""
        try:
            with self._consumer as consumer:
                consumer.subscribe(self._topic, on_revoked=self._on_revoked)
                while not self.leave.is_set():
                    for record in consumer.poll(0.1):
                        name = record.topic, record.partition
                        self._history.polled(record.value, *name, record.offset)
                        self.batches.setdefault(name, []).append(record)
                        self._ends[name] = record.offset + 1
        except BaseException as error:
            self.error = error

    def _on_revoked(self, partitions: Iterable[tuple[str, int]]) -> None:
        names = [(topic, partition) for topic, partition in partitions]
        for name in names[:1] if self._forgets else names:
            for record in self.batches.get(name, ()):
                self._history.processed(record.value)
        self._consumer.commit()
        for name in names:
            self.batches.pop(name, None)
            if name in self._ends:
                self._history.committed(self._group, *name, self._ends.pop(name))
