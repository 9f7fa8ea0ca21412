"""Clients that tell a `History` what they do: sends and acknowledgements, polls and commits."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

from minibroker.client import ConsumerRecord
from minibroker.client.blocking import Consumer, Producer
from minibroker.client.blocking.delivery_future import DeliveryFuture
from minibroker.client.committed_offsets import ConsumerGroupMetadata
from minibroker.client.errors import ClientClosed, ProducerFailed, TransactionInDoubt
from minibroker.testing.kit.history import History

# After these, a block does not know how its transaction has ended, or will end.
END_UNKNOWN = (ClientClosed, ProducerFailed, TransactionInDoubt)


class RecordedProducer(Producer[Any, Any]):
    """A producer whose sends and acknowledgements are taken down, by the value as it is sent.

    With a `transactional_id` these are its transactions with what is sent in them, offsets, too.
    `transaction_name` is the name of the open one in the history, or None.
    """

    def __init__(self, history: History, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._history = history
        self._transactional_id: str = options.get("transactional_id") or ""
        self.transaction_name: str | None = None

    def send(
        self,
        topic: str,
        value: Any,
        key: Any = None,
        *arguments: Any,
        **options: Any,
    ) -> DeliveryFuture:
        """Send a record. One that is refused at once counts as never sent."""
        name = self.transaction_name
        self._history.sent(value, key, transaction=name)
        try:
            future = super().send(topic, value, key, *arguments, **options)
        except BaseException:
            self._history.forget(value, transaction=name)
            raise
        if name is None:
            future.add_done_callback(partial(self._on_delivered, value))
        return future

    def _on_delivered(self, value: Any, future: DeliveryFuture) -> None:
        if future.exception() is None:
            self._history.acknowledged(value)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Send a transaction: commit it at the end of the block, or abort it after an exception."""
        try:
            with super().transaction():
                yield
        except Exception as error:
            has_failed = any("is not aborted" in note for note in getattr(error, "__notes__", ()))
            is_known = not has_failed and not isinstance(error, END_UNKNOWN)
            if is_known and self.transaction_name is not None:
                self._end(is_commit=False)
            raise

    def begin_transaction(self) -> None:
        """Begin a transaction."""
        super().begin_transaction()
        self.transaction_name = self._history.name_transaction(self._transactional_id)

    def send_offsets_to_transaction(self, offsets: Any, group: ConsumerGroupMetadata) -> None:
        """Commit offsets of a consumer's group with the transaction."""
        super().send_offsets_to_transaction(offsets, group)
        name = self.transaction_name
        for (topic, number), offset in _next_offsets(offsets).items():
            self._history.committed(group.group_id, topic, number, offset, transaction=name)

    def commit_transaction(self) -> None:
        """Commit the transaction."""
        super().commit_transaction()
        self._end(is_commit=True)

    def abort_transaction(self) -> None:
        """Give up the transaction and its records."""
        super().abort_transaction()
        self._end(is_commit=False)

    def _end(self, *, is_commit: bool) -> None:
        name, self.transaction_name = self.transaction_name, None
        history = self._history
        (history.transaction_committed if is_commit else history.transaction_aborted)(name)


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
        return _next_offsets(offsets)


def _next_offsets(offsets: Any) -> dict[tuple[str, int], int]:
    """Return offsets as given to a commit, a record or a mapping, as the next ones to read."""
    if isinstance(offsets, Mapping):
        given: Mapping[tuple[str, int], Any] = offsets
        return {name: getattr(each, "offset", each) for name, each in given.items()}
    return {(offsets.topic, offsets.partition): offsets.offset + 1}
