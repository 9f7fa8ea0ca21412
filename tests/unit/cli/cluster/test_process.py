"""Whether a broker's process is there, told from its pid file, its command line and its marks.

The processes are real and do nothing; their command line is that of a broker.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from subprocess import PIPE

import pytest

from minibroker.cli.cluster.layout import Layout
from minibroker.cli.cluster.process import Broker, Launch, State, end, wait_for
from minibroker.cli.terminal import Failure
from tests.support.processes import free_base_port

# Ends at SIGTERM by a handler of its own, as a broker does: standing still, it would not run it.
IDLE = """
import signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit())
print("ready", flush=True)
signal.pause()
"""


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    """A cluster of twelve brokers, so that one name begins like another."""
    return Layout(tmp_path.resolve(), 12, 7000, {})


@pytest.fixture
def processes() -> Iterator[list[subprocess.Popen]]:
    """Those that are put here are killed in the end."""
    started: list[subprocess.Popen] = []
    yield started
    for process in started:
        process.kill()
        process.wait()


def posing(layout: Layout, node_id: int) -> subprocess.Popen:
    """An idle process that looks like a broker; its number stands in a pid file."""
    # What stands behind `-c TEXT` are its arguments, and seen in the command line.
    seems = ["-m", "minibroker.cli", "start", "--data-dir", str(layout.data_dir(node_id))]
    process = subprocess.Popen([sys.executable, "-c", IDLE, *seems, "--set", "a=b"], stdout=PIPE)
    assert process.stdout
    with process.stdout as output:
        assert output.readline() == b"ready\n"
    layout.pid_file(node_id).write_text(f"{process.pid}\n")
    return process


def test_a_process_is_known_by_its_command_line(
    layout: Layout, processes: list[subprocess.Popen]
) -> None:
    """The pid file of a broker counts only if that process was started for its directory: not one
    of another program, of another broker, of nobody, and not nonsense."""
    processes.append(posing(layout, 1))
    assert Broker(layout, 1).inspect() == (processes[0].pid, State.RUNNING)
    processes.append(posing(layout, 10))
    layout.pid_file(1).write_text(f"{processes[1].pid}\n")
    assert Broker(layout, 1).inspect() == (None, State.NEW)
    for text in (f"{os.getpid()}\n", "0\n", "-1\n", "x", ""):
        layout.pid_file(1).write_text(text)
        assert Broker(layout, 1).inspect() == (None, State.NEW)


def test_a_paused_broker_is_paused_and_a_zombie_is_gone(
    layout: Layout, processes: list[subprocess.Popen]
) -> None:
    """SIGSTOP and SIGCONT are seen; so is the end, also while nobody has collected the process."""
    processes.append(posing(layout, 1))
    broker = Broker(layout, 1)
    assert broker.send(signal.SIGSTOP)
    assert wait_for(lambda: broker.state is State.PAUSED, 5)
    assert broker.send(signal.SIGCONT)
    assert wait_for(lambda: broker.state is State.RUNNING, 5)
    assert broker.send(signal.SIGKILL)
    assert wait_for(lambda: not broker.state.is_alive, 5)
    assert not broker.send(signal.SIGKILL)


def test_how_a_run_ended_is_in_the_directory(layout: Layout) -> None:
    """A broker that is gone has never run, was stopped, or ended without a clean stop."""
    broker = Broker(layout, 3)
    assert broker.state is State.NEW
    layout.data_dir(3).mkdir()
    (layout.data_dir(3) / "meta.properties").write_text("version=1\n")
    assert broker.state is State.ENDED
    (layout.data_dir(3) / "clean-shutdown").touch()
    assert broker.state is State.STOPPED


def test_all_are_told_to_end_at_once(layout: Layout, processes: list[subprocess.Popen]) -> None:
    """Those that run and the one that is paused end; a stale pid file is taken away with them."""
    processes += [posing(layout, 1), posing(layout, 2)]
    brokers = [Broker(layout, node_id) for node_id in (1, 2, 3)]
    brokers[1].send(signal.SIGSTOP)
    assert end(brokers, 5) == []
    assert not layout.pid_file(1).exists()
    assert not layout.pid_file(2).exists()


def launched(layout: Layout, code: str) -> Launch:
    """A broker that only says something, behind what an earlier run has left in its log."""
    broker = Broker(layout, 2)
    broker.log_file.write_text("[KafkaServer id=2] started\n% ERROR: of an earlier run\n")
    begin = broker.log_file.stat().st_size
    with broker.log_file.open("ab") as log:
        process = subprocess.Popen([sys.executable, "-c", code], stdout=log, stderr=log)
    return Launch(broker, process, begin)


def test_ready_is_what_this_run_has_said(layout: Layout) -> None:
    """The line of an earlier run in the same log does not count; that of this run does."""
    launch = launched(layout, IDLE)
    assert not launch.is_ready()
    with launch.broker.log_file.open("a") as log:
        log.write("[KafkaServer id=2] star")
        log.flush()
        assert not launch.is_ready()
        log.write("ted\n")
    assert launch.is_ready()
    os.kill(launch.pid, signal.SIGKILL)
    assert wait_for(lambda: _has_ended(launch), 5)


def _has_ended(launch: Launch) -> bool:
    try:
        launch.is_ready()
    except Failure:
        return True
    return False


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("print('% ERROR: no room'); print('later'); exit(1)", "with exit code 1.*: no room"),
        ("print('one'); print('two'); exit(3)", "with exit code 3.*: two"),
        ("import os; os.kill(os.getpid(), 9)", "by SIGKILL.*: without a word"),
    ],
)
def test_a_broker_that_ends_while_it_starts_is_an_error(
    layout: Layout, code: str, told: str
) -> None:
    """The error says how it ended, what it said last, and where its log is."""
    launch = launched(layout, code)
    with pytest.raises(Failure, match=f"broker 2 ended {told} .*broker-2.log"):
        wait_for(launch.is_ready, 10)


def test_modules_where_the_command_is_given_are_not_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user's file that is named like a module of the library does not end a broker."""
    (tmp_path / "secrets.py").write_text("raise SystemExit('imported')")
    monkeypatch.chdir(tmp_path)
    layout = Layout(tmp_path / "cluster", 1, free_base_port(1), {})
    layout.data_dir(1).mkdir(parents=True)
    launch = Broker(layout, 1).spawn()
    try:
        assert wait_for(launch.is_ready, 30)
    finally:
        assert not end([launch.broker], 30)
        assert wait_for(lambda: _has_ended(launch), 5)  # it has no command line a moment before
