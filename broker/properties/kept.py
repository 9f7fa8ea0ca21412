"""Topic properties of Kafka that have no effect here, and those that are refused.

Programs and tools that create topics set many properties. One that changes nothing a client could
rely on is *kept*: checked, stored and described, so that such a tool finds what it has set. One
that would promise something is refused, with a reason. docs/kafka.md, "Topic properties", lists
all of them.
"""

from collections.abc import Mapping
from typing import Any, Final

from minibroker.broker.config_property import LONG_MAX, Kind, Property, Value

FLUSH_MESSAGES: Final = "flush.messages"
_NOT_COMPRESSED: Final = "Acts where a broker compresses; batches stay as producers send them."
_NOT_TIERED: Final = "Acts in tiered storage only; there is none."
_TIERED_ADVICE: Final = "there is no tiered storage"


def _kept(name: str, kind: Kind, default: Value, sentence: str, **more: Any) -> Property:
    # The broker has no property for it: both names are the topic's.
    return Property(name, kind, default, sentence, topic_name=name, **more)


_ROWS: Final = (
    _kept("compression.gzip.level", Kind.INT, -1, _NOT_COMPRESSED, low=-1, high=9),
    _kept("compression.lz4.level", Kind.INT, 9, _NOT_COMPRESSED, low=1, high=17),
    _kept("compression.zstd.level", Kind.INT, 3, _NOT_COMPRESSED, low=-131072, high=22),
    _kept(
        FLUSH_MESSAGES,
        Kind.INT,
        LONG_MAX,
        "Beside flush=always, which flushes each record, any value is kept; else the default.",
        low=1,
    ),
    _kept("preallocate", Kind.BOOLEAN, False, "Segments grow as they are written."),
    _kept(
        "message.downconversion.enable",
        Kind.BOOLEAN,
        True,
        "Clients that need records of older formats are not served.",
    ),
    _kept(
        "remote.storage.enable",
        Kind.TEXT,
        "false",
        _NOT_TIERED,
        choices=("false",),
        advice=_TIERED_ADVICE,
    ),
    _kept("remote.log.copy.disable", Kind.BOOLEAN, False, _NOT_TIERED),
    _kept("remote.log.delete.on.disable", Kind.BOOLEAN, False, _NOT_TIERED),
    _kept("local.retention.ms", Kind.INT, -2, _NOT_TIERED, unit="ms", low=-2),
    _kept("local.retention.bytes", Kind.INT, -2, _NOT_TIERED, unit="bytes", low=-2),
)
KEPT_PROPERTIES: Final[Mapping[str, Property]] = {row.name: row for row in _ROWS}

REFUSED_PROPERTIES: Final[Mapping[str, str]] = {
    "message.format.version": "Kafka 4.0 has removed it; records are stored in format 2",
    "message.timestamp.difference.max.ms": "Kafka 4.0 has removed it;"
    " message.timestamp.before.max.ms and message.timestamp.after.max.ms take its place",
}
