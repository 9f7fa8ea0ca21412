"""One configuration property: its description, and how its text is parsed and checked.

A property is described once: at the field for its value, in a class of `broker.properties`. The
check of a value, the reference page, `minibroker config show` and the error for an unknown name
use that description. Names and defaults are Kafka's wherever Kafka has the property.
"""

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from difflib import get_close_matches
from enum import StrEnum
from itertools import permutations
from pathlib import PurePath
from typing import Any, Final, TypeAlias, TypeVar
from urllib.parse import urlsplit

from minibroker.protocol.constants import PLAINTEXT
from minibroker.protocol.types import Endpoint, NamedEndpoint

Value: TypeAlias = (
    int
    | float
    | bool
    | str
    | PurePath
    | Endpoint
    | tuple[NamedEndpoint, ...]
    | tuple[str, ...]
    | tuple[PurePath, ...]
    | None
)

Number = TypeVar("Number", int, float)

INT_MAX: Final = 2**31 - 1
LONG_MAX: Final = 2**63 - 1
PORT_MAX: Final = 65_535
LOOPBACK: Final = "127.0.0.1"
LISTENER_NAME: Final = re.compile(r"[A-Z][A-Z0-9_.+-]*")
HOST: Final = re.compile(r"[^\s/,@\[\]:]*|\[[^\s/,@\[\]]+\]")  # an IPv6 address in brackets
ID_CHARS_MAX: Final = 64
RACK_CHARS_MAX: Final = 255
REPLICA: Final = re.compile(r"[0-9]{1,10}:[0-9]{1,10}")
ID: Final = re.compile(rf"[A-Za-z0-9._-]{{1,{ID_CHARS_MAX}}}")
ETCD: Final = "etcd:"  # of a metadata store
USER_AND_PASSWORD: Final = re.compile(r"://.*@", re.DOTALL)  # in a URL
SHOWN_CHARS_MAX: Final = 200  # of a bad text in an error
PROBLEMS_MAX: Final = 100  # of one kind, in one error
NEAR: Final = 0.5  # how similar a known name must be to be suggested, from 0 to 1


PASSWORD_ADVICE: Final = (
    "; the user and the password are metadata.store.user and the contents of"
    " metadata.store.password.file"
)


class ConfigError(ValueError):
    """Properties are unknown or have values that are not allowed; `problems` are for the user."""

    def __init__(self, first: str, *others: str) -> None:
        more = f" (and {len(others)} more)" if others else ""
        super().__init__(f"{first}{more}")
        self.problems = (first, *others)


class Kind(StrEnum):
    """How the text of a property is read."""

    INT = "int"
    DOUBLE = "double"
    BOOLEAN = "boolean"
    WORDS = "list"
    TEXT = "string"
    PATHS = "paths"
    FILE = "file"
    LISTENERS = "listeners"
    NAME = "name"
    NAMES = "names"
    REPLICAS = "replicas"
    ID = "id"
    RACK = "rack"
    ADDRESS = "address"
    STORE = "store"


