"""Derivatives of the operators to any order, in reverse and forward mode.

A derivative is an operator again, or a formula of torch's operations. The same formulas serve twice: registered with the
operators they are what torch.compile and torch.export trace; in eager code autograd.Functions carry them, because torch.func's
transforms and forward mode need more than an operator has. Second derivatives are written by hand: docs/performance.md has the
time of torch.func.vjp.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib import import_module
from typing import Any, TypeAlias

import torch
from torch._functorch.pyfunctorch import retrieve_current_functorch_interpreter
from torch._subclasses.functional_tensor import FunctorchFunctionalizeAPI

from lngrad.core import formulas
from lngrad.core.problem import LAYER_NORM, Normalization
from lngrad.torch import native
from lngrad.torch.calls import accumulator_of
from lngrad.torch.operators import (
    ALL,
    TORCH,
    BackwardSwitches,
    Switches,
    batch,
    composed_backward,
    composed_forward,
    composed_gated,
    gated_norm,
    gated_norm_backward,
    is_of_samples,
    layer_norm,
    layer_norm_backward,
    library,
    norm,
    norm_backward,
    normalization_of,
    one_by_one,
)
from lngrad.typing import Mask, Shape, Tensor

Three: TypeAlias = tuple[Tensor, Tensor, Tensor]

# Inside a Function the call is recorded; the operator need not ask again.
_below_autograd = torch._C._AutoDispatchBelowAutograd


def differentiable_forward(
    x: Tensor, shape: list[int], gamma: Tensor | None, beta: Tensor | None, eps: float, switches: Switches | None = None
) -> tuple[Tensor, ...]:
    """y, mean and rstd, and the total with switches; see the operators."""
    if torch.compiler.is_compiling():
        return (norm if switches else layer_norm)(x, shape, gamma, beta, eps, *(switches or ()))  # type: ignore[no-any-return]
    if not (type(x) in PLAIN and type(gamma) in PLAIN and type(beta) in PLAIN):
        _load_rules(x, gamma, beta)
    x = _that_can_be_saved(x)
    if x.is_cuda and torch.is_autocast_enabled("cuda"):  # here, so that the casts are differentiated too
        x, gamma, beta = map(_as_autocast_has_it, (x, gamma, beta))
        switches = switches and switches._replace(residual=_as_autocast_has_it(switches.residual))
    return _Forward.apply(x, _Whole(shape), gamma, beta, eps, *(switches or ()))


def differentiable_backward(
    dy: Tensor, x: Tensor, shape: list[int], mean: Tensor, rstd: Tensor, gamma: Tensor | None, mask: list[bool],
    switches: BackwardSwitches | None = None,
) -> tuple[Tensor, ...]:  # fmt: skip
    """dx, dgamma and dbeta, without elements where masked off; see the operators."""
    if torch.compiler.is_compiling():
        operator = norm_backward if switches else layer_norm_backward
        return operator(dy, x, shape, mean, rstd, gamma, mask, *(switches or ()))  # type: ignore[no-any-return]
    if not all(type(tensor) in PLAIN for tensor in (dy, x, mean, rstd, gamma)):
        _load_rules(dy, x, mean, rstd, gamma)
    return _Backward.apply(dy, x, _Whole(shape), mean, rstd, gamma, _Whole(mask), *(switches or ()))


PLAIN = frozenset((torch.Tensor, torch.nn.Parameter, type(None)))


# The rules of a subclass of Tensor, by its module and name. They are imported when the first such tensor comes: those for
# DTensors take a second that others need not wait for.
_RULES: dict[tuple[str, str], str] = {}


def register_rules(module: str, name: str, rules: str) -> None:
    """Have a module, which tells torch what the operators do with a subclass, imported when the first such tensor comes."""
    _RULES[module, name] = rules


def _load_rules(*tensors: Any) -> None:
    for (module, name), rules in _RULES.items():
        subclass = getattr(sys.modules.get(module), name, None)
        if subclass is not None and any(isinstance(tensor, subclass) for tensor in tensors):
            import_module(rules)


def _that_can_be_saved(tensor: Tensor) -> Tensor:
    """A copy of a tensor of torch.inference_mode() where gradients may be wanted: torch's own norms save parts alone."""
    return tensor.clone() if torch.is_grad_enabled() and tensor.is_inference() else tensor


