"""docs/kafka.md says what is announced."""

from tests.unit.kafka.version_table import made, parts


def test_the_page_lists_what_is_served():
    """`python -m tests.unit.kafka.version_table` writes the table anew."""
    assert parts()[1] == made()
