"""Addresses of brokers as users write them."""

import pytest

from minibroker.client.net.servers import parse_servers


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a:1", [("a", 1)]),
        ("a", [("a", 9092)]),
        ("a, b:1 ,PLAINTEXT://c", [("a", 9092), ("b", 1), ("c", 9092)]),
        ("[::1]:7,[::1]", [("::1", 7), ("::1", 9092)]),
        (["10.0.0.1"], [("10.0.0.1", 9092)]),
    ],
)
def test_a_host_without_a_port_means_that_of_kafka(
    text: str | list[str], expected: list[tuple[str, int]]
) -> None:
    """As in librdkafka."""
    assert [*map(tuple, parse_servers(text))] == expected


@pytest.mark.parametrize("text", ["", ",", "a:", ":1", "9092", "a:0", "a:65536", "a:x", [], 7])
def test_other_addresses_are_refused(text: object) -> None:
    """A port alone is no host."""
    with pytest.raises(ValueError):  # noqa: PT011 - callers say what they take
        parse_servers(text)
