"""Records what a client and a broker say to each other, for `test_recorded.py` to replay.

    python -m tests.interop.record NAME COMMAND...

The command gets the broker's address and the topic behind its arguments. The topic has one
partition, and the name of the recording; so has the group. A recording has a line for each frame:

    connection > base64     a request
    connection < base64     an answer
"""

import base64
import itertools
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Final

from minibroker.protocol.constants import PREFACE
from minibroker.protocol.kafka import apis
from tests.support.processes import running_broker
from tests.unit.kafka.frames import request

FOLDER: Final = Path(__file__).parent / "recorded"
RUN_S_MAX: Final = 120.0
RECEIVE_BYTES: Final = 65_536
PREPARED_S: Final = 1.0  # after which the coordinator serves


class Recorder:
    """A proxy in front of a broker: it writes down each frame, in the order in which they pass.

    Its address is there before it serves, because the broker advertises it.
    """

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.broker = ""  # its address, once `start` was called
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = "{}:{}".format(*self._listener.getsockname())
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def start(self, broker: str) -> str:
        """Serve the broker's clients until `close`. Return the address that they use."""
        self.broker = broker
        host, _, port = broker.rpartition(":")
        self._thread = threading.Thread(target=self._serve, args=((host, int(port)),))
        self._thread.start()
        return self.address

    def close(self) -> None:
        """Accept no more connections."""
        self._listener.shutdown(socket.SHUT_RDWR)
        if self._thread is not None:
            self._thread.join()
        self._listener.close()

    def _serve(self, broker: tuple[str, int]) -> None:
        for number in itertools.count(1):
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._connect, args=(number, client, broker)).start()

    def _connect(self, number: int, client: socket.socket, address: tuple[str, int]) -> None:
        with suppress(OSError), client, socket.create_connection(address) as broker:
            start = client.recv(len(PREFACE), socket.MSG_PEEK | socket.MSG_WAITALL)
            # Brokers talk to each other on a wire of their own, which is not recorded.
            how = _pass_on if start == PREFACE else partial(self._pass, number)
            answers = threading.Thread(target=how, args=(broker, client, "<"))
            answers.start()
            how(client, broker, ">")
            answers.join()

    def _pass(self, number: int, one: socket.socket, other: socket.socket, way: str) -> None:
        with suppress(OSError), one.makefile("rb") as stream:
            while head := stream.read(4):
                frame = head + stream.read(int.from_bytes(head, "big"))
                with self._lock:
                    self.lines.append(f"{number} {way} {base64.b64encode(frame[4:]).decode()}\n")
                other.sendall(frame)
        with suppress(OSError):
            other.shutdown(socket.SHUT_RDWR)


def _pass_on(one: socket.socket, other: socket.socket, _: str) -> None:
    with suppress(OSError):
        while data := one.recv(RECEIVE_BYTES):
            other.sendall(data)
    with suppress(OSError):
        other.shutdown(socket.SHUT_RDWR)


def preparing(name: str) -> list[bytes]:
    """The frames of requests that make the topic, and a coordinator for the group."""
    topic = apis.METADATA.request.of("topics").make(name=name)
    making = request(apis.METADATA, 4, [topic], True)
    return [bytes(making), bytes(request(apis.FIND_COORDINATOR, 0, name))]


def record(name: str, command: list[str], folder: Path = FOLDER) -> str:
    """Run a command against a broker, write its recording, and return its output."""
    lines, text = recorded(name, command)
    (folder / f"{name}.txt").write_text("".join(lines), encoding="ascii")
    return text


def recorded(name: str, command: list[str]) -> tuple[list[str], str]:
    """Run a command against a broker. Return the lines of its recording, and its output."""
    with closing(Recorder()) as recorder, tempfile.TemporaryDirectory() as data:
        advertised = f"advertised.listeners=PLAINTEXT://{recorder.address}"
        settings = ("--set", advertised, "--set", "group.initial.rebalance.delay.ms=0")
        with running_broker(Path(data) / "data", *settings) as broker:
            host, _, port = broker.address.rpartition(":")
            for frame in preparing(name):
                with socket.create_connection((host, int(port))) as connection:
                    connection.sendall(len(frame).to_bytes(4, "big") + frame)
                    assert connection.recv(1)
            time.sleep(PREPARED_S)
            recorder.start(broker.address)
            text = run([*command, recorder.address, name])
        return recorder.lines, text


def run(command: Sequence[str]) -> str:
    """Run a command to its end, and return its output."""
    done = subprocess.run(command, capture_output=True, timeout=RUN_S_MAX, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr).decode()
    return done.stdout.decode()


if __name__ == "__main__":
    print(record(sys.argv[1], sys.argv[2:]))
