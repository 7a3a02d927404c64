"""Which formula a module's forward is: found on random samples, of what its reading allows to be evaluated on them.

Where all operations are analytic, formulas that agree on random samples agree everywhere. They are compared in float64,
without casts; then each combination of dtypes is, as far as it is rounded.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import _disable_current_modes

from lngrad.torch.operators import epsilon
from lngrad.torch.reading import Reader, Refused
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
    """What a forward computes: x·rstd·(offset + weight) + bias of the last axes. Tensors are named as the module has them.

    Attributes:
        weight, bias: Names of parameters or buffers, None for none.
        eps: A number, or the name of the attribute that has it; None: torch's epsilon of what RMS normalization computes in.
        shape: R; None: the last axis, of any size.
        centred, offset: As in Normalization.
        rounded: What theirs rounds on the way to a result in 16 bits, as Llama's formula does; ours rounds once.
        axes: Which axes are normalized, by the rank of x; None: the last ones.
        keeps_strides: Whether channels first are so in the result's memory too, where they are in x's.
        dtypes: The result's dtype, by those of x, weight and bias and the device whose autocast is on, or ""; None: x's.
        watched: What the forward depends on, by its path: where it has another value, the forward is the old one.
    """

    weight: str | None = None
    bias: str | None = None
    eps: str | float | None = None
    shape: tuple[int, ...] | None = None
    centred: bool = False
    offset: float = 0.0
    rounded: str = ""
    axes: frozenset[tuple[int, str]] | None = None
    keeps_strides: bool = False
    dtypes: frozenset[tuple[tuple[Any, Any, Any, str], Any]] | None = None
    watched: tuple[tuple[Any, Any], ...] = ()


def learn(module: torch.nn.Module) -> Formula | str | None:
    """A module's formula, or why it is none of ours, in a clause; None where nothing hints at a normalization."""
    is_torchs = isinstance(module, torch.nn.LayerNorm | torch.nn.RMSNorm)
    hinted = is_torchs or ("norm" in type(module).__name__.lower() and not any(True for _ in module.children()))
    named = (*module._parameters.items(), *module._buffers.items())
    tensors = {name: value for name, value in named if value is not None}
    found: Formula | str
    try:
        found = _no_candidate(module, tensors, is_torchs, hinted)
        if not found:
            with undisturbed():
                found = _Trial(module, tensors).formula()
    except Exception as error:  # whatever a module is that is not made for this
        found = f"refuses a sample: {type(error).__name__}"
    return found if hinted or isinstance(found, Formula) else None


def _no_candidate(module: torch.nn.Module, tensors: dict[str, Tensor], is_torchs: bool, hinted: bool) -> str:
    kind, names = type(module), ("__getattr__", "__getattribute__")
    own = next((name for name in names if getattr(kind, name) is not getattr(torch.nn.Module, name)), None)
    values = tensors.values()
    if isinstance(module, torch.jit.ScriptModule):
        return "is a ScriptModule"
    if own or type(kind) is not type:
        return f"its class has {own or 'a metaclass'} of its own"
    if any(True for _ in module.children()):
        return "has submodules"
    if len(tensors) > 2 or not all(value.is_floating_point() for value in values):
        return f"has more parameters: {', '.join(tensors)}"
    if len({tuple(value.shape) for value in values}) > 1:
        return "its weight and bias have two shapes"
    if any(value.numel() == 1 for value in values):
        return "its weight is one number"
    if any(max(value.shape) < value.numel() > _MAX_ELEMENTS for value in values) and not is_torchs:
        return "its weight has several dimensions"
    is_seldom = not tensors and not hinted and not any(isinstance(value, float) for value in vars(module).values())
    return "has no weight" if is_seldom else ""


@contextmanager
def undisturbed() -> Iterator[None]:
    """On the CPU, with derivatives and without the modes, autocast and random numbers of whoever patches."""
    quiet = torch.autocast("cpu", enabled=False), torch.random.fork_rng(devices=[]), warnings.catch_warnings()
    with _disable_current_modes(), torch.device("cpu"), torch.inference_mode(False), quiet[0], quiet[1], quiet[2]:
        warnings.simplefilter("ignore")
        yield


