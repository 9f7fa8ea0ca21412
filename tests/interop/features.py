"""The features that the compatibility table of docs/kafka.md has a row for.

A test that shows one of them with a client is marked with `@shows(Feature.X)`; the client is the
test's parameter, or named in the mark.
"""

from enum import Enum

import pytest


class Feature(Enum):
    """A row of the table, in its order."""

    ACKS = "produce with acks 0, 1 and all"
    IDEMPOTENCE = "produce with idempotence"
    COMPRESSION = "gzip, snappy, lz4, zstd, compressed on the disk"
    BYTES = "reads what every other client wrote, byte for byte"
    SEEK = "seek; beginning, end and offsets for times"
    GROUP = "a group that rebalances"
    STATIC = "static members"
    COOPERATIVE = "cooperative assignor"
    COMMIT = "commits, in a group and without one"
    MIXED = "one group together with other clients"
    READ_COMMITTED = "isolation.level=read_committed reads"
    TRANSACTIONS = "transactional.id is refused at once"
    TOPICS = "topics created, listed, described, deleted"
    GROUPS = "groups listed, described, deleted"
    LEADER = "goes on when a leader is killed"
    COORDINATOR = "goes on when a coordinator is killed"


def shows(feature: Feature, client: str = "") -> pytest.MarkDecorator:
    """The test's result goes into the table. Without a client it is that of the parameter."""
    return pytest.mark.shows(feature, client)
