"""One partition of `__transaction_state` on this broker, and what is live of it while this broker
serves it: the markers that it sends for decided transactions."""

from typing import Final

from minibroker.broker.coordination.shard import Append, CoordinatorShard, RecordFormat
from minibroker.broker.replication.partition import Partition
from minibroker.broker.transactions.records import decode, encode_key, encode_value
from minibroker.broker.transactions.registry import TransactionRegistry
from minibroker.broker.transactions.table import TransactionTable
from minibroker.broker.transactions.transaction import Transaction

RECORDS: Final[RecordFormat[str, Transaction]] = RecordFormat(
    "transactions", decode, encode_key, encode_value
)


class TransactionShard(CoordinatorShard[str, Transaction, TransactionTable, TransactionRegistry]):
    """See the head of this module."""

    def __init__(self, partition: Partition, append: Append) -> None:
        """`append` is `Replicas.append`."""
        super().__init__(partition, append, RECORDS, TransactionTable)
