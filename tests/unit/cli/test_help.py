"""The frame of the command line: help, versions, usage errors."""

import json
import subprocess
import sys

COMMANDS = [
    [],
    ["start"],
    ["topic"],
    *(["topic", verb] for verb in ("create", "list", "describe", "alter", "delete")),
    ["produce"],
    ["consume"],
    ["partition", "recover"],
    ["log", "dump"],
    *(["bench", what] for what in ("produce", "consume", "latency")),
    ["config", "show"],
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


def test_help_loads_nothing_that_it_does_not_need() -> None:
    """Each command explains itself, and neither a broker nor an event loop is loaded for it."""
    done = subprocess.run(
        [sys.executable, "-c", HELP, json.dumps(COMMANDS)],
        capture_output=True,
        text=True,
        check=True,
    )
    told = json.loads(done.stdout)
    assert [command for command, *_ in told] == COMMANDS
    slow = {"trio", "msgpack", "sqlite3", "crc32c", "minibroker.broker", "minibroker.client"}
    for command, code, shown, modules in told:
        assert code == 0, command
        assert "Usage:" in shown, command
        assert not slow.intersection(modules), command


def test_a_wrong_command_is_a_usage_error() -> None:
    """What cannot be understood ends with exit code 2, and nothing is done."""
    for arguments in (["begin"], ["topic", "make"], ["start", "--fast"], ["log", "dump"]):
        done = subprocess.run(
            [sys.executable, "-m", "minibroker.cli", *arguments], capture_output=True, check=False
        )
        assert done.returncode == 2, arguments
        assert b"Traceback" not in done.stderr


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