def _as_autocast_has_it(tensor: Any) -> Any:
    """Autocast on a GPU computes layer normalization in float32, as torch's own."""
    return tensor if tensor is None or tensor.dtype is torch.float64 else tensor.float()


class _Whole(tuple):  # type: ignore[type-arg]
    """A tuple that torch.func takes as one thing: it counts a plain one's numbers among the tangents, and finds too few."""


def _save_forward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
    x, shape, gamma, beta, _, *rest = inputs
    y, mean, rstd, *total = output
    switches = Switches(*rest)
    ctx.has_residual = switches.residual is not None
    if ctx.has_residual:
        x = total[0]  # that is normalized, and what x and residual were does not matter any more
    ctx.shape, ctx.normalization, ctx.dtype = shape, normalization_of(switches), y.dtype  # x's; a total may be wider
    mean = mean if ctx.normalization.centred else None  # each saved tensor is two microseconds of a compiled step
    ctx.save_for_backward(x, mean, rstd, gamma)
    ctx.beta_dtype = None if beta is None else beta.dtype
    ctx.set_materialize_grads(False)


def _forward_derivative(ctx: Any, dy: Any, dmean: Any, drstd: Any, dtotal: Any = None) -> tuple[Any, ...]:
    x, mean, rstd, gamma = ctx.saved_tensors
    needs = ctx.needs_input_grad
    mask = [needs[0] or any(needs[5:6]), needs[2], needs[3]]
    # Where torch makes zeros of gradients that there are not, those of empty results are empty.
    dmean, dtotal = dmean if ctx.normalization.centred else None, dtotal if ctx.has_residual else None
    dx, dgamma, dbeta = _gradients(
        ctx.shape, ctx.beta_dtype, mask, x, mean, rstd, gamma, dy, dmean, drstd, dtotal, ctx.normalization
    )
    grads = dx.to(ctx.dtype) if needs[0] and dx is not None else None, None, dgamma, dbeta, None
    return (*grads, dx if needs[5] else None, None, None) if len(needs) > 5 else grads