@dataclass(frozen=True, slots=True)
class Property:
    """One row of the table. `low` and `high` are inclusive; `unit` is "" for plain numbers.

    `topic_name` is the property's name at a topic, where a topic may override it; `aliases` are
    other names of it with the factor that turns their number into this property's unit.
    `is_list`: words can be added to a topic's value, and taken out. `advice` is a part of the error
    for a value that is not allowed.
    """

    name: str
    kind: Kind
    default: Value
    sentence: str
    unit: str = ""
    low: int = 0
    high: int = LONG_MAX
    choices: tuple[str, ...] = ()
    topic_name: str | None = None
    aliases: tuple[tuple[str, int], ...] = ()
    is_list: bool = False
    advice: str = ""

    @property
    def range(self) -> str:
        """The allowed values, as text."""
        if self.kind is Kind.WORDS:
            return f"{', '.join(self.choices)}, or several of them with commas between"
        if self.choices:
            return ", ".join(self.choices)
        match self.kind:
            case Kind.INT | Kind.DOUBLE:
                return f"{self.low} to {spelled(self.high)}"
            case Kind.BOOLEAN:
                return "true, false"
            case Kind.LISTENERS:
                return "NAME://HOST:PORT[,NAME://HOST:PORT...]"
            case Kind.NAME:
                return "a listener's name"
            case Kind.NAMES:
                return "words, with commas between them"
            case Kind.REPLICAS:
                return "'*', 'none', or PARTITION:BROKER[,PARTITION:BROKER...]"
            case Kind.ID:
                return f"1 to {ID_CHARS_MAX} letters, digits, '.', '_' and '-'"
            case Kind.RACK:
                return f"1 to {RACK_CHARS_MAX} printable characters"
            case Kind.ADDRESS:
                return "HOST:PORT"
            case Kind.STORE:
                return "sqlite:PATH, memory:, etcd:URL[,URL...]"
            case Kind.PATHS:
                return "directories, with commas between them, none twice or in another"
            case _:
                return "one file" if self.kind is Kind.FILE else "any text"

    def parse(self, text: str, name: str | None = None) -> Value:
        """Return the value of a text; None for "" where the default is None.

        Raises `ConfigError` with the range. `name` is the name that the user wrote.
        """
        if self.default is None and not text.strip():
            return None
        try:
            return self._parse(text.strip())
        except ValueError:
            unit = f" ({self.unit})" if self.unit else ""
            has_password = self.kind is Kind.STORE and USER_AND_PASSWORD.search(text)
            raise ConfigError(
                f"{name or self.name} = {shown(text)} is not allowed; it takes {self.range}{unit}"
                f"{PASSWORD_ADVICE if has_password else ''}"
                f"{f': {self.advice}' if self.advice else ''}"
            ) from None

    def _parse(self, text: str) -> Value:
        match self.kind:
            case Kind.INT:
                return self._checked(int(text))
            case Kind.DOUBLE:
                return self._checked(float(text))
            case Kind.WORDS:
                words = [_one_of(word.strip(), self.choices) for word in text.split(",")]
                return ",".join(dict.fromkeys(words))
            case Kind.BOOLEAN:
                return _one_of(text.lower(), ("true", "false")) == "true"
            case Kind.PATHS:
                return _paths(text)
            case Kind.FILE:
                return PurePath(text)
            case Kind.LISTENERS:
                return tuple(parse_listener(part) for part in text.split(","))
            case Kind.NAME:
                return text.upper()
            case Kind.NAMES:
                return tuple(part.strip().upper() for part in text.split(",") if part.strip())
            case Kind.REPLICAS:
                return _replicas(text)
            case Kind.ID:
                if not ID.fullmatch(text):
                    raise ValueError(text)
                return text
            case Kind.RACK:
                if not text.isprintable() or len(text) > RACK_CHARS_MAX:
                    raise ValueError(text)
                return text
            case Kind.ADDRESS:
                return _address(text.removeprefix("http://"))
            case Kind.STORE:
                kind, _, place = text.partition(":")
                if kind == "etcd":
                    parse_endpoints(text)
                elif text != "memory:" and (kind != "sqlite" or not is_bare_path(place)):
                    raise ValueError(text)
                return text
            case Kind.TEXT:
                return _one_of(text, self.choices) if self.choices else text

    def _checked(self, number: Number) -> Number:
        if not self.low <= number <= self.high:
            raise ValueError(number)
        return number

    def format(self, value: Value) -> str:
        """Return a value as it is written in a file."""
        match value:
            case None:
                return ""
            case bool():
                return str(value).lower()
            case Endpoint():
                return str(value)
            case tuple():
                return ",".join(map(str, value))
            case _:
                return str(value)


def setting(name: str, kind: Kind, default: Value, sentence: str, **more: Any) -> Any:
    """Return a field of a frozen dataclass, for a property's value; `more` as in `Property`."""
    described = Property(name, kind, default, sentence, **more)
    return field(default=default, metadata={"property": described})


