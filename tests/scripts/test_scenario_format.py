"""The text of a scenario: what is read, and what is said about a wrong line."""

from pathlib import Path

import pytest

from minibroker.testing.lab.library import ScenarioUnknown, choose_rule, load, names
from minibroker.testing.lab.scenario import USAGES, ScenarioError, Step, join, parse, split
from minibroker.testing.lab.stage import play
from minibroker.testing.lab.strategies import RULES

ROOT = Path(__file__).resolve().parents[2]
HEAD = "# A title\n#\n# A description.\n\nbrokers 1 2\nrules epoch hw\nunclean-return seen\n"


def test_a_scenario_is_read():
    """Title, description, what holds for all runs and for each, and the steps to play."""
    scenario = parse(
        HEAD + "with min.insync.replicas=2\nrun a\n# told\nproduce 1 x\nwait 1.5s fetching 2\n"
        "run b\nrepeat a\nrules hw\nwith min.insync.replicas=1\nunclean-return unseen\n"
        "crash 2 power tail lost\n"
    )
    assert (scenario.title, scenario.description) == ("A title", "A description.")
    assert scenario.rules == ("epoch", "hw")
    first, second = scenario.runs
    assert first.brokers == (1, 2)
    assert first.steps == (
        Step(10, "comment", ("told",)),
        Step(11, "produce", (1, "x")),
        Step(12, "wait_fetching", (1.5, 2)),
    )
    assert second.steps == (*first.steps, Step(18, "crash_power_tail_lost", (2,)))
    assert (first.settings, second.settings) == (
        {"min.insync.replicas": "2"},
        {"min.insync.replicas": "1"},
    )
    assert (first.is_unclean_return_seen, second.is_unclean_return_seen) == (True, False)
    assert second.rules == ("hw",)


def test_transcripts_stand_below_and_are_found_again():
    """`split` and `join` are opposites, and the transcripts are no part of the scenario."""
    source = HEAD + "run a\nproduce 1 x\n"
    text = join(source, {"epoch": "one\n\ntwo\n", "hw": "three\n"})
    assert split(text) == (source, {"epoch": "one\n\ntwo\n", "hw": "three\n"})
    assert parse(text).runs == parse(source).runs


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("", 1, "begin with the title"),
        ("brokers 1\n", 1, "begin with the title"),
        ("# T\nbrokers 1 1\n", 2, "brokers takes"),
        ("# T\nbrokers 1 2 3 4\n", 2, "brokers takes"),
        ("# T\nbrokers one\n", 2, "brokers takes"),
        ("# T\nrules epoch\nunclean-return seen\nrun a\n", 4, "does not say 'brokers'"),
        ("# T\nbrokers 1\nunclean-return seen\nrun a\n", 4, "does not say 'rules'"),
        ("# T\nbrokers 1\nrules epoch\nrun a\n", 4, "does not say 'unclean-return'"),
        (HEAD, 7, "there is no run"),
        (HEAD + "produce 1 x\n", 8, "a step stands in a run"),
        (HEAD + "rules\n", 8, "at least one NAME"),
        (HEAD + "rules epok\n", 8, "did you mean 'epoch'?"),
        (HEAD + "unclean-return maybe\n", 8, "seen or unseen"),
        (HEAD + "with min.isr=1\n", 8, "min.isr"),
        (HEAD + "with min.insync.replicas=none\n", 8, "min.insync.replicas"),
        (HEAD + "with something\n", 8, "NAME=VALUE"),
        (HEAD + "with replica.lag.max.messages=few\n", 8, "is a number, not 'few'"),
        (HEAD + "run\n", 8, "a NAME of its own"),
        (HEAD + "run a\nrun a\n", 9, "a NAME of its own"),
        (HEAD + "run a\nbrokers 1\n", 9, "in the head"),
        (HEAD + "run a\nrepeat b\n", 9, "an earlier run"),
        (HEAD + "run a\nproduce 1 x\nwith flush=never\n", 10, "before the steps"),
        (HEAD + "run a\nfetsch 2\n", 9, "did you mean 'fetch'?"),
        (HEAD + "run a\nfetch 3\n", 9, "is not: fetch BROKER (brokers: 1 2)"),
        (HEAD + "run a\nfetch\n", 9, "is not: fetch BROKER"),
        (HEAD + "run a\ncrash 1 power\n", 9, "crash BROKER process, or: crash BROKER power tail"),
        (HEAD + "run a\nwait 31\n", 9, "did you mean 'wait 31s'?"),
        (HEAD + "run a\nwait 5 fetching 2\n", 9, "did you mean 'wait 5s fetching 2'?"),
        (HEAD + "run a\nwait 0s\n", 9, "wait SECONDS"),
        (HEAD + "run a\nproduce 1 x acks 2\n", 9, "produce BROKER VALUE acks ACKS"),
        (HEAD + "run a\nproduce 1 x by p epoch 0\n", 9, "epoch EPOCH sequence SEQUENCE"),
        (HEAD + "run a\nread 1 from the start\n", 9, "read BROKER from OFFSET"),
        (HEAD + "run a\nburst 1 many\n", 9, "burst BROKER COUNT"),
    ],
)
def test_a_wrong_line_is_named(text: str, line: int, words: str):
    """A file that is wrong says where, and how it is written."""
    with pytest.raises(ScenarioError) as caught:
        parse(text)
    assert caught.value.line == line
    assert words in str(caught.value)
    assert str(caught.value).startswith(f"line {line}: ")


