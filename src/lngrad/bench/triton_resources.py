"""What Triton's kernels take of a GPU, without one: compiled ahead of time, then asked of the assembler.

    python -m lngrad.bench.triton_resources benchmarks/results/triton-resources.jsonl

writes one line a kernel, regime, dtype and architecture: registers a thread, bytes of shared memory, bytes spilled.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

__all__ = ["ARCHITECTURES", "Job", "jobs", "measure"]

ARCHITECTURES = (80, 90, 100)
_POINTERS = {"float16": "*fp16", "bfloat16": "*bf16", "float32": "*fp32", "float64": "*fp64"}
_NARROW = {"N", "chunks", "P"}  # 32-bit; other whole numbers have 64


@dataclass(frozen=True)
class Job:
    """One kernel as the backend launches it: all results wanted, gamma there, contiguous aligned rows.

    Attributes:
        kernel: Its name in kernels/triton_gpu.py.
        N: The widest row of its regime.
        dtype: Of x, dy and gamma.
        constants: Compile-time arguments but for the accumulator.
        warps: 32 threads each.
    """

    kernel: str
    N: int
    dtype: str
    constants: dict[str, Any]
    warps: int


_WANTED = {"WANT_DX": True, "WANT_DGAMMA": True, "WANT_DBETA": True}
_PLAIN = {"SPLIT": False, "ALIGNED": True}
_SHORT = (64, 1024, 2048, 4096, 8192)
_LONG = (16384, 131072)


def jobs() -> Iterator[Job]:
    """A default of every band of N, by kernel and dtype."""
    from lngrad.backends.triton_policy import Columns, Tiles, choose, finalize_shape

    for dtype in ("float32", "bfloat16", "float64", "float16"):
        seen = set()
        for N in (*_SHORT, *_LONG):
            regime = choose(1, N, dtype, 132)
            final = finalize_shape(N, dtype)
            launches: list[tuple[str, Any, dict[str, Any]]] = [("finalize", final, _without(_WANTED, "WANT_DX"))]
            gamma = {"HAS_GAMMA": True, **_PLAIN}
            if isinstance(regime, Tiles):
                launches += [("backward_tiles", regime, {**_WANTED, **gamma, "STAGES": regime.stages})]
                launches += [("forward_tiles", regime, {**gamma, "HAS_BETA": True})]
            if isinstance(regime, Columns):
                chunk = regime.chunk
                launches += [("sum_chunks", chunk, gamma), ("backward_columns", regime, {**_WANTED, **gamma})]
                launches += [("backward_chunks", chunk, {**_WANTED, **gamma, "STAGES": chunk.stages})]
                launches += [("forward_chunks", chunk, {**gamma, "HAS_BETA": True})]
            for kernel, shape, constants in launches:
                constants = {**constants, "ROWS": shape.rows, "BLOCK": shape.block}
                key = kernel, *constants.values()
                if key not in seen:
                    seen.add(key)
                    yield Job(kernel, N, dtype, constants, shape.warps)


def _without(constants: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in constants.items() if key != name}


def measure(job: Job, architecture: int) -> dict[str, Any]:
    """Compile a job for an architecture and read the assembler's report.

    Raises:
        RuntimeError: The report can't be read, or the process interprets kernels.
    """
    import triton
    import triton.language as tl
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from lngrad.kernels import triton_gpu as kernels

    if kernels.INTERPRETED:
        raise RuntimeError("TRITON_INTERPRET: expected it unset, as interpreted kernels can't be compiled")
    kernel = getattr(kernels, job.kernel)
    accumulator = "float64" if job.dtype == "float64" else "float32"
    constants = {**job.constants, "ACC": getattr(tl, accumulator)}
    signature = {name: _type(name, job.dtype, accumulator, constants) for name in kernel.arg_names}
    aligned = {(at,): [["tt.divisibility", 16]] for at, type_ in enumerate(signature.values()) if type_[0] == "*"}
    source = ASTSource(kernel, signature, constants, aligned)
    compiled = triton.compile(source, target=GPUTarget("cuda", architecture, 32), options={"num_warps": job.warps})
    resources = _assembler(compiled.asm["ptx"], architecture)
    return {
        "kernel": job.kernel,
        "N": job.N,
        "dtype": job.dtype,
        "sm": architecture,
        "rows": job.constants["ROWS"],
        "block": job.constants["BLOCK"],
        "warps": job.warps,
        **resources,
        "shared_bytes": compiled.metadata.shared,
        "vector_bits": max(map(int, re.findall(r"ld\.global\S*\.v(\d)\.b32", compiled.asm["ptx"])), default=1) * 32,
        "triton": triton.__version__,
    }


def _type(name: str, dtype: str, accumulator: str, constants: dict[str, Any]) -> str:
    if name in constants:
        return "constexpr"
    if name in ("mean", "rstd", "sums", "dgamma_parts", "dbeta_parts"):
        return _POINTERS[accumulator]
    if name in ("dy", "x", "y", "dx", "gamma", "beta", "dgamma", "dbeta"):
        return _POINTERS[dtype]
    return "fp64" if name == "eps" else "i32" if name in _NARROW else "i64"


def _assembler(ptx: str, architecture: int) -> dict[str, int]:
    """Registers and spills by the assembler that Triton's package brings along."""
    from triton.backends.nvidia.compiler import get_ptxas

    assembler = get_ptxas(architecture).path
    suffix = "a" if architecture >= 90 else ""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "kernel.ptx"
        source.write_text(ptx, encoding="utf-8")
        command = [assembler, "-v", f"-arch=sm_{architecture}{suffix}", str(source), "-o", f"{folder}/kernel.cubin"]
        report = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    registers = re.search(r"Used (\d+) registers", report)
    spills = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", report)
    if registers is None or spills is None:
        raise RuntimeError(f"ptxas: expected registers and spills in its report, got {report!r}")
    return {"registers": int(registers[1]), "spill_bytes": int(spills[1]) + int(spills[2])}


def main(path: Path) -> None:
    """Write the table; it is replaced as a whole, since it depends on no machine."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as file:
        for job in jobs():
            for architecture in ARCHITECTURES:
                print(json.dumps(measure(job, architecture)), file=file, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
