"""What an application gets of records: keys and values of its own types.

Everything below the poll works with records as they are stored: the ledger, positions, what goes
back because nobody took it. So a record that was deserialized keeps the one that it was made of.
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
    """What makes objects of keys and of values; None where they stay bytes. None stays None."""

    def __init__(
        self, key: Callable[[bytes], K] | None, value: Callable[[bytes], V] | None
    ) -> None:
        self._key: Callable[[bytes], Any] | None = check_function(key, "key_deserializer")
        self._value: Callable[[bytes], Any] | None = check_function(value, "value_deserializer")

    def __bool__(self) -> bool:
        """Whether there is one."""
        return self._key is not None or self._value is not None

    def deserialize(
        self, records: Iterable[ConsumerRecord]
    ) -> tuple[list[ConsumerRecord[K, V]], DeserializationFailed | None]:
        """The records up to the first that cannot be deserialized, and what is wrong with it."""
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
    """The record with bytes."""
    return record.stored if isinstance(record, DeserializedRecord) else record
