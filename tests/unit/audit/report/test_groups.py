"""What groups have committed and read, in text, on the page and in JSON."""

import json
from dataclasses import replace
from pathlib import Path

from minibroker.audit.report.groups import GROUPS_MAX, ROWS_MAX, lines, sentence
from minibroker.audit.report.page import page
from minibroker.audit.summary import GroupOffset, Summary
from minibroker.cli.audit.text import lines as all_lines
from tests.unit.audit.sample import NASTY, sample_summary

PLAIN = GroupOffset(
    group="g1",
    topic="orders",
    partition=0,
    committed=1_000,
    lag=12,
    highest=1_050,
    commits=20,
    went_back=0,
    back="",
    by="by member m-1 of generation 4",
    deletions=0,
    generation=4,
    home=3,
    coordinator=2,
)
READ = replace(PLAIN, read=1_000, twice=54, skipped=0, early=0, refused=0, open_ledgers=1)


def summary(*groups: GroupOffset, count: int | None = None) -> Summary:
    """What an audit of these groups would come to."""
    return replace(
        sample_summary(), groups=groups, group_count=len(groups) if count is None else count
    )


def test_a_sentence_about_a_group() -> None:
    """Its lag, what it has read, and what else is worth a word."""
    assert sentence("g1", [PLAIN]) == "g1: lag 12 in 1 partition"
    assert sentence("g1", [READ, replace(READ, partition=1, twice=0, open_ledgers=0)]) == (
        "g1: lag 24 in 2 partitions; read 2,000 records, 54 of them twice after member kills,"
        " skipped none"
    )
    odd = replace(
        READ,
        lag=None,
        open_ledgers=0,
        skipped=7,
        early=1,
        refused=2,
        went_back=3,
        deletions=1,
    )
    assert sentence("g1", [odd]) == (
        "g1: no lag known in 1 partition; read 1,000 records, 54 of them twice, skipped 7;"
        " went back 3 times; 1 commit came before the record was read; 2 commits were refused;"
        " 1 commit was deleted"
    )


def test_groups_in_the_text_of_an_audit() -> None:
    """The sentence, a row for each partition, and how a group went back; no group, no line."""
    said = "from 50 to 20 (offset 17), by member m of generation 4"
    back = replace(READ, partition=1, went_back=1, back=said)
    gone = replace(PLAIN, partition=2, committed=None, lag=None)
    assert [*lines(summary(READ, back, gone))] == [
        "Group g1: lag 24 in 3 partitions; read 2,000 records, 108 of them twice after member"
        " kills, skipped none; went back 1 time",
        "    group  partition  committed  lag  highest  went back  read   twice  skipped  refused",
        "    g1     orders-0   1,000      12   1,050    0          1,000  54     0        0",
        "    g1     orders-1   1,000      12   1,050    1          1,000  54     0        0",
        f"        went back {said}",
        "    g1     orders-2   deleted    ?    1,050    0          ?      ?      ?        ?",
    ]
    assert [*lines(summary())] == []
    given = [*all_lines(summary(PLAIN), [], Path("out"))]
    assert "Group g1: lag 12 in 1 partition" in given
    assert "    g1     orders-0   1,000      12   1,050    0" in given


def test_few_of_many_groups_are_printed() -> None:
    """And how many there are besides."""
    many = [replace(PLAIN, group=f"g{number:03}") for number in range(GROUPS_MAX + 30)]
    told = [*lines(summary(*many, count=5_000))]
    assert told[GROUPS_MAX] == "... and 30 more groups"
    assert told[-1] == "    ... and 4,980 more partitions"
    assert len(told) == GROUPS_MAX + 1 + 1 + ROWS_MAX + 1


def test_groups_on_the_page_and_in_json() -> None:
    """All that is known of each, whatever its name is made of."""
    odd = replace(
        READ, group=NASTY, topic=NASTY, back="from 50 to 20", went_back=1, refused=2,
        refusals="ILLEGAL_GENERATION 2",
    )  # fmt: skip
    told = summary(odd, count=7)
    shown = page(told, [])
    for text in (
        "54 of them twice after member kills",
        "1, from 50 to 20",
        "ILLEGAL_GENERATION 2",
        "by member m-1 of generation 4",
        "__consumer_offsets-3, coordinator 2",
        "6 more partitions of groups",
    ):
        assert text in shown
    assert NASTY not in shown
    assert 'id="groups"' not in page(summary(), [])
    [group] = json.loads(told.to_json())["groups"]
    assert (group["committed"], group["highest"], group["twice"]) == (1_000, 1_050, 54)
    assert Summary.from_json(told.to_json()) == told
