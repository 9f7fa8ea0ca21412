"""The frame of the command line: help, versions, usage errors."""

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from minibroker.cli.commands import app_for
from minibroker.cli.examples import EXAMPLES

COMMANDS = [
    [],
    ["start"],
    ["cluster"],
    *(["cluster", verb] for verb in ("up", "status", "down", "describe", "export")),
    *(["cluster", verb] for verb in ("start", "stop", "kill", "pause", "resume", "purge")),
    ["topic"],
    *(["topic", verb] for verb in ("create", "list", "describe", "alter", "trim", "delete")),
    ["produce"],
    ["consume"],
    *(["group", verb] for verb in ("list", "describe", "delete", "seek")),
    ["partition", "recover"],
    ["replica", "status"],
    ["leader", "elect"],
    *(["broker", verb] for verb in ("config", "forget")),
    *(["metadata", verb] for verb in ("export", "restore")),
    ["health"],
    ["doctor"],
    ["top"],
    ["log", "dump"],
    *(["audit", verb] for verb in ("run", "report", "checks")),
    *(["bench", what] for what in ("produce", "consume", "latency")),
    ["config", "show"],
    *(["lab", verb] for verb in ("list", "run")),
]
WRONG = [
    ["begin"],
    ["topic", "make"],
    ["topic", "list", "--timeout-s", "0"],
    ["start", "--fast"],
    ["cluster", "up", "-n", "many"],
    ["cluster", "up", "--set", "log.segment.byte=1"],
    ["cluster", "up", "-n", "0"],
    ["cluster", "kill"],
    ["cluster", "kill", "one"],
    ["replica", "status", "t", "--topic", "u"],
    ["log", "dump"],
    ["leader", "elect", "--partition", "1"],
    ["leader", "elect", "--unclean"],
    ["leader", "elect", "--unclean", "--topic", "t"],
    ["leader", "elect", "--unclean", "--topic", "t", "--partition", "0", "--partition", "1"],
    ["leader", "elect", "--topic", "t", "--leader", "1"],
    ["broker", "forget", "-1"],
    ["broker", "forget"],
    ["metadata", "restore"],
    ["metadata", "restore", "none.json", "--brokers", "1,x"],
    ["health", "--timeout-s", "0"],
    ["health", "-b", "a:1,b:"],
    ["doctor", "-b", "nowhere:x"],
    ["doctor", "--set", "log.segment.byte=1"],
    ["top", "-n", "0"],
    ["top", "--interval-s", "0"],
    ["lab", "run", "hw-los"],
    ["lab", "run", "hw-loss", "--rule", "time"],
    ["audit", "run"],
    ["audit", "run", "/nowhere"],
    ["audit", "run", "/", "--check", "crcs"],
    ["audit", "run", "/", "--ledger", "/nowhere"],
    ["audit", "run", "/", "--fail-on", "info"],
    ["audit", "run", "/", "--out", "/"],
    ["audit", "report", "/"],
    ["produce", ""],
    ["produce", "bad topic"],
    ["consume", "^wo(.*"],
    ["consume", "--include", "wo("],
    ["consume"],
    ["consume", "t", "u", "-p", "0"],
    ["consume", "^t", "-p", "0"],
    ["consume", "t", "-o", "e@soon"],
    ["consume", "t", "-o", "1", "-o", "2"],
    ["consume", "t", "-o", "e@1", "--group", "g"],
    ["consume", "t", "-J", "-f", "%s"],
    ["consume", "t", "-J", "-Z"],
    ["consume", "t", "-J", "--property", "print.key=true"],
    ["consume", "t", "-Z", "--property", "print.key=true"],
    ["consume", "t", "--timeout-ms", "0"],
    ["produce", "t", "-H", "=1"],
    ["produce", "t", "-J", "-K", ":"],
    ["produce", "t", "--format", "xml"],
    ["produce", "t", "-Z", "--property", "null.marker=x"],
    ["produce", "t", "-K", ":", "--property", "parse.key=true"],
    ["produce", "t", "--property", "parse.kee=true"],
    ["produce", "t", "--compression-codec", "zip"],
    ["consume", "a,b"],
    ["consume", "bad topic"],
    ["topic", "trim", "a,b", "0", "1"],
    ["produce", "t", "-p", "-1"],
    ["produce", "t", "-K", ""],
    ["produce", "t", "-k", "x", "-K", ":"],
    ["group", "list", "--state", "stabl"],
    ["group", "describe", ""],
    ["group", "describe", "g", "--all-groups"],
    ["group", "describe", "g", "--members", "--state"],
    ["group", "delete"],
    ["group", "delete", "g", "--topic", "t:x"],
    ["group", "seek", "--to-latest", "--all-topics"],
    ["group", "seek", "g", "--group", "h", "--to-latest", "--all-topics"],
    ["group", "seek", "g", "--all-topics"],
    ["group", "seek", "g", "--all-topics", "--to-latest", "--to-earliest"],
    ["group", "seek", "g", "--all-topics", "--to-offset", "-1"],
    ["group", "seek", "g", "--all-topics", "--to-datetime", "soon"],
    ["group", "seek", "g", "--to-latest"],
    ["group", "seek", "g", "--all-topics", "--by-duration", "1h"],
    ["group", "seek", "g", "--all-topics", "--from-file", "f"],
    ["cluster", "purge", "now"],
    ["group", "seek", "g", "--to-latest", "--topic", "t", "--all-topics"],
    ["group", "seek", "g", "--to-latest", "--topic", "t:"],
    ["group", "seek", "g", "--to-latest", "--all-topics", "--dry-run", "--execute"],
    ["consume", ""],
    ["consume", "t", "-p", "-1"],
    ["consume", "t", "-o", "5", "--from-beginning"],
    ["consume", "t", "-o", "5", "--group", "g"],
    ["consume", "t", "-p", "0", "--group", "g"],
    ["consume", "t", "--group", ""],
    ["consume", "t", "--property", "print.key=maybe"],
    ["consume", "t", "--property", "print.key=true", "-f", "%s"],
]
HELP = """
import contextlib, io, json, sys
from minibroker.cli.main import main
told = []
for command in json.loads(sys.argv[1]):
    sys.argv = ["minibroker", *command, "--help"]
    shown = io.StringIO()
    try:
        with contextlib.redirect_stdout(shown):
            main()
    except SystemExit as ended:
        told.append([command, ended.code or 0, shown.getvalue(), sorted(sys.modules)])
print(json.dumps(told))
"""
ENDINGS = """
import json, sys
from minibroker.cli.main import main
codes = []
for command in json.loads(sys.argv[1]):
    sys.argv = ["minibroker", *command]
    try:
        main()
    except SystemExit as ended:
        codes.append(ended.code)
print(json.dumps(codes))
"""


