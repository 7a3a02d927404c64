"""Run the code blocks of README.md, CONTRIBUTING.md and the pages in docs/ as tests, with sybil.

A block's language says what happens to it:

    python  runs; the blocks of a page share their names, and one that begins with `>>>` is a doctest
    sh      runs in a temporary folder that sees cases/ and examples/; every command must succeed
    console runs as sh does; a line `$ …` is a command, `> …` goes on with it, and the lines below are what it
            prints, with `...` for anything
    c, cpp  are files, named by the comment in their first line; so is python that begins with `# NAME.py`
    yaml, json  must be well-formed
    text    is shown, not run

A block that is run without those above it, as by `pytest "docs/torch.md::line:79,column:1"`, runs them first.
A block that imports a library that is not installed (torch, jax, …) is skipped, and what follows it on its page.
`<!-- invisible-code-block: python … -->` runs and is not shown: what a block needs and a reader knows.
`<!-- skip: next "why" -->` in front of a block names the reason why it can't run here.
tests/meta/test_documents.py checks that there is no block of another kind.
"""

from __future__ import annotations

import gc
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from doctest import ELLIPSIS, NORMALIZE_WHITESPACE, OutputChecker
from doctest import Example as Expectation
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from unittest import SkipTest

import pytest
from sybil import Document, Example, Region, Sybil
from sybil.parsers.markdown import CodeBlockParser, PythonCodeBlockParser, SkipParser

ROOT = Path(__file__).parent
pytest_plugins = ["shared_fixtures"]  # tests/shared_fixtures.py; "fixtures" is a module of pytest's

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
        "--warm",
        action="store_true",
        help="compile kernels and native code first, on all cores; minutes where none is kept",
    )


def pytest_sessionstart(session: pytest.Session) -> None:
    """Compile all kernels, and the native code for torch, before several workers start, which would wait for each other."""
    if session.config.getoption("--warm") and "PYTEST_XDIST_WORKER" not in os.environ:
        from lngrad.cpu.entries import kernels, programs_for

        program = (
            "from lngrad.torch.native.building import build; build()"  # where it can't, the tests that need it say why
        )
        native = subprocess.Popen([sys.executable, "-c", program], stderr=subprocess.DEVNULL)
        with ThreadPoolExecutor(pytest_xdist_auto_num_workers()) as processes:
            # Few each: some take 7 s, most less than 1; and none of what is kept.
            commands = ([sys.executable, "-c", program] for program in programs_for(kernels(), 6))
            list(processes.map(partial(subprocess.run, check=True), commands))
        native.wait()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """A million objects are collected, and stay: the garbage collector took half a second to look at them, each time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture
def document_folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, monkeypatch) -> Path:
    """A folder for the files that the blocks of one page write and read, as the working directory."""
    page = request.node.parent
    if not hasattr(page, "lngrad_folder"):
        page.lngrad_folder = tmp_path_factory.mktemp(Path(page.path).stem)
        for name in ("cases", "examples"):
            (page.lngrad_folder / name).symlink_to(ROOT / name)
        if "lngrad_ascend.soc" in sys.modules:  # an earlier page chose a SoC, or called aclInit
            from lngrad_ascend import acl, soc

            soc.use(soc.DEFAULT)
            acl.aclFinalize()
    monkeypatch.chdir(page.lngrad_folder)
    run_those_above(request.node)
    return page.lngrad_folder


def run_those_above(item: pytest.Item) -> None:
    """Run the blocks above one on its page, but for those that have run: alone, it needs what they define and write."""
    document = item.example.document
    begun = document.__dict__.setdefault("lngrad_begun", set())
    for above in document.examples():
        if above.region.start >= item.example.region.start:
            break
        if above.region.start not in begun:
            begun.add(above.region.start)
            with suppress(SkipTest, pytest.skip.Exception):
                above.evaluate()
    begun.add(item.example.region.start)


def shell(commands: str) -> subprocess.CompletedProcess[str]:
    """Run shell commands with this Python and this source, up to the first that fails."""
    source = os.pathsep.join([".", *(str(ROOT / package / "src") for package in ("lngrad", "lngrad-ascend"))])
    environment = {**os.environ, "PYTHON": sys.executable, "PYTHONPATH": source, "COLUMNS": "80"}
    programs = (
        'lngrad() { "$PYTHON" -m lngrad "$@"; }\npython() { "$PYTHON" "$@"; }\npip() { "$PYTHON" -m pip "$@"; }\n'
    )
    command = ["bash", "-euo", "pipefail", "-c", f"exec 2>&1\n{programs}{commands}"]
    return subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, timeout=240)


def run_commands(example: Example) -> str | None:
    """Run a block of shell commands. Returns what went wrong, for sybil."""
    result = shell(str(example.parsed))
    if result.returncode == 0:
        return None
    return f"exit code {result.returncode} of\n{example.parsed}\n{result.stdout}"


def run_console(example: Example) -> str | None:
    """Run the commands of a console block, and compare what each prints. Variables are the page's."""
    mark = "--- what the next command prints ---"
    steps = [
        step.partition("\n")
        for step in re.split(r"^\$ ", str(example.parsed).replace("\n> ", "\0"), flags=re.MULTILINE)
    ]
    commands = [first.replace("\0", "\n") for first, _, _ in steps[1:]]
    script = "".join(f"echo '{mark}'\n{command}\n" for command in commands)
    result = shell(f"set -a\n[ ! -e .variables ] || . ./.variables\n{script}export -p > .variables\n")
    if result.returncode != 0:
        return f"exit code {result.returncode} of\n{example.parsed}\n{result.stdout}"
    checker, flags = OutputChecker(), ELLIPSIS | NORMALIZE_WHITESPACE
    for command, (_, _, want), got in zip(commands, steps[1:], result.stdout.split(f"{mark}\n")[1:], strict=True):
        if not checker.check_output(want, got, flags):
            return f"$ {command}\n{checker.output_difference(Expectation(command, want), got, flags)}"
    return None


