"""What a failure looks like to the user."""

import errno

import pytest
import typer

from minibroker.cli.terminal import (
    USAGE,
    Failure,
    counted,
    explain,
    failures_as_one_line,
    one_topic,
    pairs,
)
from minibroker.client.errors import ClientTimeout, ConfigError
from minibroker.protocol.constants import ErrorCode
from minibroker.protocol.errors import BrokerError

OPERATING = [
    (Failure("the cat is on the keyboard"), "the cat is on the keyboard", 1),
    (Failure("no", USAGE), "no", 2),
    (FileNotFoundError(errno.ENOENT, "No such file", "a.txt"), "No such file: a.txt", 1),
    (ConnectionRefusedError("nobody there"), "nobody there", 1),
    (ClientTimeout("nobody\nanswered"), "nobody answered", 1),
    (BrokerError(ErrorCode.INVALID_CONFIG, "x"), "INVALID_CONFIG: x", 1),
    (ConfigError("acks = 7"), "acks = 7", 2),
    (ExceptionGroup("", [ExceptionGroup("", [OSError("full")])]), "full", 1),
]


@pytest.mark.parametrize(("error", "text", "code"), OPERATING)
def test_an_operating_error_is_one_line(
    error: Exception, text: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """What a user or a machine can cause is told in one line on stderr."""
    with pytest.raises(SystemExit) as ended, failures_as_one_line():
        raise error
    assert ended.value.code == code
    assert capsys.readouterr() == ("", f"% ERROR: {text}\n")


@pytest.mark.parametrize(
    "error", [AssertionError("x"), KeyError("x"), ExceptionGroup("", [OSError(), TypeError()])]
)
def test_a_mistake_of_ours_keeps_its_traceback(error: Exception) -> None:
    """A defect is never dressed up as somebody else's fault."""
    assert explain(error) is None
    with pytest.raises(type(error)), failures_as_one_line():
        raise error


def test_a_topic_is_named_once() -> None:
    """As an argument or as Kafka's option; two different names are a usage error."""
    assert one_topic("t", None) == one_topic(None, "t") == one_topic("t", "t") == "t"
    for argument, option in ((None, None), ("a", "b"), ("", None), ("\udcff", None)):
        with pytest.raises(typer.BadParameter):
            one_topic(argument, option)


@pytest.mark.parametrize("name", ["^wo.*", "a,b", "bad topic", "..", "a\x1b[2J", "x" * 250])
def test_a_topic_is_one_name(name: str) -> None:
    """A pattern, a list and what no topic may be called are usage errors, in printable words."""
    with pytest.raises(typer.BadParameter, match="is no topic name") as raised:
        one_topic(name, None)
    assert raised.value.message.isprintable()


def test_pairs_keep_what_follows_the_first_sign() -> None:
    """A value may hold equal signs; a text without one is a usage error."""
    assert pairs(["a=b=c", "d="], "--x") == {"a": "b=c", "d": ""}
    for text in ("a", "=", "a=\udcff"):
        with pytest.raises(typer.BadParameter, match="--x"):
            pairs([text], "--x")


def test_one_is_not_a_plural() -> None:
    """Counts read as a person would write them."""
    assert [counted(number, "record") for number in (0, 1, 2000)] == [
        "0 records",
        "1 record",
        "2,000 records",
    ]
