"""What makes a compiled function of a Python one: the decorators of all kernels, and the steps that Numba takes.

A kernel (`plain`, `inlined`) is Python that Numba compiles. A function of vectors, addresses or atomic words (`lowered`) builds
its instructions itself.

Numba's own list has steps for closures, Python objects, arrays and loops to be run in parallel, none of which kernels have.
Each looks through the whole function; without them Numba takes a tenth less time.
"""

import inspect
from functools import wraps

from llvmlite import binding as llvm
from numba import njit
from numba.core import types
from numba.core.codegen import get_host_cpu_features
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
from numba.extending import intrinsic, overload

from lngrad.cpu.cache import SETTINGS
from lngrad.cpu.processors import CHOSEN

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


# What kernels are compiled for: this processor, or what the environment says. Numba's own settings may have been read at
# another time, or from a file, and a kept kernel must be what its key says.
if CHOSEN is None:
    PROCESSOR = SETTINGS.get("NUMBA_CPU_NAME") or llvm.get_host_cpu_name()
    FEATURES = SETTINGS.get("NUMBA_CPU_FEATURES", "" if PROCESSOR == "generic" else get_host_cpu_features())
else:
    PROCESSOR, FEATURES = CHOSEN.name, CHOSEN.features

_OPTIONS = {"error_model": "numpy", "no_cpython_wrapper": True, "no_cfunc_wrapper": True, "pipeline_class": _Short}

# A choice of a task, which is made when it is compiled: what NO stands for has no code.
YES, NO = 1, None

plain = njit(**_OPTIONS)
inlined = njit(forceinline=True, **_OPTIONS)


def unless_none(position):
    """A decorator: the function is `inlined`, and returns None where the argument at this position is None.

    The choice is made when a kernel is compiled, so that what is absent has no code.
    """

    def decorate(function):
        compiled = inlined(function)

        @wraps(function)
        def stub(*arguments):
            raise NotImplementedError("compiled code only")

        @overload(stub, jit_options={**_OPTIONS, "forceinline": True}, strict=False)
        def _chosen(*arguments):
            if arguments[position] == types.none:
                return lambda *arguments: None
            return lambda *arguments: compiled(*arguments)

        return stub

    return decorate


_STORAGES = ("storage", "acc", "source", "target", "outer", "inner", "kind")  # arguments that are meant by their type


def lowered(returns):
    """A decorator: a compiled function from one that builds its code, (builder, arguments) → value or None.

    It gets an argument with a name of _STORAGES as its Numba type, all others as LLVM values, integers as int64.

    Args:
        returns: The type of the result, or a function of the arguments' types that returns it.
    """

    def make(build):
        names = list(inspect.signature(build).parameters)[1:]

        def typing(typingctx, *kinds):
            result = returns if isinstance(returns, types.Type) else returns(*kinds)
            by_name = list(zip(names, kinds, strict=True))
            whole = types.Integer, types.Optional  # whether an address is None is decided when the kernel is compiled
            kinds = [types.int64 if n not in _STORAGES and isinstance(k, whole) else k for n, k in by_name]

            def codegen(context, builder, signature, values):
                built = build(
                    builder, *(v if n not in _STORAGES else k for (n, k), v in zip(by_name, values, strict=True))
                )
                return context.get_dummy_value() if built is None else built

            return result(*kinds), codegen

        parameters = [
            inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD) for name in ("typingctx", *names)
        ]
        typing.__signature__ = inspect.Signature(parameters)
        typing.__name__, typing.__doc__ = build.__name__, build.__doc__
        return intrinsic(typing)

    return make
