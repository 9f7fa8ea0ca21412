"""The program under test as a process: ready, killed, stopped, started again, and never left."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from minibroker.testing import KafkaCluster, ServiceFailed, ServiceProcess, WaitTimeout
from minibroker.testing.kit.service_process import Program, ServiceProcesses
from tests.kit.inner import Inner

BOOTSTRAP = "127.0.0.1:1,127.0.0.1:2"
WITHIN_S = 20
STAYS = "; import time; print('ready', flush=True); time.sleep(600)"


class Services:
    """Services without a cluster."""

    def __init__(self, root: Path) -> None:
        self.noted: list[str] = []
        self._services = ServiceProcesses(self.noted.append)
        self._root = root

    def start(self, code: str, **options: Any) -> ServiceProcess:
        """Start a program in Python."""
        return self.run([sys.executable, "-c", code], **options)

    def run(self, command: Any, **options: Any) -> ServiceProcess:
        """Start a command."""
        name = options.pop("name", "")
        given: dict[str, Any] = {"ready": "ready", "env": {}, "cwd": None, "timeout_s": WITHIN_S}
        program = Program.of(command, BOOTSTRAP, **given | options)
        return self._services.start(program, name, self._root)

    def end(self) -> None:
        """End all."""
        self._services.end()


@pytest.fixture
def services(tmp_path: Path) -> Iterator[Services]:
    """A place for services, which end with the test."""
    made = Services(tmp_path)
    yield made
    made.end()


def is_alive(pid: int) -> bool:
    """Whether there is such a process, which is no zombie."""
    shown = subprocess.run(
        ["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False
    )
    return bool(shown.stdout.strip()) and not shown.stdout.startswith("Z")


def test_the_brokers_addresses_reach_the_service(services: Services) -> None:
    """By its environment, and in the place of {bootstrap} in arguments and variables."""
    code = "import os, sys; print(sys.argv[1], os.environ['KAFKA_BOOTSTRAP_SERVERS'], "
    code += "os.environ['AT'], flush=True)"
    command = [sys.executable, "-c", code + STAYS, "--at={bootstrap}"]
    service = services.run(command, env={"AT": "kafka://{bootstrap}"}, name="shop")
    assert service.lines()[0] == f"--at={BOOTSTRAP} {BOOTSTRAP} kafka://{BOOTSTRAP}"
    assert service.name == "shop"
    assert repr(service) == "<ServiceProcess 'shop': runs>"
    assert services.noted[0].startswith("started shop: ")


def test_it_is_killed_stopped_and_started_again(services: Services) -> None:
    """Its output is that of all starts; `lines` has that of the latest."""
    code = "import signal, sys; signal.signal(15, lambda *_: (print('bye'), sys.exit(3)))" + STAYS
    service = services.start(code, name="shop")
    first = service.pid
    with service.kill():
        assert (service.is_running, service.exit_code) == (False, -9)
        assert service.state == "was ended by the test, with exit code -9"
    assert service.is_running
    assert service.pid != first
    assert service.lines() == ["ready"]
    stopped = service.stop()
    assert service.exit_code == 3
    assert service.last_lines() == "ready\nready\nbye"
    stopped.undo()
    service.restart()
    with service.pause():
        assert service.state == "is paused"
    assert service.state == "runs"
    what = [text.split(":")[0] for text in services.noted]
    one = ["started shop"]
    stops = 2 * ["stop shop", "started shop"]
    expected = [*one, "kill shop", *one, *stops, "pause shop", "resume shop"]
    assert what == expected


def test_what_it_has_started_ends_with_it(services: Services) -> None:
    """As the program behind a shell or `uv run`."""
    service = services.run(["/bin/sh", "-c", "sleep 600 & echo pid $!; echo ready; wait"])
    child = int(service.wait_for_line(r"^pid (\d+)").split()[1])
    assert is_alive(child)
    service.kill()
    deadline = time.monotonic() + WITHIN_S
    while is_alive(child):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_it_is_ready_when_a_port_or_a_function_says_so(services: Services) -> None:
    """What the function raises counts as not yet."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with pytest.raises(ServiceFailed, match=f"another process listens on port {port}"):
            services.start("pass", ready=port)
    code = f"import socket; s = socket.create_server(('127.0.0.1', {port}))" + STAYS
    assert services.start(code, ready=port).is_running
    calls = iter([OSError("refused"), False, True])

    def is_ready() -> bool:
        found = next(calls)
        if isinstance(found, OSError):
            raise found
        return found

    assert services.start("0" + STAYS, ready=is_ready).is_running


