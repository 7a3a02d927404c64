"""All kernels that a call can ask for, to be compiled ahead of their first use."""

from lngrad.dtypes import ACCUMULATORS
from lngrad.kernels.numba_cpu.entries import pool_address, task_function
from lngrad.kernels.numba_cpu.jobs import POOL
from lngrad.kernels.numba_cpu.tasks import TASK_FUNCTIONS

# How the threads share a job, and the tasks: (name, dtype, accumulator).
KERNELS = [(name, "", "") for name in POOL]
KERNELS += [(name, dtype, accumulator) for dtype, accumulator in ACCUMULATORS.items() for name in TASK_FUNCTIONS]


def compile_kernel(name: str, dtype: str, accumulator: str) -> None:
    """Compile one of KERNELS, or find it on disk."""
    if name in POOL:
        pool_address(name)
    else:
        task_function(name, dtype, accumulator)
