"""Calls that come again: checked, planned and bound once, then found by a cheap key and run.

A `BoundCall` is all that is left to do of a call whose facts were seen before: look at addresses, make results, run the plan.
NumPy's and torch's functions, torch's operators and XLA's custom calls keep theirs in one table, each by a key of its own that
is cheaper than a `Problem`: whatever it leaves out must follow from what it has. An aclnn decision keeps its own.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from numpy import ndarray

from lngrad.core import problem as problems
from lngrad.core.arrays import Output, addresses_of_tensors, empty, have_history, key_of_tensor, maker, scratch, spanned
from lngrad.core.plan import BACKENDS, Plan, RunOnAddresses
from lngrad.core.problem import Operator, check_elements, check_memory
from lngrad.core.threads import chosen, torch_parallel_for, use_parallel_for
from lngrad.errors import WorkspaceError
from lngrad.support.addresses import addresses_of
from lngrad.support.bounded_cache import BoundedCache, cached_property
from lngrad.support.dtypes import bytes_of

SMALL_ELEMENTS = 1 << 15  # below, a call is one core's: nobody's threads help
_MAX_CALLS = 4096
_MAX_PLACES = 64  # of a call
_SHAPES = (int, tuple, type(None))  # exactly: True and 64.0 are equal to numbers that they do not stand for
_NUMBERS = (int, float)  # exactly, too: a Decimal is equal to a float, and refused


class BoundCall:
    """A call that was checked and decided, ready to run any number of times, in any threads.

    Args:
        plan: How it is computed.
        maker_of: What makes a function that makes a result of a shape and dtype; None: arrays as the plan's inputs are.

    Attributes:
        plan: As given.
        run_arrays: The plan's run: (inputs and numbers, outputs, workspace).
        places: Addresses of arguments and given results between which nothing is shared.
    """

    def __init__(self, plan: Plan, maker_of: Callable[[Output], Callable[[], Any] | None] | None = None):
        problem = plan.problem
        self.plan, self.run_arrays = plan, partial(plan.run, plan)
        self.places: BoundedCache[Hashable, bool] = BoundedCache(_MAX_PLACES)
        if maker_of is None:
            maker_of = (
                maker if problem.kind == "numpy" else lambda output: partial(empty, "torch", output, problem.device)
            )
        self._makers = tuple([None if output is None else maker_of(output) for output in problem.outputs()])
        specs = (*problem.inputs.values(), *problem.out.values())
        # Of each argument and given result, bytes from its first element to behind its last; 0 if it is None.
        self._spans = tuple(
            0 if spec is None else spanned(spec.shape, spec.strides, bytes_of(spec.dtype)) for spec in specs
        )
        self._wants_all = None not in self._makers
        self._absent = [*problem.inputs.values()].count(None)
        self._default_numbers = problem.numbers((None,) * len(problem.operator.numbers))
        self._of_numpy = problem.kind == "numpy"

    @cached_property
    def on_addresses(self) -> RunOnAddresses | None:
        """The plan's run on addresses; torch's threads, which torch keeps awake between our calls, help with tensors.

        None where the plan takes arrays, as on a GPU.
        """
        problem, run = self.plan.problem, self.plan.on_addresses
        if run is None or problem.kind == "numpy" or problem.M * problem.N < SMALL_ELEMENTS:
            return run

        def run_shared(*addresses: float) -> None:
            with use_parallel_for(torch_parallel_for()):
                run(*addresses)

        return run_shared

    def run(
        self, arrays: tuple[Any, ...], numbers: tuple[float | None, ...] = (), out: Sequence[Any] | None = None,
        workspace: Any = None,
    ) -> list[Any]:  # fmt: skip
        """The results, None for one that is not wanted.

        Args:
            arrays: With the facts that the plan was made of.
            numbers: The operator's; an eps of None is torch's.
            out: Arrays for results, with the facts that the plan was made of; None in it is allocated if it is wanted.
            workspace: At least plan.workspace_bytes of uint8, contiguous; None: it is allocated, or kept from an earlier call.

        Raises:
            ShapeError: An array's memory is not there.
            OverlapError: An output shares memory with an input or another output, or can't be written.
            WorkspaceError: The workspace is too small.
            MemoryError: An output or the workspace can't be allocated. Nothing was written.
        """
        inputs = addresses_of(arrays) if self._of_numpy else addresses_of_tensors(arrays, self._spans)
        if inputs is None or inputs.count(0) != self._absent:
            check_elements(self.plan.problem, arrays, out)
            inputs = addresses_of(arrays)  # one has no elements, or is NumPy's beside torch's
        if out is None:
            results = [make and make() for make in self._makers]
            if self._of_numpy:
                outputs = addresses_of(results)
            else:
                outputs = [0 if result is None else result.data_ptr() for result in results]  # type: ignore[union-attr]
        else:
            results, outputs = self._with_given(inputs, arrays, out)
        if None in numbers:
            numbers = self._default_numbers
        if workspace is None and self.on_addresses is not None:
            self.on_addresses(*inputs, *outputs, *numbers)
            return results
        nbytes = self.plan.workspace_bytes
        if workspace is None:
            workspace = scratch(nbytes, self.plan.problem.device)
        elif workspace.nbytes < nbytes:
            raise WorkspaceError(f"workspace: expected at least {nbytes} bytes, got {workspace.nbytes}")
        self.run_arrays((*arrays, *numbers), tuple(results), workspace)
        return results

    def _with_given(
        self, inputs: list[int], arrays: tuple[Any, ...], out: Sequence[Any]
    ) -> tuple[list[Any], list[int]]:
        """The results, and their addresses. check_memory lets those pass that are given, with these arrays."""
        outputs = addresses_of(out) if self._of_numpy else addresses_of_tensors(out, self._spans[len(inputs) :])
        if outputs is None:
            check_elements(self.plan.problem, arrays, out)
            outputs = addresses_of(out)
        places = (*inputs, *outputs)
        if places not in self.places or (self._of_numpy and not all(map(_is_writable, out))):
            check_memory(self.plan.problem, arrays, out)
            self.places.keep(places, True)
        if self._wants_all and 0 not in outputs:
            return [*out], outputs
        results = [make and (make() if array is None else array) for make, array in zip(self._makers, out, strict=True)]
        return results, addresses_of(results)


def _is_writable(array: Any) -> bool:
    return array is None or (type(array) is ndarray and array.flags.writeable)


kept: BoundedCache[Hashable, BoundCall] = BoundedCache(_MAX_CALLS)


def forget() -> None:
    """Let every call be a first one."""
    kept.clear()
    problems.forget()


def bound(plan: Plan) -> BoundCall:
    """A plan's call on arrays of its problem's kind."""
    return kept.get(plan) or kept.keep(plan, BoundCall(plan))


def keep(key: Hashable | None, plan: Plan) -> BoundCall:
    """The call of a plan, found by a key from now on, if the plan follows from that: a simulated device is not in it."""
    call = bound(plan)
    if key is not None and not BACKENDS[plan.backend].contextual:
        with suppress(TypeError):  # as in find
            kept.keep(key, call)
    return call


def find(key: Hashable | None) -> BoundCall | None:
    """The call with this key."""
    try:
        return kept.get(key)
    except TypeError:  # what can't be hashed was given for a shape; the checks say so
        return None


class Switches(NamedTuple):
    """The switches of a call of a public function. tuple.__new__ makes it without a call of Python's."""

    offset: float
    alpha: float
    completes_mean: bool
    norm_before_gate: bool


