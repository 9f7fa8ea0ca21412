"""`topic create` and `topic delete` with several topics."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from minibroker.cli.topic import commands
from minibroker.client import NewTopic
from minibroker.protocol.constants import ErrorCode
from minibroker.protocol.errors import BrokerError
from minibroker.protocol.messages.metadata import TopicMetadata
from tests.support.processes import run_here

MANY = [f"many-{number}" for number in range(1, 8)]


class FakeAdmin:
    """A cluster of some topics without partitions."""

    def __init__(self) -> None:
        self.topics = {"a", "trial-1", "trial-2", "trials", "__trial", *MANY}

    def create_topics(self, topic: NewTopic) -> None:
        if topic.name in self.topics:
            raise BrokerError(ErrorCode.TOPIC_ALREADY_EXISTS, f"topic {topic.name!r}")
        self.topics.add(topic.name)

    def delete_topics(self, name: str) -> None:
        self._check(name)
        self.topics.remove(name)

    def list_topics(self) -> list[str]:
        return sorted(self.topics)

    def describe_topics(self, name: str) -> list[TopicMetadata]:
        self._check(name)
        return [TopicMetadata(name)]

    def _check(self, name: str) -> None:
        if name not in self.topics:
            raise BrokerError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"no topic {name!r}")


@pytest.fixture
def admin(monkeypatch: pytest.MonkeyPatch) -> FakeAdmin:
    """Commands find it at any address."""
    fake = FakeAdmin()

    @contextmanager
    def opened(*_: object) -> Iterator[Any]:
        yield fake

    monkeypatch.setattr(commands, "opened_admin", opened)
    return fake


def typed(command: str) -> subprocess.CompletedProcess:
    """Run a command of `topic`."""
    return run_here("topic", *command.split())


def test_each_is_created_once(admin: FakeAdmin) -> None:
    """Named as arguments or by options; a name given twice is one topic."""
    done = typed("create b c --topic d -t b")
    assert done.stdout == "Created topic b.\nCreated topic c.\nCreated topic d.\n"
    assert (done.returncode, done.stderr) == (0, "")
    assert {"b", "c", "d"} < admin.topics


def test_what_is_refused_does_not_stop_the_others(admin: FakeAdmin) -> None:
    """Each refusal is a line, and the exit code is 1; with --if-not-exists it is none."""
    done = typed("create b a c")
    assert (done.returncode, done.stdout) == (1, "Created topic b.\nCreated topic c.\n")
    assert done.stderr == "% ERROR: TOPIC_ALREADY_EXISTS: topic 'a'\n"
    done = typed("create b a e --if-not-exists")
    assert (done.returncode, done.stdout) == (0, "Created topic e.\n")
    assert typed("delete e nowhere b --if-exists").returncode == 0
    done = typed("delete c nowhere a")
    assert (done.returncode, done.stdout) == (1, "Deleted topic c.\nDeleted topic a.\n")
    assert done.stderr.count("\n") == 1


def test_topics_are_deleted_by_a_pattern(admin: FakeAdmin) -> None:
    """Only with --yes where there is no terminal; an internal topic is not matched."""
    assert typed("delete ^trial --dry-run").stdout == "trial-1\ntrial-2\ntrials\n"
    assert typed("delete .*trial --dry-run").returncode == 2
    assert typed("delete ^.*trial a --dry-run").stdout == "a\ntrial-1\ntrial-2\ntrials\n"
    done = typed("delete ^trial")
    assert (done.returncode, done.stdout) == (2, "")
    assert "nothing was done: --yes" in done.stderr
    assert typed("delete ^trial-.*$ --yes").stdout.count("Deleted") == 2
    assert {"trials", "__trial", "a"} < admin.topics
    done = typed("delete ^nothing --yes")
    assert (done.returncode, done.stdout) == (1, "")
    assert "no topic matches '^nothing'" in done.stderr
    assert typed("delete nowhere --dry-run").returncode == 1


@pytest.mark.parametrize(
    "command",
    ["create", "create ^a", "create a,b", "create b --topic a/b", "delete", "delete ^( --dry-run"],
)
def test_names_are_checked_first(admin: FakeAdmin, command: str) -> None:
    """A usage error in one line; nothing is created or deleted."""
    before = {*admin.topics}
    done = typed(command)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("% ERROR: ")
    assert done.stderr.count("\n") == 1
    assert admin.topics == before
