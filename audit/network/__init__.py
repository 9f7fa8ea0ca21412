"""Topics as Spark tables: `format("minibroker")`, read and written over the network.

    register(spark)
    spark.read.format("minibroker").option("kafka.bootstrap.servers", "127.0.0.1:9092")...

Options and behaviour follow Spark's own source and sink for Kafka (docs/audit.md, "Reading and
writing over the network"). source.py reads batches, stream.py reads streams, sink.py writes, and
options.py parses the options. A query is checked when it is planned, in the driver, as far as that
is possible there.
"""

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from minibroker.audit.network.options import batch_options, sink_options, stream_options
from minibroker.audit.network.sink import BatchWriter, StreamWriter, check_schema
from minibroker.audit.network.source import SCHEMA, WITHOUT_HEADERS, BatchReader
from minibroker.audit.network.stream import StreamReader


def register(spark: SparkSession) -> None:
    """Register the format with a session."""
    spark.dataSource.register(TopicSource)


class TopicSource(DataSource):
    """The data source behind `format("minibroker")`."""

    @classmethod
    def name(cls) -> str:
        """Return the name for `format`."""
        return "minibroker"

    def schema(self) -> StructType:
        """Return the columns of a source: topic, partition, offset, timestamp, key, value, and
        headers unless `includeHeaders` is false."""
        include = next(
            (value for name, value in self.options.items() if name.lower() == "includeheaders"), ""
        )
        return WITHOUT_HEADERS if include.lower() == "false" else SCHEMA

    def reader(self, schema: StructType) -> BatchReader:
        """Return the reader for `spark.read`."""
        self._check_own(schema)
        return BatchReader(batch_options(self.options))

    def streamReader(self, schema: StructType) -> StreamReader:  # noqa: N802 - Spark's name
        """Return the reader for `spark.readStream`."""
        self._check_own(schema)
        return StreamReader(stream_options(self.options))

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        """Return the writer for `df.write`."""
        options = sink_options(self.options)
        if overwrite:
            raise ValueError("a topic is not overwritten: use mode('append')")
        check_schema(schema, options)
        return BatchWriter(options)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802
        """Return the writer for `df.writeStream`."""
        options = sink_options(self.options)
        if overwrite:
            raise ValueError("a topic is not overwritten: use outputMode('append') or 'update'")
        check_schema(schema, options)
        return StreamWriter(options)

    def _check_own(self, schema: StructType) -> None:
        if schema != self.schema():
            columns = self.schema().simpleString()
            raise ValueError(f"the columns are given: {columns}; set no schema")
