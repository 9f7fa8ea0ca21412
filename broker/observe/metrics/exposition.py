"""Metric families as the text that Prometheus reads, made in pieces.

A broker with a thousand partitions has some twenty thousand samples, which take a tenth of a second
to write down. Between two pieces of them the loop goes on with what it has to do. All pieces of one
answer are made from figures that were read before, those of a replica at one moment.

The text itself is prometheus_client's.
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
    """What `generate_latest` asks of a registry, with one family in it."""

    def __init__(self, family: Metric) -> None:
        self._family = family

    def collect(self) -> list[Metric]:
        """The family."""
        return [self._family]


def gauge(name: str, text: str, *labels: str) -> GaugeMetricFamily:
    """A family of what is now."""
    return GaugeMetricFamily(name, text, labels=labels)


def single(name: str, text: str, value: float) -> GaugeMetricFamily:
    """What is now, without labels."""
    return GaugeMetricFamily(name, text, value=value)


def counter(name: str, text: str, *labels: str) -> CounterMetricFamily:
    """A family of what only grows; its name ends in `_total`."""
    return CounterMetricFamily(name, text, labels=labels)


def total(name: str, text: str, value: float) -> CounterMetricFamily:
    """What only grows, without labels."""
    return CounterMetricFamily(name, text, value=value)


def histogram(name: str, text: str, *labels: str) -> HistogramMetricFamily:
    """A family of distributions."""
    return HistogramMetricFamily(name, text, labels=labels)


def add_distribution(
    family: HistogramMetricFamily, labels: Iterable[str], distribution: Distribution
) -> None:
    """Put one distribution into a family; Prometheus counts up to each bound."""
    bounds = [f"{bound:g}" for bound in distribution.bounds]
    buckets, count = [], 0
    for bound, more in zip([*bounds, "+Inf"], distribution.counts, strict=True):
        count += more
        buckets.append((bound, count))
    family.add_metric([*labels], buckets, distribution.total_s)


async def write(families: Iterable[Metric]) -> bytes:
    """The text of all of them; others run in between."""
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
