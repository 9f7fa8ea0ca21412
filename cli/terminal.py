"""How every command speaks: results on stdout, everything else on stderr behind `% `.

So stdout can be piped, and a failure is one line that says what to do. What a user or a machine
can cause (a refused connection, a full disk, a bad setting) ends as `% ERROR: ...` and exit
code 1; only a mistake of ours shows a traceback. Usage errors are typer's, with exit code 2.
"""

import os
import signal
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from types import FrameType
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from minibroker.cli import BOOTSTRAP_VARIABLE

if TYPE_CHECKING:
    from minibroker.client.blocking import Admin

FAILED = 1
USAGE = 2


class Failure(Exception):
    """An operating error; its text is for the user. `exit_code` is what the process ends with."""

    def __init__(self, message: str, exit_code: int = FAILED) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class Interrupted(BaseException):
    """SIGINT or SIGTERM arrived; a command ends its work in order."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(signal_number)
        self.exit_code = 128 + signal_number


class OutputFormat(StrEnum):
    """What `list` and `describe` print."""

    TEXT = "text"
    JSON = "json"


Bootstrap = Annotated[
    str,
    typer.Option(
        "--bootstrap-server",
        "--bootstrap-servers",
        "-b",
        metavar="HOST:PORT",
        envvar=BOOTSTRAP_VARIABLE,  # a longer name is cut in the help at 80 columns
        help="Broker to connect to; several are joined by commas.",
    ),
]
Format = Annotated[OutputFormat, typer.Option("--format", help="Shape of the output.")]
TopicArgument = Annotated[str | None, typer.Argument(metavar="TOPIC", show_default=False)]
TopicOption = Annotated[
    str | None,
    typer.Option("--topic", metavar="TOPIC", help="The same as TOPIC.", show_default=False),
]
TimeoutS = Annotated[
    float, typer.Option("--timeout-s", metavar="S", min=0.001, help="Time limit in seconds.")
]
DEFAULT_TIMEOUT_S = 10.0
API_TIMEOUT_MS = "10000"  # of a command, for a broker that does not answer; clients have a minute


def note(text: str) -> None:
    """A line for the human at the terminal."""
    if sys.stderr is not None:  # it is where the command was started without one
        print(f"% {text}", file=sys.stderr, flush=True)


def counted(count: int, noun: str) -> str:
    """`1 record`, `2 records`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def in_columns(heads: Sequence[str], rows: Iterable[Iterable[object]]) -> str:
    """A line of heads and one for each row, `-` where there is None; nothing without rows."""
    cells = [heads, *([_cell(value) for value in row] for row in rows)]
    if len(cells) == 1:
        return ""
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = (
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in cells
    )
    return "".join(f"{line}\n" for line in lines)


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return printable(str(value))


def printable(text: str) -> str:
    """The text, escaped if a terminal would obey what is in it: a name can be any UTF-8."""
    return text if text.isprintable() else repr(text)


def one_topic(argument: str | None, option: str | None) -> str:
    """The topic, given either way."""
    return one_name("topic", argument, option)


def one_name(noun: str, argument: str | None, option: str | None) -> str:
    """What is named, given either way."""
    if argument is not None and option is not None and argument != option:
        raise typer.BadParameter(f"two {noun}s are named: {argument} and {option}")
    name = argument if argument is not None else option
    if not name:
        raise typer.BadParameter(f"name a {noun}: {noun.upper()} or --{noun} {noun.upper()}")
    return readable(name, f"the {noun}'s name")


def readable(text: str, what: str) -> str:
    """The text, which may go to a broker: an argument can be any bytes, a name cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise typer.BadParameter(f"{what} is not UTF-8: {text!r}") from None
    return text


def pairs(given: list[str], option: str) -> dict[str, str]:
    """`NAME=VALUE` texts as a mapping."""
    split = [readable(text, option).partition("=") for text in given]
    for text, (name, separator, _) in zip(given, split, strict=True):
        if not name or not separator:
            raise typer.BadParameter(f"{option} takes NAME=VALUE, not {text!r}")
    return {name.strip(): value for name, _, value in split}


def opened_admin(servers: str, timeout_s: float) -> "Admin":
    """An admin client for `with`, whose calls give up after `timeout_s`."""
    from minibroker.client.blocking import Admin

    milliseconds = max(1, int(timeout_s * 1000))
    return Admin({"bootstrap.servers": servers, "default.api.timeout.ms": milliseconds})


@contextmanager
def interruptible() -> Iterator[None]:
    """Turn the first SIGINT or SIGTERM into `Interrupted`; a second one ends all at once."""

    def first(signal_number: int, frame: FrameType | None) -> NoReturn:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, end_now)
        raise Interrupted(signal_number)

    before = {number: signal.signal(number, first) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def end_now(signal_number: int, frame: FrameType | None = None) -> NoReturn:
    """Leave without finishing anything, with the exit code a shell expects."""
    os._exit(128 + signal_number)


def explain(error: BaseException) -> str | None:
    """One line for an operating error; None for a mistake of ours, which shows its traceback."""
    if isinstance(error, BaseExceptionGroup):
        lines = [explain(inner) for inner in error.exceptions]
        return lines[0] if None not in lines else None
    if isinstance(error, OSError):
        where = f": {error.filename}" if error.filename else ""
        return f"{error.strerror or error}{where}"
    if type(error).__module__.startswith("minibroker."):
        return " ".join(str(error).split()) or type(error).__name__
    return None


@contextmanager
def failures_as_one_line() -> Iterator[None]:
    """Around everything: the exit code of each way to end."""
    try:
        yield
    except Interrupted as interrupted:
        sys.exit(interrupted.exit_code)
    except BrokenPipeError:
        # Whoever read our output has seen enough; Python must not complain while it flushes.
        if sys.stdout is not None:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except Exception as error:
        message = explain(error)
        if message is None:
            raise
        note(f"ERROR: {message}")
        # An option or property that does not exist, or that may not have this value.
        default = USAGE if type(error).__name__ == "ConfigError" else FAILED
        sys.exit(getattr(error, "exit_code", default))
