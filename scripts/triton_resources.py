"""What Triton's kernels take of a GPU, as the assembler reports it; needs no GPU.

Run when the Triton kernels or their policy have changed.

    python scripts/triton_resources.py benchmarks/results/triton-resources.jsonl

writes one line a norm, kernel, regime, dtype and architecture: registers a thread, bytes spilled, bytes
of shared memory, and how many instructions there are in the kernel and in its longest loop, which
is the one over rows.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

ARCHITECTURES = (80, 90, 100)
_SHARED_BYTES = {
    80: 163 << 10,
    90: 227 << 10,
    100: 227 << 10,
}  # that a program may have (CUDA programming guide, table 30)
# A width of every band, and those between powers of two that models have.
WIDTHS = (64, 128, 256, 768, 1024, 1536, 2048, 2304, 4096, 5120, 6144, 7168, 8192, 12288, 16384, 131072)
WIDTHS_OF_THE_FAMILY = (64, 1024, 4096, 5120, 8192, 16384, 131072)  # its kernels are the same with other switches
_POINTERS = {"float16": "*fp16", "bfloat16": "*bf16", "float32": "*fp32", "float64": "*fp64"}
SHAPE = ("ROWS", "BLOCK", "PIECES", "SLABS", "STAGES", "COLUMN_ROWS", "COLUMN_BLOCK", "COLUMN_STAGES")  # of a launch
_NARROW = {"N", "chunks", "span", "slots", "first", "P"}  # 32-bit; other whole numbers have 64


@dataclass(frozen=True)
class Job:
    """A kernel as the backend launches it: all results and parameters that the norm has, contiguous aligned rows.

    Attributes:
        norm: One of NORMS.
        kernel: Its name in gpu/kernels.
        N: Columns of a row.
        dtype: Of x, dy and gamma.
        architecture: 90 for sm_90.
        constants: Compile-time arguments but for the accumulator.
        warps: 32 threads each.
    """

    norm: str
    kernel: str
    N: int
    dtype: str
    architecture: int
    constants: dict[str, Any]
    warps: int


_ALL = {"WANT_DX": True, "WANT_DGAMMA": True, "HAS_GAMMA": True, "SPLIT": False, "ALIGNED": True}
# Whether there are a mean and a beta, and whether there is a residual, with an offset and an alpha besides.
NORMS = {
    "layer_norm": (True, False),
    "rms_norm": (False, False),
    "add_layer_norm": (True, True),
    "add_rms_norm": (False, True),
}


def _switches(centred: bool, added: bool) -> dict[str, Any]:
    """Compile-time arguments of a norm, and None for each array that it does not have."""
    absent = () if centred else ("mean", "beta", "dbeta", "dbeta_parts")
    absent += () if added else ("residual", "total", "dtotal")
    return {
        **dict.fromkeys(("CENTRED", "WANT_DBETA", "HAS_BETA"), centred),
        **dict.fromkeys(("HAS_RESIDUAL", "HAS_DTOTAL"), added),
        "OFFSET": float(added),
        "ALPHA": 1.5 if added and centred else 1.0,
        **dict.fromkeys(absent),
    }


def jobs() -> Iterator[Job]:
    """What the policy chooses for each width, dtype and architecture; equal kernels once."""
    from lngrad.gpu import kernels

    for dtype in ("float32", "bfloat16", "float16", "float64"):
        for architecture in ARCHITECTURES:
            seen = set()
            for norm, N in product(NORMS, WIDTHS):
                if norm != "layer_norm" and N not in WIDTHS_OF_THE_FAMILY:
                    continue
                for name, shape in _launches(N, dtype, architecture, dtotal=NORMS[norm][1]):
                    fields = {key.upper(): value for key, value in asdict(shape).items()}
                    known = {**fields, **_ALL, **_switches(*NORMS[norm])}
                    names = getattr(kernels, name).arg_names
                    constants = {key: known[key] for key in names if key in known}
                    key = name, shape.warps, *constants.values()
                    if key not in seen:
                        seen.add(key)
                        yield Job(norm, name, N, dtype, architecture, constants, shape.warps)


def _launches(N: int, dtype: str, architecture: int, *, dtotal: bool) -> Iterator[tuple[str, Any]]:
    """Kernels and their launch policy, for rows of N columns."""
    from dataclasses import replace

    from lngrad.gpu import policy

    few, backward, forward = policy.backward(1, N, dtype), policy.backward(4096, N, dtype), policy.forward(1, N, dtype)
    if isinstance(few, policy.AtOnce):
        yield "backward_at_once", few
    if isinstance(backward, policy.Tiles):
        while backward.stages > 1 and backward.shared_bytes(dtype, dtotal) > _SHARED_BYTES[architecture]:
            backward = replace(backward, stages=backward.stages - 1)
        yield from (("backward_tiles", backward), ("finalize", policy.finalize_shape(N, dtype)))
    else:
        yield from (("sum_chunks", backward.sums), ("backward_columns", backward))
    if isinstance(forward, policy.Tiles):
        yield "forward_tiles", forward
    else:
        yield from (("forward_chunks", forward), ("forward_sums", forward), ("forward_columns", forward))


def measure(job: Job) -> dict[str, Any]:
    """Compile a job and read the assembler's report.

    Raises:
        RuntimeError: The report can't be read, or the process interprets kernels.
    """
    import triton
    import triton.language as tl
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from lngrad.gpu import kernels, policy

    if kernels.INTERPRETED:
        raise RuntimeError("TRITON_INTERPRET: expected it unset, as interpreted kernels can't be compiled")
    kernel = getattr(kernels, job.kernel)
    accumulator = "float64" if job.dtype == "float64" else "float32"
    constants = {**job.constants, "ACC": getattr(tl, accumulator)}
    signature = {name: _type(name, job.dtype, accumulator, constants) for name in kernel.arg_names}
    constants = {name: value for name, value in constants.items() if name in signature}
    aligned = {(at,): [["tt.divisibility", 16]] for at, type_ in enumerate(signature.values()) if type_[0] == "*"}
    source = ASTSource(kernel, signature, constants, aligned)
    options = {"num_warps": job.warps, "enable_fp_fusion": not policy.ORDERED}
    compiled = triton.compile(source, target=GPUTarget("cuda", job.architecture, 32), options=options)
    shape = {name.lower(): job.constants[name] for name in SHAPE if name in constants}
    return {
        "norm": job.norm,
        "kernel": job.kernel,
        "N": job.N,
        "dtype": job.dtype,
        "sm": job.architecture,
        **shape,
        "warps": job.warps,
        **_assembler(compiled.asm["ptx"], job.architecture),
        "shared_bytes": compiled.metadata.shared,
        "vector_bits": max(map(int, re.findall(r"ld\.global\S*\.v(\d)\.b32", compiled.asm["ptx"])), default=1) * 32,
        **_instructions(compiled.asm["cubin"]),
        "triton": triton.__version__,
    }


def _type(name: str, dtype: str, accumulator: str, constants: dict[str, Any]) -> str:
    if name in constants:
        return "constexpr"
    if name in ("mean", "rstd", "sums", "dgamma_parts", "dbeta_parts"):
        return _POINTERS[accumulator]
    if name in ("dy", "x", "residual", "y", "total", "dtotal", "dx", "gamma", "beta", "dgamma", "dbeta"):
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


def _instructions(binary: bytes) -> dict[str, int]:
    """Machine instructions of a kernel, and of its longest loop: from a branch back to its target."""
    import triton.backends.nvidia

    disassembler = Path(triton.backends.nvidia.__file__).parent / "bin" / "nvdisasm"
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "kernel.cubin").write_bytes(binary)
        command = [str(disassembler), "-c", f"{folder}/kernel.cubin"]
        listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    labels: dict[str, int] = {}
    count = longest = 0
    for line in listing.splitlines():
        label = re.match(r"(\.L\w+):", line)
        if label:
            labels[label[1]] = count
        if re.match(r"\s+/\*[0-9a-f]{4,}\*/", line):
            count += 1
            back = re.search(r"BRA.*`\((\.L\w+)\)", line)
            if back and back[1] in labels:
                longest = max(longest, count - labels[back[1]])
    return {"instructions": count, "loop_instructions": longest}


def main(path: Path) -> None:
    """Write the table; it is replaced as a whole, since it depends on no machine."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as file:
        for job in jobs():
            print(json.dumps(measure(job)), file=file, flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
