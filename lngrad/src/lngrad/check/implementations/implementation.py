"""What an implementation is: one row for `lngrad check`, `certify` and `bench`; and the rules that rows share."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version as installed_version
from math import prod
from pathlib import Path
from traceback import extract_tb
from typing import Any, NamedTuple, TypeAlias

import numpy as np

import lngrad
from lngrad.check.case import OUTPUTS, CheckCase
from lngrad.check.inputs import DrawnInputs
from lngrad.core.norms import norm_with
from lngrad.core.problem import LAYER_NORM, Forward, ForwardWithTotal, GatedGrads, Grads, Normalization, RmsForward
from lngrad.errors import MAX_FOREIGN
from lngrad.support.dtypes import numpy_dtype
from lngrad.testing import Inputs
from lngrad.typing import Array, Mask, Shape

PreparedCall: TypeAlias = Callable[[], Any]
Rule: TypeAlias = Callable[[CheckCase, DrawnInputs], "str | None"]
_OURS = str(Path(lngrad.__file__).parent)


class NotApplicable(Exception):
    """This implementation does not do what is asked; the text says why. A case is skipped, not failed."""


def first_line(error: BaseException) -> str:
    """What was raised, and the last line of code outside lngrad, and outside what is installed, that led there."""
    frames = [one for one in extract_tb(error.__traceback__) if not one.filename.startswith(_OURS)]
    own = [one for one in frames if "lib/python" not in one.filename] or frames
    where = f" ({Path(own[-1].filename).name}:{own[-1].lineno})" if own else ""
    return f"{type(error).__name__}: {error}".splitlines()[0][:MAX_FOREIGN] + where


class Fault(Exception):
    """A call showed what is wrong with it, before any result: the name of the mistake; the text is a sentence."""

    def __init__(self, mistake: str, sentence: str) -> None:
        super().__init__(sentence)
        self.mistake = mistake


class Signature(NamedTuple):
    """How a forward of somebody's is called, as a trial has shown, and what it computes.

    Attributes:
        norms: Of NORMS; the nearest, where the trial found none.
        text: Which of its arguments is what, and what it returns, for people.
        weight, bias: Whether it has them.
        eps: The epsilon that it always adds; None: it takes the case's.
        call: The call in Python, of x, weight, bias, eps and shape; "" where that is not all that it takes.
        library: torch or jax; numpy where it is a backward, which needs no trial.
        total: Whether it returns the total of x and residual; of one that is not returned, dtotal is 0.
    """

    norms: tuple[str, ...] = ()
    text: str = ""
    weight: bool = True
    bias: bool = True
    eps: float | None = None
    call: str = ""
    library: str = "numpy"
    total: bool = True

    def fitted(self, case: CheckCase) -> CheckCase:
        """A case with what a derivative gives: gradients in the dtypes of x and gamma, of what there is."""
        if self.library == "numpy":
            return case
        gamma = case.gamma_dtype if self.weight else None
        parameter, (dx, dgamma, dbeta) = gamma or case.dtype, case.output_mask
        mask = dx, dgamma and self.weight, dbeta and (self.bias or case.gated)
        eps, ranges = case.eps if self.eps is None else self.eps, {} if self.total else {"dtotal": (0.0, 0.0)}
        return replace(
            case, gamma_dtype=gamma, output_dtypes=(case.dtype, parameter, parameter), output_mask=mask, eps=eps,
            ranges={**case.ranges, **ranges},
        )  # fmt: skip


@dataclass(frozen=True)
class Arguments:
    """The arguments of one forward or backward: NumPy arrays, or tensors of the implementation's own library.

    Attributes:
        dy, x, mean, rstd, gamma, beta: As of lngrad.layer_norm and lngrad.layer_norm_backward: a backward's x is the total,
            where there is a residual.
        normalized_shape: The last dimensions of x.
        output_mask: Which of dx, dgamma and dbeta are wanted.
        output_dtypes: Of dx, dgamma and dbeta, where they are declared.
        variance: For those that take no rstd; None: computed from rstd.
        eps: What the forward adds to the variance; of a case of `lngrad check`, what must be added to `variance`.
        out: Given outputs.
        residual, dtotal: The other summand of the total, and the gradient of the total.
        gate: What y, or x, is multiplied with silu of; dgate is a result then, in dbeta's place.
        summand: Of a backward with a residual, what alpha is multiplied with.
        normalization: Which norm it is; without a centre there is no beta.
        case, exact: Of `lngrad check`: the case, and its inputs in float64.
    """

    dy: Any = None
    x: Any = None
    mean: Any = None
    rstd: Any = None
    gamma: Any = None
    beta: Any = None
    normalized_shape: Shape = ()
    output_mask: Mask = (True, True, True)
    output_dtypes: tuple[str, str, str] | None = None
    variance: Any = None
    eps: float = 1e-5
    out: Grads | Forward | ForwardWithTotal | RmsForward | None = None
    residual: Any = None
    dtotal: Any = None
    gate: Any = None
    summand: Any = None
    normalization: Normalization = LAYER_NORM
    case: CheckCase | None = None
    exact: Inputs | None = None

    @staticmethod
    def of(case: CheckCase, given: DrawnInputs) -> Arguments:
        """The backward of a case, or of a block of its rows."""
        one = given.inputs
        return Arguments(
            one.dy, one.total, one.mean, one.rstd, one.gamma, one.beta, case.normalized, case.output_mask,
            case.output_dtypes, given.variance, given.eps, residual=one.residual, dtotal=one.dtotal, gate=one.gate,
            summand=None if one.residual is None else one.x, normalization=one.normalization, case=case, exact=given.exact,
        )  # fmt: skip

    @property
    def norm(self) -> str:
        """Its name in NORMS."""
        return norm_with(self.normalization, self.residual is not None, self.gate is not None).name

    @property
    def weight(self) -> Any:
        """gamma, as torch calls it."""
        return self.gamma

    @property
    def alpha(self) -> float:
        """The factor of the summand beside the residual."""
        return self.normalization.alpha

    @property
    def offset(self) -> float:
        """What is added to gamma."""
        return self.normalization.offset

    @property
    def norm_before_gate(self) -> bool:
        """Whether the gate is a factor of y."""
        return self.normalization.norm_before_gate

    @property
    def grads(self) -> type[Grads]:
        """The type of a backward's results."""
        return Grads if self.gate is None else GatedGrads  # type: ignore[return-value]  # with another name for the last

    @property
    def shapes(self) -> dict[str, Shape]:
        """Of a backward's results, by name."""
        parameter = self.normalized_shape if self.gamma is None else self.gamma.shape
        third = parameter if self.gate is None else self.x.shape
        return dict(zip(self.grads._fields, (self.x.shape, parameter, third), strict=True))

    @property
    def N(self) -> int:
        """The number of columns."""
        return prod(self.normalized_shape)

    @property
    def M(self) -> int:
        """The number of rows."""
        return prod(self.x.shape[: len(self.x.shape) - len(self.normalized_shape)])

    @property
    def dtypes(self) -> tuple[str, str, str]:
        """Of dx, dgamma and dbeta: as declared, or x's and gamma's."""
        parameter = (self.x if self.gamma is None else self.gamma).dtype.name
        return self.output_dtypes or (self.x.dtype.name, parameter, parameter)

    def map(self, convert: Callable[[Any], Any]) -> Arguments:
        """All arrays converted; what is the same array before is the same one afterwards."""
        made: dict[int, Any] = {id(None): None}

        def one(array: Any) -> Any:
            if id(array) not in made:
                made[id(array)] = convert(array)
            return made[id(array)]

        names = "dy", "x", "mean", "rstd", "gamma", "beta", "variance", "residual", "dtotal", "gate", "summand"
        out = None if self.out is None else type(self.out)(*map(one, self.out))
        return replace(self, **{name: one(getattr(self, name)) for name in names}, out=out)

    def parameters(self) -> list[Array | None]:
        """New arrays for dgamma and dbeta, or dgate, in the declared dtypes, full of NaN: what is not written is seen."""
        if self.output_dtypes is None:
            return [None, None]
        each = zip(list(self.shapes.values())[1:], self.output_dtypes[1:], self.output_mask[1:], strict=True)
        return [np.full(shape, np.nan, numpy_dtype(dtype)) if wanted else None for shape, dtype, wanted in each]

    def row_variance(self) -> Array:
        """The variance to which eps is added, (M,) in float64."""
        if self.variance is not None:
            return np.asarray(self.variance, np.float64).reshape(-1)
        return (1 / np.square(np.asarray(self.rstd, np.float64)) - self.eps).reshape(-1)

    def masked(self, grads: Iterable[Any]) -> Grads:
        """dx, dgamma and dbeta without those that are not wanted."""
        return self.grads(*(one if wanted else None for one, wanted in zip(grads, self.output_mask, strict=True)))


