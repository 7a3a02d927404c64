"""The CPU kernels of aten's layer normalization, its backward, and aten::rms_norm, replaced and given back.

Ours keep aten's conduct to the letter: which dtypes go together, the dtype of mean and rstd, None for what is masked off.
What they do not take (an error, an empty tensor) goes to the kernel that was there before, and is counted.
aten::rms_norm is composed of other operators on the CPU, derivatives and all: ours stands before autograd, with derivatives of
its own, and leaves what traces, transforms and subclasses want to see in pieces to aten's.
"""

from __future__ import annotations

import inspect
from contextlib import ContextDecorator
from functools import partial
from importlib import import_module
from typing import Any
from weakref import ref

import torch
from torch._subclasses.functional_tensor import FunctionalTensorMode

from lngrad.core import fallbacks as torch_fallbacks
from lngrad.core.arrays import require_memory
from lngrad.core.problem import BACKWARD, FORWARD, LAYER_NORM
from lngrad.errors import LngradError
from lngrad.support.locks import fork_safe_lock
from lngrad.support.whole import whole
from lngrad.torch import calls, derivatives, native, operators

_FORWARD, _BACKWARD, _RMS = "native_layer_norm", "native_layer_norm_backward", "rms_norm"
_ARGUMENTS = {
    _FORWARD: ("input", "normalized_shape", "weight", "bias", "eps"),
    _RMS: ("input", "normalized_shape", "weight", "eps"),
    _BACKWARD: ("grad_out", "input", "normalized_shape", "mean", "rstd", "weight", "bias", "output_mask"),
}
_ALL = FORWARD.everything
_CPU = torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
_SIXTEEN_BITS = (torch.float16, torch.bfloat16)

_lock = fork_safe_lock()
_users: list[_User] = []  # each enable that is not taken back
_libraries: list[Any] = []
_atens: dict[str, Any] = {}
_compiled = False  # whether Inductor has our pass
_settling = False


class _NotOurs(LngradError):
    """aten's own kernel shall do this call; the text says why."""


class _User:
    """Somebody who wants our kernels, as long as an owner is there: a `with` may be interrupted as it ends."""

    def __init__(self, compiled: bool, owner: object = None):
        self.compiled, self._owner = _flag(compiled), None if owner is None else ref(owner)

    @property
    def is_there(self) -> bool:
        return self._owner is None or self._owner() is not None

    def enter(self) -> None:
        """Put our kernels in place, in a moment that no interrupt divides.

        Raises:
            BaseException: What an interrupt's handler raised meanwhile, or installing. Nothing is changed then.
        """
        try:
            whole(partial(_change, self, True))
        except BaseException:
            whole(partial(_change, self, False))
            raise

    def leave(self) -> None:
        """Give aten's kernels back, if nobody else wants ours. An interrupt is raised afterwards."""
        whole(partial(_change, self, False))


def _flag(compiled: Any) -> bool:
    if not isinstance(compiled, bool):
        raise TypeError(f"compiled: expected True or False, got {compiled!r}")
    return compiled


def enable(*, compiled: bool = False) -> None:
    """From now on, in all threads, aten's layer normalization and RMS normalization of CPU tensors are lngrad's.

    Calls are counted: it ends with as many calls of disable.

    Args:
        compiled: The normalizations in code that torch.compile makes with Inductor too, as one operator; y is rounded as
            torch rounds it, and the statistics stay in what the call is computed in. The first such enable, and the disable
            that takes the last one back, reset torch.compile: functions compiled before are compiled anew at their next call.

    Raises:
        TypeError: compiled is no bool.
    """
    _User(compiled).enter()


def disable() -> None:
    """Take the latest enable back; with the last one, aten's own kernels return.

    Raises:
        RuntimeError: Nothing is enabled.
    """
    if not _users:
        raise RuntimeError("disable: expected an enable() before it, got none")
    _users[-1].leave()


class override(ContextDecorator):
    """enable() for a while: `with override():`, or `@override()` on a function.

    Args:
        compiled: As of enable.
    """

    def __init__(self, *, compiled: bool = False):
        self._compiled = _flag(compiled)
        self._entered: list[_User] = []

    def __enter__(self) -> None:
        if torch.compiler.is_compiling():  # where no kernel of aten is called
            return
        user = _User(self._compiled, self)
        self._entered.append(user)
        user.enter()

    def __exit__(self, *exception: object) -> None:
        if torch.compiler.is_compiling():
            return
        self._entered[-1].leave()
        self._entered.pop()

    def __del__(self) -> None:
        for user in getattr(self, "_entered", ()):  # an interrupted object may have none
            user.leave()


