"""The functions that turn an application's keys and values into bytes."""

from collections.abc import Callable, Iterable
from typing import Any, Generic

from minibroker.client.producer.raw_record import RawRecord, check_bytes
from minibroker.client.serialization import K, V, check_function
from minibroker.protocol.records.columns import Headers


class Serializers(Generic[K, V]):
    """The functions for keys and for values; None if they are bytes. None as a value stays None."""

    def __init__(
        self, key: Callable[[K], bytes] | None, value: Callable[[V], bytes] | None
    ) -> None:
        self._key = check_function(key, "key_serializer")
        self._value = check_function(value, "value_serializer")

    def __bool__(self) -> bool:
        """Whether there is a function."""
        return self._key is not None or self._value is not None

    def serialize(
        self, timestamp_ms: int | None, key: Any, value: Any, headers: Headers
    ) -> RawRecord:
        """Return a record as it is stored, or as `check_record` refuses it.

        Raises what a serializer raises, and `TypeError` for what it returns.
        """
        if self._key is not None and key is not None:
            key = _checked(self._key(key), "what key_serializer returns")
        return timestamp_ms, key, self.serialize_value(value), headers

    def serialize_value(self, value: Any) -> Any:
        """Do the same for a value alone."""
        if self._value is None or value is None:
            return value
        return _checked(self._value(value), "what value_serializer returns")


def check_no_tombstone(values: Iterable[object]) -> None:
    """Raise `TypeError` for None among the values of `send_many`."""
    if any(value is None for value in values):
        raise TypeError("a value of send_many is not None: a tombstone goes by send")


def _checked(content: object, what: str) -> bytes:
    """Check as `check_bytes`, but refuse None, too: it would be a tombstone, or no key."""
    found = check_bytes(content, what)
    if found is None:
        raise TypeError(f"{what} is bytes, not None")
    return found
