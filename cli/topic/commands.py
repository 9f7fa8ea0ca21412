"""`minibroker topic`: create, list, describe, alter, trim and delete topics.

`describe` prints the lines of Kafka's tool, because people grep them; the meaning of an
acknowledgement for the topic, and the state of compaction, go to stderr, and into the JSON.
"""

import base64
import json
from collections.abc import Iterable, Mapping
from operator import and_
from typing import TYPE_CHECKING, Annotated

import typer

from minibroker.cli import DEFAULT_BOOTSTRAP
from minibroker.cli.data.topic_metadata import matching_topics
from minibroker.cli.explain import TOPIC, Explain, explain
from minibroker.cli.settings import acknowledgement_of, acknowledging_replicas
from minibroker.cli.terminal import (
    DEFAULT_TIMEOUT_S,
    Bootstrap,
    Format,
    OutputFormat,
    TimeoutS,
    TopicArgument,
    TopicArguments,
    TopicOption,
    TopicOptions,
    confirm,
    counted,
    note,
    one_topic,
    opened_admin,
    pairs,
    some_topics,
    topic_names,
)
from minibroker.cli.topic.compaction import LogCompaction, compactions_of
from minibroker.cli.topic.disk import disk_rows, disk_table
from minibroker.cli.topic.reassign import ThrottleOption, alter_replication_factor
from minibroker.cli.topic.several import for_each

if TYPE_CHECKING:
    from minibroker.broker.findings.partitions import Health
    from minibroker.client.blocking import Admin
    from minibroker.protocol.messages.config_descriptions import ConfigDescription
    from minibroker.protocol.messages.metadata import TopicMetadata

MIN_ISR = "min.insync.replicas"
NAMES_SHOWN = 5

app = typer.Typer(
    help="Create, list, describe, alter, trim and delete topics.", no_args_is_help=True
)

Configs = Annotated[
    list[str] | None,
    typer.Option("--config", metavar="NAME=VALUE", help="Property of the topic; may be repeated."),
]

Assignment = Annotated[
    str | None,
    typer.Option(
        "--replica-assignment",
        metavar="1:2,2:3",
        help="Brokers of each partition, the preferred leader first.",
        show_default=False,
    ),
]


@app.command()
def create(
    topics: TopicArguments = None,
    *,
    topic_options: TopicOptions = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout_s: TimeoutS = DEFAULT_TIMEOUT_S,
    partitions: Annotated[
        int, typer.Option("--partitions", "-p", help="-1 takes the broker's default.")
    ] = -1,
    replication_factor: Annotated[
        int, typer.Option("--replication-factor", "-r", help="-1 takes the broker's default.")
    ] = -1,
    replica_assignment: Assignment = None,
    config: Configs = None,
    if_not_exists: Annotated[
        bool, typer.Option("--if-not-exists", help="No error for a topic that exists.")
    ] = False,
) -> None:
    """Create topics, all with the same settings."""
    from minibroker.client import NewTopic
    from minibroker.protocol.constants import ErrorCode
    from minibroker.protocol.errors import BrokerError

    names = topic_names(topics, topic_options)
    configs = pairs(config or [], "--config")
    assignments = dict(enumerate(_assigned(replica_assignment)))

    def create_one(name: str) -> None:
        try:
            admin.create_topics(
                NewTopic(name, partitions, replication_factor, configs, assignments)
            )
        except BrokerError as error:
            if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS or not if_not_exists:
                raise
            note(f"topic {name} is there already")
            return
        print(f"Created topic {name}.")
        if MIN_ISR in configs:
            _warn_of_min_isr(admin, name)

    with opened_admin(bootstrap, timeout_s) as admin:
        for_each(names, create_one)


def _assigned(text: str | None) -> list[list[int]]:
    """Parse the brokers of each partition, in the notation of Kafka's tool."""
    if text is None:
        return []
    try:
        return [[int(broker) for broker in one.split(":")] for one in text.split(",")]
    except ValueError:
        what = f"--replica-assignment {text!r}: broker ids, like 1:2,2:3 for two partitions"
        raise typer.BadParameter(what) from None


