"""Print the numbers of the house: rooms, arrows, arrows upward, circles and lines of each folder.

    python scripts/house.py                      the working tree
    python scripts/house.py aad2b3b HEAD         any commits, one table each
    python scripts/house.py --arrows ascend      the arrows of one folder, one a line

A room is a module or a subfolder of a folder. An arrow is an import from one room of a folder to
another, counted once however many names and files it has. Imports inside functions count, imports
under TYPE_CHECKING do not: they run for nobody. An arrow is upward if the layers contracts of that
commit's pyproject.toml put the importer below what it imports. A circle is a set of rooms that all
reach each other.
"""

from __future__ import annotations

import argparse
import ast
import io
import subprocess
import sys
import tarfile
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # import-linter brings it for Python 3.10

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "lngrad"
Arrows = dict[str, set[tuple[str, str]]]


def modules(source: Path) -> dict[str, Path]:
    """Every module of the package by its dotted name; a package is its __init__."""
    found = {}
    for path in sorted((source / PACKAGE).rglob("*.py")):
        parts = path.relative_to(source).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported(name: str, path: Path, known: dict[str, Path]) -> Iterator[str]:
    """The modules of the package that one module imports."""
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for_types = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for statement in node.body
        for inner in ast.walk(statement)
    }
    for node in ast.walk(tree):
        if id(node) in for_types:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom):
            base = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            origin = ".".join([*base, node.module] if node.module else base)
            for alias in node.names:
                target = f"{origin}.{alias.name}" if f"{origin}.{alias.name}" in known else origin
                if target in known:
                    yield target


def arrows(source: Path) -> Arrows:
    """For each folder the pairs (importer, imported) of its rooms. The front hall itself is no room of its folder."""
    known = modules(source)
    found: Arrows = defaultdict(set)
    for name, path in known.items():
        for target in imported(name, path, known):
            left, right = name.split("."), target.split(".")
            shared = 0
            while shared < min(len(left), len(right)) and left[shared] == right[shared]:
                shared += 1
            if shared and len(left) > shared and len(right) > shared:
                found[".".join(left[:shared])].add((left[shared], right[shared]))
    return found


def rooms(source: Path) -> dict[str, set[str]]:
    """For each folder the names of its modules and subfolders."""
    found: dict[str, set[str]] = defaultdict(set)
    for name in modules(source):
        folder, _, room = name.rpartition(".")
        if folder:
            found[folder].add(room)
    return found


def heights(pyproject: Path) -> dict[str, dict[str, int]]:
    """For each folder under a layers contract, how high each of its rooms stands."""
    contracts = tomllib.loads(pyproject.read_text(encoding="utf-8"))["tool"]["importlinter"]["contracts"]
    found: dict[str, dict[str, int]] = defaultdict(dict)
    for contract in contracts:
        if contract["type"] != "layers":
            continue
        for height, layer in enumerate(reversed(contract["layers"])):
            for room in layer.replace("|", ":").split(":"):
                for container in contract.get("containers", [""]):
                    path = f"{container}.{room.strip(' ()')}".strip(".")
                    folder, _, leaf = path.rpartition(".")
                    found[folder].setdefault(leaf, height)
    return found


def circles(pairs: set[tuple[str, str]]) -> list[set[str]]:
    """Sets of rooms that all reach each other."""
    reach = {room: {right for left, right in pairs if left == room} for pair in pairs for room in pair}
    for middle in reach:
        for targets in reach.values():
            if middle in targets:
                targets |= reach[middle]
    together = {
        frozenset({other for other in reach[room] if room in reach[other]}) for room in reach if room in reach[room]
    }
    return [set(one) for one in together]


def table(tree: Path) -> list[str]:
    """The table of one tree, one row a folder, and the totals."""
    source = tree / "src"
    pairs, levels = arrows(source), heights(tree / "pyproject.toml")
    lines = [f"{'folder':<32}{'rooms':>6}{'arrows':>8}{'upward':>8}{'circles':>9}{'lines':>8}"]
    totals = [0, 0, 0, 0, 0]
    for folder, inside in sorted(rooms(source).items()):
        level = levels.get(folder, {})
        upward = [(a, b) for a, b in pairs[folder] if a in level and b in level and level[a] < level[b]]
        count = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in _own(source, folder))
        row = [len(inside), len(pairs[folder]), len(upward), len(circles(pairs[folder])), count]
        totals = [total + number for total, number in zip(totals, row, strict=True)]
        lines.append(f"{folder:<32}{row[0]:>6}{row[1]:>8}{row[2]:>8}{row[3]:>9}{row[4]:>8}")
    lines.append(f"{'all':<32}{totals[0]:>6}{totals[1]:>8}{totals[2]:>8}{totals[3]:>9}{totals[4]:>8}")
    for folder in ("tests", "examples", "benchmarks", "scripts", "docs"):
        files = [path for path in sorted((tree / folder).rglob("*")) if path.suffix in {".py", ".md"}]
        count = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in files)
        lines.append(f"{folder + '/ (.py, .md)':<63}{count:>8}")
    return lines


def _own(source: Path, folder: str) -> list[Path]:
    """The modules that lie in a folder itself, not in its subfolders."""
    return sorted((source / Path(*folder.split("."))).glob("*.py"))


def main() -> int:
    parser = argparse.ArgumentParser(description="rooms, arrows, arrows upward and circles of the package")
    parser.add_argument("commits", nargs="*", help="commits to count; none: the working tree")
    parser.add_argument("--arrows", metavar="FOLDER", help="print the arrows of one folder of the working tree")
    options = parser.parse_args()
    if options.arrows is not None:
        folder = f"{PACKAGE}.{options.arrows}" if options.arrows else PACKAGE
        print("\n".join(f"{left} -> {right}" for left, right in sorted(arrows(ROOT / "src")[folder])))
        return 0
    if not options.commits:
        print("\n".join(table(ROOT)))
    for commit in options.commits:
        archive = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True, check=True).stdout
        with tempfile.TemporaryDirectory() as folder:
            with tarfile.open(fileobj=io.BytesIO(archive)) as tree:
                tree.extractall(folder, filter="data")
            print(f"== {commit}\n" + "\n".join(table(Path(folder))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
