"""`minibroker transaction`: list, describe and abort transactions."""

import json
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from minibroker.cli import DEFAULT_BOOTSTRAP
from minibroker.cli.terminal import (
    DEFAULT_TIMEOUT_S,
    Bootstrap,
    Failure,
    Format,
    OutputFormat,
    TimeoutS,
    in_columns,
    note,
    opened_admin,
    printable,
)

if TYPE_CHECKING:
    from minibroker.client.transactions_admin import TransactionDescription, TransactionsReport

STATES = (
    "Empty",
    "Ongoing",
    "PrepareCommit",
    "PrepareAbort",
    "CompleteCommit",
    "CompleteAbort",
)

HEADS = (
    "TRANSACTIONAL-ID",
    "COORDINATOR",
    "PRODUCER-ID",
    "EPOCH",
    "STATE",
    "TIMEOUT-MS",
    "OPEN-MS",
    "PARTITIONS",
)

app = typer.Typer(help="List, describe and abort transactions.", no_args_is_help=True)
IdArguments = Annotated[list[str], typer.Argument(metavar="ID", show_default=False)]


@app.command("list")
def list_transactions(
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout_s: TimeoutS = DEFAULT_TIMEOUT_S,
    state: Annotated[
        list[str] | None,
        typer.Option(
            "--state",
            metavar="STATE",
            help=f"Only transactional ids in one of these states: {', '.join(STATES)}.",
        ),
    ] = None,
    output: Format = OutputFormat.TEXT,
) -> None:
    """List transactional ids, with their producers and states."""
    wanted = [_state(each) for text in state or [] for each in text.split(",")]
    with opened_admin(bootstrap, timeout_s) as admin:
        report = admin.list_transactions(*wanted)
    if output is OutputFormat.JSON:
        shown = [
            {
                "transactional_id": one.transactional_id,
                "producer_id": one.producer_id,
                "state": one.state,
            }
            for one in report.transactions
        ]
        print(json.dumps(shown, indent=2))
    else:
        rows = [
            (printable(one.transactional_id), str(one.producer_id), one.state)
            for one in report.transactions
        ]
        print(in_columns(("TRANSACTIONAL-ID", "PRODUCER-ID", "STATE"), rows), end="")
    _report_missing(report)


def _state(text: str) -> str:
    """Return the state with this name, in any case."""
    for state in STATES:
        if text.strip().lower() == state.lower():
            return state
    raise typer.BadParameter(f"--state takes {', '.join(STATES)}, not {text!r}")


def _report_missing(report: "TransactionsReport") -> None:
    """Raise `Failure` (exit code 1) if there may be ids that no broker reported."""
    for node_id, reason in sorted(report.silent.items()):
        note(f"broker {node_id} does not say which transactional ids it keeps: {reason}")
    for partition in report.leaderless:
        note(f"{partition} has no leader, so no broker reports the transactional ids in it")
    if report.silent or report.leaderless:
        raise Failure("there may be more transactional ids than these")


@app.command()
def describe(
    ids: IdArguments,
    *,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout_s: TimeoutS = DEFAULT_TIMEOUT_S,
    output: Format = OutputFormat.TEXT,
) -> None:
    """Describe transactional ids: coordinator, producer, state, and the open transaction."""
    with opened_admin(bootstrap, timeout_s) as admin:
        described = admin.describe_transactions(*dict.fromkeys(ids))
    now_ms = int(time.time() * 1000)
    if output is OutputFormat.JSON:
        print(json.dumps([_as_json(one) for one in described], indent=2))
        return
    print(in_columns(HEADS, [_row(one, now_ms) for one in described]), end="")


def _row(one: "TransactionDescription", now_ms: int) -> tuple[object, ...]:
    return (
        printable(one.transactional_id),
        one.coordinator_id,
        one.producer_id,
        one.producer_epoch,
        one.state,
        one.timeout_ms,
        None if one.started_ms < 0 else max(0, now_ms - one.started_ms),
        ",".join(map(str, one.partitions)) or None,
    )


def _as_json(one: "TransactionDescription") -> dict[str, Any]:
    return {
        "transactional_id": one.transactional_id,
        "coordinator": one.coordinator_id,
        "producer_id": one.producer_id,
        "producer_epoch": one.producer_epoch,
        "state": one.state,
        "timeout_ms": one.timeout_ms,
        "started_ms": one.started_ms if one.started_ms >= 0 else None,
        "partitions": [list(name) for name in one.partitions],
    }


@app.command()
def abort(
    ids: IdArguments,
    *,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout_s: TimeoutS = DEFAULT_TIMEOUT_S,
) -> None:
    """Abort the open transaction of transactional ids, and fence their producers."""
    from minibroker.protocol.errors import BrokerError

    failures = 0
    with opened_admin(bootstrap, timeout_s) as admin:
        for transactional_id in dict.fromkeys(ids):
            try:
                admin.abort_transaction(transactional_id)
                print(f"Aborted the transaction of {printable(transactional_id)}.")
            except BrokerError as error:
                if len(ids) == 1:
                    raise
                failures += 1
                note(f"ERROR: {error}")
    if failures:
        raise Failure(f"{failures} of {len(ids)} transactions not aborted")
