"""Sends orders with confluent-kafka. Its bug, if it has it: it sends again without idempotence."""

from confluent_kafka import KafkaError, Producer

from minibroker.testing import History

PATIENCE_S = 60


class NotDelivered(Exception):
    """An order that is not stored, as far as the shop knows."""


class Shop:
    """Each order is there when `order` returns."""

    def __init__(self, bootstrap: str, topic: str, history: History, *, retries_itself: bool):
        self._topic = topic
        self._history = history
        self._retries_itself = retries_itself
        options: dict[str, object] = {"bootstrap.servers": bootstrap, "log_level": 0}
        if retries_itself:
            options |= {"enable.idempotence": False, "retries": 0, "message.timeout.ms": 3000}
        else:
            options |= {"enable.idempotence": True}
        self._producer = Producer(options)

    def order(self, value: bytes) -> None:
        """Send an order, again and again if need be. Raises `NotDelivered`."""
        self._history.sent(value)
        while not self._is_delivered(value):
            if not self._retries_itself:
                raise NotDelivered(value)
        self._history.acknowledged(value)

    def _is_delivered(self, value: bytes) -> bool:
        told: list[KafkaError | None] = []
        self._producer.produce(self._topic, value, on_delivery=lambda error, _: told.append(error))
        self._producer.flush(PATIENCE_S)
        [error] = told
        return error is None
