"""What `test_tidy` goes by: who may import whom, which files are pure, and the exceptions.

A new file of the product that a rule concerns is entered here.
"""

import sys

# Who may import whom. The longest prefix of a module's name decides, and an import is allowed if
# it lies under one of the names. "broker" alone is the package itself, which holds nothing.
MAY_IMPORT = {
    "protocol": "protocol",
    "client": "protocol client",
    "client.net": "__version__ protocol client.errors client.options client.net",
    "client.producer": "protocol client.committed_offsets client.errors client.option_types"
    " client.options client.ledger client.net client.serialization client.producer",
    "broker": "",
    "broker.clock": "",
    "broker.defects": "",
    "broker.descriptors": "",
    "broker.disk": "protocol broker.log.files broker.private_files",
    "broker.duties": "broker.config broker.log.housekeeping broker.replication.log_cleaner",
    "broker.errors": "protocol",
    "broker.histogram": "",
    "broker.machine": "__version__",
    "broker.turns": "",
    "broker.wall_clock": "",
    "broker.config_property": "protocol",
    "broker.properties": "protocol broker.config_property broker.properties",
    "broker.config": "protocol broker.config_property broker.properties broker.config_sources"
    " broker.log",
    "broker.config_page": "broker.config_property broker.properties",
    "broker.config_sources": "broker.config_property",
    "broker.findings": "protocol broker.config broker.properties broker.findings",
    "broker.log": "protocol broker.descriptors broker.errors broker.log broker.metadata.model"
    " broker.turns",
    "broker.metadata": "protocol broker.metadata",
    "broker.metadata.model": "protocol",
    "broker.metadata.sqlite_file": "protocol broker.metadata broker.private_files",
    "broker.metadata.sqlite_locks": "",
    "broker.metadata.sqlite_store": "protocol broker.metadata broker.disk",
    "broker.replication": "protocol client.net.network client.net.channel"
    " client.net.blocking_channel broker.config broker.errors broker.log broker.metadata.model"
    " broker.metadata.cache broker.metadata.orders"
    " broker.descriptors broker.histogram broker.turns broker.replication",
    "broker.controller": "protocol client.net.network client.net.channel broker.config"
    " broker.defects broker.errors broker.log"
    " broker.metadata broker.turns broker.controller",
    "broker.coordination": "protocol broker.errors broker.log broker.metadata.model"
    " broker.replication broker.turns broker.coordination",
    "broker.groups": "protocol broker.config broker.coordination broker.errors broker.log"
    " broker.metadata.model broker.replication broker.turns broker.groups",
    "broker.transactions": "protocol client.net.network client.net.channel broker.config"
    " broker.coordination broker.errors broker.log broker.metadata.model broker.replication"
    " broker.turns broker.transactions",
    "broker.server": "protocol client.net.network broker.config broker.defects broker.errors"
    " broker.log broker.metadata.model broker.replication broker.controller broker.groups"
    " broker.coordination broker.transactions broker.machine"
    " broker.observe.readiness broker.descriptors broker.histogram broker.turns"
    " broker.wall_clock broker.server",
    "broker.observe": "protocol broker.config broker.metadata.model broker.observe",
    "broker.observe.sources": "protocol broker.replication broker.server",
    "broker.observe.loop_lag": "broker.histogram",
    "broker.observe.pages": "broker.observe",
    "broker.observe.http": "protocol broker.server.listener broker.observe",
    "broker.observe.metrics": "protocol broker.histogram broker.machine broker.turns"
    " broker.metadata.model broker.replication broker.controller.statistics"
    " broker.groups.coordinator broker.server.request_times broker.observe",
    "broker.observe.readiness": "protocol broker.metadata.model broker.replication",
    "broker.app": "protocol client.net.network client.net.channel broker",
    "testing": "protocol client broker testing",
    "testing.kit.audited": "protocol audit.files testing.kit",
    "testing.kit.broker_history": "protocol client broker.groups.records testing.kit",
    "testing.kit": "protocol client broker.metadata.sqlite_locks testing.kit testing.node.faults"
    " testing.node.settings",
    "testing.node": "protocol client.net.network broker cli testing.node testing.store",
    "testing.pytest_plugin": "testing.kit",
    "audit": "protocol client.blocking audit",
    "audit.network.options": "protocol client.errors client.options",
    "cli": "__version__ audit broker cli client protocol testing",
    "package": "cli",
}

