"""Install the built wheel on the lowest and the highest versions that are claimed, for each Python, and test it there.

Run before a release; it takes an hour.

    python scripts/matrix.py                                  every Python that is claimed and found; core and jax
    python scripts/matrix.py --python 3.12 --set core         one Python; its rows of the page are replaced
    python scripts/matrix.py --python 3.11 --torch 2.13.0     lngrad.torch; pip installs that version first
    python scripts/matrix.py --list                           the environments, and nothing else
    python scripts/matrix.py --page                           docs/versions.md from docs/versions.json

uv finds the Pythons, and resolves what pyproject.toml claims, from wheels alone: a version without a wheel for a Python is no
candidate. Records and page are written after each environment.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterable
from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated, TypedDict

import typer

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # import-linter brings it for Python 3.10

ROOT = Path(__file__).resolve().parents[1]
PROJECT = ROOT / "lngrad" / "pyproject.toml"
RECORDS, PAGE = ROOT / "docs" / "versions.json", ROOT / "docs" / "versions.md"
EXTRAS = {"core": ("demo", "plots", "check"), "jax": ("jax",), "torch": ("torch",)}
FIRST = {"jax": 11}  # the first Python 3 that jax 0.10 is made for
TOOLS = ("pytest", "pytest-timeout", "hypothesis", "expecttest", "safetensors")  # what the copied tests import
TESTS = {
    "core": [f"lngrad/tests/{name}.py" for name in (
        "core/test_problem", "core/test_reference", "core/test_golden_bits", "check/test_formats",
    )],
    "jax": ["lngrad/tests/jax_api"],
    "torch": ["lngrad/tests/torch_api"],
}  # fmt: skip
# The bits of numpy_cpu are NumPy's own, and promised for one NumPy alone (lngrad/tests/golden_cases.py).
BITS = ["-k", "not (test_golden_bits and numpy_cpu)"]

# The columns of versions; what else a set brings is in the records.
SHOWN = ("numpy", "numba")

HEAD = """\
# Versions

lngrad runs on Python 3.10 to 3.14, Linux x86-64; torch needs 2.10 or later, jax 0.10 or later and Python 3.11.

* **lngrad.torch** takes torch 2.10 to 2.15; `override(compiled=True)` needs 2.13, and says so. Tested with 2.10, 2.13, 2.14 and
  2.15; for the others native code was compiled, not run.
* **Native code** for small calls comes with platform wheels. For a newer torch, or your own, `lngrad info --warm` compiles it.
* **`lngrad[torch,gpu,jax]`** resolves with each of these torches, which pin Triton 3.6 to 3.9, on each Python with wheels.

For each row `make matrix` installs the wheel into an empty environment, with the lowest or the highest version of every
dependency that `pyproject.toml` claims, and runs a copy of the tests there ({dates}). [versions.json](versions.json) has every
installed version.
"""

CHECKS = """\
* **install**: `pip check` finds no conflict, `import lngrad` comes from the environment, and the sdist installs too.
* **commands**: every command's help; `lngrad`, `info`, `run`, `tiling`, `check` with its HTML report, `demo`.
* **tests**: arguments, float64 reference, golden bits of every dtype, formats of cases;
  for jax and torch the tests of that package.
* **aarch64, emulated** (`make arm`): the wheel with compiled kernels under QEMU, without Numba, with the kernels of each
  processor that has some: golden bits, precision, special values, threads, the pool. No timings.
"""


class Record(TypedDict, total=False):
    """What one environment showed. A check has the text "passed", or what went wrong."""

    python: str  # "3.12.1"; of one that was not found, "3.15"
    set: str  # core, jax, torch or aarch64
    level: str  # lowest, highest, torch's version, or emulated
    versions: dict[str, str]
    checks: dict[str, str]
    tests: str  # "512 passed, 3 skipped"
    lngrad: str
    date: str
    how: str  # in what the run differed from those of the others
    missing: str  # why this Python, or a set or level of it, was not run


def key(record: Record) -> tuple[tuple[int, ...], str, str]:
    """Python's minor version, set and level: a new record takes the place of one with the same key."""
    minor = tuple(int(part) for part in record["python"].split(".")[:2])
    return minor, record.get("set", ""), record.get("level", "")


