"""Messages of Kafka's wire as data: one text for each, parsed into structs of fields.

    "group_id:string 3+instance_id:string? topics[name:string partitions:[i32]]"

A field is `name:type`. Types are bool, i8, i16, i32, i64, uuid, string, bytes and records;
`:[i32]` is an array of them, `name[...]` an array of structs and `name{...}` one struct. A `?`
behind the type, or before the bracket, says that the value may be null, in `3+` of later versions
only. `3+name` is there from version 3 on, `2-4:name` from 2 to 4. `=7` is the value in versions
without the field. `name#1` is a tagged field with the tag 1, of flexible versions: it is left out
where it has its default, which is null for a struct. Tagged fields are the last ones of a struct.

Names are those of Kafka's public message schemas, spelled with underscores.
"""

import re
from collections import namedtuple
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, TypeAlias

Version: TypeAlias = int

_FIELD: Final = re.compile(
    r"(?:(?P<since>\d+)\+|(?P<first>\d+)-(?P<last>\d+):)?(?P<name>[a-z_]+)(?:#(?P<tag>\d+))?"
    r"(?::(?P<array>\[)?(?P<type>[a-z0-9]+)(?(array)\]))?(?P<null>\?(?:(?P<null_since>\d+)\+)?)?"
    r"(?:=(?P<default>-?\d+))?(?P<struct>[\[{])?"
)
_DEFAULTS: Final[dict[str, Any]] = {
    "string": "",
    "bytes": b"",
    "records": b"",
    "bool": False,
    "uuid": bytes(16),
}
_VERSION_MAX: Final = 2**15 - 1
_END: Final = {"[": "]", "{": "}"}
_ENDS: Final = {*_END.values()}


@dataclass(frozen=True, eq=False)
class Field:
    """One field, of a plain `type` or of structs.

    Versions `first` to `last` have it; it may be null from version `null_since` on (None: never).
    `tag` is that of a tagged field.
    """

    name: str
    type: "str | Struct"
    is_array: bool
    first: Version
    last: Version
    null_since: Version | None
    default: Any
    tag: int | None = None

    def is_in(self, version: Version) -> bool:
        """Return whether this version has the field."""
        return self.first <= version <= self.last

    def may_be_null(self, version: Version) -> bool:
        """Return whether the field may be null in this version."""
        return self.null_since is not None and version >= self.null_since


@dataclass(frozen=True, eq=False)
class Struct:
    """Fields in their order on the wire. `make` is their named tuple, for all versions."""

    name: str
    fields: tuple[Field, ...] = field(default=())

    @cached_property
    def make(self) -> Any:
        """The named tuple type of the struct's values, with the fields' defaults."""
        names = [one.name for one in self.fields]
        return namedtuple(self.name, names, defaults=[one.default for one in self.fields])

    def has(self, name: str, version: Version) -> bool:
        """Return whether this version has a field of this name."""
        return any(one.name == name and one.is_in(version) for one in self.fields)

    def of(self, name: str) -> "Struct":
        """Return the struct of the field `name`, or of its elements if it is an array."""
        for one in self.fields:
            if one.name == name and isinstance(one.type, Struct):
                return one.type
        raise KeyError(name)


def parse(name: str, text: str) -> Struct:
    """Parse `text` into the struct of this name."""
    struct, end = _parse(name, text, 0)
    assert end == len(text), f"{name}: what is {text[end:]!r}?"
    return struct


def _parse(name: str, text: str, at: int) -> tuple[Struct, int]:
    fields: list[Field] = []
    while at < len(text) and text[at] not in _ENDS:
        if text[at].isspace():
            at += 1
            continue
        found = _FIELD.match(text, at)
        assert found is not None, f"{name}: what is {text[at:]!r}?"
        at = found.end()
        kind: str | Struct = found["type"] or ""
        if found["struct"]:
            kind, at = _parse("".join(map(str.title, found["name"].split("_"))), text, at)
            assert text[at] == _END[found["struct"]], f"{name}: {found['name']} has no end"
            at += 1
        fields.append(_field(found, kind))
    untagged = [one.tag is None for one in fields]
    assert untagged == sorted(untagged, reverse=True), f"{name}: tagged fields are the last ones"
    return Struct(name, tuple(fields)), at


def _field(found: re.Match[str], kind: str | Struct) -> Field:
    is_array = bool(found["array"] or found["struct"] == "[")
    null_since = int(found["null_since"] or 0) if found["null"] else None
    default: Any = _DEFAULTS.get(kind, 0) if isinstance(kind, str) else ()
    if is_array:
        default = ()
    if (null_since == 0 and kind != "records") or found["struct"] == "{":
        default = None
    if found["default"]:
        default = int(found["default"])
    first = int(found["since"] or found["first"] or 0)
    last = int(found["last"] or _VERSION_MAX)
    tag = int(found["tag"]) if found["tag"] else None
    return Field(found["name"], kind, is_array, first, last, null_since, default, tag)