# Pure: no `async def`, no clock, no randomness, no sockets. A folder stands for all files in it.
PURE_FILES = """
    protocol/ broker/config_property.py broker/properties/ broker/config.py broker/config_page.py
    broker/config_sources.py broker/descriptors.py broker/errors.py broker/findings/
    broker/histogram.py broker/log/
    broker/server/request_times.py broker/metadata/model.py broker/metadata/cache.py
    broker/metadata/orders.py broker/metadata/etcd_codec.py broker/wall_clock.py
    broker/replication/descriptions.py broker/replication/roles.py broker/replication/partition.py
    broker/replication/corruption.py broker/replication/events.py broker/replication/follower.py
    broker/replication/follower_silence.py
    broker/replication/fetch_plan.py broker/replication/quotas.py
    broker/replication/verified_appends.py
    broker/controller/brokers.py broker/controller/backoff.py
    broker/controller/controller_lease.py broker/controller/deletions.py
    broker/controller/elections.py broker/controller/entries.py broker/controller/heartbeats.py
    broker/controller/isr.py broker/controller/moves.py broker/controller/liveness.py
    broker/controller/placement.py broker/controller/plans.py broker/controller/pushes.py
    broker/controller/reassignments.py broker/controller/request_plans.py
    broker/controller/requests.py broker/controller/state.py broker/controller/statistics.py
    broker/controller/topics.py broker/observe/readiness.py broker/replication/statistics.py
    broker/groups/consumer_records.py broker/coordination/record_fields.py
    broker/groups/consumer_group.py broker/groups/consumer_heartbeats.py
    broker/groups/consumer_journal.py broker/groups/consumer_state.py
    broker/groups/server_assignors.py broker/groups/subscriptions.py
    broker/coordination/name_pattern.py
    broker/groups/group.py broker/groups/member.py broker/groups/outbox.py broker/groups/records.py
    broker/groups/group_members.py broker/groups/member_index.py broker/groups/states.py
    broker/coordination/replay.py broker/coordination/shard.py
    broker/groups/offsets.py broker/groups/shard.py
    broker/transactions/markers.py broker/transactions/records.py broker/transactions/shard.py
    broker/transactions/states.py broker/transactions/table.py broker/transactions/transaction.py
    broker/groups/registry.py
    client/consumer/assigned_partition.py client/consumer/completed_fetch.py
    client/consumer/delivered_positions.py client/foreign_options.py client/topic_selection.py
    client/committed_offsets.py client/consumer/aborted_transactions.py
    client/producer/transaction_manager.py
    client/consumer/failure_pace.py client/consumer/health.py client/consumer/positions.py
    client/groups/assignors.py client/groups/membership.py client/groups/sticky.py
    client/net/metadata.py client/net/servers.py client/producer/accumulator.py
    client/producer/batches.py client/producer/partitioner.py client/producer/raw_record.py
    client/producer/routes.py client/producer/sequence_numbers.py testing/lab/
"""
PURE = PURE_FILES.split()
# The interface of a disk has one async function, whose forms live in disk.py; the lab's broker
# has a flusher, which never runs. A sealed file passes that function on.
# The lab's store has the calls of a store, and lets them go on step by step ("": an `await`).
ASYNC_ALLOWED = {
    ("broker/log/files.py", "sync"),
    ("broker/log/guarded_files.py", "sync"),
    ("broker/log/guarded_files.py", ""),
    ("broker/log/sealed_files.py", "sync"),
    ("broker/log/sealed_files.py", ""),
    ("testing/lab/machine.py", "sync_dir"),
    ("testing/lab/claims.py", "get"),
    ("testing/lab/claims.py", "transact"),
    ("testing/lab/claims.py", ""),
}
NOT_IN_PURE = {
    "asyncio",
    "trio",
    "threading",
    "concurrent",
    "subprocess",
    "signal",
    "select",
    "selectors",
    "socket",
    "socketserver",
    "ssl",
    "http",
    "httpx",
    "secrets",
    "time",
    "uuid",
}
# The protocol can be used alone.
PROTOCOL_LIBRARIES = sys.stdlib_module_names | {"minibroker", "msgpack", "crc32c", "cramjam"}

