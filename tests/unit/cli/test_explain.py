"""`describe --explain`: what the words mean, and what follows for clients."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from minibroker.cli.cluster import describe as cluster_commands
from minibroker.cli.explain import CLUSTER, GROUP, TOPIC
from minibroker.cli.group import commands as group_commands
from minibroker.cli.group.lag import HEADS
from minibroker.cli.topic import commands as topic_commands
from minibroker.client.admin import ClusterDescription, ReplicasReport
from minibroker.client.groups.admin import GroupDescription
from minibroker.protocol.messages.config_descriptions import ConfigDescription
from minibroker.protocol.messages.metadata import BrokerMetadata, PartitionMetadata, TopicMetadata
from tests.support.processes import run_here

SETTINGS = {
    "min.insync.replicas": "2",
    "flush": "never",
    "flush.ms": "1000",
    "cleanup.policy": "delete",
}
ISRS = [(1, 2, 3), (1, 2), (1,), ()]


class FakeAdmin:
    """A topic with a partition in each state, and an idle group."""

    def list_topics(self) -> list[str]:
        return ["t"]

    def describe_topics(self, *names: str) -> list[TopicMetadata]:
        partitions = [
            PartitionMetadata(number, leader_id=isr[0] if isr else -1, replicas=(1, 2, 3), isr=isr)
            for number, isr in enumerate(ISRS)
        ]
        return [TopicMetadata(name, partitions=tuple(partitions)) for name in names]

    def describe_configs(self, *names: str) -> dict[str, list[ConfigDescription]]:
        rows = [ConfigDescription(name, value) for name, value in SETTINGS.items()]
        return dict.fromkeys(names, rows)

    def describe_groups(self, *names: str) -> list[GroupDescription]:
        return [GroupDescription(name, "Empty", "consumer", "", 5, 2, ()) for name in names]

    def committed_offsets(self, _: str) -> dict[Any, Any]:
        return {}

    def list_offsets(self, *_: object) -> dict[Any, Any]:
        return {}

    def describe_cluster(self) -> ClusterDescription:
        return ClusterDescription("c", 1, (BrokerMetadata(1, "one", 9092),))

    def describe_replicas(self) -> ReplicasReport:
        return ReplicasReport({}, {})


@pytest.fixture(autouse=True)
def admin(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands find it at any address."""

    @contextmanager
    def opened(*_: object) -> Iterator[Any]:
        yield FakeAdmin()

    for module in (topic_commands, group_commands, cluster_commands):
        monkeypatch.setattr(module, "opened_admin", opened)


@pytest.mark.parametrize(
    ("command", "words"),
    [("topic describe t", TOPIC), ("cluster describe -b b", CLUSTER), ("group describe g", GROUP)],
)
def test_words_of_the_output_are_explained(command: str, words: dict[str, str]) -> None:
    """On stderr, so that the output is the same; each word is one that is printed."""
    plain = run_here(*command.split())
    done = run_here(*command.split(), "--explain")
    assert (done.returncode, done.stdout) == (0, plain.stdout)
    printed = plain.stdout + " ".join(HEADS)
    for word, meaning in words.items():
        assert f"% {word}: {meaning}\n" in done.stderr
        assert f"% {word}: " not in plain.stderr
        for each in word.split(", "):
            assert re.search(rf"\b{each}\b", printed), each


def test_the_state_of_a_partition_is_explained() -> None:
    """What producers with acks=all and consumers can expect of it; nothing if all is well."""
    lines = run_here("topic", "describe", "t", "--explain").stderr.splitlines()
    assert [line for line in lines if line.startswith("% t-")] == [
        "% t-1: 2 of 3 replicas are in sync, not on 3; acks=all needs 2 (min.insync.replicas);"
        " one less, and it is refused",
        "% t-2: 1 of 3 replicas are in sync, not on 2, 3; acks=all needs 2 (min.insync.replicas)"
        " and is refused; what is committed is read",
        "% t-3: 0 of 3 replicas are in sync, not on 1, 2, 3; it has no leader, so nobody can write"
        " or read it",
    ]


@pytest.mark.parametrize(
    "command", ["topic describe t --disk --explain", "group describe g --members --explain"]
)
def test_other_tables_are_not_explained(command: str) -> None:
    """A usage error."""
    done = run_here(*command.split())
    assert (done.returncode, done.stdout) == (2, "")
    assert "--explain is about" in done.stderr
