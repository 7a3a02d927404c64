"""Write the measured tables and pictures into the documents, from benchmarks/results.

Run by `make docs`. Text between `<!-- bench:begin -->` and `<!-- bench:end -->` is replaced.
"""

from __future__ import annotations

import re
import sys
import textwrap
from pathlib import Path

from benchmark_page import page
from benchmark_tables import family_table, overview, ratios_table, summary, thread_counts, times_table

from lngrad.bench.plots import machine_name, plot
from lngrad.bench.records import Record, newest, read

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
PICTURE = ROOT / "docs" / "bench.svg"

SCOPES = {
    "kernel": "Backward",
    "forward": "Forward",
    "call": "As called, outputs of 64 MB and more",
    "override": "A torch.nn.LayerNorm forward and backward, under override() against aten's own kernels",
    "autograd": "lngrad.torch.LayerNorm forward and backward, against torch.nn.LayerNorm",
    "jax": "lngrad.jax.layer_norm forward and backward in one jitted program, against the jitted formula",
}


def main() -> int:
    """Rewrite the READMEs, docs/performance*.md, docs/benchmarks.html and docs/bench.svg."""
    machines = machines_in(RESULTS)
    for name in READMES:
        _replace(ROOT / name, readme(machines, name))
    english = performance(machines)
    _replace(ROOT / "docs" / "performance.md", english)
    _replace(ROOT / "docs" / "performance.zh-CN.md", in_chinese(english))
    _replace(ROOT / "docs" / "performance-tables.md", tables(machines, family_in(RESULTS)))
    (ROOT / "docs" / "benchmarks.html").write_text(page(machines), encoding="utf-8")
    plot(list(machines.values()), PICTURE)
    return 0


def machines_in(folder: Path) -> dict[str, list[Record]]:
    """The records of layer normalization of every CPU, by its name; newest machine first."""
    files = [[line for line in read(path) if _is_layer_norm(line)] for path in sorted(folder.glob("*.jsonl"))]
    found = [lines for lines in files if lines and "scope" in lines[0] and newest(lines, "kernel")]
    found.sort(key=lambda lines: str(lines[-1]["date"]), reverse=True)
    return {machine_name(lines[-1]): lines for lines in found}


def _is_layer_norm(line: Record) -> bool:
    """Older records do not say of which norm they are."""
    return bool(line.get("norm", "layer_norm") == "layer_norm")


def family_in(folder: Path) -> dict[str, list[Record]]:
    """The records of other norms, by machine."""
    files = [[line for line in read(path) if not _is_layer_norm(line)] for path in sorted(folder.glob("*.jsonl"))]
    return {machine_name(lines[-1]): lines for lines in files if lines and "machine" in lines[-1]}


READMES = {
    "README.md": (
        (
            "machine",
            "backward: float32",
            "16 bits",
            "forward: float32",
            "16 bits",
            "cases won",
            "override(): float32",
            "16 bits",
        ),
        "Against the better of torch 2.13 and oneDNN 3.2 with 2 threads, outputs preallocated, geometric means over rows of 64 "
        "elements and more; override() against torch's own kernels. Above 1×: lngrad is faster. Every case with its history: "
        "[benchmarks](docs/benchmarks.html), in tables: [performance](docs/performance.md).",
        "How many times faster than the best peer, by shape and dtype, on five machines",
    ),
    "README.zh-CN.md": (
        ("机器", "反向：float32", "16 位", "正向：float32", "16 位", "领先的用例", "override()：float32", "16 位"),
        "与 torch 2.13 和 oneDNN 3.2 中较快者相比，2 个线程，输出已预分配，每行不少于 64 个元素的几何平均；override() 与 torch "
        "自己的内核相比。大于 1×：lngrad 更快。全部用例与历史：[benchmarks](docs/benchmarks.html)（英文），"
        "表格见[性能](docs/performance.zh-CN.md)。",
        "五台机器上，各形状和 dtype 下的速度是最快的同类库的多少倍",
    ),
}


def readme(machines: dict[str, list[Record]], name: str) -> str:
    """A line a machine, what it says, and the picture."""
    headings, about, picture = READMES[name]
    wrapped = textwrap.fill(about, 100, break_on_hyphens=False) if name == "README.md" else about
    return "\n\n".join([overview(machines, headings), wrapped, f"![{picture}](docs/bench.svg)"])


def performance(machines: dict[str, list[Record]]) -> str:
    """The summary, and the backward by shape."""
    short = {_short(name): lines for name, lines in machines.items()}
    about = (
        "The backward with 2 threads, outputs preallocated: how many times faster than the best peer. Not bold: lost."
    )
    return "\n\n".join([summary(short, every=False), about, ratios_table(short, "kernel")])


CHINESE = {
    "machine | scope | threads | against | won | rows of ≥ 64, float32 | rows of ≥ 64, 16 bits | tiny rows | least":
        "机器 | 范围 | 线程 | 对比对象 | 领先 | 每行 ≥ 64，float32 | 每行 ≥ 64，16 位 | 很短的行 | 最小",
    "the best of torch, oneDNN": "torch 和 oneDNN 中较快者",
    "The backward with 2 threads, outputs preallocated: how many times faster than the best peer. Not bold: lost.":
        "2 个线程的反向，输出已预分配：速度是最快的同类库的多少倍。非粗体表示较慢。",
    "rows × columns": "行 × 列",
}  # fmt: skip


def in_chinese(text: str) -> str:
    """The words of docs/performance.md's tables in Chinese."""
    text = re.sub(r"(\d+) of (\d+)", r"\1 / \2", text)
    for english, chinese in CHINESE.items():
        text = text.replace(english, chinese)
    return text


def tables(machines: dict[str, list[Record]], family: dict[str, list[Record]]) -> str:
    """The whole summary, and our times by machine, scope and number of threads; the norms of the family last."""
    parts = [summary({_short(name): lines for name, lines in machines.items()}, every=True)]
    for name, lines in machines.items():
        parts.append(f"## {name}")
        for scope, title in SCOPES.items():
            for threads in thread_counts(lines, scope):
                parts.append(f"### {title}, {_count(threads)}\n\n{times_table(lines, scope, threads)}")
    for name, lines in family.items():
        parts.append(
            f"## The family, {name}\n\nForward alone, or forward and backward (autograd), with torch's tensors."
        )
        for norm, scope, threads in dict.fromkeys((line["norm"], line["scope"], line["threads"]) for line in lines):
            mine = [line for line in lines if line["norm"] == norm]
            parts.append(f"### {norm}, {scope}, {_count(threads)}\n\n{family_table(mine, scope, threads)}")
    return "\n\n".join(parts)


def _count(threads: int) -> str:
    return f"{threads} thread{'s' * (threads > 1)}"


def _short(name: str) -> str:
    """Without the vectors: "AMD EPYC 7003"."""
    return name.rpartition(", ")[0] or name


def _replace(path: Path, text: str) -> None:
    """Put generated text between the markers of a document."""
    whole = path.read_text(encoding="utf-8")
    pattern = re.compile(r"(<!-- bench:begin -->).*?(<!-- bench:end -->)", re.DOTALL)
    if not pattern.search(whole):
        raise SystemExit(f"{path}: expected the markers bench:begin and bench:end")
    path.write_text(pattern.sub(lambda found: f"{found[1]}\n{text}\n{found[2]}", whole), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
