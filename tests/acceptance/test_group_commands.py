"""`group` and `consume --group` against a real broker, as a user would type it."""

import re

from tests.processes import Shell


def test_a_group_is_moved_described_and_deleted(shell: Shell) -> None:
    """A group that nobody has read with yet is made by a seek; its lag is what is left to read."""
    shell("topic create moved -p 2")
    shell("produce moved -p 1", stdin="a\nb\nc\n")
    shell("group describe mover", code=1)
    assert shell.stderr == "% ERROR: GROUP_ID_NOT_FOUND: group 'mover': there is no such group\n"
    shell("group seek mover --topic moved --to-earliest --execute")
    assert "there is no group mover yet" in shell.stderr
    shell("group seek mover --all-topics --shift-by 1")
    assert "moved-0: offset 1 is behind its end: the group goes to 0" in shell.stderr
    head, *lines = shell("group describe --group mover").splitlines()
    assert head.split()[3:6] == ["CURRENT-OFFSET", "LOG-END-OFFSET", "LAG"]
    assert [line.split()[:6] for line in lines] == [
        ["mover", "moved", "0", "0", "0", "0"],
        ["mover", "moved", "1", "1", "3", "2"],
    ]
    assert "group mover is Empty, has 0 members and a lag of 2" in shell.stderr
    assert shell("group delete mover --topic moved:0") == "Deleted 1 offset of group mover.\n"
    shell("group delete mover")
    assert "mover" not in shell("group list").splitlines()


def test_what_a_group_cannot_do_is_one_line(shell: Shell) -> None:
    """Typing errors, partitions that there are not, names without end: exit code 1, and why."""
    shell("topic create typed -p 1")
    for line, why in (
        ("group seek g --topic typed:7 --to-latest", "typed has 1 partition.*there is no 7"),
        ("group delete missing", "GROUP_ID_NOT_FOUND: group 'missing'"),
        (f"group describe {'x' * 10_000}", r"group 'x{60}\.\.\.'"),
    ):
        shell(line, code=1)
        assert re.search(f"^% ERROR: .*{why}.*\n\\Z", shell.stderr, re.MULTILINE), shell.stderr
    nobody = Shell("127.0.0.1:1")
    nobody("group list --timeout-s 0.5", code=1)
    assert re.fullmatch("% ERROR: .*no answer from 127.0.0.1:1.*\n", nobody.stderr)