def _gradients(
    shape: Sequence[int], beta_dtype: Any, mask: list[bool], x: Tensor, mean: Tensor, rstd: Tensor, gamma: Tensor | None,
    dy: Tensor | None, dmean: Tensor | None, drstd: Tensor | None, dtotal: Tensor | None = None,
    normalization: Normalization = LAYER_NORM,
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:  # fmt: skip
    """Gradients by x, gamma and beta, each in its own dtype, from those by the results; beta_dtype: None without beta.

    x is the total where there is a residual, whose gradient is x's.
    """
    dgamma = dbeta = None
    dx = dtotal if mask[0] else None
    if dy is not None:
        if dx is None:
            dy = dy.to(x.dtype)  # beside a wider total that nobody used
        dtype, scale = (x if gamma is None else gamma).dtype, gamma
        if beta_dtype not in (None, dtype):  # dbeta comes in gamma's dtype, and must not be rounded twice
            wide = torch.float64 if beta_dtype is torch.float64 else accumulator_of(x, gamma)
            scale = x.new_ones(shape, dtype=wide) if gamma is None else gamma.to(wide)
        plain = normalization is LAYER_NORM and dx is None and not is_of_samples(gamma, shape)
        switches = None if plain else BackwardSwitches(dx, normalization.centred, normalization.offset)
        grads = differentiable_backward(dy, x, list(shape), mean, rstd, scale, mask, switches)
        dx, dgamma, dbeta = (grad if wanted else None for grad, wanted in zip(grads, mask, strict=True))
        if dgamma is not None:
            dgamma = dgamma.to(dtype)
        if dbeta is not None:
            dbeta = dbeta.to(beta_dtype)
    if mask[0] and (dmean is not None or drstd is not None):
        more = formulas.statistics_gradient(
            TORCH, x, mean, rstd, dmean, drstd, normalized=len(shape), normalization=normalization
        )
        dx = more if dx is None else dx + more
    return dx, dgamma, dbeta


def _derivative(
    centred: bool, offset: float, shape: Any, beta_dtype: Any, mask: Any, x: Any, mean: Any, rstd: Any, gamma: Any, dy: Any,
    dmean: Any, drstd: Any, dtotal: Any,
) -> Any:  # fmt: skip
    """_gradients for the native code."""
    normalization = Normalization.of(centred, offset)
    return _gradients(shape, beta_dtype, mask, x, mean, rstd, gamma, dy, dmean, drstd, dtotal, normalization)


native.register("derivative", _derivative)


def _save_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
    dy, x, shape, mean, rstd, gamma, mask, *rest = inputs
    switches = BackwardSwitches(*rest)
    ctx.save_for_backward(dy, x, mean, rstd, gamma)
    ctx.shape, ctx.mask, ctx.normalization = shape, mask, normalization_of(switches)
    ctx.dtotal_dtype = None if switches.dtotal is None else switches.dtotal.dtype
    ctx.set_materialize_grads(False)


def _saved_rows(ctx: Any, x: Tensor, mean: Tensor, rstd: Tensor, gamma: Tensor | None) -> formulas.Rows:
    return formulas.Rows(TORCH, x, mean, rstd, len(ctx.shape), gamma, normalization=ctx.normalization)


def _backward_derivative(ctx: Any, *cotangents: Any) -> tuple[Any, ...]:
    """Derivatives of S = Σ u·dx + Σ p·dgamma + Σ q·dbeta by dy, x, mean, rstd, gamma and dtotal.

    With g = dy·(offset + gamma): Σ u·dx = Σ rstd·(u·g - N·mean(u)·mean(g) - N·mean(u·xhat)·mean(g·xhat)) + u·dtotal, row by
    row; the second term where the normalization is centred.
    """
    dy, x, mean, rstd, gamma = ctx.saved_tensors
    at = _saved_rows(ctx, x, mean, rstd, gamma)
    u, p, q = (
        None if tensor is None or not wanted else tensor.to(at.dtype)
        for tensor, wanted in zip(cotangents, ctx.mask, strict=True)
    )
    dy_wide = dy.to(at.dtype)
    zeros = torch.zeros_like(at.xhat)
    of_dy, of_xhat, of_rstd, of_gamma = zeros, zeros, zeros, None
    if u is not None:
        weight = at.scale(gamma)
        g = dy_wide * weight
        mean_u_xhat, mean_g_xhat = at.mean_of(u * at.xhat), at.mean_of(g * at.xhat)
        of_g = at.rstd * (at.less_mean(u) - at.xhat * mean_u_xhat)
        of_dy = of_g * weight
        of_gamma = at.over_rows(of_g * dy_wide, gamma)
        of_xhat = -at.rstd * (g * mean_u_xhat + u * mean_g_xhat)
        of_rstd = u * (at.less_mean(g) - at.xhat * mean_g_xhat)
    if p is not None:
        of_dy = of_dy + p * at.xhat
        of_xhat = of_xhat + p * dy_wide
    if q is not None:
        of_dy = of_dy + q
    of_x = of_xhat * at.rstd
    of_rstd = (of_rstd + of_xhat * at.centred).sum(at.axes, keepdim=True)
    derivatives = (
        of_dy.to(dy.dtype),
        of_x.to(x.dtype),
        None,
        (-of_x.sum(at.axes, keepdim=True)).reshape(mean.shape).to(mean.dtype) if at.normalization.centred else None,
        of_rstd.reshape(rstd.shape).to(rstd.dtype),
        None if gamma is None or of_gamma is None else of_gamma.to(gamma.dtype),
        None,
    )
    if len(ctx.needs_input_grad) == len(derivatives):
        return derivatives
    of_dtotal = None if u is None or ctx.dtotal_dtype is None else u.to(ctx.dtotal_dtype)
    return (*derivatives, of_dtotal, None, None)


def _tangent_of_total(of_x: Tensor | None, of_residual: Tensor | None) -> Tensor | None:
    return of_x if of_residual is None else of_residual if of_x is None else of_x + of_residual


def _forward_tangents(
    ctx: Any, of_x: Tensor | None, _: None, of_gamma: Tensor | None, of_beta: Tensor | None, __: None, *of_switches: Any
) -> tuple[Tensor, ...]:
    """Tangents of y, mean and rstd, and of the total with switches."""
    x, mean, rstd, gamma = ctx.saved_tensors
    of_total = _tangent_of_total(of_x, Switches(*of_switches).residual)
    of_total = None if of_total is None else of_total.to(x.dtype)
    of_y, of_mean, of_rstd = formulas.forward_tangents(
        TORCH, x, mean, rstd, gamma, of_total, of_gamma, of_beta, normalized=len(ctx.shape),
        normalization=ctx.normalization, dtype_y=ctx.dtype,
    )  # fmt: skip
    if not of_switches:
        return of_y, of_mean, of_rstd
    nothing = x.new_zeros(0)
    if not ctx.has_residual:
        of_total = nothing
    elif of_total is None:
        of_total = torch.zeros_like(x)
    return of_y, nothing if of_mean is None else of_mean, of_rstd, of_total


def _backward_tangents(
    ctx: Any,
    of_dy: Tensor | None,
    of_x: Tensor | None,
    _: None,
    of_mean: Tensor | None,
    of_rstd: Tensor | None,
    of_gamma: Tensor | None,
    __: None,
    *of_switches: Any,
) -> Three:
    """Tangents of dx, dgamma and dbeta, without elements where masked off."""
    dy, x, mean, rstd, gamma = ctx.saved_tensors
    at = _saved_rows(ctx, x, mean, rstd, gamma)
    zeros = torch.zeros_like(at.xhat)
    dy_wide = dy.to(at.dtype)
    of_dy, of_x = (zeros if tangent is None else tangent.to(at.dtype) for tangent in (of_dy, of_x))
    of_mean, of_rstd = (
        zeros if tangent is None or not tangent.numel() else tangent.to(at.dtype).reshape(at.rstd.shape)
        for tangent in (of_mean, of_rstd)
    )
    of_xhat = (of_x - of_mean) * at.rstd + at.centred * of_rstd
    of_dx = of_dgamma = of_dbeta = x.new_zeros(0)
    if ctx.mask[0]:
        weight = at.scale(gamma)
        g, of_g = dy_wide * weight, of_dy * weight
        if of_gamma is not None:
            of_g = of_g + dy_wide * of_gamma.to(at.dtype)
        mean_g_xhat = at.mean_of(g * at.xhat)
        inner = at.less_mean(g) - at.xhat * mean_g_xhat
        of_mean_g_xhat = at.mean_of(of_g * at.xhat + g * of_xhat)
        of_inner = at.less_mean(of_g) - of_xhat * mean_g_xhat - at.xhat * of_mean_g_xhat
        of_dx = of_rstd * inner + at.rstd * of_inner
        if (of_dtotal := BackwardSwitches(*of_switches).dtotal) is not None:
            of_dx = of_dx + of_dtotal.to(at.dtype)
        of_dx = of_dx.to(x.dtype)
    dtype = x.dtype if gamma is None else gamma.dtype
    if ctx.mask[1]:
        of_dgamma = at.over_rows(of_dy * at.xhat + dy_wide * of_xhat, gamma).to(dtype)
    if ctx.mask[2]:
        of_dbeta = at.over_rows(of_dy, gamma).to(dtype)
    return of_dx, of_dgamma, of_dbeta


def is_watched() -> bool:
    """Whether a transform of torch.func or a mode is active, which sees the parts of an operator that torch composes."""
    return bool(torch._C._are_functorch_transforms_active() or torch.utils._python_dispatch._len_torch_dispatch_stack())


def transforms(kind: str) -> int:
    """How many of torch.func's transforms that are under way are of a kind: "Jvp", "Functionalize"."""
    wanted = getattr(torch._C._functorch.TransformType, kind)
    return sum(interpreter.key() == wanted for interpreter in torch._C._functorch.get_interpreter_stack() or ())


class _Function(torch.autograd.Function):  # type: ignore[misc]  # torch is Any to mypy here
    @staticmethod
    def composed(*arguments: Any) -> tuple[Tensor, ...]:
        """The call composed of torch's own operations: for forward mode over forward mode, and ONNX.

        torch calls a Function's jvp with forward mode switched off, so that forward mode over forward mode would find no
        tangents in it, and be 0 without a word.
        """
        raise NotImplementedError

    @classmethod
    def apply(cls, *arguments: Any) -> tuple[Tensor, ...]:
        """torch's apply, without its binding of arguments to names, which costs more than all else where rows are few."""
        if torch._C._are_functorch_transforms_active():
            apply: Callable[..., tuple[Tensor, ...]] = cls.composed if transforms("Jvp") > 1 else super().apply
            return apply(*arguments)
        if not torch.is_grad_enabled() and torch.autograd.forward_ad._current_level < 0:
            return cls.forward(*arguments)  # type: ignore[no-any-return]  # no derivative of this call is ever wanted
        # What has escaped from a transform that is over is unwrapped, as torch's apply does.
        unwrapped = torch._functorch.utils.unwrap_dead_wrappers(arguments)
        return super(torch.autograd.Function, cls).apply(*unwrapped)  # type: ignore[no-any-return]


class _Forward(_Function):
    @staticmethod
    def forward(x: Tensor, shape: Shape, gamma: Any, beta: Any, eps: float, *switches: Any) -> tuple[Tensor, ...]:
        with _below_autograd():
            return (norm if switches else layer_norm)(x, shape, gamma, beta, eps, *switches)  # type: ignore[no-any-return]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
        _save_forward(ctx, inputs, output)
        x, _, gamma, *_ = inputs
        ctx.save_for_forward(output[3] if ctx.has_residual else x, *output[1:3], gamma)

    @staticmethod
    def vmap(info: Any, in_dims: Any, *arguments: Any) -> Any:
        return batch(norm if len(arguments) > 5 else layer_norm, info, in_dims, *arguments)

    composed = staticmethod(composed_forward)
    backward = staticmethod(_forward_derivative)
    jvp = staticmethod(_forward_tangents)


class _Backward(_Function):
    @staticmethod
    def forward(
        dy: Tensor, x: Tensor, shape: Shape, mean: Tensor, rstd: Tensor, gamma: Any, mask: Mask, *switches: Any
    ) -> Three:
        operator = norm_backward if switches else layer_norm_backward
        with _below_autograd():
            return operator(dy, x, shape, mean, rstd, gamma, mask, *switches)  # type: ignore[no-any-return]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
        _save_backward(ctx, inputs, output)
        dy, x, _, mean, rstd, gamma, *_ = inputs
        ctx.save_for_forward(dy, x, mean, rstd, gamma)

    @staticmethod
    def vmap(info: Any, in_dims: Any, *arguments: Any) -> Any:
        return batch(norm_backward if len(arguments) > 7 else layer_norm_backward, info, in_dims, *arguments)

    composed = staticmethod(composed_backward)
    backward = staticmethod(_backward_derivative)
    jvp = staticmethod(_backward_tangents)


class _Gated(_Function):
    composed = staticmethod(composed_gated)

    @classmethod
    def apply(cls, *arguments: Any) -> tuple[Tensor, ...]:
        """Forward mode and transforms take the composed call."""
        if torch.autograd.forward_ad._current_level >= 0 or torch._C._are_functorch_transforms_active():
            return cls.composed(*arguments)
        return super().apply(*arguments)

    @staticmethod
    def forward(*arguments: Any) -> tuple[Tensor, ...]:
        with _below_autograd():
            return gated_norm(*arguments)  # type: ignore[no-any-return]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
        x, ctx.shape, gamma, gate, *ctx.numbers = inputs
        ctx.save_for_backward(x, output[1], gamma, gate)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, dy: Any, _: Any) -> tuple[Any, ...]:
        x, rstd, gamma, gate = ctx.saved_tensors
        mask = [ctx.needs_input_grad[at] for at in (0, 2, 3)]
        dx, dgamma, dgate = _gated_gradients(ctx.shape, mask, x, rstd, gamma, gate, dy, *ctx.numbers)
        return dx, None, dgamma, dgate, None, None, None


