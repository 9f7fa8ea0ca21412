"""Subscriptions of the members of a consumer group: the topics that they stand for."""

from collections.abc import Iterable, Mapping
from hashlib import blake2b
from typing import TypeAlias

from minibroker.broker.coordination.name_pattern import InvalidPatternError, NamePattern
from minibroker.broker.groups.consumer_records import MemberMetadata
from minibroker.broker.metadata.model import TopicImage
from minibroker.broker.turns import Turn, Turns
from minibroker.protocol.constants import INTERNAL_TOPICS

Topics: TypeAlias = Mapping[str, TopicImage]


class PatternTopics:
    """The topics that a pattern matches. Only names that are new are compared.

    Raises `InvalidPatternError`. Patterns do not match the topic of groups.
    """

    def __init__(self, pattern: str) -> None:
        self._pattern = NamePattern(pattern)
        self._known: dict[str, bool] = {}

    def matching(self, names: Iterable[str], turn: Turn) -> Turns[set[str]]:
        """Return the topics of these that match."""
        known: dict[str, bool] = {}
        for name in names:
            is_match = self._known.get(name)
            if is_match is None:
                is_internal = name in INTERNAL_TOPICS
                is_match = not is_internal and (yield from self._pattern.matches(name, turn))
            known[name] = is_match
            if turn.is_over():
                yield
        self._known = known
        return {name for name, is_match in known.items() if is_match}


class Subscriptions:
    """The patterns of a group's members."""

    def __init__(self) -> None:
        self._patterns: dict[str, PatternTopics] = {}
        self._matching: dict[str | None, set[str]] = {None: set()}  # as last resolved

    def add(self, pattern: str) -> None:
        """Add a member's pattern. Raises `InvalidPatternError`."""
        if pattern not in self._patterns:
            self._patterns[pattern] = PatternTopics(pattern)

    def resolved(
        self, members: Mapping[str, MemberMetadata], topics: Topics, turn: Turn
    ) -> Turns[dict[str, set[str]]]:
        """Return the existing topics that each member subscribes to; forget other patterns."""
        used = {each.pattern for each in members.values() if each.pattern is not None}
        made = {each: self._patterns.get(each) or _stored(each) for each in used}
        self._patterns = {each: names for each, names in made.items() if names is not None}
        matching: dict[str | None, set[str]] = {None: set()}
        for pattern, names in list(self._patterns.items()):
            matching[pattern] = yield from names.matching(topics, turn)
        self._matching = matching
        subscribed: dict[str, set[str]] = {}
        for member_id, member in list(members.items()):
            named = {topic for topic in member.topics if topic in topics}
            subscribed[member_id] = named | matching.get(member.pattern, set())
            if turn.is_over(1 + len(member.topics) + len(subscribed[member_id])):
                yield
        return subscribed

    def topics_of(self, members: Iterable[MemberMetadata]) -> set[str] | None:
        """Return all topics that members subscribe to, those of patterns as they were resolved
        last; None if a pattern was not."""
        found: set[str] = set()
        for member in members:
            matching = self._matching.get(member.pattern)
            if matching is None:
                return None
            found.update(member.topics, matching)
        return found


def _stored(pattern: str) -> PatternTopics | None:
    """Return a pattern of a stored member; None if another kind of broker accepted it."""
    try:
        return PatternTopics(pattern)
    except InvalidPatternError:
        return None


def hash_of(subscribed: Mapping[str, set[str]], topics: Topics, turn: Turn) -> Turns[int]:
    """Return a number that changes with the topics, their ids and their partitions."""
    names: set[str] = set()
    for some in subscribed.values():
        names |= some
        if turn.is_over(1 + len(some)):
            yield
    digest = blake2b(digest_size=8)
    for name in sorted(names):
        topic = topics[name]
        digest.update(f"{len(name)} {name} {topic.id.hex()} {len(topic.partitions)};".encode())
        if turn.is_over():
            yield
    return int.from_bytes(digest.digest(), signed=True)
