"""Apache Kafka as processes of this machine, and the programs that come with it.

`make bench-kafka` measures its brokers; tests run its tools, Kafka Streams, Kafka Connect and
MirrorMaker against minibroker. The libraries come from Maven Central, once, and stay in `build/`.
Java and Maven have to be there.

Each node is broker and controller, with Kafka's own defaults but for what makes a cluster of three
on one machine: addresses, replication factors, and no delay of a group's first rebalance, which
minibroker is started without, too.
"""

import base64
import shutil
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.support.processes import free_base_port

VERSION = "4.1.0"
ROOT = Path(__file__).parents[2]
ARTIFACTS = (
    "kafka_2.13",
    "kafka-tools",
    "kafka-streams",
    "connect-runtime",
    "connect-file",
    "connect-mirror",
)
LIBRARIES = ROOT / "build" / f"kafka-and-tools-{VERSION}"
HEAP = ("-Xms512M", "-Xmx512M")
LOG_LEVEL = "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn"
READY_S_MAX = 180.0  # three of them on two busy cores
DEPENDENCY = (
    "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version></dependency>"
)
DEPENDENCIES = "\n".join(
    (
        *(DEPENDENCY.format("org.apache.kafka", name, VERSION) for name in ARTIFACTS),
        DEPENDENCY.format("org.slf4j", "slf4j-simple", "1.7.36"),
    )
)
POM = f"""
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>tests</groupId><artifactId>kafka</artifactId><version>1</version>
  <dependencies>
{DEPENDENCIES}
  </dependencies>
</project>
"""


class CannotRun(Exception):
    """Apache Kafka cannot be had here; the text says what is missing."""


def fetch() -> None:
    """See that the libraries are there. Raises `CannotRun`."""
    for program in ("java", "mvn"):
        if shutil.which(program) is None:
            raise CannotRun(f"Apache Kafka needs {program}: install Java 17 and Maven")
    if LIBRARIES.exists():
        return
    with TemporaryDirectory() as directory:
        pom = Path(directory) / "pom.xml"
        pom.write_text(POM)
        partial = Path(directory) / "libraries"
        command = ["mvn", "-q", "-B", "-f", str(pom), "dependency:copy-dependencies"]
        command += [f"-DoutputDirectory={partial}", "-DincludeScope=runtime"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise CannotRun(f"Maven could not bring Apache Kafka {VERSION}:\n{done.stdout}")
        LIBRARIES.parent.mkdir(exist_ok=True)
        shutil.move(partial, LIBRARIES)


def java(*arguments: str, heap: tuple[str, ...] = ("-Xmx256M",)) -> list[str]:
    """Return the command of a Java program with the libraries. `arguments` begin with its class, or
    with its one source file."""
    return ["java", *heap, LOG_LEVEL, "-cp", f"{LIBRARIES}/*", *arguments]


class ApacheKafka:
    """Nodes 1 to `count`, started when it is made; with the face of `ClusterProcesses`. `settings`
    are laid over the others. `advertised` says for a node's address which one clients are told."""

    def __init__(
        self,
        root: Path,
        count: int,
        settings: Mapping[str, str],
        advertised: Callable[[str], str] = str,
    ) -> None:
        base = free_base_port(2 * count)
        self._addresses = [f"127.0.0.1:{base + node}" for node in range(count)]
        self._root = root
        self._settings = settings
        self._advertised = advertised
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        voters = [f"{node + 1}@127.0.0.1:{base + count + node}" for node in range(count)]
        cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        for node in range(1, count + 1):
            path = root / f"{node}.properties"
            path.write_text(self._properties(node, count, voters))
            # Joined by "=": an id may begin with "-".
            options = ("format", f"--cluster-id={cluster_id}", "-c", str(path))
            command = java("kafka.tools.StorageTool", *options)
            subprocess.run(command, capture_output=True, check=True)
            self._processes[node] = self._start(node)

    @property
    def addresses(self) -> str:
        """All nodes, for a client's `bootstrap.servers`."""
        return ",".join(self._addresses)

    def kill(self, node: int) -> None:
        """kill -9."""
        process = self._processes.pop(node)
        process.send_signal(signal.SIGKILL)
        process.wait()

    def start(self, node: int) -> None:
        """Start a node again that was killed."""
        self._processes[node] = self._start(node)

    def close(self) -> None:
        """End all of them."""
        for node in list(self._processes):
            self.kill(node)

    def _properties(self, node: int, count: int, voters: list[str]) -> str:
        copies = min(3, count)
        controller = voters[node - 1].partition("@")[2]
        address = self._addresses[node - 1]
        return "\n".join(
            (
                "process.roles=broker,controller",
                f"node.id={node}",
                f"controller.quorum.voters={','.join(voters)}",
                f"listeners=PLAINTEXT://{address},CONTROLLER://{controller}",
                f"advertised.listeners=PLAINTEXT://{self._advertised(address)}",
                "controller.listener.names=CONTROLLER",
                "inter.broker.listener.name=PLAINTEXT",
                f"log.dirs={self._root / str(node)}",
                f"offsets.topic.replication.factor={copies}",
                f"transaction.state.log.replication.factor={copies}",
                f"transaction.state.log.min.isr={min(2, copies)}",
                f"default.replication.factor={copies}",
                f"min.insync.replicas={min(2, copies)}",
                "group.initial.rebalance.delay.ms=0",
                *(f"{name}={value}" for name, value in self._settings.items()),
            )
        )

    def _start(self, node: int) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            java("kafka.Kafka", str(self._root / f"{node}.properties"), heap=HEAP),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )


def _wait_until_ready(kafka: ApacheKafka, count: int) -> None:
    from confluent_kafka import KafkaException
    from confluent_kafka.admin import AdminClient

    admin = AdminClient({"bootstrap.servers": kafka.addresses, "log_level": 0})
    deadline = time.monotonic() + READY_S_MAX
    while True:
        try:
            if len(admin.list_topics(timeout=1).brokers) == count:
                return
        except KafkaException:
            pass
        assert time.monotonic() < deadline, "Apache Kafka does not answer"


@contextmanager
def running_kafka(
    count: int,
    settings: Mapping[str, str] | None = None,
    advertised: Callable[[str], str] = str,
) -> Iterator[ApacheKafka]:
    """A cluster that answers; its data is gone afterwards."""
    with TemporaryDirectory(prefix="kafka-bench-") as directory:
        kafka = ApacheKafka(Path(directory), count, settings or {}, advertised)
        try:
            _wait_until_ready(kafka, count)
            yield kafka
        finally:
            kafka.close()
