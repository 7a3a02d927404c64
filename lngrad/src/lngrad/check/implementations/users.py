"""What users have: functions on NumPy arrays, hosts of Triton kernels, programs, kernels in Ascend C; and planted mistakes."""

from __future__ import annotations

import inspect
import json
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np

from lngrad.check.case import FORWARD
from lngrad.check.implementations.implementation import (
    BACKWARD_ALONE,
    FORWARD_ALONE,
    OVERWRITTEN,
    Arguments,
    Fault,
    Implementation,
    NotApplicable,
    Signature,
    unprepared,
)
from lngrad.check.implementations.ours import on_device
from lngrad.check.layouts import Guarded
from lngrad.core.arrays import as_array
from lngrad.core.norms import NORMS, PLAIN
from lngrad.core.problem import BACKWARD
from lngrad.errors import MISSING, BackendUnavailable, DtypeError, FileFormatError
from lngrad.files.reading import read_tensor
from lngrad.files.writing import write_tensor
from lngrad.support.addresses import as_numpy
from lngrad.support.children import ends_with_parent
from lngrad.support.dtypes import DTYPES, bytes_of, numpy_dtype
from lngrad.typing import Array, Shape

_SKIPPED = 77  # the exit code that says "not for me", as of automake's tests
_MAX_STDERR = 400  # characters of a program's stderr
_MAX_BYTES = 64 << 30

_PARAMETERS = (
    "dy", "x", "mean", "rstd", "variance", "gamma", "eps", "normalized_shape", "output_mask", "output_dtypes",
    "dtotal", "summand", "residual", "alpha", "offset", "gate", "norm_before_gate", "weight",
)  # fmt: skip
_RESULTS = "dx", "dgamma", "dbeta", "dgate"
# Names that torch, llm.c and Apex have for them.
_ALIASES = {
    **dict.fromkeys(("grad_output", "grad_out", "dout", "grad", "dY"), "dy"), **dict.fromkeys(("input", "inp", "X"), "x"),
    "mu": "mean", **dict.fromkeys(("invstd", "rsigma"), "rstd"), "w": "weight",
}  # fmt: skip


def is_backward(function: Any) -> bool:
    """Whether a function takes dy, by one of its names."""
    return "dy" in {_ALIASES.get(name, name) for name in inspect.signature(function).parameters}


def users_function(name: str, on_gpu: bool = False, target: Any = None) -> Implementation:
    """A function of the user's, module:function; it is given what its parameters are named after.

    A NotImplementedError from it skips the case. Results that are masked off are dropped if it does not take the mask. One that
    takes dx, dgamma or dbeta writes these: they are full of NaN, and what it writes beside them is seen. One that takes threads
    can be asked for a number of them.

    Args:
        name: Of the module and the function in it.
        on_gpu: Whether it takes tensors, on the GPU if there is one.
        target: The function, where it is at hand.

    Raises:
        BackendUnavailable: There is no such function, or it takes parameters of other names.
    """
    target = imported(name) if target is None else target
    wanted, written, takes_threads = _parameters_of(name, target)
    threads: dict[str, int] = {}

    def backward(a: Arguments) -> Any:
        arguments = a.map(on_device) if on_gpu else a
        possible = {name: getattr(arguments, of) for name, of in wanted.items()} | threads
        guards = _outputs(a, written)
        outputs = {
            name: guard and (on_device(guard.array) if on_gpu else guard.array) for name, guard in guards.items()
        }
        try:
            with np.errstate(all="ignore") if on_gpu else nullcontext():  # Triton's interpreter computes with NumPy
                returned = target(**possible, **outputs)
        except NotImplementedError as reason:
            raise NotApplicable(str(reason) or f"{name} does not implement it") from None
        results = dict.fromkeys(a.operator.outputs) if returned is None and written else named(returned, name, a)
        for label, array in possible.items():
            if (
                getattr(array, "is_cuda", False)
                and as_numpy(array.cpu()).tobytes() != getattr(a, wanted[label]).tobytes()
            ):
                raise Fault(OVERWRITTEN, f"it changed its input {label}")
        results |= {label: on_host(array) for label, array in outputs.items() if array is not None}
        for label, guard in guards.items():
            if guard is not None and not guard.gaps_unchanged():
                raise RuntimeError(f"it writes outside of {label}")
        results = {label: _narrowed(array, a.dtypes[label]) for label, array in results.items()}
        if "output_mask" not in wanted:  # it can't know which results are not wanted
            return a.masked(**results)
        return a.operator.results(**results)

    switch = (lambda number: threads.update(threads=number)) if takes_threads else None
    signature = Signature(text=BACKWARD_ALONE, call="" if written or on_gpu else _call_of(wanted))
    return Implementation(name, unprepared(backward), norms=NORMS, set_threads=switch, signature=signature)


