"""Defects: unexpected exceptions that end one connection, not the broker.

A request is decoded and handled, and its response is encoded. Decoding and encoding change no state
of the broker, and neither do the handlers that `server.dispatch` lists as `Effect.READS`, nor the
controller's plans, which are written afterwards. An unexpected exception there can have left
nothing half changed, so only that connection ends, or that request of the controller fails: clients
send a request again, and brokers that ended for it would end one after the other. After an
exception anywhere else the broker ends itself, and its next start runs recovery
(docs/decisions/design.md, "Abuse").

A failure of the disk (`OSError`) is no defect. It ends the broker wherever it is met, so that
another replica leads.
"""

import logging
from enum import Enum
from pathlib import PurePath
from typing import Final, NamedTuple

logger = logging.getLogger(__name__)

KINDS_MAX: Final = 64
OTHERS: Final = "others"


class Stage(Enum):
    """What a broker was doing with a request."""

    DECODE = "decode"
    HANDLE = "handle"
    PLAN = "plan"  # what a controller does for a request
    ENCODE = "encode"


class DefectKind(NamedTuple):
    """The request (`Metadata`; "" before it is decoded), the stage, and where the exception was
    raised (`KeyError at codec.py:12`)."""

    request: str
    stage: Stage
    place: str


class Defects:
    """How often each kind of defect was met since the start; one object for each broker.

    The first of each kind is logged with its traceback, the others are only counted: a client that
    sends such a request sends it again.
    """

    def __init__(self) -> None:
        self._counts: dict[DefectKind, int] = {}

    def record(self, request: str, stage: Stage, error: Exception) -> str:
        """Count an exception, and log the first of its kind. Return a text for the client and for
        the line that says why its connection ends."""
        kind = DefectKind(request, stage, _place(error))
        if kind not in self._counts and len(self._counts) >= KINDS_MAX:
            kind = DefectKind(OTHERS, stage, OTHERS)
        if kind not in self._counts:
            logger.error(
                "a defect of this broker: it failed to %s %s, with %s. Only this request fails."
                " Please report it. Further ones of the kind are counted, not logged.",
                stage.value,
                f"a {request} request" if request else "a request",
                kind.place,
                exc_info=error,
            )
        self._counts[kind] = self._counts.get(kind, 0) + 1
        return f"a defect of this broker: {kind.place}"

    def statistics(self) -> dict[DefectKind, int]:
        """Return the counts by kind."""
        return dict(self._counts)


def _place(error: Exception) -> str:
    """Return the exception's type, and the file and line that raised it."""
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    name = type(error).__name__
    if traceback is None:
        return name
    return f"{name} at {PurePath(traceback.tb_frame.f_code.co_filename).name}:{traceback.tb_lineno}"
