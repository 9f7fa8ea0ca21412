"""Ports of a host that lead to ports of others, as an engine publishes those of containers.

    python -m tests.support.published 127.0.0.1:29092=kafka-1:9092 127.0.0.1:39092=kafka-2:9092

says `published` once all of them are open, and goes on until it is killed.
"""

import sys
from contextlib import AsyncExitStack

import trio

from tests.support.proxy import open_proxy


async def main() -> None:
    """Open them."""
    async with AsyncExitStack() as opened:
        for argument in sys.argv[1:]:
            source, target = argument.split("=")
            host, port = source.split(":")
            target_host, target_port = target.split(":")
            proxy = open_proxy(int(target_port), target_host, host=host, port=int(port))
            await opened.enter_async_context(proxy)
        print("published", flush=True)
        await trio.sleep_forever()


if __name__ == "__main__":
    trio.run(main)
