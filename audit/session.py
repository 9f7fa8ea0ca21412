"""A Spark session that starts anywhere: with or without a system Java, locally or on a cluster.

This module sets up what PySpark leaves to its callers, so that `minibroker audit run` needs only
`pip install 'minibroker[audit]'`:

* **Java.** `java.py` finds one, and makes it start fast. An audit plans much and computes little,
  so in a local session the JVM stops at its first compiler, and one thread collects its garbage.
  Its code cache is as large as with all compilers: each query adds code of its own, and a session
  that is used for long would fill a smaller cache and then stop compiling.
* **Python.** The workers run the interpreter of the driver; a worker with another version of
  pyarrow, or none, fails with misleading errors. On a cluster PYSPARK_PYTHON may name theirs.
* **The package.** A non-local master gets a zip of the modules of minibroker that the workers need
  (`packaging.py`).
* **Logging.** Spark logs much on standard error. Here only errors are logged, without those of
  tasks, which are raised as exceptions; no console progress, no web interface.

The files for this lie in a temporary directory of this process, which is removed at exit; two
processes never share one, so there are no races. The environment variables that PySpark reads stay
set: PySpark starts one JVM per process, and later sessions of the process use the same one.
"""

import atexit
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

from minibroker.audit.java import class_archive, find_java, write_java_home
from minibroker.audit.packaging import write_package

# Spark's default of 200 is for far larger tables than a row per batch; each costs every check a
# task.
_CLUSTER_SHUFFLE_PARTITIONS: Final = 32
_SHORT_LIVED: Final = "-XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=240m -XX:+UseSerialGC"

# The second one is Spark's own switch for tests.
_INTERPRETED: Final = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}

# `shell`: the class whose log level Spark treats as a shell's; PySpark counts as a shell. Without a
# level of its own Spark sets the root's to "warn", and prints two lines about it.
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


def spark_session(
    master: str = "local[*]",
    *,
    app_name: str = "minibroker audit",
    settings: Mapping[str, str] | None = None,
) -> SparkSession:
    """Return a session on a master: `local[N]`, `local-cluster[...]`, `spark://host:port`, `yarn`.

    `settings` are Spark's own and override those set here. Raises NoJava if there is no Java that
    Spark can run on.
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
        # A user's secrets.py, where the command is given, is not the library's.
        "spark.executorEnv.PYTHONSAFEPATH": "1",
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
        chosen["spark.driver.extraJavaOptions"] += f" {_SHORT_LIVED}"
        chosen["spark.sql.shuffle.partitions"] = str(local)
        # Replanning after each stage takes longer than most of these stages do.
        chosen["spark.sql.adaptive.enabled"] = "false"
    builder = SparkSession.builder.master(master).appName(app_name)
    for name, value in (chosen | dict(settings or {})).items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


@contextmanager
def interpreted(spark: SparkSession) -> Iterator[None]:
    """Let Spark interpret expressions: for small tables that takes less time than to compile them.
    Afterwards the session, which may be the caller's, has its own settings again."""
    before = {name: str(spark.conf.get(name)) for name in _INTERPRETED}
    try:
        for name, value in _INTERPRETED.items():
            spark.conf.set(name, value)
        yield
    finally:
        for name, value in before.items():
            spark.conf.set(name, value)


def local_cores(master: str) -> int | None:
    """Return how many tasks a local master runs at once; None for a master that is not local."""
    match = re.fullmatch(r"local(?:\[(\*|\d+)(?:,\d+)?\])?", master.replace(" ", ""))
    if match is None:
        return None
    cores = match.group(1)
    return (os.cpu_count() or 1) if cores == "*" else int(cores or 1)


def _set_environment(directory: Path, *, is_local: bool) -> None:
    home = directory / "java"
    if not home.exists():
        java = find_java()
        write_java_home(directory, java, class_archive(java))
    os.environ["JAVA_HOME"] = str(home)
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    if is_local:
        os.environ["PYSPARK_PYTHON"] = sys.executable
        os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    else:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)


_directories: list[Path] = []


def temporary_directory() -> Path:
    """Return this process's directory for the session's files, the same at each call."""
    if not _directories:
        _directories.append(Path(tempfile.mkdtemp(prefix="minibroker-audit-")))
        atexit.register(shutil.rmtree, _directories[0], ignore_errors=True)
    return _directories[0]
