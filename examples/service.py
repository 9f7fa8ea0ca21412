"""A web service with starlette: it takes events by HTTP, and shows what came last.

    python examples/service.py 127.0.0.1:9092 TOPIC PORT

The lifespan function starts both clients with the service and closes them with it. A POST answers
202 with the place of its record once every in-sync replica has it, and 503 if that takes too long.
A task reads the topic meanwhile, on all partitions and without a group, so every instance of the
service sees all events.
"""

import asyncio
import sys
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

from hypercorn.asyncio import serve
from hypercorn.config import Config
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from minibroker.client import ClientError
from minibroker.client.asyncio import Consumer, Producer


def application(address: str, topic: str) -> Starlette:
    """The service, for any server of ASGI."""
    producer = Producer(address, linger_ms=2, delivery_timeout_ms=10_000, request_timeout_ms=5_000)
    consumer = Consumer(address)
    latest: deque[str] = deque(maxlen=100)

    async def read() -> None:
        async for record in consumer:
            latest.append((record.value or b"").decode())

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with producer, consumer:
            await producer.send_and_wait(topic, b"the service starts")  # makes the topic, too
            await consumer.assign_topics(topic)
            reading = asyncio.create_task(read())
            yield
            reading.cancel()
            with suppress(asyncio.CancelledError):
                await reading

    async def post(request: Request) -> JSONResponse:
        try:
            place = await producer.send_and_wait(topic, await request.body())
        except ClientError as error:
            return JSONResponse({"error": str(error)}, status_code=503)
        return JSONResponse(place._asdict(), status_code=202)

    async def get(_: Request) -> JSONResponse:
        return JSONResponse(list(latest))

    routes = [Route("/events", post, methods=["POST"]), Route("/events", get)]
    return Starlette(routes=routes, lifespan=lifespan)


def main(address: str, topic: str, port: str) -> None:
    """Serve until interrupted."""
    config = Config()
    config.bind = [f"127.0.0.1:{port}"]
    app: Any = application(address, topic)  # hypercorn has other names for the types of ASGI
    asyncio.run(serve(app, config))


if __name__ == "__main__":
    main(*sys.argv[1:])