class _GatedBackward(_Function):
    """Has no derivatives: a transform that wants some has the composed forward's."""

    @staticmethod
    def forward(*arguments: Any) -> Three:
        with _below_autograd():
            return gated_norm_backward(*arguments)  # type: ignore[no-any-return]

    setup_context = staticmethod(lambda ctx, inputs, output: None)
    vmap = staticmethod(partial(one_by_one, gated_norm_backward))


def _gated_gradients(
    shape: Shape, mask: list[bool], x: Tensor, rstd: Tensor, gamma: Tensor | None, gate: Tensor, dy: Tensor | None, eps: float,
    offset: float, norm_before_gate: bool,
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """dx, dgamma and dgate: by the operator, or where these are to have derivatives by those of the composed call."""
    if dy is None:
        return None, None, None
    if torch.is_grad_enabled():
        tensors = [tensor for tensor in (x, gate, gamma) if tensor is not None]
        y_of = lambda x, z, g=None: composed_gated(x, shape, g, z, eps, offset, norm_before_gate)[0]  # noqa: E731
        dx, dgate, *dgamma = torch.func.vjp(y_of, *tensors)[1](dy)
        return dx, *(dgamma or [None]), dgate
    grads = gated_norm_backward(dy, x, shape, rstd, gamma, gate, mask, offset, norm_before_gate)
    return tuple([grad if wanted else None for grad, wanted in zip(grads, mask, strict=True)])


native.register("gated_derivative", _gated_gradients)


def differentiable_gated(x: Tensor, shape: list[int], gamma: Tensor | None, gate: Tensor, *numbers: Any) -> Tensor:
    """y; see the operator."""
    rest = gamma, gate, *numbers
    if torch.compiler.is_compiling() or torch.jit.is_tracing():
        return gated_norm(x, shape, *rest)[0]
    if native.module is not None and torch.autograd.forward_ad._current_level < 0:  # with forward mode it is composed
        y = native.module.norm(x, shape, *rest)
        if y is not NotImplemented:
            return y
    return _Gated.apply(_that_can_be_saved(x), _Whole(shape), gamma, _that_can_be_saved(gate), *numbers)[0]


if "give_way" in vars(torch.ops.lngrad):
    raise ImportError(
        "lngrad.torch.derivatives: its operators have derivatives; import lngrad.torch.operators anew too"
    )
torch.library.register_autograd(gated_norm, _Gated.backward, setup_context=_Gated.setup_context, lib=library)

for forward, backward in ((layer_norm, layer_norm_backward), (norm, norm_backward)):
    torch.library.register_autograd(forward, _forward_derivative, setup_context=_save_forward, lib=library)
    torch.library.register_autograd(backward, _backward_derivative, setup_context=_save_backward, lib=library)


def _under_transforms(operator: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """The operator where a transform of torch.func is on, also in graphs, which hold nothing but operators.

    torch's own rule for operators knows no forward mode, and its tangents are 0 without a word.
    """

    def call(*arguments: Any) -> Any:
        interpreter = retrieve_current_functorch_interpreter()
        if interpreter.key() != torch._C._functorch.TransformType.Functionalize:
            return tuple(function(*[_Whole(value) if isinstance(value, list) else value for value in arguments]))
        ways = FunctorchFunctionalizeAPI(interpreter)
        inner = ways.unwrap_tensors(arguments)
        with ways.redispatch_to_next():
            results = operator(*inner)
        return ways.wrap_tensors(results)

    return call


_WAYS = _Forward.apply, _Backward.apply, _Forward.apply, _Backward.apply, composed_gated, _GatedBackward.apply
for (name, operator), way in zip(ALL.items(), _WAYS, strict=True):
    library.impl(name, _under_transforms(operator, way), "FuncTorchDynamicLayerFrontMode")

native.load()  # its kernels stand before these
torch.ops.lngrad.give_way = (*([native.module.leave_operators] if native.module else ()), library._destroy)
