"""oneDNN's layer normalization on the CPU, through ctypes.

The library comes with a wheel; no compiler is needed. `onednn` is today's, and runs on Intel's SYCL and TBB; `onednn-cpu-gomp`
(the extra `bench`) is of 2023, and runs on OpenMP. This file marshals arrays into oneDNN's C interface (version 3) and knows
nothing else; an argument that is no int has its C type at the call. Constants are those of oneDNN's dnnl_types.h and
dnnl_common_types.h.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from collections.abc import Callable, Iterable
from contextlib import suppress
from ctypes import POINTER, byref, c_char_p, c_float, c_int, c_int64, c_size_t, c_void_p
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any

from lngrad.support.bounded_cache import cached_property
from lngrad.typing import Array

DISTRIBUTIONS = ("onednn", "onednn-cpu-gomp")  # the first that is installed
LIBRARY = "libdnnl.so.3"
# What today's needs of its own folder, callees first; the device by an environment variable.
NEEDED = (
    "libintlc.so.5", "libimf.so", "libirng.so", "libsvml.so", "libtbb.so.12", "libhwloc.so.15", "libumf.so.1",
    "libur_loader.so.0", "libsycl.so.9",
)  # fmt: skip
DEVICE, DEVICE_LIBRARY = "OCL_ICD_FILENAMES", "libintelocl.so"

DATA_TYPES = {"float16": 1, "bfloat16": 2, "float32": 3}
STATUS = ("success", "out of memory", "invalid arguments", "unimplemented", "last implementation", "runtime error")
CPU, IN_ORDER = 1, 1
FORWARD_TRAINING, BACKWARD = 64, 128
USE_SCALE, USE_SHIFT = 2, 4
IMPLEMENTATION_NAME = 8  # what dnnl_primitive_desc_query is asked for
MAX_DIMENSIONS = 12

# What a memory is to a primitive.
SRC, DST, MEAN, VARIANCE, SCALE, SHIFT = 1, 17, 49, 50, 51, 52
DIFF_SRC, DIFF_DST, DIFF_SCALE, DIFF_SHIFT = 129, 145, 255, 256


class OneDnnError(RuntimeError):
    """oneDNN refused; the text names the function and its status."""


class _Version(ctypes.Structure):
    _fields_ = (("major", c_int), ("minor", c_int), ("patch", c_int))


class _Argument(ctypes.Structure):
    _fields_ = (("role", c_int), ("memory", c_void_p))


_Dimensions = c_int64 * MAX_DIMENSIONS


@dataclass
class Run:
    """A primitive with its memory: call it to compute.

    Attributes:
        implementation: oneDNN's name of it, such as "jit:avx512_core"; "simple_layer_normalization:any" is slow.
        arrays: Whose memory it reads and writes.
    """

    implementation: str
    arrays: tuple[Array, ...]
    _call: Callable[[], None]

    def __call__(self) -> None:
        self._call()


class _OneDnn:
    """The library, its engine for the CPU and a stream. One for the process, and never destroyed."""

    def __init__(self, path: Path) -> None:
        if (path.parent / DEVICE_LIBRARY).exists():
            os.environ.setdefault(DEVICE, str(path.parent / DEVICE_LIBRARY))
            for name in NEEDED:
                ctypes.CDLL(str(path.parent / name), mode=ctypes.RTLD_GLOBAL)
        # The library binds to its own OpenMP before that of any other package.
        self.library = ctypes.CDLL(str(path), mode=os.RTLD_NOW | getattr(os, "RTLD_DEEPBIND", 0))
        self.library.dnnl_version.restype = POINTER(_Version)

    @cached_property
    def engine(self) -> c_void_p:
        return self.created("dnnl_engine_create", CPU, c_size_t(0))

    @cached_property
    def stream(self) -> c_void_p:
        return self.created("dnnl_stream_create", self.engine, IN_ORDER)

    def set_num_threads(self, threads: int) -> None:
        if hasattr(self.library, "omp_set_num_threads"):
            self.library.omp_set_num_threads(threads)
        elif threads != (processors := len(os.sched_getaffinity(0))):
            text = f"SYCL's engine has a thread for each of this process's {processors} processors, got {threads}"
            raise OneDnnError(f"set_num_threads: {text}: taskset limits them")

    def call(self, name: str, *arguments: Any) -> None:
        if status := getattr(self.library, name)(*arguments):
            text = STATUS[status] if status < len(STATUS) else f"status {status}"
            raise OneDnnError(f"{name.removeprefix('dnnl_')}: {text}")

    def created(self, name: str, *arguments: Any) -> c_void_p:
        """What a function makes and writes to its first argument."""
        handle = c_void_p()
        self.call(name, byref(handle), *arguments)
        return handle

    def description(self, array: Array) -> c_void_p:
        """A memory descriptor of an array's shape, dtype and strides.

        Raises:
            OneDnnError: oneDNN does not have the dtype.
        """
        if array.dtype.name not in DATA_TYPES:
            raise OneDnnError(f"dtype: expected {', '.join(DATA_TYPES)}, got {array.dtype.name}")
        strides = (stride // array.itemsize for stride in array.strides)
        sizes = _Dimensions(*array.shape), DATA_TYPES[array.dtype.name], _Dimensions(*strides)
        return self.created("dnnl_memory_desc_create_with_strides", array.ndim, *sizes)

    def forward(self, x: c_void_p, y: c_void_p, rows: c_void_p, eps: float) -> c_void_p:
        name = "dnnl_layer_normalization_forward_primitive_desc_create"
        return self.created(name, self.engine, FORWARD_TRAINING, x, y, rows, c_float(eps), USE_SCALE | USE_SHIFT, None)

    def run(self, description: c_void_p, roles: dict[int, Array]) -> Run:
        """A primitive of a description, on the memory of arrays by what they are to it."""
        name = c_char_p()
        self.call("dnnl_primitive_desc_query", description, IMPLEMENTATION_NAME, 0, byref(name))
        primitive = self.created("dnnl_primitive_create", description)
        self.call("dnnl_primitive_desc_destroy", description)
        arguments = (_Argument * len(roles))()
        for argument, (role, array) in zip(arguments, roles.items(), strict=True):
            shape = self.description(array)
            memory = self.created("dnnl_memory_create", shape, self.engine, c_void_p(array.ctypes.data))
            argument.role, argument.memory = role, memory.value
            self.call("dnnl_memory_desc_destroy", shape)
        execute, wait, stream = self.library.dnnl_primitive_execute, self.library.dnnl_stream_wait, self.stream

        def call() -> None:
            status = execute(primitive, stream, len(arguments), arguments) or wait(stream)
            if status:
                raise OneDnnError(f"primitive_execute: status {status}")

        run = Run((name.value or b"").decode(), tuple(roles.values()), call)
        weakref.finalize(run, self._release, primitive, [argument.memory for argument in arguments])
        return run

    def _release(self, primitive: c_void_p, memories: Iterable[int]) -> None:
        self.library.dnnl_primitive_destroy(primitive)
        for memory in memories:
            self.library.dnnl_memory_destroy(c_void_p(memory))


@cache
def _onednn() -> _OneDnn:
    path = _path()
    if path is None:
        raise OneDnnError(f"{' or '.join(DISTRIBUTIONS)} is not installed")
    try:
        return _OneDnn(path)
    except OSError as error:
        raise OneDnnError(f"{LIBRARY} cannot be loaded: {error}") from None


def _path() -> Path | None:
    for name in DISTRIBUTIONS:
        with suppress(PackageNotFoundError):
            for file in distribution(name).files or []:
                if file.name == LIBRARY:
                    return Path(str(file.locate())).resolve()
    return None


def why_not() -> str | None:
    """Why oneDNN cannot be used here, or None."""
    try:
        _onednn()
    except OneDnnError as error:
        return str(error)
    return None


def version() -> str:
    """The library's version, such as 3.2.0."""
    found = _onednn().library.dnnl_version().contents
    return f"{found.major}.{found.minor}.{found.patch}"


