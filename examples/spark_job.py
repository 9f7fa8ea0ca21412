"""A Spark job: counts the records of each key in a topic, and sends the counts to another.

    python examples/spark_job.py 127.0.0.1:9092 TOPIC TARGET

It needs the extra `[audit]`, which brings Spark and a Java for it. The source reads up to the ends
that partitions have when the job begins. The sink sends with acks=all; where Spark runs a task
again it sends again, so readers of the target take the last count of a key.
"""

import sys

from pyspark.sql import SparkSession

from minibroker.audit.network import register
from minibroker.audit.session import spark_session


def main(spark: SparkSession, address: str, topic: str, target: str) -> None:
    """Count, and send the counts."""
    register(spark)
    servers = {"kafka.bootstrap.servers": address}
    records = spark.read.format("minibroker").options(**servers, subscribe=topic).load()
    counts = records.where("key is not null").groupBy("key").count()
    rows = counts.selectExpr("key", "CAST(CAST(count AS STRING) AS BINARY) AS value")
    rows.write.format("minibroker").options(**servers, topic=target).mode("append").save()
    counts.selectExpr("CAST(key AS STRING) AS key", "count").orderBy("key").show()


if __name__ == "__main__":
    session = spark_session()
    try:
        main(session, *sys.argv[1:])
    finally:
        session.stop()
