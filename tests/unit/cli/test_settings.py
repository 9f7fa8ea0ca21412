"""Where `--config` leads: a file of either kind, or the one in a directory; files for Kafka."""

from pathlib import Path

import pytest

from minibroker.broker.properties import PROPERTIES
from minibroker.cli.kafka_properties import NAMES
from minibroker.cli.settings import read_file
from minibroker.cli.terminal import USAGE, Failure
from tests.support.processes import run_here

# What the files that come with Kafka set: with its own quorum, and with ZooKeeper.
QUORUM = """
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@localhost:9093
listeners=PLAINTEXT://:9092,CONTROLLER://:9093
inter.broker.listener.name=PLAINTEXT
advertised.listeners=PLAINTEXT://localhost:9092,CONTROLLER://localhost:9093
controller.listener.names=CONTROLLER
listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_SSL:SASL_SSL
num.network.threads=3
socket.send.buffer.bytes=102400
socket.request.max.bytes=104857600
log.dirs=/tmp/minibroker-kraft
num.partitions=1
share.coordinator.state.topic.min.isr=1
log.retention.hours=168
"""
ZOOKEEPER = """
broker.id=0
num.io.threads=8
log.dirs=/tmp/minibroker-logs
num.recovery.threads.per.data.dir=1
zookeeper.connect=localhost:2181
group.initial.rebalance.delay.ms=0
"""


@pytest.mark.parametrize(
    ("text", "left_out"),
    [
        (
            QUORUM,
            "controller.quorum.voters, num.network.threads, process.roles,"
            " share.coordinator.state.topic.min.isr, socket.send.buffer.bytes, the listener"
            " CONTROLLER (there is no quorum of controllers to listen for)",
        ),
        (
            ZOOKEEPER,
            "num.io.threads, num.recovery.threads.per.data.dir, zookeeper.connect",
        ),
    ],
)
def test_a_file_for_kafka_starts_a_broker(tmp_path: Path, text: str, left_out: str) -> None:
    """What has no meaning here is one warning, and all else is taken as it is."""
    file = tmp_path / "server.properties"
    file.write_text(text, encoding="utf-8")
    done = run_here("config", "check", str(file))
    assert (done.returncode, done.stdout) == (0, "A broker can be started with these settings.\n")
    assert done.stderr == f"% WARNING: without meaning here, and left out: {left_out}\n"


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("ssl.keystore.location=a", "unknown property 'ssl.keystore.location'"),
        ("authorizer.class.name=a", "unknown property 'authorizer.class.name'"),
        ("delete.topic.enable=false", "unknown property 'delete.topic.enable'"),
        ("num.partition=1", "the nearest is 'num.partitions'"),
        ("sharing=1", "unknown property 'sharing'"),
    ],
)
def test_other_names_stay_errors(tmp_path: Path, line: str, says: str) -> None:
    """A name that may be misspelled, and one that would protect something."""
    file = tmp_path / "server.properties"
    file.write_text(f"{ZOOKEEPER}\n{line}\n", encoding="utf-8")
    done = run_here("config", "check", str(file))
    assert done.returncode == 2
    assert says in done.stdout
    done = run_here("config", "show", "--set", "num.io.threads=8")
    assert done.returncode == 2  # on the command line there is no file that cannot be changed


def test_no_name_is_in_both_lists() -> None:
    """A property that comes to have a meaning here is taken out of the list."""
    ours = {name for row in PROPERTIES.values() for name in (row.name, *dict(row.aliases))}
    assert not ours & NAMES


def test_a_file_is_read_by_its_name(tmp_path: Path) -> None:
    """What ends in .toml is TOML, all else is a properties file, an editor's mark before it too."""
    toml, other = tmp_path / "a.toml", tmp_path / "b.conf"
    toml.write_text("[node]\nid = 3\n", encoding="utf-8")
    other.write_bytes(b"\xef\xbb\xbfnode.id=4\r\n")
    assert read_file(toml) == {"node.id": "3"}
    assert read_file(other) == {"node.id": "4"}
    assert read_file(None) == {}


def test_a_directory_holds_one_file(tmp_path: Path) -> None:
    """server.properties or server.toml in it; neither is in order, both is an error."""
    (tmp_path / "other.properties").write_text("node.id=9", encoding="utf-8")
    assert read_file(tmp_path) == {}
    (tmp_path / "server.toml").write_text("node.id = 1", encoding="utf-8")
    assert read_file(tmp_path) == {"node.id": "1"}
    (tmp_path / "server.properties").write_text("node.id=2", encoding="utf-8")
    with pytest.raises(Failure, match=r"server\.properties and server\.toml; which one holds"):
        read_file(tmp_path)
    (tmp_path / "server.toml").unlink()
    assert read_file(tmp_path) == {"node.id": "2"}


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("nowhere", None, "No such file or directory"),
        ("latin", b"a=\xe4", "is not UTF-8"),
        ("huge", b"# x\n" * (1 << 18) + b"\xe4", "is larger than 1 MiB"),
    ],
)
def test_a_file_that_cannot_be_read_is_told(
    tmp_path: Path, name: str, content: bytes | None, says: str
) -> None:
    """A usage error with the file's name."""
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(Failure, match=f"{path}.*{says}") as raised:
        read_file(path)
    assert raised.value.exit_code == USAGE
