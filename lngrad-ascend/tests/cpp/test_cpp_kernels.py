"""Kernels in C++: their values, the fault and the line of every mutation, and what the compiler refuses."""

from __future__ import annotations

import re
import shutil
import struct
import subprocess
from pathlib import Path

import numpy as np
import pytest

from lngrad.core.problem import Grads
from lngrad.errors import ShapeError
from lngrad.testing import Case, Inputs, check_grads, check_same_bits, make_inputs
from lngrad_ascend import ascendc, soc, tiling
from lngrad_ascend.ascendc import CompileError, DeviceFault, launch
from lngrad_ascend.cpp.compiling import without_chevrons
from lngrad_ascend.cpp.handlers import HANDLERS
from lngrad_ascend.cpp.headers import header_files
from lngrad_ascend.cpp.kernel import guarded
from lngrad_ascend.cpp.protocol import Op
from lngrad_ascend.device.operations import OPERATIONS
from lngrad_ascend.faults import BoundsFault
from lngrad_ascend.sdk import Settings, cflags, libs, write_toolkit
from lngrad_ascend.sdk.program import run_program

EXAMPLES = Path(__file__).parents[3] / "examples" / "cpp"
ROWS = EXAMPLES / "rows_backward.cpp"
PROGRAMS = Path(__file__).with_name("programs")
M, N, BLOCKS = 50, 64, 4

pytestmark = pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler")
SAME_PATHS = True


def rows_kernel(source: Path = ROWS, sums: int = 0) -> ascendc.CompiledKernel:
    return ascendc.compile(source, "rows_backward", define={"COLUMN_SUMS": sums})


