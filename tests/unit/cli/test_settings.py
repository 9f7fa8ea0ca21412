"""Where `--config` leads: a file of either kind, or the one in a directory."""

from pathlib import Path

import pytest

from minibroker.cli.settings import read_file
from minibroker.cli.terminal import USAGE, Failure


def test_a_file_is_read_by_its_name(tmp_path: Path) -> None:
    """What ends in .toml is TOML, all else is a properties file, an editor's mark before it too."""
    toml, other = tmp_path / "a.toml", tmp_path / "b.conf"
    toml.write_text("[node]\nid = 3\n", encoding="utf-8")
    other.write_bytes(b"\xef\xbb\xbfnode.id=4\r\n")
    assert read_file(toml) == {"node.id": "3"}
    assert read_file(other) == {"node.id": "4"}
    assert read_file(None) == {}


def test_a_directory_holds_one_file(tmp_path: Path) -> None:
    """server.properties or server.toml in it; neither is in order, both is an error."""
    (tmp_path / "other.properties").write_text("node.id=9", encoding="utf-8")
    assert read_file(tmp_path) == {}
    (tmp_path / "server.toml").write_text("node.id = 1", encoding="utf-8")
    assert read_file(tmp_path) == {"node.id": "1"}
    (tmp_path / "server.properties").write_text("node.id=2", encoding="utf-8")
    with pytest.raises(Failure, match=r"server\.properties and server\.toml; which one holds"):
        read_file(tmp_path)
    (tmp_path / "server.toml").unlink()
    assert read_file(tmp_path) == {"node.id": "2"}


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("nowhere", None, "No such file or directory"),
        ("latin", b"a=\xe4", "is not UTF-8"),
        ("huge", b"# x\n" * (1 << 18) + b"\xe4", "is larger than 1 MiB"),
    ],
)
def test_a_file_that_cannot_be_read_is_told(
    tmp_path: Path, name: str, content: bytes | None, says: str
) -> None:
    """A usage error with the file's name."""
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(Failure, match=f"{path}.*{says}") as raised:
        read_file(path)
    assert raised.value.exit_code == USAGE
