"""python confluent_transform.py BOOTSTRAP APPLICATION DIRECTORY: adds one to numbers.

The topic APPLICATION-in has words as keys and numbers as values. Each word and the next number go
to the same partition of APPLICATION-out, in transactions with the offsets of what was read.
"""

import sys
from collections.abc import Callable, Sequence
from typing import Any

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

bootstrap, application = sys.argv[1:3]
consumer = Consumer(
    {
        "bootstrap.servers": bootstrap,
        "group.id": application,
        "group.instance.id": application,
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "session.timeout.ms": 6000,
        "heartbeat.interval.ms": 1000,
    }
)
producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": application})


def is_done(step: Callable[[], object]) -> bool:
    """Take a step of a transaction, again if it may be repeated; whether it need not be aborted."""
    while True:
        try:
            step()
        except KafkaException as error:
            if error.args[0].retriable():
                continue
            if error.args[0].txn_requires_abort():
                return False
            raise
        return True


def transform(messages: Sequence[Any]) -> bool:
    """Whether the transaction is committed; otherwise it is to be aborted."""
    offsets: dict[int, int] = {}
    producer.begin_transaction()
    for one in messages:
        number = b"%d" % (int(one.value()) + 1)
        producer.produce(f"{application}-out", number, one.key(), one.partition())
        offsets[one.partition()] = one.offset() + 1
    ends = [TopicPartition(f"{application}-in", *pair) for pair in offsets.items()]
    group = consumer.consumer_group_metadata()
    return is_done(lambda: producer.send_offsets_to_transaction(ends, group)) and is_done(
        producer.commit_transaction
    )


producer.init_transactions()
consumer.subscribe([f"{application}-in"])
while True:
    polled = consumer.consume(100, 0.1)
    for one in polled:
        if one.error() is not None and one.error().fatal():
            raise KafkaException(one.error())
    messages = [one for one in polled if one.error() is None]
    if messages and not transform(messages):
        is_done(producer.abort_transaction)
        firsts = {one.partition(): one.offset() for one in reversed(messages)}
        for pair in firsts.items():
            consumer.seek(TopicPartition(f"{application}-in", *pair))
