"""An audit in somebody's session leaves everything there as it was."""

from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from minibroker.audit.progress import Progress
from minibroker.audit.run import AuditOptions, run_audit
from tests.support.made_cluster import make_cluster


def test_a_session_stays_as_it_was(spark: SparkSession, tmp_path: Path) -> None:
    """What others have in the cache stays there, and nothing of the audit's own does. Its jobs, in
    whichever thread, are a group of their own; the caller's group is set again after it."""
    mine = spark.range(7).persist()
    assert mine.count() == 7
    cached = spark.sparkContext._jsc.getPersistentRDDs  # type: ignore[union-attr]
    kept = cached().keySet()
    context: Any = spark.sparkContext
    context.setJobGroup("mine", "what I do")
    spark.range(3).count()
    tracker = context.statusTracker()
    bus = context._jsc.sc().listenerBus()
    bus.waitUntilEmpty()  # it tells the tracker of jobs, in a thread of its own
    before, ungrouped = (tracker.getJobIdsForGroup(group) for group in ("mine", None))
    make_cluster(tmp_path, 1)
    out = tmp_path / "out"
    out.mkdir()
    seen: list[Progress] = []
    run_audit(spark, AuditOptions([tmp_path], out), seen.append)
    bus.waitUntilEmpty()
    assert len(before) == 1
    assert mine.storageLevel.useMemory
    assert cached().keySet() == kept
    assert context.getLocalProperty("spark.jobGroup.id") == "mine"
    assert context.getLocalProperty("spark.job.description") == "what I do"
    assert tracker.getJobIdsForGroup("mine") == before, "none of the audit's is among mine"
    assert tracker.getJobIdsForGroup(None) == ungrouped, "nor is one without a group"
    assert seen
    context.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]
    mine.unpersist()
