"""The types that users see: mypy and, where it is installed, pyright read a program that uses the public API."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from importlib.util import find_spec

import pytest

from packages import ROOT, SOURCES

PATHS = [str(source.parent) for source in SOURCES.values()]
SAMPLE = ROOT / "tests" / "typing" / "sample.py"


def mypy(program, tmp_path):
    """As a user has it: strict, without this repository's configuration."""
    (tmp_path / "mypy.ini").write_text(
        f"[mypy]\nstrict = true\nwarn_unused_ignores = true\nmypy_path = {':'.join(PATHS)}\n"
        "[mypy-lngrad.*,lngrad_ascend.*]\nfollow_imports = silent\n"
        "[mypy-numba.*,torch.*,jax.*,triton.*,ml_dtypes.*]\nignore_missing_imports = true\nfollow_imports = skip\n"
    )
    cache = ROOT / ".mypy_cache" / "sample"
    command = [sys.executable, "-m", "mypy", "--config-file", tmp_path / "mypy.ini", "--cache-dir", cache, program]
    return subprocess.run(list(map(str, command)), cwd=tmp_path, capture_output=True, text=True)


def test_mypy(tmp_path):
    pytest.importorskip("mypy")
    result = mypy(SAMPLE, tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr


def test_mypy_finds_the_mistakes(tmp_path):
    """Without the comments every mistake is an error, on its own line."""
    pytest.importorskip("mypy")
    lines = SAMPLE.read_text("utf-8").splitlines()
    wrong = [number for number, line in enumerate(lines, 1) if "type: ignore" in line]
    assert len(wrong) >= 6
    (tmp_path / "sample.py").write_text("\n".join(line.partition("  # type: ignore")[0] for line in lines) + "\n")
    found = mypy(tmp_path / "sample.py", tmp_path).stdout
    assert [number for number in wrong if f"sample.py:{number}: error" not in found] == []


@pytest.mark.skipif(find_spec("pyright") is None and shutil.which("pyright") is None, reason="pyright is not installed")
def test_pyright(tmp_path):
    configuration = {
        "include": ["sample.py"],
        "extraPaths": PATHS,
        "reportUnnecessaryTypeIgnoreComment": "error",
        "enableTypeIgnoreComments": False,
    }
    (tmp_path / "sample.py").write_text(SAMPLE.read_text("utf-8"))
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(configuration))
    program = [sys.executable, "-m", "pyright"] if find_spec("pyright") else ["pyright"]
    command = [*program, "--project", str(tmp_path), "--pythonpath", sys.executable]
    result = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "0 errors" in result.stdout
    assert "source files found" not in result.stdout