def set_num_threads(threads: int) -> None:
    """Let the calling thread's primitives use so many threads. Call it before they are made.

    Raises:
        OneDnnError: The library runs on SYCL, whose threads are as many as processors that this process may use.
    """
    _onednn().set_num_threads(threads)


def forward(x: Array, gamma: Array, beta: Array, y: Array, mean: Array, variance: Array, eps: float = 1e-5) -> Run:
    """y, mean and variance of x, in oneDNN's mode for training.

    Args:
        x, y: Any number of dimensions, the last of them contiguous and normalized; float32, or float16 and
            bfloat16 where the processor has them.
        gamma, beta: (N,) in float32.
        mean, variance: x's shape without the last dimension, in float32.
        eps: Added to the variance.

    Raises:
        OneDnnError: oneDNN is not there, or has no implementation for these arrays.
    """
    dnn = _onednn()
    x_shape, y_shape, rows = map(dnn.description, (x, y, variance))
    roles = {SRC: x, SCALE: gamma, SHIFT: beta, DST: y, MEAN: mean, VARIANCE: variance}
    return dnn.run(dnn.forward(x_shape, y_shape, rows, eps), roles)


def backward(
    dy: Array,
    x: Array,
    mean: Array,
    variance: Array,
    gamma: Array,
    dx: Array,
    dgamma: Array,
    dbeta: Array,
    eps: float = 1e-5,
) -> Run:
    """dx, dgamma and dbeta.

    Args:
        dy, x, dx: As x of forward.
        mean, variance: Of the rows, in float32; rstd is 1 / sqrt(variance + eps).
        gamma, dgamma, dbeta: (N,) in float32.
        eps: Added to the variance.

    Raises:
        OneDnnError: oneDNN is not there, or has no implementation for these arrays.
    """
    dnn = _onednn()
    dy_shape, x_shape, dx_shape, rows = map(dnn.description, (dy, x, dx, mean))
    hint = dnn.forward(x_shape, x_shape, rows, eps)
    description = dnn.created(
        "dnnl_layer_normalization_backward_primitive_desc_create",
        dnn.engine, BACKWARD, dx_shape, dy_shape, x_shape, rows, c_float(eps), USE_SCALE | USE_SHIFT, hint, None,
    )  # fmt: skip
    # The shift is an argument as well, and does not count.
    roles = {
        DIFF_DST: dy, SRC: x, MEAN: mean, VARIANCE: variance, SCALE: gamma, SHIFT: gamma,
        DIFF_SRC: dx, DIFF_SCALE: dgamma, DIFF_SHIFT: dbeta,
    }  # fmt: skip
    return dnn.run(description, roles)
