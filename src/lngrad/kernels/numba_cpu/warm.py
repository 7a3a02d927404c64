"""All kernels that a call can ask for, to be compiled ahead of their first use."""

from numba.core import types

from lngrad.dtypes import ACCUMULATORS
from lngrad.kernels.numba_cpu import pool
from lngrad.kernels.numba_cpu.tasks import COPY_FUNCTIONS, TASK_FUNCTIONS, copy_function, task_function

# How the threads share a job, the tasks: (name, dtype, accumulator), and copies: (name, their dtype, the kernel's).
_POOL = {
    "run_alone": (types.int64,),
    "begin": (types.int64,),
    "work": (types.int64,) * 3,
    "close": (types.int64,),
    "offer": (types.int64, types.int64, types.int64, types.boolean),
    "settle": (types.int64,) * 3,
    "serve": (types.int64,) * 2,
}
KERNELS = [(name, "", "") for name in _POOL]
KERNELS += [(name, dtype, accumulator) for dtype, accumulator in ACCUMULATORS.items() for name in TASK_FUNCTIONS]
KERNELS += [
    (name, dtype, to) for dtype in ACCUMULATORS for to in dict.fromkeys((dtype, "float64")) for name in COPY_FUNCTIONS
]


def compile_kernel(name: str, dtype: str, accumulator: str) -> None:
    """Compile one of KERNELS, or find it on disk."""
    if name in _POOL:
        getattr(pool, name).compile(_POOL[name])
    elif name in COPY_FUNCTIONS:
        copy_function(name, dtype, accumulator)
    else:
        task_function(name, dtype, accumulator)
