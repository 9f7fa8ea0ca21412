"""Examples of each command, which its help ends with. A test parses them all."""

from collections.abc import Mapping
from typing import Any, Final

EXAMPLES: Final[Mapping[str, tuple[str, ...]]] = {
    "start": (
        "start --data-dir data --listen 127.0.0.1:9092",
        "start --config server.properties --set flush=always",
    ),
    "produce": (
        "produce orders --file lines.txt",
        "produce orders -K : -H source=shell -z zstd",
        "produce copy -J --file records.jsonl",
    ),
    "consume": (
        "consume orders --from-beginning --exit-at-end",
        "consume orders '^log-.*' -o s@2026-03-01 --timeout-ms 5000 -J",
        "consume orders --group billing -f '%p %o %k %s\\n'",
    ),
    "health": ("health --ready", "health -b host-1,host-2 --ready"),
    "doctor": ("doctor -b host-1", "doctor --format json"),
    "top": ("top", "top -n 2 --interval-s 10 --rows 5"),
    "cluster up": ("cluster up -n 3", "cluster up -n 1 --data-dir trial --detach"),
    "cluster down": ("cluster down", "cluster down --data-dir trial"),
    "cluster status": ("cluster status --format json",),
    "cluster describe": ("cluster describe", "cluster describe --data-dir trial"),
    "cluster export": ("cluster export -o cluster.json",),
    "cluster purge": ("cluster purge --data-dir trial --yes",),
    "cluster roll": ("cluster roll --data-dir trial",),
    "cluster upgrade": ("cluster upgrade --dry-run",),
    "cluster start": ("cluster start 1 2",),
    "cluster stop": ("cluster stop 1",),
    "cluster kill": ("cluster kill 1",),
    "cluster pause": ("cluster pause 2",),
    "cluster resume": ("cluster resume 2",),
    "topic create": (
        "topic create orders bills --partitions 6 -r 3",
        "topic create state --config cleanup.policy=compact",
    ),
    "topic list": ("topic list", "topic list --format json"),
    "topic describe": (
        "topic describe orders",
        "topic describe --under-replicated-partitions",
    ),
    "topic alter": (
        "topic alter orders --partitions 12",
        "topic alter orders --config retention.ms=86400000",
    ),
    "topic trim": ("topic trim orders 0 1200",),
    "topic delete": ("topic delete orders bills", "topic delete '^trial-.*' --dry-run"),
    "group list": ("group list --state Empty",),
    "group describe": ("group describe billing", "group describe billing --members"),
    "group delete": ("group delete billing", "group delete billing --topic orders"),
    "group seek": (
        "group seek billing --all-topics --by-duration PT2H --dry-run",
        "group seek billing --topic orders:0,1 --to-offset 1000",
        "group seek billing --from-file offsets.csv",
    ),
    "transaction list": ("transaction list --state Ongoing",),
    "transaction describe": ("transaction describe payments-1",),
    "transaction abort": ("transaction abort payments-1",),
    "partition reassign": (
        "partition reassign --topic orders --brokers 1,2,4 --dry-run",
        "partition reassign --plan plan.json --throttle 50000000",
    ),
    "partition recover": ("partition recover orders 0",),
    "replica status": ("replica status orders",),
    "leader elect": (
        "leader elect --topic orders",
        "leader elect --unclean --topic orders --partition 0",
    ),
    "broker config": ("broker config 1",),
    "broker forget": ("broker forget 3",),
    "broker drain": ("broker drain 3",),
    "broker replace": ("broker replace 3 4",),
    "broker remove": ("broker remove 3",),
    "metadata export": ("metadata export backup.json",),
    "metadata restore": ("metadata restore backup.json --yes",),
    "log dump": ("log dump data/orders-0 --print-data-log",),
    "lab list": ("lab list",),
    "lab run": ("lab run hw-loss --rule hw",),
    "audit run": ("audit run minibroker-cluster --ledger told.jsonl",),
    "audit report": ("audit report audit-report",),
    "audit checks": ("audit checks",),
    "bench produce": ("bench produce -n 100000 --size 200",),
    "bench consume": ("bench consume -n 100000",),
    "bench latency": ("bench latency --seconds 5 --rate 1000",),
    "config show": ("config show --config server.properties",),
    "config check": ("config check server.properties --set flush=always",),
}


def add_examples(command: Any, path: tuple[str, ...] = ()) -> None:
    """Put the examples of a command, and of those below it, at the end of their help."""
    if examples := EXAMPLES.get(" ".join(path)):
        lines = "\n".join(f"  minibroker {example}" for example in examples)
        # click keeps the lines of a paragraph that begins with a backspace.
        command.epilog = f"\b\nExamples:\n{lines}"
    for name, each in getattr(command, "commands", {}).items():
        add_examples(each, (*path, name))
