"""The part of docs/wire.md that is made from the code: `python -m tests.unit.rpc.wire_tables`."""

import sys
import typing
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path

from minibroker.protocol.constants import ErrorCode
from minibroker.protocol.errors import REFRESH_METADATA, RETRIABLE
from minibroker.protocol.messages import APIS
from minibroker.protocol.rpc.codec import element_of, fields_of, has_default, without_none
from minibroker.protocol.types import Records

PAGE = Path(__file__).resolve().parents[3] / "docs" / "wire.md"
BEGIN, END = "<!-- made from the code: begin -->\n", "<!-- made from the code: end -->\n"
PLAIN = {int: "int", bool: "bool", str: "text", bytes: "bytes"}


def type_text(hint: typing.Any) -> str:
    """How the page names a field's type."""
    if hint == Records:
        return "records"
    if inner := without_none(hint):
        return f"{type_text(inner)} or nil"
    if element := element_of(hint):
        return f"array of {type_text(element)}"
    return PLAIN.get(hint) or hint.__name__


def default_text(message_type: typing.Any, name: str) -> str:
    """How the page names a field's default."""
    if not has_default(message_type, name):
        return "required"
    if is_dataclass(message_type):
        value = next(each.default for each in fields(message_type) if each.name == name)
        assert value is not MISSING
    else:
        value = message_type._field_defaults[name]
    hint = dict(fields_of(message_type))[name]
    if hint == Records or value is None:
        return "nil"
    if value == bytes(16):
        return "16 zero bytes"
    if isinstance(value, bool):
        return str(value).lower()
    return {"": '""', (): "[]"}.get(value, str(value))


def parts_of(message_type: typing.Any) -> list[typing.Any]:
    """The message types inside a message, in the order in which they are met."""
    found: list[typing.Any] = []
    for _, declared in fields_of(message_type):
        hint = declared
        while hint != Records and (inner := without_none(hint) or element_of(hint)):
            hint = inner
        if hint != Records and hint not in PLAIN:
            found += [hint, *parts_of(hint)]
    return found


def table_of(message_type: typing.Any) -> str:
    """One message: what it is for, and its fields in order."""
    lines = [f"#### {message_type.__name__}", "", (message_type.__doc__ or "").strip(), ""]
    lines = [line.strip() for text in lines for line in text.split("\n")]
    lines += ["| | field | type | default |", "|---|---|---|---|"]
    for index, (name, hint) in enumerate(fields_of(message_type)):
        default = default_text(message_type, name)
        lines.append(f"| {index} | `{name}` | {type_text(hint)} | {default} |")
    return "\n".join(lines) + "\n"


def made() -> str:
    """All that is made: apis, messages, error codes."""
    lines = ["## Apis", "", "| key | api | versions |", "|---|---|---|"]
    lines += [
        f"| {key} | {key.name} | {api.version_min} to {api.version_max} |"
        for key, api in APIS.items()
    ]
    lines += ["", "## Messages", ""]
    shown: list[typing.Any] = []
    for key, api in APIS.items():
        module = sys.modules[api.request.__module__].__doc__ or ""
        lines += [f"### {key.name} ({int(key)})", ""]
        if not any(each.__module__ == api.request.__module__ for each in shown):
            lines += [module.strip(), ""]
        for each in (api.request, *parts_of(api.request), api.response, *parts_of(api.response)):
            if each not in shown:
                shown.append(each)
                lines.append(table_of(each))
    lines += ["## Error codes", "", "| code | name | the same again may succeed |", "|---|---|---|"]
    for code in ErrorCode:
        retry = "yes" if code in RETRIABLE else "no"
        retry = "yes, after asking METADATA" if code in REFRESH_METADATA else retry
        retry = "" if code == ErrorCode.NONE else retry
        lines.append(f"| {int(code)} | {code.name} | {retry} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    before, rest = PAGE.read_text().split(BEGIN)
    PAGE.write_text(before + BEGIN + made() + END + rest.split(END)[1])
