"""Which formula a module's forward is: found on random samples, of what its reading allows to be evaluated on them.

Where all operations are analytic, formulas that agree on random samples agree everywhere. They are compared in float64,
without casts; then each combination of dtypes is, as far as it is rounded.
"""

from __future__ import annotations

import inspect
import itertools
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import _disable_current_modes

from lngrad.torch.operators import epsilon
from lngrad.torch.reading import OTHER, Reader, Refused
from lngrad.typing import Tensor

LAST, CHANNELS_FIRST = "last", "channels first"  # which axes are normalized: the last ones, or axis 1
_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
_WIDE = (torch.float32, torch.float64)
_EXACT, _CLOSE, _CLOSE_NARROW = 1e-8, 1e-4, 0.1  # of float64, float32, and 16 bits
_SAME_BITS = 0.9  # of RMS results in 16 bits; a float32 that is summed in another order is seldom rounded otherwise
_LARGE = 1e8  # samples in which no eps matters
_MAX_ELEMENTS = 1 << 16  # of a weight of several dimensions, which is seldom a norm's
_DIFFERENT = "computes something else"


class Formula(NamedTuple):
    """What a forward computes. Tensors are named as the module has them.

    Attributes:
        weight, bias: Names of parameters or buffers, None for none.
        eps: A number, or the name of the attribute that has it; None: torch's epsilon of what RMS normalization computes in.
        shape: R; None: the last axis, of any size.
        centred, offset: As in Normalization.
        gate: The argument whose silu is a factor, or "".
        norm_before_gate: Whether the gate is a factor of the normalized x, or of x itself.
        group: How many columns are normalized by themselves; None: all.
        rounded: What theirs rounds on the way to a result in 16 bits, as Llama's formula does; ours rounds once.
        axes: Which axes are normalized, by the rank of x; None: the last ones.
        keeps_strides: Whether channels first are so in the result's memory too, where they are in x's.
        dtypes: The result's dtype, by those of x, weight and bias, the device whose autocast is on, or "", and gate's dtype;
            None: x's.
        watched: What the forward depends on, by its path: where it has another value, the forward is the old one.
    """

    weight: str | None = None
    bias: str | None = None
    eps: str | float | None = None
    shape: tuple[int, ...] | None = None
    centred: bool = False
    offset: float = 0.0
    gate: str = ""
    norm_before_gate: bool = True
    group: int | None = None
    rounded: str = ""
    axes: frozenset[tuple[int, str]] | None = None
    keeps_strides: bool = False
    dtypes: frozenset[tuple[tuple[Any, Any, Any, str, Any], Any]] | None = None
    watched: tuple[tuple[Any, Any], ...] = ()


def learn(module: torch.nn.Module) -> Formula | str | None:
    """A module's formula, or why it is none of ours, in a clause; None where nothing hints at a normalization."""
    is_torchs = isinstance(module, torch.nn.LayerNorm | torch.nn.RMSNorm)
    hinted = is_torchs or ("norm" in type(module).__name__.lower() and not any(True for _ in module.children()))
    try:
        tensors = {
            name: value for name, value in (*module._parameters.items(), *module._buffers.items()) if value is not None
        }
        reason = _no_candidate(module, tensors, is_torchs, hinted)
        if reason:
            return reason if hinted else None
        with undisturbed():
            for gate in _gates(module, tensors):
                found = _Trial(module, tensors, gate).formula()
                if isinstance(found, Formula):
                    return found
                if not reason or found != OTHER:
                    reason = found
    except Exception as error:  # whatever a module is that is not made for this
        reason = f"refuses a sample: {type(error).__name__}"
    return reason if hinted else None


def _gates(module: torch.nn.Module, tensors: dict[str, Tensor]) -> tuple[str, ...]:
    """What a trial gives besides x: first the forward's second argument, as a gate, then nothing."""
    second = [*inspect.signature(type(module).forward).parameters.values()][2:3]
    has_rows = len(tensors) < 2 and all(max(value.shape) == value.numel() for value in tensors.values())
    return (
        *(parameter.name for parameter in second if has_rows and parameter.kind is parameter.POSITIONAL_OR_KEYWORD),
        "",
    )


