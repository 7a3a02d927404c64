"""aclnnRmsNorm, its gradient and norms of a sum from C++, as a program on a device calls them."""

from __future__ import annotations

from pathlib import Path

import pytest
from building import build, needs_cxx, run

from lngrad.errors import LngradError
from lngrad_ascend.sdk.program import compile_program


@needs_cxx
def test_norms_of_the_family_from_cxx(toolkit: Path, tmp_path: Path) -> None:
    done = run(build(toolkit, Path(__file__).parent / "programs" / "family.cpp", tmp_path, "-std=c++11"))
    assert done.returncode == 0, done.stdout + done.stderr
    # rstd = 1/sqrt(50/4) and 1; dx = rstd·(g - xhat·mean(g·xhat)), dgamma = sum of dy·xhat, by hand
    assert done.stdout.splitlines() == [
        "y 0.2828 1.1314 0.8485 1.6971 2.0000 0.0000 0.0000 0.0000",
        "rstd 0.2828 1.0000",
        "dx 0.2772 -0.0113 -0.0170 -0.0339 0.0000 2.0000 0.0000 0.0000",
        "dgamma 0.2828 0.0000 0.0000 0.0000",
        "mean 6.0000 1.0000",  # of 2, 4, 6, 12 and 4, 0, 0, 0
        "rstd 0.2673 0.5774",
        "sum 2.0000 4.0000 6.0000 12.0000 4.0000 0.0000 0.0000 0.0000",
        "mean 7.2500 2.2500",  # with 1, 2, 1, 1 added
        "rstd 0.2754 0.6100",
        "sum 2.0000 4.0000 6.0000 12.0000 4.0000 0.0000 0.0000 0.0000",
        "dbeta 1.0000 1.0000 0.0000 0.0000",
        "dgx 0.0626 -0.1579 -0.1031 0.0613 0.1419 0.3405 -0.8795 -0.8795",  # of h = 2x, by the formula in float64
        "dx 0.1253 -0.3158 -0.2062 0.1227 0.2837 0.6809 -1.7591 -1.7591",
        "161001: gamma: expected an argument, got a null pointer",
    ]


@pytest.mark.parametrize(
    ("header", "operator"),
    [
        ("aclnnop/aclnn_group_norm_silu.h", "aclnnGroupNormSilu"),
        ("op_graph/group_norm_silu_proto.h", "GroupNormSilu"),
    ],
)
def test_a_program_of_an_operator_that_is_not_here_is_refused_in_one_sentence(
    header: str, operator: str, tmp_path: Path
) -> None:
    source = tmp_path / "group_norm.cpp"
    source.write_text(f'#include "acl/acl.h"\n  #include "{header}"\nint main() {{}}\n')
    with pytest.raises(LngradError) as refused:
        compile_program(source, tmp_path / "program", [], [])
    assert str(refused.value) == f"{source}: expected operators that are here, got {operator} ({header}), which is not"
    (tmp_path / header).parent.mkdir()
    (tmp_path / header).touch()
    with pytest.raises(LngradError, match=r"acl/acl\.h"):
        compile_program(source, tmp_path / "program", [], [])
