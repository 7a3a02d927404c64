"""Kernels on disk: found again without Numba, stale when what they depend on changes, no error where none can be written."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import sys
import time

import pytest

from lngrad.cpu import cache, entries
from lngrad.cpu.processors import HERE
from lngrad.support.cache_folder import cache_folder, keep, kept, mark_used

PROGRAM = """
import hashlib, sys
import numpy as np, lngrad
exec(sys.argv[1])
x = np.random.default_rng(0).standard_normal((512, 300)).astype(np.float32)
f = lngrad.layer_norm(x)
g = lngrad.layer_norm_backward(x[::-1].copy(), x, f.mean, f.rstd)
lngrad.set_num_threads(1)
h = lngrad.layer_norm_backward(x[::-1].copy(), x, f.mean, f.rstd)
from lngrad.cpu import cache
bits = hashlib.sha256(b"".join(a.tobytes() for a in (f.y, g.dx, g.dgamma, g.dbeta, h.dx, h.dgamma))).hexdigest()
print(bits, cache.why_not() is None, "numba" in sys.modules, "llvmlite" in sys.modules)
"""
# The smallest function: what a folder or a processor does to it, it does to all.
SMALL = """
import sys
exec(sys.argv[1])
import numpy as np
from lngrad.cpu import cache
from lngrad.cpu.entries import entry_function
from lngrad.cpu.jobs import ARGUMENTS, TICKETS
job = np.full(ARGUMENTS, 7)
entry_function("begin")(job.ctypes.data, 1)
print(job[TICKETS], cache.why_not() is None, "numba" in sys.modules, "llvmlite" in sys.modules)
"""
WITHOUT_HOME = "from pathlib import Path\ndef none(): raise RuntimeError\nPath.home = none"
WITHOUT_LINKER = """
from lngrad.support import compilers
def none(): raise FileNotFoundError("no compiler")
compilers.c_compiler = none
"""
OTHER_PROCESSOR = "from lngrad.core import machine\nmachine.processor_identity = lambda: 'another'"


def run(folder, setting="", program=PROGRAM, warning="", variables=(), **options):
    environment = {**os.environ, "XDG_CACHE_HOME": str(folder), **dict(variables)}
    command = [sys.executable, "-c", program, setting]
    result = subprocess.run(command, capture_output=True, text=True, env=environment, **options)
    text = re.sub(r"lngrad: compiling kernels for .* ahead\n", "", result.stderr)  # after two seconds
    assert re.search(warning, text) if warning else text == ""
    return result.stdout.split()


def files(folder):
    return {path.name: path.stat().st_mtime_ns for path in (folder / "lngrad").iterdir()}


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """A folder with the kernels of two calls, copied from where the suite keeps its own, and their bits."""
    folder = tmp_path_factory.mktemp("kernels")
    bits, *_ = run(cache_folder().parent)
    kernels_alone = shutil.ignore_patterns("tests", "ascendc-*", "torch-*")
    shutil.copytree(cache_folder(), folder / "lngrad", ignore=kernels_alone)
    return folder, bits


def test_a_second_process_compiles_nothing(compiled):
    """Nor does it import what could; its bits are those of the process that compiled."""
    folder, bits = compiled
    written = files(folder)
    assert len(written) >= 4
    assert run(folder) == [bits, "True", "False", "False"]
    assert files(folder) == written


def test_llvm_loads_kernels_where_nothing_links(tmp_path):
    for _ in range(2):  # compiled, then found
        assert run(tmp_path, WITHOUT_LINKER, SMALL) == ["0", "True", "True", "True"]
        assert sorted(name.partition("-")[2][-2:] for name in files(tmp_path) if "stamps" not in name) == [".o"]


@pytest.mark.slow
def test_kernels_that_llvm_loads_have_the_same_bits(tmp_path, compiled):
    assert run(tmp_path, WITHOUT_LINKER, PROGRAM)[0] == compiled[1]


def test_kernels_of_another_processor_are_not_used(tmp_path):
    assert run(tmp_path, program=SMALL) == ["0", "True", "True", "True"]
    written = files(tmp_path)
    assert run(tmp_path, OTHER_PROCESSOR, SMALL) == ["0", "True", "True", "True"]
    assert files(tmp_path).items() > written.items()
    assert run(tmp_path, program=SMALL) == ["0", "True", "False", "False"]


def test_a_folder_that_cannot_be_made_is_no_error(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    assert run(blocked, program=SMALL) == ["0", "False", "True", "True"]


def test_no_home_directory_is_no_error():
    assert run("", WITHOUT_HOME, SMALL) == ["0", "False", "True", "True"]


def test_numba_settings_are_in_the_key(tmp_path):
    """In the environment and in Numba's file; a Numba that was imported with others before makes no difference."""
    variables = {"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": ""}
    assert run(tmp_path, program=SMALL) == ["0", "True", "True", "True"]
    assert run(tmp_path, program=SMALL, variables=variables) == ["0", "True", "True", "True"]
    written = files(tmp_path)
    another = "haswell" if HERE == "x86_64" else "cortex-a57"
    late = f"import os\nimport numba\nos.environ.update(NUMBA_CPU_NAME='{another}', NUMBA_CPU_FEATURES='')"
    check = f"\nfrom lngrad.cpu.kernels import functions\nassert functions.PROCESSOR == '{another}'"
    assert run(tmp_path, late + check, SMALL) == ["0", "True", "True", "True"]
    written = files(tmp_path)
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / ".numba_config.yaml").write_text("cpu_name: generic\ncpu_features: ''\n")
    assert run(tmp_path, program=SMALL, cwd=folder) == ["0", "True", "True", "True"]
    assert len(files(tmp_path)) == len(written) + 1
    assert run(tmp_path, program=SMALL) == run(tmp_path, program=SMALL, cwd=folder) == ["0", "True", "False", "False"]


