"""The reference has every public name, and the site builds strictly, with nothing loaded from elsewhere."""

from __future__ import annotations

import ast
import html
import json
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "lngrad"
REFERENCE = {page: page.read_text("utf-8") for page in sorted((ROOT / "docs" / "reference").glob("*.md"))}
PUBLIC = (
    "__init__", "torch/__init__", "jax/__init__", "distributed", "errors", "core/reference", "testing", "typing",
    "check/soak/__init__",
    "ascend/soc", "ascend/faults", "ascend/graph/__init__", "ascend/graph_torch", "ascend/tiling/__init__", "ascend/ascendc",
    "ascend/acl/__init__", "ascend/acl/enums", "ascend/aclnn/__init__", "ascend/sdk/__init__",
)  # fmt: skip


def public_names(file: str) -> list[str]:
    """What a module's own list of public names spells out; enumerators come with their class."""
    lists = [
        node.value
        for node in ast.parse((SOURCE / f"{file}.py").read_text("utf-8")).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    ]
    assert lists
    spelled = lists[0] if isinstance(lists[0], ast.List) else lists[0].left
    return [name.value for name in spelled.elts if isinstance(name, ast.Constant)]


def examples(page: str) -> str:
    """What runs on a page: blocks of Python, and of shell."""
    return "\n".join(re.findall(r"^```(?:python|sh|console)\n(.*?)^```", page, re.MULTILINE | re.DOTALL))


# Values, and torch's Tensor, which have no docstring of ours: their page names them in its text.
VALUES = re.compile(r"Tensor|PIPE_\w+|EVENT_ID\d|u?int\d+|half|float32|bfloat16_t")


@pytest.mark.parametrize("file", PUBLIC)
def test_every_public_name_has_an_entry_and_an_example(file):
    """Each is on a page that is made from its docstring, and in a block of that page that runs.

    An entry is of the name, of its whole module, or of the name in the module that it comes from.
    """
    module = ".".join(["lngrad", *(part for part in file.split("/") if part != "__init__")])
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
            pytest.skip("pip install -e '.[site]'")
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


CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
OFFLINE = ("--disable-background-networking", "--disable-component-update", "--disable-sync")

# A page that looks at others in frames: what the navigation leads to, in both widths, and what the search finds.
VISIT = """<!doctype html><title>not done</title><body><script>
const found = {};
const wait = time => new Promise(done => setTimeout(done, time));
async function visit(page, width, look) {
  const frame = document.createElement("iframe");
  frame.style = `width:${width}px;height:800px`;
  frame.src = page;
  document.body.append(frame);
  await new Promise(done => frame.onload = done);
  const result = await look(frame.contentDocument, frame.contentWindow);
  frame.remove();
  return result;
}
async function search(page, text) {
  return visit(page, 1280, async view => {
    const query = view.querySelector("[data-md-component=search-query]");
    await wait(1500);
    query.focus();
    query.value = text;
    for (const name of ["focus", "keyup", "input"]) query.dispatchEvent(new Event(name));
    await wait(3000);
    return view.querySelectorAll(".md-search-result__item").length;
  });
}
addEventListener("load", async () => {
  found.pages = await visit("index.html", 1280, view =>
    [...view.querySelectorAll(".md-nav--primary a[href]")].map(link => link.href.split("#")[0]));
  found.pages = [...new Set(found.pages)];
  found.overflowing = [];
  for (const page of found.pages.filter((_, place) => place % STEP == 0)) for (const width of [1280, 390])
    await visit(page, width, view => {
      if (view.documentElement.scrollWidth > width || !view.querySelector("h1")) found.overflowing.push([page, width]);
    });
  found.hits = {};
  for (const text of ["precision", "统一缓冲区"]) found.hits[text] = await search("index.html", text);
  document.title = JSON.stringify(found);
});
</script></body>"""


@pytest.mark.skipif(CHROMIUM is None, reason="no Chromium")
@pytest.mark.parametrize("step", [16, pytest.param(1, marks=pytest.mark.slow)])
def test_a_browser_follows_the_navigation_and_searches_from_disk(site, tmp_path, step):
    """Pages of the navigation, each or some, fit a screen and a phone, and the search knows both languages."""
    probe = site / "visit.html"
    probe.write_text(VISIT.replace("STEP", str(step)), "utf-8")
    command = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", *OFFLINE, "--allow-file-access-from-files",
               f"--user-data-dir={tmp_path}", "--virtual-time-budget=300000", "--dump-dom", probe.as_uri()]  # fmt: skip
    try:
        dom = subprocess.run(command, capture_output=True, text=True, timeout=300, check=True).stdout
    finally:
        probe.unlink()
    found = json.loads(html.unescape(re.search("<title>(.*?)</title>", dom)[1]))
    assert len(found["pages"]) > 40
    assert any(page.endswith("ascend.zh-CN.html") for page in found["pages"])
    assert found["overflowing"] == []
    assert all(hits > 0 for hits in found["hits"].values()), found["hits"]
