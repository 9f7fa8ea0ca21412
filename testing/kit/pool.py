"""The clusters of a test session: each is started once, and lent to one test after another."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Final, Self

from minibroker.testing.kit.cluster import KafkaCluster
from minibroker.testing.kit.run_directory import PORTS, AllPortsTaken
from minibroker.testing.kit.settings import ClusterSettings

CLUSTERS_MAX: Final = 3


class ClusterPool:
    """Clusters by their settings, the latest three; all end with the `with` block."""

    def __init__(self, *, checks_logs: bool = False, ports: range = PORTS) -> None:
        self._ports = ports
        self._checks_logs = checks_logs  # after each test
        self._clusters: dict[ClusterSettings, KafkaCluster] = {}  # the latest one last

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with ExitStack() as stack:
            for cluster in self._clusters.values():
                stack.callback(cluster.close)

    @contextmanager
    def lend(
        self, test: str, settings: ClusterSettings, *, is_fresh: bool = False
    ) -> Iterator[KafkaCluster]:
        """Lend a cluster to a test of this name, and mend it afterwards. A cluster that cannot be
        mended is ended and kept on the disk, and the error is raised."""
        cluster = self._started(settings) if is_fresh else self._kept(settings)
        cluster.begin_test(test)
        if self._checks_logs:
            cluster.keep_ledgers()
        try:
            yield cluster
            cluster.end_processes()
            if is_fresh and not self._checks_logs:
                cluster.check_alive()
            else:
                for fault in cluster.heal():
                    cluster.note(f"{fault.text} was not undone by {test}")
            if self._checks_logs:
                cluster.check_logs()
            if is_fresh:
                cluster.close()
        except BaseException:
            if self._clusters.get(settings) is cluster:
                del self._clusters[settings]
            cluster.keep()
            cluster.close()
            raise

    def _kept(self, settings: ClusterSettings) -> KafkaCluster:
        cluster = self._clusters.pop(settings, None)
        if cluster is None:
            if len(self._clusters) == CLUSTERS_MAX:
                self._clusters.pop(next(iter(self._clusters))).close()
            cluster = self._started(settings)
        self._clusters[settings] = cluster
        return cluster

    def _started(self, settings: ClusterSettings) -> KafkaCluster:
        """Start a cluster; if there are no ports for it, end others, the oldest first."""
        while True:
            try:
                return KafkaCluster(settings, self._ports).start()
            except AllPortsTaken:
                if not self._clusters:
                    raise
                self._clusters.pop(next(iter(self._clusters))).close()