@dataclass(frozen=True)
class Implementation:
    """One row: a layer normalization that can be checked, certified and timed. Called with a case, it gives gradients.

    Attributes:
        name: What `--impl` or `--peers` calls it.
        backward: Prepares a call, which returns dx, dgamma and dbeta, or None where all of them are in the given outputs.
            Either may raise NotApplicable.
        forward: Prepares a call that returns y, mean and rstd, or y alone; None: there is none.
        norms: What it computes, of NORMS.
        norm: Which of these a certificate is of.
        takes: Rules that say why a case is not for it, or None.
        needs: The module that must be there.
        missing: Why it cannot be used although that module is there, or None.
        package, title: The distribution whose version counts, and its name for people if that is another.
        version: Of the library; None: the distribution's.
        where: On what it runs, if that must be said.
        into: Whether it writes given outputs.
        set_threads: Its own switch for the number of threads.
        allocated: The bytes that its own allocator gives out while a call runs, and whose figure that is. None: what Python
            and NumPy allocate is traced.
        empty_cache: Gives memory back that it keeps for later results.
        own_statistics: Of which norms it takes no mean and rstd, and computes them from x; it writes no given outputs then.
        simulated: A call takes long, as on a simulator, in an interpreter or in a process of its own.
        elsewhere: Why the memory that a call takes here is not the kernel's; "" where it is.
        signature: Of a forward that is differentiated.
    """

    name: str
    backward: Callable[[Arguments], PreparedCall]
    forward: Callable[[Arguments], PreparedCall] | None = None
    norms: Container[str] = ("layer_norm",)
    norm: str = "layer_norm"
    takes: tuple[Rule, ...] = ()
    needs: str = ""
    missing: Callable[[], str | None] = lambda: None
    package: str = ""
    title: str = ""
    version: Callable[[], str] | None = None
    where: str = ""
    into: bool = False
    set_threads: Callable[[int], None] | None = None
    allocated: Callable[[PreparedCall], tuple[int, str]] | None = None
    empty_cache: Callable[[], None] = lambda: None
    own_statistics: Container[str] = ()
    simulated: bool = False
    elsewhere: str = ""
    signature: Signature | None = None

    def __call__(self, case: CheckCase, given: DrawnInputs, out: Grads | None = None) -> Grads:
        """The gradients of a case, in given outputs if there are any.

        Raises:
            NotApplicable: The case is not for it.
        """
        results: Any = self.prepared(case, given, out)() or out
        return case.grads(*results)

    def prepared(self, case: CheckCase, given: DrawnInputs, out: Grads | None = None) -> PreparedCall:
        """The call that computes them; see __call__."""
        if case.norm not in self.norms:
            raise NotApplicable(f"{self.name} does not compute {case.norm}")
        for rule in self.takes:
            if reason := rule(case, given):
                raise NotApplicable(reason)
        return self.backward(replace(Arguments.of(case, given), out=out))

    def versions(self) -> dict[str, str]:
        """The version by distribution."""
        if not self.package:
            return {}
        return {self.package: self.version() if self.version else installed_version(self.package)}

    def described(self) -> str:
        """Which version it is, and where it runs."""
        named = [f"{self.title or name} {number}" for name, number in self.versions().items()]
        return ", ".join(filter(None, (*named, self.where)))


