"""Options of other Kafka clients that these do not have: for each, what to do instead.

Programs that move from kafka-python, aiokafka, confluent-kafka and Java bring their options. If a
known name were refused as "unknown", its user would look for a typing mistake; so each gets a
sentence. Names are written with underscores here; in an option dots mean the same.
"""

from typing import Final

# What these clients call it.
RENAMED: Final = {
    "auto_commit_enable": "enable.auto.commit",
    "batch_num_messages": "batch.size",
    "compression_codec": "compression.type",
    "fetch_message_max_bytes": "max.partition.fetch.bytes",
    "fetch_wait_max_ms": "fetch.max.wait.ms",
    "max_batch_size": "batch.size",
    "max_in_flight": "max.in.flight.requests.per.connection",
    "message_max_bytes": "max.request.size",
    "message_send_max_retries": "retries",
    "message_timeout_ms": "delivery.timeout.ms",
    "metadata_broker_list": "bootstrap.servers",
    "queue_buffering_max_kbytes": "buffer.memory",
    "queue_buffering_max_messages": "buffer.memory",
    "queue_buffering_max_ms": "linger.ms",
    "queued_max_messages_kbytes": "fetch.max.bytes",
    "queued_min_messages": "fetch.max.bytes",
    "rebalance_timeout_ms": "max.poll.interval.ms",
    "request_required_acks": "acks",
    "socket_timeout_ms": "request.timeout.ms",
    "topic_metadata_refresh_interval_ms": "metadata.max.age.ms",
}

_NO_SECURITY: Final = "there is no authentication and no encryption yet: leave it out"
_SERIALIZER: Final = "it is a function: pass it as a keyword of a producer"
_DESERIALIZER: Final = "it is a function: pass it as a keyword of a consumer"
_VERSIONS: Final = "client and broker agree on versions by themselves: leave it out"
_SYSTEM: Final = "the system chooses the size of its buffers: leave it out"
_STATISTICS: Final = "pass a function as the keyword on_statistics"
_LOGGING: Final = "clients log with Python's logging, as 'minibroker.client': set its level"
_METRICS: Final = "read statistics(), or pass a function as on_statistics"
_TESTED_EACH: Final = "a call raises what goes wrong: leave it out"

SENTENCES: Final = {
    "allow_auto_create_topics": "a consumer never creates a topic: create it with"
    " Admin.create_topics. One that comes to be later is read from then on",
    "api_version": _VERSIONS,
    "api_version_auto_timeout_ms": _VERSIONS,
    "api_version_request": _VERSIONS,
    "broker_version_fallback": _VERSIONS,
    "client_rack": "a consumer reads from leaders: leave it out",
    "connections_max_idle_ms": "an idle connection stays open: leave it out",
    "consumer_timeout_ms": "call poll with timeout_s: it returns no records when the time is over",
    "debug": _LOGGING,
    "default_offset_commit_callback": "pass a function as on_commit to commit_async",
    "enable_auto_offset_store": "only what the application has come back from is committed. To"
    " choose yourself set enable.auto.commit to false and call commit(record) after your work",
    "enable_partition_eof": "pass a function as the keyword on_partition_eof of a consumer",
    "error_cb": _TESTED_EACH,
    "exclude_internal_topics": "a pattern never matches internal topics: leave it out",
    "group_protocol": "members join by the classic protocol: leave it out",
    "group_remote_assignor": "choose partition.assignment.strategy",
    "interceptor_classes": "there are none: call your function before send or after poll",
    "key_deserializer": _DESERIALIZER,
    "key_serializer": _SERIALIZER,
    "kafka_client": "there is one implementation of the wire: leave it out",
    "log_level": _LOGGING,
    "logger": _LOGGING,
    "loop": "leave it out. In an asyncio program use minibroker.client.asyncio",
    "metric_group_prefix": _METRICS,
    "metric_reporters": _METRICS,
    "metrics_enabled": _METRICS,
    "metrics_num_samples": _METRICS,
    "metrics_sample_window_ms": _METRICS,
    "offset_store_method": "offsets are stored by the brokers: leave it out",
    "on_commit": "pass a function as on_commit to commit_async",
    "partitioner": "a key decides the partition as in Java's clients (murmur2). For another rule"
    " pass partition to send",
    "proxy_url": "connections are direct: leave it out",
    "receive_buffer_bytes": _SYSTEM,
    "receive_message_max_bytes": _SYSTEM,
    "selector": "connections belong to the loop: leave it out",
    "send_buffer_bytes": _SYSTEM,
    "sock_chunk_bytes": _SYSTEM,
    "socket_keepalive_enable": "connections are always kept alive: leave it out",
    "socket_nagle_disable": "it is always so: leave it out",
    "socket_options": _SYSTEM,
    "socket_receive_buffer_bytes": _SYSTEM,
    "socket_send_buffer_bytes": _SYSTEM,
    "statistics_cb": _STATISTICS,
    "stats_cb": _STATISTICS,
    "throttle_cb": "brokers do not throttle clients: leave it out",
    "on_delivery": "it is a function: pass it as the keyword on_delivery of a producer",
    "on_statistics": _STATISTICS,
    "value_deserializer": _DESERIALIZER,
    "value_serializer": _SERIALIZER,
}
# Names that begin with these.
FAMILIES: Final = {
    "oauth": _NO_SECURITY,
    "sasl_": _NO_SECURITY,
    "security_": _NO_SECURITY,
    "ssl_": _NO_SECURITY,
    "enable_ssl_": _NO_SECURITY,
}


def foreign_option(name: str) -> str | None:
    """Return what to do instead of an option; None for a name that no client of Kafka has."""
    if name in RENAMED:
        return f"it is called {RENAMED[name]} here"
    if name in SENTENCES:
        return SENTENCES[name]
    return next((text for start, text in FAMILIES.items() if name.startswith(start)), None)
