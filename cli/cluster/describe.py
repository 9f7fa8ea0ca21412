"""`minibroker cluster describe`: the state of a cluster, as its brokers report it.

Three requests are sent: METADATA to the controller (who is live) and to any broker (leaders,
in-sync sets), and DESCRIBE_REPLICAS to every live broker. A paused broker is live until its session
ends and does not answer the third; the output shows that, since it is the broker to look at. While
no controller answers, another broker says who is live, and a note says that this may be out of
date: a broker that was paused knows nothing of what happened meanwhile.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from minibroker.cli.cluster.layout import DEFAULT_DIRECTORY, Layout
from minibroker.cli.explain import CLUSTER, Explain, explain
from minibroker.cli.terminal import (
    DEFAULT_TIMEOUT_S,
    Bootstrap,
    Format,
    OutputFormat,
    TimeoutS,
    note,
    opened_admin,
    printable,
)

if TYPE_CHECKING:
    from minibroker.client.admin import ClusterDescription, ReplicasReport
    from minibroker.protocol.messages.config_descriptions import ConfigDescription
    from minibroker.protocol.messages.metadata import PartitionMetadata, TopicMetadata

COUNTS = {
    "topic_count": "Topics",
    "partition_count": "Partitions",
    "under_replicated_count": "UnderReplicated",
    "under_min_isr_count": "UnderMinIsr",
    "offline_count": "Offline",
}


def describe(
    context: typer.Context,
    directory: Annotated[
        Path | None,
        typer.Option(
            "--data-dir",
            envvar="MINIBROKER_CLUSTER_DIR",
            help=f"Directory of the cluster; default: {DEFAULT_DIRECTORY}.",
        ),
    ] = None,
    *,
    bootstrap: Bootstrap = "",
    timeout_s: TimeoutS = DEFAULT_TIMEOUT_S,
    explains: Explain = False,
    output: Format = OutputFormat.TEXT,
) -> None:
    """Show live brokers, the controller, and partitions that are not well.

    The brokers are those of --data-dir; of another cluster, those at --bootstrap-server.
    """
    node_ids: Sequence[int] = ()
    is_asked_for = _is_typed(context, "bootstrap") and not _is_typed(context, "directory")
    if not is_asked_for and (directory is not None or not bootstrap):
        layout = Layout.load(directory or DEFAULT_DIRECTORY)
        bootstrap, node_ids = layout.bootstrap, layout.node_ids
    with opened_admin(bootstrap, timeout_s) as admin:
        cluster = admin.describe_cluster()
        names = admin.list_topics()
        topics = admin.describe_topics(*names)
        configs = admin.describe_configs(*names)
        report = admin.describe_replicas()
    if not cluster.is_from_controller:
        note("no controller answers; what is shown may be out of date: repeat the command")
    described = {
        "cluster_id": cluster.cluster_id,
        "controller": cluster.controller_id,
        "is_from_controller": cluster.is_from_controller,
        **_counts(topics, configs),
        "brokers": _brokers(cluster, topics, report, node_ids),
    }
    print(json.dumps(described, indent=2) if output is OutputFormat.JSON else _text(described))
    if explains:
        explain(CLUSTER)


def _is_typed(context: typer.Context, parameter: str) -> bool:
    """Whether a parameter is an option on the command line, which overrides its variable."""
    source = context.get_parameter_source(parameter)
    return source is not None and source.name == "COMMANDLINE"


def _counts(
    topics: "Sequence[TopicMetadata]", configs: "Mapping[str, Iterable[ConfigDescription]]"
) -> dict[str, int]:
    from minibroker.broker.findings.partitions import health_of

    healths = []
    for topic in topics:
        settings = {config.name: config.value for config in configs[topic.name]}
        healths += [health_of(partition, settings) for partition in topic.partitions]
    return {
        "topic_count": len(topics),
        "partition_count": len(healths),
        "under_replicated_count": sum(health.is_under_replicated for health in healths),
        "under_min_isr_count": sum(health.is_under_min_isr for health in healths),
        "offline_count": sum(health.is_unavailable for health in healths),
    }


def _brokers(
    cluster: "ClusterDescription",
    topics: "Iterable[TopicMetadata]",
    report: "ReplicasReport",
    node_ids: Iterable[int],
) -> list[dict[str, object]]:
    """Return the brokers that are live, that are assigned a replica, or that the directory has."""
    alive = {broker.node_id: broker for broker in cluster.brokers}
    epochs = {node_id: answer.broker_epoch for node_id, answer in report.answers.items()}
    partitions = [partition for topic in topics for partition in topic.partitions]
    holders = {node_id for partition in partitions for node_id in partition.replicas}
    return [
        {
            "broker": node_id,
            "is_live": node_id in alive,
            "is_fenced": node_id in alive and alive[node_id].is_fenced,
            "is_controller": node_id == cluster.controller_id,
            "epoch": epochs.get(node_id),
            "address": f"{alive[node_id].host}:{alive[node_id].port}" if node_id in alive else None,
            "rack": alive[node_id].rack if node_id in alive else None,
            **_shares(node_id, partitions),
        }
        for node_id in sorted(alive.keys() | holders | set(node_ids))
    ]


def _shares(node_id: int, partitions: "Sequence[PartitionMetadata]") -> dict[str, int]:
    return {
        "leader_count": sum(partition.leader_id == node_id for partition in partitions),
        "replica_count": sum(node_id in partition.replicas for partition in partitions),
        "in_sync_count": sum(node_id in partition.isr for partition in partitions),
    }


def _text(described: Mapping[str, object]) -> str:
    from minibroker.protocol.constants import NO_NODE

    brokers = described["brokers"]
    assert isinstance(brokers, list)
    controller = described["controller"] if described["controller"] != NO_NODE else "none"
    counts = "".join(f"\t{title}: {described[name]}" for name, title in COUNTS.items())
    lines = [
        f"Cluster: {described['cluster_id']}\tController: {controller}"
        f"\tLive: {sum(broker['is_live'] for broker in brokers)} of {len(brokers)}{counts}"
    ]
    for broker in brokers:
        epoch = broker["epoch"] if broker["epoch"] is not None else "no answer"
        word = "fenced" if broker["is_fenced"] else "live"
        state = "dead"
        if broker["is_live"]:
            rack = f"\tRack: {printable(broker['rack'])}" if broker["rack"] is not None else ""
            state = f"{word}\tAddress: {broker['address']}{rack}\tEpoch: {epoch}"
        lines.append(
            f"\tBroker: {broker['broker']}\tState: {state}\tLeaders: {broker['leader_count']}"
            f"\tReplicas: {broker['replica_count']}\tInSync: {broker['in_sync_count']}"
        )
    return "\n".join(lines)
