"""The files around the code: licence, workflow, hooks and forms, by the tools that judge them."""

import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement

import minibroker
from tests.support.topology import ROOT

PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
WORKFLOW = ROOT / ".github" / "workflows" / "ci.yml"
RELEASE = ROOT / ".github" / "workflows" / "release.yml"
HOOKS = ROOT / ".pre-commit-config.yaml"
FORMS = ROOT / ".github" / "ISSUE_TEMPLATE"


def judged(*command: str | Path) -> None:
    """A tool of this environment finds nothing."""
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    ("schema", "path"),
    [
        ("github-workflows", WORKFLOW),
        ("github-workflows", RELEASE),
        ("github-issue-forms", FORMS / "bug.yml"),
        ("github-issue-config", FORMS / "config.yml"),
    ],
    ids=["workflow", "release", "form", "config"],
)
def test_forges_files_follow_their_schema(schema: str, path: Path) -> None:
    """What a forge reads without a word where it is wrong."""
    judged("check_jsonschema", "--builtin-schema", f"vendor.{schema}", path)


def test_the_workflow_tries_each_python_that_is_declared() -> None:
    """On Linux the whole of `.ci/run`, and on macOS what starts no process."""
    jobs = yaml.safe_load(WORKFLOW.read_text(encoding="utf-8"))["jobs"]
    declared = [
        each.rpartition(" ")[2]
        for each in PROJECT["project"]["classifiers"]
        if each.startswith("Programming Language :: Python :: 3.")
    ]
    linux, macos = jobs["linux"], jobs["macos"]
    assert linux["strategy"]["matrix"]["python"] == declared
    assert PROJECT["project"]["requires-python"] == f">={declared[0]}"
    assert linux["steps"][-1] == {"run": "bash .ci/run"}
    assert macos["steps"][-1] == {"run": "make quick"}
    assert set(macos["strategy"]["matrix"]["python"]) <= set(declared)


def test_a_release_runs_what_runs_here_and_publishes_only_where_it_is_wanted() -> None:
    """Its checks are targets of make; only the last job may write anywhere."""
    workflow = yaml.safe_load(RELEASE.read_text(encoding="utf-8"))
    jobs = workflow["jobs"]
    commands = [
        step["run"] for job in ("build", "images") for step in jobs[job]["steps"] if "run" in step
    ]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = [command.split()[1] for command in commands if command.startswith("make ")]
    assert targets == ["wheel", "release-check", "images", "images-check"]
    assert all(f"\n{target}:" in makefile for target in targets)
    assert workflow["permissions"] == {"contents": "read"}
    assert [name for name, job in jobs.items() if "permissions" in job] == ["publish"]
    assert jobs["publish"]["if"] == "vars.PUBLISH == 'true'"
    assert set(jobs["publish"]["needs"]) == {"tests", "build", "images"}


def test_a_wheel_needs_neither_spark_nor_java() -> None:
    """It is built in an environment with what builds it, whatever else is installed."""
    command = ["make", "--always-make", "--dry-run", "wheel", "PYTHON=python3"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    [install] = [line for line in done.stdout.splitlines() if "pip install" in line]
    assert install.split()[-2:] == ["build", "'setuptools>=77'"]
    assert ".venv" not in done.stdout


def test_the_hooks_are_those_of_make_lint() -> None:
    """The same programs from the same environment; pre-commit reads its file."""
    judged("pre_commit", "validate-config", HOOKS)
    [local] = yaml.safe_load(HOOKS.read_text(encoding="utf-8"))["repos"]
    assert local["repo"] == "local"
    entries = {hook["id"]: hook["entry"] for hook in local["hooks"]}
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for name, command in (("ruff-check", "ruff check"), ("ruff-format", "ruff format")):
        assert entries[name].startswith(f".venv/bin/python -m {command}")
        assert f"$(BIN)/python -m {command}" in makefile
    assert entries["types"] == "make --no-print-directory types"
    assert {hook["language"] for hook in local["hooks"]} == {"system"}


def test_the_licence_is_the_one_that_is_declared() -> None:
    """As an SPDX expression, with its whole text, and without a second word on it."""
    project = PROJECT["project"]
    text = (ROOT / "LICENSE").read_text(encoding="utf-8")
    assert project["license"] == "Apache-2.0"
    assert project["license-files"] == ["LICENSE"]
    assert "Apache License" in text
    assert "Version 2.0, January 2004" in text
    assert not [each for each in project["classifiers"] if each.startswith("License")]
    [backend] = map(Requirement, PROJECT["build-system"]["requires"])
    assert "76" not in backend.specifier  # which does not know the expression
    assert "77" in backend.specifier


def test_the_extras_are_those_for_users_and_developers() -> None:
    """Named for whom they are; nothing in them is for a part that does not exist yet."""
    assert set(PROJECT["project"]["optional-dependencies"]) == {"audit", "dev", "pytest"}


def test_the_version_is_said_once() -> None:
    """pyproject.toml takes it from the package, which says it to programs."""
    dynamic = PROJECT["tool"]["setuptools"]["dynamic"]
    assert dynamic == {"version": {"attr": "minibroker.__version__"}}
    assert PROJECT["project"]["dynamic"] == ["version"]
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert f"\n## {minibroker.__version__}, " in changelog
