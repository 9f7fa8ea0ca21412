"""Deserialization: records with keys and values of the application's types.

Everything below the poll works with records as they are stored: the ledger, positions, and records
that go back because the application did not take them. So a deserialized record keeps its stored
one.
"""

from collections.abc import Callable, Iterable
from typing import Any, Generic

from minibroker.client.consumer.completed_fetch import ConsumerRecord
from minibroker.client.errors import DeserializationFailed
from minibroker.client.serialization import K, V, check_function
from minibroker.protocol.types import TopicPartition


class DeserializedRecord(ConsumerRecord[K, V]):
    """A record with keys and values of the application's types; `stored` is the one with bytes."""

    stored: ConsumerRecord


class Deserializers(Generic[K, V]):
    """The functions for keys and for values; None if they stay bytes. None as a value stays
    None."""

    def __init__(
        self, key: Callable[[bytes], K] | None, value: Callable[[bytes], V] | None
    ) -> None:
        self._key: Callable[[bytes], Any] | None = check_function(key, "key_deserializer")
        self._value: Callable[[bytes], Any] | None = check_function(value, "value_deserializer")

    def __bool__(self) -> bool:
        """Whether there is a function."""
        return self._key is not None or self._value is not None

    def deserialize(
        self, records: Iterable[ConsumerRecord]
    ) -> tuple[list[ConsumerRecord[K, V]], DeserializationFailed | None]:
        """Return the records up to the first that cannot be deserialized, and its error."""
        done: list[ConsumerRecord[K, V]] = []
        for stored in records:
            key: Any = stored.key
            value: Any = stored.value
            what = "key"
            try:
                if self._key is not None and key is not None:
                    key = self._key(key)
                what = "value"
                if self._value is not None and value is not None:
                    value = self._value(value)
            except Exception as error:
                name = TopicPartition(stored.topic, stored.partition)
                text = f"its {what} cannot be deserialized: {error!r}; seek to go on behind it"
                failure = DeserializationFailed(name, stored.offset, text)
                failure.__cause__ = error
                return done, failure
            record: DeserializedRecord[K, V] = DeserializedRecord(
                *stored[:4], key, value, stored.headers
            )
            record.stored = stored
            done.append(record)
        return done, None


def as_stored(record: ConsumerRecord[Any, Any]) -> ConsumerRecord:
    """Return the record with bytes."""
    return record.stored if isinstance(record, DeserializedRecord) else record
