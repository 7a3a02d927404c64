"""docs/foreign-internals.md names every private name of another library that the source uses, and the test that notices."""

from __future__ import annotations

import ast
import re

from packages import ROOT, source_file, sources, test_files

PAGE = (ROOT / "docs" / "foreign-internals.md").read_text("utf-8")
ROW = re.compile(r"^\| \w+ \| `([\w/]+\.py)` \| `([\w.]+)` \|(.*)\|$", re.MULTILINE)

# Modules whose owners call them internal, or do not document them.
INTERNAL = (
    "numba.core",
    "triton.runtime",
    "triton.backends",
    "triton.compiler",
    "jax._src",
    "jaxlib",
    "torch._inductor",
)
PUBLIC = {"_fields", "_field_defaults", "_replace", "_asdict", "_make"}  # of named tuples


def names_of_our_own():
    found = set()
    for _, path in sources():
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                found.add(node.name)
            elif (
                isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and node.attr != "_locator_classes"
            ):
                found.add(node.attr)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                found.add(node.id)
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.isidentifier():
                found.add(node.value)  # __slots__
    return found


def foreign_names(text, ours):
    """Private attributes that nobody in the package defines, and internal modules."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        modules = []
        if isinstance(node, ast.Attribute) and re.match(r"_[^_]", node.attr) and node.attr not in ours | PUBLIC:
            found.add(node.attr)
        elif isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            modules = [node.module]
            if not node.module.startswith("lngrad"):
                found |= {alias.name for alias in node.names if re.match(r"_[^_]", alias.name)}
        found |= {internal for internal in INTERNAL for name in modules if (name + ".").startswith(internal + ".")}
    return found


def test_the_page_names_them_all():
    ours = names_of_our_own()
    page = {(file, name) for file, name, _ in ROW.findall(PAGE)}
    assert len(page) == len(ROW.findall(PAGE)) > 20
    here = {(file, name) for file, path in sources() for name in foreign_names(path.read_text("utf-8"), ours)}
    assert here - page == set(), "docs/foreign-internals.md lacks these"


def test_every_row_is_true():
    tests = set()
    for path in test_files():
        tests |= set(re.findall(r"^ *def (test_\w+)", path.read_text("utf-8"), re.MULTILINE))
    for file, name, rest in ROW.findall(PAGE):
        assert name in source_file(file).read_text("utf-8"), f"{file} does not use {name}"
        named = re.findall(r"`(test_\w+)`", rest)
        assert named, f"{file}, {name}: no test"
        assert set(named) <= tests, f"{file}, {name}: there is no {set(named) - tests}"
