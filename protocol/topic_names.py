"""The rule for topic names. The broker refuses other names; a client refuses them at the call."""

import re
from typing import Final

from minibroker.protocol.constants import TOPIC_NAME_CHARS_MAX

TOPIC_NAME: Final = re.compile(r"[a-zA-Z0-9._-]+")


def is_topic_name(name: str) -> bool:
    """Return whether a topic may have this name; it becomes part of a directory's name."""
    return (
        len(name) <= TOPIC_NAME_CHARS_MAX
        and name not in (".", "..")
        and TOPIC_NAME.fullmatch(name) is not None
    )