def test_a_folder_that_cannot_be_written_is_read(tmp_path):
    run(tmp_path, program=SMALL)
    read_only = (
        "from lngrad.support import cache_folder\ndef refuse(*_): raise OSError\ncache_folder.write_whole = refuse"
    )
    assert run(tmp_path, read_only, SMALL) == ["0", "True", "False", "False"]


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="no owners of files")
def test_a_folder_that_others_can_write_is_not_used(tmp_path):
    run(tmp_path, "import os\nos.umask(0)", SMALL)
    folder = tmp_path / "lngrad"
    assert folder.stat().st_mode & 0o777 == 0o700
    folder.chmod(0o777)
    written = files(tmp_path)
    assert run(tmp_path, program=SMALL, warning="is not used: every user can write") == ["0", "False", "True", "True"]
    assert files(tmp_path) == written
    folder.chmod(0o775)  # one's own group: others may be in it
    assert run(tmp_path, program=SMALL, warning="is not used: group .* can write") == ["0", "False", "True", "True"]
    folder.chmod(0o755)
    assert run(tmp_path, program=SMALL) == ["0", "True", "False", "False"]
    stranger = "import os\nmine = os.geteuid()\nos.geteuid = lambda: mine + 1" if os.geteuid() else ""
    if not stranger:
        os.chown(folder, 12345, -1)
    warning = "is not used: it belongs to user"
    assert run(tmp_path, stranger, SMALL, warning=warning) == ["0", "False", "True", "True"]


def test_swapped_files_are_not_taken_for_each_other(tmp_path):
    """A file is whole, but of another kernel: its function has another name."""
    two = SMALL.replace('entry_function("begin")', 'entry_function("cancel")\nentry_function("begin")')
    run(tmp_path, program=two)
    library, other = sorted(path for path in (tmp_path / "lngrad").iterdir() if path.suffix == ".so")
    content = library.read_bytes()
    library.write_bytes(other.read_bytes())
    other.write_bytes(content)
    assert run(tmp_path, program=two) == ["0", "True", "True", "True"]
    assert run(tmp_path, program=two) == ["0", "True", "False", "False"]


LINKS = pytest.mark.skipif(not entries._LINKS, reason="kernels are linked on Linux")


@LINKS
def test_a_function_that_is_missing_is_an_error_and_never_called(tmp_path):
    """Such as a conversion that only some compilers' libraries have."""
    llvm = pytest.importorskip("llvmlite.binding")
    from lngrad.cpu import compiling

    text = "declare void @nobody_has_this()\ndefine void @f() { call void @nobody_has_this() ret void }"
    code = compiling._machine(compiling.PROCESSOR, compiling.FEATURES).emit_object(llvm.parse_assembly(text))
    library = tmp_path / "f.so"
    library.write_bytes(entries._link(code))
    assert entries._open(library, "f") is None
    assert entries._open(tmp_path / "none.so", "f") is None


