"""`minibroker config check`, and brokers that are set by their environment."""

from pathlib import Path

import pytest

from minibroker.protocol.constants import ApiKey
from minibroker.protocol.messages.metadata import MetadataRequest
from tests.support.processes import BrokerProcess, run_cli, run_here, running_broker
from tests.support.wire import Wire
from tests.unit.config.kafka_example import EXAMPLE

LISTENERS = "PLAINTEXT://127.0.0.1:0,CONTROLLER://127.0.0.1:0,PLAINTEXT_HOST://127.0.0.1:0"


def test_settings_are_checked_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A good configuration is one sentence and exit code 0; of a bad one each problem is a line,
    whichever source it comes from, and the exit code is 2. Nothing is made."""
    file = tmp_path / "broker.toml"
    file.write_text("node.id = 3\nmetadata.store.ca.file = 'nowhere.pem'\n", encoding="utf-8")
    monkeypatch.setenv("KAFKA_NUM_PARTITIONS", "4")
    monkeypatch.chdir(tmp_path)
    good = run_here("config", "check", "--set", "flush=always")
    assert (good.returncode, good.stdout) == (0, "A broker can be started with these settings.\n")
    missing = run_here("config", "check", str(file))
    assert missing.returncode == 2
    [line] = missing.stdout.splitlines()
    assert "metadata.store.ca.file = 'nowhere.pem' is no file" in line
    file.write_text("[node]\nidd = 3\n", encoding="utf-8")
    monkeypatch.setenv("KAFKA_NUM_PARTITIONS", "0")
    bad = run_here("config", "check", str(tmp_path / "broker.toml"), "--set", "flush=sometimes")
    assert bad.returncode == 2
    heads = [line.split(" is not")[0] for line in bad.stdout.splitlines()]
    assert heads == [
        "unknown property 'node.idd'; the nearest is 'node.id'",
        "KAFKA_NUM_PARTITIONS = '0'",
        "flush = 'sometimes'",
    ]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["broker.toml"]
    started = run_cli("start", "--config", str(file))
    assert started.returncode == 2
    assert "`minibroker config check` names all" in started.stderr


@pytest.mark.parametrize(
    "command",
    [
        ("start", "--data-dir", "data"),
        ("config", "show"),
        ("config", "check"),
        ("doctor",),
    ],
    ids=" ".join,
)
def test_no_output_has_a_password(
    command: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A password in the URL of the store is refused, with a word on where it belongs; neither the
    output nor a file that the command writes shows it."""
    monkeypatch.chdir(tmp_path)
    store = "metadata.store=etcd:http://user:hunter2@127.0.0.1:1"
    done = run_here(*command, "--set", store)
    assert done.returncode == 2
    output = done.stdout + done.stderr
    assert "metadata.store.password.file" in output
    written = [path.read_text() for path in tmp_path.rglob("*") if path.is_file()]
    assert "hunter2" not in output + "".join(written)


def test_an_example_for_kafka_comes_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the variables of Kafka's own example (but for its ports): one warning, its addresses
    for clients, and the cluster's id, which must be the same at the next start."""
    for name, value in EXAMPLE.items():
        monkeypatch.setenv(name, value)
    data_dir = tmp_path / "data"
    broker = BrokerProcess(data_dir, listen=LISTENERS)
    try:
        broker.wait_until_ready()
        warnings = [line for line in broker.lines if "WARNING" in line]
        assert len(warnings) == 1
        assert "KAFKA_PROCESS_ROLES" in warnings[0]
        assert "the listener CONTROLLER" in warnings[0]
        outside = next(line.split()[2] for line in broker.lines if line.endswith("_HOST)"))
        with Wire(outside) as wire:
            answer = wire.call(ApiKey.METADATA, MetadataRequest())
        assert [f"{node.host}:{node.port}" for node in answer.brokers] == ["localhost:29092"]
        assert answer.cluster_id == EXAMPLE["CLUSTER_ID"]
        assert broker.stop() == 0
    finally:
        broker.kill()
    monkeypatch.setenv("CLUSTER_ID", "another")
    refused = run_cli("start", "--data-dir", str(data_dir), "--listen", LISTENERS)
    assert refused.returncode == 1
    assert (
        f"'another', and the metadata store is that of the cluster '{EXAMPLE['CLUSTER_ID']}'"
        in (refused.stderr)
    )


def test_a_directory_holds_the_file(tmp_path: Path) -> None:
    """`--config` may name the directory of server.properties, as a container's mount."""
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "server.properties").write_text("node.id=7\n", encoding="utf-8")
    with running_broker(tmp_path / "data", "--config", str(tmp_path / "config")) as broker:
        assert "[KafkaServer id=7] started" in broker.lines
