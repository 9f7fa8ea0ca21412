"""The broker as a process: how it starts, refuses to start, stops, and comes back."""

import os
import re
import shutil
import signal
import socket
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest
import trio

from minibroker.cli.broker.announcements import WIRES
from minibroker.client import Delivery, Producer
from minibroker.protocol.constants import ApiKey
from minibroker.protocol.messages.metadata import MetadataRequest
from tests.support.processes import COMMAND, READY_LINE, BrokerProcess, run_cli, running_broker
from tests.support.wire import Wire
from tests.support.witness import differences, read_all, standard_library

LINES = 60_000


async def test_kill_9_loses_nothing_and_stores_nothing_twice(data_dir: Path) -> None:
    """Killed in the middle of an idempotent producer's work, a broker comes back with each
    acknowledged record exactly once and in order per key."""
    lines = standard_library(LINES)
    delivered = 0
    is_half_done = trio.Event()

    def count(delivery: Delivery) -> None:
        nonlocal delivered
        assert delivery.error is None, delivery.error
        delivered += delivery.record_count
        if delivered > LINES / 2:
            is_half_done.set()

    async def produce(address: str) -> None:
        async with Producer(address, on_delivery=count) as producer:
            for key, values in lines.items():
                for value in values:
                    await producer.send("t", value, key)

    with running_broker(data_dir) as broker:
        address = broker.address
        async with trio.open_nursery() as nursery:
            nursery.start_soon(produce, address)
            await is_half_done.wait()
            broker.kill()
            assert delivered < LINES, "it was killed before the end"
            again = BrokerProcess(data_dir, listen=address)
        try:
            assert list(differences(lines, await read_all(address, "t"))) == []
        finally:
            again.kill()


@pytest.mark.parametrize(
    ("found", "part"),
    [
        ({b"a": [b"1"], b"b": [b"1", b"2"]}, "a: 2 lines sent, 1 read, the first difference at 1"),
        ({b"a": [b"1", b"2", b"2"], b"b": [b"1", b"2"]}, "a: 2 lines sent, 3 read"),
        ({b"a": [b"1", b"2"], b"b": [b"2", b"1"]}, "b: 2 lines sent, 2 read, .* at 0"),
        ({b"a": [b"1", b"2"]}, "b: 2 lines sent, 0 read"),
        ({b"a": [b"1", b"2"], b"b": [b"1", b"2"], b"c": [b""]}, "c: 0 lines sent, 1 read"),
    ],
)
def test_the_demo_sees_every_kind_of_difference(found: dict, part: str) -> None:
    """A lost, doubled, moved or foreign line is a difference."""
    [difference] = differences({b"a": [b"1", b"2"], b"b": [b"1", b"2"]}, found)
    assert re.search(part, difference)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_one_signal_ends_it_in_order(data_dir: Path, number: signal.Signals) -> None:
    """SIGTERM and SIGINT: exit code 0, and the next start finds all without recovery (BRK-02)."""
    with running_broker(data_dir) as broker:
        produced = run_cli("produce", "t", "-b", broker.address, stdin="one\ntwo\n")
        assert produced.returncode == 0, produced.stderr
        broker.send_signal(number)
        assert broker.wait() == 0, broker.output
    assert "Traceback" not in broker.output
    assert (data_dir / "clean-shutdown").exists()
    with running_broker(data_dir) as broker:
        read = run_cli("consume", "t", "-b", broker.address, "--from-beginning", "-e")
        assert read.stdout == "one\ntwo\n"
        assert broker.stop() == 0


def catches_sigterm(process: "subprocess.Popen[str]") -> bool:
    """Whether a process has a handler for SIGTERM (Python has none of its own, but for SIGINT)."""
    status = Path(f"/proc/{process.pid}/status").read_text()
    caught = int(re.search(r"^SigCgt:\t(\w+)$", status, re.MULTILINE)[1], 16)  # type: ignore[index]
    return bool(caught >> (signal.SIGTERM - 1) & 1)