def write_file(example: Example) -> str | None:
    """Write a block into the page's folder, under the name in its first line."""
    text = str(example.parsed)
    name = re.match(r"(?://|#) ([\w.]+)\n", text)
    if name is None:
        return f"expected a comment with the file's name, got {text.partition(chr(10))[0]!r}"
    Path(name[1]).write_text(text, encoding="utf-8")
    return None


class PythonParser(PythonCodeBlockParser):
    """A block that begins with a file's name is a file; any other one runs."""

    def __call__(self, document: Document) -> Iterator[Region]:
        for region in super().__call__(document):
            if re.match(r"# \w+\.py\n", str(region.parsed)):
                region.evaluator = write_file
            yield region


# Libraries that lngrad can do without, and what of lngrad imports them.
IMPORT = re.compile(
    r"^\s*(?:import|from) (?:lngrad\.)?(torch|jax|triton|sklearn|matplotlib|safetensors|distributed)\b", re.M
)
INSIDE = {"distributed": "torch"}


def where_installed(parser: Callable[[Document], Iterable[Region]]) -> Callable[[Document], Iterator[Region]]:
    """A parser whose blocks are skipped from the first on that imports what is not installed."""

    def unless_missing(run: Callable[[Example], str | None]) -> Callable[[Example], str | None]:
        def evaluate(example: Example) -> str | None:
            missing = getattr(example.document, "lngrad_missing", None)
            imported = IMPORT.findall(str(getattr(example.parsed, "source", example.parsed)))
            for name in (INSIDE.get(name, name) for name in imported):
                missing = missing or (None if find_spec(name) else name)
            example.document.lngrad_missing = missing
            if missing:
                pytest.skip(f"needs {missing}")
            return run(example)

        return evaluate

    def parse(document: Document) -> Iterator[Region]:
        for region in parser(document):
            region.evaluator = unless_missing(region.evaluator)
            yield region

    return parse


def check_yaml(example: Example) -> None:
    import yaml

    assert yaml.safe_load(str(example.parsed)) is not None


def check_json(example: Example) -> None:
    json.loads(str(example.parsed))


pytest_collect_file = Sybil(
    path=str(ROOT),
    parsers=[
        where_installed(PythonParser(doctest_optionflags=ELLIPSIS)),
        where_installed(CodeBlockParser("sh", run_commands)),
        where_installed(CodeBlockParser("console", run_console)),
        CodeBlockParser("c", write_file),
        CodeBlockParser("cpp", write_file),
        CodeBlockParser("yaml", check_yaml),
        CodeBlockParser("json", check_json),
        SkipParser(),
    ],
    patterns=[
        "README.md",
        "lngrad*/README.md",
        "CONTRIBUTING.md",
        "docs/*.md",
        "docs/reference/*.md",
        "docs/tutorials/*.md",
    ],
    excludes=[
        "docs/*.zh-CN.md",
        "docs/*/*.zh-CN.md",
    ],  # tests/meta/test_languages.py: their blocks are the English page's
    fixtures=["document_folder"],
).pytest()
