"""The features that the compatibility table of docs/kafka.md has a row for.

A test that shows one of them is marked with `@shows(Feature.X)`. The clients that show it are named
in the mark; without names it is the client that is the test's parameter.
"""

from collections.abc import Iterator
from enum import Enum

import pytest


class Feature(Enum):
    """A row of the table, in its order."""

    ACKS = "produce with acks 0, 1 and all"
    IDEMPOTENCE = "produce with idempotence"
    COMPRESSION = "gzip, snappy, lz4, zstd, compressed on the disk"
    BYTES = "read what every other client wrote, byte for byte"
    SEEK = "seek; beginning, end and offsets for times"
    READ_COMMITTED = "read with `isolation.level=read_committed`"
    COMMIT = "commit, in a group and without one"
    MIXED = "one group together with other clients, which rebalances"
    STATIC = "a static member that comes back"
    COOPERATIVE = "the cooperative assignor"
    TRANSACTIONS = "transactions: commit, abort, read committed records"
    EXACTLY_ONCE = "transform each record once, although the program and a broker are killed"
    TOPICS = "topics listed, and created, described, given partitions, deleted if the client can"
    CONFIGS = "settings of topics altered and described"
    RECORDS = "records deleted"
    GROUPS = "groups listed and described, and deleted if the client can"
    LEADER = "go on when a leader is killed"
    COORDINATOR = "go on when a coordinator is killed"
    RECIPE = "the program below runs"


def shows(feature: Feature, *clients: str) -> pytest.MarkDecorator:
    """The test's result goes into the table. Without a client it is that of the parameter."""
    return pytest.mark.shows(feature, *clients)


def shown_by(item: pytest.Item) -> Iterator[tuple[Feature, str]]:
    """The features that a test shows if it passes, each with a client's name."""
    for mark in item.iter_markers("shows"):
        feature, *clients = mark.args
        if not clients:
            assert isinstance(item, pytest.Function)
            client = item.callspec.params["client"]
            clients = [getattr(client, "name", client)]
        for client in clients:
            yield feature, client