class InterruptedStart(NamedTuple):
    """A `minibroker start` that got a signal `delay_s` after it had its handler."""

    delay_s: float
    code: int
    output: str
    errors: str

    @property
    def has_served(self) -> bool:
        """Whether it answered requests before the signal."""
        return READY_LINE in self.output

    def __str__(self) -> str:
        return (
            f"signal after {self.delay_s:.2f} s: exit code {self.code}\n"
            f"stdout:\n{self.output}\nstderr:\n{self.errors}"
        )


MOMENTS = 12


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_at_any_moment_of_a_start_ends_it_in_order(
    data_dir: Path, number: signal.Signals
) -> None:
    """At moments from when Python runs the command's first lines until it answers, and some time
    longer: exit code 0, and no traceback."""
    if number == signal.SIGTERM:  # with logs to open
        with running_broker(data_dir) as broker:
            assert run_cli("topic", "create", "t", "-p", "50", "-b", broker.address).returncode == 0

    def end_after(delay_s: float) -> InterruptedStart:
        directory = data_dir.with_name(f"{delay_s:.4f}")
        if data_dir.exists():
            shutil.copytree(data_dir, directory)
        command = [*COMMAND, "start", "--data-dir", str(directory), "--listen", "127.0.0.1:0"]
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            while not catches_sigterm(process):
                time.sleep(0.001)
            time.sleep(delay_s)
            process.send_signal(number)
            try:
                output, errors = process.communicate(timeout=30)
            finally:
                process.kill()
        return InterruptedStart(delay_s, process.returncode, output, errors)

    began_at = time.monotonic()
    with running_broker(data_dir.with_name("whole")):
        start_s = time.monotonic() - began_at
    with ThreadPoolExecutor(2) as pool:
        starts = [*pool.map(end_after, [start_s * moment / MOMENTS for moment in range(MOMENTS)])]
        while not starts[-1].has_served:
            assert len(starts) < 100, f"none was served in time; the last: {starts[-1]}"
            starts.append(end_after(starts[-1].delay_s * 1.5))
    failed = [start for start in starts if start.code != 0 or "Traceback" in start.errors]
    assert not failed, "\n\n".join(map(str, failed))
    assert not all(start.has_served for start in starts)


def test_a_second_signal_ends_it_at_once(data_dir: Path) -> None:
    """Two signals: the exit code of the second, and no clean-shutdown mark."""
    with running_broker(data_dir) as broker:
        # Both are there before it can do anything about the first.
        broker.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, broker.pid, os.WSTOPPED)
        broker.send_signal(signal.SIGTERM)
        broker.send_signal(signal.SIGINT)
        broker.send_signal(signal.SIGCONT)
        assert broker.wait() in (128 + signal.SIGTERM, 128 + signal.SIGINT)
    assert not (data_dir / "clean-shutdown").exists()


def fails_to_start(*options: str) -> str:
    """The one line that a broker says which cannot start."""
    done = run_cli("start", *options)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    [line] = [line for line in done.stderr.splitlines() if line.startswith("% ERROR: ")]
    return line


def test_a_taken_port_is_told(data_dir: Path) -> None:
    """Another program listens there: the error names the address and what to do."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        line = fails_to_start("--data-dir", str(data_dir), "--listen", address)
    assert address in line
    assert "--listen" in line


def test_a_data_directory_has_one_broker(data_dir: Path) -> None:
    """The second broker on a directory ends with an error, the first one goes on (BRK-08)."""
    with running_broker(data_dir) as broker:
        line = fails_to_start("--data-dir", str(data_dir), "--listen", "127.0.0.1:0")
        assert "in use" in line
        assert str(data_dir) in line
        assert run_cli("topic", "list", "-b", broker.address).returncode == 0


@pytest.mark.parametrize("place", ["data", "data/below"])
def test_a_file_is_no_data_directory(tmp_path: Path, place: str) -> None:
    """A file in the directory's place, or above it, is told, and stays as it was."""
    (tmp_path / "data").write_text("precious")
    line = fails_to_start("--data-dir", str(tmp_path / place), "--listen", "127.0.0.1:0")
    assert "is a file" in line
    assert (tmp_path / "data").read_text() == "precious"


