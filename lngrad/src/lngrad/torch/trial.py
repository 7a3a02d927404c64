"""What a module's forward computes: a formula found by a trial on random samples, and where the trial has seen it.

The module is never called, nor a hook: the forward of its class runs on a shallow copy with tensors of its own. The truth is
the formula in float64.
"""

from __future__ import annotations

import copy
import inspect
import itertools
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import _disable_current_modes

from lngrad.torch.operators import epsilon
from lngrad.typing import Tensor

LAST, CHANNELS_FIRST = "last", "channels first"  # which axes are normalized: the last ones, or axis 1
_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
_WIDE = (torch.float32, torch.float64)
_EPS = 0.37  # so large that a forward which does not use the attribute gives itself away
# In float32, in which some classes compute whatever comes; something else is off by more than a hundredth.
_CLOSE, _CLOSE_NARROW = 1e-4, 0.1
_SAME_BITS = 0.9  # of RMS results in 16 bits; a float32 that is summed in another order is seldom rounded otherwise
_LARGE = 30.0  # samples in which no eps matters
_MAX_ELEMENTS = 1 << 16  # of a weight of several dimensions, which is seldom a norm's
_CONTAINERS = dict, list, set
_DIFFERENT = "computes something else"
_BEYOND: dict[str, Callable[[Tensor], Tensor]] = {  # samples in which limits, branches and repairs show
    "one row": lambda x: x[:1],
    "many rows": lambda x: torch.cat([x] * 65),
    "zeros": lambda x: 0 * x,
    "large values": lambda x: 1e4 * x,
    "a NaN": lambda x: torch.cat([x[:1] * torch.nan, x[1:]]),
    "an infinity": lambda x: torch.cat([x[:1] * torch.inf, x[1:]]),
}


