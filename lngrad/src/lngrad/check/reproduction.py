"""The smallest case that fails as another one does, and a script of it that runs without lngrad."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from time import monotonic

from lngrad.check.calls.kernel import KernelError
from lngrad.check.case import CheckCase, Options
from lngrad.check.case_calls import CaseCalls, Kernels
from lngrad.check.implementations import NotApplicable, Signature
from lngrad.check.standards import AUTO, usual
from lngrad.core.problem import Normalization
from lngrad.support.compilers import python
from lngrad.support.dtypes import UNIT_ROUNDOFF

SEARCH_SECONDS, SCRIPT_SECONDS = 10.0, 60.0
SHOWN_BY_CALLS = ("no gradient", "backward raises", "another shape")
_APART = (  # which begins a program that can't write our memory
    "import os, sys; from lngrad.support.children import give_up_access; give_up_access(); os.execv(sys.argv[1], sys.argv[1:])"
)
_ITS_OWN = (b"ImportError", b"ModuleNotFoundError", b"NameError", b"SyntaxError")  # a script that does not fit
MANY = 24  # units of roundoff of the largest element: a right result is nearer, also in sums of many rows
_ROWS = (1, 2, 3, 5, 8, 17, 33, 65, 129, 300, 600, 2000)
_COLUMNS = (3, 5, 8, 17, 32, 33, 64, 100, 128, 257, 513, 1024, 4096)
# How x or dy is made from an array of another shape: that shape, and what is written behind it.
_LAYOUTS = {
    "every second": ("(2 * M, 2 * N)", "[::2, ::2]"),
    "reversed axes": ("(N, M)", ".T"),
    "corner": ("(M + 1, N + 1)", "[:-1, :-1]"),
    "shared": ("(1, N)", ".expand(M, N)"),
}
_DRAWN = """{imports} as kernel
{seed}
M, N, eps, shape = {M}, {N}, {eps!r}, ({N},)
draw = lambda size, dtype: {draw}
x, dy = draw({x[0]}, {dtype}){x[1]}, draw({dy[0]}, {dtype}){dy[1]}
weight, bias = draw(N, {gamma}), draw(N, {gamma})
{gradients}
for name, one, right, unit in zip({names}, got, true, {units}):
    error = abs({one} - right).max() / abs(right).max()
    assert error <= {many} * unit, f"{{name}} is off by {{error:.2g}} of its largest element"
