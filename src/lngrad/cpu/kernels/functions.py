"""What makes a compiled function of a Python one: the decorators of all kernels, and the steps that Numba takes.

Numba's own list has steps for closures, Python objects, arrays and loops to be run in parallel, none of which kernels have.
Each looks through the whole function; without them Numba takes a tenth less time.
"""

from numba import njit
from numba.core.compiler import CompilerBase
from numba.core.compiler_machinery import PassManager
from numba.core.typed_passes import (
    IRLegalization,
    NativeLowering,
    NoPythonBackend,
    NopythonTypeInference,
    PreLowerStripPhis,
)
from numba.core.untyped_passes import (
    DeadBranchPrune,
    FixupArgs,
    GenericRewrites,
    IRProcessing,
    ReconstructSSA,
    RewriteSemanticConstants,
    TranslateByteCode,
)

_STEPS = (
    (TranslateByteCode, "read the bytecode"),
    (FixupArgs, "arguments"),
    (IRProcessing, "variables"),
    (RewriteSemanticConstants, "constants"),
    (DeadBranchPrune, "branches that depend on constants and None"),
    (GenericRewrites, "elements of tuples"),
    (ReconstructSSA, "one variable a value"),
    (DeadBranchPrune, "branches that depend on constants and None"),
    (NopythonTypeInference, "types"),
    (PreLowerStripPhis, "variables again"),
    (IRLegalization, "lifetimes"),
    (NativeLowering, "LLVM's instructions"),
    (NoPythonBackend, "the result"),
)


class _Short(CompilerBase):
    def define_pipelines(self):
        steps = PassManager("kernel")
        for step, description in _STEPS:
            steps.add_pass(step, description)
        steps.finalize()
        return [steps]


_OPTIONS = {"error_model": "numpy", "no_cpython_wrapper": True, "no_cfunc_wrapper": True, "pipeline_class": _Short}

plain = njit(**_OPTIONS)
inlined = njit(forceinline=True, **_OPTIONS)
