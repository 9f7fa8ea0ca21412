"""The clients for asyncio programs.

    from minibroker.client.asyncio import Producer

    async with Producer("127.0.0.1:9092") as producer:
        await producer.send("greetings", b"hello")

Each runs the trio client in a thread of its own (portal.py). They have the methods of the trio
clients: what is async there is async here, what is not is not. A cancelled task cancels its call.
"""

from minibroker.client.asyncio.admin import Admin
from minibroker.client.asyncio.consumer import Consumer
from minibroker.client.asyncio.delivery_future import DeliveryFuture
from minibroker.client.asyncio.producer import Producer

__all__ = ["Admin", "Consumer", "DeliveryFuture", "Producer"]
