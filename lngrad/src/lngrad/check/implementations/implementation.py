"""What an implementation is: one row for `lngrad check`, `certify` and `bench`; and the rules that rows share."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version as installed_version
from math import prod
from pathlib import Path
from traceback import extract_tb
from typing import Any, NamedTuple, TypeAlias

import numpy as np

import lngrad
from lngrad.check.case import OF_ROWS, STATISTICS, CheckCase
from lngrad.check.inputs import DrawnInputs
from lngrad.core.norms import norm_with
from lngrad.core.problem import LAYER_NORM, Normalization, Operator, operator_of
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
    frames = [frame for frame in extract_tb(error.__traceback__) if not frame.filename.startswith(_OURS)]
    own = [frame for frame in frames if "lib/python" not in frame.filename] or frames
    where = f" ({Path(own[-1].filename).name}:{own[-1].lineno})" if own else ""
    return f"{type(error).__name__}: {error}".splitlines()[0][:MAX_FOREIGN] + where


OVERWRITTEN = "inputs overwritten"


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
        library: torch or jax, which differentiate it; numpy.
        gives: Results of the forward that it returns; none of a backward. Of a total that is not returned, dtotal is 0.
        backward: Whether it gives gradients.
        size: The only number of columns that it takes, as its parameters have it; None: it takes others.
    """

    norms: tuple[str, ...] = ()
    text: str = ""
    weight: bool = True
    bias: bool = True
    eps: float | None = None
    call: str = ""
    library: str = "numpy"
    gives: tuple[str, ...] = ()
    backward: bool = True
    size: int | None = None

    def fitted(self, case: CheckCase) -> CheckCase:
        """A case with what a forward and its derivative give, of what there is, in the dtypes of x and gamma."""
        if not self.gives:
            return case
        gamma = case.gamma_dtype if self.weight else None
        has = {"dgamma": self.weight and self.backward, "dbeta": self.bias and self.backward}
        wanted = [name for name in case.wanted or () if has.get(name, self.backward)]
        wanted += [name for name in self.gives if case.N or name not in STATISTICS]
        ranges = {} if "total" in self.gives else {"dtotal": (0.0, 0.0)}
        return replace(
            case, gamma_dtype=gamma, output_dtypes={}, wanted=tuple(wanted), eps=case.eps if self.eps is None else self.eps,
            ranges={**case.ranges, **ranges}, beta=self.bias and gamma is not None,
        )  # fmt: skip


BACKWARD_ALONE, FORWARD_ALONE = "backward judged, no forward given", "forward judged, no backward given"


@dataclass(frozen=True)
class Arguments:
    """The arguments of one forward or backward: NumPy arrays, or tensors of the implementation's own library.

    Attributes:
        dy, x, mean, rstd, gamma, beta: As of lngrad.layer_norm and lngrad.layer_norm_backward: a backward's x is the total,
            where there is a residual.
        normalized_shape: The last dimensions of x.
        names: Of the results that are wanted; None: all.
        declared: Dtypes of results by name, where a case declares them.
        variance: For those that take no rstd; None: computed from rstd.
        eps: What the forward adds to the variance; of a case of `lngrad check`, what must be added to `variance`.
        out: Given outputs.
        residual, dtotal: The other summand of the total, and the gradient of the total.
        gate: What y, or x, is multiplied with silu of.
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
    names: tuple[str, ...] | None = None
    declared: Mapping[str, str] | None = None
    variance: Any = None
    eps: float = 1e-5
    out: Any = None
    residual: Any = None
    dtotal: Any = None
    gate: Any = None
    summand: Any = None
    normalization: Normalization = LAYER_NORM
    case: CheckCase | None = None
    exact: Inputs | None = None

    @staticmethod
    def of(case: CheckCase, drawn: DrawnInputs) -> Arguments:
        """The backward of a case, or of a block of its rows."""
        inputs = drawn.inputs
        return Arguments(
            inputs.dy, inputs.total, inputs.mean, inputs.rstd, inputs.gamma, inputs.beta, case.normalized, case.wanted,
            case.output_dtypes, drawn.variance, drawn.eps, residual=inputs.residual, dtotal=inputs.dtotal, gate=inputs.gate,
            summand=None if inputs.residual is None else inputs.x, normalization=inputs.normalization, case=case,
            exact=drawn.exact,
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
    def operator(self) -> Operator:
        """The backward that is computed: its results have names."""
        return operator_of("backward", self.normalization, gate=self.gate is not None)

    @property
    def wanted(self) -> tuple[str, ...]:
        """Names of the results that are wanted."""
        return self.operator.outputs if self.names is None else self.names

    @property
    def output_mask(self) -> Mask:
        """Whether each result is wanted, in the order of a user's function."""
        return tuple(name in self.wanted for name in self.operator.outputs)

    @property
    def output_dtypes(self) -> tuple[str, ...] | None:
        """The declared dtypes, in the order of a user's function."""
        return None if self.declared is None else tuple(self.declared[name] for name in self.operator.outputs)

    @property
    def shapes(self) -> dict[str, Shape]:
        """Shapes of a backward's results, by name."""
        parameter = self.normalized_shape if self.gamma is None else self.gamma.shape
        return {name: self.x.shape if name in OF_ROWS else parameter for name in self.operator.outputs}

    def of_forward(self) -> dict[str, Any]:
        """The arrays that a forward takes, by name."""
        x = self.x if self.summand is None else self.summand
        return {"x": x, **{name: getattr(self, name) for name in ("gamma", "beta", "residual", "gate")}}

    @property
    def N(self) -> int:
        """The number of columns."""
        return prod(self.normalized_shape)

    @property
    def M(self) -> int:
        """The number of rows."""
        return prod(self.x.shape[: len(self.x.shape) - len(self.normalized_shape)])

    @property
    def dtypes(self) -> Mapping[str, str]:
        """Dtypes of a backward's results, by name: as declared, or x's and gamma's."""
        parameter = self.x if self.gamma is None else self.gamma
        default = {name: (self.x if name in OF_ROWS else parameter).dtype.name for name in self.operator.outputs}
        return default | dict(self.declared or {})

    def map(self, convert: Callable[[Any], Any]) -> Arguments:
        """All arrays converted; what is the same array before is the same one afterwards."""
        converted: dict[int, Any] = {id(None): None}

        def of(array: Any) -> Any:
            if id(array) not in converted:
                converted[id(array)] = convert(array)
            return converted[id(array)]

        names = "dy", "x", "mean", "rstd", "gamma", "beta", "variance", "residual", "dtotal", "gate", "summand"
        out = None if self.out is None else type(self.out)(*map(of, self.out))
        return replace(self, **{name: of(getattr(self, name)) for name in names}, out=out)

    def parameters(self) -> dict[str, Array | None]:
        """New arrays for the parameters' gradients, in the declared dtypes, full of NaN: what is not written is seen."""
        names = [name for name in self.operator.outputs if name not in OF_ROWS]
        if self.declared is None:
            return dict.fromkeys(names)
        return {
            name: np.full(self.shapes[name], np.nan, numpy_dtype(self.declared[name])) if name in self.wanted else None
            for name in names
        }

    def row_variance(self) -> Array:
        """The variance to which eps is added, (M,) in float64."""
        if self.variance is not None:
            return np.asarray(self.variance, np.float64).reshape(-1)
        return (1 / np.square(np.asarray(self.rstd, np.float64)) - self.eps).reshape(-1)

    def masked(self, **arrays: Any) -> Any:
        """The operator's results, of gradients by name: None where a result is not wanted."""
        return self.operator.results(
            **{name: arrays.get(name) if name in self.wanted else None for name in self.operator.outputs}
        )