def _warn_of_min_isr(admin: "Admin", name: str) -> None:
    """Print a warning if min.insync.replicas is more than the topic's replicas."""
    [topic] = admin.describe_topics(name)
    [configs] = admin.describe_configs(name).values()
    values = {config.name: config.value for config in configs}
    replicas = len(topic.partitions[0].replicas)
    if int(values[MIN_ISR]) > replicas:
        has = "1 replica" if replicas == 1 else f"{replicas} replicas"
        note(
            f"WARNING: {MIN_ISR}={values[MIN_ISR]} is more than the {has} of {name}, and means"
            f" all of them: acks=all is refused as soon as one is not in sync"
        )


@app.command("list")
def list_topics(
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout_s: TimeoutS = DEFAULT_TIMEOUT_S,
    output: Format = OutputFormat.TEXT,
) -> None:
    """List the topics' names."""
    with opened_admin(bootstrap, timeout_s) as admin:
        names = admin.list_topics()
    if output is OutputFormat.JSON:
        print(json.dumps(names))
    else:
        print("".join(f"{name}\n" for name in names), end="")


@app.command()
def describe(
    topic: TopicArgument = None,
    *,
    topic_option: TopicOption = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout_s: TimeoutS = DEFAULT_TIMEOUT_S,
    under_replicated: Annotated[
        bool,
        typer.Option(
            "--under-replicated-partitions", help="Only partitions with a replica out of sync."
        ),
    ] = False,
    unavailable: Annotated[
        bool, typer.Option("--unavailable-partitions", help="Only partitions without a leader.")
    ] = False,
    under_min_isr: Annotated[
        bool,
        typer.Option("--under-min-isr-partitions", help="Only partitions that refuse acks=all."),
    ] = False,
    at_min_isr: Annotated[
        bool, typer.Option("--at-min-isr-partitions", help="Only partitions one replica from that.")
    ] = False,
    is_of_disk: Annotated[
        bool,
        typer.Option("--disk", help="Bytes of each replica, and what retention deletes next."),
    ] = False,
    explains: Explain = False,
    output: Format = OutputFormat.TEXT,
) -> None:
    """Show partitions, leaders, replicas and settings, of all topics if none is named."""
    from minibroker.broker.findings.partitions import Health

    filters = Health(under_replicated, unavailable, under_min_isr, at_min_isr)
    if is_of_disk and explains:
        raise typer.BadParameter("--explain is about partitions: leave out --disk")
    if is_of_disk and any(filters):
        raise typer.BadParameter("--disk shows all replicas: leave out the filters of partitions")
    with opened_admin(bootstrap, timeout_s) as admin:
        named = topic is not None or topic_option is not None
        names = [one_topic(topic, topic_option)] if named else admin.list_topics()
        topics = admin.describe_topics(*names)
        if is_of_disk:
            _print_disk(admin, topics, output)
            return
        configs = admin.describe_configs(*names)
        compacted = [name for name in names if _is_compacted(configs[name])]
        compactions = compactions_of(admin.describe_replicas(*compacted)) if compacted else {}
    shown = [_description(each, configs[each.name], filters, compactions) for each in topics]
    _print_topics(shown, topics, output, only_partitions=any(filters))
    if explains:
        for each in topics:
            _explain_partitions(each, configs[each.name])
        explain(TOPIC)


def _print_topics(
    shown: list[dict[str, object]],
    topics: "Iterable[TopicMetadata]",
    output: OutputFormat,
    *,
    only_partitions: bool,
) -> None:
    """Print topics, and warn of partitions without a leader."""
    from minibroker.broker.findings.partitions import awaited

    if output is OutputFormat.JSON:
        print(json.dumps(shown, indent=2))
        return
    for described in shown:
        _print_description(described, only_partitions=only_partitions)
    for each in topics:
        for partition in each.partitions:
            if why := awaited(partition):
                note(f"WARNING: {each.name}-{partition.partition} has no leader ({why})")


def _explain_partitions(topic: "TopicMetadata", configs: "Iterable[ConfigDescription]") -> None:
    """Print what follows for clients where not all is well with a partition."""
    from minibroker.broker.findings.partitions import health_of, needed_in_sync

    values = {config.name: config.value for config in configs}
    for each in topic.partitions:
        health = health_of(each, values)
        missing = ", ".join(str(node_id) for node_id in each.replicas if node_id not in each.isr)
        needed = needed_in_sync(len(each.replicas), values)
        if not health.is_under_replicated and not health.is_unavailable:
            continue
        state = f"{len(each.isr)} of {len(each.replicas)} replicas are in sync, not on {missing}"
        if health.is_unavailable:
            effect = "it has no leader, so nobody can write or read it"
        elif health.is_under_min_isr:
            effect = (
                f"acks=all needs {needed} ({MIN_ISR}) and is refused; what is committed is read"
            )
        elif health.is_at_min_isr:
            effect = f"acks=all needs {needed} ({MIN_ISR}); one less, and it is refused"
        else:
            effect = f"acks=all needs {needed} ({MIN_ISR}) and works"
        note(f"{topic.name}-{each.partition}: {state}; {effect}")


