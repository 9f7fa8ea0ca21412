"""Clients that tell a `History` what they do: sends and acknowledgements, polls and commits."""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from minibroker.client import ConsumerRecord
from minibroker.client.blocking import Consumer, Producer
from minibroker.client.blocking.delivery_future import DeliveryFuture
from minibroker.testing.kit.history import History


class RecordedProducer(Producer[Any, Any]):
    """A producer whose sends and acknowledgements are taken down, by the value as it is sent."""

    def __init__(self, history: History, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._history = history

    def send(
        self,
        topic: str,
        value: Any,
        key: Any = None,
        *arguments: Any,
        **options: Any,
    ) -> DeliveryFuture:
        """Send a record. One that is refused at once counts as never sent."""
        self._history.sent(value, key)
        try:
            future = super().send(topic, value, key, *arguments, **options)
        except BaseException:
            self._history.forget(value)
            raise
        future.add_done_callback(partial(self._on_delivered, value))
        return future

    def _on_delivered(self, value: Any, future: DeliveryFuture) -> None:
        if future.exception() is None:
            self._history.acknowledged(value)


class RecordedConsumer(Consumer[Any, Any]):
    """A consumer whose polls are taken down, and commits by `commit`."""

    def __init__(self, history: History, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._history = history
        self._group = options["group_id"]

    def poll(self, timeout_s: float = float("inf")) -> list[ConsumerRecord[Any, Any]]:
        """Wait for records; none if none came in time."""
        records = super().poll(timeout_s)
        for record in records:
            self._history.polled(record.value, record.topic, record.partition, record.offset)
        return records

    def __iter__(self) -> Iterator[ConsumerRecord[Any, Any]]:
        for record in super().__iter__():
            self._history.polled(record.value, record.topic, record.partition, record.offset)
            yield record

    def commit(self, offsets: Any = None) -> None:
        """Commit a record, these offsets, or else all positions."""
        committed = self._chosen(offsets)
        super().commit(offsets)
        for (topic, number), offset in committed.items():
            self._history.committed(self._group, topic, number, offset)

    def _chosen(self, offsets: Any) -> dict[tuple[str, int], int]:
        if offsets is None:
            found = {name: self.position(name) for name in self.assignment}
            return {name: offset for name, offset in found.items() if offset is not None}
        if isinstance(offsets, Mapping):
            given: Mapping[tuple[str, int], Any] = offsets
            return {name: getattr(each, "offset", each) for name, each in given.items()}
        return {(offsets.topic, offsets.partition): offsets.offset + 1}
