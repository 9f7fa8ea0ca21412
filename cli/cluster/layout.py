"""A cluster on this machine in one directory: its brokers, their files and their settings.

    D/cluster.properties   the options of the first `cluster up`; later ones use them
    D/cluster.lock         held by a command that starts brokers; empty
    D/metadata.db          the store that all brokers share
    D/broker-1/            the first broker's data; the second's beside it, and so on
    D/broker-1.log         its output
    D/broker-1.pid         its process, while it runs

`cluster.properties` holds the number of brokers, the first port and the given settings, never the
settings that follow from them: each broker's own settings are computed at each start, so a default
that a newer version changes is changed for an old directory too. Users may edit the file.

This module starts and queries no process (`process` does).
"""

import os
import shlex
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, Self

import typer

from minibroker.cli.terminal import USAGE, Failure, counted, note, readable

FILE: Final = "cluster.properties"
STORE: Final = "metadata.db"
LOCK: Final = "cluster.lock"
META: Final = "meta.properties"  # in the data directory of a broker that has run
HOST: Final = "127.0.0.1"
BROKERS: Final = "cluster.brokers"
BASE_PORT: Final = "cluster.base.port"
HTTP_BASE_PORT: Final = "cluster.http.base.port"
DEFAULT_BROKERS: Final = 3
DEFAULT_BASE_PORT: Final = 9092
DEFAULT_DIRECTORY: Final = Path("minibroker-cluster")
PORT_MAX: Final = 65_535
# Each broker has its own value of these, which follows from the directory and the ports.
DECIDED_HERE: Final = (
    "node.id",
    "broker.id",
    "listeners",
    "advertised.listeners",
    "log.dirs",
    "log.dir",
    "metadata.store",
    "http.listener",
)
HEAD: Final = """\
# A cluster of minibroker on one machine. `cluster up` wrote down what it was told; it and
# `cluster start` go by this file. A change holds for a broker from its next start on.
"""

DataDir = Annotated[
    Path,
    typer.Option("--data-dir", envvar="MINIBROKER_CLUSTER_DIR", help="Directory of the cluster."),
]


@dataclass(frozen=True, slots=True)
class Layout:
    """A cluster's directory (absolute, without links), and its options.

    `settings` are those that were given; they override those that `cluster up` sets. Health and
    metrics are served from port `http_base_port` on, if it is set.
    """

    root: Path
    broker_count: int
    base_port: int
    settings: Mapping[str, str]
    http_base_port: int | None = None

    @property
    def file(self) -> Path:
        """The file that stores this layout."""
        return self.root / FILE

    @property
    def node_ids(self) -> range:
        """The brokers' numbers."""
        return range(1, self.broker_count + 1)

    @property
    def bootstrap(self) -> str:
        """The addresses of all brokers, for a client."""
        return ",".join(self.address(node_id) for node_id in self.node_ids)

    def port(self, node_id: int) -> int:
        """Return the port on which a broker listens."""
        return self.base_port + node_id - 1

    def address(self, node_id: int) -> str:
        """Return HOST:PORT of a broker."""
        return f"{HOST}:{self.port(node_id)}"

    def data_dir(self, node_id: int) -> Path:
        """Return a broker's data directory."""
        return self.root / f"broker-{node_id}"

    def log_file(self, node_id: int) -> Path:
        """Return the file with a broker's output."""
        return self.root / f"broker-{node_id}.log"

    def pid_file(self, node_id: int) -> Path:
        """Return the file with a broker's process id."""
        return self.root / f"broker-{node_id}.pid"

    def command(self, *words: object) -> str:
        """Return the command line of `minibroker cluster ...` for this cluster."""
        is_default = self.root == DEFAULT_DIRECTORY.resolve()
        options = () if is_default else ("--data-dir", str(self.root))
        return shlex.join(["minibroker", "cluster", *map(str, words), *options])

    def broker_settings(self, node_id: int) -> dict[str, str]:
        """Return the settings for `minibroker start` of one broker, without its data directory."""
        several = {"min.insync.replicas": "2"} if self.broker_count >= 3 else {}
        replicas = str(min(3, self.broker_count))
        http = ""  # overrides the environment, which would give all brokers the same address
        if self.http_base_port is not None:
            http = f"{HOST}:{self.http_base_port + node_id - 1}"
        return {
            "default.replication.factor": replicas,
            "offsets.topic.replication.factor": replicas,
            "transaction.state.log.replication.factor": replicas,
            "replica.lag.time.max.ms": "10000",
            "broker.session.timeout.ms": "1000",
            "leader.imbalance.check.interval.seconds": "5",
            **several,
            "http.listener": http,
            **self.settings,
            "node.id": str(node_id),
            "listeners": self.address(node_id),
            "advertised.listeners": self.address(node_id),
            "metadata.store": f"sqlite:{self.root / STORE}",
        }

    def checked_node_ids(self, node_ids: Iterable[int]) -> list[int]:
        """Return these numbers, each once. Raises a usage `Failure` for a missing broker."""
        for node_id in node_ids:
            if node_id not in self.node_ids:
                raise Failure(
                    f"there is no broker {node_id}; those in {self.root} are 1 to"
                    f" {self.broker_count}",
                    USAGE,
                )
        return list(dict.fromkeys(node_ids))

    def save(self) -> None:
        """Write `cluster.properties` atomically: readers see the old or the new file."""
        from minibroker.broker.private_files import create_private_file

        own = {BROKERS: str(self.broker_count), BASE_PORT: str(self.base_port)}
        if self.http_base_port is not None:
            own[HTTP_BASE_PORT] = str(self.http_base_port)
        lines = (f"{name}={value}\n" for name, value in (own | dict(self.settings)).items())
        draft = self.file.with_suffix(".draft")
        create_private_file(draft)
        draft.write_text(HEAD + "".join(lines), encoding="utf-8")
        draft.replace(self.file)

    @classmethod
    def load(cls, directory: Path) -> Self:
        """Read the cluster in a directory. Raises `Failure` if there is none."""
        root = directory.resolve()
        path = root / FILE
        try:
            return cls._parsed(root, path.read_text(encoding="utf-8"))
        except (FileNotFoundError, NotADirectoryError):
            raise Failure(
                f"there is no cluster in {root}; name its directory with --data-dir, or make one"
                " with `minibroker cluster up`"
            ) from None
        except (OSError, ValueError) as error:
            raise Failure(f"cannot use {path}: {error}") from None

    @classmethod
    def _parsed(cls, root: Path, text: str) -> Self:
        from minibroker.broker.config_sources import parse_properties

        settings = parse_properties(text)
        try:
            count, base_port = int(settings.pop(BROKERS)), int(settings.pop(BASE_PORT))
            http = settings.pop(HTTP_BASE_PORT, None)
            layout = cls(root, count, base_port, settings, None if http is None else int(http))
        except (KeyError, ValueError):
            names = f"{BROKERS} and {BASE_PORT} (and {HTTP_BASE_PORT}, if it is there)"
            raise ValueError(f"it does not say {names} as numbers") from None
        layout.check()
        return layout

    def check(self) -> None:
        """Raise a usage `Failure` for numbers or settings that no cluster can have."""
        from minibroker.broker.config import load

        if self.broker_count < 1:
            raise Failure("a cluster has at least one broker", USAGE)
        self._check_ports(self.base_port, "--base-port")
        if self.http_base_port is not None:
            self._check_ports(self.http_base_port, "--http-base-port")
            if abs(self.http_base_port - self.base_port) < self.broker_count:
                raise Failure(
                    f"--http-base-port {self.http_base_port} gives ports to health and metrics"
                    f" that brokers listen at, from --base-port {self.base_port} on",
                    USAGE,
                )
        for name in DECIDED_HERE:
            if name in self.settings:
                raise Failure(
                    f"{name} cannot be set for all brokers; each has its own, which follows from"
                    " --data-dir, --base-port and --http-base-port",
                    USAGE,
                )
        load(flags=self.broker_settings(1) | {"log.dirs": str(self.data_dir(1))})

    def _check_ports(self, first: int, option: str) -> None:
        if not 1 <= first <= first + self.broker_count - 1 <= PORT_MAX:
            raise Failure(
                f"{counted(self.broker_count, 'broker')} from port {first} on do not fit"
                f" below {PORT_MAX + 1}; see {option}",
                USAGE,
            )


