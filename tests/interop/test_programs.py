"""Clients of other languages: kafkajs, @platformatic/kafka, sarama and kafka-go.

They come from their registries; Node.js and Go are needed. `make soak` runs them;
`test_recorded.py` replays what they said once.
"""

from pathlib import Path
from typing import Final

import pytest

from tests.interop.clients import make_topic
from tests.interop.installed_programs import (
    GO,
    GO_PROGRAMS,
    NODE,
    NODE_PROGRAMS,
    go_program,
    node_program,
)
from tests.interop.record import run

WORDS: Final = "word 0\nword 1\nword 2\n"
# Arguments of a run, of which there is one for each.
ARGUMENTS: Final = {"sarama": (["2.0.0"], ["2.4.0"], ["2.8.0"], ["3.9.0"])}


@pytest.mark.soak
@pytest.mark.skipif(not NODE, reason="Node.js is not installed")
@pytest.mark.parametrize("name", NODE_PROGRAMS)
def test_a_client_of_node(bootstrap: str, topic: str, tmp_path: Path, name: str) -> None:
    """It produces, and reads as a member of a group."""
    make_topic(bootstrap, topic)
    assert run([*node_program(name, tmp_path), bootstrap, topic]) == WORDS


@pytest.mark.soak
@pytest.mark.skipif(GO is None, reason="Go is not installed")
@pytest.mark.parametrize("name", GO_PROGRAMS)
def test_a_client_of_go(bootstrap: str, topic: str, tmp_path: Path, name: str) -> None:
    """It produces, and reads as a member of a group; sarama in some of its `Version`s."""
    command = go_program(name, tmp_path)
    for number, arguments in enumerate(ARGUMENTS.get(name, ([],))):
        here = f"{topic}-{number}"
        make_topic(bootstrap, here)
        assert run([*command, *arguments, bootstrap, here]) == WORDS
