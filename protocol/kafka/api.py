"""The type of an api of Kafka's wire: its announced versions, and the fields of its messages."""

from dataclasses import dataclass
from typing import Final

from minibroker.protocol.kafka.schema import Struct, Version, parse

API_VERSIONS_KEY: Final = 18


@dataclass(frozen=True, eq=False)
class KafkaApi:
    """One api: its announced versions and its messages."""

    key: int
    name: str
    first: Version
    last: Version
    request: Struct
    response: Struct
    flexible_since: Version | None = None

    def is_flexible(self, version: Version) -> bool:
        """Return whether bodies of this version have the flexible encoding."""
        return self.flexible_since is not None and version >= self.flexible_since

    def has_header_tags(self, version: Version) -> bool:
        """Return whether the header of a response in this version has tagged fields. That of
        ApiVersions never has: its client does not know yet which versions the broker serves."""
        return self.key != API_VERSIONS_KEY and self.is_flexible(version)


def api_of(
    key: int, name: str, versions: str, request: str, response: str, flexible: int | None = None
) -> KafkaApi:
    """Return the api with these messages, of which the versions from `flexible` on are flexible."""
    first, last = map(int, versions.split("-"))
    ask, answer = parse(f"{name}Request", request), parse(f"{name}Response", response)
    return KafkaApi(key, name, first, last, ask, answer, flexible)
