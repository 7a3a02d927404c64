"""All kernels that a call can ask for, to be compiled ahead of their first use."""

from lngrad.core.dtypes import ACCUMULATORS
from lngrad.cpu.entries import copy_function, pool_address, task_function
from lngrad.cpu.jobs import POOL
from lngrad.cpu.kernels.tasks import COPY_FUNCTIONS, TASK_FUNCTIONS

# How the threads share a job, the tasks: (name, dtype, accumulator), and copies: (name, their dtype, the kernel's).
KERNELS = [(name, "", "") for name in POOL]
KERNELS += [(name, dtype, accumulator) for dtype, accumulator in ACCUMULATORS.items() for name in TASK_FUNCTIONS]
KERNELS += [
    (name, dtype, to) for dtype in ACCUMULATORS for to in dict.fromkeys((dtype, "float64")) for name in COPY_FUNCTIONS
]


def compile_kernel(name: str, dtype: str, accumulator: str) -> None:
    """Compile one of KERNELS, or find it on disk."""
    if name in POOL:
        pool_address(name)
    elif name in COPY_FUNCTIONS:
        copy_function(name, dtype, accumulator)
    else:
        task_function(name, dtype, accumulator)
