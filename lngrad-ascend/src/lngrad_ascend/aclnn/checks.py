"""Rules that the first phases of several operators share, to be put into a row in CANN's order, and the row of an operator
that has them in the usual one.

A check is a function of a call's facts alone. It raises `StatusError` with CANN's code, and a text.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

from lngrad.core.problem import LAYER_NORM, RMS_NORM, ROLES, Operator, Role
from lngrad.support.dtypes import contiguous_strides
from lngrad.typing import Shape
from lngrad_ascend.acl.enums import aclDataType, aclnnStatus
from lngrad_ascend.acl.interface import StatusError, invalid_argument, null_argument
from lngrad_ascend.acl.tensor import NUMPY_DTYPES, TensorFacts
from lngrad_ascend.aclnn.operator import FLOAT, FLOATS, AclnnCall, AclnnOperator, Copy, Unusable
from lngrad_ascend.soc import Target

Check: TypeAlias = Callable[[AclnnCall], None]
Wrong: TypeAlias = "str | bool"  # what a rule expected and got; False: nothing is wrong
MAX_DIMS = 8
INFERENCE_ARCH, TRAINING_ARCH = 2002, 1001  # Atlas inference (310P) and Atlas training (910)
REGISTER_ARCH = 3510  # Ascend 950
NOT_ON_950 = (TRAINING_ARCH, INFERENCE_ARCH, REGISTER_ARCH)
INFERENCE_MIN_BYTES = 32


def strictly(*checks: Check) -> Check:
    """Checks that hold by the documents' rules alone."""
    return when(lambda call: call.strict, *checks)


def when(condition: Callable[[AclnnCall], bool], *checks: Check) -> Check:
    """Checks that hold under a condition."""

    def check(call: AclnnCall) -> None:
        if condition(call):
            for check in checks:
                check(call)

    return check


def tiling(*checks: Check) -> Check:
    """Checks that CANN's tiling does, behind the ones of the first phase itself: what they refuse is 561002."""

    def check(call: AclnnCall) -> None:
        try:
            for check in checks:
                check(call)
        except StatusError as error:
            raise StatusError(aclnnStatus.ACLNN_ERR_INNER_TILING_ERROR, error.text) from None

    return check


def of_tensors(rule: Callable[[AclnnCall, str, TensorFacts], Wrong]) -> Callable[..., Check]:
    """Make a rule for one tensor a check of those of some names that are wanted."""

    def check_of(*names: str) -> Check:
        def check(call: AclnnCall) -> None:
            for name, facts in call.wanted(*names):
                if text := rule(call, name, facts):
                    raise invalid_argument(f"{name}: expected {text}")

        return check

    return check_of


def dtypes_of_product(target: Target) -> tuple[aclDataType, ...]:
    """The floating-point dtypes that a product's vector unit knows."""
    return FLOATS if target.soc.bf16 else FLOATS[:2]


def required(*names: str) -> Check:
    """No null pointers."""

    def check(call: AclnnCall) -> None:
        for name in names:
            if call.values[name] is None:
                raise null_argument(f"{name}: expected an argument, got a null pointer")

    return check


def product_without(missing: Callable[[Target], bool]) -> Check:
    """The pages list the products. The published code does not look."""

    def check(call: AclnnCall) -> None:
        if missing(call.target):
            soc = call.target.soc
            raise StatusError(
                aclnnStatus.ACLNN_ERR_INNER_FIND_KERNEL_ERROR,
                f"{call.operator.name}: expected a product that has it, got {soc.name} ({soc.product})",
            )

    return check


def usable(call: AclnnCall) -> None:
    """No arguments of another type, and no destroyed ones."""
    for argument in call.values.values():
        if isinstance(argument, Unusable):
            raise invalid_argument(argument.text)


def mask_fits(call: AclnnCall) -> None:
    """The mask has a boolean for each output, and what it asks for is not null."""
    name, outputs = str(call.operator.mask), call.operator.outputs
    if len(call.mask) != len(outputs):
        raise invalid_argument(f"{name}: expected {len(outputs)} booleans, got {len(call.mask)}")
    for position, output in enumerate(outputs):
        if call.mask[position] and call.values[output] is None:
            raise null_argument(f"{output}: expected a tensor, as {name}[{position}] is true, got a null pointer")


