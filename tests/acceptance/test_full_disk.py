"""A real broker on a small file system that is full to the last byte, with the metadata on it, too:
what it is told to delete is deleted."""

import json
import os
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from time import sleep
from typing import Any

from minibroker.client.blocking import Admin, Producer
from minibroker.client.errors import ClientTimeout
from minibroker.protocol.types import TopicPartition
from tests.support.namespaces import IS_ROOT, NEEDS_NAMESPACES
from tests.support.processes import BrokerProcess, ThisMachine, run_here

MIB = 1 << 20
SETTINGS = {
    "log.segment.bytes": str(MIB),
    "log.retention.check.interval.ms": "200",
    "log.segment.delete.delay.ms": "0",
    "broker.session.timeout.ms": "1500",
}


class SmallDisk(ThisMachine):
    """This machine, with a file system of 16 MB of memory in the place of a directory."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def popen(self, command: Sequence[str], **options: Any) -> "subprocess.Popen[Any]":
        """As `subprocess.Popen`."""
        users = [] if IS_ROOT else ["--user", "--map-root-user"]
        script = f'mount -t tmpfs -o size=16m tmpfs "{self.path}" && exec "$@"'
        wrapped = ["unshare", *users, "--mount", "sh", "-c", script, "broker", *command]
        return subprocess.Popen(wrapped, **options)


def fill(path: Path) -> None:
    """Take the last bytes of a file system."""
    with open(path, "wb", buffering=0) as ballast, suppress(OSError):
        while True:
            ballast.write(bytes(512))


@NEEDS_NAMESPACES
def test_what_makes_room_goes_through(tmp_path: Path) -> None:
    """The broker keeps its lease, the doctor names the disk and nothing else. Settings, trims and
    deletions are written, and give room, after which producers go on."""
    disk = SmallDisk(tmp_path)
    options = [part for each in SETTINGS.items() for part in ("--set", "=".join(each))]
    broker = BrokerProcess(tmp_path / "data", *options, machine=disk)
    try:
        broker.wait_until_ready()
        topics = ("kept", "deleted", "trimmed", "aged")
        limits = {"delivery_timeout_ms": 1_000, "request_timeout_ms": 500}
        with Admin(broker.address) as admin:
            admin.create_topics(*topics)
            with Producer(broker.address, **limits) as producer, suppress(ClientTimeout):
                for topic in topics * 20:
                    producer.send_and_wait(topic, os.urandom(MIB // 2))
            fill(Path(f"/proc/{broker.pid}/root{tmp_path}/ballast"))
            sleep(2)  # longer than its session: it renews its lease
            told = json.loads(run_here("doctor", "-b", broker.address, "--format", "json").stdout)
            [problem] = [each for each in told["findings"] if each["level"] == "problem"]
            assert "has 0.0 GiB free" in problem["what"]
            assert "topic delete" in problem["advice"]
            admin.alter_configs({"aged": {"retention.ms": "1"}})
            [end] = admin.list_offsets([TopicPartition("trimmed", 0)]).values()
            admin.delete_records({TopicPartition("trimmed", 0): end.offset})
            admin.delete_topics("deleted")
            assert sorted(admin.list_topics()) == ["aged", "kept", "trimmed"]

            with Producer(broker.address) as producer:
                producer.send_and_wait("kept", os.urandom(MIB // 2))
        assert "cannot be used" not in broker.output
    finally:
        broker.kill()
