"""Sends the frames of a failed fuzz again, each on a connection of its own, to a new broker."""

import json
import shutil
import socket
import time
from pathlib import Path

from minibroker.protocol.constants import PREFACE
from tests.fuzz.run import create_topics, running_brokers

ANSWER_S_MAX = 0.3


def replay(path: Path, place: Path) -> int:
    """Print the first frame that ends the broker or makes it print a traceback; 1 if one does."""
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    shutil.rmtree(place / "replay", ignore_errors=True)
    with running_brokers(place / "replay", 1) as [broker]:
        create_topics([broker.address])
        for row in rows:
            _send(broker.address, row["wire"], bytes.fromhex(row["data"]))
            if not broker.is_running or "Traceback" in broker.output:
                time.sleep(ANSWER_S_MAX)
                print(f"{row['what']}\n{row['data'][:2000]}\n{broker.output[-6000:]}")
                return 1
    print("none of these frames did harm by itself")
    return 0


def _send(address: str, wire: str, data: bytes) -> None:
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), ANSWER_S_MAX) as connection:
            connection.sendall(PREFACE + data if wire == "msgpack" else data)
            connection.recv(1000)
    except OSError:
        return  # it waits, or it was closed: the broker is looked at instead