def _print_disk(admin: "Admin", topics: "Iterable[TopicMetadata]", output: OutputFormat) -> None:
    """Print a row for each replica of these topics."""
    names = [(topic.name, one.partition) for topic in topics for one in topic.partitions]
    rows = [*disk_rows(topics, admin.describe_log_dirs(names))]
    if output is OutputFormat.JSON:
        print(json.dumps([row._asdict() for row in rows], indent=2))
    else:
        print(disk_table(rows), end="")


def _is_compacted(configs: "Iterable[ConfigDescription]") -> bool:
    policies = [config.value for config in configs if config.name == "cleanup.policy"]
    return "compact" in ",".join(policies).split(",")


def _description(
    topic: "TopicMetadata",
    configs: "Iterable[ConfigDescription]",
    filters: "Health",
    compactions: "Mapping[tuple[str, int], list[LogCompaction]]",
) -> dict[str, object]:
    """Return a topic as JSON shows it, with the partitions that match one of the filters."""
    from minibroker.broker.findings.partitions import health_of, needed_in_sync

    values = {config.name: config.value for config in configs}
    replicas = max((len(each.replicas) for each in topic.partitions), default=0)
    own = {config.name: config.value for config in configs if not config.is_default}
    partitions = [
        each
        for each in topic.partitions
        if not any(filters) or any(map(and_, health_of(each, values), filters))
    ]
    return {
        "topic": topic.name,
        "topic_id": base64.urlsafe_b64encode(topic.topic_id).decode().rstrip("="),
        "partition_count": len(topic.partitions),
        "replication_factor": replicas,
        "configs": own,
        "acknowledgement": acknowledgement_of(values["flush"], int(values["flush.ms"]))
        + acknowledging_replicas(needed_in_sync(replicas, values), replicas),
        "partitions": [
            {
                "partition": each.partition,
                "leader": each.leader_id,
                "leader_epoch": each.leader_epoch,
                "replicas": list(each.replicas),
                "isr": list(each.isr),
                "offline_replicas": list(each.offline_replicas),
            }
            | (
                {"compaction": [one._asdict() for one in found]}
                if (found := compactions.get((topic.name, each.partition)))
                else {}
            )
            for each in partitions
        ],
    }


def _print_description(described: dict[str, object], only_partitions: bool) -> None:
    """Print Kafka's two kinds of lines."""
    name = described["topic"]
    configs = described["configs"]
    partitions = described["partitions"]
    assert isinstance(configs, dict)
    assert isinstance(partitions, list)
    if not only_partitions:
        print(
            f"Topic: {name}\tTopicId: {described['topic_id']}"
            f"\tPartitionCount: {described['partition_count']}"
            f"\tReplicationFactor: {described['replication_factor']}"
            f"\tConfigs: {','.join(f'{key}={value}' for key, value in configs.items())}"
        )
    for each in partitions:
        leader = each["leader"] if each["leader"] >= 0 else "none"
        print(
            f"\tTopic: {name}\tPartition: {each['partition']}\tLeader: {leader}"
            f"\tReplicas: {_joined(each['replicas'])}\tIsr: {_joined(each['isr'])}"
            "\tElr: \tLastKnownElr: "
        )
    for each in partitions:
        for one in each.get("compaction", ()):
            note(f"{name}-{each['partition']} on broker {LogCompaction(**one)}")
    if not only_partitions:
        note(f"{name}: {described['acknowledgement']}")


def _joined(ids: list[int]) -> str:
    return ",".join(str(each) for each in ids)


ReplicationFactor = Annotated[
    int | None,
    typer.Option(
        "--replication-factor",
        "-r",
        min=1,
        help="How many replicas each partition shall have.",
        show_default=False,
    ),
]


