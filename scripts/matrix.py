"""Install the built wheel on the lowest and the highest versions that are claimed, for each Python, and test it there.

    python scripts/matrix.py                                  every Python that is claimed and found; core and jax
    python scripts/matrix.py --python 3.12 --door core        one Python; its rows of the page are replaced
    python scripts/matrix.py --python 3.11 --torch 2.13.0     the torch door; pip installs that version first
    python scripts/matrix.py --list                           the environments, and nothing else

What is claimed is read from the wheel's metadata. uv resolves and installs, from wheels alone: a version without a wheel for a
Python is no candidate. The page docs/versions.md and its records are written after each environment.
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
import zipfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import datetime, timezone
from email.message import Message
from email.parser import HeaderParser
from pathlib import Path
from typing import Annotated

import typer
from packaging.requirements import Requirement
from rich.console import Console
from versions_page import ROOT, Record, merged, passed, read, write

EXTRAS = {"core": ("demo", "io", "plots", "check"), "jax": ("jax", "io"), "torch": ("torch", "io")}
OLDEST = {"jax": 11}  # the first Python 3 that jax 0.10 is made for
TOOLS = ("pytest", "pytest-timeout", "hypothesis", "expecttest")  # of the dev extra: what the copied tests import
TESTS = {
    "core": [
        "tests/core/test_problem.py",
        "tests/core/test_reference.py",
        "tests/core/test_golden_bits.py",
        "tests/check/test_formats.py",
    ],
    "jax": ["tests/jax_door"],
    "torch": ["tests/torch_door"],
}
# The bits of numpy_cpu are NumPy's own, and promised for one NumPy alone (tests/golden_cases.py).
BITS = ["-k", "not (test_golden_bits and numpy_cpu)"]
SAMPLE = "import lngrad\n\nreveal_type(lngrad.get_num_threads())\n"
console = Console()


@dataclass(frozen=True)
class Cell:
    """One environment: a Python, a front door and a choice of versions."""

    python: str
    door: str
    level: str

    @property
    def resolution(self) -> str:
        """What uv takes. A version of torch goes with the highest of all others."""
        return "lowest-direct" if self.level == "lowest" else "highest"


class Failed(Exception):
    """A command ended with an error; the text says which and its last line."""


def metadata(wheel: Path) -> Message:
    """A wheel's METADATA."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return HeaderParser().parsestr(archive.read(name).decode())


def requirements(claims: Iterable[str], extras: Iterable[str], python: str, tools: Iterable[str] = ()) -> list[str]:
    """The claims that hold for some extras on one Python, without markers, and those of the extra dev for named tools."""
    found = []
    for requirement in map(Requirement, claims):
        wanted = ["", *extras, *(["dev"] if requirement.name in tools else [])]
        place = {"python_version": python, "python_full_version": f"{python}.0"}
        marker = requirement.marker
        if marker is None or any(marker.evaluate({**place, "extra": extra}) for extra in wanted):
            requirement.marker = None
            found.append(str(requirement))
    return sorted(set(found))


def cells(pythons: Iterable[str], doors: Iterable[str], torches: Iterable[str]) -> list[Cell]:
    """The environments, in the order in which they run."""
    found = [Cell(python, door, level) for python in pythons for door in doors for level in ("lowest", "highest")]
    found = [cell for cell in found if int(cell.python.split(".")[1]) >= OLDEST.get(cell.door, 0)]
    return found + [Cell(python, "torch", version) for python in pythons for version in torches]


def interpreter(version: str) -> str | None:
    """A Python of PATH or of pyenv. pyenv's shims are passed over: they name versions that are not switched on."""
    folders = [folder for folder in os.environ["PATH"].split(os.pathsep) if "shims" not in folder]
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    folders += [str(path) for path in sorted(pyenv.glob(f"{version}.*/bin"))]
    return shutil.which(f"python{version}", path=os.pathsep.join(folders))


