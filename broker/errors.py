"""`Refused`: how the parts of a broker say no to a request.

Each part raises it where it finds the reason; the handler turns it into the error code of the
answer. A part that refuses leaves its state as it was. The format of a batch is checked by
`protocol.records.batch.validate_batch`, which has an error of its own.
"""

from typing import Final

from minibroker.protocol.constants import ErrorCode

# A reason may quote a name from the request, which can be longer than an answer's text may be.
REASON_CHARS_MAX: Final = 1_000
_LEFT_OUT: Final = " [...] "


class Refused(Exception):
    """A request that is understood and not granted: `code` is the answer, `message` the reason, of
    at most `REASON_CHARS_MAX` characters."""

    def __init__(self, code: ErrorCode, message: str = "") -> None:
        message = _shortened(message)
        super().__init__(f"{code.name}: {message}" if message else code.name)
        self.code = code
        self.message = message


def _shortened(text: str) -> str:
    """The beginning and the end of a text: what is quoted stands between."""
    if len(text) <= REASON_CHARS_MAX:
        return text
    half = (REASON_CHARS_MAX - len(_LEFT_OUT)) // 2
    return f"{text[:half]}{_LEFT_OUT}{text[-half:]}"
