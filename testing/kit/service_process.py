"""The program under test as a process: the user's own service beside the brokers.

Each start has a process group of its own, which ends with this process (`ProcessGroup`). So what a
wrapper such as `sh -c` or `uv run` has started ends with it, and no service outlives its test.
"""

import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from minibroker.testing.kit.broker_process import ProcessGroup
from minibroker.testing.kit.faults import Fault
from minibroker.testing.kit.settings import HOST
from minibroker.testing.kit.waiting import Look, WaitTimeout, wait_for

READY_S_MAX: Final = 30.0
STOP_S_MAX: Final = 10.0  # as `docker stop` has it
LINES_SHOWN: Final = 20
BOOTSTRAP: Final = "{bootstrap}"
BOOTSTRAP_VARIABLE: Final = "KAFKA_BOOTSTRAP_SERVERS"

# A line of the output (a regular expression), a port on this machine, or a function.
Ready = str | int | Callable[[], object] | None


class ServiceFailed(AssertionError):
    """A service cannot be started, ended before it was ready, or did not stop; the text has its
    last lines."""


@dataclass(frozen=True)
class Program:
    """What to start, and when it counts as ready; `of` checks what a test gives."""

    command: Sequence[str]
    environment: Mapping[str, str]
    cwd: Path | None
    ready: Ready
    timeout_s: float

    @classmethod
    def of(
        cls,
        command: Sequence[str | os.PathLike[str]],
        bootstrap: str,
        *,
        ready: Ready,
        env: Mapping[str, str],
        cwd: str | os.PathLike[str] | None,
        timeout_s: float,
    ) -> Self:
        """See `KafkaCluster.process`. Raises `TypeError` and `ValueError`."""
        words = _words(command, bootstrap)
        _check_ready(ready)
        if cwd is not None and not Path(cwd).is_dir():
            raise ValueError(f"cwd={os.fspath(cwd)!r}: there is no such directory")
        if wrong := [each for each, value in env.items() if not isinstance(value, str)]:
            raise TypeError(f"env: the value of {wrong[0]!r} is not a text")
        environment = {
            **os.environ,
            "PYTHONUNBUFFERED": "1",  # or a line stays in the buffer of a program in Python
            BOOTSTRAP_VARIABLE: bootstrap,
            **{each: value.replace(BOOTSTRAP, bootstrap) for each, value in env.items()},
        }
        return cls(words, environment, None if cwd is None else Path(cwd), ready, timeout_s)


