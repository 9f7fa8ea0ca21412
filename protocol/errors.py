"""What an error code means to who receives it.

Two kinds of failure, and no third. A peer that breaks the protocol (bytes that are no frame, a
field of the wrong type) is a `ProtocolError`: it ends that connection. A request that was
understood and refused is an `ErrorCode` in its answer: a value, raised as a `BrokerError` only
where an application asked for one thing and did not get it.
"""

from minibroker.protocol.constants import ErrorCode


class ProtocolError(Exception):
    """The peer sent bytes that this protocol does not allow; the connection is of no more use."""


class BrokerError(Exception):
    """A broker refused what an application asked for.

    `code` is the `ErrorCode`; the text names what was asked for and what to do. `reason` is the
    text without the code.
    """

    def __init__(self, code: ErrorCode, message: str = "") -> None:
        super().__init__(f"{code.name}: {message}" if message else code.name)
        self.code = code
        self.reason = message

    @property
    def is_retriable(self) -> bool:
        """Whether the same request may succeed later, unchanged."""
        return self.code in RETRIABLE


# The client's metadata is probably old: ask again who leads before the next try.
REFRESH_METADATA = frozenset(
    {
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.OFFSET_NOT_AVAILABLE,
    }
)

# The same request may succeed later, unchanged.
RETRIABLE = REFRESH_METADATA | {
    ErrorCode.CORRUPT_MESSAGE,
    ErrorCode.REQUEST_TIMED_OUT,
    ErrorCode.BROKER_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_COORDINATOR,
    ErrorCode.REBALANCE_IN_PROGRESS,
    ErrorCode.UNSTABLE_OFFSET_COMMIT,
    ErrorCode.NOT_ENOUGH_REPLICAS,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ErrorCode.NOT_CONTROLLER,
    ErrorCode.UNKNOWN_LEADER_EPOCH,
    ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
    ErrorCode.INVALID_FETCH_SESSION_EPOCH,
}