def _no_candidate(module: torch.nn.Module, tensors: dict[str, Tensor], is_torchs: bool, hinted: bool) -> str:
    if isinstance(module, torch.jit.ScriptModule):
        return "is a ScriptModule"
    kind, names = type(module), ("__getattr__", "__getattribute__")
    own = next((name for name in names if getattr(kind, name) is not getattr(torch.nn.Module, name)), None)
    if own or type(kind) is not type:
        return f"its class has {own or 'a metaclass'} of its own"
    if any(True for _ in module.children()):
        return "has submodules"
    parameters = [*inspect.signature(type(module).forward).parameters.values()]
    if len(parameters) < 2 or parameters[1].kind > inspect.Parameter.POSITIONAL_OR_KEYWORD:
        return "its forward names no argument"
    if len(tensors) > 2 or not all(value.is_floating_point() for value in tensors.values()):
        return f"has more parameters: {', '.join(tensors)}"
    if len({tuple(value.shape) for value in tensors.values()}) > 1:
        return "its weight and bias have two shapes"
    if any(value.numel() == 1 for value in tensors.values()):
        return "its weight is one number"
    if any(max(value.shape) < value.numel() > _MAX_ELEMENTS for value in tensors.values()) and not is_torchs:
        return "its weight has several dimensions"
    if not tensors and not hinted and not any(isinstance(value, float) for value in vars(module).values()):
        return "has no weight"
    return ""


@contextmanager
def undisturbed() -> Iterator[None]:
    """On the CPU, with derivatives and without the modes, autocast and random numbers of whoever patches."""
    with ExitStack() as stack:
        stack.enter_context(_disable_current_modes())
        stack.enter_context(torch.device("cpu"))
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.autocast("cpu", enabled=False))
        stack.enter_context(torch.random.fork_rng(devices=[]))
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        yield


