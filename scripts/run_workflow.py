"""Execute the commands of a GitHub workflow on this machine, as its file has them.

    python scripts/run_workflow.py .github/workflows/ci.yml             every job
    python scripts/run_workflow.py .github/workflows/ci.yml --job site --list
    python scripts/run_workflow.py .github/workflows/weekly.yml --set CALLS=2000 --set PYTEST_ADDOPTS=tests/check/soak

Each job runs in a clone of HEAD of its own, or of the repository `--source`. Steps that use an action are named and passed
over; a matrix is not multiplied: its first entry is taken. The first command that fails ends its job, but for steps with
`if: always()`. `--venv` lends the jobs an environment that is there, so that nothing is installed anew; `--set` changes or adds
a variable, to make fewer calls or run fewer tests than the workflow does. What was changed is printed.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
STAMPS = (".demo", ".dev", ".site", ".matrix")  # the Makefile's


@dataclass(frozen=True)
class Step:
    """A command of a job; an empty script is a step that uses an action."""

    title: str
    script: str
    environment: dict[str, str]
    always: bool


def steps_of(job: dict[str, Any]) -> list[Step]:
    shared = job.get("env", {})
    return [
        Step(
            title=str(step.get("name") or step.get("uses") or step["run"].splitlines()[0]),
            script=str(step.get("run", "")),
            environment={name: str(value) for name, value in {**shared, **step.get("env", {})}.items()},
            always="always()" in str(step.get("if", "")),
        )
        for step in job["steps"]
    ]


def filled(script: str, job: dict[str, Any], results: dict[str, str]) -> str:
    """A script with the expressions that these workflows use; any other is an error."""
    script = script.replace("${{ join(needs.*.result, ' ') }}", " ".join(results.values()))
    for name, values in job.get("strategy", {}).get("matrix", {}).items():
        script = script.replace(f"${{{{ matrix.{name} }}}}", str(values[0]))
    if re.search(r"\$\{\{", script):
        raise SystemExit(f"an expression that is not known here: {script}")
    return script


def lend(folder: Path, venv: Path) -> None:
    """An environment that is there takes the place of the clone's own, for make too."""
    (folder / ".venv").mkdir()
    for entry in venv.resolve().iterdir():
        if entry.name not in STAMPS:
            (folder / ".venv" / entry.name).symlink_to(entry)
    for stamp in STAMPS:
        (folder / ".venv" / stamp).touch()


def run_job(name: str, job: dict[str, Any], results: dict[str, str], options: argparse.Namespace) -> str:
    needed = job.get("needs", [])
    needs = {one: results.get(one, "skipped") for one in ([needed] if isinstance(needed, str) else needed)}
    if "always()" not in str(job.get("if", "")) and any(result != "success" for result in needs.values()):
        return "skipped"
    changed = dict(one.split("=", 1) for one in options.set)
    result = "success"
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["git", "clone", "--quiet", str(options.source), folder], check=True)
        given = {"GITHUB_WORKSPACE": folder}
        if options.venv is not None:
            lend(Path(folder), options.venv)
            given["PYTHONPATH"] = str(Path(folder, "src"))  # before the source that the environment was made for
            given["PATH"] = os.pathsep.join([str(Path(folder, ".venv", "bin")), os.environ["PATH"]])
        for step in steps_of(job):
            if not step.script:
                print(f"{name}: passed over: {step.title}", flush=True)
            elif result == "success" or step.always:
                script = filled(step.script, job, needs)
                print(f"{name}: {step.title}\n" + re.sub("^", "    ", script.strip(), flags=re.MULTILINE), flush=True)
                command = ["bash", "-e", "-o", "pipefail", "-c", script]
                environment = {**os.environ, **given, **step.environment, **changed}
                if subprocess.run(command, cwd=folder, env=environment).returncode:
                    result = "failure"
    return result


def main() -> int:
    parser = argparse.ArgumentParser(description="execute the commands of a GitHub workflow here")
    parser.add_argument("file", type=Path)
    parser.add_argument("--job", help="one job only, whatever it needs")
    parser.add_argument("--list", action="store_true", help="print the commands and run nothing")
    parser.add_argument("--source", type=Path, default=ROOT, help="the repository to clone")
    parser.add_argument("--venv", type=Path, help="an environment to use in place of a new one")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="change a variable")
    options = parser.parse_args()
    jobs = yaml.safe_load(options.file.read_text(encoding="utf-8"))["jobs"]
    results: dict[str, str] = {}
    for change in options.set:
        print(f"changed: {change}")
    for name, job in jobs.items():
        if options.job not in (None, name):
            continue
        if options.list:
            print("\n".join(f"{name}: {step.script or f'({step.title})'}" for step in steps_of(job)))
        else:
            results[name] = run_job(name, {**job, "needs": []} if options.job else job, results, options)
            print(f"{name}: {results[name]}", flush=True)
    return int("failure" in results.values())


if __name__ == "__main__":
    sys.exit(main())
