"""Kernels of other people that were refused, though a device runs them: each is a file of reproductions/."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from lngrad_ascend import ascendc
from lngrad_ascend.faults import DeviceFault, PoisonFault, RaceFault

pytestmark = pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler")

HERE = Path(__file__).parent / "reproductions"
X = np.random.default_rng(0).standard_normal(64).astype(np.float32)


def run(name, *arrays, define=None, **options):
    return ascendc.launch(ascendc.compile(HERE / f"{name}.cpp", "k", define=define), 1, *arrays, **options)


def test_reduce_sum_by_count_waits_for_itself():
    y = np.zeros(1, np.float32)
    run("race_reducesum_mte3", X, y, auto_sync=False)
    assert abs(y[0] - X.astype(np.float64).sum()) < 1e-5


@pytest.mark.parametrize("soc", ["Ascend310P", "Ascend950"])
def test_other_architectures_are_not_published_so(soc):
    with pytest.raises((RaceFault, DeviceFault)):
        run("race_reducesum_mte3", X, np.zeros(1, np.float32), soc=soc, auto_sync=False)


def test_what_follows_a_scalar_read_is_behind_its_wait():
    x, y = np.arange(16, dtype=np.float32), np.zeros(8, np.float32)
    for define in (None, {"FLAGS": None}):
        run("race_partial_scalar_read", x, y, define=define)
        np.testing.assert_array_equal(y, np.full(8, x.sum()))
    with pytest.raises(RaceFault, match="MTE2_S"):
        run("race_partial_scalar_read", x, y, auto_sync=False)


def test_a_copy_out_behind_a_scalar_read_of_another_copy():
    y = np.zeros(64, np.float32)
    run("race_after_getvalue", X, np.zeros(8, np.int32), y)
    np.testing.assert_array_equal(y, X)
    y[:] = 0
    run("race_after_getvalue", X, np.zeros(8, np.int32), y, define={"EXPLICIT": None}, auto_sync=False)
    np.testing.assert_array_equal(y, X)


def test_gather_mask_carries_bytes_without_a_value_on():
    y = np.zeros(8, np.float32)
    run("poison_gathermask", X[:8].copy(), y, define={"COUNT": 4})
    np.testing.assert_array_equal(y, [*X[:8:2], 0, 0, 0, 0])
    with pytest.raises(PoisonFault, match="was not written since AllocTensor"):
        run("poison_gathermask", X[:8].copy(), y, define={"COUNT": 5})


REFUSED = [
    None, "overlap 32 bytes apart", "Sign: .* no bytes in common",
    "mask must be 1 to 64, got 128", "SetSize: this .* too far", None, "arrays.0. has 4 elements", "GetWithOffset: .* has 1024",
]  # fmt: skip


@pytest.mark.parametrize("mode", range(len(REFUSED)))
def test_a_device_takes_what_the_checker_refuses(mode):
    source = X[:4].copy() if mode == 6 else X
    y = np.zeros(64, np.float32)
    report = run("device_mode_refusals", source, y, define={"MODE": mode}, strictness="device", ordering=False)
    expected = np.concatenate([source + 1, np.zeros(64 - source.size, np.float32)])
    np.testing.assert_array_equal(y, expected)
    if mode == 0:  # nobody uses it
        assert "gets 0 bytes" in str(run("device_mode_refusals", source, y, define={"MODE": mode}).remarks())
    if REFUSED[mode] is not None:
        assert len(report.remarks()) == 1  # says what the checker refuses
        with pytest.raises(DeviceFault, match=REFUSED[mode]):
            run("device_mode_refusals", source, y, define={"MODE": mode}, ordering=False)


def test_bytes_behind_an_array_have_no_value_and_end():
    def kernel(count):
        def body(x, y):
            memory, target = ascendc.GlobalTensor(np.float32), ascendc.GlobalTensor(np.float32)
            memory.SetGlobalBuffer(x)
            target.SetGlobalBuffer(y)
            buf = ascendc.TBuf()
            ascendc.TPipe().InitBuffer(buf, 256)
            ascendc.DataCopy(buf.Get(np.float32), memory, count)
            ascendc.PipeBarrier(ascendc.PIPE_ALL)
            ascendc.DataCopy(target, buf.Get(np.float32), 8)

        return body

    y = np.zeros(64, np.float32)
    with pytest.warns(ascendc.AscendWarning, match="lies behind the end of arrays"):
        ascendc.launch(kernel(8), 1, X[:4].copy(), y, strictness="device")
    np.testing.assert_array_equal(y[:4], X[:4])
    assert np.isnan(y[4:8]).all()
    with pytest.raises(DeviceFault, match=r"arrays\[0\] has 4 elements"):
        ascendc.launch(kernel(24), 1, X[:4].copy(), y, strictness="device")


@pytest.mark.parametrize("name", ["assert_idiom", "launcher", "using_std", "k_max_shape_dim"])
def test_files_as_tutorials_have_them_compile(name):
    y = np.zeros(8, np.float32)
    run(name, y)
    assert y[0] == (name == "launcher")


def test_a_kernel_may_have_the_name_of_a_function_of_c(tmp_path):
    (tmp_path / "fmax.cpp").write_text(
        (HERE / "launcher.cpp").read_text().replace(" k(", " fmax(").replace(" k<", " fmax<")
    )
    y = np.zeros(8, np.float32)
    ascendc.launch(ascendc.compile(tmp_path / "fmax.cpp", "fmax"), 1, y)
    assert y[0] == 1


def test_a_macro_of_one_s_own_changes_no_word_of_our_headers():
    ascendc.compile(HERE / "using_std.cpp", "k", define={"ALL": "1", "N": "64"})