class _Trial:
    """A module's class, and samples for it."""

    def __init__(self, module: torch.nn.Module, tensors: dict[str, Tensor], gate: str = "", size: int = 8) -> None:
        self.module, self.gate, self.reader = module, gate, Reader(module)
        self.rounded = ""  # as Formula's
        self.random = torch.Generator().manual_seed(0)
        self.values = {name: self._normal(value.shape) for name, value in tensors.items()}
        value = next(iter(tensors.values()), None)
        own = getattr(module, "normalized_shape", (size,)) if value is None else (n for n in value.shape if n != 1)
        self.shape: tuple[int, ...] = tuple(own)
        sizes = [n for n in (2, 3) if (n,) != self.shape]
        self.sizes = tuple(itertools.islice(itertools.cycle(sizes), 4))  # of the other axes
        self.samples = {where: self._normal(self._shape(*where)) + 0.5 for where in self._places()}
        self.gates = {
            where: self._normal(x.shape) * (2 + 20 * (self._normal(x.shape) > 1))
            for where, x in self.samples.items()
            if gate
        }  # so wide that a limit shows

    def _normal(self, shape: Any) -> Tensor:
        return torch.randn(tuple(shape), dtype=torch.float64, generator=self.random)

    def _places(self) -> Iterator[tuple[int, str]]:
        """Ranks of x and layouts, the usual ones first."""
        for rows in (2, 1, 3, 0, 4):
            yield rows + len(self.shape), LAST
            if len(self.shape) == 1 and rows >= 2 and not self.gate:
                yield rows + 1, CHANNELS_FIRST

    def _shape(self, rank: int, layout: str) -> tuple[int, ...]:
        first = self.sizes[: rank - len(self.shape)]
        return (*first, *self.shape) if layout == LAST else (first[0], *self.shape, *first[1:])

    def theirs(
        self, where: tuple[int, str], x: Tensor, gate: Tensor | None, dtype: Any = torch.float64, *, exact: bool = False
    ) -> tuple[Tensor | None, dict[str, Tensor]]:
        """What their forward gives, None for what is no tensor of x's shape, and the tensors that it had."""
        tensors = {name: value.to(dtype) for name, value in self.values.items()}
        bound = range(x.ndim - len(self.shape), x.ndim) if where[1] == LAST else (1,)
        is_bound = bool(self.values) or hasattr(self.module, "normalized_shape")
        inputs = [x] if gate is None else [x, gate]
        with torch.no_grad():
            y = self.reader.value(inputs, tensors, frozenset(bound if is_bound else ()), exact=exact)
        is_alike = isinstance(y, torch.Tensor) and y.shape == x.shape
        return y if is_alike else None, tensors

    def exact(
        self, formula: Formula, layout: str, x: Tensor, gate: Tensor | None, tensors: dict[str, Tensor], eps: float,
        xhat_in: Any = torch.float64, product_in: Any = torch.float64,
    ) -> Tensor:  # fmt: skip
        """The formula in float64; xhat, and what a gate is multiplied with after, rounded on the way."""
        x, shape = x.double(), x.shape
        factor = torch.ones(()) if gate is None else torch.sigmoid(gate.double())
        if gate is not None:
            factor = factor * gate.double()
        if not formula.norm_before_gate:
            x = x * factor
        if formula.group:
            x = x.unflatten(-1, (-1, formula.group))
        axes, along = tuple(range(x.ndim - len(formula.shape or (1,)), x.ndim)), self.shape
        if layout == CHANNELS_FIRST:
            axes, along = (1,), (-1, *(1 for _ in range(x.ndim - 2)))
        if formula.centred:
            x = x - x.mean(axes, keepdim=True)
        xhat = (x * (x.square().mean(axes, keepdim=True) + eps).rsqrt()).reshape(shape).to(xhat_in).double()
        if formula.weight is not None:
            xhat = xhat * (formula.offset + tensors[formula.weight].double().reshape(along))
        y = xhat if formula.bias is None else xhat + tensors[formula.bias].double().reshape(along)
        return y if not formula.norm_before_gate or gate is None else y.to(product_in).double() * factor

    # What they compute

    def formula(self) -> Formula | str:
        found: Formula | None = None
        places, others, problem, refusal = set(), set(), "", ""
        for where, sample in self.samples.items():
            x, gate = sample * _LARGE, self.gates.get(where)
            try:
                y, tensors = self.theirs(where, x, gate, exact=True)
            except Refused as refused:
                refusal = refusal or str(refused)
                others.add(where[0])
                continue
            except Exception as error:  # not made for this rank
                problem = problem or f"refuses a sample: {type(error).__name__}"
                continue
            if y is None:
                problem = problem or "gives another shape"
                continue
            candidates = self._candidates() if found is None else [found]
            exact = ((formula, self.exact(formula, where[1], x, gate, tensors, 0.0)) for formula in candidates)
            fits = next((formula for formula, expected in exact if _near(y, expected, _EXACT)), None)
            if fits:
                found = fits
                places.add(where)
            else:
                others.add(where[0])
        ranks = {rank for rank, _ in places}
        # Of one axis of rows, groups of channels and much else is the same.
        if found is None or (max(ranks) < len(self.shape) + 2 and others - ranks):
            return refusal or (_DIFFERENT if others else problem)
        if found.shape != self.shape:
            return "its weight is per head"
        if found.bias is not None and not found.centred:
            return "is RMS normalization with a bias"
        alone = {
            where for where in places if [rank for rank, _ in places].count(where[0]) == 1
        }  # else the shape decides
        return self._with_eps(found, alone) if alone else "takes one rank in two layouts"

    def _candidates(self) -> list[Formula]:
        """Formulas that may be theirs, some of them not ours: RMS normalization with a bias, a weight per head."""
        ways: list[Any] = [("", False, None)]
        if self.gate and len(self.shape) > 1:
            return []
        if self.gate:
            (N,) = self.shape
            sizes = [n for n in vars(self.module).values() if type(n) is int and 1 < n < N and not N % n]
            groups = dict.fromkeys((None, *sizes, *(N // n for n in sizes)))
            ways = [(self.gate, *way) for way in itertools.product((True, False), groups)]
        names = (*self.values, None, None)
        roles = dict.fromkeys((*itertools.permutations(names[:2]), (None, None)))  # unused ones, too
        shapes = (self.shape, self.shape[-1:])[: len(self.shape)]
        return [
            Formula(weight, bias, 0.0, shape, centred, offset, *way)
            for shape in shapes
            for centred in ((False,) if self.gate else (True, False))
            for weight, bias in roles
            for offset in ((0.0, 1.0) if weight else (0.0,))
            for way in ways
        ]

    def _with_eps(self, formula: Formula, places: set[tuple[int, str]]) -> Formula | str:
        where = next(key for key in self.samples if key in places)
        for eps in (*self.reader.numbers, None, 0.0):
            found = formula._replace(eps=eps)
            if self._is_exact(found, where):
                accepted = {where for where in places if self._is_exact(found, where)}
                return self._where(found, accepted, where)
        return "no eps that is added to the variance was found"

    def _is_exact(self, formula: Formula, where: tuple[int, str], of_gate: Any = torch.float64) -> bool:
        """Whether a formula with its eps is theirs in float64 without casts, where the variance is of the size of eps."""
        x, eps = self._sample(formula, where, torch.float64)
        gate = self.gates.get(where) if of_gate else None
        try:
            y, tensors = self.theirs(where, x, gate, exact=True)
        except Exception:  # not made for a call without a gate
            return False
        return y is not None and _near(y, self.exact(formula, where[1], x, gate, tensors, eps), _EXACT)

    def _sample(self, formula: Formula, where: tuple[int, str], dtype: Any) -> tuple[Tensor, float]:
        """x with a variance of the size of eps, and eps."""
        x = self.samples[where].to(dtype)
        eps = float(epsilon(x) if formula.eps is None else formula.eps)
        small = eps if dtype is torch.float64 or eps > 1e-13 else 1.0  # float32's squares of less vanish
        return (self.samples[where] * (small or 1e-60) ** 0.5).to(dtype), eps

    # Where they compute it

    def _where(self, formula: Formula, accepted: set[tuple[int, str]], where: tuple[int, str]) -> Formula | str:
        dtypes = self._dtypes(formula, accepted if self.reader.asks_rank else {where}, self._pairs(formula, where))
        if not dtypes:
            return f"{_DIFFERENT} in every dtype"
        if formula.weight is None is formula.bias and not hasattr(self.module, "normalized_shape"):
            other = _Trial(self.module, {}, self.gate, size=5)
            if not formula.group and all(other._is_exact(formula, where) for where in accepted):
                formula = formula._replace(shape=None)
        results = (self.theirs(where, self.samples[where], None)[0] for where in accepted if where[1] == CHANNELS_FIRST)
        return formula._replace(
            keeps_strides=all(y is not None and y.is_contiguous() for y in results),
            axes=frozenset(accepted), dtypes=frozenset(dtypes.items()), rounded=self.rounded,
            watched=tuple(self.reader.watched.items()),
        )  # fmt: skip

    def _pairs(self, formula: Formula, where: tuple[int, str]) -> list[tuple[Any, Any]]:
        """The dtypes of x and of the gate that are tried together; None: no gate."""
        pairs = [(dtype, dtype if self.gate else None) for dtype in _DTYPES]
        if self.gate:
            pairs += [(torch.float32, dtype) for dtype in _DTYPES if dtype not in _WIDE]
            if not formula.group and self._is_exact(formula, where, None):
                pairs += [(dtype, None) for dtype in _DTYPES]
        return pairs

    def _dtypes(
        self, formula: Formula, places: set[tuple[int, str]], pairs: list[tuple[Any, Any]]
    ) -> dict[tuple[Any, Any, Any, str, Any], Any]:
        """The result's dtype by those of x, weight and bias, by autocast and the gate's, where the formula is theirs."""
        dtypes, of_all = {}, _DTYPES if self.values else (None,)
        for (of_x, of_gate), of_tensors, autocast in itertools.product(pairs, of_all, ("", "cpu")):
            result = self._accepts(formula, places, of_x, of_tensors, autocast, of_gate)
            if result is not None:
                of_weight, of_bias = (of_tensors if name else None for name in (formula.weight, formula.bias))
                dtypes[of_x, of_weight, of_bias, autocast, of_gate] = result
        return dtypes

    def _accepts(
        self, formula: Formula, places: set[tuple[int, str]], of_x: Any, of_tensors: Any, autocast: str, of_gate: Any
    ) -> Any:  # fmt: skip
        """The result's dtype if the formula is theirs at all places, else None."""
        found = set()
        try:
            for where in sorted(places):  # a set of words has another order in each process
                x, eps = self._sample(formula, where, of_x)
                gate = self.gates[where].to(of_gate) if of_gate else None
                with torch.autocast("cpu", enabled=bool(autocast)):
                    y, tensors = self.theirs(where, x, gate, of_tensors)
                if y is None or not self._is(y, formula, where[1], x, gate, tensors, eps):
                    return None
                found.add(y.dtype)
        except Exception:  # not made for these dtypes
            return None
        return found.pop() if len(found) == 1 else None

    def _is(
        self, y: Tensor, formula: Formula, layout: str, x: Tensor, gate: Tensor | None, tensors: dict[str, Tensor], eps: float
    ) -> bool:  # fmt: skip
        """Whether a result is the formula's: close, and in 16 bits of RMS normalization rounded as ours, Llama's or Qwen's."""
        exact = self.exact(formula, layout, x, gate, tensors, eps)
        if y.dtype in _WIDE and (_near(y, exact) or x.dtype in _WIDE):
            return _near(y, exact)
        if formula.centred:
            return _near(y, exact, _CLOSE_NARROW)
        if _share(y, exact) >= _SAME_BITS:
            return True
        for dtype in {x.dtype, y.dtype}:
            of_weight = dtype if formula.weight is None else tensors[formula.weight].dtype
            chains: list[Any] = [("", dtype)]
            if gate is not None and formula.norm_before_gate:
                chains.append((", and again before the gate", dtype, torch.promote_types(dtype, of_weight)))
            for more, *chain in chains:
                if _share(y, self.exact(formula, layout, x, gate, tensors, eps, *chain)) >= _SAME_BITS:
                    self.rounded = f"xhat rounded before weight{more}" if x.dtype is y.dtype else self.rounded
                    return True
        return False


def _near(y: Tensor, exact: Tensor, tolerance: float = _CLOSE) -> bool:
    return bool((y - exact).abs().max() <= tolerance * exact.abs().max())


def _share(y: Tensor, exact: Tensor) -> float:
    """How much of a result has the bits of the exact one, or in float32 is close to it."""
    same = y == exact.to(y.dtype) if y.dtype not in _WIDE else (y - exact).abs() <= _CLOSE * (1 + exact.abs())
    return float(same.double().mean())
