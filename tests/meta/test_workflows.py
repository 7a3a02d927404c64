"""Workflows, templates and the citation file are well-formed, and call what exists."""

from __future__ import annotations

import re
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
    for action in re.findall(r"uses: (.*)", file.read_text("utf-8")):
        assert re.search(r"@[0-9a-f]{40}  # v\d", action), f"{action}: a tag can be moved"
    jobs = workflow["jobs"]
    for job in jobs.values():
        needs = job.get("needs", [])
        assert set([needs] if isinstance(needs, str) else needs) <= set(jobs)
        for step in job["steps"]:
            assert ("uses" in step) != ("run" in step)
            if "uses" in step:
                assert re.fullmatch(r"[\w-]+/[\w-]+@[\w./-]+", step["uses"])
            for target in re.findall(r"\bmake ([\w-]+)", step.get("run", "")):
                assert target in TARGETS


def test_the_last_job_of_ci_needs_all_others():
    jobs = yaml.safe_load((GITHUB / "workflows" / "ci.yml").read_text("utf-8"))["jobs"]
    *others, last = jobs
    assert jobs[last]["needs"] == others
    assert " ".join("success" for _ in others) in jobs[last]["steps"][0]["run"]


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
