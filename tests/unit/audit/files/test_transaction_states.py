"""Records of `__transaction_state`, as brokers write them and as they never do."""

import struct

import pytest

from minibroker.audit.files.transaction_states import StateRecord, read_state
from minibroker.broker.transactions.records import encode_key, encode_value
from minibroker.broker.transactions.states import STATUS, State
from minibroker.broker.transactions.transaction import Transaction
from minibroker.protocol.types import TopicPartition

KEY = encode_key("my-id")
PARTITIONS = {TopicPartition("a", 3), TopicPartition("a", 1), TopicPartition("b" * 200, 0)}


@pytest.mark.parametrize("state", [state for state in STATUS if state is not State.DEAD])
def test_a_brokers_record_is_read(state: State):
    """Each field, also those that have tags."""
    is_open = state in (State.ONGOING, State.PREPARE_COMMIT, State.PREPARE_ABORT)
    names = frozenset(PARTITIONS) if is_open else frozenset()
    times = {"started_ms": 5, "updated_ms": 6}
    more = {"previous_producer_id": 8, "next_producer_id": 9, "version": 2}
    value = Transaction(7, 3, 60_000, state, names, **times, **more, last_producer_epoch=2)
    found = read_state(KEY, encode_value(value))
    assert set(found.partitions) == names
    numbers = {"producer_id": 7, "producer_epoch": 3, "timeout_ms": 60_000}
    wanted = StateRecord("my-id", state.value, **numbers, **times, **more)
    assert found._replace(partitions=()) == wanted


def test_an_old_value_is_read():
    """Version 0 has no compact lists and no tags."""
    topic = struct.pack(">ih1sii", 1, 1, b"t", 1, 4)
    value = struct.pack(">hqhib", 0, 7, 3, 60_000, 1) + topic + struct.pack(">qq", 6, 5)
    assert read_state(KEY, value).partitions == (TopicPartition("t", 4),)


def test_a_record_without_a_value_deletes_the_id():
    """It has expired."""
    assert read_state(KEY, None) == StateRecord("my-id", None)


ANYTHING = ".*"  # what is wrong differs from place to place
VALUE = encode_value(Transaction(7, 3, 60_000, State.ONGOING, frozenset(PARTITIONS)))


def test_no_bytes_are_read_that_are_not_there():
    """A value that is cut anywhere, or goes on, is refused."""
    for end in range(len(VALUE)):
        with pytest.raises(ValueError, match=ANYTHING):
            read_state(KEY, VALUE[:end])
    for key, value in ((None, VALUE), (KEY + b"0", VALUE), (KEY[:-1], VALUE), (KEY, VALUE + b"0")):
        with pytest.raises(ValueError, match=ANYTHING):
            read_state(key, value)
    with pytest.raises(ValueError, match="a state of the number 99"):
        read_state(KEY, VALUE[:16] + b"\x63" + VALUE[17:])
    with pytest.raises(ValueError, match="a value of version 2"):
        read_state(KEY, b"\0\2" + VALUE[2:])
    with pytest.raises(ValueError, match="a list of"):
        read_state(KEY, VALUE[:17] + b"\xff\xff\xff\xff\x0f" + VALUE[18:])
