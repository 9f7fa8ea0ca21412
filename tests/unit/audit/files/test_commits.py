"""Records of the offsets topic, read by the audit's own code."""

import pytest

from minibroker.audit.files.commits import Commit, read_commit

KEY = bytes.fromhex(
    "0001"  # an offset's key, version 1
    "0003" "677270"  # group "grp"
    "0001" "74"  # topic "t"
    "00000007"  # partition
)  # fmt: skip
VALUE = bytes.fromhex(
    "0003"  # version 3
    "0000000000000102"  # offset 258
    "00000005"  # leader epoch
    "0000"  # no metadata
    "0000018bcfe56800"  # when
)
OLD_VALUE = bytes.fromhex("0001000000000000010300000000018bcfe568000000018bcfe56801")


def test_what_a_record_says() -> None:
    """A commit of any version names its offset, one without a value none, and a group nothing."""
    assert read_commit(KEY, VALUE) == Commit("grp", "t", 7, 258)
    assert read_commit(KEY, OLD_VALUE) == Commit("grp", "t", 7, 259)
    assert read_commit(KEY, None) == Commit("grp", "t", 7, None)
    assert read_commit(bytes.fromhex("00020003677270"), b"anything") is None


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, VALUE),
        (b"", VALUE),
        (b"\0\x09" + KEY[2:], VALUE),
        (KEY + b"\0", VALUE),
        (b"\0\1\xff\xff" + KEY[4:], VALUE),
        (b"\0\1\0\3\xff\xff\xff" + KEY[7:], VALUE),
        *((KEY[:size], VALUE) for size in range(2, len(KEY))),
        (KEY, b""),
        (KEY, b"\0\7" + VALUE[2:]),
        *((KEY, VALUE[:size]) for size in range(10)),
    ],
)
def test_bytes_that_are_no_commit(key: bytes | None, value: bytes) -> None:
    """Whatever else stands there is refused, and never breaks the reader."""
    with pytest.raises(ValueError, match=r"."):
        read_commit(key, value)