def _call_of(wanted: Mapping[str, str]) -> str:
    names = {"gamma": "weight", "normalized_shape": "shape", "output_mask": "(True, True, True)"}
    known = {*names, "weight", "dy", "x", "mean", "rstd", "variance", "eps"}
    return (
        f"kernel({', '.join(f'{name}={names.get(of, of)}' for name, of in wanted.items())})"
        if known.issuperset(wanted.values())
        else ""
    )


def imported(name: str) -> Any:
    """What module:NAME or FILE.py:NAME is; the module may be in the current folder.

    Raises:
        BackendUnavailable: There is no such thing.
    """
    module, _, member = name.rpartition(":")
    sys.path.insert(0, str(Path(module).absolute().parent if module.endswith(".py") else Path.cwd()))
    try:
        return attrgetter(member)(_of_file(Path(module)) if module.endswith(".py") else import_module(module))
    except (ImportError, AttributeError) as error:
        raise BackendUnavailable(f"--impl: {name}: {error}") from None
    finally:
        sys.path.pop(0)


def _of_file(path: Path) -> Any:
    """The module of a file, with the file's name."""
    if not path.is_file():
        raise BackendUnavailable(f"--impl: {path}: {MISSING}")
    spec: Any = spec_from_file_location(path.stem, path)
    module = module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def _parameters_of(name: str, function: Any) -> tuple[dict[str, str], list[str], bool]:
    """Which arguments, by its names for them, and which outputs a function takes, and whether it takes threads."""
    parameters = inspect.signature(function).parameters
    catches = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    known = (*_PARAMETERS, *_ALIASES, *_RESULTS, "threads")
    for label, parameter in parameters.items():
        if (
            label not in known
            and parameter.default is parameter.empty
            and parameter.kind not in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL)
        ):
            raise BackendUnavailable(
                f"--impl: {name}: parameters: expected some of {', '.join(_PARAMETERS)}, got {label}"
            )
    wanted = {name: name for name in _PARAMETERS if (catches and name != "weight") or name in parameters}
    wanted |= {alias: name for alias, name in _ALIASES.items() if alias in parameters}
    return wanted, [name for name in _RESULTS if name in parameters], "threads" in parameters


def on_host(array: Any) -> Array:
    return as_numpy(array.cpu() if hasattr(array, "cpu") else array)


def _outputs(a: Arguments, names: Sequence[str]) -> dict[str, Guarded | None]:
    """Memory for results that a function writes itself; None for those that are masked off."""
    memory: dict[str, Guarded | None] = dict.fromkeys(names)
    for name, shape in a.shapes.items():
        if name in names and name in a.wanted:
            memory[name] = Guarded(shape, numpy_dtype(a.dtypes[name]), "plain", np.full(shape, np.nan))
    return memory


def _narrowed(result: Any, dtype: str) -> Any:
    """A float result that is wider than the case declares, rounded; any other stays, and fails."""
    if result is None or result.dtype.name not in DTYPES or result.dtype.itemsize <= bytes_of(dtype):
        return result
    with np.errstate(over="ignore", invalid="ignore"):
        return result.astype(numpy_dtype(dtype))


