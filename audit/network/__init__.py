"""Topics as Spark tables: `format("minibroker")`, read and written over the network.

    register(spark)
    spark.read.format("minibroker").option("kafka.bootstrap.servers", "127.0.0.1:9092")...

Options and behaviour follow Spark's own source and sink for Kafka (docs/audit.md, "Reading and
writing over the network"). Reading is source.py, a stream of it stream.py, writing sink.py, and
what the options mean options.py. Everything is checked when a query is planned, in the driver, as
far as it can be known there.
"""

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from minibroker.audit.network.options import batch_options, sink_options, stream_options
from minibroker.audit.network.sink import BatchWriter, StreamWriter, check_schema
from minibroker.audit.network.source import SCHEMA, WITHOUT_HEADERS, BatchReader
from minibroker.audit.network.stream import StreamReader


def register(spark: SparkSession) -> None:
    """Make the format known to a session."""
    spark.dataSource.register(TopicSource)


class TopicSource(DataSource):
    """What Spark makes of `format("minibroker")`."""

    @classmethod
    def name(cls) -> str:
        """The word for `format`."""
        return "minibroker"

    def schema(self) -> StructType:
        """What a source gives: topic, partition, offset, timestamp, key, value, and headers unless
        `includeHeaders` is false."""
        include = next(
            (value for name, value in self.options.items() if name.lower() == "includeheaders"), ""
        )
        return WITHOUT_HEADERS if include.lower() == "false" else SCHEMA

    def reader(self, schema: StructType) -> BatchReader:
        """For `spark.read`."""
        self._check_own(schema)
        return BatchReader(batch_options(self.options))

    def streamReader(self, schema: StructType) -> StreamReader:  # noqa: N802 - Spark's name
        """For `spark.readStream`."""
        self._check_own(schema)
        return StreamReader(stream_options(self.options))

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        """For `df.write`."""
        options = sink_options(self.options)
        if overwrite:
            raise ValueError("a topic is not overwritten: use mode('append')")
        check_schema(schema, options)
        return BatchWriter(options)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802
        """For `df.writeStream`."""
        options = sink_options(self.options)
        if overwrite:
            raise ValueError("a topic is not overwritten: use outputMode('append') or 'update'")
        check_schema(schema, options)
        return StreamWriter(options)

    def _check_own(self, schema: StructType) -> None:
        if schema != self.schema():
            columns = self.schema().simpleString()
            raise ValueError(f"the columns are given: {columns}; set no schema")
