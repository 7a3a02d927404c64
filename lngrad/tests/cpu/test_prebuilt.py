"""Kernels that the package brings: which processor takes which, found and called without Numba, and done without."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys

import pytest

from lngrad.cpu import entries, prebuilt
from lngrad.cpu.processors import CHOICE, HERE, PROCESSORS, fits, fitting
from lngrad.support.cache_folder import keep

INTEL = "fpu sse sse2 cx16 lahf_lm pni popcnt sse4_1 sse4_2 ssse3"
AVX2 = f"{INTEL} abm avx avx2 bmi1 bmi2 f16c fma movbe"
AVX512 = f"{AVX2} avx512f avx512dq avx512bw avx512vl avx512cd"
ICELAKE = f"{AVX512} avx512ifma avx512vbmi avx512_vbmi2 gfni avx512_vnni avx512_bitalg avx512_vpopcntdq"
ARM = "fp asimd evtstrm aes crc32 atomics fphp asimdhp cpuid asimdrdm lrcpc dcpop asimddp"


@pytest.mark.parametrize(
    ("maker", "flags", "name"),
    [
        ("GenuineIntel", f"{ICELAKE} avx_vnni avx512_bf16 avx512_fp16 amx_bf16", "sapphirerapids"),
        ("GenuineIntel", ICELAKE, "icelake-server"),
        ("GenuineIntel", f"{AVX512} avx512_vnni avx512_bf16", "skylake-avx512"),  # Cooper Lake
        ("GenuineIntel", f"{AVX2} avx_vnni gfni", "haswell"),  # Alder Lake
        ("GenuineIntel", INTEL, "x86-64-v2"),
        ("GenuineIntel", INTEL.replace("popcnt", ""), None),
        ("AuthenticAMD", f"{ICELAKE} avx512_bf16 sse4a avx_vnni", "znver5"),
        ("AuthenticAMD", f"{ICELAKE} avx512_bf16 sse4a", "znver4"),
        ("AuthenticAMD", f"{AVX2} sse4a", "znver3"),
        ("AuthenticAMD", f"{AVX2.replace('f16c', '')} sse4a", "x86-64-v2"),  # a virtual machine's model
        ("HygonGenuine", f"{AVX2} sse4a", "x86-64-v3"),
        ("CentaurHauls", AVX512, "x86-64-v4"),
        ("GenuineIntel", "", None),  # not told
    ],
)
def test_an_x86_processor_takes_the_best_that_it_can_run(maker, flags, name):
    found = fits("x86_64", {"vendor_id": maker, "flags": flags})
    assert [processor.name for processor in found[:1]] == [name] * bool(name)


@pytest.mark.parametrize(
    ("flags", "name"),
    [
        (f"{ARM} sve sve2 bf16 i8mm fcma flagm ilrcpc jscvt", "neoverse-v2"),
        (f"{ARM} sve bf16 i8mm fcma flagm ilrcpc jscvt", "neoverse-n1"),  # Graviton 3
        (ARM, "neoverse-n1"),
        ("fp asimd evtstrm aes crc32 cpuid", "generic"),
    ],
)
def test_an_arm_processor_takes_the_best_that_it_can_run(flags, name):
    assert fits("aarch64", {"CPU implementer": "0x41", "Features": flags})[0].name == name


def test_a_processor_runs_what_is_behind_it_in_the_table():
    """Of its maker, and of any: so the first that fits is the best that fits."""
    for processor in PROCESSORS.values():
        facts = {
            "vendor_id": processor.maker,
            "flags": " ".join(processor.flags),
            "Features": " ".join(processor.flags or {"fp"}),
        }
        assert fits(processor.architecture, facts)[0] == processor
    assert fits("riscv64", {"Features": "rv64"}) == []


def run(program, *arguments, **variables):
    environment = {**os.environ, **variables}
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=environment)


KNOWN = """
import llvmlite.binding as llvm
from lngrad.cpu.processors import PROCESSORS
llvm.initialize_all_targets(); llvm.initialize_all_asmprinters()
for one in PROCESSORS.values():
    target = llvm.Target.from_triple(f"{one.architecture}-unknown-linux-gnu")
    machine = target.create_target_machine(cpu=one.name, features=one.features)
    machine.emit_assembly(llvm.parse_assembly("define void @f() { ret void }"))
