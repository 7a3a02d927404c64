"""A program in any language: inputs in files, results in files."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

from lngrad.check.case import OUTPUTS, CheckCase
from lngrad.check.implementations.interface import Implementation, NotApplicable
from lngrad.check.inputs import DrawnInputs
from lngrad.core.problem import Grads
from lngrad.errors import BackendUnavailable, FileFormatError
from lngrad.files.reading import read_tensor
from lngrad.files.writing import write_tensor
from lngrad.typing import Array

SKIPPED = 77  # the exit code that says "not for me", as of automake's tests
MOST_SAID = 400  # characters of a program's stderr
MOST_BYTES = 64 << 30


def command(template: str) -> Implementation:
    """A program that reads a folder of inputs and writes a folder of results: "./program {in} {out}".

    {in} has dy.bin, x.bin, mean.bin, rstd.bin, variance.bin and gamma.bin (raw elements in C order, absent where the case
    has none) and case.json, which says their dtypes and shapes, eps, the mask, and the dtypes of the results. The program
    writes dx.bin, dgamma.bin and dbeta.bin, or .npy, to {out}. It runs without a shell. Exit code 77
    skips the case, with the last line of stderr.

    Raises:
        BackendUnavailable: The template names no program that exists, or not both folders.
    """
    words = shlex.split(template)
    if not words or not all(any(place in word for word in words) for place in ("{in}", "{out}")):
        raise BackendUnavailable(f"--impl: cmd: expected a program with {{in}} and {{out}}, got {template!r}")
    if shutil.which(words[0]) is None:
        raise BackendUnavailable(f"--impl: cmd: {words[0]}: no such program")

    def call(case: CheckCase, given: DrawnInputs) -> Grads:
        with tempfile.TemporaryDirectory(prefix="lngrad-check-") as folder:
            inside, outside = Path(folder, "in"), Path(folder, "out")
            inside.mkdir()
            outside.mkdir()
            _write(inside, case, given)
            made = [word.replace("{in}", str(inside)).replace("{out}", str(outside)) for word in words]
            try:
                done = subprocess.run(made, capture_output=True, check=False, preexec_fn=_ends_with_us)
            except OSError as error:
                raise FileFormatError(f"--impl: cmd: {words[0]}: {error.strerror}") from None
            said = done.stderr.decode(errors="replace").strip()[-MOST_SAID:]
            if done.returncode == SKIPPED:
                raise NotApplicable(said.splitlines()[-1] if said else f"{words[0]} ended with {SKIPPED}")
            if done.returncode:
                raise RuntimeError(f"{words[0]} ended with {done.returncode}: {' / '.join(said.splitlines()[-4:])}")
            return Grads(*(_result(outside, case, name) for name in OUTPUTS))

    return call


def _ends_with_us() -> None:
    """On Linux: a program does not outlive the worker that is ended for its time limit."""
    if sys.platform == "linux":
        import ctypes
        import signal

        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


def _write(folder: Path, case: CheckCase, given: DrawnInputs) -> None:
    one = given.inputs
    arrays = {
        "dy": one.dy,
        "x": one.x,
        "mean": one.mean,
        "rstd": one.rstd,
        "variance": given.variance,
        "gamma": one.gamma,
    }
    present = {name: np.asarray(array) for name, array in arrays.items() if array is not None}
    for name, array in present.items():
        write_tensor(folder / f"{name}.bin", array)
    facts = {
        "inputs": {name: {"dtype": array.dtype.name, "shape": list(array.shape)} for name, array in present.items()},
        "normalized_shape": list(case.normalized), "eps": given.eps, "output_mask": list(case.output_mask),
        "output_dtypes": list(case.output_dtypes),
    }  # fmt: skip
    (folder / "case.json").write_text(json.dumps(facts, indent=1), "utf-8")


def _result(folder: Path, case: CheckCase, name: str) -> Array | None:
    index = OUTPUTS.index(name)
    if not case.output_mask[index]:
        return None
    shape = case.shape if name == "dx" else case.normalized
    for suffix in (".npy", ".bin"):
        path = folder / (name + suffix)
        if path.is_file():
            # Mapped, and the folder is about to go: a copy.
            return np.array(read_tensor(path, case.output_dtypes[index], shape, MOST_BYTES))
    raise FileFormatError(f"--impl: cmd: expected {name}.bin or {name}.npy in {{out}}, found neither")
