"""`minibroker doctor`: finds problems of a cluster, or of the settings for a broker, and says what
to do about them.

It queries brokers (at every address that they advertise), reads the metadata store, and tests the
disk of a data directory on this machine. It changes nothing. `broker.findings` decides what each
finding means; `brokers` and `local` collect the data, and this module joins them.
"""

import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from minibroker.cli import DEFAULT_BOOTSTRAP
from minibroker.cli.settings import ConfigFile, Settings, given_settings, load_settings
from minibroker.cli.terminal import (
    FAILED,
    Bootstrap,
    Format,
    OutputFormat,
    TimeoutS,
    counted,
    printable,
)

if TYPE_CHECKING:
    from minibroker.broker.config import Config
    from minibroker.broker.findings import Finding
    from minibroker.broker.findings.brokers import BrokerSeen
    from minibroker.cli.doctor.brokers import ClusterSeen

TIMEOUT_S = 3.0


def doctor(
    context: typer.Context,
    file: ConfigFile = None,
    settings: Settings = None,
    *,
    data_dir: Annotated[
        Path | None,
        typer.Option(
            "--data-dir", "-d", help="Data directory whose disk is tried.", show_default=False
        ),
    ] = None,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout_s: TimeoutS = TIMEOUT_S,
    output: Format = OutputFormat.TEXT,
) -> None:
    """Look for what is wrong with a cluster, and say what to do about it.

    Without options the cluster at --bootstrap-server is asked. --config FILE
    (or --set) looks at the metadata store and the data directory that a broker
    with these settings has here, --data-dir at a directory alone; then brokers
    are asked only if --bootstrap-server is typed, too. Nothing is changed.
    Exit code 1 if there is a problem.
    """
    from minibroker.broker.findings import Level

    source = context.get_parameter_source("bootstrap")
    is_typed = source is not None and source.name == "COMMANDLINE"
    config = None
    if file is not None or settings:
        config = load_settings(file, given_settings(settings)).config
    findings: list[Finding] = []
    if is_typed or (config is None and data_dir is None):
        findings += of_cluster(bootstrap, timeout_s, config)
    if config is not None:
        findings += of_settings(config, data_dir)
    elif data_dir is not None:
        findings += of_directory(data_dir)
    show(findings, output)
    if any(finding.level is Level.PROBLEM for finding in findings):
        raise typer.Exit(FAILED)


def of_cluster(bootstrap: str, timeout_s: float, config: "Config | None") -> "Iterator[Finding]":
    """Yield findings about brokers, topics, groups and, if only brokers name it, the metadata
    store."""
    from minibroker import __version__
    from minibroker.broker.findings import Finding, Level
    from minibroker.broker.findings.brokers import of_bootstrap, of_brokers
    from minibroker.broker.findings.topics import of_refused_topics, of_timestamps, of_topics
    from minibroker.cli.doctor.brokers import ask_bootstrap, inspect_cluster
    from minibroker.client.errors import ClientError
    from minibroker.client.net.servers import parse_servers

    try:
        named = ask_bootstrap(parse_servers(bootstrap), timeout_s)
    except ValueError:
        raise typer.BadParameter(f"-b takes HOST:PORT, not {bootstrap!r}") from None
    yield from of_bootstrap(named)
    answered = [each for each in named if each.answer is not None]
    if not answered:
        return
    try:
        cluster = inspect_cluster(bootstrap, timeout_s)
    except ClientError as error:
        yield from of_brokers(_with_own_ids(answered), (), __version__)
        text = f"no broker tells what the cluster is: {error}"
        yield Finding(Level.PROBLEM, text, "see why the brokers above are not ready")
    else:
        yield from of_brokers(cluster.seen, cluster.tried, __version__)
        live = [each.node_id for each in cluster.seen]
        yield from of_topics(cluster.topics, cluster.configs, live)
        yield from of_moves(cluster)
        stamped = [
            stamp
            for each in cluster.seen
            if each.answer is not None
            for stamp in each.answer.far_stamped
        ]
        yield from of_timestamps(stamped, cluster.configs, int(time.time() * 1000))
        if cluster.refused is not None:
            yield from of_refused_topics(cluster.refused)
        yield from _of_groups(bootstrap, timeout_s)
        yield from _of_transactions(bootstrap, timeout_s)
        answered = [each for each in cluster.seen if each.answer is not None]
    if config is None:
        yield from _of_named_stores(answered)