"""


def test_llvm_knows_every_processor_and_feature():
    """It warns of others, and goes on."""
    pytest.importorskip("llvmlite")
    done = run(KNOWN)
    assert (done.returncode, done.stderr) == (0, "")
    assert "is not a recognized processor" in run(KNOWN.replace("cpu=one.name", 'cpu="nobody"')).stderr


ELSEWHERE = """
import sys
from lngrad.cpu.compiling import compile_kernel
sys.stdout.buffer.write(compile_kernel("f", "join", "", ""))
"""


def test_kernels_are_compiled_for_another_architecture():
    """Waiting is isb there, slots lie 128 bytes apart, and every instruction has four bytes."""
    pytest.importorskip("numba")
    environment = {**os.environ, CHOICE: "generic"}
    done = subprocess.run([sys.executable, "-c", ELSEWHERE], capture_output=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert done.stdout[:5] == b"\x7fELF\x02"
    assert int.from_bytes(done.stdout[18:20], "little") == 183  # EM_AARCH64
    assert bytes.fromhex("df3f03d5") in done.stdout  # isb
    assert run("import lngrad.cpu.processors", **{CHOICE: "nobody"}).stderr.rstrip().endswith("got 'nobody'")


def test_a_library_has_the_machine_code_that_is_compiled_on_the_spot():
    """For the processor by its name: flags that the table leaves out make no other code."""
    compiling = pytest.importorskip("lngrad.cpu.compiling")
    from lngrad.cpu.kernels.functions import FEATURES
    from lngrad.cpu.kernels.simd import choices

    here = next(iter(fitting()), None)
    if here is None or choices(HERE, here.features) != choices(HERE, FEATURES):
        pytest.skip("lowered otherwise for the processor at hand")
    for kernel in (("combine", "float32", "float32"), ("gather", "bfloat16", "bfloat16"), ("run_chain", "", "")):
        module = compiling.lower(*kernel)
        codes = {compiling.emit(module.clone(), "f", here.name, features) for features in (FEATURES, here.features)}
        assert len(codes) == 1


CALLS = """
import sys
from pathlib import Path
for name in sys.argv[2].split(): sys.modules[name] = None
from importlib import util
find, util.find_spec = util.find_spec, lambda name: None if sys.modules.get(name, 0) is None else find(name)
from lngrad.cpu import prebuilt
prebuilt.FOLDER = Path(sys.argv[1])
import lngrad, numpy as np
x = np.ones((3, 5), np.float32)
print(lngrad.backends()["numba_cpu"], lngrad.layer_norm(x).y.sum(), sep="|")
from lngrad.cpu.entries import entry_function
job = np.full(200, 7)
try:
    entry_function("begin")(job.ctypes.data, 1)
    print(job[sys.modules["lngrad.cpu.jobs"].TICKETS])
except lngrad.errors.BackendUnavailable as error:
    print(error)
print("numba" in sys.modules and sys.modules["numba"] is not None)
"""


@pytest.fixture(scope="module")
def libraries(tmp_path_factory):
    """A folder with a library for this processor that has one kernel, which is enough to be taken for whole."""
    folder = tmp_path_factory.mktemp("libraries")
    here = next(iter(fitting()), None)
    if here is None or not entries._LINKS or shutil.which("cc") is None:
        pytest.skip("no compiled kernels are made for this machine")
    compiling = pytest.importorskip("lngrad.cpu.compiling")
    code = compiling.emit(compiling.lower("begin", "", ""), prebuilt.symbol("begin", here), here.name, here.features)
    keep(folder / f"{here.name}.so", entries._link(code))
    return folder


def calls(folder, cache, without=""):
    done = run(CALLS, folder, without, XDG_CACHE_HOME=str(cache))
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_kernel_of_the_package_needs_no_numba_and_no_cache(libraries, tmp_path):
    program = CALLS.replace("print(lngrad.backends", "0 and print(lngrad.backends").replace("lngrad.layer_norm(x)", "x")
    done = run(program, libraries, "numba llvmlite", XDG_CACHE_HOME=str(tmp_path))
    assert done.stdout.splitlines() == ["0", "False"], done.stderr
    assert not list(tmp_path.iterdir())


def test_a_library_that_does_not_fit_is_not_used(libraries, tmp_path, monkeypatch):
    here, *others = fitting()
    (library,) = libraries.iterdir()
    content = library.read_bytes()
    spoilt = tmp_path / library.name
    monkeypatch.setattr(prebuilt, "FOLDER", tmp_path)
    find = prebuilt.library.__wrapped__
    for broken in (content[:-1], content[: len(content) // 2], b""):
        spoilt.write_bytes(broken)
        assert find() == f"{spoilt} is not whole"
    (tmp_path / "other.so").write_bytes(content)
    (tmp_path / "other.so").replace(spoilt)  # the name is the same again
    assert find() == (spoilt, here)
    with monkeypatch.context() as patch:
        patch.setattr(prebuilt, "_made_of", lambda name: "of other sources, as a hash would say it")
        assert find() == f"{spoilt} is of other sources"
    with monkeypatch.context() as patch:
        of_another = tmp_path / f"{others[-1].name}.so"  # a level: the next best that is there
        spoilt.rename(of_another)
        assert find() == f"{of_another} is not whole"
        keep(of_another, content[:-32])
        assert find() == f"{of_another} is of other sources"
        patch.setattr(prebuilt, "fitting", list)
        assert find() == "this processor can run none of those in the package"
        patch.setitem(prebuilt.SETTINGS, "NUMBA_CPU_NAME", "haswell")
        assert find() == "NUMBA_CPU_NAME is set"


def test_without_numba_and_without_a_library_numpy_serves(tmp_path):
    """What is asked for by name says what to install."""
    reason = "this installation was not made from a wheel that has them"
    available, error, imported = calls(tmp_path / "none", tmp_path, "numba llvmlite")
    assert available == f"numba not installed, and no compiled kernels: {reason}|0.0"
    assert error.startswith("kernel: begin needs Numba, as it is not compiled in the package")
    assert error.endswith("pip install 'lngrad[numba]'")
    assert imported == "False"


def test_info_says_where_kernels_come_from(libraries, monkeypatch, capsys):
    from lngrad.cli import info

    def line():
        info.info()
        return re.search(r"(?m)^kernels +(.*)$", capsys.readouterr().out)[1]

    found = prebuilt.library()
    assert line().startswith("compiled here when first needed: ") == isinstance(found, str)
    (library,) = libraries.iterdir()
    monkeypatch.setattr(prebuilt, "library", lambda: (library, fitting()[0]))
    assert line().startswith(f"compiled in the package, for {fitting()[0].name} ({library}")
    monkeypatch.setattr(prebuilt, "library", lambda: "for this reason")
    monkeypatch.setattr(info, "find_spec", lambda name: None)
    assert line() == "none, NumPy computes: for this reason; pip install 'lngrad[numba]'"
