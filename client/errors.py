"""What a client can tell its application, beside the `BrokerError` of a refused request.

Everything that is not a mistake in the options comes from `ClientError`, so that an application
can write one `except`. A refusal that a later try may heal is retried inside the client and never
gets here; what gets here is final, says what was asked for, and says how often it was tried where
that matters.
"""

from typing import Any, ClassVar, Final

from minibroker.protocol.constants import ErrorCode
from minibroker.protocol.messages.groups import GROUP_KEY
from minibroker.protocol.types import TopicPartition

NAME_CHARS_MAX: Final = 60  # of a group or a transactional id in a message


def reason_of(error: Exception) -> str:
    """Return the text of an error, without the system's number for it."""
    return (isinstance(error, OSError) and error.strerror) or str(error)


class ConfigError(ValueError):
    """An option that does not exist, has a value that it may not have, or contradicts another."""


class ClientError(Exception):
    """The client could not do what was asked."""


class ClientClosed(ClientError):
    """The client was closed, before the call or while it waited."""


class ClientTimeout(ClientError):
    """Nobody answered in time; the text names who was asked and the last error."""


class BufferFull(ClientError):
    """The producer's memory is full: `await room()`, or send later. Nothing was taken."""

    record: Any = None  # that found no room, with key and value serialized


class DeliveryFailed(ClientError):
    """Records that the application had handed over are not known to be stored.

    `record_count` is how many, `first` the error of the first of them.
    """

    def __init__(self, record_count: int, first: Exception) -> None:
        super().__init__(f"{record_count} records were not delivered; first error: {first}")
        self.record_count = record_count
        self.first = first


class CommitFailed(ClientError):
    """The group did not take the offsets: this consumer is not a member any more.

    Its partitions may be read by others by now, from what was committed before. The next poll calls
    `on_lost`, and joins again.
    """


class TransactionError(ClientError):
    """A transaction or its producer cannot go on as it was; `remedy` says what to do.

    abort: abort the transaction, and begin it again. retry: call the same method again, since it is
    not known whether it was done. close: close the producer.
    """

    remedy: ClassVar[str]


class TransactionAbortable(TransactionError):
    """Records or offsets of the transaction are not stored, or it was aborted after
    `transaction.timeout.ms`, so it cannot be committed: abort it."""

    remedy = "abort"


class TransactionInDoubt(TransactionError, ClientTimeout):
    """The coordinator has not answered a commit or an abort in time: call the method again.

    Until it is answered nothing else can be done with the transaction.
    """

    remedy = "retry"


class ProducerFailed(TransactionError):
    """This producer can begin no transaction any more, nor end the present one: close it."""

    remedy = "close"


class ProducerFenced(ProducerFailed):
    """Another producer with this `transactional.id` has begun, or an operator has aborted the
    transaction. Close this producer."""


class PositionError(ClientError):
    """A consumer cannot read on in one partition until it seeks; `offset` is where it stands."""

    def __init__(self, topic_partition: TopicPartition, offset: int, message: str) -> None:
        super().__init__(f"{topic_partition} at offset {offset}: {message}")
        self.topic_partition = topic_partition
        self.offset = offset


class OffsetOutOfRange(PositionError):
    """The log has no such offset (any more), and `auto.offset.reset` is `none`."""


class LogTruncated(PositionError):
    """Records that were read are no more: the log was cut below, and `auto.offset.reset` is `none`.

    The text names the offset where the log now parts from what was read.
    """


class DeserializationFailed(PositionError):
    """A deserializer raised, for the record at `offset`; what it raised is the cause.

    To go on without the record, seek to the offset behind it.
    """


class CorruptRecords(PositionError):
    """The stored bytes are damaged, or a producer sent what cannot be decoded; nothing behind them
    was returned. The text says which, and where to seek to go on without them."""


def error_code(number: int) -> ErrorCode:
    """The error in an answer; one that this client does not know yet is as good as unknown."""
    try:
        return ErrorCode(number)
    except ValueError:
        return ErrorCode.UNKNOWN_SERVER_ERROR


def named(key: str, key_type: int = GROUP_KEY) -> str:
    """The group or the transactional id in a message, which a name of ten thousand characters shall
    not fill. `key_type` as in a FIND_COORDINATOR."""
    what = "group" if key_type == GROUP_KEY else "transactional id"
    return f"{what} {key[:NAME_CHARS_MAX] + '...' if len(key) > NAME_CHARS_MAX else key!r}"
