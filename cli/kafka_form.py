"""Kafka's tools name what they do by an option: `kafka-topics --create --topic t`. Here it is a
verb, and a command in Kafka's form is answered with the one that is meant.
"""

import shlex
from collections.abc import Mapping, Sequence
from typing import Final

VERBS: Final[Mapping[str, Mapping[str, str]]] = {
    "topic": {f"--{verb}": verb for verb in ("create", "list", "describe", "alter", "delete")},
    "group": {f"--{verb}": verb for verb in ("list", "describe", "delete")}
    | {"--reset-offsets": "seek"},
    "transaction": {f"--{verb}": verb for verb in ("list", "describe", "abort")},
}


def meant_command(arguments: Sequence[str]) -> str | None:
    """Return the command that is meant by one in the form of Kafka's tools; None for another."""
    verbs = VERBS.get(arguments[0], {}) if arguments else {}
    if len(arguments) < 2 or not arguments[1].startswith("-"):
        return None
    for option in arguments[1:]:
        if option in verbs:
            rest = [each for each in arguments[1:] if each != option]
            return shlex.join(["minibroker", arguments[0], verbs[option], *rest])
    return None