def _change(user: _User, wants: bool) -> None:
    """Note what a user wants, and have in place what all want."""
    with _lock:
        if wants != (user in _users):
            (_users.append if wants else _users.remove)(user)
        _settle()


def _settle() -> None:
    """Have in place what users want, and nothing else. What a finalizer wants meanwhile is seen too."""
    global _settling, _compiled
    if _settling:
        return
    _settling = True
    try:
        while True:
            _users[:] = [user for user in _users if user.is_there]
            wants_compiled = any(user.compiled for user in _users)
            if bool(_users) == bool(_libraries) and wants_compiled == _compiled:
                return
            if _users and not _libraries:
                _libraries.extend(_install())
                _forget_keys()
            while _libraries and not _users:
                _libraries.pop()._destroy()
                torch.ops.aten.rms_norm.default.python_key_table.pop(FunctionalTensorMode, None)
                _forget_keys()
            if wants_compiled != _compiled:
                inductor = import_module("lngrad.torch.inductor")  # a second of imports that others don't need
                _compiled = not _compiled
                (inductor.install if _compiled else inductor.remove)()
    finally:
        _settling = False


def _install() -> list[Any]:
    for name in _ARGUMENTS:
        _atens[name] = torch.library.get_kernel(f"aten::{name}", "CPU")
    with native.replacing():
        library = torch.library.Library("aten", "IMPL") if native.module is None else native.module
        try:
            if native.module is not None:
                native.module.install()
            else:
                for key in ("CPU", "AutogradCPU"):
                    library.impl(_RMS, _rms_norm, key)
                library.impl(_FORWARD, _native_layer_norm, "CPU")
                library.impl(_BACKWARD, _native_layer_norm_backward, "CPU")
            torch.ops.aten.rms_norm.default.py_impl(FunctionalTensorMode)(_rms_norm_in_pieces)
        except BaseException:
            library._destroy()
            raise
    return [library]


def _forget_keys() -> None:
    """torch's tracers remember for which keys an operator has kernels, and are not told of ours."""
    for name in _ARGUMENTS:
        getattr(torch.ops.aten, name).default._dispatch_cache.clear()


def _aten(name: str, reason: Exception, *arguments: Any) -> Any:
    """aten's own kernel; but no kernel may read a tensor whose memory is gone, and aten's would."""
    for argument, label in zip(arguments, _ARGUMENTS[name], strict=True):
        if isinstance(argument, torch.Tensor):
            require_memory(label, argument)
    torch_fallbacks.count(name, reason)
    return _atens[name].call_boxed(_CPU, *arguments)


def _parameter_dtype(mask: Any, x: Any, weight: Any, bias: Any) -> Any:
    """The dtype of weight and bias, which is also that of mean and rstd; x's where there are none."""
    dtype = x.dtype if weight is None and bias is None else (bias if weight is None else weight).dtype
    if bias is not None and bias.dtype is not dtype:
        raise _NotOurs("weight and bias have two dtypes")
    if bias is not None and weight is not None and bias.shape != weight.shape:
        raise _NotOurs("weight and bias have two shapes")
    if dtype is not x.dtype and not (dtype is torch.float32 and x.dtype in _SIXTEEN_BITS):
        raise _NotOurs("the dtypes of x and weight do not go together")
    if not x.numel():
        raise _NotOurs("x is empty")
    return dtype


def _gradient_dtype(mask: list[bool], dy: Any, x: Any, mean: Any, rstd: Any, weight: Any, bias: Any) -> Any:
    """The dtype of the parameters' gradients."""
    dtype = _parameter_dtype(mask, x, weight, bias)
    if mean.dtype is not dtype or rstd.dtype is not dtype:
        raise _NotOurs("mean and rstd do not have weight's dtype")
    if (mask[1] and weight is None) or (mask[2] and bias is None):
        raise _NotOurs("the gradient of an absent parameter is wanted")
    return dtype