def unprepared(function: Callable[[Arguments], Any]) -> Callable[[Arguments], PreparedCall]:
    """A forward or backward that does all its work in the call."""
    return lambda arguments: partial(function, arguments)


def dx_as_x(case: CheckCase, given: DrawnInputs) -> str | None:
    """Not for a case whose dx has another dtype than x."""
    if case.output_mask[0] and case.output_dtypes[0] != case.dtype:
        return f"dx in {case.output_dtypes[0]}, x in {case.dtype}"
    return None


def parameters_as_gamma(whose: str) -> Rule:
    """Not for a case whose dgamma or dbeta has another dtype than gamma."""

    def rule(case: CheckCase, given: DrawnInputs) -> str | None:
        parameter = case.gamma_dtype or case.dtype
        for name, dtype, wanted in zip(OUTPUTS[1:], case.output_dtypes[1:], case.output_mask[1:], strict=True):
            if wanted and dtype != parameter:
                return f"{whose} gives {name} in gamma's dtype, {parameter}, not in {dtype}"
        return None

    return rule


def takes_variance(whose: str) -> Rule:
    """Not for a case whose rstd no variance gives."""

    def rule(case: CheckCase, given: DrawnInputs) -> str | None:
        if np.all(np.asarray(given.inputs.rstd, np.float64) > 0):
            return None
        return f"rstd is not positive: {whose} takes a variance"

    return rule
