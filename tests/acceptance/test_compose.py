"""What the Dockerfile and docker-compose.yml say, run by `tests.support.containers`.

One cluster of the compose file serves all tests but the first, each of which leaves it up.
"""

import sys
from collections.abc import Iterator
from subprocess import CompletedProcess

import pytest

from tests.support.containers import Engine, running
from tests.support.etcd import NEEDS_ETCD
from tests.support.namespaces import NEEDS_NAMESPACES
from tests.support.topology import ROOT, Mount, Published, Service, read_images, read_services

pytestmark = [NEEDS_ETCD, NEEDS_NAMESPACES]
IMAGES = read_images(ROOT / "Dockerfile")
DEMO = {"DEMO_SECONDS": "2"}
BROKERS = ("kafka-1", "kafka-2", "kafka-3")
COMMAND = [sys.executable, "-m", "minibroker.cli"]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """The whole compose file; what runs always is up and healthy."""
    services = read_services(ROOT / "docker-compose.yml", IMAGES, DEMO)
    with running(services, tmp_path_factory.mktemp("compose")) as made:
        made.up()
        yield made


def on_machine(engine: Engine, line: str, stdin: str = "") -> str:
    """A command of somebody on the machine whose ports are published; it must do well."""
    done: CompletedProcess[str] = engine.machine.run(
        [*COMMAND, *line.split()], input=stdin, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def in_container(engine: Engine, name: str, line: str) -> str:
    """A command in a container, as by `docker compose exec`; it must do well."""
    done = engine.execute(name, *line.split())
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_image_alone_is_a_broker(tmp_path) -> None:
    """`docker run -p 127.0.0.1:9092:9092 -v data:/var/lib/minibroker minibroker`: clients of the
    machine reach it, it becomes healthy, stops in order, and has its data after that."""
    image = IMAGES["broker"]
    [directory] = image.volumes
    alone = Service(
        name="alone",
        image=image,
        image_name="minibroker",
        build="broker",
        environment=image.environment,
        command=image.command,
        mounts=(Mount("data", directory),),
        published=tuple(Published("127.0.0.1", port, port) for port in image.ports),
        health=image.health,
    )
    with running({"alone": alone}, tmp_path) as engine:
        engine.up("alone")
        on_machine(engine, "topic create words")
        on_machine(engine, "produce words", stdin="a\nb\n")
        assert engine.stop("alone") == [0]
        engine.up("alone")
        assert on_machine(engine, "consume words --from-beginning --exit-at-end") == "a\nb\n"


def test_the_machine_and_other_containers_are_served(engine) -> None:
    """By the ports of any broker, and by any broker's name; what one produces the other reads."""
    on_machine(engine, "topic create served --partitions 3 -b 127.0.0.1:29092")
    on_machine(engine, "produce served -b 127.0.0.1:39092", stdin="machine\n")
    produce = "echo container | minibroker produce served"
    assert engine.execute("kafka-1", "sh", "-c", produce).returncode == 0
    for address in ("127.0.0.1:29092", "127.0.0.1:49092"):
        read = on_machine(engine, f"consume served --from-beginning --exit-at-end -b {address}")
        assert sorted(read.split()) == ["container", "machine"]
    read = in_container(engine, "kafka-3", "minibroker consume served --from-beginning -e")
    assert sorted(read.split()) == ["container", "machine"]


def test_what_is_told_of_health_and_metrics_can_be_had(engine) -> None:
    """By the ports of the machine that the compose file publishes for that."""
    for name in BROKERS:
        port = engine.services[name].published[1].port
        for path in ("live", "ready", "metrics", "public_metrics"):
            fetch = f"import urllib.request as r; r.urlopen('http://127.0.0.1:{port}/{path}')"
            engine.machine.run([sys.executable, "-c", fetch], check=True)


def test_the_demo_finds_each_number_once(engine) -> None:
    """Producer and consumer end well, beginning with a topic that was not there; the metadata can
    be exported for an audit."""
    engine.up("demo", "audit-metadata")
    for name in ("demo", "audit-metadata"):
        assert engine.containers[name].wait() == 0, engine.containers[name].output
    assert "2000 numbers was acknowledged" in engine.containers["demo"].output
    assert "2000 numbers were read, each of them once" in engine.containers["demo-consumer"].output
    names = [mount.target for mount in engine.services["audit"].mounts]
    assert names == ["/evidence", *(f"/data/broker-{number}" for number in (1, 2, 3))]
    seen = in_container(engine, "audit", "ls /evidence /data/broker-1").split()
    assert {"cluster.json", "producer.jsonl", "consumer.jsonl", "demo-0"} <= set(seen)


@pytest.mark.soak
def test_the_audit_finds_what_the_demo_left_clean(engine) -> None:
    """Spark reads the volumes of running brokers, in a container that could not change them."""
    engine.up("demo")
    assert engine.containers["demo"].wait() == 0
    engine.up("audit")
    audit = engine.containers["audit"]
    assert audit.wait() == 0, audit.output
    assert "every in-sync replica exactly once" in audit.output
    in_container(engine, "audit", "test -s /evidence/audit-report/report.html")


def test_brokers_and_etcd_are_restarted_one_by_one(engine) -> None:
    """As docs/containers.md says to do: each stops in order, and the others serve meanwhile."""
    on_machine(engine, "topic create rolled --partitions 3 -b 127.0.0.1:29092")
    for name, others in (("kafka-1", "127.0.0.1:39092"), ("etcd-1", "127.0.0.1:29092")):
        assert engine.stop(name) == [0], engine.containers[name].output
        on_machine(engine, f"produce rolled -b {others}", stdin=f"without {name}\n")
        engine.up(name)
    read = on_machine(engine, "consume rolled --from-beginning -e -b 127.0.0.1:29092")
    assert sorted(read.splitlines()) == ["without etcd-1", "without kafka-1"]


def test_all_brokers_are_stopped_at_once_and_come_back(engine) -> None:
    """Within the time that they are given, in order, and with all that they had."""
    on_machine(engine, "topic create kept --partitions 3 -b 127.0.0.1:29092")
    on_machine(engine, "produce kept -b 127.0.0.1:29092", stdin="kept\n")
    assert engine.stop(*BROKERS) == [0, 0, 0], [engine.containers[n].output for n in BROKERS]
    engine.up()
    read = on_machine(engine, "consume kept --from-beginning -e -b 127.0.0.1:49092")
    assert read == "kept\n"


def test_a_container_is_as_narrow_as_the_file_says(engine) -> None:
    """What the test's containers claim to be they are: else it would show nothing of the files."""
    status = in_container(engine, "kafka-1", "cat /proc/self/status")
    facts = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert {facts[name].strip("0") for name in ("CapPrm", "CapEff", "CapBnd")} == {""}
    assert facts["NoNewPrivs"] == "1"
    for path in ("/", "/mnt/shared/config"):
        assert engine.execute("kafka-1", "touch", f"{path}/new").returncode == 1
    assert engine.execute("audit", "touch", "/data/broker-1/new").returncode == 1
    told = in_container(engine, "kafka-1", "env").splitlines()
    told = dict(line.split("=", 1) for line in told)
    extra = {"HOSTNAME", "HOME", "PWD"}
    assert {key: told[key] for key in told.keys() - extra} == engine.services["kafka-1"].environment
