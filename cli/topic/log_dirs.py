"""The log directories of a plan: moves between them, asked for, watched and cancelled."""

import time
from pathlib import PurePath
from typing import TYPE_CHECKING, Final, TypeAlias

from minibroker.cli.terminal import counted, note
from minibroker.cli.topic.reassignment_plan import LogDirs
from minibroker.protocol.constants import ErrorCode

if TYPE_CHECKING:
    from minibroker.client.blocking import Admin

Replica: TypeAlias = tuple[str, int, int]  # topic, partition, broker

NAMED_MAX: Final = 10  # replicas in a listing of problems
PROGRESS_S: Final = 1.0  # between two looks at what is left


def ask_for_moves(admin: "Admin", log_dirs: LogDirs) -> set[Replica]:
    """Ask the brokers to move replicas, and to make those that they do not have yet there. Name
    those that are refused, and return them."""
    if not log_dirs:
        return set()
    failed = admin.alter_replica_log_dirs(log_dirs).failed
    refused: dict[Replica, str] = {
        (replica.topic, replica.partition, replica.node_id): reason
        for replica, (code, reason) in failed.items()
        if code != ErrorCode.REPLICA_NOT_AVAILABLE
    }
    for (topic, number, node), reason in [*refused.items()][:NAMED_MAX]:
        note(f"{topic}-{number} on broker {node}: {reason}")
    return {*refused}


def finish_moves(admin: "Admin", log_dirs: LogDirs) -> set[Replica]:
    """Wait until replicas are where they are to be; ask again for those that came meanwhile. Name
    those whose move has ended elsewhere, and return them with those that are refused."""
    failed = ask_for_moves(admin, log_dirs)
    left = {one: path for one, path in log_dirs.items() if one not in failed}
    told = 0
    while left := _elsewhere(admin, left):
        present, lags = _places(admin, left)
        for topic, number, node in [one for one in left if one in present and one not in lags]:
            path = left.pop((topic, number, node))
            note(f"{topic}-{number} on broker {node} was not moved to {path}: its log says why")
            failed.add((topic, number, node))
        if left and len(left) != told:
            note(f"{counted(len(left), 'replica')} to be moved to other log directories")
            told = len(left)
        time.sleep(PROGRESS_S)
    if log_dirs and not failed:
        print(f"Moved {counted(len(log_dirs), 'replica')} to their log directories.")
    return failed


def _elsewhere(admin: "Admin", log_dirs: LogDirs) -> dict[Replica, str]:
    return {one: log_dirs[one] for one in misplaced(admin, log_dirs)}


def misplaced(admin: "Admin", log_dirs: LogDirs) -> dict[Replica, str]:
    """Return the replicas that are not in their log directories, and what is known of each."""
    if not log_dirs:
        return {}
    present, lags = _places(admin, log_dirs)
    found = {}
    for one, path in log_dirs.items():
        if one in present and PurePath(present[one]) == PurePath(path):
            continue
        where = f"is in {present[one]}" if one in present else "is not there"
        if one in lags:
            where += f", {counted(lags[one], 'record')} behind in its copy"
        found[one] = f"{where}, planned is {path}"
    return found


def cancel_moves(admin: "Admin", log_dirs: LogDirs) -> None:
    """End the moves of these replicas: each stays where it is."""
    if log_dirs:
        present, lags = _places(admin, log_dirs)
        moving = [one for one in log_dirs if one in present and one in lags]
        ask_for_moves(admin, {one: present[one] for one in moving})
        print(f"Cancelled the move of {counted(len(moving), 'replica')} to another log directory.")


def _places(admin: "Admin", log_dirs: LogDirs) -> tuple[dict[Replica, str], dict[Replica, int]]:
    """Return the log directory of each replica; and how many records the copies lack of those that
    move."""
    from minibroker.protocol.messages.log_dirs import logs_by_directory

    names = sorted({(topic, number) for topic, number, _ in log_dirs})
    present, lags = {}, {}
    for node, answer in admin.describe_log_dirs(names).answers.items():
        for path, log in logs_by_directory(answer):
            replica = log.topic, log.partition, node
            if log.is_future:
                lags[replica] = log.lag
            else:
                present[replica] = path
    return present, lags