def named(results: Any, name: str, a: Arguments) -> dict[str, Array | None]:
    """What a user's function returned, as NumPy arrays by name; a dbeta of a norm without beta is dropped.

    Raises:
        FileFormatError: These are not as many arrays or None.
    """
    names, number = a.operator.outputs, len(results) if isinstance(results, tuple | list) else 0
    labels = BACKWARD.outputs if number == len(BACKWARD.outputs) and "dgate" not in names else names
    if number != len(labels):
        raise FileFormatError(f"{name}: expected to return {', '.join(names)}, got {type(results).__name__}")
    pairs = ((label, array) for label, array in zip(labels, results, strict=True) if label in names)
    return {label: None if array is None else _floats(label, array) for label, array in pairs}


def _floats(label: str, result: Any) -> Array:
    """A result as an array of a dtype that is judged, in this machine's order of bytes."""
    array = on_host(as_array(label, result))
    if array.dtype.name not in DTYPES:
        raise DtypeError(f"{label}: expected {', '.join(DTYPES)}, got {array.dtype.name}")
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder())


def mutant(name: str) -> Implementation:
    """A planted mistake, by its name.

    Raises:
        BackendUnavailable: There is none of this name.
    """
    from lngrad.check.mistakes.catalogue import MISTAKES
    from lngrad.check.mistakes.changes import ExactCase, ForwardCase
    from lngrad.check.mistakes.explain import nearest

    if name not in MISTAKES:
        known = f"{len(MISTAKES)} known mistakes{nearest(name)}"
        raise BackendUnavailable(f"--impl: mutant: expected one of {known}, got {name!r}")

    def forward(a: Arguments) -> Any:
        assert a.case is not None  # planted mistakes are for `lngrad check` alone
        assert a.exact is not None
        results = MISTAKES[name].forward(ForwardCase(a.case, a.exact))
        if results is None:
            raise NotApplicable(f"{name} makes no difference to this case")
        return {label: results[label].astype(numpy_dtype(a.case.output_dtypes[label])) for label in a.wanted}

    def backward(a: Arguments) -> Any:
        assert a.case is not None
        assert a.exact is not None
        grads = MISTAKES[name].gradients(ExactCase(a.case, a.exact))
        if grads is None:
            raise NotApplicable(f"{name} makes no difference to this case")
        with np.errstate(over="ignore", invalid="ignore"):
            return a.masked(**{label: getattr(grads, label).astype(numpy_dtype(a.dtypes[label])) for label in a.wanted})

    if MISTAKES[name].family.forward:
        signature = Signature(text=FORWARD_ALONE, gives=tuple(sorted(FORWARD)), backward=False)
        return Implementation(f"mutant:{name}", unprepared(forward), norms=NORMS, signature=signature)
    return Implementation(f"mutant:{name}", unprepared(backward), norms=PLAIN)


