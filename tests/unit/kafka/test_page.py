"""docs/kafka.md says what is announced, and what becomes of each topic property."""

import pytest

from tests.unit.kafka.version_table import TABLES, parts


@pytest.mark.parametrize("table", TABLES)
def test_the_page_lists_what_is_served(table: str):
    """`python -m tests.unit.kafka.version_table` writes the tables anew."""
    assert parts(table)[1] == TABLES[table]()