class _Trial:
    """A module's class, and samples for it."""

    def __init__(self, module: torch.nn.Module, tensors: dict[str, Tensor], size: int = 8) -> None:
        self.module, self.reader = module, Reader(module)
        self.rounded = ""  # as Formula's
        self.random = torch.Generator().manual_seed(0)
        self.values = {name: self._normal(value.shape) for name, value in tensors.items()}
        value = next(iter(tensors.values()), None)
        own = getattr(module, "normalized_shape", (size,)) if value is None else (n for n in value.shape if n != 1)
        self.shape: tuple[int, ...] = tuple(own)
        sizes = [n for n in (2, 3) if (n,) != self.shape]
        self.sizes = tuple(itertools.islice(itertools.cycle(sizes), 4))  # of the other axes
        self.samples = {where: self._normal(self._shape(*where)) + 0.5 for where in self._places()}

    def _normal(self, shape: Any) -> Tensor:
        return torch.randn(tuple(shape), dtype=torch.float64, generator=self.random)

    def _places(self) -> Iterator[tuple[int, str]]:
        """Ranks of x and layouts, the usual ones first."""
        for rows in (2, 1, 3, 0, 4):
            yield rows + len(self.shape), LAST
            if len(self.shape) == 1 and rows >= 2:
                yield rows + 1, CHANNELS_FIRST

    def _shape(self, rank: int, layout: str) -> tuple[int, ...]:
        first = self.sizes[: rank - len(self.shape)]
        return (*first, *self.shape) if layout == LAST else (first[0], *self.shape, *first[1:])

    def theirs(
        self, where: tuple[int, str], x: Tensor, dtype: Any = torch.float64, *, exact: bool = False
    ) -> tuple[Tensor | None, dict[str, Tensor]]:
        """What their forward gives, None for what is no tensor of x's shape, and the tensors that it had."""
        tensors = {name: value.to(dtype) for name, value in self.values.items()}
        bound = range(x.ndim - len(self.shape), x.ndim) if where[1] == LAST else (1,)
        is_bound = bool(self.values) or hasattr(self.module, "normalized_shape")
        with torch.no_grad():
            y = self.reader.value(x, tensors, frozenset(bound if is_bound else ()), exact=exact)
        return y if isinstance(y, torch.Tensor) and y.shape == x.shape else None, tensors

    def exact(
        self, formula: Formula, layout: str, x: Tensor, tensors: dict[str, Tensor], eps: float, xhat_in: Any = torch.float64
    ) -> Tensor:  # fmt: skip
        """The formula in float64; xhat rounded on the way."""
        x = x.double()
        axes, along = tuple(range(x.ndim - len(formula.shape or (1,)), x.ndim)), self.shape
        if layout == CHANNELS_FIRST:
            axes, along = (1,), (-1, *(1 for _ in range(x.ndim - 2)))
        if formula.centred:
            x = x - x.mean(axes, keepdim=True)
        y = (x * (x.square().mean(axes, keepdim=True) + eps).rsqrt()).to(xhat_in).double()
        if formula.weight is not None:
            y = y * (formula.offset + tensors[formula.weight].double().reshape(along))
        return y if formula.bias is None else y + tensors[formula.bias].double().reshape(along)

    # What they compute

    def formula(self) -> Formula | str:
        found: Formula | None = None
        places: set[tuple[int, str]] = set()
        others, problem, refusal = set(), "", ""
        for where, sample in self.samples.items():
            x = sample * _LARGE
            try:
                y, tensors = self.theirs(where, x, exact=True)
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
            exact = ((formula, self.exact(formula, where[1], x, tensors, 0.0)) for formula in candidates)
            fits = next((formula for formula, expected in exact if _near(y, expected, _EXACT)), None)
            found = fits or found
            if fits:
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
        names = (*self.values, None, None)
        roles = dict.fromkeys((*itertools.permutations(names[:2]), (None, None)))  # unused ones, too
        return [
            Formula(weight, bias, 0.0, shape, centred, offset)
            for shape in (self.shape, self.shape[-1:])[: len(self.shape)]
            for centred in (True, False)
            for weight, bias in roles
            for offset in ((0.0, 1.0) if weight else (0.0,))
        ]

    def _with_eps(self, formula: Formula, places: set[tuple[int, str]]) -> Formula | str:
        where = next(key for key in self.samples if key in places)
        for eps in (*self.reader.numbers, None, 0.0):
            found = formula._replace(eps=eps)
            if self._is_exact(found, where):
                return self._where(found, {where for where in places if self._is_exact(found, where)}, where)
        return "no eps that is added to the variance was found"

    def _is_exact(self, formula: Formula, where: tuple[int, str]) -> bool:
        """Whether a formula with its eps is theirs in float64 without casts, where the variance is of the size of eps."""
        x, eps = self._sample(formula, where, torch.float64)
        try:
            y, tensors = self.theirs(where, x, exact=True)
        except Exception:  # not made for another size
            return False
        return y is not None and _near(y, self.exact(formula, where[1], x, tensors, eps), _EXACT)

    def _sample(self, formula: Formula, where: tuple[int, str], dtype: Any) -> tuple[Tensor, float]:
        """x with a variance of the size of eps, and eps."""
        x = self.samples[where].to(dtype)
        eps = float(epsilon(x) if formula.eps is None else formula.eps)
        small = eps if dtype is torch.float64 or eps > 1e-13 else 1.0  # float32's squares of less vanish
        return (self.samples[where] * (small or 1e-60) ** 0.5).to(dtype), eps

    # Where they compute it

    def _where(self, formula: Formula, accepted: set[tuple[int, str]], where: tuple[int, str]) -> Formula | str:
        """The formula with its ranks, layouts and dtypes, and whether it is that of any size."""
        dtypes, of_all = {}, _DTYPES if self.values else (None,)
        for of_x, of_tensors, autocast in itertools.product(_DTYPES, of_all, ("", "cpu")):
            result = self._accepts(formula, accepted if self.reader.asks_rank else {where}, of_x, of_tensors, autocast)
            if result is not None:
                dtypes[of_x, of_tensors if formula.weight else None, of_tensors if formula.bias else None, autocast] = (
                    result
                )
        if not dtypes:
            return f"{_DIFFERENT} in every dtype"
        if not self.values and not hasattr(self.module, "normalized_shape"):
            other = _Trial(self.module, {}, size=5)
            formula = (
                formula._replace(shape=None) if all(other._is_exact(formula, where) for where in accepted) else formula
            )
        watched = tuple(self.reader.watched.items())
        results = (self.theirs(where, self.samples[where])[0] for where in accepted if where[1] == CHANNELS_FIRST)
        return formula._replace(
            keeps_strides=all(y is not None and y.is_contiguous() for y in results),
            axes=frozenset(accepted),
            dtypes=frozenset(dtypes.items()),
            rounded=self.rounded,
            watched=watched,
        )

    def _accepts(
        self, formula: Formula, places: set[tuple[int, str]], of_x: Any, of_tensors: Any, autocast: str
    ) -> Any:  # fmt: skip
        """The result's dtype if the formula is theirs at all places, else None."""
        found = set()
        try:
            for where in sorted(places):  # a set of words has another order in each process
                x, eps = self._sample(formula, where, of_x)
                with torch.autocast("cpu", enabled=bool(autocast)):
                    y, tensors = self.theirs(where, x, of_tensors)
                if y is None or not self._is(y, formula, where[1], x, tensors, eps):
                    return None
                found.add(y.dtype)
        except Exception:  # not made for these dtypes
            return None
        return found.pop() if len(found) == 1 else None

    def _is(self, y: Tensor, formula: Formula, layout: str, x: Tensor, tensors: dict[str, Tensor], eps: float) -> bool:
        """Whether a result is the formula's: close, and in 16 bits of RMS normalization rounded as ours, or as Llama's."""
        exact = self.exact(formula, layout, x, tensors, eps)
        if y.dtype in _WIDE and (_near(y, exact) or x.dtype in _WIDE):
            return _near(y, exact)
        if formula.centred:
            return _near(y, exact, _CLOSE_NARROW)
        if _share(y, exact) >= _SAME_BITS:
            return True
        if any(
            _share(y, self.exact(formula, layout, x, tensors, eps, dtype)) >= _SAME_BITS for dtype in {x.dtype, y.dtype}
        ):
            self.rounded = "xhat rounded before weight" if x.dtype is y.dtype else self.rounded
            return True
        return False


def _near(y: Tensor, exact: Tensor, tolerance: float = _CLOSE) -> bool:
    return bool((y - exact).abs().max() <= tolerance * exact.abs().max())


def _share(y: Tensor, exact: Tensor) -> float:
    """How much of a result has the bits of the exact one, or in float32 is close to it."""
    same = y == exact.to(y.dtype) if y.dtype not in _WIDE else (y - exact).abs() <= _CLOSE * (1 + exact.abs())
    return float(same.double().mean())
