"""All kernels that a call can ask for, to be compiled ahead of their first use."""

from numba.core import types

from lngrad.dtypes import ACCUMULATORS
from lngrad.kernels.numba_cpu import pool
from lngrad.kernels.numba_cpu.tasks import TASK_FUNCTIONS, task_function

# How the threads share a job, and the tasks: (name, dtype, accumulator).
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


def compile_kernel(name: str, dtype: str, accumulator: str) -> None:
    """Compile one of KERNELS, or find it on disk."""
    if name in _POOL:
        getattr(pool, name).compile(_POOL[name])
    else:
        task_function(name, dtype, accumulator)
