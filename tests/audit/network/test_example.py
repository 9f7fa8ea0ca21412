"""The Spark job of `examples/`; tests/acceptance/test_examples.py has the others, and types."""

from importlib.util import module_from_spec, spec_from_file_location

import pytest
from pyspark.sql import SparkSession

from minibroker.client.blocking import Consumer, Producer
from tests.audit.network.topics import create
from tests.installed import ROOT
from tests.support.processes import BrokerProcess


def test_the_spark_job_counts_by_key(
    spark: SparkSession, broker: BrokerProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    """It prints the counts, and another topic has them."""
    create(broker, "example-keys")
    create(broker, "example-counts")
    with Producer(broker.address) as producer:
        for number in range(30):
            producer.send("example-keys", b"value", b"key %d" % (number % 3))
        producer.send("example-keys", b"without")
    spec = spec_from_file_location("spark_job", ROOT / "examples" / "spark_job.py")
    assert spec is not None
    assert spec.loader is not None
    job = module_from_spec(spec)
    spec.loader.exec_module(job)
    job.main(spark, broker.address, "example-keys", "example-counts")
    assert "|key 0|   10|" in capsys.readouterr().out
    with Consumer(broker.address, auto_offset_reset="earliest") as consumer:
        consumer.assign_topics("example-counts")
        found: dict[bytes | None, bytes | None] = {}
        while len(found) < 3:
            records = consumer.poll(30)
            assert records, f"only {found}"
            found |= {record.key: record.value for record in records}
    assert found == {b"key 0": b"10", b"key 1": b"10", b"key 2": b"10"}
