"""What users have: functions on NumPy arrays, hosts of Triton kernels, programs, kernels in Ascend C; and planted mistakes."""

from __future__ import annotations

import inspect
import json
import re
import runpy
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np

from lngrad.check.case import OUTPUTS
from lngrad.check.implementations.implementation import Arguments, Implementation, NotApplicable, Signature, unprepared
from lngrad.check.implementations.ours import NO_DEVICE, on_device, require_triton, where_triton_runs
from lngrad.check.layouts import Guarded
from lngrad.core.arrays import as_array
from lngrad.core.norms import NORMS, PLAIN
from lngrad.core.problem import Grads
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
_RESULTS = (*OUTPUTS, "dgate")


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

    def backward(a: Arguments) -> Grads:
        arguments = a.map(on_device) if on_gpu else a
        possible = {name: getattr(arguments, name) for name in wanted} | threads
        guards = _outputs(a, written)
        outputs = {name: one and (on_device(one.array) if on_gpu else one.array) for name, one in guards.items()}
        try:
            with np.errstate(all="ignore") if on_gpu else nullcontext():  # Triton's interpreter computes with NumPy
                made = target(**possible, **outputs)
        except NotImplementedError as reason:
            raise NotApplicable(str(reason) or f"{name} does not implement it") from None
        results = three((None,) * len(OUTPUTS) if made is None and written else made, name, a)
        for label, given in possible.items():
            if getattr(given, "is_cuda", False) and as_numpy(given.cpu()).tobytes() != getattr(a, label).tobytes():
                raise RuntimeError(f"it changed its input {label}")
        results = results._replace(**{one: on_host(outputs[one]) for one in outputs if outputs[one] is not None})
        for label, guard in guards.items():
            if guard is not None and not guard.gaps_unchanged():
                raise RuntimeError(f"it writes outside of {label}")
        if "output_mask" not in wanted:  # it can't know which results are not wanted
            results = a.masked(results)
        return a.grads(*(_narrowed(one, dtype) for one, dtype in zip(results, a.dtypes, strict=True)))

    switch = (lambda number: threads.update(threads=number)) if takes_threads else None
    signature = Signature(call="" if written or on_gpu else _call_of(wanted))
    return Implementation(name, unprepared(backward), norms=NORMS, set_threads=switch, signature=signature)


def _call_of(wanted: Sequence[str]) -> str:
    names = {"gamma": "weight", "normalized_shape": "shape", "output_mask": "(True, True, True)"}
    known = {*names, "weight", "dy", "x", "mean", "rstd", "variance", "eps"}
    return f"kernel({', '.join(f'{one}={names.get(one, one)}' for one in wanted)})" if known.issuperset(wanted) else ""


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


def _parameters_of(name: str, function: Any) -> tuple[list[str], list[str], bool]:
    """Which arguments and which outputs a function takes, and whether it takes threads."""
    parameters = inspect.signature(function).parameters
    catches = any(one.kind is one.VAR_KEYWORD for one in parameters.values())
    known = (*_PARAMETERS, *_RESULTS, "threads")
    for label, one in parameters.items():
        if label not in known and one.default is one.empty and one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL):
            raise BackendUnavailable(
                f"--impl: {name}: parameters: expected some of {', '.join(_PARAMETERS)}, got {label}"
            )
    wanted = [one for one in _PARAMETERS if (catches and one != "weight") or one in parameters]
    return wanted, [one for one in _RESULTS if one in parameters], "threads" in parameters


def on_host(array: Any) -> Array:
    return as_numpy(array.cpu() if hasattr(array, "cpu") else array)


def _outputs(a: Arguments, names: Sequence[str]) -> dict[str, Guarded | None]:
    """Memory for results that a function writes itself; None for those that are masked off."""
    found: dict[str, Guarded | None] = {}
    for (name, shape), dtype, wanted in zip(a.shapes.items(), a.dtypes, a.output_mask, strict=True):
        if name in names:
            found[name] = Guarded(shape, numpy_dtype(dtype), "plain", np.full(shape, np.nan)) if wanted else None
    return dict.fromkeys(names) | found


