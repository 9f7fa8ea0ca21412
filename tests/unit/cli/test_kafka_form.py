"""Commands in the form of Kafka's tools."""

import pytest

from minibroker.cli.kafka_form import meant_command
from tests.support.processes import run_here


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("topic --create --topic t --partitions 3", "topic create --topic t --partitions 3"),
        ("topic --bootstrap-server b --list", "topic list --bootstrap-server b"),
        ("group -b b --describe --group g", "group describe -b b --group g"),
        (
            "group --group g --reset-offsets --to-earliest --all-topics",
            "group seek --group g --to-earliest --all-topics",
        ),
    ],
)
def test_the_command_that_is_meant_is_named(typed: str, meant: str) -> None:
    """With all its options, to be typed again."""
    assert meant_command(typed.split()) == f"minibroker {meant}"


@pytest.mark.parametrize("typed", ["", "topic", "topic create --list", "topic --help", "group -x"])
def test_other_commands_are_not_touched(typed: str) -> None:
    """A verb is a verb, and what cannot be guessed is not."""
    assert meant_command(typed.split()) is None


def test_it_is_a_usage_error() -> None:
    """One line with the command, and nothing is done."""
    done = run_here("topic", "--delete", "--topic", "a b")
    assert (done.returncode, done.stdout) == (2, "")
    told = "the form of Kafka's tool; here it is: minibroker topic delete --topic 'a b'"
    assert done.stderr == f"% ERROR: {told}\n"
