"""Execute the commands of a GitHub workflow on this machine, as its file has them.

    python scripts/run_workflow.py .github/workflows/ci.yml             every job
    python scripts/run_workflow.py .github/workflows/ci.yml --job site --list

Each job runs in a clone of HEAD of its own. Steps that use an action are named and passed over; a
matrix is not multiplied: this Python is its one entry. The first command that fails ends its job.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]


def commands(job: dict[str, Any]) -> list[tuple[str, str, dict[str, str]]]:
    """The name, the script and the environment of each step; an empty script for a step that uses an action."""
    return [
        (str(step.get("name") or step.get("uses")), str(step.get("run", "")), dict(step.get("env", {})))
        for step in job["steps"]
    ]


def filled(script: str, results: dict[str, str]) -> str:
    """A script with the expressions that these workflows use; any other is an error."""
    script = script.replace("${{ join(needs.*.result, ' ') }}", " ".join(results.values()))
    if re.search(r"\$\{\{", script):
        raise SystemExit(f"an expression that is not known here: {script}")
    return script


def run_job(name: str, job: dict[str, Any], results: dict[str, str]) -> str:
    needed = job.get("needs", [])
    needs = {one: results.get(one, "skipped") for one in ([needed] if isinstance(needed, str) else needed)}
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["git", "clone", "--quiet", str(ROOT), folder], check=True)
        for title, script, environment in commands(job):
            if not script:
                print(f"{name}: passed over: {title}", flush=True)
                continue
            print(f"{name}: {title}\n    {script}", flush=True)
            command = ["bash", "-e", "-o", "pipefail", "-c", filled(script, needs)]
            if subprocess.run(command, cwd=folder, env={**os.environ, **environment}).returncode:
                return "failure"
    return "success"


def main() -> int:
    parser = argparse.ArgumentParser(description="execute the commands of a GitHub workflow here")
    parser.add_argument("file", type=Path)
    parser.add_argument("--job", help="one job only")
    parser.add_argument("--list", action="store_true", help="print the commands and run nothing")
    options = parser.parse_args()
    jobs = yaml.safe_load(options.file.read_text(encoding="utf-8"))["jobs"]
    results: dict[str, str] = {}
    for name, job in jobs.items():
        if options.job not in (None, name):
            continue
        if options.list:
            print("\n".join(f"{name}: {script or f'({title})'}" for title, script, _ in commands(job)))
        else:
            results[name] = run_job(name, job, results)
            print(f"{name}: {results[name]}")
    return int("failure" in results.values())


if __name__ == "__main__":
    sys.exit(main())
