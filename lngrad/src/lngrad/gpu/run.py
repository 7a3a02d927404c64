"""GPU backend: a plan's launches with the tensors of a call, on the current stream of a device.

`kernel[grid](...)` binds, specializes and hashes all arguments each time. What it returns, the compiled kernel, can be launched
with a grid too, as `warmup` is used in Triton's own tutorials; it is kept here by all that the specialization depends on, and
takes addresses for tensors. `pack` has a plan's launches as numbers, for compiled code that launches without Python.
"""

from __future__ import annotations

import ctypes
import re
import warnings
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from lngrad.core.plan import Packed, PackedKind, Plan
from lngrad.gpu import kernels, policy
from lngrad.support.bounded_cache import BoundedCache
from lngrad.support.dtypes import torch_dtype
from lngrad.typing import Tensor


@dataclass(frozen=True)
class Launch:
    """A kernel, and all that is decided about it.

    Attributes:
        kernel: From kernels.py, whose whole numbers are annotated or not specialized.
        programs: How many; the grid has one axis.
        warps: 32 threads each, of a program.
        constants: Its compile-time arguments, in its order.
        pick: Its run-time arguments out of all values of a call.
        signature: The number of all that it is compiled for but alignment and device; see signature().
    """

    kernel: Any
    programs: int
    warps: int
    constants: dict[str, Any]
    pick: Callable[[Sequence[Any]], tuple[Any, ...]]
    signature: int


@dataclass(frozen=True)
class Steps:
    """Decisions about a call.

    The values of a call are its arrays, inputs and then outputs; the pieces of the workspace; the operator's numbers; sizes.

    Attributes:
        launches: In order.
        pieces: Of the workspace: how many elements of the accumulator's dtype, and how many bytes, whole lines of 256.
        sizes: M, N, strides of rows and counts; and None for each array that the call does not have.
        copied: Names of arrays that are made contiguous first, or written through a contiguous one.
        apart: The same call with dx written apart, for a dx in the place of dy or x that must be; None where it need not.
    """

    launches: tuple[Launch, ...]
    pieces: tuple[tuple[int, int], ...]
    sizes: tuple[int | None, ...]
    copied: frozenset[str]
    apart: Steps | None = None


def run(plan: Plan, inputs: tuple[Any, ...], outputs: tuple[Any, ...], workspace: Tensor) -> None:
    """Compute every wanted output."""
    operator, steps = plan.problem.operator, plan.steps
    split = len(operator.inputs)
    arrays, numbers = [*inputs[:split], *outputs], inputs[split:]
    if steps.apart is not None:
        named = dict(zip((*operator.inputs, *operator.outputs), arrays, strict=True))
        if named["dx"].data_ptr() in (named["dy"].data_ptr(), named["x"].data_ptr()):
            steps = steps.apart
    with on_device(inputs[0]):
        if steps.copied:
            arrays = _contiguous(plan, steps, arrays)
        _launch_all(plan, steps, arrays, numbers, workspace)
        if steps.copied:
            for target, output in zip(arrays[split:], outputs, strict=True):
                if target is not output:
                    output.detach().copy_(target)


def _contiguous(plan: Plan, steps: Steps, arrays: list[Any]) -> list[Any]:
    """Copies of inputs, and memory in the place of outputs, whose strides kernels do not take."""
    operator = plan.problem.operator
    result = []
    for at, (name, array) in enumerate(zip((*operator.inputs, *operator.outputs), arrays, strict=True)):
        if array is None or name not in steps.copied:
            result.append(array)
        elif at < len(operator.inputs):
            result.append(array.detach().contiguous())
        else:
            result.append(torch.empty_like(array, memory_format=torch.contiguous_format))
    return result