def known_dtype(*names: str) -> Check:
    """Each tensor that is given, wanted or not, has a dtype that the function knows on this product."""

    def check(call: AclnnCall) -> None:
        dtypes = call.operator.dtypes(call.target)
        for name, facts in call.present(*names):
            if facts.dtype not in dtypes:
                allowed = ", ".join(dtype.name for dtype in dtypes)
                raise invalid_argument(
                    f"{name}: expected one of {allowed} on {call.target.soc.name}, got {facts.dtype.name}"
                )

    return check


@of_tensors
def parameter_dtype(call: AclnnCall, name: str, facts: TensorFacts) -> Wrong:
    """Weights and biases are in FLOAT, or in the dtype of x."""
    x, dtype = call.operator.x, call.x.dtype
    return facts.dtype not in (FLOAT, dtype) and f"ACL_FLOAT or the dtype of {x}, {dtype.name}, got {facts.dtype.name}"


def same_dtype(name: str, other: str) -> Check:
    """Two tensors, if both are given, have the same dtype."""

    @of_tensors
    def rule(call: AclnnCall, name: str, facts: TensorFacts) -> Wrong:
        wanted = call.values[other]
        differs = wanted is not None and facts.dtype != wanted.dtype
        return differs and f"the dtype of {other}, {wanted.dtype.name}, got {facts.dtype.name}"

    return rule(name)


def dtype_row(names: tuple[str, ...], table: Callable[[Target], tuple[tuple[aclDataType, ...], ...]]) -> Check:
    """The dtypes of these tensors are a row of a product's table; one that is not given fits every row."""

    def check(call: AclnnCall) -> None:
        rows = table(call.target)
        before: list[str] = []
        for place, name in enumerate(names):
            for _, facts in call.present(name):
                fitting = tuple(row for row in rows if row[place] == facts.dtype)
                if not fitting:
                    allowed = " or ".join(dict.fromkeys(row[place].name for row in rows))
                    beside = f" beside {', '.join(before)}" if before else ""
                    raise invalid_argument(f"{name}: expected {allowed}{beside}, got {facts.dtype.name}")
                rows = fitting
                before.append(f"{name} in {facts.dtype.name}")

    return check


def same_shape(name: str, other: str) -> Check:
    """A tensor that is wanted has the shape of another one."""

    @of_tensors
    def rule(call: AclnnCall, name: str, facts: TensorFacts) -> Wrong:
        wanted = call.shape(other)
        return facts.shape != wanted and f"the shape of {other}, {wanted}, got {facts.shape}"

    return rule(name)


@of_tensors
def most_dims(call: AclnnCall, name: str, facts: TensorFacts) -> Wrong:
    """At most 8 dimensions, of tensors that are wanted and of arrays that are a shape."""
    shape = call.shape(name)
    return len(shape) > MAX_DIMS and f"at most {MAX_DIMS} dimensions, got {len(shape)}: {shape}"


@of_tensors
def dims(call: AclnnCall, name: str, facts: TensorFacts) -> Wrong:
    """1 to 8 dimensions."""
    count = len(facts.shape)
    return not 1 <= count <= MAX_DIMS and f"1 to {MAX_DIMS} dimensions, got {count}: {facts.shape}"


def normalized_rank(call: AclnnCall) -> None:
    """The normalized shape has at least one dimension, and x at least as many."""
    name, norm, shape = call.operator.normalized, call.norm, call.x.shape
    if len(norm) < 1:
        raise invalid_argument(f"{name}: expected at least 1 dimension, got 0")
    if len(shape) < len(norm):
        raise invalid_argument(
            f"{call.operator.x}: expected at least the {len(norm)} dimensions of {name} {norm}, "
            f"got {len(shape)}: {shape}"
        )


@of_tensors
def parameter_shape(call: AclnnCall, name: str, facts: TensorFacts) -> Wrong:
    """Weights and biases have the normalized shape."""
    return facts.shape != call.norm and f"the shape of {call.operator.normalized}, {call.norm}, got {facts.shape}"


