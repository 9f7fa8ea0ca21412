"""The output conventions of all commands: results on stdout, everything else on stderr after `% `.

So stdout can be piped, and a failure is one line that says what to do. A failure that a user or a
machine can cause (a refused connection, a full disk, a bad setting) is `% ERROR: ...` with exit
code 1; only a bug shows a traceback. Usage errors are typer's, with exit code 2.
"""

import os
import re
import signal
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from types import FrameType
from typing import TYPE_CHECKING, Annotated, NamedTuple, NoReturn

import typer

from minibroker.cli import BOOTSTRAP_VARIABLE

if TYPE_CHECKING:
    from minibroker.client.blocking import Admin

FAILED = 1
USAGE = 2


class Failure(Exception):
    """An operating error; its text is for the user. `exit_code` is the exit code of the process."""

    def __init__(self, message: str, exit_code: int = FAILED) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class Interrupted(BaseException):
    """SIGINT or SIGTERM arrived; the command finishes its work and ends."""

    def __init__(self, signal_number: int) -> None:
        super().__init__(signal_number)
        self.exit_code = 128 + signal_number


class TopicNames(NamedTuple):
    """The topics that a command names; `pattern` matches `names` too, None without a pattern."""

    names: list[str]
    pattern: re.Pattern[str] | None

    @property
    def shown(self) -> str:
        """The names, or the pattern, for a message."""
        return ", ".join(self.names) if self.pattern is None else repr(self.pattern.pattern)


class OutputFormat(StrEnum):
    """The output format of `list` and `describe`."""

    TEXT = "text"
    JSON = "json"


Bootstrap = Annotated[
    str,
    typer.Option(
        "--bootstrap-server",
        "--bootstrap-servers",
        "-b",
        metavar="HOST:PORT",
        envvar=BOOTSTRAP_VARIABLE,
        help="Broker to connect to, at port 9092 without a port; several are joined by commas.",
    ),
]
Format = Annotated[OutputFormat, typer.Option("--format", help="Shape of the output.")]
TopicArguments = Annotated[list[str] | None, typer.Argument(metavar="TOPIC", show_default=False)]
TopicOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--topic",
        "-t",
        metavar="TOPIC",
        help="The same as TOPIC; may be repeated.",
        show_default=False,
    ),
]
TopicArgument = Annotated[str | None, typer.Argument(metavar="TOPIC", show_default=False)]
TopicOption = Annotated[
    str | None,
    typer.Option("--topic", "-t", metavar="TOPIC", help="The same as TOPIC.", show_default=False),
]
TimeoutS = Annotated[
    float, typer.Option("--timeout-s", metavar="S", min=0.001, help="Time limit in seconds.")
]
NO_TOPIC = "{!r} is no topic name, which has letters, digits, '.', '_' and '-'"
DEFAULT_TIMEOUT_S = 10.0
API_TIMEOUT_MS = "10000"  # for commands, if a broker does not answer; clients wait a minute


def note(text: str) -> None:
    """Print a line for the user on stderr."""
    if sys.stderr is not None:  # it is None if the command was started without one
        print(f"% {text}", file=sys.stderr, flush=True)


def confirm(question: str, *, is_agreed: bool) -> None:
    """Ask before something that cannot be undone, unless --yes was given. Raises `Failure` without
    consent."""
    if is_agreed:
        return
    if not sys.stdin.isatty():
        raise Failure("nothing was done: --yes says that you accept this", USAGE)
    if not typer.confirm(question, err=True):
        raise Failure("nothing was done")


