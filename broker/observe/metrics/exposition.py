"""Metric families as text in Prometheus' format, formatted in pieces.

A broker with a thousand partitions has about twenty thousand samples, and formatting them takes a
tenth of a second. So other tasks of the loop run between two pieces. The values were read before
the first piece, those of one replica at one moment.

prometheus_client formats the text.
"""

from collections.abc import Iterable
from typing import Final, cast

import trio
from prometheus_client import generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import CollectorRegistry

from minibroker.broker.histogram import Distribution

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
SAMPLES_AT_ONCE: Final = 500
HEAD_LINES: Final = 2  # HELP and TYPE


class _One:
    """A registry with one family, as far as `generate_latest` uses a registry."""

    def __init__(self, family: Metric) -> None:
        self._family = family

    def collect(self) -> list[Metric]:
        """Return the family."""
        return [self._family]


def gauge(name: str, text: str, *labels: str) -> GaugeMetricFamily:
    """Return a family of gauges, without samples yet."""
    return GaugeMetricFamily(name, text, labels=labels)


def single(name: str, text: str, value: float) -> GaugeMetricFamily:
    """Return a gauge without labels, with its value."""
    return GaugeMetricFamily(name, text, value=value)


def counter(name: str, text: str, *labels: str) -> CounterMetricFamily:
    """Return a family of counters, without samples yet; Prometheus appends `_total` to the name."""
    return CounterMetricFamily(name, text, labels=labels)


def total(name: str, text: str, value: float) -> CounterMetricFamily:
    """Return a counter without labels, with its value."""
    return CounterMetricFamily(name, text, value=value)


def histogram(name: str, text: str, *labels: str) -> HistogramMetricFamily:
    """Return a family of histograms, without samples yet."""
    return HistogramMetricFamily(name, text, labels=labels)


def add_distribution(
    family: HistogramMetricFamily, labels: Iterable[str], distribution: Distribution
) -> None:
    """Add a distribution to a family. Prometheus' buckets are cumulative."""
    bounds = [f"{bound:g}" for bound in distribution.bounds]
    buckets, count = [], 0
    for bound, more in zip([*bounds, "+Inf"], distribution.counts, strict=True):
        count += more
        buckets.append((bound, count))
    family.add_metric([*labels], buckets, distribution.total_s)


async def write(families: Iterable[Metric]) -> bytes:
    """Return the families as text; other tasks run between the pieces."""
    pieces = []
    for family in families:
        samples = family.samples
        for first in range(0, max(len(samples), 1), SAMPLES_AT_ONCE):
            family.samples = samples[first : first + SAMPLES_AT_ONCE]
            # It asks for a registry, and uses no more of it than `collect`.
            text = generate_latest(cast(CollectorRegistry, _One(family)))
            pieces.append(text if first == 0 else text.split(b"\n", HEAD_LINES)[HEAD_LINES])
            await trio.lowlevel.checkpoint()
    return b"".join(pieces)