@dataclass(frozen=True)
class Implementation:
    """One row: a layer normalization that can be checked, certified and timed. Called with a case, it gives gradients.

    Attributes:
        name: What `--impl` or `--peers` calls it.
        backward: Prepares a call, which returns the operator's results, or None where the given outputs have them.
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

    def __call__(self, case: CheckCase, drawn: DrawnInputs, out: Any = None) -> Any:
        """The results of a case, in given outputs if there are any, by their names.

        Raises:
            NotApplicable: The case is not for it.
        """
        results = self.prepared(case, drawn, out)()
        return case.results(by_name(case, out if results is None else results))

    def prepared(self, case: CheckCase, drawn: DrawnInputs, out: Any = None) -> PreparedCall:
        """The call that computes them; see __call__."""
        if case.norm not in self.norms:
            raise NotApplicable(f"{self.name} does not compute {case.norm}")
        for rule in self.takes:
            if reason := rule(case, drawn):
                raise NotApplicable(reason)
        return self.backward(replace(Arguments.of(case, drawn), out=out))

    def versions(self) -> dict[str, str]:
        """The version by distribution."""
        if not self.package:
            return {}
        return {self.package: self.version() if self.version else installed_version(self.package)}

    def described(self) -> str:
        """Which version it is, and where it runs."""
        named = [f"{self.title or name} {number}" for name, number in self.versions().items()]
        return ", ".join(filter(None, (*named, self.where)))


def by_name(case: CheckCase, results: Any) -> Mapping[str, Any]:
    """Results by name: as they have them, or a backward's in its order."""
    if isinstance(results, Mapping):
        return results
    named: Mapping[str, Any] | None = results._asdict() if hasattr(results, "_asdict") else None
    return dict(zip(case.operator.outputs, results, strict=True)) if named is None else named


def unprepared(function: Callable[[Arguments], Any]) -> Callable[[Arguments], PreparedCall]:
    """A forward or backward that does all its work in the call."""
    return lambda arguments: partial(function, arguments)


def tensors_as_x(case: CheckCase, drawn: DrawnInputs) -> str | None:
    """Not for a case with a result of x's shape in another dtype than x."""
    other = {name: case.output_dtypes[name] for name in case.wanted or () if name in OF_ROWS}
    reasons = (f"{name} in {dtype}, x in {case.dtype}" for name, dtype in other.items() if dtype != case.dtype)
    return next(reasons, None)


def parameters_as_gamma(whose: str) -> Rule:
    """Not for a case whose dgamma or dbeta has another dtype than gamma."""

    def rule(case: CheckCase, drawn: DrawnInputs) -> str | None:
        parameter = case.gamma_dtype or case.dtype
        for name in case.wanted or ():
            if name not in OF_ROWS and (dtype := case.output_dtypes[name]) != parameter:
                return f"{whose} gives {name} in gamma's dtype, {parameter}, not in {dtype}"
        return None

    return rule


def takes_variance(whose: str) -> Rule:
    """Not for a case whose rstd no variance gives."""

    def rule(case: CheckCase, drawn: DrawnInputs) -> str | None:
        if np.all(np.asarray(drawn.inputs.rstd, np.float64) > 0):
            return None
        return f"rstd is not positive: {whose} takes a variance"

    return rule


class Added(NamedTuple):
    """What a package adds by an entry point of the group `lngrad.implementations`.

    Attributes:
        rows: Implementations by name.
        prefixes: For names with a colon: the word before it, with the function of what follows, and how that looks.
    """

    rows: Mapping[str, Implementation]
    prefixes: Mapping[str, tuple[Callable[[str], Implementation], str]]