# The only files that leave the loop or start a thread.
THREADS_ALLOWED = {
    "testing/kit/history.py": "what threads of a user's program call",
    "testing/kit/brokers.py": "what threads of a test call: one rolls, one makes faults",
    "broker/disk.py": "the one way to leave the loop: fsync, recovery at start-up, SQLite",
    "broker/replication/fetch_thread.py": "a follower copies by threads",
    "broker/metadata/sqlite_store.py": "starts none, but wakes the worker that watches the file",
    "client/blocking/": "the blocking clients run the loop in a thread",
    "audit/run.py": "checks run side by side",
    "audit/checks/memoize.py": "a lock for what checks share",
    "audit/progress.py": "looks at what Spark does while the driver waits for it",
}
# The only files that read a real clock, and those that make a random generator.
CLOCK_ALLOWED = {
    "broker/clock.py": "the broker's real clock",
    "client/options.py": "makes the real seams of a client",
    "client/asyncio/": "its callers have no loop of trio's whose clock they could ask",
    "client/blocking/": "its callers have no loop whose clock they could ask",
    "testing/node/disk.py": "a real disk that is slow",
    "testing/kit/": "its brokers are processes, which run on real time",
}
RANDOM_ALLOWED = {"client/options.py": "makes the real seams of a client"}
CLOCK_AND_RANDOM_FREE = ("broker", "client", "protocol", "testing")

# What is larger than `test_tidy` asks about and still one thing, with the reason: a file's path, or
# PATH:NAME for a class or function in it.
SIZES_ALLOWED: dict[str, str] = {
    "broker/groups/registry.py:GroupRegistry": "the one owner of a partition's live groups: what"
    " finds, converts and stores them keeps writes, tickets and deadlines together",
    "broker/log/log.py": "the class below, and nothing else",
    "broker/log/log.py:Log": "the only writer of one log's bytes, ends and epochs: what appends,"
    " cuts and begins again changes them together",
    "broker/log/segment.py:Segment": "the one owner of a segment's file and indexes: what appends,"
    " walks, cuts and seals changes them together",
    "broker/log/log_directory.py:LogDirectory": "the one owner of a log directory and of the table"
    " of its logs, from the start to the end of each",
    "broker/log/manager.py:LogManager": "the one owner of all log directories; most methods pass to"
    " one of them, or to each",
    "broker/replication/replicas.py:Replicas": "the one door to all replicas: orders, appends,"
    " fetches and flushes; most methods pass to a partition and notify",
    "client/producer/accumulator.py:Accumulator": "the one owner of the partitions' queues and of"
    " buffer.memory: what it counts must change together",
    "protocol/rpc/codec.py": "a message's bytes, both ways, at once and in turns: the four share"
    " how types are told apart",
    "client/producer/producer.py": "what an application calls: a third of it is what the calls say"
    " of themselves",
    "client/producer/producer.py:Producer": "what an application calls: taking records, the fastest"
    " path there is, and waiting for them, on the same memory",
    "testing/kit/history.py:History": "what a test calls: each method records an event or checks a"
    " promise, on the same lists under one lock",
    "testing/kit/cluster.py:KafkaCluster": "what a test calls: each method makes a fault, waits for"
    " a state or looks at one",
    "client/admin.py": "the class below, and what its calls return",
    "client/admin.py:Admin": "what an application calls: each method is a request and what its"
    " answer means",
    "client/consumer/consumer.py": "what an application calls: half of it is what the calls say of"
    " themselves",
    "client/consumer/consumer.py:Consumer": "what an application calls: most methods are a few"
    " lines, and hand over to the positions, the fetcher or the group",
    "broker/groups/group.py:Group": "one state machine: each request, deadline and write changes"
    " the same state",
    "broker/groups/consumer_group.py:ConsumerGroup": "one state machine: the steps of a heartbeat"
    " and deadlines change the same epochs, assignments and sessions",
    "client/groups/consumer_group.py:ConsumerGroup": "what is assigned, committed and released"
    " changes under one lock, step by step; the steps are here, what they use is elsewhere",
    "client/consumer/positions.py:Positions": "one table of partitions, seen by the application,"
    " the group and the brokers; most methods are a few lines",
    "tests/audit/test_verdicts.py": "one table of corruptions, which two audits judge together,"
    " since an audit costs more than all of its cases",
}
