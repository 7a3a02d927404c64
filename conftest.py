"""Run the code blocks of README.md, CONTRIBUTING.md and the pages in docs/ as tests, with sybil.

A block's language says what happens to it:

    python  runs; the blocks of a page share their names, and one that begins with `>>>` is a doctest
    sh      runs in a temporary folder that sees cases/ and examples/; every command must succeed
    yaml    must be well-formed
    text    is shown, not run

`<!-- invisible-code-block: python … -->` runs and is not shown: what a block needs and a reader knows.
`<!-- skip: next "why" -->` in front of a block names the reason why it can't run here.
tests/meta/test_documents.py checks that there is no block of another kind.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from doctest import ELLIPSIS
from pathlib import Path

import pytest
from sybil import Example, Sybil
from sybil.parsers.markdown import CodeBlockParser, PythonCodeBlockParser, SkipParser

ROOT = Path(__file__).parent

# Several workers of pytest-xdist share the cores, and so do other programs. Threads of OpenMP and
# OpenBLAS that wait actively for each other then wait for a core: a small Transformer's training
# step took 1,100 ms in place of 60 on 2 busy cores.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Started by nohup or in the background of a script. Programs that tests start would ignore
    # Ctrl-C as well, which some tests send. A handler is not inherited, and with this one the suite
    # itself still ignores it.
    signal.signal(signal.SIGINT, lambda number, frame: None)


@pytest.hookimpl(optionalhook=True)  # pytest-xdist's
def pytest_xdist_auto_num_workers() -> int:
    """As many workers for `-n auto` as this process may use cores, by its cgroup too."""
    import lngrad

    return min(8, lngrad.get_num_threads())


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--warm", action="store_true", help="compile all CPU kernels first, on all cores; minutes where none is kept"
    )


def pytest_sessionstart(session: pytest.Session) -> None:
    """Compile all kernels before several workers start, each of which would compile those that it meets."""
    if session.config.getoption("--warm") and "PYTEST_XDIST_WORKER" not in os.environ:
        cores = pytest_xdist_auto_num_workers()
        program = (
            "import sys; from lngrad.kernels.numba_cpu.warm import KERNELS, compile_kernel\n"
            f"for kernel in KERNELS[int(sys.argv[1])::{cores}]: compile_kernel(*kernel)"
        )
        children = [subprocess.Popen([sys.executable, "-c", program, str(k)]) for k in range(cores)]
        if any(child.wait() for child in children):
            raise pytest.UsageError("--warm: the kernels can't be compiled")


@pytest.fixture
def document_folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, monkeypatch) -> Path:
    """A folder for the files that the blocks of one page write and read, as the working directory."""
    page = request.node.parent
    if not hasattr(page, "lngrad_folder"):
        page.lngrad_folder = tmp_path_factory.mktemp(Path(page.path).stem)
        for name in ("cases", "examples"):
            (page.lngrad_folder / name).symlink_to(ROOT / name)
    monkeypatch.chdir(page.lngrad_folder)
    return page.lngrad_folder


def run_commands(example: Example) -> str | None:
    """Run a block of shell commands with this Python and this source. Returns what went wrong, for sybil."""
    environment = {**os.environ, "PYTHON": sys.executable, "PYTHONPATH": os.pathsep.join([".", str(ROOT / "src")])}
    programs = (
        'lngrad() { "$PYTHON" -m lngrad "$@"; }\npython() { "$PYTHON" "$@"; }\npip() { "$PYTHON" -m pip "$@"; }\n'
    )
    command = ["bash", "-euo", "pipefail", "-c", programs + str(example.parsed)]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240)
    if result.returncode == 0:
        return None
    return f"exit code {result.returncode} of\n{example.parsed}\n{result.stdout}{result.stderr}"


def check_yaml(example: Example) -> None:
    import yaml

    assert yaml.safe_load(str(example.parsed)) is not None


pytest_collect_file = Sybil(
    path=str(ROOT),
    parsers=[
        PythonCodeBlockParser(doctest_optionflags=ELLIPSIS),
        CodeBlockParser("sh", run_commands),
        CodeBlockParser("yaml", check_yaml),
        SkipParser(),
    ],
    patterns=["README.md", "CONTRIBUTING.md", "docs/*.md", "docs/reference/*.md", "docs/tutorials/*.md"],
    excludes=[
        "docs/*.zh-CN.md",
        "docs/*/*.zh-CN.md",
    ],  # tests/meta/test_languages.py: their blocks are the English page's
    fixtures=["document_folder"],
).pytest()
