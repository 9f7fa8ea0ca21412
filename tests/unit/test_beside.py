"""Sessions of pytest beside each other: what is told in the end, and by which exit code; and which
of them runs a file that they share."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.beside import ROOT, SHORT, WITH_SPARK
from tests.pool import FOLDER, LONG

RUN = """
import sys
from pathlib import Path
import pytest
from tests.beside import Beside
root = Path(sys.argv[1])
sys.exit(pytest.main(["-q", str(root)], plugins=[Beside(root, ("far",))]))
"""

SHARING = """
import sys
from pathlib import Path
import pytest
from tests.pool import Pool
root = Path(sys.argv[1])
shared = root / "shared"
sys.exit(pytest.main(["-v", shared, root / "own"], plugins=[Pool(shared, root / "claims")]))
"""


@pytest.mark.parametrize(("near", "far"), [("True", "True"), ("False", "True"), ("True", "False")])
def test_both_are_told_whole_and_either_fails(tmp_path: Path, near: str, far: str) -> None:
    """First all of the one, then the other, whose summary is the last line; each test runs once."""
    (tmp_path / "pytest.ini").write_text("[pytest]")
    for name, outcome in (("near", near), ("far", far)):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"test_{name}.py").write_text(f"def test_it():\n    assert {outcome}\n")
    command = [sys.executable, "-c", RUN, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == (1 if "False" in (near, far) else 0), done.stdout
    lines = done.stdout.splitlines()
    told = {"True": "1 passed", "False": "1 failed"}
    beside = next(at for at, line in enumerate(lines) if "beside: far" in line)
    summaries = [
        (at > beside, line) for at, line in enumerate(lines) if re.search(r" in [\d.]+s", line)
    ]
    assert [told[far] in summaries[0][1], told[near] in summaries[1][1]] == [True, True]
    assert lines[-1] == summaries[1][1]
    assert ("FAILED beside: see above" in lines) == (far == "False")


def test_a_shared_file_runs_in_the_session_that_begins_it(tmp_path: Path) -> None:
    """After its own tests, the long ones first; another session has begun one, and the next one
    finds nothing left."""
    (tmp_path / "pytest.ini").write_text("[pytest]")
    for folder in ("claims", "own", "shared"):
        (tmp_path / folder).mkdir()
    own, short, begun = "own/test_own.py", "shared/test_a.py", "shared/test_begun.py"
    long = f"shared/{LONG[0]}"
    for name in (own, short, begun, long):
        (tmp_path / name).write_text("def test_one():\n    pass\n\n\ndef test_two():\n    pass\n")
    (tmp_path / "claims" / "test_begun.py").touch()

    def files_run() -> list[str]:
        command = [sys.executable, "-c", SHARING, str(tmp_path)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        return re.findall(r"(\w+/\w+\.py)::test_\w+ PASSED", done.stdout, re.MULTILINE)

    assert files_run() == [own, own, long, long, short, short]
    assert files_run() == [own, own]


def test_the_files_that_sessions_are_given_are_there() -> None:
    """A file that was moved would run in another session, or not share its time."""
    assert all((ROOT / path).exists() for path in (*WITH_SPARK, *SHORT, FOLDER))
    assert all((ROOT / FOLDER / name).is_file() for name in LONG)
