"""Two sessions of pytest beside each other: what is told in the end, and by which exit code."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.beside import ROOT

RUN = """
import sys
from pathlib import Path
import pytest
from tests.beside import Beside
root = Path(sys.argv[1])
sys.exit(pytest.main(["-q", str(root)], plugins=[Beside(root, ("far",))]))
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
