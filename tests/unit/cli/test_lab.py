"""`minibroker lab`: what it prints is what the scenarios hold."""

import subprocess
import sys

from minibroker.testing.lab.library import load, names


def lab(*arguments: str, typed: str = "") -> subprocess.CompletedProcess[str]:
    """Run the command to its end."""
    command = [sys.executable, "-m", "minibroker.cli", "lab", *arguments]
    return subprocess.run(command, input=typed, capture_output=True, text=True, check=False)


def test_the_list_has_every_scenario_with_its_title_and_rules():
    """One line for each, so that somebody can choose."""
    lines = lab("list").stdout.splitlines()
    assert [line.split()[0] for line in lines] == names()
    assert all(load(line.split()[0]).title in line for line in lines)
    assert "isr-by-lag" in names()
    assert "--rule time or lag-messages" in lines[names().index("isr-by-lag")]


def test_a_run_prints_story_and_transcript_and_nothing_else():
    """The story, what the letters mean, and what the file expects; the brokers' logs are silent."""
    scenario = load("hw-divergence")
    done = lab("run", "hw-divergence", "--rule", "hw")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"{scenario.title}\n\n{scenario.story}\n\n")
    assert done.stdout.endswith(f"\n\n{scenario.transcripts['hw']}")


def test_steps_wait_for_enter_and_print_the_same():
    """`--step` changes when a line comes, not what it says; without input it plays to the end."""
    expected = lab("run", "hw-two-rounds").stdout
    assert lab("run", "hw-two-rounds", "--step", typed="\n" * 100).stdout == expected
    assert lab("run", "hw-two-rounds", "--step").stdout == expected


def test_a_wrong_file_is_one_line_of_an_error(tmp_path):
    """The file's name, the line, and how it is written; exit code 1."""
    path = tmp_path / "mine.txt"
    path.write_text("# T\nbrokers 1\nrules epoch\nunclean-return seen\nrun a\nexpire 1\n")
    done = lab("run", str(path))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"% ERROR: {path}, line 6: broker 1 runs and keeps its session\n"
