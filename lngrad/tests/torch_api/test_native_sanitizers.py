"""The native code of torch under AddressSanitizer and ThreadSanitizer, with several threads, and with mistakes that they find.

torch, Python and the kernels are not built for a sanitizer: it sees what the library reads and writes, and what anybody
allocates, frees, copies and locks. So those reports count that have a frame of the library. What libgomp and the C library
hand from thread to thread by atomics of their own, ThreadSanitizer does not see: UNSEEN.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

pytest.importorskip("torch")

from lngrad.support.compilers import cxx_compiler  # torch may be missing
from lngrad.torch import native
from lngrad.torch.native import building

pytestmark = [
    pytest.mark.slow,  # g++ takes a minute and more for torch's headers
    pytest.mark.timeout(3600),
    pytest.mark.skipif(shutil.which("g++") is None or sys.platform != "linux", reason="needs g++ and its sanitizers"),
]

PROGRAM = r"""
import sys, threading
import torch
from torch.nn import functional as F
import lngrad
import lngrad.torch as lngrad_torch
from lngrad.torch import native

native.module = native._loaded(sys.argv[1])
SHAPES = (64, 64), (130, 3), (300, 512), (1024, 256)  # the last one's results are pooled
CALLS = {
    "F.layer_norm": lambda x, w, b: F.layer_norm(x, x.shape[1:], w, b),
    "layer_norm": lambda x, w, b: lngrad_torch.layer_norm(x, x.shape[1:], w, b),
    "F.rms_norm": lambda x, w, b: F.rms_norm(x, x.shape[1:], w) + b,
    "add_rms_norm": lambda x, w, b: sum(lngrad_torch.add_rms_norm(x, x, x.shape[1:], w)) + b,
    "rms_norm": lambda x, w, b: lngrad_torch.rms_norm(x, x.shape[1:]) * w + b,  # its workspace ends with ones
    "gated_rms_norm": lambda x, w, b: lngrad_torch.gated_rms_norm(x, x.sin(), w) + b,
    "modulated_layer_norm": lambda x, w, b: lngrad_torch.modulated_layer_norm(x.view(2, -1, len(w)), *modulation(w, b)),
    "float32 residual": lambda x, w, b: sum(lngrad_torch.add_rms_norm(x.half(), x, x.shape[1:], w)) + b,
}


def modulation(w, b):
    return torch.stack([torch.cat([w, b]), torch.cat([b, w])]).chunk(2, 1)


random = torch.Generator().manual_seed(1)
GIVEN = {one: (torch.randn(one, generator=random), *torch.randn((2, one[1]), generator=random)) for one in SHAPES}
KEYS = [(name, shape) for shape in SHAPES for name in CALLS]


def bits(name, shape):
    leaves = [values.clone().requires_grad_() for values in GIVEN[shape]]
    y = CALLS[name](*leaves)
    return [y.detach(), *torch.autograd.grad(y.square().sum(), leaves)]


def work(seed):
    try:
        for k in range(int(sys.argv[2])):
            key = KEYS[(7 * seed + k) % len(KEYS)]
            assert all(map(torch.equal, bits(*key), expected[key])), key
    except BaseException as error:
        wrong.append(error)


def change():
    number = 0
    while not over.wait(0.01):
        number += 1
        lngrad.set_num_threads(1 + number % 3)
        with lngrad_torch.override():
            lngrad.empty_cache()


wrong, over = [], threading.Event()
with lngrad_torch.override():
    expected = {key: bits(*key) for key in KEYS}
    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    changing = threading.Thread(target=change)
    for thread in (*threads, changing):
        thread.start()
    for thread in threads:
        thread.join()
    over.set()
    changing.join()
assert not wrong, wrong
print("done")
"""
# Rows of launches, by a driver that launches nothing: results are never written.
LAUNCHES = r"""
import ctypes, sys, threading
import pytest, torch
import lngrad.torch as lngrad_torch
from launches import Device
from lngrad.torch import native

native.module = native._loaded(sys.argv[1])
device, nothing = Device(pytest.MonkeyPatch()), ctypes.CDLL(None).pthread_equal  # of two numbers that are not: 0
Device.use(nothing, nothing)