@pytest.mark.parametrize("name", [".lock", "meta.properties", "metadata.db", "boot-id"])
def test_a_directory_that_cannot_be_written_is_told(data_dir: Path, name: str) -> None:
    """A broker that cannot write one of its files does not start, and says which one.

    A directory in the file's place stops the superuser as well, whom permissions do not.
    """
    (data_dir / name / "occupied").mkdir(parents=True)
    assert name in fails_to_start("--data-dir", str(data_dir), "--listen", "127.0.0.1:0")


@pytest.mark.parametrize(
    ("options", "part"),
    [
        (["--set", "log.segment.byte=1"], "log.segment.bytes"),
        (["--set", "log.segment.bytes=-1"], "log.segment.bytes"),
        (["--flush", "sometimes"], "interval"),
        (["--config", "nowhere.properties"], "nowhere.properties"),
        (["--set", "nonsense"], "NAME=VALUE"),
    ],
)
def test_a_bad_setting_is_a_usage_error(data_dir: Path, options: list[str], part: str) -> None:
    """An unknown name or a value out of range: exit code 2, and what was meant."""
    done = run_cli("start", "--data-dir", str(data_dir), *options)
    assert done.returncode == 2
    assert part in done.stderr
    assert "Traceback" not in done.stderr


def test_it_says_what_an_ack_means(data_dir: Path) -> None:
    """The start prints the flush mode's promise, where it listens, and Kafka's two lines."""
    with running_broker(data_dir, "--flush", "always") as broker:
        assert "survives kill -9 and a power cut" in broker.output
        assert f"Listening on {broker.address}" in broker.lines
        assert f"Clients are told {broker.address}: {WIRES}" in broker.lines
        assert "[KafkaServer id=1] started" in broker.lines
        assert "WARNING" not in broker.output


def test_beyond_this_machine_it_warns(data_dir: Path) -> None:
    """Who listens everywhere says that nothing is authenticated, and tells clients its name:
    0.0.0.0 is no place to connect to."""
    broker = BrokerProcess(data_dir, listen="0.0.0.0:0")
    try:
        broker.wait_until_ready()
        assert "no authentication" in broker.output
        _, _, port = broker.address.rpartition(":")
        told = f"{socket.gethostname()}:{port}"
        assert f"Clients are told {told}: {WIRES}" in broker.lines
        with Wire(f"127.0.0.1:{port}") as wire:
            answer = wire.call(ApiKey.METADATA, MetadataRequest())
        assert [f"{node.host}:{node.port}" for node in answer.brokers] == [told]
    finally:
        broker.kill()


def test_a_store_that_forgets_wants_a_new_directory(data_dir: Path) -> None:
    """With metadata.store=memory: the data of an earlier run would be of no known topic: refused,
    and left as it is (N4)."""
    options = ("--set", "metadata.store=memory:")
    with running_broker(data_dir, *options) as broker:
        assert run_cli("produce", "t", "-b", broker.address, stdin="one\n").returncode == 0
        assert broker.stop() == 0
    line = fails_to_start("--data-dir", str(data_dir), "--listen", "127.0.0.1:0", *options)
    assert "memory:" in line
    assert "--data-dir" in line
    assert (data_dir / "t-0").is_dir()


def test_an_unreachable_broker_is_one_line() -> None:
    """A client command that finds nobody ends with exit code 1 and says whom it asked."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
    done = subprocess.run(
        [*COMMAND, "topic", "list", "-b", address, "--timeout-s", "1"],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("% ERROR: ")
    assert address in done.stderr
    assert "Traceback" not in done.stderr