def test_help_loads_nothing_that_it_does_not_need() -> None:
    """Each command explains itself, and neither a broker nor an event loop is loaded for it."""
    done = subprocess.run(
        [sys.executable, "-c", HELP, json.dumps(COMMANDS)],
        env={**os.environ, "COLUMNS": "80"},
        capture_output=True,
        text=True,
        check=True,
    )
    told = json.loads(done.stdout)
    for command, _, shown, _ in told:
        assert ("--bootstrap-server" in shown) == ("MINIBROKER_BOOTSTRAP" in shown), command
    assert [command for command, *_ in told] == COMMANDS
    slow = {"trio", "msgpack", "sqlite3", "crc32c", "minibroker.broker", "minibroker.client"}
    slow |= {"pyspark", "pyarrow", "rich.progress", "minibroker.audit"}
    for command, code, shown, modules in told:
        assert code == 0, command
        assert "Usage:" in shown, command
        assert not re.search(r"<\w", shown), command  # the type of a value
        is_noun = "COMMAND [ARGS]" in shown
        assert is_noun or "Examples:\n    minibroker" in shown, command
        assert "…" not in shown, command  # a name that was cut
        assert max(map(len, shown.splitlines())) <= 80, command
        assert not slow.intersection(modules), command


def commands_of(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Each command with its name, which may have two words."""
    below = getattr(command, "commands", {})
    if not below:
        yield " ".join(path), command
    for name, each in below.items():
        yield from commands_of(each, (*path, name))


def test_each_command_has_examples_that_can_be_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are parsed, not run; and there is none of a command that does not exist."""
    monkeypatch.chdir(tmp_path)
    for name in ("told.jsonl", "minibroker-cluster", "audit-report"):  # these are looked for
        (tmp_path / name).mkdir() if "." not in name else (tmp_path / name).touch()
    commands = dict(commands_of(typer.main.get_command(app_for([]))))
    assert sorted(EXAMPLES) == sorted(commands)
    for name, examples in EXAMPLES.items():
        for example in examples:
            assert example.startswith(name)
            assert len(example) <= 64, example  # with its margin, and a prompt before it
            words = shlex.split(example.removeprefix(name))
            with commands[name].make_context(name, words) as context:
                assert context.args == [], example


def test_a_wrong_command_is_a_usage_error() -> None:
    """What cannot be understood ends with exit code 2, and nothing is done."""
    done = subprocess.run(
        [sys.executable, "-c", ENDINGS, json.dumps(WRONG)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout.splitlines()[-1]) == [2] * len(WRONG)
    told = done.stderr.splitlines()
    assert [line for line in told if not line.startswith("% ERROR: ")] == []
    assert len(told) == len(WRONG)


def test_a_command_without_streams_says_so() -> None:
    """A closed stdin or stdout is one line of an error, and nothing is waited for."""
    for arguments, closed, word in (
        (["produce", "t"], "<&-", "stdin is closed"),
        (["consume", "t"], ">&-", "stdout is closed"),
    ):
        command = shlex.join([sys.executable, "-m", "minibroker.cli", *arguments])
        done = subprocess.run(
            ["sh", "-c", f"{command} {closed}"], stderr=subprocess.PIPE, text=True, check=False
        )
        assert done.returncode == 1
        assert re.fullmatch(f"% ERROR: .*{word}.*\n", done.stderr)


def test_a_name_in_the_environment_that_means_nothing_is_told_once() -> None:
    """A mistyped variable is a warning, not silence."""
    done = subprocess.run(
        [sys.executable, "-m", "minibroker.cli", "config", "show"],
        env={**os.environ, "KAFKA_NUM_PARTITION": "5"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr.count("KAFKA_NUM_PARTITION") == 1


def test_settings_are_shown_as_they_can_be_given() -> None:
    """What `config show` prints is a file that `--config` reads, with the same result."""
    show = [sys.executable, "-m", "minibroker.cli", "config", "show"]
    first = subprocess.run(
        [*show, "--set", "log.segment.bytes=4096"], capture_output=True, text=True, check=True
    )
    assert "log.segment.bytes=4096" in first.stdout.splitlines()
    again = subprocess.run(
        [*show, "--config", "/dev/stdin", "--format", "json"],
        input=first.stdout,
        capture_output=True,
        text=True,
        check=True,
    )
    shown = {row["name"]: row for row in json.loads(again.stdout)}
    assert shown["log.segment.bytes"]["value"] == "4096"
    assert shown["log.segment.bytes"]["source"] == "file"


INTERRUPTED = """
import sys
from minibroker.cli.main import main

class Interrupting:
    def find_spec(self, name, *_):
        if name == sys.argv[0]:
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupting())
sys.argv = sys.argv[1:]  # the command's own name is that of the module
main()
"""


@pytest.mark.parametrize(
    ("module", "command"),
    [
        ("typer", "consume x"),
        ("minibroker.client.blocking", "topic list"),
        ("minibroker.cli.broker.probe", "health"),
    ],
)
def test_an_interrupt_while_a_command_starts_shows_no_traceback(module: str, command: str) -> None:
    """Whatever it imports at that moment; the exit code is that of Ctrl-C."""
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, module, *command.split()],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")
