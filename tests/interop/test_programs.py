"""Clients of other languages: kafkajs, @platformatic/kafka, sarama and kafka-go.

They come from their registries; Node.js and Go are needed. `make soak` runs them;
`test_recorded.py` replays what they said once.
"""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest

from tests.interop.clients import make_topic

PROGRAMS: Final = Path(__file__).parent / "programs"
INSTALL_S_MAX: Final = 600.0
RUN_S_MAX: Final = 60.0
WORDS: Final = "word 0\nword 1\nword 2\n"
GO: Final = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin")
NODE: Final = shutil.which("node") and shutil.which("npm")


def run(*command: str, folder: Path, timeout_s: float = RUN_S_MAX) -> str:
    """Run a command to its end, and return its output."""
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "GOFLAGS": "-mod=mod"},
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.soak
@pytest.mark.skipif(not NODE, reason="Node.js is not installed")
@pytest.mark.parametrize(
    ("package", "program", "output"),
    [
        ("kafkajs@2.2.4", "kafkajs.mjs", WORDS),
        ("@platformatic/kafka@1.35.0", "platformatic.mjs", WORDS),
    ],
)
def test_a_client_of_node(
    bootstrap: str, topic: str, tmp_path: Path, package: str, program: str, output: str
) -> None:
    """It produces, and reads as a member of a group."""
    assert NODE is not None
    make_topic(bootstrap, topic)
    shutil.copy(PROGRAMS / program, tmp_path)
    run(NODE, "install", package, folder=tmp_path, timeout_s=INSTALL_S_MAX)
    assert run("node", program, bootstrap, topic, folder=tmp_path) == output


@pytest.mark.soak
@pytest.mark.skipif(GO is None, reason="Go is not installed")
@pytest.mark.parametrize(
    ("name", "module", "arguments"),
    [
        ("sarama", "github.com/IBM/sarama@v1.45.2", ("2.0.0", "2.4.0", "2.8.0", "3.9.0")),
        ("kafka-go", "github.com/segmentio/kafka-go@v0.4.51", ("",)),
    ],
)
def test_a_client_of_go(
    bootstrap: str, topic: str, tmp_path: Path, name: str, module: str, arguments: tuple[str, ...]
) -> None:
    """It produces, and reads as a member of a group; sarama in some of its `Version`s."""
    assert GO is not None
    shutil.copy(PROGRAMS / name / "main.go", tmp_path)
    run(GO, "mod", "init", "example.com/program", folder=tmp_path)
    run(GO, "get", module, folder=tmp_path, timeout_s=INSTALL_S_MAX)
    run(GO, "build", "-o", "program", ".", folder=tmp_path, timeout_s=INSTALL_S_MAX)
    for number, argument in enumerate(arguments):
        here = f"{topic}-{number}"
        make_topic(bootstrap, here)
        first = (argument,) if argument else ()
        assert run("./program", *first, bootstrap, here, folder=tmp_path) == WORDS