def test_an_address_of_zero_raises(monkeypatch):
    monkeypatch.setattr(entries, "_load", lambda *_: None)
    monkeypatch.setattr(entries, "_compile", lambda *_: 0)
    with pytest.raises(RuntimeError, match="kernel: expected an address of nothing, got 0"):
        entries.kernel_address("nothing", "", "")


FORK = """
import os, sys, threading, time
from lngrad.cpu import entries
entries.entry_address("begin")
from lngrad.cpu import compiling
original, compiles = compiling.compile_kernel, threading.Event()
def slowly(*key):
    compiles.set()
    time.sleep(0.3)
    return original(*key)
compiling.compile_kernel = slowly
thread = threading.Thread(target=entries.entry_address, args=("cancel",))
thread.start()
compiles.wait()
child = os.fork()
if child == 0:
    entries.entry_address("share")
    os._exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
thread.join()
entries.entry_address("join")
print("ok")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_child_forked_while_a_thread_compiles_can_compile(tmp_path):
    assert run(tmp_path, program=FORK, timeout=120) == ["ok"]


IMPORTS = """
import importlib.abc, os, signal, sys, threading, time
import numpy as np
import lngrad
class Slow(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "lngrad.cpu.policy":
            imports.set()
            time.sleep(0.5)
def bits(dtype):  # of what is compiled in a second, where a forward takes eight
    x = np.random.default_rng(1).standard_normal((3, 40)).astype(dtype)
    return lngrad.layer_norm_backward(x, x, x[:, 0], x[:, 1], output_mask=(False, False, True)).dbeta.tobytes()
sys.meta_path.insert(0, Slow())
imports = threading.Event()
thread = threading.Thread(target=bits, args=("float32",))
thread.start()
imports.wait()
read, write = os.pipe()
child = os.fork()
if child == 0:
    signal.alarm(60)
    os.write(write, bits("float64"))
    os._exit(7)
thread.join()
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
assert os.read(read, 1 << 16) == bits("float64")
print("ok")
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_child_forked_while_a_call_imports_can_call(tmp_path):
    """Another thread imports kernels, and then compiles one: Python's locks of modules are free in the child, and ours too."""
    assert run(tmp_path, program=IMPORTS, timeout=120) == ["ok"]


LOGS = """
import os, threading, time
from lngrad.cpu import entries
import logging
compiles = threading.Event()
def compile_and_log():
    with entries._compiling:
        compiles.set()
        time.sleep(0.5)
        logging.getLogger("one that is new")
thread = threading.Thread(target=compile_and_log, daemon=True)
thread.start()
compiles.wait()
child = os.fork()
if child == 0:
    os._exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
print("ok")
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_a_fork_waits_for_a_compilation_that_logs(tmp_path):
    """A fork takes logging's lock as it takes ours; in another order, both wait for ever. Numba logs while it compiles."""
    assert run(tmp_path, program=LOGS, timeout=120) == ["ok"]


def stamps(**changes):
    """The stamps, where some sources are changed: module -> (old text, new text)."""
    texts = {module: path.read_bytes() for module, path in cache.SOURCES.items()}
    compiler = cache._COMPILER.read_bytes()
    for name, (old, new) in changes.items():
        if name == "compiling":
            assert old.encode() in compiler
            compiler = compiler.replace(old.encode(), new.encode(), 1)
            continue
        module = next(module for module in texts if module.rpartition(".")[2] == name)
        assert old.encode() in texts[module]
        texts[module] = texts[module].replace(old.encode(), new.encode(), 1)
    return cache.stamps(texts, compiler)


unchanged = functools.cache(stamps)


def stale(**changes):
    """The kernels that a change makes stale."""
    before, after = unchanged(), stamps(**changes)
    return {name for name in before if before[name] != after[name]}


def test_every_kernel_has_a_stamp_of_all_that_it_reaches():
    found = stamps()
    assert found == cache._stamps()
    assert {name for name, *_ in entries.kernels()} | {"triad_streamed"} <= set(found)
    assert len({found[name] for name, *_ in entries.kernels()}) == len({name for name, *_ in entries.kernels()})


def test_comments_docstrings_and_layout_stale_nothing():
    comment = ("    tail, last = n % LANES, n - LANES\n", "    # A comment.\n    tail, last = (n % LANES), n - LANES\n")
    docstring = ("The number of columns of a block", "Columns of a block")
    assert (
        stale(backward_rows=comment)
        == stale(row_sums=docstring)
        == stale(jobs=("elements of a vector", "lanes"))
        == set()
    )


def test_an_edit_stales_what_reaches_it_and_nothing_else():
    rows = stale(backward_rows=("return (subtract_mean(d * g, mean_dxhat)", "return (subtract_mean(g * d, mean_dxhat)"))
    assert {"rows", "rows_dx", "columns", "tiny_rows", "slice_dx"} <= rows
    assert not rows & {"forward_rows", "combine", "widen", "gather", "slice_moments", "work"}
    slots = stale(jobs=("SLOT_BYTES = CACHE_LINE", "SLOT_BYTES = 2 * CACHE_LINE"))
    assert {"run_chain", "join"} <= slots
    assert "rows" not in slots
    assert stale(jobs=("class Chain:", "class Chains:")) == set()
    assert {"rows", "columns"} <= stale(column_tree=("CHUNK = 64", "CHUNK = 32")) < set(unchanged())
    assert stale(tasks=("backward(storage, acc, tiny_rows, LAYER)", "backward(storage, acc, sum_dy, LAYER)")) == {
        "tiny_rows"
    }
    backwards = stale(tasks=("has_dbeta=choice(kind.beta and has_dgamma), has", "has_dbeta=choice(kind.beta), has"))
    assert {"rows", "tiny_rows", "gated_rows"} <= backwards
    assert "forward_rows" not in backwards
    of_kind = stale(jobs=("RMS = Kind(mean=False", "RMS = Kind(mean=True"))
    assert {"rms_rows", "rms_forward_rows"} <= of_kind
    assert "rows" not in of_kind
    assert {"rows", "forward_rows"} <= stale(arithmetic=('operator.truediv, "fdiv"', 'operator.truediv, "fmul"'))
    everything = set(unchanged())
    for change in ({"compiling": ("opt=3", "opt=2")}, {"simd": ('"float16": np.int16(0)', '"float16": np.int32(0)')}):
        assert stale(**change) == everything


def test_the_key_covers_the_compilers(monkeypatch):
    found = cache._versions()
    assert [name.split("-")[0] for name in found[1:]] == ["numba", "llvmlite"]
    before = cache._target()
    assert before == cache.TARGET
    monkeypatch.setattr(cache, "_versions", lambda: [*found[:-1], "llvmlite-1000.dist-info"])
    assert cache._target() != before


def test_what_is_not_whole_or_of_another_name_is_not_there(tmp_path):
    file = tmp_path / "folder" / "kernel.so"
    keep(file, b"machine code")
    assert kept(file) == b"machine code"
    assert [path.name for path in file.parent.iterdir()] == ["kernel.so"]
    content = file.read_bytes()
    for broken in (b"", content[:20], content[:-1], content[:4] + b"!" + content[5:]):
        file.write_bytes(broken)
        assert kept(file) is None
    file.write_bytes(content)
    other = file.rename(file.with_name("other.so"))
    assert kept(file) is kept(other) is None


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="no owners of files")
def test_a_file_that_somebody_else_can_write_is_not_there(tmp_path, monkeypatch):
    """Whole, and in a folder of one's own: who could write there once may have left it."""
    file = tmp_path / "kernel.so"
    keep(file, b"machine code")
    for mode in (0o664, 0o646):
        file.chmod(mode)
        assert kept(file) is None
        assert kept(file, installed=True) == b"machine code"
    file.chmod(0o644)
    assert kept(file) == b"machine code"
    mine = os.geteuid()
    if mine:
        monkeypatch.setattr(os, "geteuid", lambda: mine + 1)
    else:
        os.chown(file, 12345, -1)
    assert kept(file) is None
    assert kept(file, installed=True) == b"machine code"


def test_saving_removes_what_was_not_used_for_long(tmp_path):
    """Files of one kernel, and what a killed process was writing; nothing of other kernels, nor of other versions in use."""
    key, long_ago = "0123456789abcdef", time.time() - 40 * 86400
    kept = [f"rows-{'a' * 8}-{key}.so", f"rows-{'b' * 8}-{key}.so", f"rows_dx-{'b' * 8}-{key}.so", "stamps-1.json"]
    old = [f"rows-{'c' * 8}-{key}.so", f"rows-{'a' * 8}-{key[::-1]}.o", f"rows-{'a' * 8}-{key}.so.123-4"]
    for name in (*kept, *old):
        (tmp_path / name).write_bytes(b"")
        os.utime(tmp_path / name, (long_ago, long_ago))
    mark_used(tmp_path / kept[1])
    cache.remove_old(tmp_path / kept[0])
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(kept)