def work(seed):
    for k in range(int(sys.argv[2])):
        M, N = ((64, 64), (130, 3), (20, 512), (3, 20000))[(seed + k) % 4]
        x, residual, gamma, beta = (torch.zeros(shape).requires_grad_() for shape in ((M, N), (M, N), N, N))
        y, total = lngrad_torch.add_layer_norm(x, residual, N, gamma, beta)
        z = lngrad_torch.rms_norm(total, N, gamma)
        torch.autograd.grad((y, z), (x, residual, gamma, beta), (torch.zeros(M, N), torch.zeros(M, N)))


threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print("done")
"""
# A function in a report that is none: OpenMP's start of a parallel loop; the memory of a thread that has ended.
UNSEEN = ("gomp_team_start", "_dl_deallocate_tls")
# Mistakes that a sanitizer finds, by their text in the sources: memory that is a line too short, and too few words of a
# launch; one table for all threads.
SANITIZERS = "address", "thread"
MISTAKES = [
    ("address", "prepared.h", "std::aligned_alloc(LINE, nbytes)", "std::aligned_alloc(LINE, nbytes - LINE)"),
    (
        "address",
        "prepared.h",
        "c10::SmallVector<int64_t, 64> words(image_.begin(), image_.end()",
        "std::vector<int64_t> words(9",
    ),
    ("thread", "prepared.h", "  thread_local std::unordered_map", "  static std::unordered_map"),
]


def run(folder, sanitizer, mistake, rounds):
    """What the program printed, and the reports that have a frame of the library."""
    sources, library = folder / "sources", folder / f"{native.MODULE}.so"
    shutil.copytree(native.SOURCES, sources)
    if mistake:
        name, right, wrong = mistake
        text = (sources / name).read_text()
        assert text.count(right) == 1
        (sources / name).write_text(text.replace(right, wrong))
    command = building.command(cxx_compiler(), native.torch_folder(), sources, library)
    subprocess.run([*command, "-O1", "-g", f"-fsanitize={sanitizer}"], check=True)
    preloaded = [
        subprocess.run(["g++", f"-print-file-name={name}"], capture_output=True, text=True, check=True).stdout.strip()
        for name in (f"lib{sanitizer[0]}san.so", "libstdc++.so.6")
    ]
    if not all(map(os.path.isabs, preloaded)):
        pytest.skip(f"g++ has no {sanitizer} sanitizer")
    environment = {
        **os.environ,
        "LD_PRELOAD": " ".join(preloaded),
        "PYTHONMALLOC": "malloc",
        native.SWITCH: "0",  # the library of every day
        "TSAN_OPTIONS": "exitcode=0",
        "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1",
        "PYTHONPATH": os.pathsep.join(map(str, Path(__file__).parents[:2])),
    }
    output, reports = "", []
    named = library.name, str(sources)  # AddressSanitizer leaves out the first where it knows the second
    for program in (PROGRAM, *([LAUNCHES] if find_spec("triton") else ())):
        command = [sys.executable, "-c", program, str(library), str(rounds)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        output += done.stdout + done.stderr[-2000:] * (done.returncode != 0)
        reports += re.split(r"^=+$", done.stderr, flags=re.MULTILINE)
    return output, [
        report
        for report in reports
        if "Sanitizer: " in report
        and any(name in report for name in named)
        and not any(unseen in report for unseen in UNSEEN)
    ]


@pytest.mark.parametrize("sanitizer", SANITIZERS)
def test_no_report_names_the_library(sanitizer, tmp_path):
    output, reports = run(tmp_path, sanitizer, None, 60)
    assert not reports, "\n".join(reports[:3])
    assert set(output.split()) == {"done"}


@pytest.mark.parametrize(("sanitizer", "mistake"), [(mistake[0], mistake[1:]) for mistake in MISTAKES])
def test_a_planted_mistake_is_reported(sanitizer, mistake, tmp_path):
    _, reports = run(tmp_path, sanitizer, mistake, 60)
    assert reports
