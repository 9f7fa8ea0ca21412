"""On Windows: the clients import and the commands for clients show their help; brokers are refused.

This is not Windows: the platform's name is changed, and what Windows lacks is taken away, before
anything of minibroker is loaded.
"""

import json
import os
import subprocess
import sys

import pytest

WINDOWS = """
import json, os, signal, socket, sys, sysconfig
import trio, typer  # they ask for the platform themselves, and support Windows

sysconfig.get_config_vars()

missing = {"fcntl", "grp", "posix", "pwd", "resource", "syslog", "termios", "tty"}
for name in missing:
    sys.modules[name] = None  # an import of it fails
for name in ("fork", "geteuid", "getuid", "register_at_fork", "sched_getaffinity", "statvfs"):
    delattr(os, name)
for name in ("SIGALRM", "SIGCONT", "SIGHUP", "SIGKILL", "SIGSTOP", "SIGUSR1", "pthread_kill"):
    delattr(signal, name)
for name in ("AF_UNIX", "TCP_USER_TIMEOUT", "SO_REUSEPORT"):
    delattr(socket, name)
sys.platform = "win32"
"""
CLIENTS = """
import minibroker.client, minibroker.client.blocking
for module in (minibroker.client, minibroker.client.blocking):
    for name in module.__all__:
        getattr(module, name)
"""
COMMAND = """
from minibroker.cli.main import main
sys.argv = ["minibroker", *json.loads(sys.argv[1])]
main()
"""
NEEDS_WSL = (
    "% ERROR: a broker needs Linux or macOS: on Windows, run it in WSL (Windows Subsystem for"
    " Linux); clients work here and can connect to it\n"
)


def run(program: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """A program in a Python that takes its machine for Windows."""
    command = [sys.executable, "-c", WINDOWS + program, json.dumps(arguments)]
    # rich would ask this system for the console of Windows.
    environment = {**os.environ, "TYPER_USE_RICH": "0"}
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=60, check=False
    )


def test_the_clients_import_on_windows() -> None:
    """Every public name of both client packages."""
    done = run(CLIENTS)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    "arguments", [["start"], ["start", "--help"], ["cluster", "up", "-n", "3"]], ids=" ".join
)
def test_a_broker_is_refused_on_windows(arguments: list[str]) -> None:
    """One sentence, which names where it would run."""
    done = run(COMMAND, *arguments)
    assert (done.returncode, done.stdout, done.stderr) == (1, "", NEEDS_WSL)


@pytest.mark.parametrize("arguments", [["--help"], ["topic", "list", "--help"]], ids=" ".join)
def test_commands_show_their_help_on_windows(arguments: list[str]) -> None:
    """The first loads the modules of all commands."""
    done = run(COMMAND, *arguments)
    assert done.returncode == 0, done.stderr
    assert "Usage: " in done.stdout


def test_a_client_says_on_windows_that_nobody_answers() -> None:
    """A command gets as far as the network, and ends as elsewhere."""
    done = run(COMMAND, "topic", "list", "-b", "127.0.0.1:1", "--timeout-s", "0.2")
    assert done.returncode == 1
    assert done.stderr.startswith("% ERROR: ")
    assert done.stderr.count("\n") == 1
