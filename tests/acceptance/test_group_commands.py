"""`group` and `consume --group` against a real broker, as a user would type it.

But for the consumer that a signal stops, the commands run in this process: to start one takes
longer than what it does.
"""

import re
import signal
import subprocess

import pytest

from minibroker.cli.main import main
from minibroker.client import NewTopic
from minibroker.client.blocking import Admin, Producer
from tests.support.processes import COMMAND, BrokerProcess


class Typed:
    """Runs commands in this process. `stderr` is what the last one had to say beside."""

    def __init__(
        self, address: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        self.address = address
        self._monkeypatch = monkeypatch
        self._capsys = capsys

    def __call__(self, line: str, code: int = 0) -> str:
        """A command's stdout; it must end with `code`."""
        arguments = ["minibroker", *line.split(), "--bootstrap-server", self.address]
        self._monkeypatch.setattr("sys.argv", arguments)
        with pytest.raises(SystemExit) as ended:
            main()
        out, self.stderr = self._capsys.readouterr()
        assert (ended.value.code or 0) == code, out + self.stderr
        return out


@pytest.fixture
def typed(
    broker: BrokerProcess, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Typed:
    """Commands for the common broker."""
    return Typed(broker.address, monkeypatch, capsys)


def fill(address: str, topic: str, *counts: int) -> None:
    """Make a topic with so many records in each of its partitions; each is its own number."""
    with Admin(address) as admin:
        admin.create_topics(NewTopic(topic, len(counts)))
    number = 0
    with Producer(address) as producer:
        for partition, count in enumerate(counts):
            for _ in range(count):
                producer.send(topic, b"%d" % number, partition=partition)
                number += 1


def test_a_group_is_moved_described_and_deleted(typed: Typed) -> None:
    """A group that nobody has read with yet is made by a seek; its lag is what is left to read."""
    fill(typed.address, "moved", 0, 3)
    typed("group describe mover", code=1)
    assert typed.stderr == "% ERROR: GROUP_ID_NOT_FOUND: group 'mover': there is no such group\n"
    typed("group seek mover --topic moved --to-earliest --execute")
    assert "there is no group mover yet" in typed.stderr
    assert "mover" in typed("group list --state Empty").splitlines()
    typed("group seek mover --all-topics --shift-by 1")
    assert "moved-0: offset 1 is behind its end: the group goes to 0" in typed.stderr
    head, *lines = typed("group describe --group mover").splitlines()
    assert head.split()[3:6] == ["CURRENT-OFFSET", "LOG-END-OFFSET", "LAG"]
    assert [line.split()[:6] for line in lines] == [
        ["mover", "moved", "0", "0", "0", "0"],
        ["mover", "moved", "1", "1", "3", "2"],
    ]
    assert "group mover is Empty, has 0 members, a lag of 2" in typed.stderr
    deleted = typed("group delete missing mover --topic moved:0 --if-exists")
    assert deleted == "Deleted 1 offset of group mover.\n"
    typed("group delete missing mover --topic moved:0", code=1)
    assert "2 of 2 groups not deleted" in typed.stderr
    typed("group delete mover")
    assert "mover" not in typed("group list").splitlines()


def test_what_a_group_cannot_do_is_one_line(typed: Typed) -> None:
    """Typing errors, partitions that there are not, names without end: exit code 1, and why."""
    fill(typed.address, "typed", 0)
    for line, why in (
        ("group seek g --topic typde --to-latest", "UNKNOWN_TOPIC_OR_PARTITION.*'typde'"),
        ("group seek g --topic typed:7 --to-latest", "typed has 1 partition.*there is no 7"),
        ("group seek g --topic typed --shift-by 1", "committed nothing there"),
        ("group seek g --all-topics --to-latest", "committed nothing there"),
        ("group delete missing", "GROUP_ID_NOT_FOUND: group 'missing'"),
        ("consume typde --group g", "no topic 'typde'"),
        (f"group describe {'x' * 10_000}", r"group 'x{60}\.\.\.'"),
        (f"group seek {'x' * 40_000} --topic typed --to-latest", r"INVALID_GROUP_ID: group 'x{60}"),
    ):
        typed(line, code=1)
        assert re.search(f"^% ERROR: .*{why}.*\n\\Z", typed.stderr, re.MULTILINE), typed.stderr
    typed.address = "127.0.0.1:1"
    typed("group list --timeout-s 0.5", code=1)
    assert re.fullmatch("% ERROR: .*no answer from 127.0.0.1:1.*\n", typed.stderr)


def test_a_group_goes_on_where_it_was(typed: Typed) -> None:
    """K6: what was printed is committed, and nothing else: neither what was read beyond
    --max-messages, nor anything twice; --from-beginning is only for where it never was."""
    fill(typed.address, "shared", 3, 3)
    first = typed("consume shared --group sharers --from-beginning -c 4").split()
    assert len(first) == 4
    rest = typed("consume shared --group sharers --from-beginning --exit-at-end").split()
    assert sorted(first + rest) == [f"{number}" for number in range(6)]
    assert typed("consume shared -X group.id=sharers --exit-at-end") == ""


def test_a_consumer_that_is_stopped_leaves_its_group(typed: Typed) -> None:
    """While it runs the group cannot be moved or deleted; SIGINT commits what was printed, and
    leaves: nobody waits for its session to end."""
    fill(typed.address, "left", 2)
    consume = ["consume", "left", "--group", "leavers", "--from-beginning", "-b", typed.address]
    with subprocess.Popen(
        [*COMMAND, *consume], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert [process.stdout.readline(), process.stdout.readline()] == [b"0\n", b"1\n"]
        typed("group seek leavers --all-topics --to-earliest", code=1)
        assert "leavers is Stable, with 1 member (minibroker at 127.0.0.1)" in typed.stderr
        typed("group delete leavers", code=1)
        assert "NON_EMPTY_GROUP: group 'leavers': it has members" in typed.stderr
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
    assert (process.returncode, out) == (0, b"")
    assert b"% partitions given back: left-0\n" in err
    [_, row] = typed("group describe leavers").splitlines()
    assert row.split() == ["leavers", "left", "0", "2", "2", "0", "-", "-", "-"]
    assert "leavers is Empty" in typed.stderr
