"""What the doctor says of groups."""

from minibroker.broker.findings import Level
from minibroker.broker.findings.groups import OffsetRange, of_groups
from minibroker.protocol.types import TopicPartition

T0, T1, GONE = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("gone", 0)
RANGES = {T0: OffsetRange(10, 20), T1: OffsetRange(0, 0)}


def test_offsets_outside_the_log_are_told() -> None:
    """Beyond the end is a problem, below the start and in no log a note, each with what to do; the
    first and the last offset that a group can have are well."""
    committed = {"g": {T0: 21, T1: 0}, "slow": {T0: 9, GONE: 5}, "well": {T0: 10}, "end": {T0: 20}}
    found = [*of_groups(committed, RANGES, {}, {})]
    assert [(each.level, each.what.partition(", and")[0]) for each in found] == [
        ("problem", "group g: t-0: the group is at 21"),
        ("note", "group slow: gone-0 is gone, or nobody leads it"),
        ("note", "group slow: t-0: the group is at 9"),
    ]
    assert found[0].what.endswith(
        "records were lost, or the topic was made anew (see `group seek`)"
    )
    assert "minibroker group seek g --topic t:0 --to-latest" in found[0].advice
    assert all(each.advice for each in found)


def test_groups_that_are_well_are_told_so() -> None:
    """In one line; unless a broker does not say which groups there are."""
    assert [*of_groups({"g": {T0: 15}}, RANGES, {}, {})] == [
        (Level.OK, "1 group: all committed offsets lie in their logs", "")
    ]
    [silent] = of_groups({}, RANGES, {2: "no answer"}, {})
    assert silent[:2] == ("note", "broker 2 does not say which groups it keeps: no answer")


def test_commands_can_be_pasted() -> None:
    """A group may have any name."""
    [found] = of_groups({"my group; ls": {T1: 5}}, RANGES, {}, {})
    assert "`minibroker group describe 'my group; ls'`" in found.advice
    assert "`minibroker group seek 'my group; ls' --topic t:1 --to-latest`" in found.advice


def test_a_group_in_front_of_what_nobody_can_read() -> None:
    """Its offset lies in the log. The consumer's own error says who can have caused it, and where
    to go on; another group in the same partition is well."""
    committed = {"g h": {T0: 15}, "well": {T0: 16}}
    [found] = of_groups(committed, RANGES, {}, {(T0, 15): "a producer sent it like this"})
    assert found.level == Level.PROBLEM
    assert "cannot get past t-0 at offset 15" in found.what
    assert found.what.endswith("a producer sent it like this")
    assert "`minibroker group seek 'g h' --topic t:0 --to-offset N`" in found.advice
