"""`Refused`: the exception by which a part of a broker refuses a request.

The part that finds the reason raises it; the handler answers with its error code. The part's state
is unchanged. The format of a batch is checked by
`protocol.records.batch.validate_batch`, which has an error of its own.
"""

from typing import Final

from minibroker.protocol.constants import NO_RECORD, ErrorCode

# A reason may quote a name from the request, which can be longer than an answer's text may be.
REASON_CHARS_MAX: Final = 1_000
_LEFT_OUT: Final = " [...] "


class Refused(Exception):
    """A request is refused: `code` is for the answer, `message` the reason, of at most
    `REASON_CHARS_MAX` characters. `record` is the number of the record in its batch that is the
    reason; -1 if it is not for one."""

    def __init__(self, code: ErrorCode, message: str = "", record: int = NO_RECORD) -> None:
        message = _shortened(message)
        super().__init__(f"{code.name}: {message}" if message else code.name)
        self.code = code
        self.message = message
        self.record = record


def _shortened(text: str) -> str:
    """Shorten a text in its middle, where the quoted name is."""
    if len(text) <= REASON_CHARS_MAX:
        return text
    half = (REASON_CHARS_MAX - len(_LEFT_OUT)) // 2
    return f"{text[:half]}{_LEFT_OUT}{text[-half:]}"
