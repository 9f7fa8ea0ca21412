"""docker-compose.yml: its schema, that its settings exist, and what holds for each service."""

import re
import subprocess
import sys
from collections.abc import Mapping
from itertools import chain, pairwise

import pytest
import yaml

import minibroker
from minibroker.broker.config import load
from minibroker.cli.broker.start import FILES_MAX
from tests.support.etcd import ETCD, NEEDS_ETCD
from tests.support.topology import FOREIGN, ROOT, Service, read_images, read_services

COMPOSE = ROOT / "docker-compose.yml"
IMAGES = read_images(ROOT / "Dockerfile")
BROKERS = ("kafka-1", "kafka-2", "kafka-3")
MEMBERS = ("etcd-1", "etcd-2", "etcd-3")


def services(environ: Mapping[str, str] | None = None) -> dict[str, Service]:
    """As `docker compose` would understand the file."""
    return read_services(COMPOSE, IMAGES, environ or {})


SERVICES = services()


def test_it_is_a_compose_file() -> None:
    """By the schema of the compose specification; a key that is there twice is an error, too."""
    check = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    done = subprocess.run([*check, COMPOSE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("service", SERVICES.values(), ids=SERVICES)
def test_a_service_can_do_little(service: Service) -> None:
    """No capabilities, no way to gain privileges, a root that is read-only with a /tmp where no
    program runs; but Spark needs more than that."""
    assert not service.has_capabilities
    assert not service.may_gain_privileges
    assert service.is_read_only == ("/tmp" in service.tmpfs) == (service.name != "audit")


@pytest.mark.parametrize("service", SERVICES.values(), ids=SERVICES)
def test_a_service_is_what_its_name_says(service: Service) -> None:
    """Others find it by the service's name, so a host name of its own is the same; an image of
    others has a version."""
    assert service.hostname in ("", service.name)
    assert service.build in ("", *IMAGES)
    assert service.build or service.image_name in FOREIGN
    assert set(service.depends_on) <= set(SERVICES)


@pytest.mark.parametrize("service", SERVICES.values(), ids=SERVICES)
def test_what_lasts_lies_in_a_volume(service: Service) -> None:
    """Each broker and each member of etcd has one of its own. No volume without a name is made,
    as an engine would where an image wants one and nothing is there."""
    targets = {mount.target: mount.source for mount in service.mounts}
    assert service.image.volumes <= {*targets, *service.tmpfs}
    if service.hostname:
        assert list(targets.values()) == [service.name]
        assert not service.image.volumes & set(service.tmpfs)


@pytest.mark.parametrize("service", SERVICES.values(), ids=SERVICES)
def test_a_service_takes_a_part_of_the_machine(service: Service) -> None:
    """Memory, processes and open files are limited, so that one service cannot starve the others;
    a broker has all the open files that it asks for."""
    assert service.limits
    assert 2**29 <= service.limits.memory_bytes <= 2**33
    assert 100 <= service.limits.processes <= 4096
    assert service.limits.open_files == FILES_MAX


def test_an_engine_with_fewer_open_files_is_told_so() -> None:
    """An engine that may open fewer files itself starts no container that wants more."""
    fewer = services({"MINIBROKER_FILES": "20000"})
    assert {one.limits and one.limits.open_files for one in fewer.values()} == {20000}


def test_images_are_made_here_and_have_a_version() -> None:
    """No registry is asked for them; another version is rolled back to by a variable."""
    ours = [service for service in SERVICES.values() if service.build]
    assert {one.image_name.partition(":")[2] for one in ours} == {minibroker.__version__}
    older = services({"MINIBROKER_VERSION": "0.0.9"})
    assert {older[one.name].image_name.partition(":")[2] for one in ours} == {"0.0.9"}
    document = yaml.safe_load(COMPOSE.read_text(encoding="utf-8"))["services"]
    assert {document[one.name]["pull_policy"] for one in ours} == {"never"}


def test_only_this_machine_reaches_a_port() -> None:
    """Unless told otherwise; no port is published twice."""
    published = list(chain.from_iterable(service.published for service in SERVICES.values()))
    assert {one.address for one in published} == {"127.0.0.1"}
    assert len({one.port for one in published}) == len(published) == 6


def test_other_machines_reach_the_brokers_if_told_so() -> None:
    """The two variables open the brokers' ports, and not their metrics, under the name given."""
    opened = services({"MINIBROKER_BIND": "0.0.0.0", "MINIBROKER_HOST": "broker.example"})
    for name in BROKERS:
        brokers, metrics = opened[name].published
        assert (brokers.address, metrics.address) == ("0.0.0.0", "127.0.0.1")
        told = opened[name].environment["KAFKA_ADVERTISED_LISTENERS"]
        assert told == f"PLAINTEXT://{name}:19092,PLAINTEXT_HOST://broker.example:{brokers.port}"


def test_every_setting_of_a_broker_exists() -> None:
    """None is left out with a warning; brokers differ in their number and addresses alone."""
    loaded = [load(environ=SERVICES[name].environment) for name in BROKERS]
    assert [one.warnings for one in loaded] == [(), (), ()]
    assert [one.config.node_id for one in loaded] == [1, 2, 3]
    varied = {"KAFKA_NODE_ID", "KAFKA_ADVERTISED_LISTENERS"}
    same = [
        {key: value for key, value in SERVICES[name].environment.items() if key not in varied}
        for name in BROKERS
    ]
    assert same[0] == same[1] == same[2]


def test_a_broker_is_given_the_time_to_stop() -> None:
    """Longer than it tries to give its leaderships away where nobody takes them."""
    for name in BROKERS:
        config = load(environ=SERVICES[name].environment).config
        backoff_ms = config.controlled_shutdown_retry_backoff_ms
        tries_ms = config.controlled_shutdown_max_retries * backoff_ms
        assert SERVICES[name].stop_grace_s * 1000 > tries_ms + backoff_ms


@NEEDS_ETCD
def test_every_setting_of_etcd_exists() -> None:
    """It takes each flag as a variable, too, and only warns of those it does not know."""
    assert ETCD
    told = subprocess.run([ETCD, "--help"], capture_output=True, text=True, check=True).stdout
    for name in MEMBERS:
        variables = [key for key in SERVICES[name].environment if key.startswith("ETCD_")]
        flags = [key.removeprefix("ETCD_").lower().replace("_", "-") for key in variables]
        assert flags
        assert [flag for flag in flags if f"--{flag} " not in told] == []


def test_members_of_etcd_name_each_other() -> None:
    """All three, in the same words, by the addresses that each tells of itself."""
    clusters = {SERVICES[name].environment["ETCD_INITIAL_CLUSTER"] for name in MEMBERS}
    told = [
        f"{name}={SERVICES[name].environment['ETCD_INITIAL_ADVERTISE_PEER_URLS']}"
        for name in MEMBERS
    ]
    assert clusters == {",".join(told)}
    clients = [SERVICES[name].environment["ETCD_ADVERTISE_CLIENT_URLS"] for name in MEMBERS]
    for name in (*BROKERS, "audit-metadata"):
        assert SERVICES[name].environment["KAFKA_METADATA_STORE"] == f"etcd:{','.join(clients)}"


def test_profiles_add_to_a_cluster_that_is_whole_without_them() -> None:
    """What runs always depends on nothing that may be left out; jobs have no health check."""
    always = {name for name, service in SERVICES.items() if not service.profiles}
    assert always == {*BROKERS, *MEMBERS}
    for service in SERVICES.values():
        assert (service.health is None) == bool(service.profiles), service.name
        others = [SERVICES[name].profiles for name in service.depends_on]
        assert all(profiles in ((), service.profiles) for profiles in others)


def test_taking_a_cluster_down_takes_its_jobs_along() -> None:
    """`down` leaves the ended containers of profiles that it is not told of. They hold a network
    that is gone, so that the next demo would not start, and the volume with the ledgers."""
    names = {name for service in SERVICES.values() for name in service.profiles}
    downs = []
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md"), COMPOSE):
        lines = page.read_text(encoding="utf-8").splitlines()
        downs += [
            line.split() for line in lines if re.search(r"^\W*docker compose .*\bdown\b", line)
        ]
    assert downs
    for words in downs:
        told = {after for word, after in pairwise(words) if word == "--profile"}
        assert told == names, " ".join(words)


def test_what_is_not_understood_is_an_error(tmp_path) -> None:
    """A key that no test uses and nobody explains does not pass unseen, nor does a condition, a
    volume that nobody has, or a dollar that means something else."""
    text = COMPOSE.read_text(encoding="utf-8")
    changes = {
        "  restart: unless-stopped": "  privileged: true",
        "  pids_limit: 512\n": "",
        "service_completed_successfully": "service_ended_well",
        "  evidence:\n": "  evidence:\n  forgotten:\n",
        "$$count": "$count",
        "interval: 5s": "interval: 5m",
        "name: minibroker\n": "name: minibroker\nnetworks: {}\n",
    }
    for before, after in changes.items():
        assert before in text
        changed = tmp_path / "docker-compose.yml"
        changed.write_text(text.replace(before, after), encoding="utf-8")
        with pytest.raises(AssertionError):
            read_services(changed, IMAGES, {})
