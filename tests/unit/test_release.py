"""What is refused before a release: a wrong tag, a changelog without it, wrong files."""

import io
import tarfile
import zipfile
from pathlib import Path

import pytest

from tests.installed import ROOT, declared_files
from tests.release import file_problems, metadata_problems, tag_problems

LOG = "# Changelog\n\n## 0.2.0, released 2027-01-02\n"
METADATA = (
    "Metadata-Version: 2.4\nName: minibroker\nVersion: 0.2.0\n"
    "Description-Content-Type: text/markdown\n\n# minibroker\n"
)


@pytest.mark.parametrize(
    ("tag", "changelog", "says"),
    [
        ("v0.1.0", LOG, "the tag is v0.1.0, and the package says 0.2.0"),
        ("0.2.0", LOG, "the tag is 0.2.0"),
        ("v0.2.0", LOG.replace("0.2.0", "0.1.0"), "CHANGELOG.md has no section"),
        ("v0.2.0", "\n## 0.2.0, not released yet\n", "CHANGELOG.md has no section"),
    ],
)
def test_a_tag_is_that_of_the_version_and_of_the_changelog(
    tag: str, changelog: str, says: str
) -> None:
    """Nothing is asked of a build without a tag."""
    [problem] = tag_problems(tag, "0.2.0", changelog)
    assert problem.startswith(says)
    assert not list(tag_problems("v0.2.0", "0.2.0", LOG))
    assert not list(tag_problems("", "0.2.0", ""))


def made(dist: Path, *, metadata: str = METADATA, without: str = "") -> Path:
    """A wheel and an archive as they are to be, but for what is named."""
    dist.mkdir()
    with zipfile.ZipFile(dist / "minibroker-0.2.0-py3-none-any.whl", "w") as wheel:
        for name in sorted(declared_files(ROOT) - {without}):
            wheel.writestr(name, "")
        wheel.writestr("minibroker-0.2.0.dist-info/METADATA", metadata)
    with tarfile.open(dist / "minibroker-0.2.0.tar.gz", "w:gz") as archive:
        for name in {"LICENSE", "README.md", "pyproject.toml", "package/__init__.py"} - {without}:
            archive.addfile(tarfile.TarInfo(f"minibroker-0.2.0/{name}"), io.BytesIO())
    return dist


def test_the_files_are_whole(tmp_path: Path) -> None:
    """No other file, no missing one, and metadata that an index takes."""
    assert not list(file_problems(made(tmp_path / "sound"), "0.2.0"))
    [problem] = file_problems(made(tmp_path / "wheel", without="minibroker/py.typed"), "0.2.0")
    assert "the tree differ: ['minibroker/py.typed']" in problem
    [problem] = file_problems(made(tmp_path / "archive", without="LICENSE"), "0.2.0")
    assert problem == "minibroker-0.2.0.tar.gz lacks ['LICENSE']"
    other = made(tmp_path / "other")
    (other / "minibroker-0.1.0.tar.gz").touch()
    [problem] = file_problems(other, "0.2.0")
    assert "make clean" in problem


@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        ("Version: 0.2.0", "Version: 0.2.1", "version 0.2.1, not 0.2.0"),
        ("Name: minibroker", "Name: -", "refused"),
        ("text/markdown", "text/plain", "no description in Markdown"),
        ("# minibroker\n", "", "no description"),
    ],
)
def test_metadata_are_those_that_an_index_takes(before: str, after: str, says: str) -> None:
    """As `twine check` looks at them."""
    [problem] = metadata_problems(METADATA.replace(before, after), "0.2.0")
    assert says in problem
