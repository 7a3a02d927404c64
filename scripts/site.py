"""Build the documentation site: assemble its sources from README, docs and examples, and run mkdocs strictly.

    python scripts/site.py            build/site; open build/site/index.html from disk

Pages link to files of the repository. In the site, README is the first page, and a file outside of docs/ that a page links to
becomes a page with its text.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from lngrad_ascend.prototypes import FUNCTIONS

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "build" / "site-source"
LINK = re.compile(r"```.*?```|`[^`\n]*`|(\]\()([^)#\s]+)((?:#[^)]*)?\))", re.DOTALL)  # code is passed over
PICTURE = re.compile(r"!\[([^\]]*)\]\(([^)#\s]+\.png)\)")
ENTRY = re.compile(r"^::: lngrad_ascend\.aclnn?\.(\w+)$", re.MULTILINE)
LANGUAGES = {
    ".py": "python",
    ".yml": "yaml",
    ".yaml": "yaml",
    ".json": "json",
    ".csv": "text",
    ".c": "c",
    ".cpp": "cpp",
    ".asc": "cpp",
}
PAGES_ON_TOP = ("CONTRIBUTING.md", "CHANGELOG.md")


def place(file: Path) -> Path:
    """Where a file of the repository lies in the site's sources."""
    inside = file.relative_to(ROOT / "docs" if file.is_relative_to(ROOT / "docs") else ROOT)
    if file.name == "README.md":
        return SOURCE / inside.with_name("index.md")
    if file.is_dir():
        return SOURCE / inside / "index.md"
    return SOURCE / (inside.with_name(f"{inside.name}.md") if file.suffix in LANGUAGES else inside)


def add(file: Path, known: set[Path]) -> None:
    """Put a file into the site, and then what it links to."""
    if file in known:
        return
    known.add(file)
    target = place(file)
    target.parent.mkdir(parents=True, exist_ok=True)
    if (file / "README.md").is_file():
        add(file / "README.md", known)
    elif file.is_dir():
        entries = sorted(path for path in file.iterdir() if path.is_file() and path.suffix in {*LANGUAGES, ".md"})
        lines = [f"* [{_title(path)}]({_relative(place(path), target)})" for path in entries]
        target.write_text(f"# {file.relative_to(ROOT)}/\n\n" + "\n".join(lines) + "\n", encoding="utf-8")
        for path in entries:
            add(path, known)
    elif file.suffix == ".md":

        def translate(found: re.Match[str]) -> str:
            if found[2] is None or "://" in found[2]:
                return found[0]
            linked = (file.parent / found[2]).resolve()
            add(linked, known)
            return f"{found[1]}{_relative(place(linked), target)}{found[3]}"

        text = PICTURE.sub(with_dark_twin(file), file.read_text(encoding="utf-8"))
        text = ENTRY.sub(with_prototype, LINK.sub(translate, text))
        target.write_text(f"---\nsearch:\n  boost: {boost(file)}\n---\n\n{text}", encoding="utf-8")
    elif file.suffix in LANGUAGES:
        text = file.read_text(encoding="utf-8")
        target.write_text(f"# {file.relative_to(ROOT)}\n\n````{LANGUAGES[file.suffix]}\n{text}````\n", encoding="utf-8")
    else:
        shutil.copyfile(file, target)


def boost(file: Path) -> float:
    """How much a page weighs in the search: guides most, decision records least. Chinese words find Chinese pages alone."""
    inside = file.relative_to(ROOT)
    if "decisions" in inside.parts or file.name in {"CHANGELOG.md", "state.md", "foreign-internals.md", "versions.md"}:
        return 0.2
    return 1 if "reference" in inside.parts or ".zh-CN" in file.name else 3


def with_dark_twin(page: Path) -> Callable[[re.Match[str]], str]:
    """A picture that has a dark twin becomes both, of which the theme shows one."""

    def both(found: re.Match[str]) -> str:
        alt, path = found.groups()
        twin = path.replace(".png", "-dark.png")
        if not (page.parent / twin).is_file():
            return found[0]
        return f"![{alt}]({path}#only-light)\n![{alt}]({twin}#only-dark)"

    return both


def with_prototype(entry: re.Match[str]) -> str:
    """An entry of the reference; under a function of acl or aclnn its C prototype, which is written in one table alone."""
    row = FUNCTIONS.get(entry[1])
    return entry[0] if row is None else f"{entry[0]}\n\n```c\n{row.prototype};\n```"


def _title(file: Path) -> str:
    """A page's heading; any other file's name."""
    return file.read_text(encoding="utf-8").partition("\n")[0].lstrip("# ") if file.suffix == ".md" else file.name


def _relative(target: Path, page: Path) -> str:
    up = len(page.relative_to(SOURCE).parts) - 1
    return "../" * up + target.relative_to(SOURCE).as_posix()


def main() -> int:
    shutil.rmtree(SOURCE, ignore_errors=True)
    known: set[Path] = set()
    add(ROOT / "README.md", known)
    for name in PAGES_ON_TOP:
        add(ROOT / name, known)
    for file in sorted((ROOT / "docs").rglob("*")):
        if file.suffix in {".md", ".png", ".svg", ".css"}:
            add(file, known)
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "--quiet",
        "--config-file",
        str(ROOT / "mkdocs.yml"),
    ]
    result = subprocess.run(command, cwd=ROOT, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"})
    if result.returncode == 0:
        _keep_at_home()
        _keep_options_whole()
        _in_their_language()
    return result.returncode


def _keep_at_home() -> None:
    """The theme loads one script from elsewhere, for the search from disk; ours takes its place."""
    script = (ROOT / "scripts" / "worker_from_disk.js").read_text(encoding="utf-8")
    for page in (ROOT / "build" / "site").rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        page.write_text(
            re.sub(
                r'<script src="https://unpkg.com/iframe-worker[^"]*"></script>',
                lambda _: f"<script>{script}</script>",
                text,
            ),
            encoding="utf-8",
        )


def _keep_options_whole() -> None:
    """A browser breaks a line behind the hyphens of --impl; in code inside of a sentence it may not."""
    option = re.compile(r"--[\w-]+")
    for page in (ROOT / "build" / "site").rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        whole = re.sub(
            r"<code>[^<]*</code>", lambda code: option.sub(r'<span class="option">\g<0></span>', code[0]), text
        )
        page.write_text(whole, encoding="utf-8")


# The theme's words on a Chinese page; the theme itself knows one language for a whole site.
CHINESE = {
    "Table of contents": "目录",
    "Back to top": "回到页面顶部",
    "Skip to content": "跳转至正文",
    "Previous": "上一页",
    "Next": "下一页",
    "Search": "搜索",
    "Copy to clipboard": "复制",
    "Permanent link": "永久链接",
    "Footer": "页脚",
    "Header": "页眉",
    "Navigation": "导航",
    "Tabs": "标签",
    "Dark": "深色",
    "Light": "浅色",
}


def _in_their_language() -> None:
    """Mark Chinese pages as such, for readers' tools, and put the theme's words on them into Chinese."""
    words = re.compile(rf'(?<=[">])(\s*)({"|".join(CHINESE)})(:?\s*)(?=["<])')
    for page in (ROOT / "build" / "site").rglob("*.zh-CN.html"):
        text = page.read_text(encoding="utf-8").replace('<html lang="en"', '<html lang="zh-CN"')
        page.write_text(words.sub(lambda found: f"{found[1]}{CHINESE[found[2]]}{found[3]}", text), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