@of_tensors
def one_per_row(call: AclnnCall, name: str, facts: TensorFacts) -> Wrong:
    """Statistics have one element per row, in any shape."""
    lead, count = call.lead, math.prod(facts.shape)
    return count != math.prod(lead) and (
        f"{math.prod(lead)} elements, the product of {call.operator.x}'s first {len(lead)} dimensions {lead}, "
        f"got {count}: {facts.shape}"
    )


def shape_among(shapes: Callable[[AclnnCall], tuple[Shape, ...]]) -> Callable[..., Check]:
    """Tensors have one of the shapes that a call allows."""

    @of_tensors
    def rule(call: AclnnCall, name: str, facts: TensorFacts) -> Wrong:
        allowed = shapes(call)
        return facts.shape not in allowed and f"the shape {' or '.join(map(str, allowed))}, got {facts.shape}"

    return rule


@of_tensors
def rows_shape(call: AclnnCall, name: str, facts: TensorFacts) -> Wrong:
    """Statistics have the shape [A1, …, Ai, 1, …, 1]."""
    return facts.shape != call.rows and f"the shape {call.rows}, one element per row, got {facts.shape}"


def on_inference(call: AclnnCall) -> bool:
    """Whether the documents' rules for Atlas inference (310P) hold."""
    return call.strict and call.target.soc.arch == INFERENCE_ARCH


@of_tensors
def least_bytes(call: AclnnCall, name: str, facts: TensorFacts) -> Wrong:
    """The last axis has at least 32 bytes on Atlas inference, by some pages."""
    if not on_inference(call):
        return False
    nbytes = facts.shape[-1] * NUMPY_DTYPES[facts.dtype].itemsize
    soc = call.target.soc.name
    return nbytes < INFERENCE_MIN_BYTES and (
        f"a last axis of at least {INFERENCE_MIN_BYTES} bytes on {soc}, got {nbytes}"
    )


@of_tensors
def own_places(call: AclnnCall, name: str, facts: TensorFacts) -> Wrong:
    """No two elements of an output that is wanted lie in the same place. CANN: not checked."""
    steps = zip(facts.shape, facts.strides, strict=True)
    shared = 0 not in facts.shape and any(stride == 0 and size > 1 for size, stride in steps)
    return shared and f"a place of its own for every element, got strides {facts.strides}"


def normalized_shape(call: AclnnCall) -> None:
    """The normalized shape is that of x's last dimensions."""
    if call.trailing != call.norm:
        name, x = call.operator.normalized, call.operator.x
        raise invalid_argument(
            f"{name}: expected the last dimensions of {x} {call.x.shape}, {call.trailing}, got {call.norm}"
        )


@of_tensors
def float32(call: AclnnCall, name: str, facts: TensorFacts) -> Wrong:
    """Tensors that are in FLOAT whatever x is in."""
    return facts.dtype != FLOAT and f"ACL_FLOAT, got {facts.dtype.name}"


@of_tensors
def not_empty(call: AclnnCall, name: str, facts: TensorFacts) -> Wrong:
    """Tensors that may not be empty."""
    return 0 in facts.shape and f"a tensor that is not empty, got {facts.shape}"


@of_tensors
def contiguous(call: AclnnCall, name: str, facts: TensorFacts) -> Wrong:
    """Tensors whose elements lie one after the other."""
    return facts.strides != contiguous_strides(facts.shape) and f"a contiguous tensor, got strides {facts.strides}"


def all_as(x: str, *names: str) -> tuple[Check, ...]:
    """These tensors have the dtype of x, which the function knows."""
    return (known_dtype(x, *names), *(same_dtype(name, x) for name in names))


NORM_CHECKS = (normalized_rank, normalized_shape)


