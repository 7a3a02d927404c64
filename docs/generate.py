"""Write the measured tables and pictures into the documents, from benchmarks/results.

Run by `make docs`. Text between `<!-- bench:begin -->` and `<!-- bench:end -->` is replaced.
"""

from __future__ import annotations

import json
import re
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "benchmarks"))

import mistakes_page  # noqa: E402
from benchmark_page import page  # noqa: E402
from benchmark_tables import gpu_table, overview, quack_table, ranges, shapes_table  # noqa: E402

from lngrad.bench.records import Record, newest, read  # noqa: E402
from lngrad_ascend.device.library import LIBRARY  # noqa: E402
from lngrad_ascend.device.operations import OPERATIONS  # noqa: E402
from peer_libraries.plots import machine_name, plot  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results"
MISTAKES = ROOT / "docs" / "mistakes.md"
INSTRUCTIONS = ROOT / "docs" / "ascend-c-types.csv"
PICTURES = ROOT / "docs" / "bench.svg", ROOT / "docs" / "gpu.svg"


def main() -> int:
    """Rewrite the READMEs, docs/performance.md, torch.md, gpu.md, mistakes.md, benchmarks.html and the pictures."""
    machines = machines_in(RESULTS)
    device = device_in(RESULTS)
    for name in READMES:
        _replace(ROOT / name, readme(machines, name, device))
    _replace(ROOT / "docs" / "performance.md", performance(machines))
    MISTAKES.write_text(mistakes_page.page(), encoding="utf-8")
    INSTRUCTIONS.write_text(instructions(), encoding="utf-8")
    _replace(ROOT / "docs" / "torch.md", torch(machines))
    _replace(ROOT / "docs" / "gpu.md", gpu(device, RESULTS))
    (ROOT / "docs" / "benchmarks.html").write_text(page(machines), encoding="utf-8")
    plot([next(iter(machines.values()))], PICTURES[0], scope="override")  # the newest machine; the table has all
    plot([device], PICTURES[1], scope="call")
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


def device_in(folder: Path) -> list[Record]:
    """The records of layer normalization of the GPU."""
    lines = [line for path in sorted(folder.glob("*.jsonl")) for line in read(path)]
    return [line for line in lines if "device" in line.get("machine", {}) and _is_layer_norm(line)]


READMES = {
    "README.md": (
        (
            "machine",
            "backward float32",
            "backward 16 bits",
            "forward float32",
            "forward 16 bits",
            "cases won",
            "override() float32",
            "override() 16 bits",
        ),
        "Geometric means of LayerNorm's speedups. CPUs: 2 threads, preallocated outputs, rows of 64 elements or more, compared "
        "with the faster of torch 2.13 and oneDNN 3.2 (override(): with torch). GPU: compared with the faster of torch 2.11 "
        "and Liger 0.8.5, for calls of 2²⁶ elements; its cases won count every size: below 2²² elements torch is up to 4 times "
        "as fast ([GPU](docs/gpu.md)). Every CPU case: [benchmarks](docs/benchmarks.html); what it means: "
        "[performance](docs/performance.md).",
        "Speedup of override() over torch's LayerNorm, by shape and dtype, on the newest of these machines",
    ),
    "README.zh-CN.md": (
        (
            "机器",
            "反向 float32",
            "反向 16 位",
            "正向 float32",
            "正向 16 位",
            "领先的用例",
            "override() float32",
            "override() 16 位",
        ),
        "LayerNorm 加速比的几何平均。CPU：2 个线程，输出已预分配，每行不少于 64 个元素，相对 torch 2.13 和 oneDNN 3.2 中较快者"
        "（override()：相对 torch）。GPU：相对 torch 2.11 和 Liger 0.8.5 中较快者，调用有 2²⁶ 个元素；"
        "领先的用例则包括全部大小，小于 2²² 个元素时 torch 最多快 4 倍（[GPU](docs/gpu.md)（英文））。"
        "全部 CPU 用例：[benchmarks](docs/benchmarks.html)（英文）；说明见[性能](docs/performance.md)（英文）。",
        "其中最新的一台机器上，各形状和 dtype 下 override() 相对 torch 的 LayerNorm 的加速比",
    ),
}


TORCH_HEADINGS = (
    "rows × columns",
    "override() float32",
    "override() 16 bits",
    "lngrad.torch.LayerNorm float32",
    "lngrad.torch.LayerNorm 16 bits",
)


def readme(machines: dict[str, list[Record]], name: str, device: list[Record]) -> str:
    """A line a machine, what it says, and the picture."""
    headings, about, picture = READMES[name]
    wrapped = textwrap.fill(about, 100, break_on_hyphens=False) if name == "README.md" else about
    return "\n\n".join([overview(machines, headings, device), wrapped, f"![{picture}](docs/bench.svg)"])


def performance(machines: dict[str, list[Record]]) -> str:
    """A line a scope."""
    return ranges({_short(name): lines for name, lines in machines.items()})


def torch(machines: dict[str, list[Record]]) -> str:
    """A line a shape: what a LayerNorm of torch's gains by override(), and lngrad's module over torch's."""
    return shapes_table(machines, TORCH_HEADINGS)


def gpu(device: list[Record], folder: Path) -> str:
    """The large jobs on the GPU, and both norms beside quack."""
    quack = json.loads((folder / "nvidia-h200-quack.json").read_text(encoding="utf-8"))
    return "\n\n".join(
        [
            gpu_table(device),
            "Beside quack-kernels 0.6.5, bfloat16, as shares of a copy's speed:",
            quack_table(quack),
        ]
    )


def instructions() -> str:
    """A line an instruction of Ascend C's: its types, and those that 950 takes in addition; then the functions on rows."""
    lines = ["instruction,types,more on 950"]
    for operation in OPERATIONS:
        mixed = [" from ".join(part.split(maxsplit=1)) for part in operation.mixed.split("; ") if part]
        types, more = ", ".join([*operation.types.split(), *mixed]), ", ".join(operation.more.split())
        lines.append(f'{operation.name},"{types}","{more}"')
    return "\n".join([*lines, *(f"{name},rows and matrices," for name in LIBRARY)]) + "\n"


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