def read() -> list[Record]:
    """All records, sorted; none where none is kept."""
    return json.loads(RECORDS.read_text(encoding="utf-8")) if RECORDS.exists() else []


def merged(old: Iterable[Record], new: Iterable[Record]) -> list[Record]:
    """Both, sorted, the new ones in place of old ones. What was run, be it a Python, a set of it or a level, is not missing."""
    found = {key(record): record for record in [*old, *new]}
    tried = {
        cell
        for (minor, group, level), record in found.items()
        if "missing" not in record
        for cell in ((minor, "", ""), (minor, group, ""), (minor, group, level))
    }
    kept = [record for cell, record in found.items() if "missing" not in record or cell not in tried]
    return sorted(kept, key=lambda record: (*key(record)[:2], record.get("level") != "lowest", key(record)))


def passed(record: Record) -> bool:
    """Whether everything that was tried passed, and something was."""
    checks = record.get("checks", {})
    return bool(checks) and all(result == "passed" for result in checks.values())


def result(record: Record) -> str:
    """A row's third cell."""
    failures = [f"**{name}**: {text}" for name, text in record["checks"].items() if text != "passed"]
    return "; ".join(failures) or f"passed, {record['tests'].partition(' ')[0]} tests"


def _cell(record: Record) -> list[str]:
    """Python, set and level; the core's set has no name on the page."""
    named = record["python"], record.get("set", "").replace("core", ""), record.get("level", "")
    return [word for word in named if word]