def _narrowed(result: Any, dtype: str) -> Any:
    """A float result that is wider than the case declares, rounded; any other stays, and fails."""
    if result is None or result.dtype.name not in DTYPES or result.dtype.itemsize <= bytes_of(dtype):
        return result
    with np.errstate(over="ignore", invalid="ignore"):
        return result.astype(numpy_dtype(dtype))


def three(results: Any, name: str, a: Arguments) -> Any:
    """What a user's function returned, as NumPy arrays; without a centre it may leave dbeta out, unless dgate is in its place.

    Raises:
        FileFormatError: These are not three arrays or None.
    """
    names = a.grads._fields[: 2 if a.gate is None and not a.normalization.centred else 3]
    if len(names) == 2 and isinstance(results, tuple | list) and len(results) == 2:
        results = (*results, None)
    if not isinstance(results, tuple | list) or len(results) != 3:
        raise FileFormatError(f"{name}: expected to return {', '.join(names)}, got {type(results).__name__}")
    named = zip(a.grads._fields, results, strict=True)
    return a.grads(*(None if one is None else _floats(label, one) for label, one in named))


def _floats(label: str, result: Any) -> Array:
    """A result as an array of a dtype that is judged, in this machine's order of bytes."""
    array = on_host(as_array(label, result))
    if array.dtype.name not in DTYPES:
        raise DtypeError(f"{label}: expected {', '.join(DTYPES)}, got {array.dtype.name}")
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder())


def triton_function(name: str) -> Implementation:
    """A function that launches Triton kernels: it takes tensors, on a GPU, or on the CPU with Triton's interpreter.

    Raises:
        BackendUnavailable: There is no such function, or no Triton.
    """
    require_triton()
    return where_triton_runs(users_function(name, on_gpu=True))


def mutant(name: str) -> Implementation:
    """A planted mistake, by its name.

    Raises:
        BackendUnavailable: There is none of this name.
    """
    from lngrad.check.mistakes.catalogue import MISTAKES
    from lngrad.check.mistakes.changes import ExactCase
    from lngrad.check.mistakes.explain import nearest

    if name not in MISTAKES:
        known = f"{len(MISTAKES)} known mistakes, such as {nearest(name)}"
        raise BackendUnavailable(f"--impl: mutant: expected one of {known}, got {name!r}")

    def backward(a: Arguments) -> Grads:
        assert a.case is not None  # planted mistakes are for `lngrad check` alone
        assert a.exact is not None
        grads = MISTAKES[name].made(ExactCase(a.case, a.exact))
        if grads is None:
            raise NotApplicable(f"{name} makes no difference to this case")
        with np.errstate(over="ignore", invalid="ignore"):
            return a.masked(one.astype(numpy_dtype(dtype)) for one, dtype in zip(grads, a.dtypes, strict=True))

    return Implementation(f"mutant:{name}", unprepared(backward), norms=PLAIN)