def _launch_all(plan: Plan, steps: Steps, arrays: list[Any], numbers: tuple[float, ...], workspace: Any) -> None:
    tail = (*numbers, *steps.sizes)
    if kernels.INTERPRETED:
        values = (*(array if array is None else array.detach() for array in arrays), *_pieces(plan, workspace), *tail)
        for launch in steps.launches:
            launch.kernel[(launch.programs,)](*launch.pick(values), **launch.constants)
        return
    addresses = [None if array is None else array.data_ptr() for array in arrays]
    place = workspace.data_ptr()
    for _, size in steps.pieces:
        addresses.append(place)
        place += size
    # Triton compiles for pointers on 16 bytes: in the place of all of these, None.
    aligned = tuple([address is None or address % 16 == 0 for address in addresses])
    where = torch.cuda.current_device(), None if all(aligned) else aligned
    for launch in steps.launches:
        compiled = _compiled.get((launch.signature, *where))
        if compiled is None:
            _bind(launch, where, (*arrays, *_pieces(plan, workspace), *tail))
        else:
            compiled[(launch.programs, 1, 1)](*launch.pick((*addresses, *tail)), *launch.constants.values())


def _pieces(plan: Plan, workspace: Any) -> list[Any]:
    """The pieces of the workspace as numbers; a caller's own may be longer, or NumPy's on the CPU."""
    if isinstance(workspace, np.ndarray):
        workspace = torch.from_numpy(workspace)
    dtype = getattr(torch, plan.problem.accumulator)
    pieces, place = [], 0
    for count, size in plan.steps.pieces:
        pieces.append(workspace[place : place + size].view(dtype)[:count])
        place += size
    return pieces


def on_device(tensor: Any) -> AbstractContextManager[Any]:
    """Triton launches on the current device, which need not be the tensor's."""
    if not tensor.is_cuda or tensor.device.index == torch.cuda.current_device():
        return nullcontext()
    guard: AbstractContextManager[Any] = torch.cuda.device(tensor.device)
    return guard


# --- What was compiled ----------------------------------------------------------------------------------------------

_MOST = 4096  # compiled kernels that are remembered
_compiled: BoundedCache[Hashable, Any] = BoundedCache(_MOST)
_signatures: dict[Hashable, int] = {}


def signature(kernel: Any, warps: int, dtypes: tuple[str | None, ...], constants: tuple[Any, ...]) -> int:
    """A number for what a kernel is compiled for, which is faster to look up than all of it.

    Args:
        kernel: From kernels.py.
        warps: Of a program.
        dtypes: Of its run-time arguments; None for one that is absent, or a number.
        constants: Its compile-time arguments.
    """
    return _signatures.setdefault((kernel, warps, dtypes, constants), len(_signatures))


def _bind(launch: Launch, where: tuple[Hashable, ...], values: tuple[Any, ...]) -> None:
    """Launch a kernel that is compiled if need be, and remember it."""
    # Fusion is said here, since Triton's default for products and sums is about to change, and with it all bits.
    compiled = launch.kernel[(launch.programs,)](
        *launch.pick(values), **launch.constants, num_warps=launch.warps, enable_fp_fusion=not policy.ORDERED
    )
    # On ROCm a kernel also depends on whether a tensor's storage is below 2 GB; there Triton looks it up itself.
    if torch.version.hip is None:
        _compiled.keep((launch.signature, *where), compiled)


# --- Launches for compiled code -------------------------------------------------------------------------------------

# A kernel's parameters behind its arguments: addresses of scratch memory, none of ours has any (Triton 3.6 to 3.9).
_SCRATCH = 2
_PARAMETER = re.compile(r"\.param\s+(?:\.align\s+\d+\s+)?\.[a-z](\d+)\s")
_packed: dict[int, Any] = {}  # compiled kernels whose functions compiled code launches: one that is let go is unloaded


