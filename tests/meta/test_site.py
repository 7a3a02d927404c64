"""The reference has every public name, and the site builds strictly, with nothing loaded from elsewhere."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from importlib import import_module
from importlib.util import find_spec

import pytest

from packages import ROOT, source_file

REFERENCE = {page: page.read_text("utf-8") for page in sorted((ROOT / "docs" / "reference").glob("*.md"))}
PUBLIC = (
    "__init__", "torch/__init__", "jax/__init__", "distributed", "errors", "core/reference", "testing", "typing",
    *(f"lngrad_ascend/{name}" for name in (
        "soc", "faults", "graph/__init__", "graph_torch", "tiling/__init__", "ascendc", "acl/__init__", "acl/enums",
        "aclnn/__init__", "sdk/__init__",
    )),
)  # fmt: skip


def module_of(file):
    parts = [part for part in file.split("/") if part != "__init__"]
    return ".".join(parts if file.startswith("lngrad_ascend/") else ["lngrad", *parts])


def public_names(file):
    """What a module's own list of public names spells out, or else what it defines; enumerators come with their class."""
    tree = ast.parse(source_file(f"{file}.py").read_text("utf-8")).body
    lists = [
        node.value
        for node in tree
        if isinstance(node, ast.Assign | ast.AugAssign) and re.match(r"__all__ \+?= ", ast.unparse(node))
    ]
    if lists:
        spelled = lists[0] if isinstance(lists[0], ast.List) else getattr(lists[0], "left", ast.List([]))
        names = {name.value for name in spelled.elts if isinstance(name, ast.Constant)}
        if any(isinstance(value, ast.ListComp) for value in lists):  # of a table
            module = import_module(module_of(file))
            names |= {name for name in module.__all__ if callable(getattr(module, name))}
        return sorted(names)
    return [node.name for node in tree if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name[0] != "_"]


def examples(page):
    """What runs on a page: blocks of Python, and of shell."""
    return "\n".join(re.findall(r"^```(?:python|sh|console)\n(.*?)^```", page, re.MULTILINE | re.DOTALL))


# Values, and torch's Tensor, which have no docstring of ours: their page names them in its text.
VALUES = re.compile(r"Tensor|PIPE_\w+|EVENT_ID\d|u?int\d+|half|float32|bfloat16_t")


@pytest.mark.parametrize("file", PUBLIC)
def test_every_public_name_has_an_entry_and_an_example(file):
    """Each is on a page that is made from its docstring, and in a block of that page that runs.

    An entry is of the name, of its whole module, or of the name in the module that it comes from.
    """
    module = module_of(file)
    for name in public_names(file):
        entry = rf"^::: (?:{re.escape(module)}|lngrad[\w.]*\.{name})$"
        if VALUES.fullmatch(name):
            entry = rf"`[^`\n]*\b{name}\b"
        pages = [text for text in REFERENCE.values() if re.search(entry, text, re.MULTILINE)]
        assert pages, f"{module}.{name} is on no page of docs/reference"
        assert any(re.search(rf"\b{name}\b", examples(text)) for text in pages), f"{module}.{name}: no example"


def test_every_page_of_the_reference_is_in_the_navigation():
    navigation = (ROOT / "mkdocs.yml").read_text("utf-8")
    for folder in ("reference", "tutorials"):
        for page in (ROOT / "docs" / folder).glob("*.md"):
            assert f" {folder}/{page.name}" in navigation


@pytest.fixture(scope="module")
def site():
    """The folder of the site, built strictly."""
    for name in ("mkdocs", "mkdocstrings", "material"):
        if find_spec(name) is None:
            pytest.skip("pip install -e . --group site")
    result = subprocess.run([sys.executable, str(ROOT / "scripts" / "site.py")], capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    return ROOT / "build" / "site"


def test_pages_load_nothing_from_elsewhere(site):
    pages = list(site.rglob("*.html"))
    assert len(pages) > 30
    for page in pages:
        loaded = re.findall(
            r'<(?:script|img|iframe)[^>]+src="(https?:[^"]+)|<link[^>]+stylesheet"[^>]+href="(https?:[^"]+)',
            page.read_text("utf-8"),
        )
        assert loaded == [], f"{page.name} loads from elsewhere"
    assert "layer_norm_backward" in (site / "reference" / "lngrad.html").read_text("utf-8")
    assert (site / "search" / "search_index.js").exists(), "search works from disk"