@contextmanager
def exclusive(layout: Layout, *, may_wait: bool = True) -> Iterator[None]:
    """Let only one command at a time start brokers here; two could both see one not running.

    The lock is on a file of its own: `save` replaces `cluster.properties`, and brokers that start
    lock the directory, for their store.
    Raises `Failure` instead of waiting if `may_wait` is false.
    """
    import fcntl

    from minibroker.broker.private_files import FILE_MODE

    descriptor = os.open(layout.root / LOCK, os.O_RDWR | os.O_CREAT, FILE_MODE)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            busy = f"another command starts or rolls the brokers in {layout.root}"
            if not may_wait:
                raise Failure(f"{busy}; try again when it has ended") from None
            note(f"{busy}; waiting for it to end")
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def layout_for(
    directory: Path,
    broker_count: int | None,
    base_port: int | None,
    settings: Mapping[str, str],
    http_base_port: int | None = None,
) -> Layout:
    """Return the cluster for `cluster up`: a new one, or the stored one with changed settings.

    Of a stored cluster only the settings and the ports of health and metrics can change.
    Raises `Failure` if the directory is not a cluster's, or if other options differ.
    """
    root = directory.resolve()
    readable(str(root), "the directory")
    if (root / META).exists():
        raise Failure(
            f"{root} is the data directory of a single broker; name another one with --data-dir"
        )
    if not (root / FILE).exists():
        layout = Layout(
            root,
            DEFAULT_BROKERS if broker_count is None else broker_count,
            DEFAULT_BASE_PORT if base_port is None else base_port,
            settings,
            http_base_port,
        )
        layout.check()
        return layout
    known = Layout.load(root)
    if broker_count not in (None, known.broker_count):
        raise Failure(
            f"the cluster in {root} has {counted(known.broker_count, 'broker')}, not"
            f" {broker_count}; leave -n out, or name another directory with --data-dir",
            USAGE,
        )
    if base_port not in (None, known.base_port):
        raise Failure(
            f"the cluster in {root} begins at port {known.base_port}, not {base_port}; leave"
            " --base-port out, or name another directory with --data-dir",
            USAGE,
        )
    http = known.http_base_port if http_base_port is None else http_base_port
    together = {**known.settings, **settings}
    layout = Layout(root, known.broker_count, known.base_port, together, http)
    layout.check()
    return layout


def check_store(layout: Layout) -> None:
    """Raise `Failure` if brokers have run and the store is lost.

    A new store would know neither the brokers nor any topic of their data.
    """
    store = layout.root / STORE
    ran = [node_id for node_id in layout.node_ids if (layout.data_dir(node_id) / META).exists()]
    if ran and not (store.exists() and store.stat().st_size):
        raise Failure(
            f"the metadata store {store} is not there (or empty), but {layout.data_dir(ran[0])}"
            " holds data of an earlier run: its topics are not known without it. Put back a copy"
            " of the store, or name a new directory with --data-dir"
        )
