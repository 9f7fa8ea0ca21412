"""The messages of `minibroker start` at its start and end, besides the broker's log lines.

They are bare lines on stdout for people and for scripts that wait for them, and notes on stderr. If
the log format is JSON, all of them are log lines, too: log collectors parse every line as an
object.
"""

import logging
from typing import TYPE_CHECKING, Final

from minibroker.cli import terminal
from minibroker.cli.settings import acknowledgement_of

if TYPE_CHECKING:
    from minibroker.broker.app import Started
    from minibroker.broker.config import Config

log = logging.getLogger(__name__)

WIRES: Final = "Kafka's clients, and minibroker's own"


class Announcer:
    """Prints the messages in the format of the broker's log lines."""

    def __init__(self, config: "Config") -> None:
        self._config = config
        self._is_bare = config.log_format == "text"

    def announce_started(self, started: "Started") -> None:
        """Print what the operator needs to know, then the two lines that scripts wait for."""
        config = self._config
        for topic, partition in started.damaged:
            self._warn(
                f"{topic}-{partition} has lost records and stays offline until another in-sync"
                " replica leads, from which it is copied again; if there is none, to go on with"
                f" what is left, stop the broker and say: minibroker partition recover {topic}"
                f" {partition}"
            )
        self._tell(f"Data directory: {', '.join(map(str, config.log_dirs))}")
        self._tell(f"Acknowledgements: {acknowledgement_of(config.flush, config.flush_ms)}")
        several = len(started.listening) > 1
        for listening, advertised in zip(started.listening, started.advertised, strict=True):
            name = f" ({listening.name})" if several else ""
            self._tell(f"Listening on {listening.endpoint}{name}")
            self._tell(f"Clients are told {advertised.endpoint}{name}: {WIRES}")
        if started.http is not None:
            self._tell(f"Health and metrics: http://{started.http}/ready, /metrics")
        reachable = [one.endpoint for one in started.listening if not _is_loopback(one.host)]
        if reachable:
            self._warn(
                f"{', '.join(map(str, reachable))} can be reached from other machines, and there is"
                " no authentication yet: who reaches it can read, write and delete everything"
            )
        self._tell(f"[KafkaServer id={config.node_id}] started")
        self._tell("Kafka Server started")

    def announce_stopped(self) -> None:
        """Print the last line."""
        self._tell(f"[KafkaServer id={self._config.node_id}] shut down completed")

    def announce(self, text: str) -> None:
        """Print a note for the operator."""
        if self._is_bare:
            terminal.note(text)
        else:
            log.info(text)

    def _tell(self, text: str) -> None:
        if self._is_bare:
            print(text, flush=True)
        else:
            log.info(text)

    def _warn(self, text: str) -> None:
        if self._is_bare:
            terminal.note(f"WARNING: {text}")
        else:
            log.warning(text)


def _is_loopback(host: str) -> bool:
    from ipaddress import ip_address

    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