class ServiceProcess:
    """A program that `KafkaCluster.process` has started; it ends with the test.

    `kill`, `stop` and `pause` return a `Fault`, whose undo starts or resumes the service.
    `log_file` has what it prints (stdout and stderr) since its first start.
    """

    def __init__(
        self, name: str, program: Program, log_file: Path, note: Callable[[str], None]
    ) -> None:
        self.name = name
        self.log_file = log_file
        self._program = program
        self._note = note
        self._group: ProcessGroup | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._began_at = 0  # in the log file
        self._kept = b""  # what it has printed, once it has ended for good
        self._is_paused = False
        self._is_end_wanted = False

    def __repr__(self) -> str:
        return f"<ServiceProcess {self.name!r}: {self.state}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    # -- starting and ending

    def start(self) -> None:
        """Start the service if it does not run, and return once it is ready.

        Raises `ServiceFailed` if there is no such command, or it ends before it is ready or is not
        ready in time.
        """
        if self.is_running:
            return
        self._check_port_is_free()
        self._kill_group()
        self._began_at = len(self._output())
        self._group = group = ProcessGroup()
        self._is_end_wanted = False
        try:
            with self.log_file.open("ab") as log:
                self._process = subprocess.Popen(
                    self._program.command,
                    cwd=self._program.cwd,
                    env=self._program.environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    process_group=group.number,
                )
        except OSError as error:
            self._kill_group()
            raise ServiceFailed(f"cannot start {self.name}: {self._why(error)}") from error
        self._note(f"started {self.name}: {' '.join(self._program.command)}")
        if self._program.ready is not None:
            self._wait_until_ready()

    def kill(self) -> Fault:
        """Kill the service and what it has started (`kill -9`); the undo starts it again."""
        self._check_running("kill")
        self._is_end_wanted = True
        self._kill_group()
        return self._fault("kill", self.start)

    def stop(self, timeout_s: float = STOP_S_MAX) -> Fault:
        """Send SIGTERM and wait until the service has ended; the undo starts it again.

        Raises `ServiceFailed` if it does not end within `timeout_s`; it is killed then.
        """
        process = self._check_running("stop")
        self.resume()
        fault = self._fault("stop", self.start)
        self._is_end_wanted = True
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise ServiceFailed(
                f"{self.name} did not end within {timeout_s:g} s of SIGTERM:\n{self.last_lines()}"
            ) from None
        finally:
            self._kill_group()
        return fault

    def restart(self, timeout_s: float = STOP_S_MAX) -> None:
        """Stop the service as `stop` does, and start it again."""
        self.stop(timeout_s).undo()

    def pause(self) -> Fault:
        """Pause the process (SIGSTOP), as a long garbage collection would; the undo resumes it."""
        process = self._check_running("pause")
        process.send_signal(signal.SIGSTOP)
        self._is_paused = True
        return self._fault("pause", self.resume)

    def resume(self) -> None:
        """Resume the process, if it is paused."""
        if self._is_paused and self._process is not None:
            self._process.send_signal(signal.SIGCONT)
            self._is_paused = False
            self._note(f"resume {self.name}")

    def end(self) -> None:
        """Kill the service for good, if it runs, and keep its output. May be repeated."""
        if self.is_running:
            self._is_end_wanted = True
        self._kill_group()
        self._kept = self._output()

    # -- waiting

    def wait(self, timeout_s: float = READY_S_MAX) -> int:
        """Wait until the service ends by itself, and return its exit code, which is negative for a
        signal. Raises `WaitTimeout`."""
        process = self._process
        if process is None:
            raise ValueError(f"{self.name} was never started")
        try:
            code = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise WaitTimeout(
                f"waited {timeout_s:g} s for {self.name} to end; its last lines:\n"
                f"{self.last_lines()}"
            ) from None
        self._kill_group()
        return code

    def wait_for_line(self, pattern: str, timeout_s: float = READY_S_MAX) -> str:
        """Wait until the service has printed a line in which this regular expression is found, and
        return the first such line since its latest start.

        Raises `ServiceFailed` if it ends without, and `WaitTimeout`.
        """
        expression = _expression("pattern", pattern)

        def look() -> Look[str]:
            has_ended = not self.is_running  # before reading: what it said last is then there
            for line in self.lines():
                if expression.search(line):
                    return Look(line, "")
            if has_ended:
                raise ServiceFailed(
                    f"{self.name} {self.state}, and has printed no line with {pattern!r}:\n"
                    f"{self.last_lines()}"
                )
            return Look(None, f"its last lines are\n{self.last_lines()}")

        return wait_for(f"a line of {self.name} with {pattern!r}", look, timeout_s)

    # -- looking at it

    @property
    def pid(self) -> int:
        """The number of its process, or of its latest one."""
        if self._process is None:
            raise ValueError(f"{self.name} was never started")
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether there is a process; one that is paused is."""
        return self._process is not None and self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        """The exit code of the latest process, negative for a signal; None while it runs."""
        return None if self._process is None else self._process.poll()

    @property
    def state(self) -> str:
        """Whether it runs, or how it has ended, as text."""
        if self._process is None:
            return "was never started"
        if self.is_running:
            return "is paused" if self._is_paused else "runs"
        by = "was ended by the test" if self._is_end_wanted else "ended by itself"
        return f"{by}, with exit code {self.exit_code}"

    def lines(self) -> list[str]:
        """Return the lines that it has printed since its latest start."""
        return self._output()[self._began_at :].decode(errors="replace").splitlines()

    def last_lines(self, count: int = LINES_SHOWN) -> str:
        """Return the last lines that it has printed, since its first start."""
        lines = self._output().decode(errors="replace").splitlines()[-count:]
        return "\n".join(lines) or "(it has printed nothing)"

    # -- inside

    def _fault(self, what: str, undo: Callable[[], None]) -> Fault:
        text = f"{what} {self.name}"
        self._note(text)
        return Fault(text, (), undo)

    def _check_running(self, what: str) -> "subprocess.Popen[bytes]":
        if self._process is None or not self.is_running:
            raise ServiceFailed(
                f"cannot {what} {self.name}: it {self.state}; its last lines:\n{self.last_lines()}"
            )
        return self._process

    def _kill_group(self) -> None:
        if self._group is not None:
            self._group.kill()
            self._group = None
            self._is_paused = False
        if self._process is not None:
            if self._process.poll() is None:
                self._process.kill()  # of a program that has left the group
            self._process.wait()

    def _check_port_is_free(self) -> None:
        if isinstance(self._program.ready, int) and _answers(self._program.ready):
            raise ServiceFailed(
                f"cannot start {self.name}: another process listens on port {self._program.ready}"
            )

    def _wait_until_ready(self) -> None:
        ready = self._program.ready
        expression = re.compile(ready) if isinstance(ready, str) else None
        deadline = time.monotonic() + self._program.timeout_s
        why = ""
        while True:
            has_ended = not self.is_running
            is_ready = False
            try:
                if expression is not None:
                    is_ready = any(map(expression.search, self.lines()))
                elif isinstance(ready, int):
                    is_ready = _answers(ready)
                elif callable(ready):
                    is_ready = bool(ready())
            except Exception as error:  # what the user's function raises while nothing answers
                why = f" (ready() raised {type(error).__name__}: {error})"
            if is_ready and (expression is not None or not has_ended):
                return
            if has_ended:
                raise ServiceFailed(
                    f"{self.name} ended with exit code {self.exit_code} before it was ready:\n"
                    f"{self.last_lines()}"
                )
            if time.monotonic() > deadline:
                raise ServiceFailed(
                    f"{self.name} was not ready within {self._program.timeout_s:g} s: waited for"
                    f" {_wanted(ready)}{why}; its last lines:\n{self.last_lines()}"
                )
            time.sleep(0.01)

    def _output(self) -> bytes:
        try:
            return self.log_file.read_bytes()
        except FileNotFoundError:  # before the first start, or when the cluster has ended
            return self._kept

    def _why(self, error: OSError) -> str:
        command = self._program.command[0]
        if isinstance(error, FileNotFoundError):
            return f"there is no command {command!r}; give its path, or a name on PATH"
        if isinstance(error, PermissionError):
            return f"{command!r} cannot be executed; is it a program?"
        return str(error)


class ServiceProcesses:
    """The services that a cluster's current test has started."""

    def __init__(self, note: Callable[[str], None]) -> None:
        self.current: list[ServiceProcess] = []
        self._note = note
        self._count = 0

    def start(self, program: Program, name: str, root: Path) -> ServiceProcess:
        """Start one; see `KafkaCluster.process`. `root` is the cluster's directory."""
        self._count += 1
        name = name or f"{_stem(program.command)}-{self._count}"
        file_name = re.sub(r"[^A-Za-z0-9._-]+", "-", name)
        log_file = root / f"process-{self._count}-{file_name}.log"
        service = ServiceProcess(name, program, log_file, self._note)
        self.current.append(service)
        service.start()
        return service

    def begin_test(self) -> None:
        """Forget those of the test before."""
        self.end()
        self.current.clear()

    def end(self) -> None:
        """End all."""
        for service in self.current:
            service.end()