def pack(plan: Plan) -> Packed | None:
    """The plan's launches as numbers, for a call whose arrays are contiguous and lie on 16 bytes. Words: see Steps, then a 0.

    Kernels are compiled and loaded, and this thread has the device's context from now on.

    Returns:
        None on ROCm; and with a warning where a kernel is not launched as that of a Triton that is known.
    """
    if torch.version.hip is not None or plan.steps is None:
        return None
    steps, operator, problem = plan.steps, plan.problem.operator, plan.problem
    facts = (*problem.inputs.values(), *problem.outputs())
    arrays = [None if fact is None else torch_dtype(fact.dtype) for fact in facts]
    pieces = [torch_dtype(problem.accumulator)] * len(steps.pieces)
    values = (*arrays, *pieces, *[1.0] * len(operator.numbers), *steps.sizes)
    first_number = len(arrays) + len(pieces)
    launches: list[int] = []
    with _context_of(problem.device):
        where = torch.cuda.current_device(), None
        for launch in steps.launches:
            compiled = _compiled.get((launch.signature, *where)) or _compile(launch, where, values)
            words = [word for word in launch.pick(range(len(values))) if values[word] is not None]
            if reason := _foreign(compiled, len(words)):
                warnings.warn(f"lngrad: kernels are launched by Python, which takes longer: {reason}", stacklevel=2)
                return None
            _packed[compiled.function] = compiled
            words += [len(values)] * _SCRATCH
            shared = compiled.metadata.shared
            launches += compiled.function, launch.programs, 32 * launch.warps, shared, len(words), *words
    offsets = np.cumsum([0, *(size for _, size in steps.pieces)]).tolist()
    return Packed(
        PackedKind.LAUNCHES,
        workspace_bytes=offsets[-1],
        image=[*[0] * first_number, *[0] * len(operator.numbers), *(size or 0 for size in steps.sizes), 0],
        places=[*range(len(arrays)), *range(first_number, first_number + len(operator.numbers))],
        regions=[number for at in range(len(pieces)) for number in (len(arrays) + at, offsets[at])],
        launches=launches,
    )


def _compile(launch: Launch, where: tuple[Hashable, ...], values: tuple[Any, ...]) -> Any:
    """The kernel for pointers on 16 bytes, loaded; dtypes stand for tensors."""
    compiled = launch.kernel.warmup(
        *launch.pick(values),
        grid=(launch.programs,),
        **launch.constants,
        num_warps=launch.warps,
        enable_fp_fusion=not policy.ORDERED,
    )
    compiled[(launch.programs, 1, 1)]  # loads it
    return _compiled.keep((launch.signature, *where), compiled)


def _foreign(compiled: Any, arguments: int) -> str | None:
    """Why a kernel can't be launched with its arguments and scratch memory that there is not, or None."""
    facts, entry = compiled.metadata, re.search(r"\.entry[^(]*\(([^)]*)\)", compiled.asm.get("ptx", ""))
    bits = [int(size) for size in _PARAMETER.findall(entry[1])] if entry else []
    signature = [type_ for type_ in compiled.src.signature.values() if type_ != "constexpr"]
    expected = [32 if type_ == "i32" else 64 for type_ in signature] + [64] * _SCRATCH
    if len(signature) != arguments or bits != expected:
        return f"{compiled.name}: expected parameters of {expected} bits, got {bits}"
    if not isinstance(compiled.function, int):
        return f"{compiled.name}: expected the handle of a function, got {compiled.function!r}"
    plain = {"num_ctas": 1, "launch_cooperative_grid": False, "launch_pdl": False}
    plain |= {"global_scratch_size": 0, "profile_scratch_size": 0}
    other = {name: getattr(facts, name, None) for name, value in plain.items() if getattr(facts, name, None) != value}
    return f"{compiled.name}: expected {plain}, got {other}" if other else None


@contextmanager
def _context_of(device: str) -> Iterator[None]:
    """On the device, with its context current in this thread: a launch of the driver's own does not see to that."""
    with torch.cuda.device(device):
        driver, context, ordinal = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p(), ctypes.c_int()
        driver.cuCtxGetCurrent(ctypes.byref(context))
        if not context:
            driver.cuDeviceGet(ctypes.byref(ordinal), torch.cuda.current_device())
            driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), ordinal)
            driver.cuCtxSetCurrent(context)
        yield