def counted(count: int, noun: str) -> str:
    """Return a count with its noun: `1 record`, `2 records`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def in_columns(heads: Sequence[str], rows: Iterable[Iterable[object]]) -> str:
    """Return a line of heads and a line per row, with `-` for None; "" if there are no rows."""
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
    """Return the text, escaped if a terminal would interpret it: a name can be any UTF-8."""
    return text if text.isprintable() else repr(text)


def one_topic(argument: str | None, option: str | None) -> str:
    """Return the topic, given as argument or as option; it is one name, not a pattern or a list."""
    from minibroker.protocol.topic_names import is_topic_name

    name = one_name("topic", argument, option)
    if not is_topic_name(name):
        raise typer.BadParameter(f"{NO_TOPIC.format(printable(name))}: name one topic, no pattern")
    return name


def some_topics(arguments: list[str] | None, options: list[str] | None) -> TopicNames:
    """Return the topics, given as arguments or as options: names, and patterns, which begin with
    `^`. A pattern matches from the beginning of a name, as `Consumer.subscribe` has it."""
    from minibroker.protocol.topic_names import is_topic_name

    named: list[str] = [*(arguments or []), *(options or [])]
    given = list(dict.fromkeys(named))
    if not given:
        raise typer.BadParameter("name a topic: TOPIC or --topic TOPIC")
    names = [one for one in given if not one.startswith("^")]
    for name in names:
        if not is_topic_name(name):
            text = NO_TOPIC.format(printable(readable(name, "the topic's name")))
            raise typer.BadParameter(f"{text}: give each name by itself; a pattern begins with ^")
    patterns = [readable(one, "the pattern") for one in given if one.startswith("^")]
    for pattern in patterns:
        try:
            re.compile(pattern)
        except re.error as error:
            raise typer.BadParameter(
                f"{printable(pattern)!r} is no regular expression: {error}"
            ) from None
    if not patterns:
        return TopicNames(names, None)
    whole = [f"^{re.escape(name)}$" for name in names]
    return TopicNames(names, re.compile("|".join([*patterns, *whole])))


def topic_names(arguments: list[str] | None, options: list[str] | None) -> list[str]:
    """Return the topics, given as arguments or as options, each once; none may be a pattern."""
    chosen = some_topics(arguments, options)
    if chosen.pattern is not None:
        raise typer.BadParameter("a pattern, which begins with ^, has no place here: give names")
    return chosen.names


def one_name(noun: str, argument: str | None, option: str | None) -> str:
    """Return the name of a `noun`, given as argument or as option."""
    if argument is not None and option is not None and argument != option:
        raise typer.BadParameter(f"two {noun}s are named: {argument} and {option}")
    name = argument if argument is not None else option
    if not name:
        raise typer.BadParameter(f"name a {noun}: {noun.upper()} or --{noun} {noun.upper()}")
    return readable(name, f"the {noun}'s name")


def readable(text: str, what: str) -> str:
    """Return the text if it is valid UTF-8; an argument can be any bytes, a name cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        from minibroker.broker.config_property import shown

        raise typer.BadParameter(f"{what} is not UTF-8: {shown(text)}") from None
    return text


def ids_in(text: str | None) -> list[int] | None:
    """Return the numbers of a `1,2,4` text; None for None."""
    if text is None:
        return None
    from minibroker.protocol.constants import INT32_MAX

    numbers = [one.strip() for one in text.split(",")]
    if not all(one.isascii() and one.isdigit() and int(one) <= INT32_MAX for one in numbers):
        raise typer.BadParameter(f"{text!r}: numbers with commas between them")
    found = [int(one) for one in numbers]
    if len({*found}) < len(found):
        raise typer.BadParameter(f"{text!r} has a number twice")
    return found


def pairs(given: list[str], option: str) -> dict[str, str]:
    """Return `NAME=VALUE` texts as a mapping."""
    split = [readable(text, option).partition("=") for text in given]
    for text, (name, separator, _) in zip(given, split, strict=True):
        if not name or not separator:
            from minibroker.broker.config_property import shown

            raise typer.BadParameter(f"{option} takes NAME=VALUE, not {shown(text)}")
    return {name.strip(): value for name, _, value in split}


def opened_admin(servers: str, timeout_s: float) -> "Admin":
    """Return an admin client for `with`, whose calls time out after `timeout_s` seconds."""
    from minibroker.client.blocking import Admin

    milliseconds = max(1, int(timeout_s * 1000))
    return Admin({"bootstrap.servers": servers, "default.api.timeout.ms": milliseconds})


@contextmanager
def interruptible() -> Iterator[None]:
    """Turn the first SIGINT or SIGTERM into `Interrupted`; a second one exits at once."""

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
    """End the process without any cleanup, with the exit code that a shell expects."""
    os._exit(128 + signal_number)


def explain(error: BaseException) -> str | None:
    """Return one line for an operating error; None for a bug, which shows its traceback."""
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
    """Turn every way to end into its exit code, around the whole command."""
    try:
        yield
    except Interrupted as interrupted:
        sys.exit(interrupted.exit_code)
    except BrokenPipeError:
        # The reader of our output has closed it; Python must not complain when it flushes.
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
