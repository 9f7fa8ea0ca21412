"""The clients as plain blocking classes: for scripts, notebooks and services with threads.

    from minibroker.client.blocking import Producer

    with Producer("127.0.0.1:9092") as producer:
        producer.send("greetings", b"hello")

Each runs the trio client in a thread of its own (portal.py). A call blocks its thread, so a program
of asyncio uses `minibroker.client.asyncio` instead.
"""

from minibroker.client.blocking.admin import Admin
from minibroker.client.blocking.consumer import Consumer
from minibroker.client.blocking.delivery_future import DeliveryFuture
from minibroker.client.blocking.producer import Producer

__all__ = ["Admin", "Consumer", "DeliveryFuture", "Producer"]
