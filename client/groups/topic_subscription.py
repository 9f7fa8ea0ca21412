"""The topics that a group's member reads, and the partition counts of the group's topics.

Topics are named, or matched by a pattern against the names of all topics but internal ones: once
before the first join, then with the age of metadata.
"""

import logging
import re
from collections.abc import Iterable
from contextlib import suppress

from minibroker.client.errors import ClientTimeout
from minibroker.client.net.cluster import Cluster
from minibroker.protocol.constants import ApiKey
from minibroker.protocol.messages.metadata import MetadataRequest

log = logging.getLogger("minibroker.client")


class TopicSubscription:
    """The subscription of one consumer. `topics` are those that it reads now, in order."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.topics: tuple[str, ...] = ()
        self.pattern: re.Pattern[str] | None = None
        self.is_known = True  # a pattern's topics are known once they were looked up
        self._missing: set[str] = set()  # the topics whose absence was logged

    def set_topics(self, topics: Iterable[str], pattern: re.Pattern[str] | None) -> None:
        """Read these topics from now on, or those that match."""
        self.topics, self.pattern = tuple(sorted(set(topics))), pattern
        self.is_known = pattern is None
        self._missing.clear()
        for topic in self.topics:
            self._cluster.request_topic(topic)

    async def match_pattern(self) -> bool:
        """Look up the topics that the pattern matches, however long it takes. Return whether they
        changed."""
        pattern = self.pattern
        answer = await self._cluster.ask(ApiKey.METADATA, MetadataRequest(None, False))
        if pattern is None or pattern is not self.pattern:
            return False
        names = sorted(topic.name for topic in answer.topics if not topic.is_internal)
        before, self.topics = self.topics, tuple(name for name in names if pattern.match(name))
        is_news = before != self.topics or not self.is_known
        if not (self.is_known or self.topics):
            text = "no topic matches %r; new ones are looked for every metadata.max.age.ms (%d)"
            log.warning(text, pattern.pattern, self._cluster.options.metadata_max_age_ms)
        self.is_known = True
        for topic in self.topics:
            self._cluster.request_topic(topic)
        return is_news

    def warn_of_missing(self) -> None:
        """Warn once of each topic that does not exist. The consumer reads it when it is created."""
        for topic in self.topics:
            if self._cluster.partition_count(topic) is not None:
                self._missing.discard(topic)
            elif self._cluster.is_missing(topic) and topic not in self._missing:
                self._missing.add(topic)
                text = "subscribed to %r, which does not exist: it is read once it is created"
                log.warning(text, topic)

    def counts(self, topics: Iterable[str]) -> dict[str, int]:
        """Return the partition counts of topics; those not known to exist are left out."""
        known = ((topic, self._cluster.partition_count(topic)) for topic in topics)
        return {topic: count for topic, count in known if count is not None}

    async def fetch_counts(self, topics: Iterable[str]) -> dict[str, int]:
        """Return the same, after asking a broker for the topics that are not known."""
        unknown = [topic for topic in topics if self._cluster.partition_count(topic) is None]
        for topic in unknown:
            self._cluster.request_topic(topic)
        if unknown:
            with suppress(ClientTimeout):  # the group's leader goes on with what it knows
                await self._cluster.refreshed()
        return self.counts(topics)