def key_of_call(
    operator: Operator, arrays: tuple[Any, ...], out: Any, normalized_shape: int | Sequence[int] | None,
    mask: Sequence[bool], backend: str | None, switches: Switches,
) -> Hashable | None:  # fmt: skip
    """The key of a call of a public function; None if its arrays are not all plain ones of NumPy, or all of torch."""
    if type(normalized_shape) not in _SHAPES or type(mask) is not tuple:
        return None
    if type(normalized_shape) is tuple and set(map(type, normalized_shape)) != {int}:
        return None
    if type(switches.offset) not in _NUMBERS or type(switches.alpha) not in _NUMBERS:
        return None
    options = operator, normalized_shape, mask, backend, *switches, chosen.value
    key: list[Hashable] = [*options]
    if out is not None:
        if not isinstance(out, tuple) or len(out) != len(operator.outputs):
            return None
        arrays = (*arrays, *out)
    for array in arrays:
        if type(array) is ndarray:
            key += (*array.shape, *array.strides, array.dtype)  # flat, it is found sooner; a dtype ends each array's
        elif array is None:
            key.append(None)
        else:
            return _key_of_tensors(options, arrays)
    return tuple(key)


def _key_of_tensors(options: tuple[Hashable, ...], arrays: tuple[Any, ...]) -> Hashable | None:
    torch = sys.modules.get("torch")
    if torch is None or any(array is not None and type(array) is not torch.Tensor for array in arrays):
        return None
    if have_history(arrays):
        return None
    key: list[Hashable] = [*options, torch.get_num_threads()]
    for array in arrays:
        key.append(None if array is None else key_of_tensor(array))
    return tuple(key)