def program(template: str) -> Implementation:
    """A program that reads a folder of inputs and writes a folder of results: "./program {in} {out}".

    {in} has dy.bin, x.bin, mean.bin, rstd.bin, variance.bin and gamma.bin, with a residual dtotal.bin, summand.bin and
    residual.bin, with a gate gate.bin (raw elements in C order, absent where the case has none) and case.json, which says their
    dtypes and shapes, eps, the norm and its switches, the mask, and the dtypes of the results. The program writes dx.bin,
    dgamma.bin and dbeta.bin or dgate.bin, or .npy, to {out}. It runs without a shell. Exit code 77 skips the case, with the
    last line of stderr.

    Raises:
        BackendUnavailable: The template names no program, or not both folders.
    """
    words = shlex.split(template)
    if not words or not all(any(place in word for word in words) for place in ("{in}", "{out}")):
        raise BackendUnavailable(f"--impl: cmd: expected a program with {{in}} and {{out}}, got {template!r}")
    if shutil.which(words[0]) is None:
        raise BackendUnavailable(f"--impl: cmd: {words[0]}: no such program")

    def backward(a: Arguments) -> Grads:
        with tempfile.TemporaryDirectory(prefix="lngrad-check-") as folder:
            inside, outside = Path(folder, "in"), Path(folder, "out")
            inside.mkdir()
            outside.mkdir()
            _write(inside, a)
            made = [word.replace("{in}", str(inside)).replace("{out}", str(outside)) for word in words]
            with Path(folder, "stderr").open("w+b") as log:  # and no pipe, which what it leaves behind may hold
                try:
                    done = subprocess.run(
                        made, stdout=subprocess.DEVNULL, stderr=log, check=False, preexec_fn=ends_with_parent
                    )
                except OSError as error:
                    raise FileFormatError(f"--impl: cmd: {words[0]}: {error.strerror}") from None
                log.seek(0)
                said = log.read().decode(errors="replace").strip()[-_MAX_STDERR:]
            if done.returncode == _SKIPPED:
                raise NotApplicable(said.splitlines()[-1] if said else f"{words[0]} ended with {_SKIPPED}")
            if done.returncode:
                raise RuntimeError(f"{words[0]} ended with {done.returncode}: {' / '.join(said.splitlines()[-4:])}")
            each = zip(a.shapes.items(), a.dtypes, a.output_mask, strict=True)
            return a.grads(*(_result(outside, *named, dtype) if wanted else None for named, dtype, wanted in each))

    return Implementation(
        "cmd", unprepared(backward), norms=NORMS, where="a process a call", simulated=True,
        elsewhere="it runs in a process of its own",
    )  # fmt: skip


def _write(folder: Path, a: Arguments) -> None:
    names = "dy", "x", "mean", "rstd", "variance", "gamma", "dtotal", "summand", "residual", "gate"
    arrays = {name: getattr(a, name) for name in names if name != "mean" or a.normalization.centred}
    present = {name: np.asarray(array) for name, array in arrays.items() if array is not None}
    for name, array in present.items():
        write_tensor(folder / f"{name}.bin", array)
    facts = {
        "inputs": {name: {"dtype": array.dtype.name, "shape": list(array.shape)} for name, array in present.items()},
        "normalized_shape": list(a.normalized_shape), "eps": a.eps, "output_mask": list(a.output_mask),
        "output_dtypes": list(a.dtypes), **a.normalization._asdict(),
    }  # fmt: skip
    (folder / "case.json").write_text(json.dumps(facts, indent=1), "utf-8")


def _result(folder: Path, name: str, shape: Shape, dtype: str) -> Array:
    for suffix in (".npy", ".bin"):
        path = folder / (name + suffix)
        if path.is_file():
            # Mapped, and the folder is about to go: a copy.
            return np.array(read_tensor(path, dtype, shape, _MAX_BYTES))
    raise FileFormatError(f"--impl: cmd: expected {name}.bin or {name}.npy in {{out}}, found neither")


NAMES = ("dy", "x", "mean", "rstd", "variance", "gamma", "dtotal", "summand", "residual", "gate", *_RESULTS)
LAST = ("workspace", "tiling")  # behind the arrays, as launch passes them
OPTIONS = ("blocks", "workspace", "tiling", "tiling_key", "define", "include", "headers", "auto_sync")

Host = Callable[..., Mapping[str, Any]]