def parse_listener(text: str) -> NamedEndpoint:
    """Parse `NAME://HOST:PORT`; an IPv6 address is in brackets, and the host may be empty, which
    means every interface. A port alone is one of this machine's loopback. The result has the name
    in capitals. Raises `ValueError`."""
    name, separator, address = text.strip().rpartition("://")
    name = name.upper() if separator else PLAINTEXT
    if not LISTENER_NAME.fullmatch(name):
        raise ValueError(text)
    return NamedEndpoint(name, *_address(address))


def _address(text: str) -> Endpoint:
    host, separator, port = text.rpartition(":")
    if not separator:
        host = LOOPBACK
    if not (HOST.fullmatch(host) and port.isdecimal()) or int(port) > PORT_MAX:
        raise ValueError(text)
    return Endpoint(host.strip("[]"), int(port))


def parse_endpoints(store: str) -> tuple[str, ...]:
    """Return the URLs of `etcd:http://HOST:PORT,https://HOST:PORT`. Raises `ValueError`."""
    urls = [urlsplit(url.strip().rstrip("/")) for url in store.removeprefix(ETCD).split(",")]
    for url in urls:
        is_bare = url[2:] == ("", "", "") and url.username is None
        if url.scheme not in ("http", "https") or not url.hostname or not url.port or not is_bare:
            raise ValueError(store)
    return tuple(url.geturl() for url in urls)


def spelled(number: int) -> str:
    """Return a number as a person reads it best."""
    return {INT_MAX: "2^31-1", LONG_MAX: "2^63-1"}.get(number, str(number))


def attribute_of(name: str) -> str:
    """Return the Python name of a property."""
    return name.replace(".", "_").replace("-", "_")


def is_bare_path(text: str) -> bool:
    """Whether a path is not empty, and no URL with a password, which would be shown with it."""
    return bool(text) and not USER_AND_PASSWORD.search(text)


def shown(text: str) -> str:
    """Return a text as an error quotes it: without a URL's user and password, and not too long."""
    redacted = USER_AND_PASSWORD.sub("://***@", text)
    more = len(redacted) - SHOWN_CHARS_MAX
    return (
        f"{redacted[:SHOWN_CHARS_MAX]!r} and {more} characters more"
        if more > 0
        else f"{redacted!r}"
    )


def unknown(what: str, name: str, known: Iterable[str]) -> ConfigError:
    """Return the error for an unknown name; it suggests a similar known one."""
    near = get_close_matches(name[:SHOWN_CHARS_MAX], list(known), n=1, cutoff=NEAR)
    nearest = f"; the nearest is {near[0]!r}" if near else ""
    return ConfigError(f"unknown {what} {shown(name)}{nearest}")


def bounded(problems: list[str], what: str) -> list[str]:
    """Return the first problems of one kind, and a last one that counts the others."""
    more = len(problems) - PROBLEMS_MAX
    return [*problems[:PROBLEMS_MAX], f"{more} more {what}"] if more > 0 else problems


def _replicas(text: str) -> str:
    """Return a list of replicas, in which each is named once, in the least digits; "" for none."""
    if text in ("", "none", "*"):
        return text.removeprefix("none")
    named = [part.strip() for part in text.split(",") if part.strip()]
    if not named or not all(map(REPLICA.fullmatch, named)):
        raise ValueError(text)
    pairs = [part.split(":") for part in named]
    return ",".join(dict.fromkeys(f"{int(number)}:{int(broker)}" for number, broker in pairs))


def _paths(text: str) -> tuple[PurePath, ...]:
    """Return directories that differ, none of which is in another."""
    parts = [part.strip() for part in text.split(",")]
    plain = [PurePath(os.path.normpath(part)) for part in parts]
    if not all(parts) or any(one.is_relative_to(other) for one, other in permutations(plain, 2)):
        raise ValueError(text)
    return tuple(map(PurePath, parts))


def _one_of(text: str, choices: tuple[str, ...]) -> str:
    if text not in choices:
        raise ValueError(text)
    return text
