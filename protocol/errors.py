"""The two kinds of failure, and the error codes grouped by the receiver's reaction.

A peer that breaks the protocol (bytes that are no frame, a field of the wrong type) causes a
`ProtocolError`, which ends that connection. A request that was understood and refused has an
`ErrorCode` in its answer. The code is a value; it is raised as a `BrokerError` only where an
application's own call fails.
"""

from minibroker.protocol.constants import ErrorCode


class ProtocolError(Exception):
    """The peer sent bytes that the protocol does not allow; the connection must be closed."""


class TooManyElements(ProtocolError):
    """A frame has more array elements than may be decoded or encoded at once, or at all."""


class BrokerError(Exception):
    """A broker refused an application's request.

    `code` is the `ErrorCode`. The message names the request and what to do; `reason` is the message
    without the code.
    """

    def __init__(self, code: ErrorCode, message: str = "") -> None:
        super().__init__(f"{code.name}: {message}" if message else code.name)
        self.code = code
        self.reason = message

    @property
    def is_retriable(self) -> bool:
        """Whether the same request may succeed later."""
        return self.code in RETRIABLE


# The client's metadata is probably stale: the client refreshes it before the next attempt.
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

# A group's coordinator does not know the member, or has gone on without it.
NOT_A_MEMBER = frozenset(
    {ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION, ErrorCode.FENCED_INSTANCE_ID}
)

# The same request may succeed later.
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
    ErrorCode.CONCURRENT_TRANSACTIONS,
    ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
    ErrorCode.INVALID_FETCH_SESSION_EPOCH,
}
