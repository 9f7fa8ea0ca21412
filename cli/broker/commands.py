"""`minibroker broker`: the brokers of a cluster, and their settings."""

import json
from typing import Annotated

import typer

from minibroker.cli import DEFAULT_BOOTSTRAP
from minibroker.cli.broker.move import drain, remove, replace
from minibroker.cli.terminal import (
    DEFAULT_TIMEOUT_S,
    Bootstrap,
    Format,
    OutputFormat,
    TimeoutS,
    opened_admin,
)

app = typer.Typer(help="Show and manage the brokers of a cluster.", no_args_is_help=True)


@app.callback()
def broker() -> None:
    """Show and manage the brokers of a cluster."""


@app.command()
def config(
    node_id: Annotated[int, typer.Argument(metavar="N", min=0, help="The broker's number.")],
    *,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout_s: TimeoutS = DEFAULT_TIMEOUT_S,
    output: Format = OutputFormat.TEXT,
) -> None:
    """Show the settings that a running broker has.

    A star marks those that are not the default. `minibroker config show` shows the settings that a
    broker started here would have.
    """
    with opened_admin(bootstrap, timeout_s) as admin:
        configs = admin.describe_broker_configs(node_id)
    if output is OutputFormat.JSON:
        rows = [
            {
                "name": each.name,
                "value": each.value,
                "is_default": each.is_default,
                "unit": each.unit,
                "meaning": each.documentation,
            }
            for each in configs
        ]
        print(json.dumps(rows, indent=2))
        return
    for each in configs:
        print(f"{' ' if each.is_default else '*'} {each.name}={each.value}")


@app.command()
def forget(
    node_id: Annotated[int, typer.Argument(metavar="N", min=0, help="The broker's number.")],
    *,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout_s: TimeoutS = DEFAULT_TIMEOUT_S,
) -> None:
    """Forget a broker that will not come back.

    New topics get no more replicas on it, and deleted topics no longer wait for it. Refused while
    the broker is alive or holds a replica.
    """
    with opened_admin(bootstrap, timeout_s) as admin:
        admin.unregister_broker(node_id)
    print(f"Forgot broker {node_id}.")


app.command()(drain)
app.command()(replace)
app.command()(remove)
