"""What is checked before a release is published: the files in `dist/`, and the images.

    python -m tests.release                      # `make release-check`, after `make wheel`
    python -m tests.release --tag v0.1.0         # and that this is the tag to set
    python -m tests.release --images             # `make images-check`, after `make images`

The wheel is installed with its libraries into an environment of its own, where it starts a broker,
produces and consumes. An image does the same in a container.
"""

import argparse
import subprocess
import sys
import tarfile
import venv
import zipfile
from collections.abc import Iterator, Sequence
from email import message_from_string
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from packaging.metadata import Metadata

from minibroker import __version__
from tests.installed import ROOT, declared_files

RELEASED: Final = "## {}, released "  # how the section of a release in CHANGELOG.md begins
START_S_MAX: Final = 60.0
LISTENING: Final = "Listening on "
IN_IMAGE: Final = "127.0.0.1:9092"  # where a client in the container reaches its broker


def main() -> None:
    """Check, and end with the first problem."""
    parser = argparse.ArgumentParser(description="Check what is to be released.")
    parser.add_argument("--tag", default="", help="The tag that is to be set, vX.Y.Z.")
    parser.add_argument("--dist", type=Path, default=ROOT / "dist", help="Where the files are.")
    parser.add_argument("--images", action="store_true", help="Check the images, not the files.")
    given = parser.parse_args()
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    for problem in tag_problems(given.tag, __version__, changelog):
        sys.exit(problem)
    if given.images:
        check_image(f"minibroker:{__version__}")
        return
    for problem in file_problems(given.dist, __version__):
        sys.exit(problem)
    check_wheel(wheel_of(given.dist, __version__))


def tag_problems(tag: str, version: str, changelog: str) -> Iterator[str]:
    """Yield why this tag may not be set; without a tag nothing is asked."""
    if not tag:
        return
    if tag != f"v{version}":
        yield f"the tag is {tag}, and the package says {version}: correct one of them"
    if f"\n{RELEASED.format(version)}" not in changelog:
        yield f"CHANGELOG.md has no section {RELEASED.format(version)!r} with the day behind it"


def wheel_of(dist: Path, version: str) -> Path:
    """Return the path of the wheel."""
    return dist / f"minibroker-{version}-py3-none-any.whl"


def file_problems(dist: Path, version: str) -> Iterator[str]:
    """Yield what is wrong with the files: names, contents, metadata."""
    wheel, archive = wheel_of(dist, version), dist / f"minibroker-{version}.tar.gz"
    found = sorted(path.name for path in dist.glob("*"))
    if found != sorted([wheel.name, archive.name]):
        yield f"{dist} has {found}, and must have {archive.name} and {wheel.name} alone: make clean"
        return
    with zipfile.ZipFile(wheel) as opened:
        names = {name for name in opened.namelist() if ".dist-info/" not in name}
        metadata = opened.read(f"minibroker-{version}.dist-info/METADATA").decode()
    if names != declared_files(ROOT):
        yield f"{wheel.name} and the tree differ: {sorted(names ^ declared_files(ROOT))[:9]}"
    yield from metadata_problems(metadata, version)
    with tarfile.open(archive) as sources:
        inside = {name.partition("/")[2] for name in sources.getnames()}
    missing = {"LICENSE", "README.md", "pyproject.toml", "package/__init__.py"} - inside
    if missing:
        yield f"{archive.name} lacks {sorted(missing)}"


def metadata_problems(text: str, version: str) -> Iterator[str]:
    """Yield what an index would refuse."""
    try:
        metadata = Metadata.from_email(text.encode(), validate=True)
    except ExceptionGroup as errors:
        yield f"the metadata are refused: {'; '.join(map(str, errors.exceptions))}"
        return
    if str(metadata.version) != version:
        yield f"the metadata have version {metadata.version}, not {version}"
    if (
        metadata.description_content_type != "text/markdown"
        or not message_from_string(text).get_payload()
    ):
        yield "the metadata have no description in Markdown"


def check_wheel(wheel: Path) -> None:
    """Install it with its libraries, and have its broker keep two records."""
    with TemporaryDirectory() as name:
        home = Path(name)
        venv.create(home / "environment", with_pip=True)
        bin_dir = home / "environment" / "bin"
        pip = [bin_dir / "python", "-m", "pip", "--disable-pip-version-check", "--quiet"]
        subprocess.run([*pip, "install", wheel], check=True)
        subprocess.run([*pip, "check"], check=True)
        command = [str(bin_dir / "minibroker")]
        started = [*command, "start", "--data-dir", str(home / "data"), "--listen", "127.0.0.1:0"]
        keep_two_records(command, started)
    print(f"{wheel.name}: installed alone, its broker kept two records")


def check_image(image: str) -> None:
    """Have a broker in a container keep two records."""
    name = "minibroker-release-check"
    started = [
        "docker",
        "run",
        "--rm",
        "--name",
        name,
        image,
        "start",
        "--listen",
        "127.0.0.1:9092",
    ]
    try:
        keep_two_records(["docker", "exec", "--interactive", name, "minibroker"], started, ROOT)
    finally:
        subprocess.run(["docker", "rm", "--force", name], capture_output=True, check=False)
    print(f"{image}: its broker kept two records")


def keep_two_records(command: Sequence[str], started: Sequence[str], address: str = "") -> None:
    """Start a broker, produce, consume, and stop it; without an `address` the broker says it."""
    broker = subprocess.Popen(started, stdout=subprocess.PIPE, text=True, cwd="/")
    try:
        assert broker.stdout
        told = next(line.split()[-1] for line in broker.stdout if line.startswith(LISTENING))
        address = address or told
        told = _run(command, "--version")
        assert told == f"minibroker {__version__}\n", told
        _run(command, "produce", "t", "-b", address, text="a\nb\n")
        told = _run(command, "consume", "t", "-b", address, "-o", "-2", "-e")
        assert told == "a\nb\n", told
        broker.terminate()
        assert broker.wait(START_S_MAX) == 0
    finally:
        broker.kill()
        broker.communicate()


def _run(command: Sequence[str], *arguments: str, text: str = "") -> str:
    """Return what a command prints. Raises `CalledProcessError`."""
    done = subprocess.run(
        [*command, *arguments],
        input=text,
        stdout=subprocess.PIPE,
        text=True,
        timeout=START_S_MAX,
        check=True,
        cwd="/",
    )
    return done.stdout


if __name__ == "__main__":
    main()