def of_moves(cluster: "ClusterSeen") -> "Iterator[Finding]":
    """Yield findings about reassignments, and about the throttles of these and other copies."""
    from minibroker.broker.findings.reassignments import of_reassignments
    from minibroker.broker.findings.throttles import of_left_throttles, of_slow_replicas
    from minibroker.protocol.types import TopicPartition

    if cluster.refused is None:  # the controller was not asked
        return
    leaderless = {
        TopicPartition(topic.name, one.partition)
        for topic in cluster.topics
        for one in topic.partitions
        if one.leader_id < 0
    }
    heard = [each.node_id for each in cluster.seen if not each.is_fenced]
    yield from of_reassignments(cluster.adding, heard, leaderless)
    yield from of_left_throttles(cluster.configs, cluster.adding)
    quotas = cluster.quotas
    yield from of_slow_replicas(quotas.partitions, cluster.configs, quotas.limits, quotas.written)


def _of_groups(bootstrap: str, timeout_s: float) -> "Iterator[Finding]":
    from minibroker.broker.findings import Finding, Level
    from minibroker.broker.findings.groups import of_groups
    from minibroker.cli.doctor.brokers import inspect_groups
    from minibroker.client.errors import ClientError

    try:
        seen = inspect_groups(bootstrap, timeout_s)
    except ClientError as error:
        text = f"no broker tells what groups have committed: {error}"
        yield Finding(Level.PROBLEM, text, "see `minibroker group list`, and the findings above")
    else:
        yield from of_groups(seen.committed, seen.ranges, seen.silent, seen.unreadable)


def _of_transactions(bootstrap: str, timeout_s: float) -> "Iterator[Finding]":
    from minibroker.broker.findings import Finding, Level
    from minibroker.broker.findings.transactions import of_transactions
    from minibroker.cli.doctor.brokers import inspect_transactions
    from minibroker.client.errors import ClientError

    try:
        found, silent = inspect_transactions(bootstrap, timeout_s)
    except ClientError as error:
        text = f"no broker tells which transactions are open: {error}"
        yield Finding(Level.PROBLEM, text, "see `minibroker transaction list`")
    else:
        yield from of_transactions(found, silent, int(time.time() * 1000))


def _with_own_ids(answered: "Sequence[BrokerSeen]") -> "list[BrokerSeen]":
    """Return the answers with the ids that the brokers themselves gave; no other source has ids."""
    from dataclasses import replace

    return [replace(each, node_id=each.answer.node_id) for each in answered if each.answer]


def _of_named_stores(answered: "Sequence[BrokerSeen]") -> "Iterator[Finding]":
    from minibroker.broker.findings.storage import of_store
    from minibroker.cli.doctor.local import inspect_store

    stores = {
        each.answer.machine.store
        for each in answered
        if each.answer is not None and each.answer.machine is not None
    }
    for name in sorted(filter(None, stores)):
        config = load_settings(None, {"metadata.store": name}).config
        seen = inspect_store(config, is_named=False)
        if seen is not None:
            yield from of_store(seen)


def of_settings(config: "Config", data_dir: Path | None) -> "Iterator[Finding]":
    """Yield findings about what a broker with these settings would use on this machine."""
    from minibroker.broker.findings import Finding, Level
    from minibroker.broker.findings.storage import of_store
    from minibroker.broker.findings.topics import of_defaults
    from minibroker.cli.doctor.local import inspect_store

    yield from of_defaults(config)
    seen = inspect_store(config, is_named=True)
    if seen is None:
        text = "metadata.store=memory: forgets all topics when the broker stops"
        yield Finding(Level.NOTE, text, "name a store that lasts, unless this is a trial")
    else:
        yield from of_store(seen)
    yield from of_directory(data_dir or Path(config.log_dirs))


def of_directory(path: Path) -> "Iterator[Finding]":
    """Yield findings about the disk under a data directory."""
    from minibroker.broker.findings import storage
    from minibroker.cli.doctor.local import inspect_directory

    yield from storage.of_directory(inspect_directory(path))


def show(findings: "Sequence[Finding]", output: OutputFormat) -> None:
    """Print the findings, the worst first."""
    from minibroker.broker.findings import Level

    order = [Level.PROBLEM, Level.NOTE, Level.OK]
    found = sorted(findings, key=lambda finding: order.index(finding.level))
    problems = sum(finding.level is Level.PROBLEM for finding in found)
    if output is OutputFormat.JSON:
        rows = [finding._asdict() for finding in found]
        print(json.dumps({"problems": problems, "findings": rows}, indent=2))
        return
    for finding in found:
        print(f"{finding.level:<8} {printable(finding.what)}")
        if finding.advice:
            print(f"{'':<8}   to do: {finding.advice}")
    notes = sum(finding.level is Level.NOTE for finding in found)
    print(f"{counted(problems, 'problem')}, {counted(notes, 'note')}.")
