"""An asyncio worker: reads a topic in a group, works on records, and sends results to another.

    python examples/asyncio_worker.py 127.0.0.1:9092 FROM TO GROUP [COUNT]

A batch of records is worked on at once, by tasks. Offsets are committed when the results of a batch
are acknowledged. Ctrl-C cancels the worker where it is; what was not committed is read again by the
next one. With COUNT it ends after so many records.
"""

import asyncio
import sys

from minibroker.client import ConsumerRecord
from minibroker.client.asyncio import Consumer, DeliveryFuture, Producer


async def work(record: ConsumerRecord) -> bytes:
    """Stands for what takes time: a request to another service, for example."""
    await asyncio.sleep(0)
    return (record.value or b"").upper()


async def main(address: str, source: str, target: str, group: str, count: str = "") -> None:
    """Work until cancelled, or until there were so many records."""
    consumer = Consumer(
        address, group_id=group, auto_offset_reset="earliest", enable_auto_commit=False
    )
    left = int(count) if count else -1
    async with Producer(address) as producer, consumer:
        await consumer.subscribe(source)
        while left:
            records = await consumer.poll(1.0)
            results = await asyncio.gather(*map(work, records))
            sent: list[DeliveryFuture] = [
                await producer.send(target, result, record.key)
                for record, result in zip(records, results, strict=True)
            ]
            await asyncio.gather(*sent)  # raises the first failure
            if records:
                await consumer.commit()
            left -= len(records)


if __name__ == "__main__":
    try:
        asyncio.run(main(*sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