def _words(command: object, bootstrap: str) -> list[str]:
    """Return a command as words, with the addresses of the brokers in them."""
    if isinstance(command, str | bytes | os.PathLike) or not isinstance(command, Sequence):
        raise TypeError(
            f"command={command!r}: expected a list of words, such as"
            ' [sys.executable, "service.py", "{bootstrap}"]'
        )
    if not command:
        raise ValueError("the command is empty: name the program to start")
    if wrong := [each for each in command if not isinstance(each, str | os.PathLike)]:
        raise TypeError(f"the command has {wrong[0]!r}, which is no text: write str() around it")
    return [str(os.fspath(each)).replace(BOOTSTRAP, bootstrap) for each in command]


def _stem(words: Sequence[str]) -> str:
    """Return a short name of a program: that of the script, or of the command."""
    scripts = [each for each in words if each.endswith(".py")]
    return Path(scripts[0] if scripts else words[0]).stem


def _check_ready(ready: object) -> None:
    if isinstance(ready, str):
        _expression("ready", ready)
    elif isinstance(ready, int) and not isinstance(ready, bool):
        if not 0 < ready < 65_536:
            raise ValueError(f"ready={ready}: a port is a number from 1 to 65535")
    elif ready is not None and not callable(ready):
        raise TypeError(
            f"ready={ready!r}: expected a regular expression for a line, a port, or a function"
        )


def _expression(name: str, pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ValueError(f"{name}={pattern!r} is not a regular expression: {error}") from None


def _wanted(ready: Ready) -> str:
    if isinstance(ready, str):
        return f"a line with {ready!r}"
    return f"port {ready}" if isinstance(ready, int) else "ready() to return true"


def _answers(port: int) -> bool:
    try:
        with socket.create_connection((HOST, port), timeout=1):
            return True
    except OSError:
        return False