@app.command()
def alter(
    topic: TopicArgument = None,
    *,
    topic_option: TopicOption = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout_s: TimeoutS = DEFAULT_TIMEOUT_S,
    partitions: Annotated[
        int | None,
        typer.Option(
            "--partitions",
            "-p",
            min=1,
            help="How many partitions the topic shall have: more than now.",
            show_default=False,
        ),
    ] = None,
    replication_factor: ReplicationFactor = None,
    throttle: ThrottleOption = None,
    replica_assignment: Assignment = None,
    config: Configs = None,
    delete_config: Annotated[
        list[str] | None,
        typer.Option(
            "--delete-config", metavar="NAME", help="Property to set back to the broker's default."
        ),
    ] = None,
) -> None:
    """Change the named settings of a topic, or give it more partitions or other replicas.

    With more partitions records stay where they are, but a key may go to another partition from
    then on. --replica-assignment names the brokers of the new partitions only.
    --replication-factor adds replicas on live brokers, or removes the last ones.
    """
    name = one_topic(topic, topic_option)
    changes: dict[str, str | None] = dict(pairs(config or [], "--config"))
    changes |= dict.fromkeys(delete_config or [])
    assignments = _assigned(replica_assignment)
    if assignments and partitions is None:
        raise typer.BadParameter("--replica-assignment needs --partitions")
    if throttle is not None and replication_factor is None:
        raise typer.BadParameter("--throttle needs --replication-factor")
    if not changes and partitions is None and replication_factor is None:
        what = (
            "nothing to change: give --partitions, --replication-factor, --config or"
            " --delete-config"
        )
        raise typer.BadParameter(what)
    with opened_admin(bootstrap, timeout_s) as admin:
        if changes:
            admin.alter_configs({name: changes})
        if partitions is not None:
            chosen = {name: assignments} if assignments else None
            admin.create_partitions({name: partitions}, assignments=chosen)
        if replication_factor is not None:
            alter_replication_factor(admin, name, replication_factor, throttle)
    print(f"Altered topic {name}.")


@app.command(context_settings={"ignore_unknown_options": True})
def trim(
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    partition: Annotated[int, typer.Argument(metavar="PARTITION", min=0)],
    offset: Annotated[
        int, typer.Argument(metavar="OFFSET", min=-1, help="-1: delete all that is committed.")
    ],
    *,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout_s: TimeoutS = DEFAULT_TIMEOUT_S,
) -> None:
    """Delete the records of a partition below an offset, on every replica.

    Deleted records cannot be brought back.
    """
    topic = one_topic(topic, None)
    with opened_admin(bootstrap, timeout_s) as admin:
        [start] = admin.delete_records({(topic, partition): offset}).values()
    print(f"{topic}-{partition} begins at offset {start}.")


@app.command()
def delete(
    topics: TopicArguments = None,
    *,
    topic_options: TopicOptions = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout_s: TimeoutS = DEFAULT_TIMEOUT_S,
    if_exists: Annotated[
        bool, typer.Option("--if-exists", help="No error for a topic that does not exist.")
    ] = False,
    is_dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the topics' names; delete nothing.")
    ] = False,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Delete the topics of a pattern without asking.")
    ] = False,
) -> None:
    """Delete topics and all their records.

    TOPIC is a name, or a pattern that begins with ^ and matches from the beginning of a name; an
    internal topic is never matched.
    """
    from minibroker.protocol.constants import ErrorCode
    from minibroker.protocol.errors import BrokerError

    chosen = some_topics(topics, topic_options)

    def delete_one(name: str) -> None:
        try:
            admin.delete_topics(name)
        except BrokerError as error:
            if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION or not if_exists:
                raise
            note(f"there is no topic {name}")
            return
        print(f"Deleted topic {name}.")

    with opened_admin(bootstrap, timeout_s) as admin:
        names = chosen.names
        if chosen.pattern is not None:
            names = matching_topics(admin, names, chosen.pattern)
        if is_dry_run:
            for_each(names, lambda name: print(admin.describe_topics(name)[0].name))
            return
        if chosen.pattern is not None:
            confirm(f"Delete {counted(len(names), 'topic')} ({_some(names)})?", is_agreed=yes)
        for_each(names, delete_one)


def _some(names: list[str]) -> str:
    """Return the first names, for a question."""
    more = f", ... {names[-1]}" if len(names) > NAMES_SHOWN else ""
    return ", ".join(names[:NAMES_SHOWN]) + more
