"""Metrics of transactions, exposed by the coordinator of each transactional id."""

from collections.abc import Iterator

from prometheus_client.core import Metric

from minibroker.broker.observe.metrics.exposition import single


def broker_families(ids: int, incomplete: int, unmarked: int) -> Iterator[Metric]:
    """Make the counts of transactional ids and of their transactions."""
    yield single("minibroker_transactional_ids", "Transactional ids that are kept here", ids)
    text = "Transactions that are open, or decided and without all markers"
    yield single("minibroker_transactions_incomplete", text, incomplete)
    text = "Transactions that are decided and lack markers"
    yield single("minibroker_transactions_unmarked", text, unmarked)
