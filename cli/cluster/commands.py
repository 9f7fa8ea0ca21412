"""`minibroker cluster`: several brokers on this machine, one process each, and faults for them.

`up` starts them and keeps running; `status`, `down` and the commands for single brokers find them
by the directory. `layout` defines the directory, `process` a broker's process, `up` what the
command of that name does while it runs.
"""

import json
import os
import signal
import socket
from collections.abc import Callable
from typing import Annotated

import typer

from minibroker.cli.broker.data_directory import data_directory
from minibroker.cli.cluster.describe import describe
from minibroker.cli.cluster.export import export
from minibroker.cli.cluster.layout import (
    BASE_PORT,
    DEFAULT_DIRECTORY,
    HOST,
    DataDir,
    Layout,
    check_store,
    layout_for,
)
from minibroker.cli.cluster.process import Broker, State, wait_for
from minibroker.cli.cluster.purge import purge
from minibroker.cli.cluster.roll import roll
from minibroker.cli.cluster.up import StopSignals, watch
from minibroker.cli.cluster.up import start as start_brokers
from minibroker.cli.cluster.up import stop as stop_brokers
from minibroker.cli.cluster.upgrade import upgrade
from minibroker.cli.settings import Settings, given_settings
from minibroker.cli.terminal import Failure, Format, OutputFormat, counted, note

SIGNAL_S_MAX = 5.0

app = typer.Typer(help="Run several brokers on this machine.", no_args_is_help=True)

NodeIds = Annotated[list[int], typer.Argument(metavar="N", help="Numbers of brokers.")]


@app.command()
def up(
    directory: DataDir = DEFAULT_DIRECTORY,
    settings: Settings = None,
    *,
    broker_count: Annotated[
        int | None, typer.Option("--brokers", "-n", help="Number of brokers; default: 3.")
    ] = None,
    base_port: Annotated[
        int | None,
        typer.Option("--base-port", help="Port of broker 1; default: 9092."),
    ] = None,
    http_base_port: Annotated[
        int | None,
        typer.Option(
            "--http-base-port",
            help="Port of broker 1's health and metrics over HTTP; default: none.",
            show_default=False,
        ),
    ] = None,
    flush: Annotated[
        str,
        typer.Option(
            "--flush", metavar="never|interval|always", help="When records are forced to the disk."
        ),
    ] = "",
    is_detached: Annotated[
        bool,
        typer.Option("--detach", "-d", help="In the background: return once all brokers answer."),
    ] = False,
) -> None:
    """Start a cluster, and stop it at Ctrl-C.

    One directory keeps all of it, and the options of the first `up`. Started again with that
    directory, it continues where it stopped, even after `kill -9` of all brokers. Brokers that
    already run are kept. A second Ctrl-C kills them.
    """
    given = given_settings(settings) | ({"flush": flush} if flush else {})
    layout = layout_for(directory, broker_count, base_port, given, http_base_port)
    check_store(layout)
    brokers = _brokers(layout)
    _check_ports(layout, brokers)
    data_directory(layout.root)
    layout.save()
    with StopSignals(brokers) as signals:
        launches = start_brokers(layout, brokers, signals)
        print(f"Cluster started: {layout.bootstrap}", flush=True)
        if is_detached:
            return
        note(f"clients find it with: export MINIBROKER_BOOTSTRAP={layout.bootstrap}")
        note("Ctrl-C stops all brokers")
        watch(brokers, launches, signals)
        if signals.received:
            note("stopping all brokers; a second signal kills them")
        stop_brokers(brokers)
    print("Cluster stopped", flush=True)


def _check_ports(layout: Layout, brokers: list[Broker]) -> None:
    """Raise `Failure` for a port in use, before anything is started or written."""
    for broker in brokers:
        if broker.state.is_alive:
            continue
        try:
            socket.create_server((HOST, layout.port(broker.node_id))).close()
        except OSError as error:
            is_new = not layout.file.exists()
            other = "--base-port" if is_new else f"{BASE_PORT} in {layout.file}"
            reason = os.strerror(error.errno or 0)
            raise Failure(
                f"{broker.address}, where {broker} is to listen, cannot be used ({reason});"
                f" stop who listens there, or choose other ports with {other}"
            ) from None


@app.command()
def down(directory: DataDir = DEFAULT_DIRECTORY) -> None:
    """Stop all brokers in order, paused ones too."""
    stopped = stop_brokers(_brokers(Layout.load(directory)))
    print(f"Stopped {counted(len(stopped), 'broker')}.")


