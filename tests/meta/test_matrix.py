"""certificates.md, upstream.md and versions.md are the pages of their records; versions cover what pyproject.toml claims."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def matrix(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "scripts")
    import matrix

    return matrix


@pytest.mark.parametrize(
    ("folder", "module", "page"),
    [
        ("scripts", "matrix", "versions"),
        ("scripts", "upstream", "upstream"),
        ("docs/certificates", "certificates_page", "certificates"),
    ],
)
def test_a_page_is_that_of_its_records(monkeypatch, folder, module, page):
    monkeypatch.syspath_prepend(ROOT / folder)
    script = pytest.importorskip(module)
    assert (ROOT / "docs" / f"{page}.md").read_text("utf-8") == script.page(script.read())


def record(python, level="lowest", **more):
    known = {"python": python, "set": "core", "level": level, "versions": {"numpy": "1.24.0"}, "tests": "5 passed"}
    return known | {"checks": {"install": "passed", "tests": "passed"}, "lngrad": "0", "date": "2026-01-01"} | more


def test_new_records_take_the_place_of_old_ones(matrix):
    old = [record("3.10.1"), record("3.12.1", "highest"), {"python": "3.14", "missing": "no interpreter was found"}]
    new = [record("3.14.2"), record("3.10.9"), record("3.9.1")]
    found = matrix.merged(old, new)
    expected = [("3.9.1", "lowest"), ("3.10.9", "lowest"), ("3.12.1", "highest"), ("3.14.2", "lowest")]
    assert [(record["python"], record["level"]) for record in found] == expected
    assert matrix.merged(found, [old[2]]) == found
    assert "missing" in matrix.merged(found, [{"python": "3.15", "missing": "no wheel"}])[-1]


def test_a_set_or_a_level_stays_missing_until_it_is_run(matrix):
    missing = {"python": "3.12.1", "set": "jax", "missing": "no time"}
    newer = {"python": "3.12.1", "set": "torch", "level": "2.15.0", "missing": "no build"}
    core, jax = record("3.12.1"), record("3.12.1", set="jax")
    found = matrix.merged([core], [missing, newer])
    assert found == [core, missing, newer]
    assert "* Python 3.12.1 jax: no time\n* Python 3.12.1 torch 2.15.0: no build\n" in matrix.page(found)
    assert matrix.merged(found, [jax]) == [core, jax, newer]


def test_a_failure_is_in_the_table(matrix):
    failed = record("3.10.1", checks={"install": "passed", "commands": "lngrad demo: no"})
    assert not matrix.passed(failed)
    assert not matrix.passed(record("3.10.1", checks={}))
    assert "| 3.10.1 | lowest | **commands**: lngrad demo: no | 1.24.0 | – |" in matrix.page([failed])


def test_every_claim_holds(matrix):
    assert all(matrix.passed(each) for each in matrix.read() if "missing" not in each)


def test_what_is_claimed_was_tried_or_is_named(matrix):
    """Every Python of the classifiers has rows, or is on the list of those not found; the lowest versions are pyproject's."""
    tomllib = pytest.importorskip("tomllib")
    project = tomllib.loads(matrix.PROJECT.read_text("utf-8"))["project"]
    records = [each for each in matrix.read() if each.get("set", "core") == "core"]
    assert set(matrix.claimed()) <= {".".join(each["python"].split(".")[:2]) for each in records}
    for each in records:
        if each.get("level") == "lowest" and each["python"].startswith("3.10"):
            for name, _, floor in (claim.partition(">=") for claim in project["dependencies"]):
                assert f"{each['versions'][name]}.".startswith(f"{floor}."), f"{name}>={floor} was not tried"


@pytest.fixture
def releases(matrix, monkeypatch):
    """The releases of torch that wheels bring a library for."""
    monkeypatch.syspath_prepend(ROOT / "lngrad" / "scripts")
    import native_code

    return native_code.RELEASES


def test_the_lowest_torch_is_one_that_wheels_have_a_library_for(releases, matrix):
    claim = re.search(r'"torch>=(\d+\.\d+)"', matrix.PROJECT.read_text("utf-8"))[1]
    assert releases[0].startswith(f"{claim}.")
    assert f"torch needs {claim} or later" in matrix.HEAD
    minors = [int(release.split(".")[1]) for release in releases]
    assert minors == list(range(minors[0], minors[-1] + 1))


# torch has no build of its own for these, or no longer.
WITHOUT_BUILD = {("2.15.0", "3.10")}


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_what_is_claimed_goes_together(releases, matrix, tmp_path):
    """lngrad[torch,gpu,jax] beside each torch, which pins its Triton, on each Python: uv finds versions of all, from wheels."""
    uv = shutil.which("uv", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if uv is None:
        pytest.skip("needs uv")

    def resolve(torch, python):
        (tmp_path / "torch.txt").write_text(f"torch=={torch}\n")
        command = [uv, "pip", "compile", "--quiet", "--only-binary", ":all:", "--python-version", python]
        where = ["--python-platform", "x86_64-manylinux_2_28", "-c", tmp_path / "torch.txt", matrix.PROJECT]
        extras = [word for extra in ("torch", "gpu", "jax") for word in ("--extra", extra)]
        done = subprocess.run([*command, *where, *extras], cwd=tmp_path, capture_output=True, text=True)
        if re.search(r"(?i)failed to fetch|error sending request|network", done.stderr):
            pytest.skip(f"needs a package index: {done.stderr.splitlines()[0]}")
        return dict(re.findall(r"^([\w-]+)==(\S+)", done.stdout, re.MULTILINE)), done.stderr

    for torch in releases:
        for python in matrix.claimed():
            found, errors = resolve(torch, python)
            if (torch, python) in WITHOUT_BUILD:
                assert f"torch=={torch} has no wheels with a matching Python" in " ".join(errors.split())
                continue
            assert found.get("torch") == torch, (torch, python, errors)
            assert "triton" in found
            assert ("jax" in found) is (python != "3.10")  # which jax 0.10 is not made for