@pytest.mark.parametrize(
    ("steps", "line", "words"),
    [
        ("crash 2 process\nfetch 2\n", 10, "broker 2 is down"),
        ("crash 1 process\nproduce 1 x\n", 10, "broker 1 is down"),
        ("crash 1 process\ncrash 1 process\n", 10, "broker 1 is down"),
        ("start 2\n", 9, "broker 2 runs already"),
        ("expire 2\n", 9, "keeps its session"),
        ("init 1 p\nproduce 1 x by p epoch 0 sequence 0\n", 10, "producer p has no id"),
        ("stop-replica 2 epoch 0 controller 0 delete\ncheck 2\n", 10, "no replica any more"),
        ("wait 1s fetching 2\ncrash 2 process\nwait 1s fetching 2\n", 11, "broker 2 is down"),
    ],
)
def test_a_step_that_cannot_be_is_named(steps: str, line: int, words: str):
    """What contradicts the steps before it is an error of the file, at its line."""
    with pytest.raises(ScenarioError) as caught:
        play(parse(f"{HEAD}run a\n{steps}").runs[0], "epoch")
    assert caught.value.line == line
    assert words in str(caught.value)


def test_what_is_not_there_is_told_with_what_is_near(tmp_path):
    """An unknown scenario or rule names the nearest, a wrong file its own name."""
    with pytest.raises(ScenarioUnknown, match="did you mean 'hw-loss'"):
        load("hw-lost")
    with pytest.raises(ScenarioUnknown, match="did you mean 'epoch'"):
        choose_rule("hw-loss", load("hw-loss"), "epochs")
    assert choose_rule("hw-loss", load("hw-loss"), None) == "epoch"
    path = tmp_path / "mine.txt"
    path.write_text("# T\nbrokers\n")
    with pytest.raises(ScenarioError, match=r"mine\.txt, line 2: brokers takes"):
        load(str(path))
    path.write_bytes(b"\xff")
    with pytest.raises(ScenarioError, match=r"mine\.txt, line 1: .*UTF-8"):
        load(str(path))


def test_what_a_role_cannot_do_is_told():
    """A leader that is asked to fetch, a follower without a leader: no error, an event (RM-07)."""
    text = HEAD + "run a\nfetch 1\nanswer 2\ncrash 1 process\nfetch 2\nproduce 2 x\n"
    told = play(parse(text).runs[0], "epoch")
    assert [line.text for line in told.lines[1:]] == [
        "1 does not fetch: it leads",
        "2 has no FETCH under way",
        "1 is killed",
        "2 fetches from 0; 1 is down",
        "2 answers x with NOT_LEADER_OR_FOLLOWER",
    ]


def test_an_order_may_name_any_leader():
    """Also one that is out of sync, in the present epoch: the broker refuses it, not the lab."""
    steps = "crash 1 process\nexpire 1\nstart 1\norder 2 leader 1 epoch 1 controller 0\n"
    told = play(parse(f"{HEAD}run a\n{steps}").runs[0], "epoch")
    text = "controller epoch 0 orders 2: 1 leads, epoch 1; FENCED_LEADER_EPOCH"
    assert told.lines[-1].text == text


def test_followers_of_a_synced_topic_force_their_log_to_disk_first():
    """With flush=always a FETCH waits for the own fsync, and an ack for that of all (N1)."""
    steps = "produce 1 x\ncopy 2\nfetch 2\nflush 2\nask 2\nflush 1\n"
    told = play(parse(f"{HEAD}with flush=always\nrun a\n{steps}").runs[0], "epoch")
    assert [line.text for line in told.lines[1:]] == [
        "1 takes x at offset 0",
        "2 fetches from 0",
        "2 gets offset 0, HW 0",
        "2 does not fetch: its log is not on disk yet",
        "2 forces its log to disk",
        "2 fetches from 1, epoch 0; it waits",
        "1 forces its log to disk",
        "1 acknowledges x",
        "1 answers the FETCH of 2",
    ]


def test_the_page_about_the_lab_shows_what_is_played():
    """docs/lab.md names every step, rule and scenario, and each line that it shows stands in a
    transcript."""
    page = (ROOT / "docs" / "lab.md").read_text(encoding="utf-8")
    assert [usage for usage in USAGES if f"| `{usage}` |" not in page] == []
    assert [rule for rule in RULES if f"`{rule}`" not in page] == []
    assert [name for name in names() if f"**{name}" not in page] == []
    transcripts = [text for name in names() for text in load(name).transcripts.values()]
    told = {line for text in transcripts for line in text.splitlines()}
    shown = [line for block in page.split("```")[1::2] for line in block.strip("\n").splitlines()]
    assert len(shown) > 30
    assert [line for line in shown if line not in told] == []