class Formula(NamedTuple):
    """What a forward computes. Tensors and eps are named as the module has them.

    Attributes:
        weight, bias: Names of parameters or buffers, None for none.
        eps: A name, or a number that is written into the forward; None: torch's epsilon of what RMS normalization computes in.
        shape: R; None: the last axis, of any size.
        centred, offset: As in Normalization.
        gate: The argument whose silu is a factor, or "".
        norm_before_gate: Whether the gate is a factor of the normalized x, or of x itself.
        group: How many columns are normalized by themselves; None: all.
        is_sigmoid: Whether the gate's factor is its sigmoid, which ours can't do.
        rounded: What theirs rounds on the way to a result in 16 bits, as Llama's formula does; ours rounds once.
        axes: Which axes are normalized, by the rank of x.
        dtypes: The result's dtype, by those of x, weight and bias, the device whose autocast is on, or "", and gate's dtype.
    """

    weight: str | None
    bias: str | None
    eps: str | float | None
    shape: tuple[int, ...] | None
    centred: bool
    offset: float
    gate: str = ""
    norm_before_gate: bool = True
    group: int | None = None
    is_sigmoid: bool = False
    rounded: str = ""
    axes: frozenset[tuple[int, str]] = frozenset()
    dtypes: frozenset[tuple[tuple[Any, Any, Any, str, Any], Any]] = frozenset()


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
                try:
                    trial = _Trial(module, tensors, gate)
                    found = trial.formula()
                except Exception:
                    if gate:  # it is no gate
                        continue
                    raise
                if isinstance(found, Formula):
                    return found
                hinted |= trial.normalizes
                if not reason or not found.startswith("refuses"):
                    reason = found
    except Exception as error:  # whatever somebody's forward does with a sample that it is not made for
        return f"refuses a sample: {type(error).__name__}" if hinted else None
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
        self.module, self.gate = module, gate
        self.normalizes = False  # whether any result does not depend on the size of x
        self.rounded = ""  # as Formula's
        self.kept: set[str] = set()  # names of attributes that their forward sets
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
        self, x: Tensor, gate: Tensor | None, dtype: Any = torch.float32, **settings: Any
    ) -> tuple[Tensor | None, dict[str, Tensor]]:
        """What their forward gives, None for what is no tensor of x's shape, and the tensors of the copy that it ran on."""
        copied: Any = copy.copy(self.module)
        containers = {name: copy.copy(value) for name, value in vars(copied).items() if isinstance(value, _CONTAINERS)}
        copied.__dict__ = self.module.__dict__ | containers | {"training": False} | settings
        tensors = {name: value.to(dtype) for name, value in self.values.items()}
        own = self.module._parameters
        copied._parameters = own | {name: torch.nn.Parameter(value) for name, value in tensors.items() if name in own}
        copied._buffers = self.module._buffers | {name: value for name, value in tensors.items() if name not in own}
        before = _state(copied)
        y: Any = type(self.module).forward(copied, *([x] if gate is None else [x, gate]))
        self.kept |= {name for name, *_ in before ^ _state(copied)}
        is_alike = isinstance(y, torch.Tensor) and y.shape == x.shape
        return y if is_alike else None, copied._parameters | copied._buffers

    def exact(
        self, formula: Formula, layout: str, x: Tensor, gate: Tensor | None, tensors: dict[str, Tensor], eps: float,
        xhat_in: Any = torch.float64, product_in: Any = torch.float64,
    ) -> Tensor:  # fmt: skip
        """The formula in float64; xhat, and what a gate is multiplied with after, rounded on the way."""
        x, shape = x.double(), x.shape
        factor = torch.ones(()) if gate is None else torch.sigmoid(gate.double())
        if gate is not None and not formula.is_sigmoid:
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
        places, others, problem = set(), set(), ""
        for where, x in self.samples.items():
            gate = self._gate(where)
            try:
                with torch.no_grad():
                    y, tensors = self.theirs((x * _LARGE).float(), gate)
                    self.normalizes |= y is not None and self._ignores_size(x, gate, y)
            except Exception as error:  # not made for this rank
                problem = problem or f"refuses a sample: {type(error).__name__}"
                continue
            if y is None:
                problem = problem or "gives another shape"
                continue
            candidates = self._candidates() if found is None else [found]
            fits = [
                candidate
                for candidate in candidates
                if _near(y, self.exact(candidate, where[1], x * _LARGE, gate, tensors, 0.0))
            ]
            if fits:
                found = fits[0]
                places.add(where)
            else:
                others.add(where[0])
        ranks = {rank for rank, _ in places}
        # Of one axis of rows, groups of channels and much else is the same.
        if found is None or (max(ranks) < len(self.shape) + 2 and others - ranks):
            return _DIFFERENT if others else problem
        if found.shape != self.shape:
            return "its weight is per head"
        if found.bias is not None and not found.centred:
            return "is RMS normalization with a bias"
        if found.is_sigmoid:
            return "its gate is a sigmoid"
        return self._with_eps(found, places)

    def _candidates(self) -> list[Formula]:
        """Formulas that may be theirs, some of them not ours: RMS normalization with a bias or a sigmoid, a weight per head."""
        ways: list[Any] = [("", False, None, False)]
        if self.gate and len(self.shape) > 1:
            return []
        if self.gate:
            (N,) = self.shape
            sizes = [n for n in vars(self.module).values() if type(n) is int and 1 < n < N and not N % n]
            groups = dict.fromkeys((None, *sizes, *(N // n for n in sizes)))
            ways = [(self.gate, *way) for way in itertools.product((True, False), groups, (False, True))]
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

    def _gate(self, where: tuple[int, str], dtype: Any = torch.float32) -> Tensor | None:
        return self.gates[where].to(dtype) if self.gate and dtype else None

    def _ignores_size(self, x: Tensor, gate: Tensor | None, y: Tensor) -> bool:
        twice, _ = self.theirs((x * 2 * _LARGE).float(), gate)
        return twice is not None and _near(twice, y) and bool((y - y.reshape(-1)[0]).abs().max() > _CLOSE)

    def _with_eps(self, formula: Formula, places: set[tuple[int, str]]) -> Formula | str:
        where = next(key for key in self.samples if key in places)
        attributes = {name: value for name, value in vars(self.module).items() if isinstance(value, float)}
        for eps in (*attributes, None, *attributes.values(), *(float(f"1e-{power}") for power in range(2, 16)), 0.0):
            found = formula._replace(eps=eps)
            if self._accepts(found, {where}, torch.float32, torch.float32, modes=(False,)):
                return self._where(found, places)
        return "no eps that is added to the variance was found"

    def _sample(self, formula: Formula, where: tuple[int, str], dtype: Any) -> tuple[Tensor, float, dict[str, Any]]:
        """x with a variance of the size of eps, eps, and what it is set to on the copy."""
        if isinstance(formula.eps, str):
            return self.samples[where].to(dtype), _EPS, {formula.eps: _EPS}
        x = self.samples[where].to(dtype)
        eps = epsilon(x) if formula.eps is None else formula.eps
        return (self.samples[where] * (eps or 1e-26) ** 0.5).to(dtype), eps, {}

    # Where they compute it

    def _where(self, formula: Formula, places: set[tuple[int, str]]) -> Formula | str:
        ranks = [rank for rank, _ in places]
        alone = {(rank, layout) for rank, layout in places if ranks.count(rank) == 1}  # else the shape decides
        accepted = {where for where in alone if self._accepts(formula, {where}, torch.float32, torch.float32)}
        if not accepted:
            return f"{_DIFFERENT} in training" if alone else "takes one rank in two layouts"
        where = next(key for key in self.samples if key in accepted)
        if objection := self._objection(formula, where):
            return objection
        dtypes = self._dtypes(formula, accepted, self._pairs(formula, where))
        if formula.weight is None is formula.bias and not hasattr(self.module, "normalized_shape"):
            other = _Trial(self.module, {}, self.gate, size=5)
            if not formula.group and other._accepts(formula, accepted, torch.float32, None):
                formula = formula._replace(shape=None)
        return formula._replace(axes=frozenset(accepted), dtypes=frozenset(dtypes.items()), rounded=self.rounded)

    def _objection(self, formula: Formula, where: tuple[int, str]) -> str:
        """Why a formula whose values are theirs is not theirs, or an empty text."""
        if self.kept:
            return f"its forward sets {', '.join(sorted(self.kept))}"
        if not self._same_derivatives(formula, where, self._gate(where)):
            return "has other derivatives"
        for name, change in _BEYOND.items():
            if not self._holds_for(change, formula, where):
                return f"{_DIFFERENT} with {name}"
        if self._holds_for(lambda x: 1e25 * x, formula, where):  # ours does not: it sums squares in float32
            return "stays right where squares overflow"
        return ""

    def _pairs(self, formula: Formula, where: tuple[int, str]) -> list[tuple[Any, Any]]:
        """The dtypes of x and of the gate that are tried together; None: no gate."""
        pairs = [(dtype, dtype if self.gate else None) for dtype in _DTYPES]
        if self.gate:
            pairs += [(torch.float32, dtype) for dtype in _DTYPES if dtype not in _WIDE]
            alone = not formula.group and self._accepts(formula, {where}, torch.float32, torch.float32, of_gate=None)
            if alone and self._same_derivatives(formula, where, None):
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
        self, formula: Formula, places: set[tuple[int, str]], of_x: Any, of_tensors: Any, autocast: str = "",
        of_gate: Any = torch.float32, modes: tuple[bool, ...] = (False, True),
    ) -> Any:  # fmt: skip
        """The result's dtype if the formula is theirs at all places, in evaluation and in training, else None."""
        found = set()
        try:
            for where in sorted(places):  # a set of words has another order in each process
                x, eps, settings = self._sample(formula, where, of_x)
                gate = self._gate(where, of_gate)
                with torch.no_grad(), torch.autocast("cpu", enabled=bool(autocast)):
                    results = [self.theirs(x, gate, of_tensors, training=mode, **settings) for mode in modes]
                (first, tensors), *others = results
                for y in (first, *(y for y, _ in others if not torch.equal(y, first))):
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

    def _holds_for(self, change: Callable[[Tensor], Tensor], formula: Formula, where: tuple[int, str]) -> bool:
        """Whether it is theirs for a changed sample and tensors a hundred times as large."""
        _, eps, settings = self._sample(formula, where, torch.float32)
        x, gate = change(self.samples[where]).float(), self._gate(where)
        gate = None if gate is None else change(gate)
        large = copy.copy(self)
        large.values = {name: 100 * value for name, value in self.values.items()}
        with torch.no_grad():
            y, tensors = large.theirs(x, gate, **settings)
        exact = self.exact(formula, where[1], x, gate, tensors, eps)
        if y is None or not torch.equal(y.isfinite(), exact.isfinite()):
            return False
        return _near(y.nan_to_num(0, 0, 0), exact.nan_to_num(0, 0, 0))

    def _same_derivatives(self, formula: Formula, where: tuple[int, str], gate: Tensor | None) -> bool:
        x, eps, settings = self._sample(formula, where, torch.float32)
        dy = self._normal(x.shape)
        found = []
        for ours in (False, True):
            x = x.detach().requires_grad_()
            gate = None if gate is None else gate.detach().requires_grad_()
            y, tensors = self.theirs(x, gate, **settings)
            inputs = [tensor for tensor in (x, gate, *tensors.values()) if tensor is not None]
            of = [tensor for tensor in inputs if tensor.requires_grad]
            result: Any = self.exact(formula, where[1], x, gate, tensors, eps) if ours else y
            found.append(torch.autograd.grad(result, of, dy.to(result.dtype), allow_unused=True))
        return all(
            got is wanted if got is None or wanted is None else _near(got, wanted.double(), 1e-3)
            for got, wanted in zip(*found, strict=True)
        )


def _state(module: Any) -> set[tuple[str, int, int]]:
    """What a module's attributes are, and how much is in those that can grow."""
    return {
        (name, id(value), len(value) if isinstance(value, _CONTAINERS) else 0) for name, value in vars(module).items()
    }


def _near(y: Tensor, exact: Tensor, tolerance: float = _CLOSE) -> bool:
    return bool((y - exact).abs().max() <= tolerance * max(1.0, float(exact.detach().abs().max())))


def _share(y: Tensor, exact: Tensor) -> float:
    """How much of a result has the bits of the exact one, or in float32 is close to it."""
    same = y == exact.to(y.dtype) if y.dtype not in _WIDE else (y - exact).abs() <= _CLOSE * (1 + exact.abs())
    return float(same.double().mean())
