"""The directories of logs: DESCRIBE_LOG_DIRS and ALTER_REPLICA_LOG_DIRS."""

from collections.abc import Generator, Iterator
from typing import Any, Final

from minibroker.protocol.constants import ELEMENTS_AT_ONCE, ApiKey
from minibroker.protocol.kafka import admin_apis
from minibroker.protocol.kafka.adapters.adapter import Adapter, Array, by_topic
from minibroker.protocol.kafka.schema import Version
from minibroker.protocol.messages.log_dirs import (
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    LogSize,
    WantedLogDirectory,
)
from minibroker.protocol.types import TopicPartition

_API: Final = admin_apis.DESCRIBE_LOG_DIRS
_RESULT: Final = _API.response.of("results")
_LOG: Final = _RESULT.of("topics").of("partitions").make


def _request(asked: Any, version: Version) -> DescribeLogDirsRequest:
    if asked.topics is None:
        return DescribeLogDirsRequest()
    partitions = [
        TopicPartition(topic.topic, number) for topic in asked.topics for number in topic.partitions
    ]
    return DescribeLogDirsRequest(tuple(partitions))


def _response(answer: DescribeLogDirsResponse, version: Version) -> Any:
    sizes = answer.total_bytes, answer.free_bytes
    results = [_RESULT.make(0, answer.directory, _topics(answer.logs), *sizes)]
    for other in answer.others:
        sizes = other.total_bytes, other.free_bytes
        results.append(_RESULT.make(other.error, other.directory, _topics(other.logs), *sizes))
    return _API.response.make(results=results)


def _topics(logs: tuple[LogSize, ...]) -> Any:
    return by_topic(_RESULT.of("topics").make, _log, logs)


def _log(one: LogSize) -> Any:
    return _LOG(one.partition, one.size, one.lag, one.is_future)


_ALTER: Final = admin_apis.ALTER_REPLICA_LOG_DIRS
_ALTERED: Final = _ALTER.response.of("results")


def _elements(asked: Any) -> Iterator[WantedLogDirectory | None]:
    """Yield None for each directory and topic of a request, and where each partition is to be."""
    for directory in asked.dirs:
        yield None
        for topic in directory.topics:
            yield None
            for number in topic.partitions:
                yield WantedLogDirectory(topic.name, number, directory.path)


def _alter_request(asked: Any, version: Version) -> AlterReplicaLogDirsRequest:
    return AlterReplicaLogDirsRequest(tuple([one for one in _elements(asked) if one is not None]))


def _alter_request_in_turns(
    asked: Any, version: Version
) -> Generator[None, None, AlterReplicaLogDirsRequest]:
    """Convert the request, with pauses."""
    wanted: list[WantedLogDirectory] = []
    for count, one in enumerate(_elements(asked), 1):
        if one is not None:
            wanted.append(one)
        if count % ELEMENTS_AT_ONCE == 0:
            yield
    return AlterReplicaLogDirsRequest(tuple(wanted))


def _alter_response(answer: AlterReplicaLogDirsResponse, version: Version) -> Any:
    make = _ALTERED.of("partitions").make
    results = by_topic(_ALTERED.make, lambda one: make(one.partition, one.error), answer.partitions)
    return _ALTER.response.make(results=results)


ADAPTERS: Final = (
    Adapter(
        _ALTER,
        ApiKey.ALTER_REPLICA_LOG_DIRS,
        _alter_request,
        _alter_response,
        in_turns=_alter_request_in_turns,
    ),
    Adapter(
        _API,
        ApiKey.DESCRIBE_LOG_DIRS,
        _request,
        _response,
        Array("topics", "partitions", "partitions"),
    ),
)
