"""`Refused`: how the parts of a broker say no to a request.

Each part raises it where it finds the reason; the handler turns it into the error code of the
answer. A part that refuses leaves its state as it was. The format of a batch is checked by
`protocol.records.batch.validate_batch`, which has an error of its own.
"""

from minibroker.protocol.constants import ErrorCode


class Refused(Exception):
    """A request that is understood and not granted: `code` is the answer, `message` the reason."""

    def __init__(self, code: ErrorCode, message: str = "") -> None:
        super().__init__(f"{code.name}: {message}" if message else code.name)
        self.code = code
        self.message = message
