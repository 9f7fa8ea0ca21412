"""`minibroker broker`: what the cluster knows of its brokers."""

from typing import Annotated

import typer

from minibroker.cli import DEFAULT_BOOTSTRAP
from minibroker.cli.terminal import (
    DEFAULT_TIMEOUT_S,
    Bootstrap,
    TimeoutS,
    opened_admin,
)

app = typer.Typer(help="Manage the brokers that the cluster knows.", no_args_is_help=True)


@app.callback()
def broker() -> None:
    """Manage the brokers that the cluster knows."""


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
