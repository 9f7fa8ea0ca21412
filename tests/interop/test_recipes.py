"""The programs of docs/kafka.md, "Recipes", as they stand there, with another address and topic.

Those of kaskade and Spark take packages from a registry when they start: `make soak` runs them.
"""

import os
import pty
import re
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

import pytest

from tests.interop.clients import NEEDS_KCAT, Confluent, Record, Settings, make_topic
from tests.interop.compatibility import PAGE
from tests.interop.features import Feature, shows

SECTION: Final = re.compile(r"^### (.+)$", re.MULTILINE)
BLOCK: Final = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
RUN_S_MAX: Final = 60.0
DOWNLOAD_S_MAX: Final = 600.0
WORDS: Final = (b"first word", b"second word")


class Recipe(NamedTuple):
    """A program and what it prints, which is empty if the page does not say."""

    language: str
    text: str
    output: str

    def for_broker(self, bootstrap: str, topic: str) -> str:
        """The text with the test's broker, topic and group."""
        text = self.text.replace("127.0.0.1:9092", bootstrap)
        return text.replace("words", topic).replace("readers", topic)


def recipe(name: str) -> Recipe:
    """That of a client, from its section of the page."""
    page = PAGE.read_text(encoding="utf-8")
    _, *parts = SECTION.split(page)
    sections = dict(zip(parts[::2], parts[1::2], strict=True))
    (language, text), *outputs = BLOCK.findall(sections[name])
    return Recipe(language, text, outputs[0][1] if outputs else "")


def run(
    found: Recipe,
    bootstrap: str,
    topic: str,
    timeout_s: float = RUN_S_MAX,
    python: Sequence[str] = (sys.executable,),
) -> str:
    """Run the recipe to its end and return its output."""
    program = [*python, "-c"] if found.language == "python" else ["sh", "-e", "-c"]
    done = subprocess.run(
        [*program, found.for_broker(bootstrap, topic)],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "name",
    [
        pytest.param("kafka-python", marks=shows(Feature.RECIPE, "kafka-python")),
        pytest.param("aiokafka", marks=shows(Feature.RECIPE, "aiokafka")),
        pytest.param("confluent-kafka", marks=shows(Feature.RECIPE, "confluent-kafka")),
        pytest.param("kcat", marks=[NEEDS_KCAT, shows(Feature.RECIPE, "kcat")]),
        pytest.param("FastStream", marks=shows(Feature.RECIPE, "faststream")),
    ],
)
def test_a_recipe_prints_what_the_page_says(bootstrap: str, topic: str, name: str) -> None:
    """It makes its topic by using it."""
    found = recipe(name)
    assert found.output
    assert run(found, bootstrap, topic) == found.output


def write_words(bootstrap: str, topic: str) -> None:
    """Two records."""
    make_topic(bootstrap, topic)
    Confluent().write(bootstrap, topic, 0, map(Record, WORDS), Settings())


@pytest.mark.soak
def test_spark_reads_the_topic(bootstrap: str, topic: str) -> None:
    """PySpark has the version that the page names, whatever the tests have installed. The jars come
    from Maven Central, for a Java of the machine."""
    write_words(bootstrap, topic)
    [version] = re.findall(r"`pip install (pyspark==\S+)`", PAGE.read_text(encoding="utf-8"))
    uv = [sys.executable, "-m", "uv", "run", "--no-project", "--python", sys.executable]
    python = [*uv, "--with", version, "python"]
    output = run(recipe("Spark"), bootstrap, topic, DOWNLOAD_S_MAX, python)
    assert output.splitlines()[-len(WORDS) :] == [word.decode() for word in WORDS]


@pytest.mark.soak
@pytest.mark.parametrize("mode", ["admin", "consumer"])
def test_kaskade_shows_the_topic(bootstrap: str, topic: str, tmp_path: Path, mode: str) -> None:
    """In a terminal: the topic's name among the topics, or the value of a record."""
    write_words(bootstrap, topic)
    [command] = [
        line
        for line in recipe("kaskade").for_broker(bootstrap, topic).splitlines()
        if line.startswith(f"kaskade {mode}")
    ]
    wanted = topic[:20].encode() if mode == "admin" else WORDS[-1]
    uv = [sys.executable, "-m", "uv", "tool", "run"]
    shown = b""
    pid, terminal = pty.fork()
    if pid == 0:
        os.environ |= {"TERM": "xterm-256color", "COLUMNS": "160", "LINES": "40"}
        os.environ["HOME"] = str(tmp_path)
        os.execv(uv[0], [*uv, *command.split()])
    deadline = time.monotonic() + DOWNLOAD_S_MAX
    try:
        while wanted not in shown:
            shown += os.read(terminal, 65_536)
            assert time.monotonic() < deadline, shown[-2000:]
    finally:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
        os.close(terminal)