def _native_layer_norm(x: Any, normalized_shape: Any, weight: Any, bias: Any, eps: float) -> Any:
    try:
        arrays = x, weight, bias
        results = calls.run(FORWARD, arrays, normalized_shape, _ALL, LAYER_NORM, (eps,), _parameter_dtype)
    except LngradError as reason:
        return _aten(_FORWARD, reason, x, normalized_shape, weight, bias, eps)
    return tuple(results)


def _native_layer_norm_backward(
    dy: Any, x: Any, shape: Any, mean: Any, rstd: Any, weight: Any, bias: Any, mask: Any
) -> Any:
    try:
        arrays = dy, x, mean, rstd, weight
        results = calls.run(BACKWARD, arrays, shape, mask, LAYER_NORM, (), _gradient_dtype, (bias,))
    except LngradError as reason:
        return _aten(_BACKWARD, reason, dy, x, shape, mean, rstd, weight, bias, mask)
    return tuple(results)


def _forward_call(x: Any, shape: Any, weight: Any, bias: Any, *_: Any) -> tuple[Any, ...]:
    return (FORWARD, (x, weight, bias), shape, _ALL, LAYER_NORM), _parameter_dtype


def _backward_call(
    dy: Any, x: Any, shape: Any, mean: Any, rstd: Any, weight: Any, bias: Any, mask: Any, *_: Any
) -> tuple[Any, ...]:
    return (BACKWARD, (dy, x, mean, rstd, weight), shape, mask, LAYER_NORM), _gradient_dtype, (bias,)


def _rms_norm(x: Any, normalized_shape: list[int], weight: Any = None, eps: float | None = None) -> Any:
    is_plain = operators.is_dense(x) and type(x) in derivatives.PLAIN and type(weight) in derivatives.PLAIN
    if not is_plain or derivatives.is_watched():
        return _in_pieces(
            "a trace, a transform, a mode or a subclass takes it in pieces", x, normalized_shape, weight, eps
        )
    if _is_checkpointed_in_pieces():
        return _in_pieces("a checkpoint had it in pieces before", x, normalized_shape, weight, eps)
    try:
        if operators.is_of_samples(weight, normalized_shape):
            raise _NotOurs("weight has more dimensions than a row")
        eps = operators.epsilon(x) if eps is None else eps
        return derivatives.differentiable_forward(x, normalized_shape, weight, None, eps, operators.RMS)[0]
    except LngradError as reason:
        return _aten(_RMS, reason, x, normalized_shape, weight, eps)


def _in_pieces(reason: str, *arguments: Any) -> Any:
    torch_fallbacks.count(_RMS, reason)
    return _atens[_RMS].call_boxed(_CPU, *arguments)


def _is_checkpointed_in_pieces() -> bool:
    """Whether this call is the recomputation of one that torch's own operators did, which save other tensors than ours.

    A checkpoint that sees our kernel in its forward recomputes with it, also after disable.
    """
    hooks = torch._C._autograd._top_saved_tensors_default_hooks(True)
    kind = hooks[0].__qualname__.partition(".")[0] if hooks else ""
    if kind not in ("_checkpoint_hook", "_recomputation_hook"):
        return False
    sees = inspect.getclosurevars(inspect.unwrap(hooks[0])).nonlocals
    is_first = kind == "_checkpoint_hook"
    frame: Any = sees.get("frame") if is_first else sees.get("target_frame_ref", lambda: None)()
    if is_first and hasattr(frame, "recompute_fn") and not hasattr(frame, "lngrad_has_rms_norm"):
        frame.recompute_fn = override()(frame.recompute_fn)
        frame.lngrad_has_rms_norm = True
    return not hasattr(frame, "lngrad_has_rms_norm")


def _rms_norm_in_pieces(mode: Any, *arguments: Any, **settings: Any) -> Any:
    """What the decompositions of torch.export have of aten::rms_norm, though there is a kernel: torch's own operators."""
    operator = torch.ops.aten.rms_norm.default
    with mode:
        result = operator.decompose(*arguments, **settings)
    if result is not NotImplemented:  # as for an operator that is to stay whole
        return result
    return mode.__torch_dispatch__(operator, (), arguments, settings)


native.register("aten_forward", _native_layer_norm)
native.register("aten_backward", _native_layer_norm_backward)
native.register("aten_rms_norm", _rms_norm)
native.register("prepare_aten_forward", calls.prepare(_forward_call))
native.register("prepare_aten_backward", calls.prepare(_backward_call))