def page(records: list[Record]) -> str:
    """The text of docs/versions.md."""
    tried = [record for record in records if "missing" not in record]
    dates = sorted(record["date"] for record in tried) or ["–"]
    lines = [
        HEAD.format(dates=" to ".join(dict.fromkeys([dates[0], dates[-1]]))),
        f"| Python | set | result | {' | '.join(SHOWN)} | framework |",
        f"|{'---|' * (len(SHOWN) + 4)}",
    ]
    for record in tried:
        versions, group = record["versions"], record["set"].replace("core", "")
        cells = [record["python"], f"{group} {record['level']}".strip(), result(record)]
        cells += [
            *(versions.get(name, "–") for name in SHOWN),
            f"{group} {versions[group]}" if group in versions else "–",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", CHECKS]
    if different := [record for record in tried if "how" in record]:
        lines.append("Run in another way:\n")
        lines += [
            textwrap.fill(f"* Python {' '.join(_cell(record))}: {record['how']}.", 120, subsequent_indent="  ")
            for record in different
        ]
        lines.append("")
    if missing := [record for record in records if "missing" in record]:
        lines.append("Not run here:\n")
        lines += [f"* Python {' '.join(_cell(record))}: {record['missing']}" for record in missing]
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def write(records: list[Record]) -> None:
    """Keep the records, and write the page."""
    RECORDS.write_text(json.dumps(records, indent=1) + "\n", encoding="utf-8")
    PAGE.write_text(page(records), encoding="utf-8")


class Failed(Exception):
    """A command ended with an error; the text says which and its last line."""


def run(*command: object, cwd: Path, **environment: str) -> str:
    """What a command printed; with a Python's environment of its own."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=cwd, env=inherited | environment, capture_output=True, text=True, check=False)
    if done.returncode:
        print(done.stdout[-4000:], done.stderr[-4000:], sep="\n", flush=True)
        last = (done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}").splitlines()[-1]
        if done.returncode < 0:
            last = signal.Signals(-done.returncode).name
        raise Failed(f"{Path(words[0]).name} {' '.join(words[1:3])}: {last.strip()}"[:200].replace("|", "/"))
    return done.stdout


class Environment:
    """An empty environment with the wheel in it, and the checks that it has to pass."""

    def __init__(self, python: str, group: str, level: str, folder: Path, archives: Path) -> None:
        self.python, self.group, self.level, self.folder = python, group, level, folder
        (self.wheel,), (self.source,) = archives.glob("lngrad-*.whl"), archives.glob("lngrad-*.tar.gz")
        (self.ascend,) = archives.glob("lngrad_ascend-*.whl")
        self.bin = folder / "env" / "bin"
        self.settings = {"PATH": f"{self.bin}{os.pathsep}{os.environ['PATH']}"}
        if group == "core":  # the other tests take kernels that this machine has: those do not depend on torch or jax
            self.settings["XDG_CACHE_HOME"] = str(folder / "cache")

    def run(self, *command: object) -> str:
        return run(*command, cwd=self.folder, **self.settings)

    def install(self) -> None:
        """What the wheel claims, then the wheel; nothing conflicts; the sdist installs as well."""
        uv, python = ["uv", "--quiet", "pip"], ["--python", self.bin / "python"]
        run("uv", "venv", "--quiet", "--seed", "--python", self.python, "env", cwd=self.folder)
        if self.group == "torch":  # by pip, which may know a build for this machine that uv does not look for
            self.run(self.bin / "python", "-m", "pip", "install", "--quiet", f"torch=={self.level}")
        dev = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["dependency-groups"]["dev"]
        tools = [need for need in dev if re.match(r"[\w-]+", need)[0] in TOOLS]
        extras = [word for extra in EXTRAS[self.group] for word in ("--extra", extra)]
        # Those of pyproject.toml are direct requirements for uv, which a wheel's are not.
        resolution = [
            "--resolution",
            "lowest-direct" if self.level == "lowest" else "highest",
            "--only-binary",
            ":all:",
        ]
        self.run(*uv, "install", *python, *resolution, *tools, "-r", PROJECT, *extras)
        self.run(*uv, "install", *python, "--no-deps", self.wheel, self.ascend)
        self.run(*uv, "check", *python)
        self.run(*uv, "install", *python, "--no-deps", "--reinstall", self.source)
        place = self.run(self.bin / "python", "-c", "import lngrad; print(lngrad.__file__)")
        if not Path(place.strip()).is_relative_to(self.folder):
            raise Failed(f"lngrad is imported from {place.strip()}")

    def commands(self) -> None:
        """The commands that need no compiler, as a user would call them, and the help of all."""
        lngrad = self.bin / "lngrad"
        arrays = "import numpy as np; x = np.random.default_rng(0).standard_normal((2, 5, 7), np.float32)"
        self.run(self.bin / "python", "-c", f"{arrays}; np.savez('in.npz', dy=x[0], x=x[1])")
        (self.folder / "cases.yaml").write_text("lngrad: 1\ncases:\n  - {name: one, shape: [3, 5]}\n")
        self.run(lngrad)
        for words in re.findall(r"(?m)^  (\w+) ", self.run(lngrad, "--help").partition("Commands:")[2]):
            self.run(lngrad, words, "--help")
        self.run(lngrad, "info")
        self.run(lngrad, "tiling", "--shape", "2,32,16")
        self.run(lngrad, "run", "in.npz", "-o", "out.npz")
        if self.group == "core":
            self.run(lngrad, "check", "cases.yaml", "--impl", "numba_cpu", "--report", "report.html")
            self.run(lngrad, "demo", "--epochs", "8")

    def tests(self) -> str:
        """The tests of this set, copied, against the installed package. Returns pytest's last line."""
        for name in ("tests", "lngrad/tests", "cases", "examples"):
            shutil.copytree(ROOT / name, self.folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", self.folder)
        options = ["-q", "-p", "no:cacheprovider", "--timeout", "600", "-p", "shared_fixtures", *BITS]
        if self.level == "lowest":  # an old package may use what a newer one has deprecated
            options += ["-W", "ignore::DeprecationWarning", "-W", "ignore::PendingDeprecationWarning"]
        output = self.run(self.bin / "python", "-m", "pytest", *options, *TESTS[self.group])
        return re.sub(r" in [\d.]+s.*", "", output.strip().splitlines()[-1]).strip("= ")

    def versions(self) -> dict[str, str]:
        listed = self.run("uv", "--quiet", "pip", "list", "--format", "json", "--python", self.bin / "python")
        return {entry["name"].replace("-", "_"): entry["version"] for entry in json.loads(listed)}


def prove(environment: Environment) -> Record:
    """Every check in one environment; without an installation there are no others."""
    python, group, level = environment.python, environment.group, environment.level
    checks: dict[str, str] = {}
    record = Record(python=python, set=group, level=level, versions={}, checks=checks, tests="")
    record["lngrad"] = environment.wheel.name.split("-")[1]
    record["date"] = datetime.now(timezone.utc).strftime("%Y-%m-%d")
    steps: list[Callable[[], str | None]] = [environment.install, environment.commands, environment.tests]
    for step in steps:
        try:
            record["tests"] = step() or record["tests"]
            checks[step.__name__] = "passed"
        except Failed as failure:
            checks[step.__name__] = str(failure)
        print(f"Python {python} {group} {level}: {step.__name__} {checks[step.__name__]}", flush=True)
        if step == environment.install:
            if checks["install"] != "passed":
                break
            record["versions"] = environment.versions()
            record["python"] = environment.run(environment.bin / "python", "-V").split()[1]
    return record


def claimed() -> list[str]:
    """The Pythons of the classifiers."""
    return re.findall(r"Python :: (3\.\d+)\"", PROJECT.read_text("utf-8"))


def main(
    python: Annotated[list[str], typer.Option(help="A Python, such as 3.12; default: all that are claimed.")] = [],  # noqa: B006
    chosen: Annotated[
        list[str], typer.Option("--set", help="core or jax; default: both, unless --torch is given.")
    ] = [],  # noqa: B006
    torch: Annotated[list[str], typer.Option(help="A version of torch, which pip can install.")] = [],  # noqa: B006
    dist: Annotated[Path | None, typer.Option(help="A folder with sdist and wheel; default: built now.")] = None,
    show: Annotated[bool, typer.Option("--list", help="Only show the environments.")] = False,
    only_page: Annotated[bool, typer.Option("--page", help="Only write the page from the records.")] = False,
) -> None:
    """Test the wheel in each environment; ends with 1 if a check fails."""
    if only_page:
        write(read())
        return
    found = {
        version: subprocess.run(["uv", "python", "find", "--no-python-downloads", version], capture_output=True)
        for version in python or claimed()
    }
    new = [Record(python=version, missing="no interpreter was found") for version in found if found[version].returncode]
    cells = [
        (version, *cell)
        for version in found
        if not found[version].returncode
        for cell in [
            *(
                (name, level)
                for name in chosen or ([] if torch else ["core", "jax"])
                for level in ("lowest", "highest")
            ),
            *(("torch", version) for version in torch),
        ]
        if int(version.split(".")[1]) >= FIRST.get(cell[0], 0)
    ]
    if show:
        print(*(" ".join(cell) for cell in cells), sep="\n")
        return
    with tempfile.TemporaryDirectory() as temporary:
        archives = dist.resolve() if dist else Path(temporary, "dist")
        if not dist:
            for package in ("lngrad", "lngrad-ascend"):
                run(sys.executable, "-m", "build", "--outdir", archives, ROOT / package, cwd=Path(temporary))
        for cell in cells:
            with tempfile.TemporaryDirectory() as folder:
                new.append(prove(Environment(*cell, Path(folder), archives)))
                write(merged(read(), new))  # before the folder is removed, which takes a while
    if not all(passed(record) for record in new if "missing" not in record):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
