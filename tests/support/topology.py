"""What the Dockerfile and docker-compose.yml say, as the containers that an engine would make.

    images = read_images(ROOT / "Dockerfile")          # by target
    services = read_services(ROOT / "docker-compose.yml", images, {"DEMO_SECONDS": "2"})
    services["kafka-1"].command                        # entrypoint and command, joined
    services["kafka-1"].environment                    # the image's and the service's

Nothing in the files is passed over in silence: an instruction or key that neither becomes a part of
a container here nor stands in a table with the reason why it need not is an error. What is said of
the base images stands in `FOREIGN`: they are not at hand.

`tests.support.containers` runs them.
"""

import io
import json
import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import yaml
from docker.utils.build import exclude_paths
from dockerfile_parse import DockerfileParser

ROOT: Final = Path(__file__).resolve().parents[2]
DEFAULT_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

# Instructions that say how an image is made, not what runs in it.
EXPLAINED_INSTRUCTIONS: Final = {
    "COMMENT": "is for people",
    "RUN": "what it installs is taken from this environment (tests/acceptance/test_wheel.py builds"
    " and installs the wheel, tests/unit/containers runs how the requirements are told)",
}
# Keys of a service that a test of processes can do nothing with.
EXPLAINED_KEYS: Final = {
    "init": "each command is process 1 itself in the test: signals have it harder there",
    "pull_policy": "whether an engine asks a registry; there is none in the test",
    "logging": "where an engine keeps the output, and when it drops it",
    "restart": "what an engine does when a process ends; the test starts it again by itself",
}
EXPLAINED_TOP_KEYS: Final = {
    "name": "tells this project's containers and volumes from those of others",
}
CONDITIONS: Final = ("service_started", "service_healthy", "service_completed_successfully")


@dataclass(frozen=True)
class Health:
    """A health check: its command, and times in seconds."""

    command: tuple[str, ...]
    interval_s: float
    timeout_s: float
    start_period_s: float
    retries: int

    @property
    def patience_s(self) -> float:
        """How long an engine waits at most before it calls a container unhealthy."""
        return self.start_period_s + self.retries * (self.interval_s + self.timeout_s)


@dataclass(frozen=True)
class Image:
    """What an image gives to its containers; `files` are copied from the context: target to
    source."""

    environment: Mapping[str, str] = field(default_factory=lambda: {"PATH": DEFAULT_PATH})
    user: str = "0"
    directory: str = "/"
    entrypoint: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    ports: frozenset[int] = frozenset()
    volumes: frozenset[str] = frozenset()
    files: Mapping[str, str] = field(default_factory=dict)
    health: Health | None = None
    stop_signal: str = "SIGTERM"
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def command(self) -> tuple[str, ...]:
        """What process 1 is."""
        return self.entrypoint + self.arguments


# What is known of images that are not made here, each with its version.
FOREIGN: Final = {
    "python:3.11.14-slim-bookworm": Image(),
    "quay.io/coreos/etcd:v3.5.25": Image(directory="/var/lib/etcd"),
}


@dataclass(frozen=True)
class Mount:
    """A volume's name, or a directory's path, and where a container sees it."""

    source: str
    target: str
    is_read_only: bool = False


@dataclass(frozen=True)
class Published:
    """A port of the machine that leads to a port of a container."""

    address: str
    port: int
    container_port: int


@dataclass(frozen=True)
class Limits:
    """What a container may take of the machine at most."""

    memory_bytes: int
    processes: int
    open_files: int


@dataclass(frozen=True)
class Service:
    """A container; `build` is a target of the Dockerfile, "" for an image of others."""

    name: str
    image: Image
    image_name: str
    build: str = ""
    hostname: str = ""
    environment: Mapping[str, str] = field(default_factory=dict)
    command: tuple[str, ...] = ()
    mounts: tuple[Mount, ...] = ()
    tmpfs: tuple[str, ...] = ()
    published: tuple[Published, ...] = ()
    health: Health | None = None
    depends_on: Mapping[str, str] = field(default_factory=dict)
    profiles: tuple[str, ...] = ()
    is_read_only: bool = False
    has_capabilities: bool = True
    may_gain_privileges: bool = True
    stop_grace_s: float = 10.0
    limits: Limits | None = None


# -- the Dockerfile


