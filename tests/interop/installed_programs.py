"""Programs for clients of Node.js and Go, which come from their registries.

Each gets a broker's address and a name behind its arguments: it writes three records to the topic
of that name, and reads them as a member of a group of that name.
"""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Final

PROGRAMS: Final = Path(__file__).parent / "programs"
INSTALL_S_MAX: Final = 600.0
GO: Final = shutil.which("go") or shutil.which("go", path="/usr/local/go/bin")
NODE: Final = shutil.which("node") and shutil.which("npm")
NODE_PROGRAMS: Final = {
    "kafkajs": ("kafkajs@2.2.4", "kafkajs.mjs"),
    "platformatic": ("@platformatic/kafka@1.35.0", "platformatic.mjs"),
}
GO_PROGRAMS: Final = {
    "sarama": "github.com/IBM/sarama@v1.45.2",
    "kafka-go": "github.com/segmentio/kafka-go@v0.4.51",
}


def node_program(name: str, folder: Path) -> list[str]:
    """Install a program of `NODE_PROGRAMS` in a folder, and return its command."""
    assert NODE is not None
    package, program = NODE_PROGRAMS[name]
    shutil.copy(PROGRAMS / program, folder)
    _install(NODE, "install", package, folder=folder)
    return ["node", str(folder / program)]


def go_program(name: str, folder: Path) -> list[str]:
    """Build a program of `GO_PROGRAMS` in a folder, and return its command. That of sarama gets its
    `Version` as its first argument."""
    assert GO is not None
    shutil.copy(PROGRAMS / name / "main.go", folder)
    _install(GO, "mod", "init", "example.com/program", folder=folder)
    _install(GO, "get", GO_PROGRAMS[name], folder=folder)
    _install(GO, "build", "-o", "program", ".", folder=folder)
    return [str(folder / "program")]


def _install(*command: str, folder: Path) -> None:
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "GOFLAGS": "-mod=mod"},
        capture_output=True,
        text=True,
        timeout=INSTALL_S_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
