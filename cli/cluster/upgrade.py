"""`minibroker cluster upgrade`: finalize a feature level, after all brokers were upgraded."""

from typing import TYPE_CHECKING, Annotated, Final

import typer

from minibroker.cli import DEFAULT_BOOTSTRAP
from minibroker.cli.terminal import (
    DEFAULT_TIMEOUT_S,
    Bootstrap,
    Failure,
    TimeoutS,
    opened_admin,
)

if TYPE_CHECKING:
    from minibroker.client.admin import FeaturesReport

FEATURE: Final = "minibroker.version"


def upgrade(
    *,
    level: Annotated[
        int | None,
        typer.Option(
            "--level",
            metavar="N",
            min=1,
            help=f"Level of {FEATURE}; default: the highest that all brokers support.",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show the levels, and check the change only.")
    ] = False,
    bootstrap: Bootstrap = DEFAULT_BOOTSTRAP,
    timeout_s: TimeoutS = DEFAULT_TIMEOUT_S,
) -> None:
    """Finalize a feature level, when all brokers run the new version.

    Until then the cluster writes the formats that the old version reads, and brokers can go back to
    it. Afterwards they cannot: a level is never lowered. With --dry-run nothing is changed.
    """
    with opened_admin(bootstrap, timeout_s) as admin:
        report = admin.describe_features()
        for node, one in sorted(report.answers.items()):
            supported = f"{one.feature_level_min} to {one.feature_level_max}"
            print(f"Broker {node}: {FEATURE} {one.feature_level}, supports {supported}")
        wanted = _highest(report) if level is None else level
        admin.update_features({FEATURE: wanted}, validate_only=dry_run)
    if dry_run:
        print(f"{FEATURE} {wanted} can be finalized.")
    else:
        print(f"Finalized {FEATURE} {wanted}.")


def _highest(report: "FeaturesReport") -> int:
    """Return the highest level that all brokers support. Raises `Failure` if one is silent."""
    for node, reason in sorted(report.silent.items()):
        raise Failure(f"broker {node} does not say which levels it supports: {reason}")
    if not report.answers:
        raise Failure("no broker is live; see `minibroker cluster describe`")
    return min(one.feature_level_max for one in report.answers.values())