def run_rows(kernel: ascendc.CompiledKernel, inputs: Inputs, blocks: int = BLOCKS, **rules: object) -> Grads:
    grads = Grads(np.empty_like(inputs.x), np.empty_like(inputs.gamma), np.empty_like(inputs.gamma))
    launch(
        kernel, blocks, inputs.dy, inputs.x, inputs.mean, inputs.rstd, inputs.gamma, *grads,
        workspace=2 * N * 4 * blocks, tiling=struct.pack("<3I", M, N, -(-M // blocks)), **rules,
    )  # fmt: skip
    return grads


@pytest.fixture(scope="module")
def inputs() -> Inputs:
    return make_inputs(Case((M,), (N,)), "float32", 0)


@pytest.mark.parametrize("sums", [0, 1], ids=["atomics", "in order"])
@pytest.mark.parametrize("auto_sync", [True, False])
def test_rows_backward(inputs, sums, auto_sync):
    check_grads(run_rows(rows_kernel(sums=sums), inputs, auto_sync=auto_sync), inputs)


def test_every_run_gives_the_same_bits(inputs):
    kernel = rows_kernel(sums=0)
    first, second = run_rows(kernel, inputs), run_rows(kernel, inputs)
    for array, other in zip(first, second, strict=True):
        check_same_bits(array, other)


@pytest.mark.parametrize("name", ["Ascend910B1", "Ascend310P"])
def test_tile_backward_has_the_bits_of_the_same_kernel_in_python(name):
    kernel = ascendc.compile(EXAMPLES / "tile_backward.cpp", "tile_backward")
    B, S, H = 2, 8, 16
    inputs = make_inputs(Case((B, S), (H,)), "float32", 3)
    variance = (1 / np.square(inputs.rstd.astype(np.float64)) - 1e-5).astype(np.float32).reshape(B, S)
    mean = inputs.mean.reshape(B, S)
    with soc.use(name):
        shape = [B, S, H, H]
        _, grad_bytes = tiling.GetLayerNormGradMaxMinTmpSize(shape, 4, False)
        _, beta_bytes = tiling.GetLayerNormGradBetaMaxMinTmpSize(shape, 4, False)
        grad = tiling.GetLayerNormGradNDTilingInfo(shape, grad_bytes, 4, False)
        beta = tiling.GetLayerNormGradBetaNDTilingInfo(shape, beta_bytes, 4, False)
        packed = grad.to_bytes() + beta.to_bytes() + struct.pack("<f", 1e-5)
        outputs = [(np.empty_like(inputs.x), np.empty_like(inputs.gamma), np.empty_like(inputs.gamma)) for _ in "ab"]
        launch(kernel, 1, inputs.dy, inputs.x, variance, mean, inputs.gamma, *outputs[0], tiling=packed)
        launch(
            tile_backward, 1, inputs.dy, inputs.x, variance, mean, inputs.gamma, *outputs[1],
            tiling=grad.to_bytes() + beta.to_bytes(),
        )  # fmt: skip
    for array, other in zip(*outputs, strict=True):
        check_same_bits(array, other)


def tile_backward(dy, x, variance, mean, gamma, dx, dgamma, dbeta, tiling_bytes):
    """tile_backward.cpp in Python."""
    grad = ascendc.CopyTiling(ascendc.LayerNormGradTiling, tiling_bytes)
    beta = ascendc.CopyTiling(ascendc.LayerNormGradBetaTiling, tiling_bytes[grad.size_bytes() :])
    rows, H = grad.bLength * grad.sLength, grad.hLength
    pipe = ascendc.TPipe()

    def queue(position, number, count):
        que = ascendc.TQue(position, number)
        pipe.InitBuffer(que, number, 4 * count)
        return que

    tensors = []
    for address, count in ((dy, rows * H), (x, rows * H), (variance, rows), (mean, rows), (gamma, H)):
        source, que = ascendc.GlobalTensor(np.float32), queue(ascendc.TPosition.VECIN, 1, count)
        source.SetGlobalBuffer(address, count)
        local = que.AllocTensor(np.float32)
        ascendc.DataCopy(local, source, count)
        que.EnQue(local)
        tensors.append((que, que.DeQue(np.float32)))
    dx_queue, sums_queue = queue(ascendc.TPosition.VECOUT, 1, rows * H), queue(ascendc.TPosition.VECOUT, 2, H)
    xhat_buffer = ascendc.TBuf()
    pipe.InitBuffer(xhat_buffer, 4 * rows * H)
    xhat, dx_local = xhat_buffer.Get(np.float32), dx_queue.AllocTensor(np.float32)
    locals_ = [local for _, local in tensors]
    ascendc.LayerNormGrad(dx_local, xhat, *locals_, 1e-5, grad)
    sums = [sums_queue.AllocTensor(np.float32) for _ in range(2)]
    ascendc.LayerNormGradBeta(*sums, xhat, locals_[0], beta)
    for que, local in tensors:
        que.FreeTensor(local)
    for que, local, address, count in (
        (dx_queue, dx_local, dx, rows * H), (sums_queue, sums[0], dgamma, H), (sums_queue, sums[1], dbeta, H)
    ):  # fmt: skip
        que.EnQue(local)
        target, local = ascendc.GlobalTensor(np.float32), que.DeQue(np.float32)
        target.SetGlobalBuffer(address, count)
        ascendc.DataCopy(target, local, count)
        que.FreeTensor(local)


# What is changed in rows_backward.cpp: text, its replacement, and what the fault says. {line} is the line
# that holds the last column's text in the changed file.
MUTATIONS = {
    "removed flag": (
        "            Wait<HardEvent::V_MTE3>();\n", "",
        r"{line}: .*nothing orders the two.*SetFlag<HardEvent::V_MTE3>.*\[ErrorSync2\]", "DataCopy(dgamma_, zeros",
    ),
    "removed barrier": (
        "-mean_.GetValue(row), columns_);\n        PipeBarrier<PIPE_V>();", "-mean_.GetValue(row), columns_);",
        r"{line}: .*PipeBarrier<PIPE_V>.*\[ErrorSync1\]", "Muls(xhat, xhat, rstd",
    ),
    "missing FreeTensor": (
        "        inX_.FreeTensor(xhat);\n", "",
        r"{line}: AllocTensor: all 2 buffers of the VECIN queue of rows_backward.cpp:\d+ are in use", "x = inX_.AllocTensor",
    ),
    "unaligned copy": (
        "dy_[row * columns_], columns_)", "dy_[row * columns_], columns_ - 1)",
        r"{line}: DataCopy: the length must be a multiple of 32 bytes, got 63", "columns_ - 1",
    ),
    "overrun": (
        "Duplicate(sums, 0.0f, 2 * columns_)", "Duplicate(sums, 0.0f, 2 * columns_ + 8)",
        r"{line}: Duplicate: dst .* 32 too far", "2 * columns_ + 8",
    ),
    "two blocks write one place": (
        "DataCopy(dx_[row * columns_], dx", "DataCopy(dx_[(row - first_) * columns_], dx",
        r"{line}: .*blocks? .*arrays\[5\]", "DataCopy(dx_[(row",
    ),
    "deadlock": (
        "        SyncAll();\n        if (GetBlockIdx() != 0) {",
        "        if (GetBlockIdx() == 2) return;\n        SyncAll();\n        if (GetBlockIdx() != 0) {",
        r"SyncAll at rows_backward.cpp:\d+", "SyncAll",
    ),
    "removed SyncAll": (
        "        SyncAll();\n        Wait<HardEvent::V_MTE3>();\n        SetAtomicAdd",
        "        Wait<HardEvent::V_MTE3>();\n        SetAtomicAdd",
        r"{line}: .*DataCopy.*nothing orders", "DataCopy(dgamma_, sums",
    ),
    "flag set twice": (
        "        SetFlag<event>(id);\n", "        SetFlag<event>(id);\n        SetFlag<event>(id); // again\n",
        r"{line}: SetFlag<.*>\(0\): the flag is raised already, at rows_backward.cpp:\d+.*\[ErrorSync4\]", "// again",
    ),
    "flag never set": (
        "        SetFlag<event>(id);\n", "",
        r"{line}: WaitFlag<.*>\(0\): no SetFlag has raised the flag.*\[ErrorSync3\]", "WaitFlag<event>(id)",
    ),
    "never written": (
        "        Duplicate(sums, 0.0f, 2 * columns_);\n", "",
        r"DataCopy: .*was never written.* was Add at {line} \[ErrorRead2\]", "Add(sums, sums, work",
    ),
    "used after FreeTensor": (
        "        inX_.FreeTensor(xhat);\n", "        inX_.FreeTensor(xhat);\n        Muls(xhat, xhat, 1.0f, columns_);\n",
        r"{line}: Muls: .*was freed.*\[Error(Read|Write)1\]", "Muls(xhat, xhat, 1.0f",
    ),
    "computed before DeQue": (
        "        inDy_.EnQue(dy);\n", "        Adds(dy, dy, 0.0f, columns_);\n        inDy_.EnQue(dy);\n",
        r"{line}: Adds reads .* nothing orders the two.*or EnQue and DeQue\) \[ErrorSync2\]", "Adds(dy, dy, 0.0f",
    ),
    "never freed at the end": (
        "        outDx_.FreeTensor(dx);\n", "        if (row + 1 != first_ + rows_) outDx_.FreeTensor(dx);\n",
        r"end of kernel: 1 tensors were not freed.*\[ErrorLeak\]", "outDx_.FreeTensor",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", MUTATIONS)
def test_every_mutation_is_found_at_its_line(name, inputs, tmp_path):
    old, new, text, at = MUTATIONS[name]
    source = ROWS.read_text()
    assert old in source
    changed = tmp_path / ROWS.name
    changed.write_text(source.replace(old, new, 1))
    line = next(n for n, text in enumerate(changed.read_text().splitlines(), 1) if at in text)
    with pytest.raises(DeviceFault, match=text.replace("{line}", rf"rows_backward.cpp:{line}")):
        run_rows(rows_kernel(changed, sums=int(name == "deadlock")), inputs, auto_sync=False)


def test_a_fault_unwinds_the_kernel_and_the_next_launch_is_clean(inputs, tmp_path):
    old, new, _, _ = MUTATIONS["overrun"]
    changed = tmp_path / ROWS.name
    changed.write_text(ROWS.read_text().replace(old, new, 1))
    wrong = rows_kernel(changed)
    for _ in range(3):
        with pytest.raises(DeviceFault):
            run_rows(wrong, inputs)
        check_grads(run_rows(rows_kernel(), inputs), inputs)


def test_the_kernel_is_called_with_as_many_arguments_as_it_has(inputs):
    with pytest.raises(ShapeError, match=r"rows_backward: expected 10 arguments .*, got 1"):
        launch(rows_kernel(), 1, inputs.x)


def test_compile_errors_name_the_line_and_what_is_not_simulated(tmp_path):
    source = tmp_path / "k.cpp"
    source.write_text(
        '#include "kernel_operator.h"\nextern "C" __global__ __aicore__ void k(GM_ADDR x)\n{\n'
        "    AscendC::LocalTensor<float> a;\n    AscendC::BatchNorm(a, a, 3);\n}\n"
    )
    with pytest.raises(
        CompileError, match=r"k.cpp:5: BatchNorm is not declared; as an Ascend C API it is not simulated"
    ):
        ascendc.compile(source, "k")
    with pytest.raises(CompileError, match="kernel: expected a function of this file, got 'other'"):
        ascendc.compile(ROWS, "other")
    with pytest.raises(CompileError, match="kernel: expected the name of a C"):
        ascendc.compile(ROWS, "k(); int x")
    with pytest.raises(FileNotFoundError):
        ascendc.compile(tmp_path / "missing.cpp", "k")


def test_a_changed_header_is_compiled_anew(inputs, tmp_path):
    (tmp_path / "scale.h").write_text("#define SCALE 2.0f\n")
    source = tmp_path / "scaled.cpp"
    source.write_text(
        '#include "kernel_operator.h"\n#include "scale.h"\n'
        'extern "C" __global__ __aicore__ void scaled(GM_ADDR x)\n{\n'
        "    GlobalTensor<float> all;\n    all.SetGlobalBuffer((__gm__ float*)x, 8);\n"
        "    all.SetValue(0, SCALE * all.GetValue(1));\n}\n"
    )
    array = np.arange(8, dtype=np.float32) + 1
    launch(ascendc.compile(source, "scaled"), 1, array)
    assert array[0] == 4
    (tmp_path / "scale.h").write_text("#define SCALE 3.0f\n")
    launch(ascendc.compile(source, "scaled"), 1, array)
    assert array[0] == 6


def test_scalars_of_sixteen_bits_round_to_nearest_even():
    """half and bfloat16_t of the headers against NumPy's and ml_dtypes', over all bit patterns and random floats."""
    from lngrad.support.dtypes import numpy_dtype

    rng = np.random.default_rng(0)
    every = np.arange(1 << 16, dtype=np.uint16)
    with np.errstate(all="ignore"):
        values = np.concatenate(
            [every.view(np.float16).astype(np.float32), every.view(numpy_dtype("bfloat16")).astype(np.float32),
             rng.integers(0, 1 << 32, 100_000, dtype=np.uint32).view(np.float32)]
        )  # fmt: skip
        values = values[~np.isnan(values)]
        half, brain = values.astype(np.float16), values.astype(numpy_dtype("bfloat16"))
        total = half.astype(np.float32) + brain.astype(np.float32)
    got, halves, brains = values.copy(), np.empty_like(half), np.empty_like(brain)
    kernel = ascendc.compile(PROGRAMS / "scalars.cpp", "scalars")
    launch(lambda *arrays: kernel(*arrays, values.size), 1, got, halves, brains)
    check_same_bits(halves, half)
    check_same_bits(brains, brain)
    finite = ~np.isnan(total)
    check_same_bits(got[finite], total[finite])


def test_the_counter_mode_counts_elements_and_refuses_gaps():
    """100 of 104 elements are doubled; repeats with gaps are not simulated, and say so."""
    x, y = np.random.default_rng(0).standard_normal((2, 104)).astype(np.float32)
    launch(ascendc.compile(PROGRAMS / "counter.cpp", "counter", define={"GAP": 8}), 1, x, y)
    np.testing.assert_array_equal(y, np.concatenate([2 * x[:100], x[100:]]))
    with pytest.raises(DeviceFault, match=r"Add: in the counter mode .* got \(1, 1, 1\), \(8, 8, 9\) and 100 elements"):
        launch(ascendc.compile(PROGRAMS / "counter.cpp", "counter", define={"GAP": 9}), 1, x, y)
    # Without a step from repeat to repeat each does the first one's work: 64 elements.
    launch(ascendc.compile(PROGRAMS / "counter.cpp", "counter", define={"GAP": 0}), 1, x, y)
    np.testing.assert_array_equal(y, np.where(np.arange(104) < 64, x, 5))
    launch(ascendc.compile(PROGRAMS / "counter.cpp", "counter", define={"GAP": 0, "SUMS": 128}), 1, x, y)
    launch(ascendc.compile(PROGRAMS / "counter.cpp", "counter", define={"GAP": 0, "SUMS": 64}), 1, x, y)
    np.testing.assert_array_equal(y[:9], [*x[:64].reshape(8, 8).max(axis=1), 5])
    assert abs(y[24] - x[:64].astype(float).sum()) < 1e-5
    np.testing.assert_array_equal(y[25:], 5)
    with pytest.raises(DeviceFault, match=r"BlockReduceMax: in the counter mode .* and 100 elements"):
        launch(ascendc.compile(PROGRAMS / "counter.cpp", "counter", define={"GAP": 0, "SUMS": 100}), 1, x, y)


@pytest.mark.parametrize("lanes", [100, 99, 0])
def test_cast_packs_two_int4_in_a_byte_by_count_and_by_repeats(lanes):
    """An odd number of elements leaves the other half of the last byte as it is."""
    x = np.random.default_rng(0).uniform(-10, 10, 512).astype(np.float16)
    expected = np.clip(np.rint(x), -8, 7).astype(np.int8)
    expected[np.arange(512) % 128 >= lanes if lanes else [511]] = 0  # the mask is 100 of 128
    packed, back = np.zeros(256, np.int8), np.zeros(512, np.float16)
    launch(ascendc.compile(PROGRAMS / "nibbles.cpp", "nibbles", define={"LANES": lanes}), 1, x, packed, back)
    check_same_bits(packed.view(np.uint8), (expected[0::2] & 15 | expected[1::2] << 4).view(np.uint8))
    again = expected.astype(np.float16)
    check_same_bits(back, again if lanes else np.append(again[:509], x[509:]))


def test_a_mask_is_a_number_or_bits_and_functions_have_addresses():
    """By a pointer, bits that may change and that may not, a count in a variable, the register's mask; 0 is a count."""
    x, y = np.random.default_rng(0).standard_normal(64).astype(np.float32), np.zeros(448, np.float32)
    launch(ascendc.compile(PROGRAMS / "masks.cpp", "masks", define={"ZERO": 0}), 1, x, y)
    first, bits = np.arange(64) < 3, np.isin(np.arange(64), (0, 2))
    rows = [
        (2 * x, first),
        (2 * x, bits),
        (2 * x, bits),
        (x + np.float32(1), bits),
        (x + np.float32(1), first),
        (2 * x, first),
    ]
    for got, (value, mask) in zip(y.reshape(7, 64), [*rows, (x, np.zeros(64, bool))], strict=True):
        check_same_bits(got, np.where(mask, value, np.float32(0)))
    with pytest.raises(BoundsFault, match="Exp: mask must be 1 to 64, got 0"):
        launch(ascendc.compile(PROGRAMS / "masks.cpp", "masks", define={"ZERO": 1}), 1, x, y)


def test_headers_name_what_python_names():
    numbers = header_files()["lngrad/numbers.h"]
    assert "Add = 0," in numbers
    assert "PIPE_V = 1," in numbers
    assert "MTE2_V = 4," in numbers
    assert "struct LayerNormGradTiling {" in header_files()["kernel_tiling/kernel_tiling.h"]


def test_headers_and_tables_have_the_same_operations():
    texts = "".join(header_files().values())
    sent = {*re.findall(r"\bOp::(\w+)", texts), *re.findall(r"\bX\((\w+)\)", texts)} - {"Name", "OpName"}
    host = {"GM_ALLOC", "GM_FREE", "SET_TILING_KEY", "RUN_KERNEL", "ASK_HOST"}
    assert {operation.name for operation in OPERATIONS} == {name for name in sent if not name.isupper()}
    assert {Op(number).name for number in HANDLERS} | host == {name for name in sent if name.isupper()}


@pytest.fixture(scope="module")
def toolkit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sdk") / "toolkit"
    write_toolkit(folder)
    return folder


def build_program(toolkit: Path, source: Path, program: Path) -> None:
    command = ["c++", "-std=c++17", "-O1", "-Wall", "-Werror", *cflags(toolkit), str(source), *libs(toolkit)]
    done = subprocess.run([*command, "-o", str(program)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_a_plain_program_runs_its_kernel(toolkit, tmp_path):
    build_program(toolkit, EXAMPLES / "rows_backward_main.cpp", tmp_path / "rows")
    done = subprocess.run([tmp_path / "rows"], capture_output=True, text=True)
    assert (done.returncode, done.stdout[-4:]) == (0, " ok\n"), done


def test_a_plain_program_gets_the_fault_as_an_exception(toolkit, tmp_path):
    old, new, _, _ = MUTATIONS["unaligned copy"]
    (tmp_path / ROWS.name).write_text(ROWS.read_text().replace(old, new, 1))
    main = tmp_path / "rows_backward_main.cpp"
    main.write_text((EXAMPLES / main.name).read_text())
    build_program(toolkit, main, tmp_path / "rows")
    done = subprocess.run([tmp_path / "rows"], capture_output=True, text=True)
    assert done.returncode != 0
    assert "rows_backward: AlignmentFault: block 0: rows_backward.cpp:" in done.stderr


def test_a_launch_with_chevrons_runs_on_device_memory(capfd):
    assert run_program(EXAMPLES / "scale.asc", [], None, Settings()) == 0
    assert capfd.readouterr().out == "scale: 0 of 256 elements wrong\n"


def test_chevrons_become_a_macro_on_the_same_line():
    text = "a;\nk<<<8, nullptr, stream>>>(x, y);\nspace::k<1><<<n + 1, 0, s>>>();\nstd::cout << 1;\n"
    assert without_chevrons(text) == (
        "a;\nACLRT_LAUNCH_KERNEL(k)(8, stream, x, y);\nACLRT_LAUNCH_KERNEL(space::k<1>)(n + 1, s);\nstd::cout << 1;\n"
    )
    with pytest.raises(CompileError, match="line 2: k<<<…>>>: expected blocks, l2ctrl and stream, got '8'"):
        without_chevrons("a;\nk<<<8>>>(x);")


def test_a_tiling_that_is_too_short_is_refused(inputs):
    outputs = [np.empty_like(inputs.x), np.empty_like(inputs.gamma), np.empty_like(inputs.gamma)]
    arrays = inputs.dy, inputs.x, inputs.mean, inputs.rstd, inputs.gamma
    with pytest.raises(DeviceFault, match=r"CopyTiling: the tiling has 8 bytes, the struct has 12"):
        launch(rows_kernel(), 1, *arrays, *outputs, workspace=64, tiling=struct.pack("<2I", M, N))


@pytest.mark.parametrize(("name", "place"), [("DT_FLOAT", 0), ("DT_FLOAT16", 1), ("DT_BF16", 2)])
def test_the_preprocessor_compares_types_of_the_operator_build(name, place, tmp_path):
    branches = "".join(
        f"#if ORIG_DTYPE_X == {name}\n    memory.SetValue({at}, {name} + 1);\n#endif\n"
        for at, name in enumerate(("DT_FLOAT", "DT_FLOAT16", "DT_BF16"))
    )
    (tmp_path / "k.cpp").write_text(
        '#include "kernel_operator.h"\nextern "C" __global__ __aicore__ void k(GM_ADDR x)\n{\n'
        "    AscendC::GlobalTensor<int32_t> memory;\n"
        f"    memory.SetGlobalBuffer((__gm__ int32_t*)x, 3);\n{branches}}}\n"
    )
    memory = np.zeros(3, np.int32)
    launch(ascendc.compile(tmp_path / "k.cpp", "k", define={"ORIG_DTYPE_X": name}), 1, memory)
    assert memory.tolist() == [[1, 0, 0], [0, 2, 0], [0, 0, 28]][place]


BEFORE = "32 bytes of global memory at 0x.* belong to no array of the launch; arrays.0. begins 32 bytes further on"
COPY = "DataCopy(local, %s, 8); PipeBarrier<PIPE_ALL>(); DataCopy(%s, local, 8);"


@pytest.mark.parametrize(
    ("turn", "offset", "text"),
    [
        (COPY % ("table", "out"), 0, None),
        ("out.SetValue(0, table.GetValue(0) + in.GetValue(0) - in.GetValue(1));", 0, None),
        (COPY % ("in", "out"), -8, "DataCopy: " + BEFORE),
        ("out.SetValue(0, in.GetValue(0));", -8, "GetValue: " + BEFORE),
        ("in.SetValue(0, 1);", -8, "SetValue: " + BEFORE),
        ("out.SetValue(0, in.GetValue(0));", 16, "GetValue: .*; arrays.0. ends 64 bytes before their end"),
        ("table.SetGlobalBuffer(nullptr); out.SetValue(0, table.GetValue(0));", 0, "the bytes .* at 0x0 .* is null"),
        ("out.SetValue(0, table.GetValue(8));", 0, "GetValue: the kernel's own memory has 8 elements from here on"),
        ("DataCopy(local, table, 16);", 0, "DataCopy: the kernel's own memory has 8 elements from here on"),
        ("table.SetValue(0, 1);", 0, "SetValue: the kernel's own memory is read-only"),
        (COPY % ("in", "table"), 0, "DataCopy: the kernel's own memory is read-only"),
        ("AtomicAdd(const_cast<__gm__ float*>(TABLE), 1.f);", 0, "AtomicAdd: the kernel's own memory is read-only"),
    ],
)
def test_a_kernel_reads_its_own_tables_and_nothing_else_around_its_arrays(turn, offset, text):
    kernel = ascendc.compile(PROGRAMS / "own_memory.cpp", "k", define={"OFFSET": offset, "TURN": turn})
    x, y = guarded(np.arange(8, dtype=np.float32)), guarded(np.full(8, 9, np.float32))
    if text is None:
        launch(kernel, 1, x, y)
        assert y[0] == (1 if "DataCopy" in turn else 0)
    else:
        with pytest.raises(BoundsFault, match=text):
            launch(kernel, 1, x, y)
        assert (y == 9).all()


def test_a_kernel_s_own_memory_is_looked_up_once(monkeypatch):
    turn = "float sum = 0; for (int i = 0; i < 80; ++i) sum += table.GetValue(i % 8); out.SetValue(0, sum);"
    kernel = ascendc.compile(PROGRAMS / "own_memory.cpp", "k", define={"OFFSET": 0, "TURN": turn})
    read, looked = Path.read_text, []
    monkeypatch.setattr(Path, "read_text", lambda path, *rest: looked.append(path) or read(path, *rest))
    y = np.zeros(8, np.float32)
    launch(kernel, 1, y, y)
    assert y[0] == 360
    assert len(looked) == 1


def test_a_read_only_array_is_not_written_through_a_pointer():
    """Nothing sees the write itself; the bytes are put back."""
    kernel = ascendc.compile(
        PROGRAMS / "own_memory.cpp", "k", define={"OFFSET": 0, "TURN": "((float*)x)[1] = ((float*)y)[1] = 7;"}
    )
    x, y = np.arange(8, dtype=np.float32), np.zeros(8, np.float32)
    x.flags.writeable = False
    with pytest.raises(BoundsFault, match=r"arrays\[0\] is read-only, and the kernel has written it through a pointer"):
        launch(kernel, 1, x, y)
    assert x.tolist() == list(range(8))
    assert y[1] == 7
    view = y.view()
    view.flags.writeable = False
    launch(kernel, 1, view, y)  # one memory, which may be written
    assert view[1] == 7


def test_other_memory_of_the_process_is_none_of_the_launch(tmp_path):
    kernel = ascendc.compile(
        PROGRAMS / "own_memory.cpp", "k", define={"OFFSET": 0, "TURN": "out.SetValue(0, in.GetValue(0));"}
    )
    for place in (np.zeros(8, np.float32), np.memmap(tmp_path / "memory", np.float32, "w+", shape=8)):
        with pytest.raises(BoundsFault, match="belong to no array of the launch"):
            launch(lambda y, at=place: kernel(ascendc.GlobalAddress(at), y), 1, np.zeros(8, np.float32))


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("FLOAT", 0),
        ("BOOL", 12),
        ("COMPLEX64", 16),
        ("UNDEFINED", 28),
        ("COMPLEX32", 33),
        ("HIFLOAT8", 34),
        ("FLOAT4_E1M2", 41),
    ],
)
def test_a_float_takes_the_branch_of_its_own_type(name, number, tmp_path):
    (tmp_path / "k.cpp").write_text(
        f'#define DT_BOOL 12\n#include "kernel_operator.h"\n#if ORIG_DTYPE_X == DT_{name}\n#define SAME 1\n#else\n'
        '#define SAME 0\n#endif\nextern "C" __global__ __aicore__ void k(GM_ADDR x)\n{\n'
        "    AscendC::GlobalTensor<int32_t> memory;\n    memory.SetGlobalBuffer((__gm__ int32_t*)x, 2);\n"
        f"    memory.SetValue(0, DT_{name});\n    memory.SetValue(1, SAME);\n}}\n"
    )
    memory = np.zeros(2, np.int32)
    launch(ascendc.compile(tmp_path / "k.cpp", "k", define={"ORIG_DTYPE_X": "DT_FLOAT", "DT_FLOAT": 0}), 1, memory)
    assert memory.tolist() == [number, name == "FLOAT"]


@pytest.mark.parametrize("code", ["10 - DT_FLOAT16", "2 * DT_INT32", "-DT_INT32", "DT_BF16 - DT_INT32", "!DT_FLOAT"])
def test_arithmetic_with_a_type_s_number_wants_parentheses(code, tmp_path):
    (tmp_path / "k.cpp").write_text(
        '#include "kernel_operator.h"\nextern "C" __global__ __aicore__ void k(GM_ADDR x)\n{\n'
        "    AscendC::GlobalTensor<int32_t> memory;\n    memory.SetGlobalBuffer((__gm__ int32_t*)x, 1);\n"
        f"    memory.SetValue(0, {code});\n}}\n"
    )
    with pytest.raises(CompileError, match="deleted function"):
        ascendc.compile(tmp_path / "k.cpp", "k")


def test_a_header_names_types_in_code_which_the_preprocessor_compares():
    memory, macros = np.zeros(4, np.int32), {"ORIG_DTYPE_X": "DT_FLOAT16"}
    kernel = ascendc.compile(PROGRAMS / "types.cpp", "k", headers=[PROGRAMS / "types.h"], define=macros)
    launch(kernel, 1, memory)
    assert memory.tolist() == [30, 20, 10, 1]
