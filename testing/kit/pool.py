"""The clusters of a test session: each is started once, and lent to one test after another."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import Self

from minibroker.testing.kit.cluster import KafkaCluster
from minibroker.testing.kit.settings import ClusterSettings


class ClusterPool:
    """Clusters by their settings; all end with the `with` block."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._clusters: dict[ClusterSettings, KafkaCluster] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stack.close()

    @contextmanager
    def lend(
        self, test: str, settings: ClusterSettings, *, is_fresh: bool = False
    ) -> Iterator[KafkaCluster]:
        """A cluster for a test of this name, mended afterwards. One that cannot be mended is ended,
        and the error goes on."""
        if is_fresh:
            with KafkaCluster(settings) as cluster:
                cluster.begin_test(test)
                yield cluster
                cluster.check_alive()
            return
        cluster = self._kept(settings)
        cluster.begin_test(test)
        try:
            yield cluster
            for fault in cluster.heal():
                cluster.note(f"{fault.text} was not undone by {test}")
        except BaseException:
            del self._clusters[settings]
            cluster.keep()
            cluster.close()
            raise

    def _kept(self, settings: ClusterSettings) -> KafkaCluster:
        cluster = self._clusters.get(settings)
        if cluster is None:
            cluster = self._clusters[settings] = self._stack.enter_context(KafkaCluster(settings))
        return cluster