class _Tensors:
    """The tensors of a row with the usual checks, by what they are to the core.

    `all` has the core's name of each, in the order of checks; "" for what copies alone read. `rows` are statistics, `columns`
    parameters but gamma, `like_x` have x's shape; `floats` are in FLOAT: statistics, and sums of rows.
    """

    def __init__(self, reads: dict[str, str], terms: tuple[str, ...], writes: dict[str, str], copies: dict[str, Copy]):
        copied = dict.fromkeys((name for copy in copies.values() for name in copy.of), "")
        written = {name: core for name, core in writes.items() if not name.startswith("(")} | dict.fromkeys(copies, "x")
        self.all = reads | dict.fromkeys(terms, "x") | copied | written
        self.outputs = tuple(written)
        self.x = next(name for name, core in reads.items() if core == "x")
        self.rows, self.columns, self.like_x = map(self._of, (Role.STATISTIC, Role.PARAMETER, Role.TENSOR))
        self.floats = (*self.rows, *(name for name in self.columns if name in writes))

    def _of(self, role: Role) -> tuple[str, ...]:
        own = (self.x, "gamma", "biasOptional")  # these have checks of their own
        return tuple(name for name, core in self.all.items() if core and ROLES[core] is role and name not in own)

    def dtypes(self, of_gamma: tuple[Check, ...]) -> tuple[Check, ...]:
        """The usual checks of dtypes: statistics and sums in FLOAT, all others as x."""
        others = [name for name in self.all if name not in (self.x, "gamma", *self.floats)]
        return (
            known_dtype(*(name for name in self.all if name not in self.floats)),
            *(of_gamma or (same_dtype("gamma", self.x),)),
            *(same_dtype(name, self.x) for name in others),
            float32(*self.floats),
        )

    def shapes(self, of_rows: Callable[..., Check]) -> tuple[Check, ...]:
        """The usual checks of shapes: the normalized shape is gamma's, and the others follow from it and x."""
        return (
            *NORM_CHECKS,
            *(same_shape(name, self.x) for name in self.like_x),
            *(same_shape(name, "gamma") for name in self.columns),
            of_rows(*self.rows),
        )


def norm_row(
    name: str,
    *,
    reads: dict[str, str],
    writes: dict[str, str],
    core: tuple[Operator, ...],
    terms: tuple[str, ...] = (),
    copies: dict[str, Copy] | None = None,
    missing: tuple[int, ...] = (TRAINING_ARCH,),
    optional: Callable[[str], bool] = lambda name: name.endswith("Optional"),
    dtype_checks: tuple[Check, ...] = (),
    gamma_dtype: tuple[Check, ...] = (),
    shape_checks: tuple[Check, ...] = (),
    rstd_shape: Callable[..., Check] = rows_shape,
    by_tiling: bool = True,
    own: tuple[Check, ...] = (),
    after: tuple[Check, ...] = (),
    **fields: Any,
) -> AclnnOperator:
    """The row of a norm with the usual checks, in their usual order; what a tensor is follows from the core's name for it.

    Args:
        name, reads, writes, core, terms, copies, fields: As AclnnOperator's.
        missing: The architectures whose products its page does not list.
        optional: Which tensors may be null.
        dtype_checks, shape_checks: All of these, in place of the usual ones.
        gamma_dtype, rstd_shape: The usual checks with others of gamma's dtype and of the shapes of statistics.
        by_tiling: Whether the checks of shapes are the tiling's, and not the first phase's own.
        own, after: Checks of shapes, and others, that it alone has.
    """
    tensors = _Tensors(reads, terms, writes, copies or {})
    dims_of = dims if shape_checks else most_dims
    shapes = (dims_of(*tensors.all), *(shape_checks or tensors.shapes(rstd_shape)), *own)
    centred = "mean" in (*core[0].inputs, *core[0].outputs)
    usual: dict[str, Any] = {
        "normalized": "gamma",
        "dtypes": dtypes_of_product,
        "normalization": LAYER_NORM if centred else RMS_NORM,
        "numbers": ("epsilon",) if core[0].numbers else (),
    }
    return AclnnOperator(
        name,
        reads=reads,
        writes=writes,
        core=core,
        terms=terms,
        copies=copies or {},
        checks=(
            strictly(product_without(lambda target: target.soc.arch in missing)),
            required(*(tensor for tensor in tensors.all if not optional(tensor))),
            usable,
            *(dtype_checks or tensors.dtypes(gamma_dtype)),
            *([tiling(*shapes)] if by_tiling else shapes),
            *after,
            own_places(*tensors.outputs),
        ),
        x=tensors.x,
        **usual | fields,
    )
