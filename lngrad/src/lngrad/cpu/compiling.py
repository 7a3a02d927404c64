"""From a function to an object file: typed and lowered by Numba, then optimized and emitted once, as a whole.

Numba by itself optimizes and emits every function that another one calls, and the caller with all of them inside again:
five times over for the innermost. Here the functions inside are only linked.
"""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module

import llvmlite.binding as llvm
from llvmlite import ir
from numba.core import types
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler_lock import global_compiler_lock
from numba.core.registry import cpu_target

from lngrad.cpu import kernels
from lngrad.cpu.jobs import ENTRIES
from lngrad.cpu.kernels.functions import FEATURES, PROCESSOR
from lngrad.cpu.kernels.simd import STORAGES
from lngrad.cpu.kernels.tasks import COPY_FUNCTIONS, TASK_FUNCTIONS, TRIADS
from lngrad.cpu.processors import ARCHITECTURE, HERE

_I64 = ir.IntType(64)
_ENTRY = "lngrad_kernel"  # until it is emitted
_FACTORIES = {**TASK_FUNCTIONS, **TRIADS, **COPY_FUNCTIONS}
_ENGINES = []  # own what LLVM has put into memory
# As Numba writes it in names of functions.
_OURS = "".join(f"{len(part)}{part}" for part in kernels.__name__.split("."))


class _Linked(JITCodeLibrary):
    """A function of ours with all that it calls, neither optimized nor emitted; what others wrote is compiled as ever."""

    _is_ours = False

    def _optimize_functions(self, ll_module):
        ll_module.data_layout = self._codegen._data_layout

    def finalize(self):
        self._is_ours = any(_OURS in function.name for function in self.get_defined_functions())
        self._finalized = self._is_ours
        if not self._is_ours:
            super().finalize()

    def get_pointer_to_function(self, name):
        if not self._finalized:
            self.finalize()
        return 0 if self._is_ours else super().get_pointer_to_function(name)


def _link(library, module, linked):
    """Link a function and what it calls into a module, each once, callers first."""
    if library in linked:
        return
    linked.add(library)
    ours = getattr(library, "_is_ours", False)
    module.link_in(library._final_module if ours else library._get_module_for_linking(), preserve=True)
    for called in dict.fromkeys(library._linking_libraries) if ours else ():
        _link(called, module, linked)


@contextmanager
def _only_linking() -> Iterator[None]:
    """Let Numba's CPU target make _Linked libraries. Who else compiles in this process waits, by Numba's own lock."""
    codegen = cpu_target.target_context.codegen()

    def set_env(name, environment):  # what has not been emitted has no place for its Python objects, and needs none
        if _OURS not in name:
            type(codegen).set_env(codegen, name, environment)

    with global_compiler_lock:
        codegen._library_class, codegen.set_env, thresholds = _Linked, set_env, gc.get_threshold()
        gc.set_threshold(500_000)  # it looks through all that Numba makes again and again: an eighth of the time
        try:
            yield
        finally:
            del codegen._library_class, codegen.set_env
            gc.set_threshold(*thresholds)


def compile_kernel(symbol: str, name: str, dtype: str, accumulator: str) -> bytes:
    """The object file of a function that is called `symbol` in it; otherwise as entries.kernel_address."""
    return emit(lower(name, dtype, accumulator), symbol)


def lower(name: str, dtype: str, accumulator: str):
    """LLVM's module of a kernel, not yet optimized: the same for all processors that `simd.choices` tells nothing apart of.

    Functions inside are hidden, so that LLVM may put each into its only caller: visible, a backward took up to twice as long.
    """
    with _only_linking():
        if name in ENTRIES:
            parameters, returns, module = ENTRIES[name]
            function, number = getattr(import_module(f"{kernels.__name__}.{module}"), name), len(parameters.split())
        else:
            function, returns = _FACTORIES[name](STORAGES[dtype], STORAGES[accumulator]), False
            number = function.py_func.__code__.co_argcount
        arguments = (types.int64,) * number
        function.compile(arguments)
    compiled = function.overloads[arguments]
    whole, module = llvm.parse_assembly(""), llvm.parse_assembly(str(_entry(compiled.fndesc, returns)))
    _link(compiled.library, whole, set())
    # Linked when called, so that their order, and the machine code, is that of first callers.
    for inner in whole.functions:
        if not inner.is_declaration and inner.linkage == llvm.Linkage.external:
            inner.linkage = "linkonce_odr"
    module.link_in(whole)
    for inner in [*module.functions, *module.global_variables]:
        if not inner.is_declaration and inner.name != _ENTRY:
            inner.linkage = "internal"
    return module


def emit(module, symbol: str, processor: str = PROCESSOR, features: str = FEATURES) -> bytes:
    """The object file of a module of `lower`, which is used up, for a processor by LLVM's names."""
    machine = _machine(processor, features)
    module.triple, module.data_layout = machine.triple, str(machine.target_data)  # Numba writes those of this machine
    module.get_function(_ENTRY).name = symbol
    _optimize(module, machine)
    return machine.emit_object(module)


def _entry(inner, returns: bool):
    """The C function around one of Numba's. Kernels raise nothing, so it looks at no status."""
    context = cpu_target.target_context
    module = context.create_module(_ENTRY)
    kind = ir.FunctionType(_I64 if returns else ir.VoidType(), [_I64] * len(inner.argtypes))
    function = ir.Function(module, kind, _ENTRY)
    builder = ir.IRBuilder(function.append_basic_block())
    callee = context.declare_function(module, inner)
    _, result = context.call_conv.call_function(builder, callee, inner.restype, inner.argtypes, function.args)
    if returns:
        builder.ret(context.cast(builder, result, inner.restype, types.int64))
    else:
        builder.ret_void()
    return module


def _machine(processor: str, features: str):
    triple, _, _ = cpu_target.target_context.codegen().magic_tuple()
    if ARCHITECTURE != HERE:
        llvm.initialize_all_targets()
        llvm.initialize_all_asmprinters()
        triple = f"{ARCHITECTURE}-unknown-linux-gnu"
    return llvm.Target.from_triple(triple).create_target_machine(
        cpu=processor, features=features, opt=3, reloc="pic", codemodel="small"
    )


def _optimize(module, machine) -> None:
    if not hasattr(llvm, "create_pass_builder"):  # llvmlite before 0.44
        builder, passes = llvm.create_pass_manager_builder(), llvm.create_module_pass_manager()
        builder.opt_level, builder.loop_vectorize, builder.inlining_threshold = 3, True, 250
        builder.disable_unroll_loops = True
        machine.add_analysis_passes(passes)
        builder.populate(passes)
        passes.run(module)
        return
    options = llvm.create_pipeline_tuning_options(speed_level=3)
    options.loop_vectorization, options.slp_vectorization = True, False  # as Numba has them
    options.loop_unrolling = False  # a group is enough for a turn: unrolled, kernels are twice as long and no faster
    passes = llvm.create_pass_builder(machine, options)
    passes.getModulePassManager().run(module, passes)


def load_by_llvm(symbol: str, code: bytes) -> int:
    """The address of a function of an object file, by LLVM's own loader; 0 if it has no such function.

    Raises:
        RuntimeError: It calls what this process does not have.
    """
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), _machine(PROCESSOR, FEATURES))
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    _ENGINES.append(engine)
    return engine.get_function_address(symbol)
