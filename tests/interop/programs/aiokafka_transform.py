"""python aiokafka_transform.py BOOTSTRAP APPLICATION DIRECTORY: adds one to numbers.

As confluent_transform.py. An error ends the program.
"""

import asyncio
import sys

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

bootstrap, application = sys.argv[1:3]


async def main() -> None:
    """The producer starts first. That aborts the transaction of an earlier process, so that the
    consumer begins where the last committed one has ended."""
    producer = AIOKafkaProducer(
        bootstrap_servers=bootstrap, transactional_id=application, metadata_max_age_ms=1000
    )
    consumer = AIOKafkaConsumer(
        f"{application}-in",
        bootstrap_servers=bootstrap,
        group_id=application,
        group_instance_id=application,
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        isolation_level="read_committed",
        session_timeout_ms=6000,
        heartbeat_interval_ms=1000,
        metadata_max_age_ms=1000,
    )
    async with producer, consumer:
        while True:
            found = await consumer.getmany(timeout_ms=100, max_records=100)
            if not found:
                continue
            async with producer.transaction():
                sent = [
                    await producer.send(
                        f"{application}-out", b"%d" % (int(one.value) + 1), one.key, place.partition
                    )
                    for place, records in found.items()
                    for one in records
                ]
                await asyncio.gather(*sent)
                offsets = {place: records[-1].offset + 1 for place, records in found.items()}
                await producer.send_offsets_to_transaction(offsets, application)


asyncio.run(main())
