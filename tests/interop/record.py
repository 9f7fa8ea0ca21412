"""Records what a client and a broker say to each other, for `test_recorded.py` to replay.

    python -m tests.interop.record NAME COMMAND...

The command gets the broker's address and the topic behind its arguments. The topic has one
partition, and the name of the recording; so has the group. A recording has a line for each frame:

    connection > base64     a request
    connection < base64     an answer
"""

import base64
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from minibroker.protocol.kafka import apis
from tests.support.processes import running_broker
from tests.unit.kafka.frames import request

FOLDER: Final = Path(__file__).parent / "recorded"
RUN_S_MAX: Final = 120.0
PREPARED_S: Final = 1.0  # after which the coordinator serves


class Recorder:
    """A proxy in front of a broker: it writes down each frame, in the order in which they pass."""

    def __init__(self, listener: socket.socket, broker: tuple[str, int]) -> None:
        self.lines: list[str] = []
        self._listener = listener
        self._broker = broker
        self._lock = threading.Lock()

    def run(self) -> None:
        """Serve until the listener is closed."""
        number = 0
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            number += 1
            broker = socket.create_connection(self._broker)
            for one, other, way in ((client, broker, ">"), (broker, client, "<")):
                threading.Thread(target=self._pass, args=(number, one, other, way)).start()

    def _pass(self, number: int, one: socket.socket, other: socket.socket, way: str) -> None:
        with suppress(OSError), one.makefile("rb") as stream:
            while head := stream.read(4):
                frame = head + stream.read(int.from_bytes(head, "big"))
                with self._lock:
                    self.lines.append(f"{number} {way} {base64.b64encode(frame[4:]).decode()}\n")
                other.sendall(frame)
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
    with socket.create_server(("127.0.0.1", 0)) as listener, tempfile.TemporaryDirectory() as data:
        address = "{}:{}".format(*listener.getsockname())
        advertised = f"advertised.listeners=PLAINTEXT://{address}"
        settings = ("--set", advertised, "--set", "group.initial.rebalance.delay.ms=0")
        with running_broker(Path(data) / "data", *settings) as broker:
            host, _, port = broker.address.rpartition(":")
            for frame in preparing(name):
                with socket.create_connection((host, int(port))) as connection:
                    connection.sendall(len(frame).to_bytes(4, "big") + frame)
                    assert connection.recv(1)
            time.sleep(PREPARED_S)
            recorder = Recorder(listener, (host, int(port)))
            thread = threading.Thread(target=recorder.run)
            thread.start()
            done = subprocess.run(
                [*command, address, name], capture_output=True, timeout=RUN_S_MAX, check=False
            )
            listener.shutdown(socket.SHUT_RDWR)
            thread.join()
    text = done.stdout.decode() + done.stderr.decode()
    assert done.returncode == 0, text
    return recorder.lines, text


if __name__ == "__main__":
    print(record(sys.argv[1], sys.argv[2:]))
