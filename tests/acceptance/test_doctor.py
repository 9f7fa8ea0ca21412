"""`minibroker doctor` against a real broker: what is right, what is for others, what is wrong."""

import json
from pathlib import Path

from minibroker.client.blocking import Admin
from minibroker.protocol.types import TopicPartition
from tests.support.processes import BrokerProcess, free_base_port, run_here

DISK = "% of its disk"  # how full this machine's is does not matter here


def findings(*arguments: str) -> dict[str, list[str]]:
    """What a run says, by level; it fails if there is a problem."""
    done = run_here("doctor", *arguments, "--format", "json")
    assert "Traceback" not in done.stderr
    told = json.loads(done.stdout)
    assert done.returncode == (1 if told["problems"] else 0)
    found: dict[str, list[str]] = {"problem": [], "note": [], "ok": []}
    for finding in told["findings"]:
        assert bool(finding["advice"]) == (finding["level"] != "ok")
        if DISK not in finding["what"]:
            found[finding["level"]].append(finding["what"])
    return found


def test_the_doctor_goes_where_clients_are_sent(tmp_path: Path) -> None:
    """By one listener all is well, and the other is somebody else's; by the other, clients are sent
    where nobody is. What lies here is looked at without the brokers."""
    outside, inside = (free_base_port(2) + number for number in range(2))
    settings = {
        "advertised.listeners": f"OUTSIDE://127.0.0.1:{outside},INSIDE://127.0.0.1:1",
        "broker.session.timeout.ms": "30000",  # or a busy machine has problems of its own
        "num.partitions": "2",
    }
    data = tmp_path / "data"
    broker = BrokerProcess(
        data,
        *(part for name, value in settings.items() for part in ("--set", f"{name}={value}")),
        listen=f"OUTSIDE://127.0.0.1:{outside},INSIDE://127.0.0.1:{inside}",
    )
    try:
        broker.wait_until_ready()
        run_here("topic", "create", "t", "-b", f"127.0.0.1:{outside}")
        found = findings("-b", f"127.0.0.1:{outside}", "--timeout-s", "20")
        refused = "127.0.0.1:1 cannot be asked: Connection refused"
        listener = "INSIDE://127.0.0.1:1, a listener of broker 1"
        assert found["problem"] == []
        assert f"{listener}, cannot be reached from here ({refused})" in found["note"]
        sent = "reached where clients are sent, Kafka's and minibroker's own"
        assert f"{sent}: broker 1 at 127.0.0.1:{outside}" in found["ok"]
        assert "2 partitions: all replicas are in sync" in found["ok"]
        assert "0 groups: all committed offsets lie in their logs" in found["ok"]
        with Admin(f"127.0.0.1:{outside}") as admin:
            admin.commit_offsets("g", {TopicPartition("t", 0): 5})
        found = findings("-b", f"127.0.0.1:{outside}", "--timeout-s", "20")
        described = run_here("group", "describe", "g", "-b", f"127.0.0.1:{outside}").stderr
        [text] = found["problem"]
        assert text.startswith("group g: t-0: the group is at 5, and the log ends at 0: records")
        assert f"% WARNING: {text.removeprefix('group g: ')}\n" in described
        with Admin(f"127.0.0.1:{outside}") as admin:
            admin.delete_groups("g")

        found = findings("-b", f"127.0.0.1:{inside}", "--timeout-s", "20")
        sent = f"clients of broker 1 are sent where it is not: {refused}"
        assert found["problem"] == [sent]

        store = f"sqlite:{data}/metadata.db"
        found = findings("--set", f"log.dirs={data}", "--set", f"metadata.store={store}")
        assert found["problem"] == []
        assert any(text.startswith(store) for text in found["ok"] + found["note"])
    finally:
        broker.kill()