def test_a_service_may_end_by_itself(services: Services) -> None:
    """`wait` returns its exit code; waiters for lines do not wait on."""
    service = services.start("print('ready'); raise SystemExit(4)")
    assert service.wait(WITHIN_S) == 4
    assert service.state == "ended by itself, with exit code 4"
    with pytest.raises(ServiceFailed, match="has printed no line with 'never':\nready"):
        service.wait_for_line("never", WITHIN_S)
    with pytest.raises(ServiceFailed, match=r"cannot kill .*: it ended by itself"):
        service.kill()
    long = services.start("0" + STAYS)
    with pytest.raises(WaitTimeout, match=r"waited 0 s for .* to end; its last lines:\nready"):
        long.wait(0)
    with pytest.raises(WaitTimeout, match="with 'never'; now: its last lines are\nready"):
        long.wait_for_line("never", 0)


def test_a_service_that_does_not_stop_is_killed(services: Services) -> None:
    """And the error shows its last lines."""
    service = services.start("import signal; signal.signal(15, signal.SIG_IGN)" + STAYS)
    with pytest.raises(ServiceFailed, match=r"did not end within 0.1 s of SIGTERM:\nready"):
        service.stop(timeout_s=0.1)
    assert service.exit_code == -signal.SIGKILL


NOT_STARTED = {
    "no command": (["no-such-command"], {}, "there is no command 'no-such-command'; give its path"),
    "no program": ([__file__], {}, "cannot be executed; is it a program"),
    "ended": (
        [sys.executable, "-c", "print('no broker'); exit(7)"],
        {},
        "ended with exit code 7 before it was ready:\nno broker",
    ),
    "silent": (["sleep", "600"], {"timeout_s": 0.05}, "waited for a line with 'ready'; its last"),
    "raises": (
        ["sleep", "600"],
        {"timeout_s": 0.05, "ready": lambda: 1 / 0},
        r"ready\(\) to return true \(ready\(\) raised ZeroDivisionError: division by zero\)",
    ),
}


@pytest.mark.parametrize("name", NOT_STARTED)
def test_a_service_that_cannot_be_started(services: Services, name: str) -> None:
    """The error says why, and what the service has printed."""
    command, options, said = NOT_STARTED[name]
    with pytest.raises(ServiceFailed, match=said):
        services.run(command, **options)


WRONG = {
    "text": ("python service.py", {}, TypeError, "expected a list of words"),
    "empty": ([], {}, ValueError, "the command is empty"),
    "number": (["sleep", 5], {}, TypeError, r"has 5, which is no text: write str\(\)"),
    "port": (["sleep"], {"ready": 0}, ValueError, "a port is a number from 1 to 65535"),
    "ready": (["sleep"], {"ready": 1.5}, TypeError, "expected a regular expression for a line"),
    "pattern": (["sleep"], {"ready": "("}, ValueError, "is not a regular expression: missing"),
    "cwd": (["sleep"], {"cwd": "/no/such"}, ValueError, "there is no such directory"),
    "env": (["sleep"], {"env": {"A": 1}}, TypeError, "the value of 'A' is not a text"),
}


@pytest.mark.parametrize("name", WRONG)
def test_arguments_that_cannot_be_meant(services: Services, name: str) -> None:
    """Are refused before anything is started."""
    command, options, error, said = WRONG[name]
    with pytest.raises(error, match=said):
        services.run(command, **options)
    assert services.noted == []


def test_a_service_ends_with_its_test_and_is_in_the_report(inner: Inner) -> None:
    """Also one that nothing was done to; the next test does not see it."""
    inner.write(
        """
        import os, sys
        from pathlib import Path

        CODE = "import os, time; print('serving', os.getpid()); time.sleep(600)"

        def test_fails(kafka_broker):
            service = kafka_broker.process([sys.executable, "-c", CODE], ready="serving")
            Path("pid").write_text(str(service.pid))
            assert False, "as it must"

        def test_passes(kafka_broker):
            assert kafka_broker.processes == ()
            try:
                os.kill(int(Path("pid").read_text()), 0)
            except ProcessLookupError:
                return
            assert False, "the service runs on"
        """
    )
    session = inner.run()
    assert "1 failed, 1 passed" in session.text, session.text
    assert re.search(r"The last lines of python[\w.-]*, which runs:\nserving \d+\n", session.text)
    assert "started python" in session.text
    assert not inner.left_processes()


def test_a_service_ends_with_a_cluster_without_fixtures(kafka_broker: KafkaCluster) -> None:
    """And `end_processes` ends those of a test at once."""
    with kafka_broker.process([sys.executable, "-c", "0" + STAYS], ready="ready") as service:
        pid = service.pid
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert service.last_lines() == "ready"
