"""An audit in somebody's session leaves everything there as it was."""

from pathlib import Path

from pyspark.sql import SparkSession

from minibroker.audit.progress import Progress
from minibroker.audit.run import AuditOptions, run_audit
from tests.support.made_cluster import make_cluster


def test_what_others_have_in_the_cache_stays(spark: SparkSession, tmp_path: Path) -> None:
    """Nothing of theirs is given up, and all of the audit's own is."""
    mine = spark.range(7).persist()
    assert mine.count() == 7
    cached = spark.sparkContext._jsc.getPersistentRDDs  # type: ignore[union-attr]
    before = cached().keySet()
    make_cluster(tmp_path, 1)
    out = tmp_path / "out"
    out.mkdir()
    run_audit(spark, AuditOptions([tmp_path], out))
    assert mine.storageLevel.useMemory
    assert cached().keySet() == before
    mine.unpersist()


def test_its_jobs_are_a_group_of_their_own(spark: SparkSession, tmp_path: Path) -> None:
    """All of them, in whichever thread; and the group that its caller was in is his again."""
    context = spark.sparkContext
    context.setJobGroup("mine", "what I do")
    spark.range(3).count()
    tracker = context.statusTracker()
    before, ungrouped = (tracker.getJobIdsForGroup(group) for group in ("mine", None))
    make_cluster(tmp_path, 1)
    out = tmp_path / "out"
    out.mkdir()
    seen: list[Progress] = []
    run_audit(spark, AuditOptions([tmp_path], out), seen.append)
    assert context.getLocalProperty("spark.jobGroup.id") == "mine"
    assert context.getLocalProperty("spark.job.description") == "what I do"
    assert tracker.getJobIdsForGroup("mine") == before, "none of the audit's is among mine"
    assert tracker.getJobIdsForGroup(None) == ungrouped, "nor is one without a group"
    assert seen
    context.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]