def context_files() -> list[Path]:
    """What `.dockerignore` leaves of the tree for a build, but for directories as such."""
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    patterns = [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    paths = sorted(exclude_paths(str(ROOT), patterns))
    # An engine takes these two along whatever is said of them; no build needs them.
    never = {"Dockerfile", ".dockerignore"}
    return [ROOT / path for path in paths if path not in never and (ROOT / path).is_file()]


def read_images(path: Path) -> dict[str, Image]:
    """Every stage, by name. An `AssertionError` names what is not understood."""
    parser = DockerfileParser(fileobj=io.BytesIO(path.read_bytes()))
    images: dict[str, Image] = {}
    name = ""
    for line in parser.structure:
        instruction, value = line["instruction"], line["value"]
        if instruction == "FROM":
            source, _, name = value.split()
            assert source in images or source in FOREIGN, f"FROM {source}: say what it is"
            images[name] = images[source] if source in images else FOREIGN[source]
        elif instruction not in EXPLAINED_INSTRUCTIONS:
            images[name] = _instructed(images[name], instruction, value, images)
    return images


def _instructed(image: Image, instruction: str, value: str, images: Mapping[str, Image]) -> Image:
    match instruction:
        case "ENV":
            given = dict(part.split("=", 1) for part in shlex.split(value))
            known = image.environment
            told = {key: re.sub(r"\$(\w+)", lambda m: known[m[1]], v) for key, v in given.items()}
            return replace(image, environment={**known, **told})
        case "LABEL":
            given = dict(part.split("=", 1) for part in shlex.split(value))
            return replace(image, labels={**image.labels, **given})
        case "WORKDIR":
            return replace(image, directory=value)
        case "USER":
            return replace(image, user=value)
        case "COPY":
            return _copied(image, value.split(), images)
        case "ENTRYPOINT":
            return replace(image, entrypoint=tuple(json.loads(value)), arguments=())
        case "CMD":
            return replace(image, arguments=tuple(json.loads(value)))
        case "EXPOSE":
            return replace(image, ports=image.ports | set(map(int, value.split())))
        case "VOLUME":
            return replace(image, volumes=image.volumes | set(json.loads(value)))
        case "STOPSIGNAL":
            return replace(image, stop_signal=value)
        case "HEALTHCHECK":
            return replace(image, health=_image_health(value))
    raise AssertionError(f"{instruction} {value}: neither used nor explained")


def _copied(image: Image, words: list[str], images: Mapping[str, Image]) -> Image:
    """From another stage: what this environment has. From the context: a file, by its name."""
    if words[0].startswith("--from="):
        assert words[0].removeprefix("--from=") in images, f"COPY {words}: there is no such stage"
        return image
    source, target = words
    if target == ".":
        return image  # what a wheel is built from
    assert (ROOT / source).is_file(), f"COPY {words}: {source} is no file"
    return replace(image, files={**image.files, target: source})


def _image_health(value: str) -> Health:
    options, command = value.split("CMD", 1)
    given = dict(part.removeprefix("--").split("=") for part in options.split())
    return _health({"test": ["CMD", *json.loads(command)], **given})


# -- docker-compose.yml


def read_services(
    path: Path, images: Mapping[str, Image], environ: Mapping[str, str]
) -> dict[str, Service]:
    """Every service, of all profiles. `environ` is what the shell of `docker compose` has."""
    document = _interpolated(yaml.safe_load(path.read_text(encoding="utf-8")), environ)
    declared = document.pop("volumes")
    services = {
        name: _service(name, dict(given), images)
        for name, given in document.pop("services").items()
    }
    # What begins with x- is only there to be referred to, and was taken in by the parser.
    left = {key for key in document if not key.startswith("x-")} - EXPLAINED_TOP_KEYS.keys()
    assert not left, f"{left}: neither used nor explained"
    assert not any(declared.values()), "volumes have no options that a test knows of"
    used = {mount.source for service in services.values() for mount in service.mounts}
    assert used == set(declared), f"volumes: {used ^ set(declared)}"
    return services


def _interpolated(value: Any, environ: Mapping[str, str]) -> Any:
    """As `docker compose` does it: `${NAME:-default}`, and `$$` for a dollar."""
    if isinstance(value, dict):
        return {key: _interpolated(inner, environ) for key, inner in value.items()}
    if isinstance(value, list):
        return [_interpolated(inner, environ) for inner in value]
    if not isinstance(value, str):
        return value

    def of(found: re.Match[str]) -> str:
        if found[0] == "$$":
            return "$"
        assert found["name"], f"{value!r}: write $$ for a dollar, or ${{NAME:-default}}"
        return environ.get(found["name"]) or found["default"]

    return re.sub(r"\$\$|\$\{(?P<name>\w+):-(?P<default>[^}]*)\}|\$", of, value)


def _service(name: str, given: dict[str, Any], images: Mapping[str, Image]) -> Service:
    for key in EXPLAINED_KEYS:
        given.pop(key, None)
    image_name = given.pop("image")
    build = given.pop("build", None)
    image = images[build["target"]] if build else FOREIGN[image_name]
    assert build is None or build == {"context": ".", "target": build["target"]}, build
    entrypoint = given.pop("entrypoint", None)
    arguments = given.pop("command", None if entrypoint is not None else image.arguments)
    options = given.pop("security_opt", [])
    dropped = given.pop("cap_drop", [])
    assert options in ([], ["no-new-privileges:true"]), options
    assert dropped in ([], ["ALL"]), dropped
    service = Service(
        name=name,
        image=image,
        image_name=image_name,
        build=build["target"] if build else "",
        hostname=given.pop("hostname", ""),
        environment={**image.environment, **_environment(given.pop("environment", {}))},
        command=(*(image.entrypoint if entrypoint is None else entrypoint), *(arguments or ())),
        mounts=tuple(map(_mount, given.pop("volumes", []))),
        tmpfs=tuple(given.pop("tmpfs", [])),
        published=tuple(map(_published, given.pop("ports", []))),
        health=_service_health(given.pop("healthcheck", None), image),
        depends_on=_conditions(given.pop("depends_on", {})),
        profiles=tuple(given.pop("profiles", [])),
        is_read_only=given.pop("read_only", False),
        has_capabilities=not dropped,
        may_gain_privileges=not options,
        stop_grace_s=_seconds(given.pop("stop_grace_period", "10s")),
        limits=_limits(given),
    )
    assert not given, f"{name}: {sorted(given)}: neither used nor explained"
    return service


def _limits(given: dict[str, Any]) -> Limits | None:
    """All three or none; takes them out."""
    found = [given.pop(key, None) for key in ("mem_limit", "pids_limit", "ulimits")]
    if found == [None, None, None]:
        return None
    memory, processes, ulimits = found
    assert memory, f"no limit of memory beside {found}"
    assert processes, f"no limit of processes beside {found}"
    assert ulimits.keys() == {"nofile"}, ulimits
    size = re.fullmatch(r"(\d+)([mg])", memory)
    assert size, f"{memory}: say it in megabytes (m) or gigabytes (g)"
    return Limits(int(size[1]) << {"m": 20, "g": 30}[size[2]], processes, int(ulimits["nofile"]))


def _environment(given: Mapping[str, object]) -> dict[str, str]:
    assert all(isinstance(value, str | int) for value in given.values()), given
    return {name: str(value) for name, value in given.items()}


def _mount(text: str) -> Mount:
    source, target, *mode = text.split(":")
    assert mode in ([], ["ro"]), text
    return Mount(source, target, bool(mode))


def _published(text: str) -> Published:
    address, port, container_port = text.split(":")
    return Published(address, int(port), int(container_port))


def _conditions(given: Iterable[str] | Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    if not isinstance(given, Mapping):
        return dict.fromkeys(given, "service_started")
    assert all(one.keys() == {"condition"} for one in given.values()), given
    assert {one["condition"] for one in given.values()} <= set(CONDITIONS), given
    return {name: one["condition"] for name, one in given.items()}


def _service_health(given: dict[str, Any] | None, image: Image) -> Health | None:
    if given is None:
        return image.health
    return None if given == {"disable": True} else _health(given)


def _health(given: Mapping[str, Any]) -> Health:
    """Of keys as in a compose file, or options as in a Dockerfile, which have a dash."""
    told = {key.replace("-", "_"): value for key, value in given.items()}
    kind, *command = told.pop("test")
    assert kind == "CMD", f"a shell is not needed for {command}"
    health = Health(
        command=tuple(command),
        interval_s=_seconds(told.pop("interval")),
        timeout_s=_seconds(told.pop("timeout")),
        start_period_s=_seconds(told.pop("start_period")),
        retries=int(told.pop("retries")),
    )
    assert not told, f"{told}: neither used nor explained"
    return health


def _seconds(text: str) -> float:
    found = re.fullmatch(r"(\d+)s", text)
    assert found, f"{text}: say it in seconds"
    return float(found[1])
