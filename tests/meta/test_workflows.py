"""Workflows, templates and the citation file are well-formed, and call what exists."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import lngrad

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).parents[2]
GITHUB = ROOT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
TARGETS = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE))


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.name)
def test_a_workflow_calls_what_exists(file):
    workflow = yaml.safe_load(file.read_text("utf-8"))
    assert workflow["permissions"] == {"contents": "read"}, "a workflow may do no more than it needs"
    assert workflow[True], "'on' is True in YAML"
    jobs = workflow["jobs"]
    for job in jobs.values():
        needs = job.get("needs", [])
        assert set([needs] if isinstance(needs, str) else needs) <= set(jobs)
        for step in job["steps"]:
            assert ("uses" in step) != ("run" in step)
            if "uses" in step:
                assert re.fullmatch(r"[\w-]+/[\w-]+@[\w./-]+", step["uses"])
            for target in re.findall(r"\bmake (\w+)", step.get("run", "")):
                assert target in TARGETS


def test_the_last_job_of_ci_needs_all_others():
    jobs = yaml.safe_load((GITHUB / "workflows" / "ci.yml").read_text("utf-8"))["jobs"]
    *others, last = jobs
    assert jobs[last]["needs"] == others
    assert " ".join("success" for _ in others) in jobs[last]["steps"][0]["run"]


@pytest.mark.parametrize("file", WORKFLOWS, ids=lambda file: file.name)
def test_the_script_reads_them(file):
    command = [sys.executable, str(ROOT / "scripts" / "run_workflow.py"), str(file), "--list"]
    assert "make" in subprocess.run(command, capture_output=True, text=True, check=True).stdout


WORKFLOW = """
jobs:
  one:
    strategy: {matrix: {part: [3, 4]}}
    env: {CALLS: "1000"}
    steps:
      - uses: actions/checkout@v4
      - {name: Numbers, run: 'echo "$CALLS calls of part ${{ matrix.part }}"; test -f file'}
      - {name: Fails, run: "false | true; echo never", if: "github.ref"}
      - {name: Not run, run: echo not run}
      - {name: Always, if: always(), run: echo always}
  two: {needs: one, steps: [{run: echo two}]}
  last:
    if: always()
    needs: [one, two]
    steps: [{run: "echo ${{ join(needs.*.result, ' ') }}"}]
"""


def executed(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """A workflow's steps, run in a clone of a small repository."""
    (folder / "file").write_text("")
    (folder / "workflow.yml").write_text(WORKFLOW)
    me = ["-c", "user.name=me", "-c", "user.email=me@example.org"]
    for words in (["init", "-q"], ["add", "file"], [*me, "commit", "-q", "-m", "one"]):
        subprocess.run(["git", "-C", str(folder), *words], check=True)
    script = [sys.executable, str(ROOT / "scripts" / "run_workflow.py"), str(folder / "workflow.yml")]
    return subprocess.run([*script, "--source", str(folder), *options], capture_output=True, text=True, check=False)


def test_the_script_executes_steps_as_the_file_has_them(tmp_path):
    result = executed(tmp_path, "--set", "CALLS=20")
    assert result.returncode == 1, result.stderr
    printed = [line for line in result.stdout.splitlines() if not line.startswith("    ")]
    assert printed == [
        "changed: CALLS=20",
        "one: passed over: actions/checkout@v4",
        "one: Numbers",
        "20 calls of part 3",
        "one: Fails",
        "one: Always",
        "always",
        "one: failure",
        "two: skipped",
        "last: echo ${{ join(needs.*.result, ' ') }}",
        "failure skipped",
        "last: success",
    ]


def test_a_job_alone_needs_no_other(tmp_path):
    result = executed(tmp_path, "--job", "two")
    assert (result.returncode, result.stdout.splitlines()[-2:]) == (0, ["two", "two: success"])


def test_a_million_calls_a_week():
    soak = yaml.safe_load((GITHUB / "workflows" / "weekly.yml").read_text("utf-8"))["jobs"]["soak"]
    assert int(soak["env"]["CALLS"]) * len(soak["strategy"]["matrix"]["part"]) == 1_000_000
    assert "slow" in yaml.safe_load((GITHUB / "workflows" / "weekly.yml").read_text("utf-8"))["jobs"]


def test_issue_forms_ask_for_what_is_needed():
    for file in ("wrong-result.yml", "slow.yml"):
        form = yaml.safe_load((GITHUB / "ISSUE_TEMPLATE" / file).read_text("utf-8"))
        assert {"name", "description", "body"} <= set(form)
        assert any("lngrad info" in field["attributes"]["label"] for field in form["body"])


def test_the_citation_has_this_version():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    assert {"cff-version", "message", "title", "authors"} <= set(citation)
    assert citation["version"] == lngrad.__version__
    assert citation["license"] == "Apache-2.0"
