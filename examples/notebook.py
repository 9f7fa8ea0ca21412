# %% [markdown]
"""A notebook, in the percent format that Jupyter (with jupytext), VS Code and Spyder open.

No block surrounds cells, so clients are started in one and closed in another. Jupyter runs cells in
an event loop of asyncio: the blocking clients work there all the same, and stop the kernel's other
tasks while a cell waits. `await` with `minibroker.client.asyncio` does not.
"""

# %%
import os
from collections import Counter

from minibroker.client import ConsumerRecord
from minibroker.client.blocking import Consumer, Producer

ADDRESS = os.environ.get("MINIBROKER_BOOTSTRAP", "127.0.0.1:9092")
TOPIC = os.environ.get("NOTEBOOK_TOPIC", "notebook")

# %%
producer = Producer(ADDRESS).start()
for number in range(100):
    producer.send(TOPIC, b"%d" % number, key=b"even" if number % 2 == 0 else b"odd")
producer.flush()
producer.statistics()

# %%
consumer = Consumer(ADDRESS, auto_offset_reset="earliest").start()
consumer.assign_topics(TOPIC)
records: list[ConsumerRecord] = []
while any(consumer.lag().values()) or not records:
    records += consumer.poll(1.0)

# %%
counts = Counter((record.key or b"").decode() for record in records)
print(dict(counts))

# %%
consumer.close()
print(producer.close())