def run(*command: object, cwd: Path, **environment: str) -> str:
    """What a command printed; with a Python's environment of its own."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=cwd, env=inherited | environment, capture_output=True, text=True, check=False)
    if done.returncode:
        console.print(done.stdout[-4000:], done.stderr[:2000], done.stderr[-2000:], markup=False, highlight=False)
        last = (done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}").splitlines()[-1]
        if done.returncode < 0:
            last = signal.Signals(-done.returncode).name
        raise Failed(f"{Path(words[0]).name} {' '.join(words[1:3])}: {last.strip()}"[:200].replace("|", "/"))
    return done.stdout


class Environment:
    """An empty environment with the wheel in it, and the checks that it has to pass."""

    def __init__(self, cell: Cell, folder: Path, archives: Path) -> None:
        self.cell, self.folder = cell, folder
        (self.wheel,), (self.source,) = archives.glob("*.whl"), archives.glob("*.tar.gz")
        self.bin = folder / "env" / "bin"
        self.settings = {"PATH": f"{self.bin}{os.pathsep}{os.environ['PATH']}"}
        if cell.door == "core":  # a door's tests take kernels that this machine has: they do not depend on torch or jax
            self.settings["XDG_CACHE_HOME"] = str(folder / "cache")

    def run(self, *command: object) -> str:
        return run(*command, cwd=self.folder, **self.settings)

    def install(self) -> None:
        """The wheel with its dependencies; nothing conflicts; the sdist installs as well."""
        uv, python = ["uv", "--quiet", "pip"], ["--python", self.bin / "python"]
        run("uv", "venv", "--quiet", "--seed", "--python", interpreter(self.cell.python), "env", cwd=self.folder)
        if self.cell.door == "torch":  # by pip, which may know a build for this machine that uv does not look for
            self.run(self.bin / "python", "-m", "pip", "install", "--quiet", f"torch=={self.cell.level}")
        claims = metadata(self.wheel).get_all("Requires-Dist")
        names = requirements(claims, EXTRAS[self.cell.door], self.cell.python, TOOLS)
        options = ["--resolution", self.cell.resolution, "--only-binary", ":all:"]
        self.run(*uv, "install", *python, *options, *names, self.wheel)
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
        if self.cell.door == "core":
            self.run(lngrad, "check", "cases.yaml", "--impl", "numba_cpu", "--report", "report.html")
            self.run(lngrad, "demo", "--epochs", "8")

    def types(self) -> None:
        """mypy of the Python that runs this script reads the installed package."""
        (self.folder / "sample.py").write_text(SAMPLE)
        command = [sys.executable, "-m", "mypy", "--no-incremental", "--python-executable", self.bin / "python"]
        if '"int"' not in (said := self.run(*command, "sample.py")).replace("builtins.", ""):
            raise Failed(f"mypy does not see the package's types: {said.strip()}")

    def tests(self) -> str:
        """The tests of this door, copied, against the installed package. Returns pytest's last line."""
        for name in ("tests", "cases", "examples"):
            shutil.copytree(ROOT / name, self.folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "pyproject.toml", self.folder)
        options = ["-q", "-p", "no:cacheprovider", "--timeout", "600", "-o", "testpaths=tests", *BITS]
        if self.cell.resolution == "lowest-direct":  # an old package may use what a newer one has deprecated
            options += ["-W", "ignore::DeprecationWarning", "-W", "ignore::PendingDeprecationWarning"]
        said = self.run(self.bin / "python", "-m", "pytest", *options, *TESTS[self.cell.door])
        return re.sub(r" in [\d.]+s.*", "", said.strip().splitlines()[-1]).strip("= ")

    def versions(self) -> dict[str, str]:
        listed = self.run("uv", "--quiet", "pip", "list", "--format", "json", "--python", self.bin / "python")
        return {entry["name"].replace("-", "_"): entry["version"] for entry in json.loads(listed)}


def prove(cell: Cell, folder: Path, archives: Path) -> Record:
    """Every check in one environment; without an installation there are no others."""
    environment = Environment(cell, folder, archives)
    version = environment.wheel.name.split("-")[1]
    checks: dict[str, str] = {}
    record = Record(python=cell.python, door=cell.door, level=cell.level, versions={}, checks=checks, tests="")
    record |= Record(lngrad=version, date=datetime.now(timezone.utc).strftime("%Y-%m-%d"))
    types = [environment.types] if (cell.door, cell.level) == ("core", "highest") else []
    steps: list[Callable[[], str | None]] = [environment.install, environment.commands, *types, environment.tests]
    for step in steps:
        try:
            record["tests"] = step() or record["tests"]
            checks[step.__name__] = "passed"
        except Failed as failure:
            checks[step.__name__] = str(failure)
        said = f"Python {cell.python} {cell.door} {cell.level}: {step.__name__} {checks[step.__name__]}"
        console.print(said, markup=False, highlight=False)
        if step == environment.install:
            if checks["install"] != "passed":
                break
            record["versions"] = environment.versions()
            record["python"] = environment.run(environment.bin / "python", "-V").split()[1]
    return record


def claimed(wheel: Path) -> list[str]:
    """The Pythons of the wheel's classifiers."""
    return re.findall(r"Python :: (3\.\d+)$", "\n".join(metadata(wheel).get_all("Classifier")), re.MULTILINE)


def main(
    python: Annotated[list[str], typer.Option(help="A Python, such as 3.12; default: all that are claimed.")] = [],  # noqa: B006
    door: Annotated[list[str], typer.Option(help="core or jax; default: both, unless --torch is given.")] = [],  # noqa: B006
    torch: Annotated[list[str], typer.Option(help="A version of torch, which pip can install.")] = [],  # noqa: B006
    dist: Annotated[Path | None, typer.Option(help="A folder with sdist and wheel; default: built now.")] = None,
    show: Annotated[bool, typer.Option("--list", help="Only show the environments.")] = False,
) -> None:
    """Test the wheel in each environment; ends with 1 if a check fails."""
    with tempfile.TemporaryDirectory() as temporary:
        archives = dist.resolve() if dist else Path(temporary, "dist")
        if not dist:
            run(sys.executable, "-m", "build", "--outdir", archives, ROOT, cwd=Path(temporary))
        (wheel,) = archives.glob("*.whl")
        wanted = python or claimed(wheel)
        had = {version for version in wanted if interpreter(version)}
        new = [Record(python=version, missing="no interpreter was found") for version in wanted if version not in had]
        for cell in cells([p for p in wanted if p in had], door or ([] if torch else ["core", "jax"]), torch):
            if show:
                console.print(cell)
                continue
            with tempfile.TemporaryDirectory() as folder:
                new.append(prove(cell, Path(folder), archives))
                write(merged(read(), new))  # before the folder is removed, which takes a while
    if not all(passed(record) for record in new if "missing" not in record):
        raise typer.Exit(1)


if __name__ == "__main__":
    typer.run(main)
