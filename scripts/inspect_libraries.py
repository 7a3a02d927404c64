"""Run `lngrad check` over the norms of other libraries, each in an environment of its own, and write docs/libraries.md.

    python scripts/inspect_libraries.py                          every row: an hour and some gigabytes
    python scripts/inspect_libraries.py mlx keras                some of them
    python scripts/inspect_libraries.py --environments FOLDER    where environments are made, and kept
    python scripts/inspect_libraries.py --hub FOLDER             a checkout of a kernel of the Hugging Face hub besides
    python scripts/inspect_libraries.py --page                   docs/libraries.md from docs/libraries.json, and nothing else

A row is a library, pip's words for it, and its norms (scripts/library_norms.py). A library without a release is imported from
PYTHONPATH. What a run found is kept as it is; FINDINGS are what a second look at it confirmed, by hand and with float64.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Annotated, Any

import typer

ROOT = Path(__file__).resolve().parents[1]
RECORDS, PAGE = ROOT / "docs" / "libraries.json", ROOT / "docs" / "libraries.md"
CASES = ROOT / "src" / "lngrad" / "check" / "formats"
NORMS = "scripts/library_norms.py"
TORCH = ("torch==2.13.0",)  # the build for CPUs, where pip knows one
NEEDED = ("numpy", "numba", "ml_dtypes", "typer", "rich", "pyyaml", "jinja2")  # by lngrad, which is imported from src
LARGE = (  # cases that an interpreter is not given: a row takes it milliseconds
    "513 by 31", "1000 by 48", "2051 by 33", "a million elements", "rows beyond 65535", "columns beyond 65535",
    "bfloat16 many rows", "column sums in float16",
)  # fmt: skip
SHOWN = 1  # restrictions of a row on the page


@dataclass(frozen=True)
class Library:
    """A row of the page.

    Attributes:
        title: Its name for people.
        package: The distribution whose version counts; "" for one that is imported from PYTHONPATH.
        norms: What is run: the name of each norm of `lngrad check`, and a function of library_norms or another --impl.
        install: Lists of words for pip.
        how: What is to be known of the way that it ran.
        interpreted: Whether Triton's interpreter runs it: without LARGE cases.
        environment: Variables of its processes.
    """

    title: str
    package: str
    norms: dict[str, str]
    install: tuple[str, ...] = ()
    how: str = ""
    interpreted: bool = False
    environment: dict[str, str] = field(default_factory=dict)


def _both(name: str, **others: str) -> dict[str, str]:
    return {"layer_norm": f"{name}_layer_norm", "rms_norm": f"{name}_rms_norm", **others}


INTERPRETER = "Triton's interpreter on a CPU"
TRITON = (*TORCH, "triton", "einops", "transformers")
LIBRARIES = {
    "torch": Library("PyTorch, eager", "torch", _both("torch"), TORCH),
    "torch_2_10": Library("PyTorch, eager", "torch", _both("torch"), ("torch==2.10.0",)),
    "torch_2_15": Library("PyTorch, eager", "torch", _both("torch"), ("torch==2.15.0",)),
    "torch_compile": Library("PyTorch, torch.compile", "torch", _both("compiled"), TORCH, "Inductor, dynamic shapes"),
    "transformers": Library(
        "transformers", "transformers",
        {"layer_norm": "cohere_layer_norm", "rms_norm": "llama_rms_norm", "gemma_rms_norm": "gemma_rms_norm",
         "zero_centred_layer_norm": "nemotron_layer_norm"},
        (*TORCH, "transformers"), "CohereLayerNorm, LlamaRMSNorm, GemmaRMSNorm, NemotronLayerNorm1P",
    ),
    "flax": Library("JAX with flax.linen", "flax", _both("flax"), ("jax", "flax")),
    "flax_nnx": Library("JAX with flax.nnx", "flax", _both("flax_nnx"), ("jax", "flax")),
    "keras": Library("Keras", "keras", _both("keras"), ("keras", "jax"), "keras.ops on JAX"),
    "liger": Library(
        "Liger Kernel", "liger-kernel", _both("liger", gemma_rms_norm="liger_gemma_rms_norm"),
        (*TRITON, "--no-deps liger-kernel"), INTERPRETER + "; in_place=False", True,
    ),
    "fla": Library(
        "flash-linear-attention", "flash-linear-attention", _both("fla"),
        (*TRITON, "--no-deps flash-linear-attention", "--no-deps fla-core"), INTERPRETER, True,
    ),
    "unsloth": Library(
        "Unsloth", "unsloth", _both("unsloth", gemma_rms_norm="unsloth_gemma_rms_norm"), (*TRITON, "--no-deps unsloth"),
        INTERPRETER + "; the kernels' files alone", True,
    ),
    "flag_gems": Library(
        "FlagGems", "flag-gems", _both("flag_gems"), (*TRITON, "--no-deps flag-gems"),
        INTERPRETER + "; the operators' files alone", True,
    ),
    "attorch": Library("attorch", "", _both("attorch"), TRITON, INTERPRETER, True),
    "onednn": Library("oneDNN", "onednn-cpu-gomp", {"layer_norm": "onednn"}, ("onednn-cpu-gomp",), "by its C interface"),
    "onnxruntime": Library(
        "ONNX Runtime for training", "onnxruntime-training", _both("onnxruntime"), ("onnxruntime-training", "onnx"),
        "its operators LayerNormalizationGrad and SimplifiedLayerNormalizationGrad",
    ),
    "mlx": Library("MLX", "mlx", _both("mlx"), ("mlx[cpu]",), "mlx.fast on a CPU"),
    "tinygrad": Library("tinygrad", "tinygrad", _both("tinygrad"), ("tinygrad",), "clang"),
    "paddle": Library("PaddlePaddle", "paddlepaddle", _both("paddle"), ("paddlepaddle",)),
    "mindspore": Library("MindSpore", "mindspore", _both("mindspore"), ("mindspore",), "ops.LayerNorm, ops.rms_norm"),
}  # fmt: skip

NOT_RUN = {
    "LayerNorm under torch.compile": "too long",
    "quack, Apex, TransformerEngine, FlashInfer, TileLang": "they need CUDA",
}


@dataclass(frozen=True)
class Finding:
    """What is wrong, was seen again by hand in float64, and is no choice that the library documents.

    Attributes:
        keys: The rows that have it.
        text: What, and how much.
        known: Where it was reported; "" where the issue trackers that were searched have nothing.
        script: In docs/libraries, of at most twenty lines, docstring and blank ones included, without lngrad.
    """

    keys: tuple[str, ...]
    text: str
    known: str = ""
    script: str = ""


FINDINGS = (
    Finding(
        ("torch", "torch_2_10", "torch_2_15"),
        "LayerNorm sums the gradients of weight and bias in x's 16 bits: at 16384 rows of bfloat16 with bfloat16 weights they "
        "are about 8 to 17 % off, by seed and threads ([9 % with float32 weights](precision.md)), and on 2 threads 16384 ones "
        "add up to 512.",
        script="torch_layer_norm_sums.py",
    ),
    Finding(
        ("torch", "torch_2_10", "torch_2_15", "flag_gems"),
        "with bfloat16 weights, mean and rstd are kept in bfloat16 for the backward: where the mean is 100 and the standard "
        "deviation 1, PyTorch's gradient of weight is 13 % off.",
        "pytorch#77407 (a pull request that mentions it), FlagGems#221 (a fix, merged)",
        "torch_layer_norm_statistics.py",
    ),
    Finding(
        ("hub_rmsnorm",),
        "the gradient of weight is summed in 16 bits; the backward raises if dy is not contiguous, as the expanded dy of "
        "`.sum()`; N = 0 ends the process.",
        script="hub_rmsnorm.py",
    ),
    Finding(
        ("mlx",),
        "a sum over two axes of an empty array, such as dbeta for zero rows, sometimes returns uninitialised memory; over one "
        "axis it sometimes never returns.",
        script="mlx_no_rows.py",
    ),
    Finding(
        ("mindspore",),
        "float64: mean, variance and dx have float32's precision: 3e-7 off.",
        script="mindspore_float64.py",
    ),
    Finding(
        ("mindspore",),
        "y in float16 is 1.2 % off where the mean is 100 and the standard deviation 1.",
        script="mindspore_float16.py",
    ),
    Finding(
        ("attorch",),
        "a weight that is not contiguous is read at wrong places: y is off by 5, where x, weight and bias have variance 1.",
        script="attorch_strided_weight.py",
    ),
    Finding(
        ("fla",),
        "for zero rows the backward raises ZeroDivisionError; the forward returns (akin: flash-attention#1620).",
        script="fla_no_rows.py",
    ),
    Finding(
        ("flag_gems",),
        "RMSNorm's gradient of weight is flat, so that autograd refuses it for two normalized axes.",
        script="flag_gems_rms_norm_axes.py",
    ),
    Finding(
        ("flag_gems",),
        "LayerNorm's backward writes out of bounds unless all axes but the first are normalized.",
        "FlagGems#5392, #5490",
        "flag_gems_layer_norm_rank.py",
    ),
    Finding(
        ("liger",),
        "RMSNorm's backward raises KeyError for float64.",
        script="liger_rms_norm_float64.py",
    ),
)

# What fails the check and is a choice, or the precision that a library says it has.
LIMITS = {
    "transformers": "float64 is computed in float32; Llama rounds xhat first; Nemotron's LayerNorm1P calls PyTorch's LayerNorm",
    "flax": "variance as mean(x²) - mean², unless use_fast_variance=False",
    "flax_nnx": "variance as mean(x²) - mean², unless use_fast_variance=False",
    "liger": "LayerNorm computes float64 in float32 (RMSNorm: finding 11); RMSNorm rounds xhat, as Llama's",
    "fla": "float64 is computed in float32",
    "unsloth": "float64 is computed in float32; RMSNorm rounds xhat, as Llama's",
    "tinygrad": "computes LayerNorm in x's dtype (tinygrad#4143), RMSNorm in float32, with xhat rounded",
    "onnxruntime": "variance as mean(x²) - mean² (onnxruntime#21935), statistics in float32",
    "mlx": "computes gradients in 16 bits; fast.layer_norm and fast.rms_norm compute float64 in float32",
    "paddle": "takes eps in float32",
    "mindspore": "computes dy·gamma in float16",
    "attorch": "float64 is computed in float32",
    "flag_gems": "dgamma in x's dtype",
}


def environment(row: Library, folder: Path) -> Path:
    """The Python of a row's environment, which is made unless it is there."""
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        for words in (" ".join(NEEDED), *row.install):
            subprocess.run([python, "-m", "pip", "install", "--quiet", *words.split()], check=True)
        place = _said(python, "-c", "import site; print(site.getsitepackages()[0])")
        Path(place, "lngrad.pth").write_text(f"{ROOT / 'src'}\n")
    return python