@app.command()
def status(directory: DataDir = DEFAULT_DIRECTORY, output: Format = OutputFormat.TEXT) -> None:
    """Show the brokers' processes; no broker is asked (`describe` asks them)."""
    layout = Layout.load(directory)
    rows = [
        {
            "broker": broker.node_id,
            "state": state,
            "pid": pid,
            "address": broker.address,
            "log": str(broker.log_file),
        }
        for broker in _brokers(layout)
        for pid, state in [broker.inspect()]
    ]
    if output is OutputFormat.JSON:
        print(json.dumps({"directory": str(layout.root), "brokers": rows}))
        return
    running = sum(row["state"] is State.RUNNING for row in rows)
    print(f"Cluster: {layout.root}\tBrokers: {len(rows)}\tRunning: {running}")
    for row in rows:
        print(
            f"\tBroker: {row['broker']}\tState: {row['state']}\tPid: {row['pid'] or 'none'}"
            f"\tAddress: {row['address']}\tLog: {row['log']}"
        )


app.command("describe")(describe)
app.command("export")(export)
app.command("purge")(purge)
app.command("roll")(roll)
app.command("upgrade")(upgrade)


@app.command()
def start(node_ids: NodeIds, directory: DataDir = DEFAULT_DIRECTORY) -> None:
    """Start brokers that do not run, and return once they answer."""
    layout = Layout.load(directory)
    check_store(layout)
    brokers = _named(layout, node_ids)
    _check_ports(layout, brokers)
    with StopSignals(brokers) as signals:
        start_brokers(layout, brokers, signals)


@app.command()
def stop(node_ids: NodeIds, directory: DataDir = DEFAULT_DIRECTORY) -> None:
    """Stop brokers in order: each first gives its leaderships away."""
    brokers = _named(Layout.load(directory), node_ids)
    for broker in brokers:
        if not broker.state.is_alive:
            note(f"{broker} does not run")
    for broker in stop_brokers(brokers):
        print(f"Stopped broker {broker.node_id}.")


@app.command()
def kill(node_ids: NodeIds, directory: DataDir = DEFAULT_DIRECTORY) -> None:
    """End brokers at once, as `kill -9` does."""
    brokers = _named(Layout.load(directory), node_ids)
    sent = _send(brokers, signal.SIGKILL, lambda state: not state.is_alive)
    for broker in brokers:
        broker.forget()
    _report(brokers, sent, "Killed")


@app.command()
def pause(node_ids: NodeIds, directory: DataDir = DEFAULT_DIRECTORY) -> None:
    """Pause brokers (SIGSTOP), as on a machine that hangs: their sockets stay open.

    No broker is paused inside of a write to the metadata store: the others could write nothing.
    """
    brokers = _named(Layout.load(directory), node_ids)
    sent = _send(brokers, signal.SIGSTOP, _is_not_running)
    for broker in sent:
        _pause_between_writes(broker)
    _report(brokers, sent, "Paused")


@app.command()
def resume(node_ids: NodeIds, directory: DataDir = DEFAULT_DIRECTORY) -> None:
    """Resume paused brokers (SIGCONT)."""
    brokers = _named(Layout.load(directory), node_ids)
    sent = _send(brokers, signal.SIGCONT, lambda state: state is not State.PAUSED)
    _report(brokers, sent, "Resumed")


def _send(
    brokers: list[Broker], number: signal.Signals, is_done: Callable[[State], bool]
) -> list[Broker]:
    """Send the signal to all brokers at once, and wait until it takes effect. Return those that
    run."""
    sent = [broker for broker in brokers if broker.send(number)]
    if not wait_for(lambda: all(is_done(broker.state) for broker in sent), SIGNAL_S_MAX):
        raise Failure(f"no effect of {number.name} within {SIGNAL_S_MAX:.0f} s")
    return sent


def _is_not_running(state: State) -> bool:
    return state is not State.RUNNING


def _pause_between_writes(broker: Broker) -> None:
    from minibroker.broker.metadata.sqlite_locks import pause_between_writes

    def stop() -> None:
        _send([broker], signal.SIGSTOP, _is_not_running)

    def go_on() -> None:
        broker.send(signal.SIGCONT)

    pid = broker.pid
    if pid is not None:
        pause_between_writes(pid, stop, go_on)


def _report(brokers: list[Broker], sent: list[Broker], done: str) -> None:
    for broker in sent:
        print(f"{done} broker {broker.node_id}.")
    if missing := [broker for broker in brokers if broker not in sent]:
        raise Failure(f"{', '.join(map(str, missing))} does not run")


def _brokers(layout: Layout) -> list[Broker]:
    return [Broker(layout, node_id) for node_id in layout.node_ids]


def _named(layout: Layout, node_ids: list[int]) -> list[Broker]:
    return [Broker(layout, node_id) for node_id in layout.checked_node_ids(node_ids)]
