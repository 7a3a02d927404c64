"""scripts/matrix.py asks for what the metadata claims, and docs/versions.md says what it found."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

pytest.importorskip("packaging")
pytest.importorskip("rich")

ROOT = Path(__file__).parents[2]
CLAIMS = [
    "numpy>=1.24",
    'jax>=0.10; extra == "jax"',
    'triton>=3.9; sys_platform == "nowhere" and extra == "jax"',
    'tomli>=2; python_version < "3.11"',
    'pytest>=8; extra == "dev"',
    'ruff>=0.6; extra == "dev"',
]


@pytest.fixture(scope="module")
def matrix():
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        import matrix
    finally:
        sys.path.remove(str(ROOT / "scripts"))
    return matrix


@pytest.fixture(scope="module")
def versions_page(matrix):
    return sys.modules["versions_page"]


def test_requirements_of_an_extra_and_a_python(matrix):
    assert matrix.requirements(CLAIMS, ["jax"], "3.12", ["pytest"]) == ["jax>=0.10", "numpy>=1.24", "pytest>=8"]
    assert matrix.requirements(CLAIMS, [], "3.10") == ["numpy>=1.24", "tomli>=2"]


def test_cells_pass_over_a_door_that_a_python_has_not(matrix):
    found = matrix.cells(["3.10", "3.11"], ["core", "jax"], ["2.13.0"])
    assert [cell.python for cell in found if cell.door == "jax"] == ["3.11", "3.11"]
    assert [(cell.python, cell.level) for cell in found if cell.door == "torch"] == [
        ("3.10", "2.13.0"),
        ("3.11", "2.13.0"),
    ]
    assert {cell.resolution for cell in found if cell.level == "lowest"} == {"lowest-direct"}
    assert {cell.resolution for cell in found if cell.door == "torch"} == {"highest"}


def record(python, level="lowest", **more):
    checks = {"install": "passed", "tests": "passed"}
    known = {"python": python, "door": "core", "level": level, "versions": {"numpy": "1.24.0"}, "checks": checks}
    return {**known, "tests": "5 passed", "lngrad": "0", "date": "2026-01-01", **more}


def test_new_records_take_the_place_of_old_ones(versions_page):
    old = [record("3.10.1"), record("3.12.1", "highest"), {"python": "3.14", "missing": "no interpreter was found"}]
    new = [record("3.14.2"), record("3.10.9"), record("3.9.1")]
    found = versions_page.merged(old, new)
    assert [(one["python"], one["level"]) for one in found] == [
        ("3.9.1", "lowest"),
        ("3.10.9", "lowest"),
        ("3.12.1", "highest"),
        ("3.14.2", "lowest"),
    ]
    assert versions_page.merged(found, [old[2]]) == found
    assert "missing" in versions_page.merged(found, [{"python": "3.15", "missing": "no wheel"}])[-1]


def test_a_failure_is_in_the_table(versions_page):
    failed = record("3.10.1", checks={"install": "passed", "commands": "lngrad demo: no"})
    assert not versions_page.passed(failed)
    assert not versions_page.passed(record("3.10.1", checks={}))
    assert "| 3.10.1 | lowest | **commands**: lngrad demo: no | 1.24.0 | – |" in versions_page.page([failed])
    assert "| 3.10.1 | lowest | passed, 5 tests | 1.24.0 | – |" in versions_page.page([record("3.10.1")])


def test_the_page_is_that_of_the_records(versions_page):
    records = versions_page.read()
    assert versions_page.PAGE.read_text("utf-8") == versions_page.page(records)
    assert all(versions_page.passed(each) for each in records if "missing" not in each), "a claim that does not hold"


def test_what_is_claimed_was_tried_or_is_named(versions_page):
    """Every Python of the classifiers has rows, or is on the list of those not had; the lowest versions are pyproject's."""
    tomllib = pytest.importorskip("tomllib")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    records = [each for each in versions_page.read() if each.get("door", "core") == "core"]
    named = {".".join(each["python"].split(".")[:2]) for each in records}
    assert set(re.findall(r"Python :: (3\.\d+)'", str(project["classifiers"]))) <= named
    for each in records:
        if each.get("level") == "lowest" and each["python"].startswith("3.10"):
            for name, _, floor in (claim.partition(">=") for claim in project["dependencies"]):
                assert f"{each['versions'][name]}.".startswith(f"{floor}."), (
                    f"{name}>={floor} is claimed and was not tried"
                )