def program(template: str) -> Implementation:
    """A program that reads a folder of inputs and writes a folder of results: "./program {in} {out}".

    {in} has dy.bin, x.bin, mean.bin, rstd.bin, variance.bin and gamma.bin, with a residual dtotal.bin, summand.bin and
    residual.bin, with a gate gate.bin (raw elements in C order, absent where the case has none) and case.json, which says their
    dtypes and shapes, eps, the norm and its switches, the mask, and the dtypes of the results. The program writes dx.bin,
    dgamma.bin and dbeta.bin or dgate.bin, or .npy, to {out}. It runs without a shell. Exit code 77 skips the case, with the
    last line of stderr.

    A forward has {y}, or {y,mean,rstd,total} with what it writes, in {out}'s place; its inputs are x.bin, gamma.bin, beta.bin,
    residual.bin and gate.bin.

    Raises:
        BackendUnavailable: The template names no program, or not both folders.
    """
    words, found = shlex.split(template), re.search(r"\{(y(,mean|,rstd|,total)*)\}", template)
    out, gives = (found[0], tuple(found[1].split(","))) if found else ("{out}", ())
    if not words or not all(any(place in word for word in words) for place in ("{in}", out)):
        raise BackendUnavailable(f"--impl: cmd: expected a program with {{in}} and {{out}}, or {{y}}, got {template!r}")
    if shutil.which(words[0]) is None:
        raise BackendUnavailable(f"--impl: cmd: {words[0]}: no such program")

    def backward(a: Arguments) -> Any:
        with tempfile.TemporaryDirectory(prefix="lngrad-check-") as folder:
            inside, outside = Path(folder, "in"), Path(folder, "out")
            inside.mkdir()
            outside.mkdir()
            _write(inside, a, bool(gives))
            command = [word.replace("{in}", str(inside)).replace(out, str(outside)) for word in words]
            with Path(folder, "stderr").open("w+b") as log:  # and no pipe, which what it leaves behind may hold
                try:
                    done = subprocess.run(
                        command, stdout=subprocess.DEVNULL, stderr=log, check=False, preexec_fn=ends_with_parent
                    )
                except OSError as error:
                    raise FileFormatError(f"--impl: cmd: {words[0]}: {error.strerror}") from None
                log.seek(0)
                sentence = log.read().decode(errors="replace").strip()[-_MAX_STDERR:]
            if done.returncode == _SKIPPED:
                raise NotApplicable(sentence.splitlines()[-1] if sentence else f"{words[0]} ended with {_SKIPPED}")
            if done.returncode:
                raise RuntimeError(f"{words[0]} ended with {done.returncode}: {' / '.join(sentence.splitlines()[-4:])}")
            if gives and a.case is not None:
                shapes, dtypes = a.case.shapes_of_results(a.M), a.case.output_dtypes
                return {label: _result(outside, label, shapes[label], dtypes[label]) for label in a.wanted}
            return a.masked(**{label: _result(outside, label, a.shapes[label], a.dtypes[label]) for label in a.wanted})

    return Implementation(
        "cmd", unprepared(backward), norms=NORMS, where="a process a call", simulated=True,
        elsewhere="it runs in a process of its own",
        signature=Signature(text=FORWARD_ALONE if gives else BACKWARD_ALONE, gives=gives, backward=not gives),
    )  # fmt: skip


def _write(folder: Path, a: Arguments, is_forward: bool) -> None:
    names = "dy", "x", "mean", "rstd", "variance", "gamma", "dtotal", "summand", "residual", "gate"
    arrays = {name: getattr(a, name) for name in names if name != "mean" or a.normalization.centred}
    arrays, eps = (a.of_forward(), a.case.eps) if is_forward and a.case is not None else (arrays, a.eps)
    present = {name: np.asarray(array) for name, array in arrays.items() if array is not None}
    for name, array in present.items():
        write_tensor(folder / f"{name}.bin", array)
    facts = {
        "inputs": {name: {"dtype": array.dtype.name, "shape": list(array.shape)} for name, array in present.items()},
        "normalized_shape": list(a.normalized_shape), "eps": eps, "output_mask": list(a.output_mask),
        "output_dtypes": [a.dtypes[name] for name in a.operator.outputs], **a.normalization._asdict(),
    }  # fmt: skip
    (folder / "case.json").write_text(json.dumps(facts, indent=1), "utf-8")


def _result(folder: Path, name: str, shape: Shape, dtype: str) -> Array:
    for suffix in (".npy", ".bin"):
        path = folder / (name + suffix)
        if path.is_file():
            # Mapped, and the folder is about to go: a copy.
            return np.array(read_tensor(path, dtype, shape, _MAX_BYTES))
    raise FileFormatError(f"--impl: cmd: expected {name}.bin or {name}.npy in {{out}}, found neither")