def _said(*words: object, **more: str) -> str:
    """The last line that a command prints; its failures are read from what it says."""
    environment = os.environ | {"PYTHONWARNINGS": "ignore", **more}
    done = subprocess.run(
        [str(one) for one in words], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    lines = done.stdout.strip().splitlines() or [f"error: {(done.stderr.strip().splitlines() or ['nothing'])[-1]}"]
    return lines[-1]


def record(key: str, row: Library, norm: str, python: Path, jobs: int) -> dict[str, Any]:
    """What the check and the forward of one norm showed."""
    name, variables = row.norms[norm], row.environment
    impl = f"{NORMS}:{name}" if name.isidentifier() and name != key else name
    version = "import importlib.metadata as m; print(m.version({!r}))"
    made: dict[str, Any] = {
        "key": key, "title": row.title, "norm": norm, "impl": re.sub(r"(?<=:)/.*/", "", impl), "how": row.how,
        "version": _said(python, "-c", version.format(row.package)) if row.package else _commit(name),
        "date": datetime.now(timezone.utc).strftime("%Y-%m-%d"),
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        cases = [*_small(Path(folder))] if row.interpreted else []
        words = ["-m", "lngrad", "check", *cases, "--impl", impl, "--norm", norm, "--seed", 0, "--fuzz", 0]
        words += ["--jobs", jobs, "--json", "-"]
        told = _said(python, *words, **variables)
    if told.startswith("error: "):
        return made | {"error": told}
    run = json.loads(told)
    made |= {
        name: run[name] for name in ("verdict", "counts", "seconds", "signature", "restrictions", "versions", "lngrad")
    }
    made["mistakes"] = [{name: one[name] for name in ("name", "code", "cases", "case")} for one in run["mistakes"]]
    made["failures"] = [
        {"case": one["name"], "mistake": one["mistake"], "reason": one["reason"][:300],
         "where": [{name: part[name] for name in ("result", "ulps", "tolerances")} for part in one["where"]]}
        for one in run["failures"]
    ]  # fmt: skip
    if impl.startswith(NORMS):
        told = _said(python, NORMS, name, norm, *["interpreted"] * row.interpreted, **variables)
        made["forward"] = {"error": told} if told.startswith("error: ") else json.loads(told)
    return made


def _commit(name: str) -> str:
    """Of a library that is imported from a checkout."""
    folders = [name[4:]] if name.startswith("hub:") else os.environ.get("PYTHONPATH", "").split(os.pathsep)
    for folder in folders:
        if name.startswith("hub:") or (Path(folder) / name.partition("_")[0]).is_dir():
            return subprocess.run(
                ["git", "-C", folder, "log", "-1", "--format=%h of %cs"], capture_output=True, text=True, check=True
            ).stdout.strip()
    return ""


def _small(folder: Path) -> list[Path]:
    """The cases that come with lngrad, without LARGE ones."""
    made = []
    for name in ("default.yaml", "family.yaml"):
        lines = (CASES / name).read_text("utf-8").splitlines(keepends=True)
        made.append(folder / name)
        made[-1].write_text(
            "".join(line for line in lines if not any(f"name: {one}," in line for one in LARGE)), "utf-8"
        )
    return made


def read() -> list[dict[str, Any]]:
    return json.loads(RECORDS.read_text("utf-8")) if RECORDS.exists() else []


def write(new: list[dict[str, Any]]) -> None:
    """Keep the records, a new one in place of an old one of the same row and norm, and write the page."""
    found = {(one["key"], one["norm"]): one for one in [*read(), *new]}
    order = [*LIBRARIES]
    place = {key: order.index(key) if key in order else len(order) for key, _ in found}
    kept = sorted(found.values(), key=lambda one: (place[one["key"]], one["key"]))
    RECORDS.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n", "utf-8")
    PAGE.write_text(page(kept), "utf-8")


HEAD = """\
# What `lngrad check` says about other libraries

{findings} findings in {libraries} libraries: {named}. Most other failures are
choices, such as a variance of mean(x²) - mean².

`python scripts/inspect_libraries.py` installed each library and ran `lngrad check` on its norms, on a CPU ({dates}): the
[default cases](check.md#cases) of that day without random ones ({cases} for LayerNorm, {rms_cases} for RMSNorm, {hub}
for the hub's, 85 zero centred, 89 Gemma's), against float64. y is compared too, on {shapes} shapes in three
dtypes. A cell has cases passed/failed/skipped;
[libraries.json](libraries.json) has failures, [library_norms.py](../scripts/library_norms.py) how a
norm is called. A failed case does not mean a bug: we repeated by hand what stands under Findings; Limits are deliberate
choices of a library.

| library | LayerNorm | RMSNorm | y | refuses | see |
|---|---|---|---|---|---|
"""


def page(records: list[dict[str, Any]]) -> str:
    """The text of docs/libraries.md."""
    rows: dict[str, list[dict[str, Any]]] = {}
    for one in records:
        rows.setdefault(one["key"], []).append(one)
    lines = [_row(key, found) for key, found in rows.items()]
    lines += ["", "## Findings", "", "Where no issue is named, we found no public report.", ""]
    for number, one in enumerate(FINDINGS, 1):
        titles = " and ".join(dict.fromkeys(rows[key][0]["title"].partition(",")[0] for key in one.keys if key in rows))
        known = [f"Known: {one.known}."] if one.known else []
        script = [f"[Script](libraries/{one.script})."] if one.script else []
        lines.append(" ".join([f"{number}. {titles}: {one.text}", *known, *script]))
    lines += ["", "## Limits", ""]
    same: dict[str, list[str]] = {}
    for key, text in LIMITS.items():
        if key in rows:
            same.setdefault(text, []).append(rows[key][0]["title"])
    lines += [f"* {', '.join(titles)}: {text}" for text, titles in same.items()]
    interpreted = [found[0]["title"] for key, found in rows.items() if key in LIBRARIES and LIBRARIES[key].interpreted]
    lines += ["", "## How, and what was not run", ""]
    lines += [
        f"* {', '.join(interpreted)} ran in Triton's interpreter, which computes bfloat16 as a GPU does; large cases were left "
        "out."
    ]
    lines += ["* oneDNN's wheel 2023.2.0 contains oneDNN 3.2."]
    lines += [f"* Not run: {title}: {why}." for title, why in NOT_RUN.items()]
    missing = "; ".join(
        row.title.replace("PyTorch, ", "PyTorch with ") for key, row in LIBRARIES.items() if key not in rows
    )
    lines += [f"* Not run yet: {missing}."] * bool(missing)
    shapes = max(
        sum(one["forward"][name] for name in ("passed", "failed", "refused")) for one in records if "forward" in one
    )
    dates = sorted({one["date"] for one in records})
    cases = {norm: max(sum(one["counts"].values()) for one in records if one["norm"] == norm and "counts" in one)
             for norm in ("layer_norm", "rms_norm")}  # fmt: skip
    named = list(dict.fromkeys(rows[key][0]["title"].partition(",")[0] for one in FINDINGS for key in one.keys))
    head = HEAD.format(
        shapes=shapes // 3, dates=" to ".join([dates[0], *dates[1:][-1:]]), findings=len(FINDINGS), cases=cases["layer_norm"],
        libraries=len(named), named=", ".join(named),
        rms_cases=cases["rms_norm"],
        hub=sum(next(one["counts"] for one in records if one["key"] == "hub_rmsnorm").values()),
    )  # fmt: skip
    return head + "\n".join(lines) + "\n"


def _row(key: str, found: list[dict[str, Any]]) -> str:
    cells = {"layer_norm": "–", "rms_norm": "–"}
    for one in found:
        counts = (
            [str(one["counts"][name]) for name in ("passed", "failed", "skipped")] if "counts" in one else ["error"]
        )
        cells[one["norm"]] = "/".join(counts)
    layers, roots = (
        "; ".join(
            f"{name.removesuffix(norm).replace('_', ' ')} {counts}".strip()
            for name, counts in cells.items()
            if name.endswith(norm)
        ).replace("  ", " ")
        for norm in ("layer_norm", "rms_norm")
    )
    forwards = [one["forward"] for one in found if "passed" in one.get("forward", {})]
    y = (
        "/".join(str(sum(one[name] for one in forwards)) for name in ("passed", "failed", "refused"))
        if forwards
        else "–"
    )
    refused: dict[str, int] = {}
    for one in found:
        if one.get("verdict") == "INCONCLUSIVE":
            refused[f"{one['norm'].replace('_', ' ')} (no kernel for a CPU)"] = one["counts"]["skipped"]
            continue
        for restriction in one.get("restrictions", ()):
            text = restriction["text"]
            if "Error" not in text and "Exception" not in text and restriction["cases"] > 1:
                text = text.replace("more than one normalized axis", "several axes")
                refused[text] = max(restriction["cases"], refused.get(text, 0))
    most = sorted(refused, key=lambda text: -refused[text])[:SHOWN]
    see = [str(number) for number, one in enumerate(FINDINGS, 1) if key in one.keys]
    name = f"{found[0]['title']} {found[0]['version']}"
    return f"| {name} | {layers} | {roots} | {y} | {'; '.join(most)} | {', '.join(see)} |"


def main(
    names: Annotated[list[str] | None, typer.Argument(help="Rows; default: all.")] = None,
    environments: Annotated[Path, typer.Option(help="A folder of environments.")] = Path("~/.cache/lngrad/libraries"),
    hub: Annotated[
        list[Path] | None, typer.Option(help="A checkout of a kernel of the Hugging Face hub, for rms_norm.")
    ] = None,
    jobs: Annotated[int, typer.Option(help="Processes of each check.")] = 1,
    only_page: Annotated[bool, typer.Option("--page", help="Only write the page from the records.")] = False,
) -> None:
    """Check the rows, one after the other; the records and the page are written after each norm."""
    rows = {} if only_page or (hub and not names) else {name: LIBRARIES[name] for name in names or LIBRARIES}
    for checkout in hub or ():
        name = f"the Hugging Face hub's {checkout.name}"
        rows[f"hub_{checkout.name}"] = Library(
            name, "", {"rms_norm": f"hub:{checkout}"}, TORCH, "compiled for this CPU"
        )
    for key, row in rows.items():
        python = environment(row, environments.expanduser() / key)
        for norm in row.norms:
            made = record(key, row, norm, python, jobs)
            print(
                row.title,
                norm,
                made.get("error") or f"{made['verdict']} {made['counts']} {made['seconds']:.0f} s",
                flush=True,
            )
            write([made])
    if only_page:
        write([])


if __name__ == "__main__":
    typer.run(main)
