"""Lines of text as records, for `produce`: the value, and perhaps headers and a key before it."""

from typing import NamedTuple

from minibroker.cli.data.json_lines import Headers, InputError, InputRecord


class LineParser(NamedTuple):
    """How a line is split: `HEADERS KEY VALUE`, each part behind its separator; b"": no such part.

    `is_strict`: a line without a separator is an error, not a value alone. `null_marker`: the text
    that stands for null. `key` and `headers` are those of every record.
    """

    key: bytes | None = None
    headers: Headers = []  # noqa: RUF012 - never changed
    key_separator: bytes = b""
    headers_delimiter: bytes = b""
    headers_separator: bytes = b","
    headers_key_separator: bytes = b":"
    null_marker: bytes | None = None
    is_strict: bool = False

    def parse(self, line: bytes) -> InputRecord:
        """Return the record of a line without its line feed. Raises `InputError`."""
        headers = self.headers
        value: bytes | None = line
        if self.headers_delimiter:
            found, line = self._split(line, self.headers_delimiter, "headers.delimiter")
            if found is not None and found != self.null_marker:
                headers = [*headers, *map(self._header, found.split(self.headers_separator))]
            value = line
        key = self.key
        if self.key_separator:
            key, value = self._split(line, self.key_separator, "key.separator")
        if self.null_marker is not None:
            key = None if key == self.null_marker else key
            value = None if value == self.null_marker else value
        return InputRecord(value, key, headers)

    def _split(self, line: bytes, separator: bytes, name: str) -> tuple[bytes | None, bytes]:
        before, found, after = line.partition(separator)
        if found:
            return before, after
        if self.is_strict:
            raise InputError(
                f"there is no {name} {separator.decode(errors='replace')!r} in it;"
                " ignore.error=true takes such a line as a value"
            )
        return None, line

    def _header(self, text: bytes) -> tuple[str, bytes | None]:
        try:
            name, content = self._split(text, self.headers_key_separator, "headers.key.separator")
            if name is None:
                return text.decode(), None
            return name.decode(), None if content == self.null_marker else content
        except UnicodeDecodeError:
            raise InputError("a header's name is not UTF-8") from None
