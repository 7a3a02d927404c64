"""A GPU that is none: CPU tensors, launches that are counted and interpreted, and what Triton's compiler would have made.

The native code is given rows of launches for calls of CPU tensors. It looks them up, makes results and the workspace, fills the
words that parameters lie in, and calls `cuLaunchKernel`, which is a function of this file: it reads the parameters as a GPU
would, by the kernel's own types, and has Triton's interpreter run the kernel on their memory.
"""

from __future__ import annotations

import ctypes
import inspect
import itertools
import threading
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import torch

from lngrad.core import calls as core_calls
from lngrad.gpu import kernels
from lngrad.gpu import plan as triton_gpu
from lngrad.gpu import run as triton_run
from lngrad.support.bounded_cache import BoundedCache
from lngrad.torch import calls, native

KERNELS = (
    "forward_tiles", "forward_chunks", "forward_sums", "forward_columns", "backward_tiles", "sum_chunks", "backward_columns",
    "backward_at_once", "finalize",
)  # fmt: skip
STREAM = 0x5EA
LAUNCH = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_void_p,
    *[ctypes.c_uint] * 7,
    ctypes.c_void_p,
    ctypes.POINTER(ctypes.c_void_p),
    ctypes.c_void_p,
)
CURRENT_STREAM = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p))
_NUMBERS = {"i32": ctypes.c_int32, "i64": ctypes.c_int64, "fp64": ctypes.c_double}
_handles = itertools.count(0x1000)


class Kernel:
    """In the place of a jitted kernel: interpreted where Python calls it, "compiled" where a call is packed."""

    def __init__(self, kernel: Any) -> None:
        self.kernel, self.arg_names = kernel, kernel.arg_names
        self.compiled: list[Compiled] = []

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return self.kernel[grid]

    def __call__(self, *arguments: Any) -> Any:
        """As another kernel calls it."""
        return self.kernel(*arguments)

    def warmup(
        self, *arguments: Any, grid: tuple[int, ...], num_warps: int, enable_fp_fusion: bool, **constants: Any
    ) -> Any:
        assert enable_fp_fusion
        named = dict(zip(self.arg_names, arguments, strict=False))
        self.compiled.append(Compiled(self.kernel, named, constants, num_warps))
        return self.compiled[-1]


class Compiled:
    """What Triton 3.9 has of a compiled kernel, as far as lngrad reads it."""

    def __init__(self, kernel: Any, named: dict[str, Any], constants: dict[str, Any], warps: int) -> None:
        self.kernel, self.constants, self.function = kernel, constants, next(_handles)
        self.dtypes = {name: value for name, value in named.items() if isinstance(value, torch.dtype)}
        annotations = inspect.signature(kernel.fn).parameters
        signature = {}
        for name in kernel.arg_names:
            if name in self.dtypes:
                signature[name] = "*"
            elif named.get(name) is None:
                signature[name] = "constexpr"
            else:
                annotation = str(annotations[name].annotation).removeprefix("tl.")
                signature[name] = annotation.replace("float", "fp").replace("int", "i")
        self.src, self.name = SimpleNamespace(signature=signature), kernel.fn.__name__
        sizes = {"i32": ".u32", "fp64": ".f64"}
        types = [sizes.get(type_, ".u64") for type_ in signature.values() if type_ != "constexpr"]
        types += [".u64 .ptr .global .align 1"] * 2  # scratch memory
        parameters = ",\n".join(f"\t.param {type_} {self.name}_param_{k}" for k, type_ in enumerate(types))
        self.asm = {"ptx": f".visible .entry {self.name}(\n{parameters}\n)\n"}
        self.metadata = SimpleNamespace(
            num_warps=warps, shared=1024, num_ctas=1, launch_cooperative_grid=False, launch_pdl=False, global_scratch_size=0,
            profile_scratch_size=0,
        )  # fmt: skip
        self.loaded = False

    def __getitem__(self, grid: tuple[int, ...]) -> None:
        self.loaded = True

    def run(self, programs: int, parameters: Any) -> dict[str, Any]:
        """Interpret it; returns its arguments."""
        types = [(name, type_) for name, type_ in self.src.signature.items() if type_ != "constexpr"]
        for scratch in (len(types), len(types) + 1):
            assert ctypes.c_int64.from_address(parameters[scratch]).value == 0
        arguments = {
            name: _NUMBERS.get(type_, ctypes.c_int64).from_address(parameters[k]).value
            for k, (name, type_) in enumerate(types)
        }
        tensors = {name: self._tensor(name, arguments, programs) for name, type_ in types if type_ == "*"}
        named = {**self.constants, **arguments, **tensors}
        self.kernel[(programs,)](**{name: named.get(name) for name in self.kernel.arg_names})
        return arguments

    def _tensor(self, name: str, arguments: dict[str, Any], programs: int) -> torch.Tensor:
        M, N, dtype = arguments.get("M", 1), arguments["N"], self.dtypes[name]
        parts = arguments.get("P", programs // self.constants.get("SLABS", 1))
        size = {
            **dict.fromkeys(("gamma", "beta", "dgamma", "dbeta"), N),
            **dict.fromkeys(("mean", "rstd"), M),
            **dict.fromkeys(("dgamma_parts", "dbeta_parts"), parts * N),
            "sums": 2 * M * arguments.get("chunks", arguments.get("slots", 1)),
        }.get(name, M * N)
        assert arguments[name] % 16 == 0
        memory = (ctypes.c_char * (size * dtype.itemsize)).from_address(arguments[name])
        return torch.frombuffer(memory, dtype=dtype)


class Device:
    """What was launched: (kernel's name, programs, threads, shared bytes, stream, arguments) each."""

    def __init__(self, monkeypatch: Any) -> None:
        self.launches: list[tuple[Any, ...]] = []
        self.error = 0  # of the next launches
        self.lock = threading.Lock()
        self.kernels = {name: Kernel(getattr(kernels, name)) for name in KERNELS}
        for name, kernel in self.kernels.items():
            monkeypatch.setattr(kernels, name, kernel)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
        shared = SimpleNamespace(shared_memory_per_block_optin=227 << 10)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: shared)
        monkeypatch.setattr(triton_run, "_context_of", lambda device: nullcontext())
        monkeypatch.setattr(triton_run, "_compiled", BoundedCache(99))
        monkeypatch.setattr(triton_run, "_packed", {})
        monkeypatch.setattr(calls, "make_plan", lambda problem, backend, threads: triton_gpu.plan(problem, threads))
        self.functions = LAUNCH(self._launch), CURRENT_STREAM(self._stream)

        self.use(*self.functions)

    @staticmethod
    def use(*functions: Any) -> None:
        """What launches from now on, and what names the stream: functions of ctypes, or none. All calls are first ones."""
        addresses = [ctypes.cast(function, ctypes.c_void_p).value for function in functions]
        native.module.use_driver(*(addresses or (0, 0)))
        native.module.forget()
        core_calls.forget()

    def _launch(self, function: int, programs: int, *rest: Any) -> int:
        height, depth, threads, y, z, shared, stream, parameters, extra = rest
        assert (height, depth, y, z, extra) == (1, 1, 1, 1, None)
        if self.error:
            return self.error
        compiled = triton_run._packed[function]
        with self.lock:  # the interpreter has one grid for all threads
            arguments = compiled.run(programs, parameters)
        self.launches.append((compiled.name, programs, threads, shared, stream, arguments))
        return 0

    def _stream(self, device: int, stream: Any) -> int:
        stream[0] = STREAM
        return 0