"""
# Their gradients, and what these should be.
_TORCH = """leaves = [one.requires_grad_() for one in ({leaves},)]
y = {call}
y = y[0] if isinstance(y, tuple) else y
got = *torch.autograd.grad(y, leaves, dy.to(y.dtype)), y
wide = [one.detach().double().requires_grad_() for one in leaves]
right = torch.nn.functional.{reference}
true = *torch.autograd.grad(right, wide, dy.double()), right"""
_NUMPY = """X, DY, W = (one.astype(float) for one in (x, dy, weight))
mean = {mean}
rstd = 1 / np.sqrt(((X - mean) ** 2).mean(-1, keepdims=True) + eps)
xhat, dxhat = (X - mean) * rstd, DY * {scale}
{call}
right = xhat * {scale} + {bias}
true = {true}"""


def smallest(case: CheckCase, mistake: str | None, options: Options, kernels: Kernels) -> CheckCase:
    """The case, or one of fewer elements that is wrong too, as far as a search of some seconds finds it.

    Args:
        mistake: Where a call showed it and gave no results, a smaller one must show it too.
    """
    end, standard = monotonic() + SEARCH_SECONDS, case.standard or options.standard
    standard = usual(case.dtype) if standard == AUTO else standard
    sizes = [(M, N) for M in _ROWS for N in _COLUMNS if M <= case.M and N <= case.N and M * N < case.M * case.N]
    for M, N in sorted(sizes, key=lambda size: (size[0] * size[1], size)):
        small = replace(case, lead=(M,), normalized=(N,))
        if monotonic() > end or case.files:
            break
        try:
            calls = CaseCalls(small, options, standard, kernels)
            wrong = not calls.compared(calls.first()).passed and mistake not in SHOWN_BY_CALLS
        except NotApplicable:
            continue
        except KernelError as error:
            wrong = error.mistake is not None and error.mistake == mistake
        if wrong:
            return small
    return case


def script(impl: str, signature: Signature, case: CheckCase) -> str | None:
    """A script that makes this case's mistake show, of random inputs; None where there is none, or it shows nothing.

    It has been run: its last line raises AssertionError, or the call an error.
    """
    if not signature.call or case.residual or case.gated or len(case.shape) != 2:
        return None
    if signature.library == "jax" and len(signature.gives) > 1:
        return None
    case, torch = signature.fitted(case), signature.library == "torch"
    module, _, name = impl.rpartition(":")
    top, _, inner = name.partition(".")
    dtypes = [f"torch.{array}" if torch else f"ml_dtypes.{array}" if array == "bfloat16" else repr(array)
              for array in (case.dtype, case.gamma_dtype or case.dtype)]  # fmt: skip
    views = [_LAYOUTS.get(case.layouts.get(name, ""), ("(M, N)", "")) for name in ("x", "dy")]
    norm, call = case.normalization, signature.call.replace("kernel", f"kernel.{inner}") if inner else signature.call
    has = True, signature.weight, signature.bias and norm.has_beta
    leaves = ", ".join(name for name, is_there in zip(("x", "weight", "bias"), has, strict=True) if is_there)
    gradients = _gradients(signature, norm, call, leaves)
    grads = [f"d{name}" for name in ("x", "gamma", "beta")]
    names = [name for name, is_there in zip(grads, has, strict=True) if is_there and signature.backward]
    names += ["y"] * bool(signature.gives)
    library = "torch" if torch else "numpy as np, ml_dtypes" + ", jax" * (signature.library == "jax")
    text = _DRAWN.format(
        imports=f"import {library}\n{_import_of(module, top)}", M=case.M, N=case.N, eps=case.eps, dtype=dtypes[0],
        gamma=dtypes[1],
        seed="torch.manual_seed(0)" if torch else "rng = np.random.default_rng(0)",
        draw="(4 * torch.rand(size) - 2).to(dtype)" if torch else "rng.uniform(-2, 2, size).astype(dtype)",
        x=views[0], dy=views[1], gradients=gradients, many=MANY, one="one.double()" if torch else "np.asarray(one, float)",
        names=names, units=tuple(UNIT_ROUNDOFF[case.output_dtypes[name]] for name in names),
    )  # fmt: skip
    return text if _shows(text) else None


def _gradients(signature: Signature, norm: Normalization, call: str, leaves: str) -> str:
    """The lines that call the kernel, and those of the right gradients."""
    if signature.library == "torch":
        parameters = [f"wide[1] + {norm.offset}" if norm.offset else "wide[1]"] if signature.weight else ["None"]
        parameters += [("wide[-1]" if signature.bias else "None")] * norm.has_beta
        operator = "layer_norm" if norm.centred else "rms_norm"
        reference = f"{operator}(wide[0], shape, {', '.join(parameters)}, eps)"
        return _TORCH.format(leaves=leaves, call=call, reference=reference)
    if signature.library == "jax":
        call = f"y, pull = jax.vjp(lambda {leaves}: {call}, {leaves})\ngot = *pull(dy.astype(y.dtype)), y"
    elif signature.gives:
        call = f"y = {call}\ngot = [y[0] if isinstance(y, tuple) else y]"
    else:
        call = f"variance = 1 / rstd**2 - eps\ngot = {call}"
    mean_dxhat = "dxhat.mean(-1, keepdims=True) - " if norm.centred else ""
    true = [f"rstd * (dxhat - {mean_dxhat}xhat * (dxhat * xhat).mean(-1, keepdims=True))"] * signature.backward
    true += ["(DY * xhat).sum(0)"] * (signature.backward and signature.weight)
    has_bias = signature.bias and norm.has_beta
    true += ["DY.sum(0)"] * (signature.backward and has_bias) + ["right"] * bool(signature.gives)
    return _NUMPY.format(
        call=call, bias="np.asarray(bias, float)" if has_bias else "0.0", true=f"{', '.join(true)},",
        scale=f"(W + {norm.offset})" if signature.weight else "1.0",
        mean="X.mean(-1, keepdims=True)" if norm.centred else "0.0",
    )  # fmt: skip


def _import_of(module: str, name: str) -> str:
    if not module.endswith(".py"):
        return f"from {module} import {name}"
    return f"import sys\nsys.path.insert(0, {str(Path(module).parent)!r})\nfrom {Path(module).stem} import {name}"


def _shows(text: str) -> bool:
    """Whether a script ends with an error that is not its own."""
    words, paths = python(_APART, sys.executable, "-c", text), {"PYTHONPATH": os.pathsep.join(sys.path)}
    with tempfile.TemporaryFile() as log:  # a pipe would be waited for as long as what the kernel leaves behind has it
        try:
            done = subprocess.run(
                words, env=os.environ | paths, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log,
                timeout=SCRIPT_SECONDS, check=False, start_new_session=True,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return False
        log.seek(0)
        lines = log.read().splitlines()
    return done.returncode == 1 and bool(lines) and not lines[-1].startswith(_ITS_OWN)
