"""How a log says no.

Everything that a client may be told about an append or a read is raised as a `Refused`, from where
it is noticed up to the handler that turns it into the answer's error code. A log that refused is
as it was before. What makes a batch whole is checked by `protocol.records.batch.validate_batch`.
"""

from minibroker.protocol.constants import ErrorCode


class Refused(Exception):
    """A request that was understood and not granted; `code` is the answer, `message` says why."""

    def __init__(self, code: ErrorCode, message: str = "") -> None:
        super().__init__(f"{code.name}: {message}" if message else code.name)
        self.code = code
        self.message = message
