"""python faust_table.py BOOTSTRAP APPLICATION DIRECTORY: counts the records of each word.

As WordCount.java, without a repartition topic. The table is in memory, so that each start reads it
from the topic of its changes.
"""

import sys
from collections.abc import AsyncIterator

import faust

bootstrap, application, directory = sys.argv[1:]
app = faust.App(
    application,
    broker=f"kafka://{bootstrap}",
    store="memory://",
    datadir=directory,
    web_enabled=False,
    topic_replication_factor=3,
    consumer_auto_offset_reset="earliest",
    broker_commit_interval=0.5,
    broker_session_timeout=6.0,
    broker_heartbeat_interval=1.0,
)
words = app.topic(f"{application}-words", key_serializer="raw", value_serializer="raw")
counted = app.topic(f"{application}-counts", key_serializer="raw", value_serializer="raw")
counts = app.Table("counts", default=lambda: [0, -1], partitions=4)


@app.agent(words)
async def count(stream: AsyncIterator) -> None:
    """Count each record once."""
    async for key, value in stream.items():
        word, number = key.decode(), int(value)
        found, last = counts[word]
        if number > last:
            found += 1
            counts[word] = [found, number]
        await counted.send(key=key, value=b"%d" % found)


faust.Worker(app, loglevel="INFO").execute_from_commandline()
