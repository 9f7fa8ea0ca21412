"""The properties of Kafka's console tools: `print.key=true` of the consumer's formatter, and
`parse.key=true` of the producer's reader, with Kafka's names, defaults and output.
"""

from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Final

from minibroker.cli.data.formats import FormatError, Piece
from minibroker.cli.data.lines import LineParser

if TYPE_CHECKING:
    from minibroker.client import ConsumerRecord

# What the consumer prints of a record, in this order, with the default of each.
PRINTED: Final = {
    "print.timestamp": False,
    "print.partition": False,
    "print.offset": False,
    "print.headers": False,
    "print.key": False,
    "print.value": True,
}
SEPARATORS: Final = {
    "key.separator": "\t",
    "line.separator": "\n",
    "headers.separator": ",",
    "null.literal": "null",
}
PARSED: Final = ("parse.key", "parse.headers", "ignore.error")
READER: Final = {
    "key.separator": "\t",
    "headers.delimiter": "\t",
    "headers.separator": ",",
    "headers.key.separator": ":",
}
NULL_MARKER: Final = "null.marker"


def compile_properties(
    properties: Mapping[str, str], append_time_topics: Collection[str] = ()
) -> Piece:
    """Return a function that prints a record as Kafka's console consumer does.

    `append_time_topics`: the topics whose records have the time at which they were appended.
    Raises `FormatError`.
    """
    _check_names(properties, (*PRINTED, *SEPARATORS))
    wanted = PRINTED | {name: _is_true(properties, name) for name in PRINTED if name in properties}
    text = {name: _bytes(properties.get(name, default)) for name, default in SEPARATORS.items()}
    null = text["null.literal"]

    def timestamp(record: "ConsumerRecord") -> bytes:
        if record.timestamp < 0:
            return b"NO_TIMESTAMP"
        kind = b"LogAppendTime" if record.topic in append_time_topics else b"CreateTime"
        return b"%s:%d" % (kind, record.timestamp)

    def headers(record: "ConsumerRecord") -> bytes:
        each = [
            name.encode() + b":" + (null if content is None else content)
            for name, content in record.headers
        ]
        return text["headers.separator"].join(each) or b"NO_HEADERS"

    columns: dict[str, Callable[[ConsumerRecord], bytes]] = {
        "print.timestamp": timestamp,
        "print.partition": lambda record: b"Partition:%d" % record.partition,
        "print.offset": lambda record: b"Offset:%d" % record.offset,
        "print.headers": headers,
        "print.key": lambda record: null if record.key is None else record.key,
        "print.value": lambda record: null if record.value is None else record.value,
    }
    chosen = [column for name, column in columns.items() if wanted[name]]
    between, end = text["key.separator"], text["line.separator"]
    return lambda record: between.join([column(record) for column in chosen]) + end


def line_parser(properties: Mapping[str, str]) -> LineParser:
    """Return the parser of lines as Kafka's console producer reads them. Raises `FormatError`."""
    _check_names(properties, (*PARSED, *READER, NULL_MARKER))
    has_key, has_headers, is_lenient = (_is_true(properties, name) for name in PARSED)
    text = {name: _bytes(properties.get(name, default)) for name, default in READER.items()}
    for name, separator in text.items():
        if not separator:
            raise FormatError(f"{name} is empty: no line can be split by it")
    marker = properties.get(NULL_MARKER)
    return LineParser(
        key_separator=text["key.separator"] if has_key else b"",
        headers_delimiter=text["headers.delimiter"] if has_headers else b"",
        headers_separator=text["headers.separator"],
        headers_key_separator=text["headers.key.separator"],
        null_marker=None if marker is None else _bytes(marker),
        is_strict=not is_lenient,
    )


def _check_names(properties: Mapping[str, str], known: Collection[str]) -> None:
    for name in properties:
        if name not in known:
            raise FormatError(f"unknown property {name!r}; there are {', '.join(sorted(known))}")


def _is_true(properties: Mapping[str, str], name: str) -> bool:
    text = properties.get(name, "false")
    if text.lower() not in ("true", "false"):
        raise FormatError(f"{name} is true or false, not {text!r}")
    return text.lower() == "true"


def _bytes(text: str) -> bytes:
    r"""Return the bytes of an argument as typed; `\t` and `\n` are what they are elsewhere."""
    return text.replace(r"\t", "\t").replace(r"\n", "\n").encode("utf-8", "surrogateescape")
