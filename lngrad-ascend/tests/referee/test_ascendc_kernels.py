"""Kernels in Ascend C through the simulated NPU, by file and function: arguments bound by name, the host side in Python."""

from __future__ import annotations

from pathlib import Path

import pytest

from check_cases import make_case
from lngrad.check.certify import sums
from lngrad.check.implementations import find
from lngrad.check.judge import Options, check_case
from lngrad.errors import BackendUnavailable
from lngrad_ascend.ascendc import CompileError
from lngrad_ascend.cpp.compiling import compiler

CPP = Path(__file__).parents[3] / "examples" / "cpp"


@pytest.fixture(scope="module", autouse=True)
def a_compiler() -> None:
    try:
        compiler()
    except CompileError as reason:
        pytest.skip(str(reason))


@pytest.fixture
def kernel(tmp_path: Path):
    """The example kernel in a folder of its own, with a text replaced."""

    def changed(old: str = "", new: str = "") -> str:
        text = (CPP / "rows_backward.cpp").read_text("utf-8")
        assert old in text
        (tmp_path / "rows_backward.cpp").write_text(text.replace(old, new) if old else text, "utf-8")
        (tmp_path / "rows_backward.py").write_text((CPP / "rows_backward.py").read_text("utf-8"), "utf-8")
        return f"ascendc:{tmp_path / 'rows_backward.cpp'}:rows_backward"

    return changed


def test_the_example_kernel_passes(kernel):
    result = check_case(make_case(lead=(21,), normalized=(64,)), Options(impl=kernel(), standard="exact"))
    assert result.status == "passed", result
    other = check_case(make_case(lead=(21,), normalized=(63,)), Options(impl=kernel()))
    assert (other.status, other.reason) == ("skipped", "rows_backward copies whole blocks of 8 elements, and N is 63")


@pytest.mark.parametrize(("old", "new", "mistake"), [
    ("float meanDxhat = Total(dx, work) / columns_;", "float meanDxhat = Total(dx, work) / (columns_ - 1);",
     "mean of dxhat over N − 1"),
    ("for (int64_t block = 1; block < GetBlockNum(); ++block)", "for (int64_t block = 2; block < GetBlockNum(); ++block)",
     "part of the rows in the column sums"),
])  # fmt: skip
def test_a_wrong_kernel_is_failed_and_named(kernel, old, new, mistake):
    case = make_case(lead=(21,), normalized=(64,))
    result = check_case(case, Options(impl=kernel(old, new), standard="exact"))
    assert (result.status, result.mistake) == ("failed", mistake), result


def test_a_broken_rule_of_the_device_is_a_failed_case_with_its_line(kernel):
    case = make_case(lead=(21,), normalized=(64,))
    wrong = kernel("DataCopy(gamma, gamma_, columns_);", "DataCopy(gamma, gamma_, columns_ - 4);")
    result = check_case(case, Options(impl=wrong))
    assert result.status == "failed"
    assert "rows_backward.cpp:" in result.reason


def test_the_order_of_its_column_sums(kernel, monkeypatch):
    monkeypatch.setattr(sums, "REPLAYS", 3)
    dbeta, dgamma = sums.column_order(find(kernel()), 12, 16)
    order = "4 parts of 3 rows in sequence, then 4 of these in sequence"
    assert dbeta.answer == f"{order}; in float32, confirmed by replay: the same bits on 3 of 3 random inputs"
    assert dgamma.answer.startswith(f"{order}; dy·xhat rounded, then added in float32, confirmed by replay")


def test_what_cannot_be_bound_is_refused(kernel, tmp_path):
    name = kernel()
    with pytest.raises(BackendUnavailable, match=r"expected a __global__ function other, found none"):
        find(name.replace(":rows_backward", ":other"))
    with pytest.raises(BackendUnavailable, match=r"nowhere.cpp: no such file or folder"):
        find("ascendc:nowhere.cpp:k")
    with pytest.raises(BackendUnavailable, match=r"parameters: expected some of dy, x, .*, got grad"):
        find(kernel("GM_ADDR gamma,\n                                                    GM_ADDR dx",
                    "GM_ADDR gamma,\n                                                    GM_ADDR grad"))  # fmt: skip
    kernel()
    (tmp_path / "rows_backward.py").unlink()
    with pytest.raises(BackendUnavailable, match=r"expected the host side in .*rows_backward.py"):
        find(name)