def ascendc_kernel(name: str) -> Implementation:
    """A kernel by file and function: "kernel.cpp:my_kernel".

    Its parameters are found in the file and bound by name: dy, x, mean, rstd, variance, gamma, gate, dx, dgamma, dbeta or
    dgate, and then workspace and tiling. The host side is a function `host` in a Python file beside it (kernel.py): for M, N,
    dtype, gamma_dtype and eps, as far as it takes them, it returns what the launch needs, see OPTIONS. It raises
    NotImplementedError for a case that the kernel does not take. A dgamma or dbeta of another dtype than gamma has is for
    no kernel: the case says what is written.

    Raises:
        BackendUnavailable: There is no such file or function, or its parameters have other names.
    """
    path, _, kernel = name.rpartition(":")
    source = Path(path)
    if path and not source.exists():
        raise BackendUnavailable(f"--impl: {path}: {MISSING}")
    if not source.is_file() or not kernel:
        raise BackendUnavailable(f"--impl: ascendc: expected FILE.cpp:KERNEL, got {name!r}")
    parameters = _parameters(source, kernel)
    host = _host(source.with_suffix(".py"), needed=bool(set(parameters) & set(LAST)))

    def backward(a: Arguments) -> Grads:
        from lngrad_ascend import ascendc

        options = _options(host, a, source)
        compiled = ascendc.compile(source, kernel, **{one: options.pop(one) for one in ("define", "include", "headers")
                                                      if one in options})  # fmt: skip
        arrays = _arrays(a)
        blocks = options.pop("blocks", 1)
        missing = [one for one in parameters if one in arrays and arrays[one] is None]
        if missing:
            raise NotApplicable(f"{kernel} takes {missing[0]}, which the case does not have")
        ascendc.launch(compiled, blocks, *(arrays[one] for one in parameters if one in arrays), **options)
        return a.masked(arrays[one] if one in parameters else None for one in a.grads._fields)

    return Implementation(
        f"ascendc:{name}",
        unprepared(backward),
        norms=NORMS,
        where="on the simulated NPU",
        simulated=True,
        elsewhere=NO_DEVICE,
    )


def _parameters(source: Path, kernel: str) -> list[str]:
    """The names of a kernel function's parameters, from its text."""
    text = re.sub(r"//[^\n]*|/\*.*?\*/", " ", source.read_text("utf-8"), flags=re.DOTALL)
    plain = re.escape(kernel.partition("<")[0].rpartition("::")[2])
    found = re.search(rf"__global__[^;{{}}()]*\b{plain}\s*\(([^)]*)\)", text)
    if found is None:
        raise BackendUnavailable(f"--impl: ascendc: {source}: expected a __global__ function {kernel}, found none")
    names = [re.findall(r"\w+", one)[-1] for one in found[1].split(",") if one.strip()]
    known = [name.lower() for name in names]
    for name in known:
        if name not in (*NAMES, *LAST):
            expected = ", ".join((*NAMES, *LAST))
            raise BackendUnavailable(f"--impl: ascendc: {kernel}: parameters: expected some of {expected}, got {name}")
    order = [name for name in known if name in LAST]
    if order != [name for name in LAST if name in known] or known[len(known) - len(order) :] != order:
        raise BackendUnavailable(
            f"--impl: ascendc: {kernel}: parameters: expected workspace and tiling last, got {', '.join(known)}"
        )
    return known


def _host(path: Path, needed: bool) -> Host | None:
    if not path.is_file():
        if needed:
            raise BackendUnavailable(f"--impl: ascendc: expected the host side in {path}, for workspace and tiling")
        return None
    host = runpy.run_path(str(path)).get("host")
    if not callable(host):
        raise BackendUnavailable(f"--impl: ascendc: {path}: expected a function host")
    return host  # type: ignore[no-any-return]  # whatever the file defines


def _options(host: Host | None, a: Arguments, source: Path) -> dict[str, Any]:
    if host is None:
        return {}
    gamma_dtype = None if a.gamma is None else a.gamma.dtype.name
    possible = {"M": a.M, "N": a.N, "dtype": a.x.dtype.name, "gamma_dtype": gamma_dtype, "eps": a.eps}
    wanted = inspect.signature(host).parameters
    try:
        options = dict(host(**{name: value for name, value in possible.items() if name in wanted}))
    except NotImplementedError as reason:
        raise NotApplicable(str(reason)) from None
    for option in options:
        if option not in OPTIONS:
            raise BackendUnavailable(f"{source}: host: expected some of {', '.join(OPTIONS)}, got {option}")
    return options


def _arrays(a: Arguments) -> dict[str, Any]:
    """All that a kernel may take: inputs of its own, and outputs in the declared dtypes, filled so that gaps are seen."""
    given = {name: getattr(a, name) for name in NAMES if name not in _RESULTS}
    arrays: dict[str, Any] = {name: None if one is None else np.ascontiguousarray(one) for name, one in given.items()}
    for (name, shape), dtype in zip(a.shapes.items(), a.dtypes, strict=True):
        arrays[name] = np.full(shape, np.nan, numpy_dtype(dtype))
    return dict.fromkeys(NAMES) | arrays
