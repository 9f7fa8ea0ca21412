"""Which partition of the offsets topic keeps a group (GRP-01).

The rule is Kafka's, so that its tools look for a group where it is: the hash that Java gives a
string, made positive, modulo the number of partitions. Java's hash counts the text in UTF-16.
"""

_INT_MIN = -(2**31)


def partition_of(group_id: str, partition_count: int) -> int:
    """The number of the partition that keeps the group."""
    number = 0
    units = group_id.encode("utf-16-be", "surrogatepass")
    for high, low in zip(units[::2], units[1::2], strict=True):
        number = (number * 31 + (high << 8 | low)) & 0xFFFFFFFF
    if number >= 2**31:
        number -= 2**32
    return 0 if number == _INT_MIN else abs(number) % partition_count
